"""The fits of a place as plain values: JSON, and arrays as safetensors. No pickle.

Probes are written as `probe.save` writes them. Numbers come back with the same bits.
"""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import safetensors.numpy

from probekit.evaluation.curve import FittedPlace
from probekit.evaluation.fits.choose import ChosenFit
from probekit.evaluation.results.data import LayerResult
from probekit.evaluation.results.files import as_entry
from probekit.evaluation.scores.predictions import Predictions
from probekit.files.records import read_as
from probekit.probes.files import probe_bytes, probe_from
from probekit.probes.find import SAVED

ARRAYS = ("truth", "predicted", "scores", "probabilities")


def as_bytes(found: FittedPlace) -> dict[str, Any]:
    """The place as texts and bytes."""
    about, weights = probe_bytes(found.fit.probe)
    parts = {"test": found.fit.test, "validation": found.validation}
    arrays = {
        f"{part}.{name}": np.ascontiguousarray(value)
        for part, predictions in parts.items()
        if predictions is not None
        for name in ARRAYS
        if (value := getattr(predictions, name)) is not None
    }
    fit = {name: value for name, value in vars(found.fit).items() if name not in ("probe", "test")}
    body = {"result": as_entry(found.result), "fit": fit, "width": found.width, "n_classes": found.fit.test.n_classes}
    return {
        "body": json.dumps(body, default=_plain),
        "arrays": safetensors.numpy.save(arrays),
        "probe": about.decode(),
        "weights": weights,
    }


def from_bytes(given: dict[str, Any]) -> FittedPlace:
    """The place that `as_bytes` was given."""
    body, arrays = json.loads(given["body"]), safetensors.numpy.load(given["arrays"])
    known = {kind.__name__: kind for kind in SAVED}
    probe = probe_from(json.loads(given["probe"]), given["weights"], "a probe of a worker", known)
    result = replace(read_as(LayerResult, body["result"]), probe=probe)
    fit, n_classes = body["fit"], body["n_classes"]
    fit |= {name: [tuple(pair) for pair in fit[name]] for name in ("tried", "by_round")}
    test, validation = (_predictions(arrays, part, n_classes) for part in ("test", "validation"))
    assert test is not None
    return FittedPlace(result, ChosenFit(**fit, probe=probe, test=test), body["width"], validation)


def _predictions(arrays: dict[str, np.ndarray], part: str, n_classes: int) -> Predictions | None:
    own = {name: arrays.get(f"{part}.{name}") for name in ARRAYS}
    if own["truth"] is None:
        return None
    return Predictions(own["truth"], own["predicted"], own["scores"], n_classes, own["probabilities"])  # pyright: ignore


def _plain(value: Any) -> Any:
    """A NumPy number as JSON has it."""
    return value.item()
