"""What is complete of an unfinished causal run: one file for each place, from which the next run resumes."""

import hashlib
import json
from pathlib import Path
from typing import Any

from probekit.causal.curve.places import PlaceFound, read_found
from probekit.causal.curve.question import CausalQuestion
from probekit.errors import ProbekitError
from probekit.files.durable import make_folder, remove, seal, unseal, write_as
from probekit.machine.versions import versions_of

PARTS_FORMAT = 4  # counts up when a place would be measured differently
NAME = ".parts"  # hidden, so that a folder of results holds nothing else


class Parts:
    """Places that were measured before, in a folder.

    A file is read again only if everything that decides its numbers is the same: model, activations, probes, options
    and versions.

    Args:
        folder: None keeps nothing.
        question: what is asked.
    """

    def __init__(self, folder: Path | None, question: CausalQuestion):
        self._folder = None if folder is None else folder / NAME
        self._digest = "" if folder is None else run_digest(question)

    def read(self, place: str) -> PlaceFound | None:
        """What was measured at a place, or None."""
        if self._folder is None:
            return None
        try:
            body, _ = unseal(self._path(place))
            return read_found(body["found"]) if body.get("digest") == self._digest else None
        except (ProbekitError, OSError, KeyError, TypeError):
            return None

    def write(self, place: str, found: PlaceFound) -> None:
        """Keep what was measured at a place.

        Raises:
            StorageError: the disk refused.
        """
        if self._folder is None:
            return
        make_folder(self._folder)
        write_as(self._path(place), seal({"digest": self._digest, "found": found.as_dict()})[0])

    def _path(self, place: str) -> Path:
        assert self._folder is not None
        return self._folder / f"{place}.json"


def kept_places(folder: Path) -> int:
    """How many places of an unfinished run are in a folder of results."""
    return len(list((folder / NAME).glob("*.json")))


def remove_parts(folder: Path) -> None:
    """Delete what was kept of a run that is now complete."""
    for path in (folder / NAME).glob("*.json"):
        remove(path)
    if (folder / NAME).is_dir() and not any((folder / NAME).iterdir()):
        (folder / NAME).rmdir()


def run_digest(question: CausalQuestion) -> str:
    """Hex sha256 of everything that decides the numbers of a place."""
    options = {
        name: value
        for name, value in vars(question.options).items()
        if name not in ("keep", "layers", "progress", "on_progress", "on_part")
    }
    probes = {layer.place: _array_digest(layer.probe.direction) for layer in question.results.layers}
    known: dict[str, Any] = {
        "format": PARTS_FORMAT,
        "options": options,
        "label": question.label,
        "answers": [question.answers_label, *question.answer_C.tolist()],
        "rows": _array_digest(question.rows.index),
        "model": question.model.fingerprint(),
        "activations": {key: value for key, value in question.acts.meta.items() if key.endswith("fingerprint")},
        "probes": probes,
        "versions": versions_of("torch", "numpy"),
    }
    return hashlib.sha256(json.dumps(known, sort_keys=True, default=str).encode()).hexdigest()


def _array_digest(x: Any) -> str:
    return hashlib.sha256(x.tobytes()).hexdigest()
