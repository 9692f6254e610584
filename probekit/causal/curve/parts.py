"""What is complete of an unfinished causal run: a record of each place, from which the next run resumes.

The folder of the results decides which question they answer. So records of another question are stale here: they are
removed, and refuse nobody.
"""

import hashlib
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict

from probekit.causal.curve.places import PlaceRecord
from probekit.causal.curve.question import CausalQuestion
from probekit.causal.data import Effect, Method
from probekit.errors import DataError, StorageError
from probekit.files.durable import is_there, remove_folder, unseal
from probekit.files.plain_files import MAX_TABLE, read_bytes
from probekit.files.records import Unfit, read_as
from probekit.files.run import PLAN, Run, begin_run, differing, refuse_others
from probekit.machine.versions import versions_of

FORMAT = "probekit.causal-places/5"  # counts up when a place would be measured differently
NAME = ".parts"  # hidden, so that a folder of results holds nothing else
NO_NUMBERS = ("keep", "layers", "progress", "on_progress", "on_part")  # options that decide no number of a place


class _Place(TypedDict):
    effects: list[dict[str, Any]]
    chosen: dict[str, dict[str, Any]]
    angles: dict[str, float]
    search: dict[str, Any]
    after: dict[str, dict[str, Any]]
    has_direction: bool


def begin_places(folder: Path, question: CausalQuestion) -> Run:
    """The records of the places of this question, in a folder of results.

    Raises:
        DataError: a file of neutral texts that cannot be read.
        ResumeMismatch: a run of another question began there at the same moment.
        StorageError: the disk refused.
    """
    home, asked = folder / NAME, _asked(question)

    def same(found: dict[str, Any], ours: dict[str, Any]) -> None:
        if fields := differing(found, ours):
            raise refuse_others(f"another run began in {str(folder)!a}", fields, found, ours, {})

    if is_there(home / PLAN) and _plan_of(home) != asked:
        remove_folder(home)
    return begin_run(home, asked, "is of another question", same)


def read_place(run: Run, place: str) -> PlaceRecord | None:
    """What was measured at a place; None without a record, or with a damaged one, which is removed."""
    if not run.has(place):
        return None
    try:
        body = run.read(place, _Place)
        effects = [_effect(entry) for entry in body["effects"]]
        chosen = {read_as(Method, method): read_as(Effect, entry) for method, entry in body["chosen"].items()}
    except (StorageError, Unfit):
        run.remove(place)
        return None
    return PlaceRecord(effects, chosen, body["angles"], body["search"], body["after"], body["has_direction"])


def _effect(entry: dict[str, Any]) -> Effect:
    """An effect out of JSON; one that is a share of nothing is null there, and nan here."""
    if entry.get("effect", 0.0) is not None:
        return read_as(Effect, entry)
    return replace(read_as(Effect, {**entry, "effect": 0.0}), effect=math.nan)


def kept_places(folder: Path) -> int:
    """How many places of an unfinished run are in a folder of results."""
    return len(Run(folder / NAME, "").done())


def remove_places(folder: Path) -> None:
    """Delete what was kept of a run that is now complete."""
    remove_folder(folder / NAME)


def _plan_of(home: Path) -> dict[str, Any] | None:
    """What the records there answer; None if that is damaged."""
    try:
        return unseal(home / PLAN)[0]
    except StorageError:
        return None


def _asked(question: CausalQuestion) -> dict[str, Any]:
    """Everything that decides the numbers of a place, as JSON."""
    neutral = question.options.neutral
    try:
        texts = None if neutral is None else hashlib.sha256(read_bytes(neutral, MAX_TABLE)).hexdigest()
    except OSError as error:
        raise DataError(f"cannot read {str(neutral)!a}: {error.strerror}") from None
    known = {
        "format": FORMAT,
        "options": {name: value for name, value in vars(question.options).items() if name not in NO_NUMBERS},
        "label": question.label,
        "answers": [question.answers_label, *question.answer_C.tolist()],
        "rows": _digest(question.rows.index),
        "neutral": texts,
        "model": question.model.fingerprint(),
        "activations": {key: value for key, value in question.acts.meta.items() if key.endswith("fingerprint")},
        "probes": {layer.place: _digest(layer.probe.direction) for layer in question.results.layers},
        "versions": versions_of("torch", "numpy"),
    }
    return json.loads(json.dumps(known, default=str))


def _digest(x: Any) -> str:
    return hashlib.sha256(x.tobytes()).hexdigest()
