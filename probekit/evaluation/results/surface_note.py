"""What nuisances give alone, what is left without them, and what a shift costs: each in one line for a reader."""

from collections.abc import Mapping, Sequence
from typing import Any

from probekit.evaluation.results.data import ProbeData
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
    if data.quoted is None:
        return f"{line}; the column residualised is the curve without a linear trace of it."
    change, before, where = _change_of(data), data.quoted.value, data.quoted.place or "the procedure"
    within = (
        ""
        if change["interval"] is None
        else ", 95% interval [{:+z.3f}, {:+z.3f}], paired on test".format(*change["interval"])
    )
    return (
        f"{line}; regressed out of the activations, {where} goes from {before:.3f} to "
        f"{before + change['change']:.3f}: {change['change']:+z.3f}{within}."
    )


def short_nuisance_text(data: ProbeData) -> str:
    """The same in few words and without the names, for a picture; `data` has nuisances."""
    alone, text = data.meta["nuisance"]["alone"], "alone -"
    if alone["value"] is not None:
        text = f"alone {alone['value']:.2f}{_short_ends(alone['interval'], '{:.2f}')}"
    if data.quoted is None:
        return text
    change, where = _change_of(data), data.quoted.place or "nested folds"
    by = f"{change['change']:+z.2f}{_short_ends(change['interval'], '{:+z.2f}')}"
    return f"{text}; residualised, {where} changes by {by}"


def _short_ends(ends: Sequence[float] | None, form: str) -> str:
    return "" if ends is None else f" [{form.format(ends[0])}, {form.format(ends[1])}]"


def _change_of(data: ProbeData) -> dict[str, Any]:
    """How far the quoted score changes: of the selected place or, with nested folds, of the complete procedure."""
    record = data.meta["nuisance"]
    if data.quoted is not None and data.quoted.layer is None:
        return record["procedure"]
    return next(each for each in record["changes"] if data.quoted and each["place"] == data.quoted.place)


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
