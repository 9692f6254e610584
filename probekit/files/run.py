"""A resumable run in a folder: what was asked, first, and a sealed record of each piece that is done.

    FOLDER/plan.json     what was asked; its checksum stands in every record
           00012.json    a record: what one piece came to, or which files hold it

No worker claims a piece. Whoever has computed one writes its record, and the first writer wins, so that a piece which a
worker left undone, killed or stopped for a while, is simply done by another one. The same question finds its records
again; another question is refused with the fields that differ.

Files that hold the values of a piece are on disk before its record (`durable`), so that what a record names is there.
"""

import contextlib
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from probekit.errors import ResumeMismatch, StorageError
from probekit.files.durable import (
    MAX_JSON_BYTES,
    TEMPORARY,
    is_there,
    make_folder,
    remove,
    remove_stale,
    seal,
    unseal,
    write_as,
    write_first,
)
from probekit.files.records import has_form
from probekit.files.remote.path import AnyPath

PLAN = "plan.json"
ELSEWHERE = "name another folder, or remove it"
AGAIN = "remove it, and run the same command again"
_MAX_SHOWN = 60  # characters of a value in a message
_MAX_PART = 48  # characters of one part of a folder's name


class Run:
    """The records of a run: which pieces are done, and what each came to.

    Args:
        folder: of the records.
        seal: checksum of what was asked; a record with another one is refused.
        key: the field of a record that holds it.
        other: what is said of a record that does not fit, after its path.
        advice: what to do about a damaged record.
        max_bytes: the largest record that is read.
    """

    def __init__(
        self,
        folder: AnyPath,
        seal: str,
        key: str = "plan",
        other: str = "is of another run",
        advice: str = AGAIN,
        max_bytes: int = MAX_JSON_BYTES,
    ):
        self.folder, self.seal = folder, seal
        self._key, self._other, self._advice, self._max_bytes = key, other, advice, max_bytes

    def file(self, piece: str) -> AnyPath:
        """The file of a piece's record."""
        return self.folder / f"{piece}.json"

    def has(self, piece: str) -> bool:
        """True if the piece has a record, sound or not."""
        return is_there(self.file(piece))

    def done(self) -> list[str]:
        """The pieces that have a record, by name."""
        found = [one for one in self.folder.glob("*.json") if not one.name.startswith(TEMPORARY) and one.name != PLAN]
        return sorted(one.stem for one in found)

    def to_do(self, pieces: Iterable[str]) -> list[str]:
        """Those of the pieces that have no record."""
        done = set(self.done())
        return [piece for piece in pieces if piece not in done]

    def read(self, piece: str, form: Any = dict[str, Any], fits: Callable[[Any], bool] | None = None) -> Any:
        """What the record of a piece holds: of this form, as `read_as` takes it, for which `fits` holds.

        Raises:
            StorageError: it is missing, damaged, of another question, or without its form.
        """
        body, _ = unseal(self.file(piece), self._max_bytes, self._advice)
        if body.get(self._key) == self.seal and has_form(form, body) and (fits is None or fits(body)):
            return body
        raise StorageError(f"{str(self.file(piece))!a} {self._other}; {self._advice}")

    def sound(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """The pieces whose records are sound and of this question, with what they hold."""
        for piece in self.done():
            with contextlib.suppress(StorageError):
                yield piece, self.read(piece)

    def write(self, piece: str, body: Mapping[str, Any], replace: bool = False) -> bool:
        """Put the record of a piece on disk, unless it has one; False if another writer was faster.

        With `replace` it takes the place of one that is there.

        Raises:
            StorageError: the disk refused.
        """
        data, _ = self.sealed(body)
        if replace:
            write_as(self.file(piece), data)
            return True
        return write_first(self.file(piece), data)

    def sealed(self, body: Mapping[str, Any]) -> tuple[bytes, str]:
        """The bytes of a record with this body, and its checksum."""
        return seal({self._key: self.seal, **body}, self._max_bytes)

    def remove(self, piece: str) -> None:
        """Remove the record of a piece, which is then done again; a missing one is no error."""
        remove(self.file(piece))


def begin_run(
    folder: AnyPath,
    question: Mapping[str, Any],
    other: str,
    same: Callable[[dict[str, Any], dict[str, Any]], None],
    advice: str = AGAIN,
) -> Run:
    """Write what is asked into a folder, unless the same question is there already; its records.

    Args:
        folder: of the run; temporary files of runs that died are removed from it.
        question: what decides the values, and a format, as JSON-able values.
        other: what is said of a record that is of another question.
        same: is called with (what the folder's plan holds, what this one would) and raises unless they are equal.
        advice: what to do about a damaged plan.

    Raises:
        ResumeMismatch: the folder holds the answer to another question.
        StorageError: the disk refused, or the plan there is damaged.
    """
    make_folder(folder)
    remove_stale(folder)
    body, _ = seal(dict(question))
    if not is_there(folder / PLAN):  # a complete run may be where nothing can be written
        write_first(folder / PLAN, body)
    found, checksum = unseal(folder / PLAN, advice=advice)
    same(found, {key: value for key, value in json.loads(body).items() if key != "seal"})
    return Run(folder, checksum, other=other)


def differing(stored: Mapping[str, Any], ours: Mapping[str, Any]) -> list[str]:
    """The fields of two identities that differ."""
    return [key for key in {**stored, **ours} if stored.get(key) != ours.get(key)]


def refuse_others(
    what: str,
    fields: Iterable[str],
    stored: Mapping[str, Any],
    ours: Mapping[str, Any],
    explained: Mapping[str, str],
    advice: str = ELSEWHERE,
    shown: Callable[[Mapping[str, Any], str], str] | None = None,
) -> ResumeMismatch:
    """The error for a folder that holds the answer to another question: every field, with both values.

    Args:
        what: the folder, and what holds of it: "'runs/x' was made with other settings".
        fields: those that differ.
        stored: the identity there.
        ours: the identity of this run.
        explained: words behind a field's name.
        advice: what to do.
        shown: a value in a message, of (identity, field); None is `value_shown`.
    """
    show = shown or value_shown
    named = [f"{key}{explained.get(key, '')}: {show(stored, key)} there, {show(ours, key)} here" for key in fields]
    return ResumeMismatch(f"{what} ({'; '.join(named)}); {advice}")


def value_shown(identity: Mapping[str, Any], key: str) -> str:
    """A value as a message shows it: a long one without its middle."""
    text = ascii(identity[key]) if key in identity else "nothing"
    return text if len(text) <= _MAX_SHOWN else f"{text[:24]}...{text[-24:]}"


def question_digest(question: Any) -> str:
    """Hex sha256 of a text, or of what JSON can hold, that decides an answer."""
    text = question if isinstance(question, str) else json.dumps(question, sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def folder_name(parts: Iterable[str], question: Any = None) -> str:
    """A name for a folder from parts with any characters; equal questions get equal names, others other ones.

    Args:
        parts: what a person reads.
        question: what decides the answer, as `question_digest` takes it; None leaves its digest out.
    """
    named = [re.sub(r"[^A-Za-z0-9._-]+", "-", part).strip(".-_")[:_MAX_PART] or "unnamed" for part in parts]
    return "-".join(named if question is None else [*named, question_digest(question)[:8]])
