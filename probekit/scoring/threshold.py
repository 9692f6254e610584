"""A threshold on a probe's scores for a false-positive rate, from the rows that results keep."""

from dataclasses import dataclass
from typing import Any

from probekit.errors import DataError, UsageError
from probekit.evaluation.results.row_scores import RowScores
from probekit.evaluation.scores.rates import (
    EACH_OF_TWO,
    INTERVAL,
    Precision,
    Rate,
    RateThreshold,
    precision_at,
    rates_at,
    threshold_for,
)
from probekit.text import counted


@dataclass(frozen=True)
class ChosenThreshold:
    """A threshold chosen on validation, and what it gives on test.

    Attributes:
        fpr: the wanted false-positive rate.
        value: the score at and above which a row is flagged.
        negatives: validation rows of the first class that it was chosen on.
        flagged: how many of these it flags.
        tpr: true-positive rate on test; None without rows of the second class.
        test_fpr: false-positive rate on test; None without rows of the first class.
        precision: on rows of which a stated share is of the second class; None where no share was stated, or test lacks
            a class.
    """

    fpr: float
    value: float
    negatives: int
    flagged: int
    tpr: Rate | None
    test_fpr: Rate | None
    precision: Precision | None = None


def choose_threshold(rows: RowScores | None, place: str, fpr: float, base_rate: float | None = None) -> ChosenThreshold:
    """The threshold of a place's probe of two classes for a false-positive rate.

    Raises:
        UsageError: the probe has no two classes, or so few negatives chose that the rate cannot be reached.
        DataError: the results hold no validation rows of the place.
    """
    if rows is None or place not in rows.scores or not (rows.splits == "validation").any():
        raise DataError(
            f"these results hold no scores of validation rows at {place}, so no threshold can be chosen; train again "
            "on a task with a validation split, or leave --fpr (fpr=) out"
        )
    if place not in rows.predicted or rows.scores[place].ndim != 1:
        raise UsageError("a false-positive rate (--fpr, fpr=) is for probes of two classes; leave it out")
    scores, (chosen, tested) = rows.scores[place], (rows.splits == split for split in ("validation", "test"))
    found = threshold_for(scores[chosen], rows.labels[chosen], fpr)
    if found.value is None:
        raise UsageError(unreachable(found))
    test = scores[tested], rows.labels[tested], rows.groups[tested]
    tpr, test_fpr = rates_at(found.value, *test)
    precision = None
    if base_rate is not None and tpr is not None and test_fpr is not None:
        wider: Any = rates_at(found.value, *test, EACH_OF_TWO)
        precision = precision_at(base_rate, *wider)
    return ChosenThreshold(fpr, found.value, found.negatives, found.flagged, tpr, test_fpr, precision)


def unreachable(found: RateThreshold) -> str:
    """Why no threshold was chosen, with the least rate that could be."""
    if not found.negatives:
        return "no validation row is of the first class, so no false-positive rate can be chosen; leave --fpr out"
    return (
        f"with {counted(found.negatives, 'validation row')} of the first class, the lowest false-positive rate is "
        f"{found.least:.2%}; got {found.fpr:.2%} (--fpr, fpr=); give a higher one, or train with more validation rows"
    )


def rate_text(rate: Rate | None) -> str:
    """0.830 [0.700, 0.921], 83 of 100; with "in 20 groups" where rows share one."""
    if rate is None:
        return "no rows"
    groups = "" if rate.groups == rate.rows else f" in {counted(rate.groups, 'group')}"
    return f"{rate.value:.3f} [{rate.low:.3f}, {rate.high:.3f}], {rate.hits:,} of {rate.rows:,}{groups}"


def threshold_text(threshold: ChosenThreshold, positive: str) -> str:
    """The threshold and its rates in one line; `positive` is the name of the second class."""
    rare = "" if threshold.precision is None else f"; {precision_text(threshold.precision)}"
    return (
        f"flagged: score >= {threshold.value:.4g}, chosen on validation for a false-positive rate of "
        f"{threshold.fpr:.2%}; on test it finds {rate_text(threshold.tpr)} of {positive}, and flags "
        f"{rate_text(threshold.test_fpr)} of the others (95% intervals, {INTERVAL}){rare}"
    )


def precision_text(precision: Precision) -> str:
    """At a base rate of 0.001, precision 0.13 [0.05, 0.31] (95% interval)."""
    value = "undefined, as nothing is flagged" if precision.value is None else f"{precision.value:.2g}"
    return (
        f"at a base rate of {precision.base_rate:.2g}, precision {value} [{precision.low:.2g}, {precision.high:.2g}] "
        "(95% interval)"
    )
