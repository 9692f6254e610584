"""The view of a folder of results: which texts it shows, and where their tokens' activations come from.

Texts are those of the test split. The store has all tokens of them, or a model is run over them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from probekit.activations.activations import Activations
from probekit.activations.plan.token_ids import tokenise_inputs
from probekit.activations.store.format import read_plan
from probekit.activations.store.reader import Store
from probekit.errors import DataError, ProbekitError, ResumeMismatch, UsageError
from probekit.evaluation.results.data import ProbeData
from probekit.machine.progress import SILENT, Steps
from probekit.models.base import LanguageModel
from probekit.places import ALL
from probekit.report.tokens.build import token_scores
from probekit.report.tokens.choose import choose_texts, confidence_of
from probekit.report.tokens.data import TokenScores
from probekit.report.tokens.model_views import with_model_views
from probekit.report.tokens.read import TokenRows, rows_from_model, rows_from_store, selection_of
from probekit.scoring.probe import differences
from probekit.scoring.threshold import choose_threshold
from probekit.tasks.base import Task
from probekit.text import listed, printable

TEXTS = 100
EDITED = "No logit lens and no attention patterns: the scores are of a model that ran under edits."
NO_MODEL = "No logit lens and no attention patterns: the scores are from the store; they need the model (--model)."


@dataclass(frozen=True)
class Shown:
    """Which texts are shown, and where their colours are centred.

    Attributes:
        texts: how many, at most.
        seed: of those taken at random.
        fpr: false-positive rate on validation whose threshold is the centre; None centres on even odds.
    """

    texts: int = TEXTS
    seed: int = 0
    fpr: float | None = None


def view_of_results(
    data: ProbeData,
    acts: Activations,
    model: LanguageModel | None = None,
    shown: Shown | None = None,
    parts: Steps = SILENT,
) -> TokenScores:
    """The view of the test texts of the activations that probes were trained on.

    Args:
        data: the curve, with fitted probes.
        acts: the activations that it was trained on.
        model: runs over the texts, unless the activations are of all tokens; None loads the one that made the store.
        shown: which texts.
        parts: says what is being done.

    Raises:
        UsageError: a model is needed, and none can be had without a network; probes that were not saved.
        DataError: no texts; the model ran under edits, which only Python has.
        ResumeMismatch: another model than the probes'.
    """
    shown = shown or Shown()
    if not acts.task.has_texts:
        raise DataError("these activations were imported without texts, so there is nothing to show")
    rows, why = chosen_rows(data, acts.task, shown)
    has_all = acts.layout.positions == [ALL] and all((one.point, one.layer) in acts for one in data.layers)
    if edited := data.meta.get("activations", {}).get("edited"):
        if not has_all:
            raise DataError(
                f"the model ran under edits ({edited!a:.80}), which this page cannot repeat; extract with position "
                "all, or use results.tokens(model, texts, edits=...) in Python"
            )
        found = rows_from_store(acts, rows, selection_of(data))
        return _with_notes(token_scores(data, found, why, shown.fpr), [EDITED])
    if model is None and not has_all:
        parts.begin("loading the model")
        model = model_of_store(acts)
    parts.begin("scoring tokens")
    if model is None:
        found = rows_from_store(acts, rows, selection_of(data))
        return _with_notes(token_scores(data, found, why, shown.fpr), [NO_MODEL])
    check_same_model(data, model)
    task = acts.task.subset(rows)
    if has_all:
        found = rows_from_store(acts, rows, selection_of(data))
    else:
        found = rows_from_model(model, task, data, _recorded(acts))
    return _with_views(data, found, dict(zip(task.ids, why, strict=True)), model, shown.fpr, parts)


def view_of_texts(
    data: ProbeData,
    model: LanguageModel,
    task: Task,
    *,
    fpr: float | None = None,
    edits: Mapping[Any, Any] | None = None,
    chat_template: str | Path | None = None,
) -> TokenScores:
    """The view of all texts of a task, which the model reads as it read those of the probes' training.

    Raises:
        UsageError: probes that were not saved; a rate that validation cannot hold.
        DataError: texts that the model cannot take.
        ResumeMismatch: another model, other edits or another chat template than the probes'.
    """
    check_same_model(data, model, edits)
    found = rows_from_model(model, task, data, {"edits": edits, "chat_template": chat_template})
    if edits is not None:
        view = token_scores(data, found, fpr=fpr, tokenizer=model.tokenizer)
        return _with_notes(view, [EDITED])
    return _with_views(data, found, {}, model, fpr)


def chosen_rows(data: ProbeData, task: Task, shown: Shown) -> tuple[np.ndarray, list[str]]:
    """The rows of the task that are shown, and why each was chosen."""
    first = task.texts()[0] if task.text_of is not None else np.arange(len(task))
    candidates = first[task.splits[first] == "test"] if (task.splits[first] == "test").any() else first
    rows, place = data.rows, data.selected.place if data.selected is not None else data.layers[-1].place
    if rows is None or place not in rows.scores:
        return choose_texts(shown.texts, shown.seed, candidates, None, None)
    at = {name: i for i, name in enumerate(rows.ids.tolist()) if rows.splits[i] == "test"}
    index = np.array([at.get(task.ids[i], -1) for i in candidates.tolist()], dtype=np.int64)
    if not (index >= 0).any():  # the rows are tokens or words of these texts
        return choose_texts(shown.texts, shown.seed, candidates, None, None)
    candidates, index = candidates[index >= 0], index[index >= 0]
    scores = rows.scores[place][index]
    if place in rows.predicted:
        line = None if shown.fpr is None else choose_threshold(rows, place, shown.fpr).value
        predicted = rows.predicted[place][index] if line is None else scores >= line
        sure = confidence_of(scores, line or 0.0)
        return choose_texts(shown.texts, shown.seed, candidates, sure, predicted != rows.labels[index])
    error = np.abs(scores - rows.labels[index]).reshape(len(index), -1).mean(axis=1)
    order, why = choose_texts(shown.texts, shown.seed, candidates, error, None)
    names = {"least confident": "smallest error", "most confident": "largest error"}
    return order, [names.get(one, one) for one in why]


def model_of_store(acts: Activations) -> LanguageModel:
    """The model that made a store, loaded again without a network.

    Raises:
        UsageError: activations of no store, or a model that is not on this machine.
    """
    source = read_plan(acts.path).source if isinstance(acts, Store) else None
    if source is None:
        raise UsageError("the tokens' scores need the model, and nothing records where it is; give --model (model=)")
    from probekit.models.load import load_model, source_here

    how = source_here(source)
    if how is None:
        raise UsageError(
            f"the tokens' scores need the model {source['name_or_path']!a:.80}, which is neither a folder here nor in "
            "the local cache of the Hub; give --model to load it"
        )
    return load_model(how.pop("name_or_path"), **how, progress=False)


def check_same_model(data: ProbeData, model: LanguageModel, edits: Mapping[Any, Any] | None = None) -> None:
    """Raise a ResumeMismatch if weights, type, tokenizer or edits are others than those of the probes' training."""
    different, _ = differences(data.meta.get("activations", {}), model, edits, model.tokenizer is not None)
    if different:
        raise ResumeMismatch(
            f"{printable(model.name)} is not the model that the probes were trained on: different {listed(different)}; "
            f"give {data.meta.get('model')!a:.80}"
        )


def _recorded(acts: Activations) -> dict[str, Any]:
    """What a store records of its extraction and older results do not."""
    return {"skip_special": bool(acts.meta.get("skip_special"))}


def _with_views(
    data: ProbeData,
    found: TokenRows,
    why: dict[str, str],
    model: LanguageModel,
    fpr: float | None,
    parts: Steps = SILENT,
) -> TokenScores:
    reasons = [why.get(name, "given") for name in found.acts.task.ids]
    view = token_scores(data, found, reasons, fpr, model.tokenizer)
    return with_model_views(view, model, _ids_of(found, model), parts)


def _with_notes(view: TokenScores, notes: list[str]) -> TokenScores:
    return replace(view, meta={**view.meta, "notes": [*view.meta["notes"], *notes]})


def _ids_of(found: TokenRows, model: LanguageModel) -> Sequence[Sequence[int]]:
    """The token ids of each text, with the context tokens that it ran with."""
    layout, task = found.acts.layout, found.acts.task
    try:
        sequences = tokenise_inputs(model, task, bool(layout.n_bos or layout.n_end), "cut")
    except ProbekitError:
        return []
    return [sequences[i].tolist() for i in range(len(task))]
