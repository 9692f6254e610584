"""A threshold on a probe's scores for a false-positive rate, from the rows that results keep.

The rate is of conversations where their running scores are known: those of a probe over a sequence, and those of a
probe that was trained on every token. A conversation is flagged if its running score reaches the threshold at any
token, as an alarm of `Monitor` goes off there. Elsewhere, or where it is asked for, the rate is of single scores.
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from probekit.errors import DataError, UsageError
from probekit.evaluation.results.row_scores import RowScores
from probekit.evaluation.scores.alarms import Lead, Rises, highest, lead_of, rises_of, some_rises
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

# With fewer, thresholds and calibrations say how many. In `benchmarks/claims.py` a
# rate of 5% was 13% on new groups, on average, with 4 groups of negatives, 8% with 8, 7% with 15 and 5% with 75. The
# true log odds rose by 0.65 of what was said with 8 groups, by 0.8 with 15, 0.9 with 30 and 1.0 with 150.
FEW_VALIDATION_GROUPS = 50


@dataclass(frozen=True)
class ChosenThreshold:
    """A threshold chosen on validation, and what it gives on test.

    Attributes:
        fpr: the wanted false-positive rate.
        value: the score at and above which a row is flagged.
        negatives: validation rows, or conversations, of the first class that it was chosen on.
        flagged: how many of these it flags.
        tpr: true-positive rate on test; None without rows of the second class.
        test_fpr: false-positive rate on test; None without rows of the first class.
        precision: on rows of which a stated share is of the second class; None where no share was stated, or test lacks
            a class.
        of: what the rates are of: "conversation", "text" or "token".
        lead: how many tokens before the end the alarms of test conversations of the second class go off; None where
            none does, and for other rates than those of conversations.
        final: of a probe over a sequence, the true-positive rate on test of the last running scores alone, at the
            threshold that gives them the same false-positive rate on validation.
        groups: how many groups the rows are in that it was chosen on; None where each is its own.
    """

    fpr: float
    value: float
    negatives: int
    flagged: int
    tpr: Rate | None
    test_fpr: Rate | None
    precision: Precision | None = None
    of: str = "text"
    lead: Lead | None = None
    final: Rate | None = None
    groups: int | None = None


class Conversations(NamedTuple):
    """Texts with their running scores.

    Attributes:
        labels: the class of each, int64 [N].
        splits: "validation" or "test", [N].
        groups: int64 [N].
        rises: where their running scores rise.
    """

    labels: np.ndarray
    splits: np.ndarray
    groups: np.ndarray
    rises: Rises


def conversations_of(rows: RowScores, place: str, each_token: bool) -> Conversations | None:
    """The conversations of results; None where no running scores are known, or tokens of one text differ in class.

    Args:
        rows: of the results.
        place: such as "resid_pre.5".
        each_token: whether each row is a token, whose score is the running one.
    """
    if place in rows.rises:
        return Conversations(rows.labels, rows.splits, rows.groups, rows.rises[place])
    if not each_token or rows.scores[place].ndim != 1:
        return None
    named = [str(one).rpartition(":") for one in rows.ids]  # the id of a token is TEXT:INDEX
    if not all(index.isdecimal() for _, _, index in named):
        return None
    text = np.unique([name for name, _, _ in named], return_inverse=True)[1].ravel()
    order = np.lexsort((np.array([int(index) for _, _, index in named]), text))
    starts = np.flatnonzero(np.diff(text[order], prepend=-1))
    labels = rows.labels[order]
    if not (np.minimum.reduceat(labels, starts) == np.maximum.reduceat(labels, starts)).all():
        return None
    first = order[starts]
    running = np.split(rows.scores[place][order], starts[1:])
    return Conversations(rows.labels[first], rows.splits[first], rows.groups[first], rises_of(running))


def choose_threshold(
    rows: RowScores | None,
    place: str,
    fpr: float,
    base_rate: float | None = None,
    each_token: bool = False,
    fpr_of: str = "conversation",
) -> ChosenThreshold:
    """The threshold of a place's probe of two classes for a false-positive rate.

    Args:
        rows: of the results.
        place: such as "resid_pre.5".
        fpr: the wanted rate.
        base_rate: the share of conversations, or rows, of the second class, for the precision.
        each_token: whether each row is a token.
        fpr_of: what the rate is of: each "conversation", where running scores are known, or each "score".

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
    own = conversations_of(rows, place, each_token) if fpr_of == "conversation" else None
    if own is None:
        about = {"of": "token" if each_token else "text"}
        return _chosen(rows.scores[place], rows.labels, rows.splits, rows.groups, fpr, base_rate, **about)
    labels, splits, groups, rises = own
    found = _chosen(highest(rises), labels, splits, groups, fpr, base_rate, of="conversation")
    lead = lead_of(some_rises(rises, np.flatnonzero((splits == "test") & (labels == 1))), found.value)
    last = None if each_token else _chosen(rows.scores[place], labels, splits, groups, fpr, None).tpr
    return replace(found, lead=lead, final=last)


def _chosen(
    scores: np.ndarray,
    labels: np.ndarray,
    splits: np.ndarray,
    groups: np.ndarray,
    fpr: float,
    base_rate: float | None,
    of: str = "text",
) -> ChosenThreshold:
    chosen, tested = (splits == split for split in ("validation", "test"))
    found = threshold_for(scores[chosen], labels[chosen], fpr)
    if found.value is None:
        raise UsageError(unreachable(found, "row" if of == "text" else of))
    test = scores[tested], labels[tested], groups[tested]
    tpr, test_fpr = rates_at(found.value, *test)
    precision = None
    if base_rate is not None and tpr is not None and test_fpr is not None:
        wider: Any = rates_at(found.value, *test, EACH_OF_TWO)
        precision = precision_at(base_rate, *wider)
    units = len(np.unique(groups[chosen & (labels == 0)]))
    about: Any = {"groups": None if units == found.negatives else units}
    return ChosenThreshold(fpr, found.value, found.negatives, found.flagged, tpr, test_fpr, precision, of, **about)


def unreachable(found: RateThreshold, unit: str) -> str:
    """Why no threshold was chosen, with the least rate that could be; a `unit` is a row, token or conversation."""
    if not found.negatives:
        return f"no validation {unit} is of the first class, so no false-positive rate can be chosen; leave --fpr out"
    return (
        f"with {counted(found.negatives, f'validation {unit}')} of the first class, the lowest false-positive rate is "
        f"{found.least:.2%}; got {found.fpr:.2%} (--fpr, fpr=); give a higher one, or train with more validation "
        f"{unit}s"
    )


def rate_text(rate: Rate | None) -> str:
    """0.830 [0.700, 0.921], 83 of 100; with "in 20 groups" where rows share one."""
    if rate is None:
        return "no rows"
    groups = "" if rate.groups == rate.rows else f" in {counted(rate.groups, 'group')}"
    return f"{rate.value:.3f} [{rate.low:.3f}, {rate.high:.3f}], {rate.hits:,} of {rate.rows:,}{groups}"


def threshold_text(threshold: ChosenThreshold, positive: str) -> str:
    """The threshold and its rates in one line; `positive` is the name of the second class."""
    more = [] if threshold.precision is None else [precision_text(threshold.precision)]
    more += [] if threshold.lead is None else [lead_text(threshold.lead)]
    if threshold.final is not None:
        more.append(f"the final score alone finds {rate_text(threshold.final)} at its own threshold for this rate")
    each = "score" if threshold.of != "conversation" else "running score at any token"
    of = f" of {threshold.of}s" if threshold.of != "text" else ""
    few = ""
    if threshold.groups is not None and threshold.groups < FEW_VALIDATION_GROUPS:
        few = f" (chosen on negatives from {counted(threshold.groups, 'group')}; on new groups the rate may be higher)"
    found = (
        f"flagged: {each} >= {threshold.value:.4g}, chosen on validation for a false-positive rate of "
        f"{threshold.fpr:.2%}{of}{few}; on test it finds {rate_text(threshold.tpr)} of {positive}, and flags "
        f"{rate_text(threshold.test_fpr)} of the others (95% intervals, {INTERVAL})"
    )
    return "; ".join([found, *more])


def lead_text(lead: Lead) -> str:
    """Its 83 alarms go off 12 tokens before the end (median; quartiles 4 and 31)."""
    alarms = "1 alarm goes" if lead.alarms == 1 else f"{lead.alarms:,} alarms go"
    tokens = "1 token" if lead.median == 1 else f"{lead.median:g} tokens"
    return f"its {alarms} off {tokens} before the end (median; quartiles {lead.low:g} and {lead.high:g})"


def precision_text(precision: Precision) -> str:
    """At a base rate of 0.001, precision 0.13 [0.05, 0.31] (95% interval)."""
    value = "undefined, as nothing is flagged" if precision.value is None else f"{precision.value:.2g}"
    return (
        f"at a base rate of {precision.base_rate:.2g}, precision {value} [{precision.low:.2g}, {precision.high:.2g}] "
        "(95% interval)"
    )
