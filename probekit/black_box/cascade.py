"""A cascade: a cheap scorer reads every row, and the rows of which it is least sure go to an expensive one.

A row's certainty is the difference of its two highest probabilities. A threshold on it is chosen on validation for each
budget, the share of rows that may be sent, and tested once: on test the share may be a little more or less.

Axes: N rows, C classes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from probekit import registries
from probekit.errors import DataError, UsageError, nearest
from probekit.evaluation.compare.black_boxes import BlackBoxScores, judged_rows, load_scores
from probekit.evaluation.compare.lead import paired_difference
from probekit.evaluation.compare.log_odds import (
    box_log_odds,
    place_log_odds,
    predictions_from,
    resamples_of,
    rows_that_choose,
    same_rows,
    scored_place_of,
)
from probekit.evaluation.results.data import ProbeData
from probekit.evaluation.results.row_scores import RowScores
from probekit.evaluation.results.wording import interval_text, metric_name, number_text, signed_interval_text
from probekit.evaluation.scores.rates import DEFAULT_FPR, rates_at, threshold_for
from probekit.evaluation.scores.score import score, score_intervals
from probekit.options.check import is_real
from probekit.probes.base import probabilities
from probekit.results.table import ends_of, results_table
from probekit.tables import TableReport, html_page, html_table, text_table, without_empty_columns
from probekit.text import counted, kind_of, printable

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

BUDGETS = tuple(round(0.05 * i, 2) for i in range(21))
TOKENS, SENT = "tokens per row", "rows sent per row"


@dataclass(frozen=True)
class CascadePoint:
    """A cascade at one budget, on test.

    Attributes:
        budget: the share of rows that may be sent, for which validation chose the threshold.
        threshold: rows at or below this certainty are sent; -inf and inf at budgets 0 and 1.
        share: of the test rows that are sent.
        cost: of a test row: the expensive scorer's tokens, or the share again where they are not known.
        metrics: name -> value.
        intervals: name -> (low, high), 95%.
        rates: "tpr" and "test_fpr" of a threshold that validation chose, with "_low" and "_high"; empty where there are
            more than two classes or too few negatives.
        over: how far the headline is ahead of the cheap scorer alone, on the same rows.
        over_interval: its 95% interval; None without resamples.
    """

    budget: float
    threshold: float
    share: float
    cost: float
    metrics: dict[str, float]
    intervals: dict[str, tuple[float, float]]
    rates: dict[str, float]
    over: float
    over_interval: list[float] | None


@dataclass(frozen=True)
class CascadeResults:
    """What `cascade` returns.

    Attributes:
        points: one for each budget, rising.
        meta: JSON-able: model, task, label, headline, the names of both scorers, the unit of the cost, rows, fpr.
    """

    points: list[CascadePoint]
    meta: dict[str, Any] = field(default_factory=dict)

    @property
    def headline(self) -> str:
        """The metric that the cheap results select by."""
        return self.meta["headline"]

    def to_frame(self) -> "pd.DataFrame":
        """A tidy table with the columns of all results: a row for each budget and metric, share, cost and rate."""
        return results_table(_table_rows(self))

    def plot(self, ax: "Axes | None" = None, *, title: str | None = None, width: float | None = None) -> "Axes":
        """Draw AUROC and the true-positive rate (or the headline) against the cost of a row; returns the axes.

        Args:
            ax: where to draw.
            title: of the picture, as plain text; "" for none.  [default: both scorers]
            width: of a new figure, in inches; 3.25 is a column of a paper.  [default: the picture's own]
        """
        return registries.METHODS["plot_cascade"](self, ax, title=title, width=width)

    def summary(self) -> str:
        """The points as a plain table."""
        report = _report(self)
        return "\n".join(
            map(printable, [report.title, *report.lines, "", *text_table(report.rows).split("\n"), *report.notes])
        )

    def _repr_html_(self) -> str:
        report = _report(self)
        return html_page(report.title, html_table(report.rows), [*report.lines, *report.notes])

    def __repr__(self) -> str:
        return (
            f"CascadeResults({self.meta['cheap']} and {self.meta['expensive']}: {counted(len(self.points), 'budget')})"
        )


@dataclass(frozen=True, eq=False)
class _Scorer:
    """Log odds of the rows, a name, and the tokens of a row where they are known."""

    name: str
    log_odds: np.ndarray
    tokens: float | np.ndarray | None = None


def cascade(
    cheap: ProbeData,
    expensive: Any,
    budget: float | Iterable[float] | None = None,
    *,
    place: str | None = None,
    fpr: float = DEFAULT_FPR,
) -> CascadeResults:
    """Send the rows of which a probe is least sure to an expensive scorer: what that gains, and what it costs.

    Budget 0 is the cheap scorer alone, budget 1 the expensive one alone.

    Args:
        cheap: results of a curve with validation rows, whose selected place scores every row.
        expensive: the name of a black box among the baselines of these results, such as "prompted"; scores from
            `prompted_scores` or `load_scores`, or the path of a file of scores; or results on the same rows.
        budget: share of rows that may be sent, or several.  [default: 0, 0.05, ... 1]
        place: of the cheap results, such as "resid_pre.5".  [default: the selected one]
        fpr: wanted false-positive rate of two classes, for the true-positive rate.

    Raises:
        UsageError: a budget that is no share; no such black box or place; labels that are numbers; no validation rows.
        DataError: a row without a score of the expensive scorer; results on other rows.
    """
    if not isinstance(cheap, ProbeData):
        raise UsageError(
            f"cascade takes the results of a curve first, as train_probes gives them; got {kind_of(cheap)}"
        )
    rows = rows_that_choose(cheap, "a cascade")
    if not is_real(fpr) or not 0 < float(fpr) < 1:
        raise UsageError(f"fpr must be a rate between 0 and 1, such as 0.01; got {fpr!a:.60}")
    budgets = _budgets(budget)
    own = scored_place_of(cheap, place)
    first = _Scorer(f"{cheap.meta['probe']} at {own}", place_log_odds(cheap, rows, own))
    second = _expensive(cheap, rows, expensive)
    points = _points(first, second, rows, cheap, budgets, float(fpr))
    names = {
        name: cheap.meta[name]
        for name in ("model", "task", "label", "classes", "headline", "seed")
        if name in cheap.meta
    }
    n = {split: int((rows.splits == split).sum()) for split in ("validation", "test")}
    unit = SENT if second.tokens is None else TOKENS
    return CascadeResults(
        points, {**names, "cheap": first.name, "expensive": second.name, "n": n, "unit": unit, "fpr": fpr}
    )


def _budgets(given: Any) -> list[float]:
    several = (
        BUDGETS
        if given is None
        else (given,)
        if is_real(given)
        else tuple(given)
        if isinstance(given, Iterable)
        else ()
    )
    if not several or not all(is_real(one) and 0 <= float(one) <= 1 for one in several):
        raise UsageError(f"budget is the share of rows that may be sent, 0 to 1, or several; got {given!a:.60}")
    return sorted({float(one) for one in several})


def _expensive(cheap: ProbeData, rows: RowScores, given: Any) -> _Scorer:
    if isinstance(given, str) and given in rows.baselines:
        tokens = rows.tokens.get(given, cheap.meta["black_boxes"][given]["tokens"])  # a mean of older versions
        return _Scorer(given, rows.baselines[given], tokens)
    if isinstance(given, ProbeData):
        return _other_results(cheap, rows, given)
    if isinstance(given, str) and not Path(given).suffix and not Path(given).expanduser().is_file():
        known = f"; {nearest(given, rows.baselines)}" if rows.baselines else ", and there are none"
        raise UsageError(
            f"no black box {given!a:.60} among the baselines of these results{known}; give scores or a file"
        )
    box = given if isinstance(given, BlackBoxScores) else load_scores(given)
    label = cheap.meta["label"]
    if box.label not in (None, label):
        raise UsageError(f"the scores of {box.name!a:.60} are of the label {box.label!a:.60}, not {label!a:.60}")
    log_odds = box_log_odds(box, rows, tuple(cheap.meta["classes"]), label)
    if box.tokens is None:
        return _Scorer(box.name, log_odds)
    return _Scorer(box.name, log_odds, box.tokens[judged_rows(box, rows.ids)])


def _other_results(cheap: ProbeData, rows: RowScores, other: ProbeData) -> _Scorer:
    """Results on the same rows, in the order of the first."""
    theirs, place = rows_that_choose(other, "a cascade"), scored_place_of(other, None)
    order = same_rows(rows, theirs)
    if order is None or other.meta["classes"] != cheap.meta["classes"]:
        raise DataError(
            f"the results of {other.meta['model']!a:.40} have other rows, splits or labels than those of "
            f"{cheap.meta['model']!a:.40}; a cascade takes results on the same task"
        )
    return _Scorer(
        f"{other.meta['probe']} of {other.meta['model']} at {place}", place_log_odds(other, theirs, place)[order]
    )


def certainty(log_odds: np.ndarray) -> np.ndarray:
    """The difference of the two highest probabilities of each row, [N]."""
    highest = np.sort(probabilities(log_odds), axis=1)
    return highest[:, -1] - highest[:, -2]


def _points(
    cheap: _Scorer, expensive: _Scorer, rows: RowScores, results: ProbeData, budgets: Sequence[float], fpr: float
) -> list[CascadePoint]:
    n_classes, headline = len(results.meta["classes"]), results.headline
    chosen, tested = rows.splits == "validation", rows.splits == "test"
    sure, labels = certainty(cheap.log_odds), rows.labels
    bootstrap = resamples_of(results, rows)
    alone = predictions_from(cheap.log_odds[tested], labels[tested], n_classes)
    found = []
    for budget in budgets:
        threshold = threshold_of(sure[chosen], budget)
        sent = sure <= threshold
        mixed = np.where(sent if n_classes == 2 else sent[:, None], expensive.log_odds, cheap.log_odds)
        test = predictions_from(mixed[tested], labels[tested], n_classes)
        over, interval = paired_difference(test, alone, headline, bootstrap)
        found.append(
            CascadePoint(
                budget=budget,
                threshold=threshold,
                share=float(sent[tested].mean()),
                cost=_cost(expensive.tokens, sent, tested),
                metrics=score(test),
                intervals=score_intervals(bootstrap, test),
                rates=_rates(mixed, rows, n_classes, fpr),
                over=over,
                over_interval=interval,
            )
        )
    return found


def threshold_of(sure: np.ndarray, budget: float) -> float:
    """The certainty at or below which this share of validation rows [N] is; ties may make it more."""
    if budget == 1:
        return np.inf
    k = int(np.floor(budget * len(sure) * (1 + 1e-12)))
    return -np.inf if k == 0 else float(np.sort(sure)[k - 1])


def _cost(tokens: float | np.ndarray | None, sent: np.ndarray, tested: np.ndarray) -> float:
    share = float(sent[tested].mean())
    if tokens is None:
        return share
    if isinstance(tokens, np.ndarray):
        return float((tokens * sent)[tested].mean())
    return share * float(tokens)


def _rates(log_odds: np.ndarray, rows: RowScores, n_classes: int, fpr: float) -> dict[str, float]:
    if n_classes != 2:
        return {}
    chosen, tested = rows.splits == "validation", rows.splits == "test"
    threshold = threshold_for(log_odds[chosen], rows.labels[chosen], fpr).value
    if threshold is None:
        return {}
    both = rates_at(threshold, log_odds[tested], rows.labels[tested], rows.groups[tested])
    found: dict[str, float] = {}
    for name, rate in zip(("tpr", "test_fpr"), both, strict=True):
        if rate is not None:
            found |= {name: rate.value, f"{name}_low": rate.low, f"{name}_high": rate.high}
    return found


def _table_rows(results: CascadeResults) -> list[dict[str, Any]]:
    meta, rows = results.meta, []
    for point in results.points:
        about = {name: str(meta[name]) for name in ("model", "task", "label")}
        about |= {"kind": "cascade", "name": f"{meta['cheap']}, then {meta['expensive']}"}
        about |= {"by": "budget", "at": f"{point.budget:g}", "split": "test", "n": meta["n"]["test"]}
        values = {**point.metrics, "share_sent": point.share, meta["unit"].replace(" ", "_"): point.cost}
        rows += [
            {**about, "metric": name, "value": value, **ends_of(point.intervals.get(name))}
            for name, value in values.items()
        ]
        rows += [
            {**about, "metric": f"{name}_at_fpr_{meta['fpr']:g}", "value": point.rates[key]}
            | ends_of((point.rates[f"{key}_low"], point.rates[f"{key}_high"]))
            for key, name in (("tpr", "tpr"), ("test_fpr", "fpr"))
            if key in point.rates
        ]
        gain = {"metric": results.headline, "value": point.over, **ends_of(point.over_interval)}
        rows.append({**about, "kind": "cascade over cheap", **gain})
    return rows


def _report(results: CascadeResults) -> TableReport:
    meta, headline = results.meta, metric_name(results.headline)
    rows = [["budget", "sent", meta["unit"], headline, "95% interval", "minus cheap", "95% interval", "AUROC", "TPR"]]
    is_auroc = results.headline == "auroc"
    for point in results.points:
        rows.append(
            [
                f"{point.budget:.0%}",
                f"{point.share:.0%}",
                f"{point.cost:,.2f}",
                number_text(point.metrics.get(results.headline)),
                interval_text(point.intervals.get(results.headline)),
                f"{point.over:+z.3f}",
                signed_interval_text(point.over_interval),
                "" if is_auroc else number_text(point.metrics.get("auroc")),
                number_text(point.rates.get("tpr")),
            ]
        )
    sizes = (
        f"thresholds chosen on {meta['n']['validation']:,} validation rows, scores on {meta['n']['test']:,} test rows"
    )
    rate = f"TPR is that of a threshold for {meta['fpr']:.0%} false positives, chosen on validation."
    notes = [rate] if any("tpr" in point.rates for point in results.points) else []
    title = f"{meta['label']}: {meta['cheap']}, then {meta['expensive']} where it is least sure"
    return TableReport(title, [sizes], without_empty_columns(rows), notes)
