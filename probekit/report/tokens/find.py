"""The view of a folder of results: which texts it shows, and where their tokens' activations come from.

Texts are those of the test split. The store has all tokens of them, or a model is run over them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from probekit.activations.activations import Activations
from probekit.activations.plan.token_ids import tokenise_inputs
from probekit.activations.store.format import read_plan
from probekit.activations.store.reader import Store
from probekit.errors import DataError, ProbekitError, UsageError
from probekit.evaluation.results.data import ProbeData
from probekit.models.base import LanguageModel
from probekit.places import ALL
from probekit.report.tokens.build import token_scores
from probekit.report.tokens.choose import choose_texts, confidence_of
from probekit.report.tokens.data import TokenScores
from probekit.report.tokens.model_views import with_model_views
from probekit.report.tokens.read import TokenRows, rows_from_model, rows_from_store
from probekit.tasks.base import Task

TEXTS = 100


@dataclass(frozen=True)
class Shown:
    """Which texts are shown.

    Attributes:
        texts: how many, at most.
        seed: of those taken at random.
        centre: the threshold of a probe of two classes.
    """

    texts: int = TEXTS
    seed: int = 0
    centre: float = 0.0


def view_of_results(
    data: ProbeData, acts: Activations, model: LanguageModel | None = None, shown: Shown | None = None
) -> TokenScores:
    """The view of the test texts of the activations that probes were trained on.

    Args:
        data: the curve, with fitted probes.
        acts: the activations that it was trained on.
        model: runs over the texts, unless the activations are of all tokens; None loads the one that made the store.
        shown: which texts.

    Raises:
        UsageError: a model is needed, and none can be had without a network; probes that were not saved.
        DataError: no texts.
    """
    shown = shown or Shown()
    if not acts.task.has_texts:
        raise DataError("these activations were imported without texts, so there is nothing to show")
    rows, why = chosen_rows(data, acts.task, shown)
    position = _position(data, acts)
    whole = acts.layout.positions == [ALL] and all((one.point, one.layer) in acts for one in data.layers)
    model = model if model is not None or whole else model_of_store(acts)
    if model is None:
        found = rows_from_store(acts, rows, position)
        return token_scores(data, found, why, shown.centre)
    check_same_model(data, model)
    task = acts.task.subset(rows)
    found = rows_from_store(acts, rows, position) if whole else _run(data, model, task, acts, position)
    return _with_views(data, found, dict(zip(task.ids, why, strict=True)), model, shown.centre)


def view_of_texts(
    data: ProbeData, model: LanguageModel, task: Task, centre: float = 0.0, how: dict[str, Any] | None = None
) -> TokenScores:
    """The view of all texts of a task, which the model reads as it read those of the probes' training.

    Raises:
        UsageError: another model than the probes'; probes that were not saved.
        DataError: texts that the model cannot take.
    """
    check_same_model(data, model)
    return _with_views(data, rows_from_model(model, task, data, how), {}, model, centre)


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
    if place in rows.predicted:
        wrong = rows.predicted[place][index] != rows.labels[index]
        sure = confidence_of(rows.scores[place][index], shown.centre)
        return choose_texts(shown.texts, shown.seed, candidates, sure, wrong)
    error = np.abs(rows.scores[place][index] - rows.labels[index]).reshape(len(index), -1).mean(axis=1)
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
    if not _is_local(str(source["name_or_path"])):
        raise UsageError(
            f"the tokens' scores need the model {source['name_or_path']!a:.80}, which is not a folder here; give "
            "--model to load it"
        )
    from probekit.models import load_model

    how = {key: value for key, value in source.items() if key not in ("name_or_path", "revision")}
    return load_model(source["name_or_path"], **how, progress=False)


def check_same_model(data: ProbeData, model: LanguageModel) -> None:
    """Raise a UsageError if the results name the fingerprint of another model."""
    from probekit.activations.plan.identity import identity_of_model

    known = data.meta.get("activations", {}).get("model_fingerprint")
    if known is not None and (found := identity_of_model(model)["model_fingerprint"]) != known:
        raise UsageError(
            f"the probes were trained on another model than {model.name!a:.80} (fingerprint {known[:12]}, this one's "
            f"is {found[:12]}); give the model {data.meta.get('model')!a:.80}"
        )


def _is_local(name: str) -> bool:
    from probekit import builtin
    from probekit.models.load import BUILTIN_MODELS

    return name in BUILTIN_MODELS or name in builtin.MODELS or Path(name).is_dir()


def _run(data: ProbeData, model: LanguageModel, task: Task, acts: Activations, position: Any) -> TokenRows:
    how = {key: acts.meta[key] for key in ("skip_special",) if acts.meta.get(key)}
    return rows_from_model(model, task, data, how, position)


def _position(data: ProbeData, acts: Activations) -> Any:
    """The tokens that the probes read; results call several tokens of a text "all", whichever they are."""
    position = data.meta.get("position")
    if position != ALL:
        return position
    asked = (data.meta.get("asked") or {}).get("position")
    return asked or (position if acts.layout.picked is None else acts.layout.positions[0])


def _with_views(
    data: ProbeData, found: TokenRows, why: dict[str, str], model: LanguageModel, centre: float
) -> TokenScores:
    reasons = [why.get(name, "given") for name in found.acts.task.ids]
    view = token_scores(data, found, reasons, centre, model.tokenizer)
    return with_model_views(view, model, _ids_of(found, model))


def _ids_of(found: TokenRows, model: LanguageModel) -> Sequence[Sequence[int]]:
    """The token ids of each text, with the context tokens that it ran with."""
    layout, task = found.acts.layout, found.acts.task
    try:
        sequences = tokenise_inputs(model, task, bool(layout.n_bos or layout.n_end), "cut")
    except ProbekitError:
        return []
    return [sequences[i].tolist() for i in range(len(task))]
