"""A curve as one row of a sweep's table."""

import math
from typing import Any

from probekit.evaluation.results.data import EMBEDDING, ProbeData
from probekit.points import depth_of
from probekit.sweeps.data import SweepRow
from probekit.text import counted


def row_of(curve: ProbeData) -> SweepRow:
    """The row of a curve."""
    meta, best, lead = curve.meta, curve.selected, curve.meta.get("lead")
    is_quoted = curve.procedure is not None or best is not None
    value, ends = curve.estimate if is_quoted else (None, None)
    place = None if curve.procedure is not None else best
    low, high = ends or (None, None)
    lead_low, lead_high = (lead or {}).get("interval") or (None, None)
    over = None if lead is None else lead["over"]
    return SweepRow(
        label=meta["label"],
        point=meta["point"],
        probe=str(meta["probe"]),
        metric=curve.headline,
        classes=int(meta["n_classes"]),
        n_train=int(meta["n"].get("train", 0)),
        n_test=int(meta["n"].get("test", 0)),
        place="" if place is None else place.place,
        layer=None if place is None else place.layer,
        depth=None if place is None else depth_of((place.point, place.layer), int(meta["n_layers"])),
        C=None if place is None else place.C,
        value=_finite(value),
        low=low,
        high=high,
        baseline="" if lead is None else lead["baseline"],
        baseline_value=None if lead is None or value is None else _finite(value - lead["over"]),
        lead=_finite(over),
        lead_low=lead_low,
        lead_high=lead_high,
        flags=tuple(flags_of(curve)),
    )


def flags_of(curve: ProbeData) -> list[str]:
    """What the audit found, whether the embedding was selected, and fits that did not converge, in a few words each."""
    audit: dict[str, Any] = curve.meta.get("audit") or {}
    leaks = sum((audit.get("leaks") or {}).values())
    conflicts = (audit.get("conflicts") or {}).get("texts", 0)
    train = (audit.get("splits") or {}).get("train", {})
    found = [f"{counted(leaks, 'leak')}{' left out' if audit.get('dropped') else ''}"] if leaks else []
    found += [f"{counted(conflicts, 'contradictory text')}"] if conflicts else []
    found += [f"{train['share']:.0%} one class"] if any("imbalanced" in x for x in audit.get("findings", [])) else []
    found += ["groups span splits"] if audit.get("groups_across_splits") else []
    found += ["splits differ"] if audit.get("differences") else []
    is_embedding = curve.procedure is None and curve.selected is curve.layers[0]
    if is_embedding and any(baseline.name == EMBEDDING for baseline in curve.baselines):
        found += ["embedding selected"]  # so it is no baseline of itself, and a lead is over the others
    late = [layer.place for layer in curve.layers if not layer.converged]
    return found + ([f"not converged: {counted(len(late), 'place')}"] if late else [])


def _finite(value: float | None) -> float | None:
    """The number; None for NaN and infinity, which JSON cannot hold."""
    return value if value is not None and math.isfinite(value) else None
