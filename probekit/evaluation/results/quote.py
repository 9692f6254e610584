"""Which number to quote, in one line that begins with "Quote:"; text, page, LaTeX, sweeps and comparisons ask here."""

from collections.abc import Collection, Sequence
from typing import Any, Protocol

from probekit.evaluation.results.data import NOT_SELECTED, ProbeData
from probekit.evaluation.results.wording import interval_text, metric_name, selected

QUOTE = "Quote: "
NOTHING_SELECTED = "one layer, one setting: nothing was selected"
ON_VALIDATION = "selected on validation where there was a choice, and test selected nothing"


class _Quoting(Protocol):
    @property
    def headline(self) -> str: ...
    @property
    def quoted(self) -> Any: ...


def quote_line(sentence: str) -> str:
    """A sentence of this module as the line of a report."""
    return f"{QUOTE}{sentence}."


def quoted_score(data: _Quoting) -> str:
    """`data.quoted` of a curve or a grid in words: "test accuracy 0.953, 95% interval [0.931, 0.970]"."""
    quoted = data.quoted
    of = "test" if quoted.layer is not None else "nested cross-validation"
    within = "" if quoted.interval is None else f", 95% interval {interval_text(quoted.interval)}"
    return f"{of} {metric_name(data.headline)} {quoted.value:.3f}{within}"


def inside_folds(cell: str = "layer") -> str:
    """What nested folds select where; `cell` is what is selected beside C."""
    return f"{cell} and C are selected inside each fold"


def quote_of_curve(data: ProbeData) -> str:
    """The score to quote of a curve, its interval, its place, and what selected it."""
    if data.quoted is None:
        return f"nothing, as {NOT_SELECTED}"
    best = data.quoted.layer
    if best is None:
        return f"{quoted_score(data)}; {inside_folds()}"
    what = selected(len(data.layers) > 1, len(best.tried) > 1)
    at = best.place + ("" if best.C is None else f" (C = {best.C:g})")
    return f"{quoted_score(data)}, at {at}; {f'{what} selected on validation' if what else NOTHING_SELECTED}"


def quote_of_each(noun: str, metrics: Collection[str], nested: Collection[bool], chosen: str, inside: str) -> str:
    """The scores to quote of a table with a line for each curve, grid or run.

    Args:
        noun: what a line is of.
        metrics: the headlines.
        nested: of each, whether its score is that of nested folds.
        chosen: how the places of the others were chosen.
        inside: `inside_folds`.
    """
    metric = metric_name(next(iter(metrics))) if len(set(metrics)) == 1 else "score"
    if all(nested):
        return f"the nested cross-validation {metric} of each {noun} with its interval; {inside}"
    if any(nested):
        return (
            f"the {metric} of each {noun} with its interval: on test, where {chosen}; with nested folds that of the "
            f"complete procedure, where {inside}"
        )
    return f"the test {metric} of each {noun} with its interval; {chosen}"


def quote_of_curves(curves: Sequence[ProbeData]) -> str:
    """The scores to quote of several curves, which have a line each."""
    quoted = [curve for curve in curves if curve.quoted is not None]
    if not quoted:
        return f"nothing, as {NOT_SELECTED}"
    single = all(len(curve.layers) == 1 and len(curve.layers[0].tried) < 2 for curve in quoted)
    noun = "curve" if len(quoted) == len(curves) else "curve that has a best place"
    nested = [curve.procedure is not None for curve in quoted]
    chosen = NOTHING_SELECTED if single else f"its place was {ON_VALIDATION}"
    return quote_of_each(noun, [curve.headline for curve in quoted], nested, chosen, inside_folds())
