"""The prompted baseline: the model itself, or another one, is asked for the label of each text.

Scores are kept in a folder of the store, a record for each `ROWS` prompts, and resumed there (`files.run`).
"""

import hashlib
import json
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from probekit.activations.activations import Activations
from probekit.activations.replan import load_model_of
from probekit.activations.store.format import read_plan
from probekit.activations.store.reader import Store
from probekit.black_box.answers import AnswerTokens, answer_tokens_of, log_probabilities_of
from probekit.black_box.prompts import Prompts, make_prompts
from probekit.causal.behaviour.unembedding import check_head
from probekit.errors import UsageError
from probekit.evaluation.compare.black_boxes import BlackBoxScores
from probekit.files.remote.path import AnyPath
from probekit.files.run import Run, begin_run, differing, folder_name, refuse_others
from probekit.machine.dtypes import dtype_name
from probekit.machine.progress import progress_bar
from probekit.models.base import LanguageModel
from probekit.models.load import load_model
from probekit.options.check import check_any_path
from probekit.options.option import keywords
from probekit.options.prompt import PromptArguments
from probekit.tasks.base import Task
from probekit.tasks.token_labels import unlabelled_rows
from probekit.text import kind_of

ROWS = 512  # prompts of a record: what an interrupted run can lose
MOST_SHOWN = 4000  # characters of a prompt in the record
PROMPTED = "prompted"


class _Piece(TypedDict):
    values: list[list[float]]


@keywords(PromptArguments)
def prompted_scores(acts: Activations | Task, options: PromptArguments) -> BlackBoxScores:
    """Ask a model for the label of each text: the log-probability of every answer after a prompt.

    The scores are a baseline of `train_probes(acts, black_boxes=...)`, which calibrates them on validation.

    Args:
        acts: activations or a store, whose own model answers unless another is named; or a task, with model=.
        options: as keyword arguments.

    Returns:
        One log-probability for each row and class, and the tokens that were read for each row.

    Raises:
        UsageError: no model; labels that are numbers; a model that does not continue texts or has no head.
        DataError: a prompt that does not fit the context; a template that cannot be used.
        ResumeMismatch: `out` holds the scores of other prompts.
    """
    if not isinstance(acts, Activations | Task):
        raise UsageError(f"prompted_scores takes activations, a store or a task; got {kind_of(acts)}")
    task = acts if isinstance(acts, Task) else acts.task
    label = task.label_set(options.label)
    if label in task.token_labels:
        raise UsageError(f"a prompt asks about a text, and {label!a} labels tokens; name a label of complete texts")
    rows = _rows(task, label, options)
    model, is_own = _model(acts, options.model)
    check_head(model)
    prompts = make_prompts(model, task, label, rows, options)
    ids = [task.ids[row] for row in rows]
    asked = answer_tokens_of(model, prompts.texts, prompts.answers, prompts.bos, ids)
    record = _record(model, prompts, label, options)
    question = {**record, "format": 1, "rows": len(rows), "prompts": _digest(asked)}
    values = _computed(model, asked, _run(acts, options.out, question), options.progress)
    default = PROMPTED if is_own else f"{PROMPTED} {Path(model.name).name}"
    return BlackBoxScores(
        name=options.name or default,
        ids=ids,
        values=values,
        classes=tuple(task.label_names[label]),
        label=label,
        tokens=asked.read,
        log_odds=True,
        record=record,
    )


def _computed(model: LanguageModel, asked: AnswerTokens, run: Run | None, progress: bool | None) -> np.ndarray:
    """The log-probabilities [N, C]; those that a record holds are read, and the others computed and kept."""
    found: list[np.ndarray] = []
    with progress_bar("prompt", "texts", len(asked), progress) as bar:
        for start in range(0, len(asked), ROWS):
            part, piece = asked.part(slice(start, start + ROWS)), f"{start // ROWS:05d}"
            if run is not None and run.has(piece):
                values = np.array(run.read(piece, _Piece)["values"])
            else:
                values = log_probabilities_of(model, part)
                if run is not None:
                    run.write(piece, {"values": values.tolist()})
            found.append(values)
            bar.advance(len(part))
    return np.concatenate(found)


def _rows(task: Task, label: str, options: PromptArguments) -> np.ndarray:
    every = options.every_row or not (task.splits == "validation").any()
    if every and options.shots:
        raise UsageError(
            f"{options.shots} shots come from train, whose rows "
            f"{'are prompted for too' if options.every_row else 'calibrate the scores, as there is no validation'}; "
            "leave --shots out, or take validation rows and no folds"
        )
    return np.flatnonzero(((task.splits != "train") | every) & ~unlabelled_rows(task, label))


def _model(acts: Activations | Task, given: Any) -> tuple[LanguageModel, bool]:
    """The model that answers, and whether it is that of the activations."""
    if isinstance(given, LanguageModel):
        return given, not isinstance(acts, Task) and acts.meta.get("model_fingerprint") == given.fingerprint()
    if given is not None:
        return load_model(str(given)), False
    if not isinstance(acts, Store):
        what = "a task names no model" if isinstance(acts, Task) else "activations in memory hold no model"
        raise UsageError(f"{what}; give it, prompted_scores(..., model=...)")
    plan = read_plan(acts.path)
    if "model_fingerprint" not in plan.identity:
        raise UsageError(
            f"{str(acts.path)!a} holds imported activations, which name no model; name one, --baseline prompted:MODEL"
        )
    if plan.edits:
        raise UsageError(
            f"{str(acts.path)!a} was extracted under edits ({plan.edits}), and the model is prompted without; "
            "name one, --baseline prompted:MODEL"
        )
    return load_model_of(acts.path, plan), True


def _record(model: LanguageModel, prompts: Prompts, label: str, options: PromptArguments) -> dict[str, Any]:
    """How the scores are made, as JSON."""
    return {
        "model": model.name,
        "model_fingerprint": model.fingerprint(),
        "compute_dtype": dtype_name(model.dtype),
        "label": label,
        "answers": prompts.answers,
        "shots": prompts.shots,
        "template": prompts.template,
        "prompt": str(options.prompt) if "\n" not in str(options.prompt) else "a template",
        "bos": prompts.bos,
        "first_prompt": prompts.texts[0][:MOST_SHOWN],
    }


def _digest(asked: AnswerTokens) -> str:
    text = json.dumps([asked.prompts, asked.answers])
    return hashlib.sha256(text.encode()).hexdigest()


def _run(acts: Activations | Task, out: Any, question: dict[str, Any]) -> Run | None:
    folder: AnyPath
    if out is not None:
        folder = check_any_path("out", out)
    elif isinstance(acts, Store):
        folder = acts.path / folder_name([PROMPTED, question["label"], question["model"]], question)
    else:
        return None

    def same(stored: dict[str, Any], ours: dict[str, Any]) -> None:
        if fields := differing(stored, ours):
            raise refuse_others(f"{str(folder)!a} holds the scores of other prompts", fields, stored, ours, {})

    return begin_run(folder, question, "is of other prompts", same)
