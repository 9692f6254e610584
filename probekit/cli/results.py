"""Where results go, which question they answer, and how they are saved and shown."""

import dataclasses
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypedDict

from probekit.cli import console
from probekit.cli.fields import Output
from probekit.errors import ResumeMismatch, UsageError
from probekit.files.plain_files import MAX_RESULTS, read_bytes
from probekit.files.records import parse_record, read_as
from probekit.files.remote.path import AnyPath
from probekit.manifest import results_home
from probekit.options import CurveOptions, ProbeOptions
from probekit.options.option import help_of
from probekit.options.typed import json_value
from probekit.results.kinds import KINDS, check_results_folder, kind_in
from probekit.text import listed

NAME_ORDER = (
    "quick",
    "position",
    "by",
    "layers",
    "C",
    "folds",
    "drop_leaks",
    "random_init",
    "nuisance",
    "shift_column",
    "controls",
    "control_type",
    "control_C",
    "metric",
    "codelength",
    "intervals",
    "concatenate",
    "least_texts",
    "aggregate",
    "on_bad_row",
)
"""Options in the order of a folder's name; those of later versions follow, and the seed is last."""

_ALWAYS_NAMED = ("label", "point", "probe")  # always part of the name
_LONGEST = 200  # characters of a folder's name; file systems take 255 bytes


class _Question(TypedDict):
    asked: dict[str, Any]
    activations: dict[str, Any]


class _Answered(TypedDict):
    """What a file of results says of its question."""

    meta: _Question


def question_of(options: CurveOptions) -> dict[str, Any]:
    """The question that results answer, as JSON: every option that the command line has."""
    shown = [field.name for field in dataclasses.fields(options) if help_of(field).flag is not None]
    return json.loads(json.dumps({name: json_value(getattr(options, name)) for name in shown}))


def results_folder(store: AnyPath, meta: Mapping[str, Any], question: Mapping[str, Any]) -> Path:
    """The default folder: options that differ from their defaults are in its name, so each question has its own.

    Args:
        store: the store's path.
        meta: of the results: the label, point and probe that were used.
        question: from `question_of`, with `random_init`.
    """
    name = "-".join([meta["label"], meta["point"], _probe_tag(question["probe"], meta["probe"]), *_tags(question)])
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).lstrip(".-")
    if plain != name or len(name) > _LONGEST:  # 0,3 and 0-3 would have the same name
        plain = f"{plain[:180]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    return results_home(store) / plain


def _probe_tag(probe: Any, name: str) -> str:
    if isinstance(probe, list):
        return "-".join(probe)
    if not isinstance(probe, dict):
        return name
    return "-".join([probe["name"], *(f"{key}-{value}" for key, value in probe.items() if key != "name")])


def _tags(question: Mapping[str, Any]) -> list[str]:
    fields = {field.name: field for field in dataclasses.fields(ProbeOptions)}
    forms = ("probe", "aggregate", "quick", "by", "shift_column")  # which decide the defaults of others
    usual = vars(ProbeOptions(**{name: question[name] for name in forms if name in question}))
    usual |= {"quick": False, "by": None, "shift_column": None}
    if isinstance(question["probe"], dict):
        usual["aggregate"] = None  # otherwise the probe's name says it
    later = [name for name in question if name not in (*_ALWAYS_NAMED, *NAME_ORDER, "seed")]
    tags = []
    for name in (*NAME_ORDER, *later, "seed"):
        tag = help_of(fields[name]).tag if name in fields else None
        if question[name] != usual.get(name, False):
            tags.append(_tag(name.replace("_", "-") if tag is None else tag, question[name]))
    return tags


def _tag(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return name if value else f"no-{name}"
    values = [str(each).removesuffix(".0") for each in value] if isinstance(value, list) else [str(value)]
    return "-".join([name, *values] if name else values)


def check_out(out: Path, activations: Mapping[str, Any], question: Mapping[str, Any], kind: str = "curve") -> None:
    """Check that results may go to `out`: it is free, or holds those of the same question about the same activations.

    Args:
        out: a folder, or nothing yet.
        activations: what is known about the activations (`Store.meta`).
        question: from `question_of`, with `random_init`.
        kind: of the results, a key of `KINDS`.

    Raises:
        StorageError: something other than results is there.
        ResumeMismatch: results of another question.
    """
    check_results_folder(out, kind)
    try:
        meta = read_as(_Answered, parse_record(read_bytes(out / KINDS[kind].file, MAX_RESULTS)))["meta"]
        stored, read = meta["asked"], meta["activations"]
        different = _different(stored, question) + [key for key in read if activations.get(key, read[key]) != read[key]]
    except (OSError, ValueError):
        return  # no complete results are there
    if different:
        raise ResumeMismatch(
            f"{str(out)!a} holds results of other settings or data (different: {listed(sorted(different))}); give "
            "another folder (--out), or remove that one"
        )


def _different(stored: Mapping[str, Any], question: Mapping[str, Any]) -> list[str]:
    """The options that differ; results of earlier versions do not list those that were left at their defaults.

    Nor do they have `control_C`: the same command may replace them, though its control tasks had their own C then.
    """
    names = {field.name for field in dataclasses.fields(ProbeOptions)}
    try:
        before = question_of(ProbeOptions(**{name: value for name, value in stored.items() if name in names}))
    except (UsageError, TypeError, ValueError):
        before = {}
    before["random_init"] = stored.get("random_init", False)
    before["control_C"] = stored.get("control_C", question.get("control_C"))
    return [name for name, value in question.items() if before.get(name) != value]


def _body_in(folder: Path) -> dict[str, Any]:
    """What the file of the results in a folder holds; of several results with what each of them holds."""
    kind = kind_in(folder)
    assert kind is not None
    body = json.loads((folder / KINDS[kind].file).read_text())
    if not KINDS[kind].inner:
        return body
    return {**body, kind: [entry | _body_in(folder / entry["folder"]) for entry in body[kind]]}


def save_and_show(
    results: Any,
    folder: Path,
    draw: Callable[[Any, Path], Path | list[Path]],
    where: dict[str, Any],
    complete: str,
    output: Output | None,
) -> None:
    """Save results and their picture, and print them.

    Args:
        results: `ProbeResults`, `ProbeCurves` or `TransferResults`.
        folder: where they go.
        draw: writes the picture, or several, into the folder.
        where: the paths that the JSON output begins with.
        complete: what is complete already, for Ctrl-C.
        output: how to print; None prints nothing.
    """
    with console.interrupt_says(f"{complete}, the results in {folder} are incomplete; run the same command again"):
        results.save(folder)
        drawn = draw(results, folder)
    if output is None:
        return
    pictures = [str(path) for path in (drawn if isinstance(drawn, list) else [drawn])]
    if output.json:
        paths = {**where, "results": str(folder), "picture": pictures[0]}
        if isinstance(drawn, list):
            paths["pictures"] = pictures
        console.result_json(paths | _body_in(folder))
    elif output.quiet:
        console.result("\n".join(pictures))
    else:
        console.result("\n".join([str(results.summary()), "", *(f"Picture: {path}" for path in pictures)]))
