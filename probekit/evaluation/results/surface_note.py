"""What nuisance columns give alone, and what is left of a curve without them, in one line for a reader."""

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
    change = next(each for each in record["changes"] if each["place"] == data.best.place)
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


def _residual_of(data: ProbeData, layer: LayerResult) -> float:
    own = next(one for one in data.residual if one.place == layer.place)
    return own.metrics["test"].get(data.headline, float("nan"))
