"""What a file says of the probe in it, and the probe's arrays."""

from typing import Any

import numpy as np

from probekit.errors import DataError
from probekit.evaluation.results.data import LayerResult, ProbeData

EXPORT_FORMAT = "probekit.export/1"


def probe_arrays(layer: LayerResult) -> dict[str, np.ndarray]:
    """The fitted arrays by name: "coef", "intercept" and what else the class has.

    Raises:
        DataError: the results hold no fitted probe of this place.
    """
    probe = fitted(layer)
    return {name.removesuffix("_"): np.array(getattr(probe, name), order="C") for name in probe.ARRAYS}


def fitted(layer: LayerResult) -> Any:
    """The fitted probe.

    Raises:
        DataError: the results hold none, as those of a scikit-learn estimator, which only a pickle could hold.
    """
    if layer.probe is None or not layer.probe.ARRAYS:
        raise DataError(
            f"there is no fitted probe of {layer.place} to write: a scikit-learn estimator has no arrays of its own; "
            "train one of probekit's probes, or export the table (csv)"
        )
    return layer.probe


def about_probe(data: ProbeData, layer: LayerResult) -> dict[str, Any]:
    """Class, place, classes, model, data and test scores of a probe; JSON-able.

    "activations" holds the fingerprints of model, tokenizer and data, types and edits; "reading" how texts were read;
    "rates" the threshold for 1% false positives.
    """
    meta = data.meta
    return {
        "format": EXPORT_FORMAT,
        "probe": type(layer.probe).__name__,
        "place": layer.place,
        "point": layer.point,
        "layer": layer.layer,
        "position": str(meta["position"]),
        "label": meta["label"],
        "classes": list(meta["classes"]),
        "C": None if layer.C is None else str(layer.C),
        "model": meta["model"],
        "task": meta["task"],
        "activations": meta.get("activations", {}),
        "reading": meta.get("reading"),
        "test": {name: layer.metrics["test"][name] for name in sorted(layer.metrics["test"])},
        "intervals": {name: list(ends) for name, ends in sorted(layer.intervals.items())},
        "rates": layer.rates,
        "versions": dict(meta.get("versions", {})),
    }
