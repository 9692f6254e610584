"""What nuisances give alone, what is left without them, and what a shift costs: each in one line for a reader."""

from collections.abc import Mapping, Sequence
from typing import Any

from probekit.evaluation.results.data import LayerResult, ProbeData
from probekit.evaluation.results.wording import interval_text, metric_name
from probekit.text import listed


def nuisance_note(data: ProbeData) -> str:
    """The score of the nuisances alone, and the paired change of the selected layer; empty if none were named."""
    record = data.meta.get("nuisance")
    if not record:
        return ""
    alone, names = record["alone"], listed([f"{name!a:.40}" for name in record["names"]])
    value = "-" if alone["value"] is None else f"{alone['value']:.3f} {interval_text(alone['interval'])}".rstrip()
    line = f"Nuisance {names}: alone {metric_name(data.headline)} {value}"
    if data.selected is None:
        return f"{line}; the column residualised is the curve without a linear trace of it."
    change = _change_of(data, data.best)
    within = (
        ""
        if change["interval"] is None
        else ", 95% interval [{:+z.3f}, {:+z.3f}], paired on test".format(*change["interval"])
    )
    left = _residual_of(data, data.best)
    return (
        f"{line}; regressed out of the activations, {data.best.place} goes from "
        f"{data.best.metrics['test'][data.headline]:.3f} to {left:.3f}: {change['change']:+z.3f}{within}."
    )


def short_nuisance_text(data: ProbeData) -> str:
    """The same in few words and without the names, for a picture; `data` has nuisances."""
    alone, text = data.meta["nuisance"]["alone"], "alone -"
    if alone["value"] is not None:
        text = f"alone {alone['value']:.2f}{_short_ends(alone['interval'], '{:.2f}')}"
    if data.selected is None:
        return text
    change = _change_of(data, data.best)
    by = f"{change['change']:+z.2f}{_short_ends(change['interval'], '{:+z.2f}')}"
    return f"{text}; residualised, {data.best.place} changes by {by}"


def _short_ends(ends: Sequence[float] | None, form: str) -> str:
    return "" if ends is None else f" [{form.format(ends[0])}, {form.format(ends[1])}]"


def _change_of(data: ProbeData, layer: LayerResult) -> dict[str, Any]:
    return next(each for each in data.meta["nuisance"]["changes"] if each["place"] == layer.place)


def _residual_of(data: ProbeData, layer: LayerResult) -> float:
    own = next(one for one in data.residual if one.place == layer.place)
    return own.metrics["test"].get(data.headline, float("nan"))


def shift_text(shift: Mapping[str, Any]) -> str:
    """The means over values when trained on the same value and on others, and the change between them."""
    within = "" if shift["interval"] is None else ", 95% interval [{:+z.3f}, {:+z.3f}]".format(*shift["interval"])
    what = "all other values" if shift["several"] else "the other value"
    means = f"trained on the same value {shift['same']:.3f}, on {what} {shift['others']:.3f}"
    return f"{means}: {shift['change']:+z.3f}{within}"


def short_shift_text(shift: Mapping[str, Any]) -> str:
    """The same in few words, for a picture."""
    within = _short_ends(shift["interval"], "{:+z.2f}")
    what = "all others" if shift["several"] else "the other"
    return f"mean: same value {shift['same']:.2f}, {what} {shift['others']:.2f}; change {shift['change']:+z.2f}{within}"
