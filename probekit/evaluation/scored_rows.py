"""The rows that chose and tested, with the scores of every place, from fitted places."""

from collections.abc import Sequence

import numpy as np

from probekit.activations.activations import Activations
from probekit.evaluation.curve import FittedPlace
from probekit.evaluation.plan import CurvePlan
from probekit.evaluation.results.row_scores import RowScores, digests_of
from probekit.evaluation.rows import resampling_units
from probekit.evaluation.scores.metrics import Predictions
from probekit.evaluation.scores.rates import rates_at, threshold_for


def scored_rows(acts: Activations, plan: CurvePlan, fitted: Sequence[FittedPlace]) -> RowScores:
    """The rows of one curve: those of validation, then those of test in the order in which they are pooled."""
    protocol, task = plan.grid.protocol, acts.task
    chose = protocol.rows.get("validation", np.empty(0, dtype=np.int64))
    rows = np.concatenate([chose, protocol.test])
    units = resampling_units(task)
    groups = rows if units is None else np.unique(np.asarray(units)[rows], return_inverse=True)[1]
    parts = {place.result.place: _parts(place) for place in fitted}
    return RowScores(
        ids=np.array([task.ids[i] for i in rows], dtype=object),
        digests=digests_of([task.inputs[i] for i in rows], task.has_texts),
        splits=np.array(["validation"] * len(chose) + ["test"] * len(protocol.test), dtype=object),
        labels=plan.grid.label_sets[0][rows],
        groups=groups.astype(np.int64),
        scores={name: np.concatenate([part.scores for part in own]) for name, own in parts.items()},
        predicted={name: np.concatenate([part.predicted for part in own]) for name, own in parts.items()}
        if plan.grid.n_classes
        else {},
    )


def rates_of(rows: RowScores, place: str) -> dict[str, float] | None:
    """The rates of a threshold that validation chose at a place, as `LayerResult.rates`; None without two classes."""
    chosen, scores = rows.splits == "validation", rows.scores[place]
    if place not in rows.predicted or scores.ndim != 1 or not chosen.any():
        return None
    found = threshold_for(scores[chosen], rows.labels[chosen])
    about: dict[str, float] = {"fpr": found.fpr, "negatives": found.negatives, "least": found.least}
    if found.value is None:
        return about
    tested = ~chosen
    rates = rates_at(found.value, scores[tested], rows.labels[tested], rows.groups[tested])
    both = zip(("tpr", "test_fpr"), rates, strict=True)
    parts = [{name: rate.value, f"{name}_low": rate.low, f"{name}_high": rate.high} for name, rate in both if rate]
    return about | {"threshold": found.value} | {key: value for part in parts for key, value in part.items()}


def _parts(place: FittedPlace) -> list[Predictions]:
    """The predictions of a place for the validation rows, where there are any, and for the test rows."""
    return [place.fit.test] if place.validation is None else [place.validation, place.fit.test]
