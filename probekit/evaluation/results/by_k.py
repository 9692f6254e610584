"""Curves of k-sparse probes that differ in k: how many features are enough, and the k that validation chooses."""

from collections.abc import Sequence
from typing import Any

from probekit.evaluation.results.coordinates import coordinates
from probekit.evaluation.results.data import ProbeData


def curves_by_k(curves: Sequence[ProbeData]) -> dict[int, ProbeData]:
    """K -> its curve, rising, where all are k-sparse probes of the same rows and features; otherwise empty."""
    found = {k: curve for curve in curves if (k := k_of(curve)) is not None}
    settings = [setting_of(curve) for curve in curves]
    if len(found) < max(2, len(curves)) or any(setting != settings[0] for setting in settings):
        return {}
    return dict(sorted(found.items()))


def setting_of(curve: ProbeData) -> dict[str, Any]:
    """What curves have in common that differ in k alone: rows, seeds, and what was read, too."""
    names = {key: value for key, value in coordinates(curve.meta).items() if key != "probe"}
    return names | {
        key: curve.meta.get(key) for key in ("model", "task", "position", "seed", "n", "folds", "activations")
    }


def k_of(curve: ProbeData) -> int | None:
    """The k of a k-sparse probe; None for another."""
    estimator = curve.meta.get("estimator") or {}
    is_k_sparse = str(estimator.get("class", "")).endswith(".KSparseProbe")
    return estimator.get("parameters", {}).get("k") if is_k_sparse else None


def chosen_k(by_k: dict[int, ProbeData]) -> int | None:
    """The k that scores highest on validation, the smallest where tied; None without validation rows."""
    scores: dict[int, float] = {}
    for k, curve in by_k.items():
        layer = None if curve.procedure is not None or curve.quoted is None else curve.quoted.layer
        value = None if layer is None else layer.metrics.get("validation", {}).get(curve.headline)
        if value is None:
            return None
        scores[k] = value
    return max(scores, key=scores.__getitem__, default=None)
