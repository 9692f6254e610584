"""The files of continuations: a plan, and one sealed file for each finished batch, so that a run can be resumed."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from probekit.activations.continuations.plan import FORMAT, ContinuationPlan
from probekit.activations.default_path import folder_name
from probekit.activations.digest import identity_digest
from probekit.activations.store.begin import CONTINUATIONS, ELSEWHERE, check_free
from probekit.errors import ResumeMismatch, StorageError
from probekit.files.durable import is_there, make_folder, matches, remove_stale, seal, unseal, write_first
from probekit.files.remote.path import AnyPath, as_path
from probekit.models.generation import Continuation

PLAN = "plan.json"
_BATCH = {"plan": str, "rows": [int], "tokens": [[int]], "ended": [str]}
_AGAIN = "remove it, and run the same command again"
_MAX_SHOWN = 60  # characters of a value in a message
_EXPLAINED = {
    "prompts": " (the texts, their order, or how they become tokens)",
    "model_fingerprint": " (the weights, in the type that computes)",
}


def folder_of(plan: ContinuationPlan, out: str | AnyPath | None, root: str | AnyPath = "runs") -> AnyPath:
    """Where the continuations of a plan are kept: in the store at `out`.

    Without `out` they have a folder under `root`, which stores of other points and layers share.
    """
    if out is not None:
        return as_path(out) / CONTINUATIONS
    parts = [plan.model.name, plan.task.name, identity_digest(plan.identity)[:8]]
    return as_path(root) / CONTINUATIONS / folder_name(parts)


def begin_folder(folder: AnyPath, plan: ContinuationPlan) -> str:
    """Make the folder of these continuations, or find it; the checksum of its plan.

    Raises:
        ResumeMismatch: it holds continuations with other settings, or lies in a store of texts that were not continued.
        StorageError: the disk refused, or files that are not of a store are there.
    """
    _check_store(folder)
    make_folder(folder)
    remove_stale(folder)
    data, _ = seal({"format": FORMAT, "identity": plan.identity})
    if not is_there(folder / PLAN):
        write_first(folder / PLAN, data)
    body, checksum = unseal(folder / PLAN, advice=_AGAIN)
    if not matches(body, {"format": str, "identity": dict}) or body["format"] != FORMAT:
        raise StorageError(f"{str(folder / PLAN)!a} is not a plan of continuations; {ELSEWHERE}")
    _check_same(folder, body["identity"], json.loads(data)["identity"])
    return checksum


def _check_store(folder: AnyPath) -> None:
    """Refuse, before anything is written, a store at the folder's parent that cannot take these continuations."""
    if folder.name != CONTINUATIONS or folder.exists():
        return
    check_free(folder.parent)
    if is_there(folder.parent / "plan.json"):
        raise ResumeMismatch(
            f"{str(folder.parent)!a} was made with other settings (generate: nothing there); {ELSEWHERE}"
        )


def _check_same(folder: AnyPath, stored: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    differing = [key for key in {**stored, **ours} if stored.get(key) != ours.get(key)]
    if differing:
        fields = "; ".join(
            f"{key}{_EXPLAINED.get(key, '')}: {_shown(stored.get(key))} there, {_shown(ours.get(key))} here"
            for key in differing
        )
        raise ResumeMismatch(f"the texts in {str(folder)!a} were written with other settings ({fields}); {ELSEWHERE}")


def _shown(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:24]}...{text[-24:]}"


def batch_on_disk(folder: AnyPath, plan_seal: str, number: int, rows: np.ndarray) -> list[Continuation] | None:
    """The continuations of a batch that is finished; None if it is not.

    Raises:
        StorageError: its file is damaged, or of other texts.
    """
    file = _file(folder, number)
    if not is_there(file):
        return None
    body, _ = unseal(file, advice=_AGAIN)
    sound = matches(body, _BATCH) and body["plan"] == plan_seal and body["rows"] == rows.tolist()
    if not sound or not len(body["tokens"]) == len(body["ended"]) == len(rows):
        raise StorageError(f"{str(file)!a} holds continuations of other texts; {_AGAIN}")
    return [Continuation(tokens, why) for tokens, why in zip(body["tokens"], body["ended"], strict=True)]


def write_batch(folder: AnyPath, plan_seal: str, number: int, rows: np.ndarray, made: list[Continuation]) -> None:
    """Put the continuations of a batch on disk, unless another writer was faster.

    Raises:
        StorageError: the disk refused.
    """
    body = {"plan": plan_seal, "rows": rows, "tokens": [one.tokens for one in made], "ended": [x.ended for x in made]}
    write_first(_file(folder, number), seal(body)[0])


def texts_written(folder: AnyPath) -> int:
    """How many texts of an interrupted run are on disk."""
    return sum(len(unseal(file)[0]["rows"]) for file in folder.glob("[0-9]*.json"))


def _file(folder: AnyPath, number: int) -> AnyPath:
    return folder / f"{number:06d}.json"
