"""The files of continuations: a run with one record for each finished batch."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from probekit.activations.continuations.plan import FORMAT, ContinuationPlan
from probekit.activations.store.begin import CONTINUATIONS, check_free
from probekit.errors import ResumeMismatch, StorageError
from probekit.files.durable import is_there, matches, unseal
from probekit.files.remote.path import AnyPath, as_path
from probekit.files.run import ELSEWHERE, PLAN, Run, begin_run, differing, folder_name, refuse_others
from probekit.models.generation import Continuation

_BATCH = {"rows": [int], "tokens": [[int]], "ended": [str]}
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
    return as_path(root) / CONTINUATIONS / folder_name([plan.model.name, plan.task.name], plan.identity)


def begin_folder(folder: AnyPath, plan: ContinuationPlan) -> Run:
    """Make the folder of these continuations, or find it; its batches.

    Raises:
        ResumeMismatch: it holds continuations with other settings, or lies in a store of texts that were not continued.
        StorageError: the disk refused, or files that are not of a store are there.
    """
    store = folder.parent
    if folder.name == CONTINUATIONS and not folder.exists():  # nothing is written into a store that cannot take them
        check_free(store)
        if is_there(store / PLAN):
            raise ResumeMismatch(f"{str(store)!a} was made with other settings (generate: nothing there); {ELSEWHERE}")

    def check(found: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
        if not matches(found, {"format": str, "identity": dict}) or found["format"] != FORMAT:
            raise StorageError(f"{str(folder / PLAN)!a} is not a plan of continuations; {ELSEWHERE}")
        stored, wanted = found["identity"], ours["identity"]
        if fields := differing(stored, wanted):
            what = f"the texts in {str(folder)!a} were written with other settings"
            raise refuse_others(what, fields, stored, wanted, _EXPLAINED)

    return begin_run(folder, {"format": FORMAT, "identity": plan.identity}, "holds continuations of other texts", check)


def batch_on_disk(run: Run, number: int, rows: np.ndarray) -> list[Continuation] | None:
    """The continuations of a batch that is finished; None if it is not.

    Raises:
        StorageError: its file is damaged, or of other texts.
    """
    if not run.has(_piece(number)):
        return None

    def fits(body: Mapping[str, Any]) -> bool:
        return body["rows"] == rows.tolist() and len(body["tokens"]) == len(body["ended"]) == len(rows)

    body = run.read(_piece(number), _BATCH, fits)
    return [Continuation(tokens, why) for tokens, why in zip(body["tokens"], body["ended"], strict=True)]


def write_batch(run: Run, number: int, rows: np.ndarray, made: list[Continuation]) -> None:
    """Put the continuations of a batch on disk, unless another writer was faster.

    Raises:
        StorageError: the disk refused.
    """
    run.write(_piece(number), {"rows": rows, "tokens": [x.tokens for x in made], "ended": [x.ended for x in made]})


def texts_written(folder: AnyPath) -> int:
    """How many texts of an interrupted run are on disk."""
    return sum(len(unseal(file)[0]["rows"]) for file in folder.glob("[0-9]*.json"))


def _piece(number: int) -> str:
    return f"{number:06d}"
