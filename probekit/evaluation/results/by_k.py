"""Curves of k-sparse probes that differ in k: how many features are enough, and the k that validation chooses."""

from collections.abc import Sequence

from probekit.evaluation.results.coordinates import coordinates
from probekit.evaluation.results.data import ProbeData


def curves_by_k(curves: Sequence[ProbeData]) -> dict[int, ProbeData]:
    """K -> its curve, rising, where all are k-sparse probes of one label, point and group of rows; otherwise empty."""
    found = {k: curve for curve in curves if (k := _k_of(curve)) is not None}
    others = [{key: value for key, value in coordinates(curve.meta).items() if key != "probe"} for curve in curves]
    if len(found) < max(2, len(curves)) or any(other != others[0] for other in others):
        return {}
    return dict(sorted(found.items()))


def _k_of(curve: ProbeData) -> int | None:
    estimator = curve.meta.get("estimator") or {}
    is_k_sparse = str(estimator.get("class", "")).endswith(".KSparseProbe")
    return estimator.get("parameters", {}).get("k") if is_k_sparse else None


def chosen_k(by_k: dict[int, ProbeData]) -> int | None:
    """The k whose selected place scores highest on validation, the smallest of equals; None without validation rows."""
    scores: dict[int, float] = {}
    for k, curve in by_k.items():
        layer = None if curve.procedure is not None or curve.quoted is None else curve.quoted.layer
        value = None if layer is None else layer.metrics.get("validation", {}).get(curve.headline)
        if value is None:
            return None
        scores[k] = value
    return max(scores, key=scores.__getitem__, default=None)
