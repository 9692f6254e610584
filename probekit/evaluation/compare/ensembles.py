"""Ensembles: the mean of the calibrated scores of layers, seeds or probes, which validation chooses.

Each member has a temperature that validation fits, so that one which is too sure does not outvote the others. Members
are ranked by validation, and as many of the first are taken as have the highest headline there. Test is read once.

Axes: N rows, C classes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from probekit.errors import DataError, UsageError
from probekit.evaluation.compare.baselines import Baseline
from probekit.evaluation.compare.lead import paired_difference
from probekit.evaluation.compare.log_odds import (
    place_log_odds,
    predictions_from,
    resamples_of,
    rows_that_choose,
    same_rows,
    scored_place_of,
)
from probekit.evaluation.results.coordinates import within_text
from probekit.evaluation.results.data import ENSEMBLE, BaselineResult, ProbeData
from probekit.evaluation.results.row_scores import RowScores
from probekit.evaluation.results.wording import interval_clause, interval_text, metric_name
from probekit.evaluation.scores.bootstrap import Bootstrap
from probekit.evaluation.scores.metrics import Predictions, metrics_of
from probekit.evaluation.scores.score import score, score_intervals, value_of
from probekit.evaluation.scores.selection import selection_key, tie_loss
from probekit.options.check import check_among
from probekit.results.table import ends_of, results_table
from probekit.text import counted, kind_of, listed, printable

if TYPE_CHECKING:
    import pandas as pd

LAYERS, BEST = "layers", "best"


@dataclass(frozen=True)
class ChosenMean:
    """The members that validation chose.

    Attributes:
        names: of the members, the best on validation first.
        tried: how many members -> the headline of their mean on validation.
        validation: predictions of the mean.
        test: the same.
    """

    names: list[str]
    tried: dict[int, float]
    validation: Predictions
    test: Predictions


def choose_members(members: Mapping[str, np.ndarray], rows: RowScores, headline: str, n_classes: int) -> ChosenMean:
    """The first k of the members, ranked by validation, for the k whose mean is best on validation.

    Ties go to the lower loss, then to fewer members.

    Args:
        members: name -> log odds [N] or logits [N, C]; values of a regression.
        rows: the rows, with validation among them.
        headline: the metric that chooses.
        n_classes: 0 for a regression.
    """
    chosen, tested = rows.splits == "validation", rows.splits == "test"

    def of(values: np.ndarray, part: np.ndarray) -> Predictions:
        if not n_classes:
            return Predictions(rows.labels[part], values[part], values[part], 0)
        return predictions_from(values[part], rows.labels[part], n_classes)

    def key(values: np.ndarray, size: int) -> tuple[Any, ...]:
        own = of(values, chosen)
        value = value_of(own, headline)
        return selection_key(True, value if np.isfinite(value) else -np.inf, tie_loss(own), float(size))

    ranked = sorted(members, key=lambda name: key(members[name], 1), reverse=True)
    means = np.cumsum([members[name] for name in ranked], axis=0)
    means /= np.arange(1, len(ranked) + 1).reshape(-1, *[1] * (means.ndim - 1))
    keys = [key(mean, k) for k, mean in enumerate(means, 1)]
    best = max(range(len(keys)), key=keys.__getitem__)
    tried = {k: value_of(of(mean, chosen), headline) for k, mean in enumerate(means, 1)}
    return ChosenMean(ranked[: best + 1], tried, of(means[best], chosen), of(means[best], tested))


def layer_ensemble(
    results: ProbeData, quoted: Predictions | None, bootstrap: Bootstrap | None
) -> tuple[Baseline, dict[str, Any]]:
    """The ensemble of the layers of a curve, as one more of its lines, and its record.

    Args:
        results: of a curve with validation rows.
        quoted: the predictions that are quoted, against which it is compared; None for none.
        bootstrap: resamples of the test rows.
    """
    rows = rows_that_choose(results, "an ensemble", of_numbers=True)
    members = {layer.place: place_log_odds(results, rows, layer.place) for layer in results.layers}
    found = choose_members(members, rows, results.headline, results.meta["n_classes"])
    metrics = {"validation": metrics_of(found.validation), "test": score(found.test)}
    result = BaselineResult(ENSEMBLE, None, True, metrics, score_intervals(bootstrap, found.test))
    over = interval = None
    if quoted is not None:
        over, interval = paired_difference(found.test, quoted, results.headline, bootstrap)
    record = {"members": found.names, "of": len(members), "over": over, "interval": interval}
    return Baseline(result, found.test, found.validation), record


@dataclass(frozen=True)
class EnsembleResults:
    """What `ensemble` returns.

    Attributes:
        members: names of those that validation chose, the best on validation first.
        tried: how many members -> the headline of their mean on validation.
        metrics: "validation" and "test" -> metric -> value.
        intervals: metric -> (low, high) on test, 95%.
        single: the member that is best on validation.
        over: how far the ensemble is ahead of it on test, of the headline, on the same rows.
        over_interval: its 95% interval; None without resamples.
        meta: JSON-able: model, task, label, headline, seed, candidates, rows.
    """

    members: list[str]
    tried: dict[int, float]
    metrics: dict[str, dict[str, float]]
    intervals: dict[str, tuple[float, float]]
    single: str
    over: float
    over_interval: list[float] | None
    meta: dict[str, Any] = field(default_factory=dict)

    @property
    def headline(self) -> str:
        """The metric that chose."""
        return self.meta["headline"]

    def to_frame(self) -> "pd.DataFrame":
        """A tidy table with the columns of all results: scores, and the difference to the best single member."""
        about = {name: str(self.meta[name]) for name in ("model", "task", "label")} | {"kind": "ensemble"}
        about |= {"name": listed(self.members)}
        rows = [
            {**about, "split": split, "n": self.meta["n"][split], "metric": name, "value": value}
            | (ends_of(self.intervals.get(name)) if split == "test" else {})
            for split, own in self.metrics.items()
            for name, value in own.items()
        ]
        ahead = {"kind": "ensemble over member", "name": self.single, "metric": self.headline, "value": self.over}
        return results_table([*rows, {**about, **ahead, "split": "test", **ends_of(self.over_interval)}])

    def summary(self) -> str:
        """The ensemble in a few lines."""
        name, value = metric_name(self.headline), self.metrics["test"].get(self.headline, float("nan"))
        within = interval_text(self.intervals.get(self.headline))
        members = listed(self.members, most=8)
        over = interval_clause(self.over_interval)
        lines = [
            f"Ensemble of {counted(len(self.members), 'member')} of {len(self.tried)}, chosen on validation: {members}",
            f"Test {name} {value:.3f} {within}".rstrip(),
            f"Minus the best member on validation ({self.single}): {self.over:+z.3f}{over}, paired on test.",
        ]
        return "\n".join(map(printable, lines))

    def __repr__(self) -> str:
        value = self.metrics["test"].get(self.headline, float("nan"))
        return f"EnsembleResults({len(self.members)} of {len(self.tried)} members; test {self.headline} {value:.3f})"


def ensemble(results: Any, *, of: str | None = None) -> EnsembleResults:
    """The mean of the calibrated scores of layers, seeds or probes; which of them take part is chosen on validation.

    Members are ranked by validation, and the mean of the first k is taken, for the k that is best there. Test decides
    nothing. An ensemble of one is that one.

    Args:
        results: of one curve, or several on the same rows: a list, or `ProbeCurves`.
        of: "layers", every place of every curve, or "best", the selected place of each.  [default: layers of one curve,
            best of several]

    Raises:
        UsageError: no validation rows, or no layer was selected.
        DataError: results on other rows, or of another metric.
    """
    curves = _curves(results)
    if of is not None:
        check_among("of", of, (LAYERS, BEST))
    how = of or (LAYERS if len(curves) == 1 else BEST)
    first = curves[0]
    rows = rows_that_choose(first, "an ensemble", of_numbers=True)
    members: dict[str, np.ndarray] = {}
    for curve, own in zip(curves, _names(curves), strict=True):
        theirs = rows_that_choose(curve, "an ensemble", of_numbers=True)
        order = same_rows(rows, theirs)
        same = (curve.meta["classes"], curve.headline) == (first.meta["classes"], first.headline)
        if order is None or not same:
            raise DataError(
                f"the results of {own or curve.meta['model']!a:.60} have other rows, labels or another metric than the "
                "first ones; an ensemble takes results on the same task"
            )
        places = [layer.place for layer in curve.layers] if how == LAYERS else [scored_place_of(curve, None)]
        for place in places:
            members[f"{own} {place}".strip()] = place_log_odds(curve, theirs, place)[order]
    return _tested(first, rows, members)


def _curves(given: Any) -> Sequence[ProbeData]:
    several = [given] if isinstance(given, ProbeData) else [*given.values()] if hasattr(given, "values") else given
    if not isinstance(several, list | tuple) or not several or not all(isinstance(one, ProbeData) for one in several):
        raise UsageError(f"ensemble takes results of train_probes, or a list of them; got {kind_of(given)}")
    return several


def _names(curves: Sequence[ProbeData]) -> list[str]:
    """What each of several curves is called: in what they differ, or their number."""
    if len(curves) == 1:
        return [""]
    keys = ("model", "probe", "point", "within", "seed")
    facts = [
        {name: str(one.meta[name]) for name in ("model", "probe", "point")}
        | {"within": within_text(one.meta), "seed": f"seed {one.meta.get('seed')}"}
        for one in curves
    ]
    differ = [key for key in keys if len({each[key] for each in facts}) > 1]
    names: list[str] = []
    for i, each in enumerate(facts, 1):
        name = ", ".join(each[key] for key in differ) or f"curve {i}"
        names.append(f"{name} ({i})" if name in names else name)
    return names


def _tested(first: ProbeData, rows: RowScores, members: Mapping[str, np.ndarray]) -> EnsembleResults:
    headline, n_classes = first.headline, first.meta["n_classes"]
    found = choose_members(members, rows, headline, n_classes)
    bootstrap = resamples_of(first, rows)
    alone = choose_members({found.names[0]: members[found.names[0]]}, rows, headline, n_classes)
    over, interval = paired_difference(found.test, alone.test, headline, bootstrap)
    names = {name: first.meta[name] for name in ("model", "task", "label", "headline", "seed") if name in first.meta}
    n = {split: int((rows.splits == split).sum()) for split in ("validation", "test")}
    return EnsembleResults(
        members=found.names,
        tried=found.tried,
        metrics={"validation": metrics_of(found.validation), "test": score(found.test)},
        intervals=score_intervals(bootstrap, found.test),
        single=found.names[0],
        over=over,
        over_interval=interval,
        meta={**names, "candidates": [*members], "n": n},
    )
