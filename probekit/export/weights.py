"""A fitted probe as .npz, .safetensors, JSON that scikit-learn is rebuilt from, or a GGUF control vector."""

import io
import json
from typing import Any

import numpy as np
import safetensors.numpy

from probekit.causal.directions.export import control_vector, vectors_by_block
from probekit.errors import UsageError
from probekit.evaluation.results.data import LayerResult, ProbeData
from probekit.export.about import about_probe, fitted, probe_arrays
from probekit.points import Place
from probekit.text import printable


def npz_bytes(data: ProbeData, layer: LayerResult) -> bytes:
    """The arrays and `about`, a JSON text in ASCII, for `numpy.load(path)`; nothing in it is pickled."""
    out = io.BytesIO()
    about = json.dumps(
        about_probe(data, layer), allow_nan=False
    )  # numpy drops NUL at the end of a text; ASCII has none
    np.savez(out, allow_pickle=False, about=np.array(about), **probe_arrays(layer))
    return out.getvalue()


def safetensors_bytes(data: ProbeData, layer: LayerResult) -> bytes:
    """The arrays, with the text "about" in the metadata; the header's own texts are ASCII."""
    about = json.dumps(about_probe(data, layer), allow_nan=False)
    return safetensors.numpy.save(probe_arrays(layer), {"about": about})


def sklearn_bytes(data: ProbeData, layer: LayerResult) -> bytes:
    """JSON with the fitted attributes of a linear model of scikit-learn.

    Raises:
        UsageError: a probe that is not linear in one row.
    """
    probe = fitted(layer)
    numbers = probe.predicts == "numbers"
    if probe.of_sequences or "coef_" not in probe.ARRAYS:
        raise UsageError(
            f"{type(probe).__name__} is not linear in one row, so no linear model of scikit-learn equals it; write "
            "--to safetensors"
        )
    body: dict[str, Any] = {
        "class": "sklearn.linear_model.Ridge" if numbers else "sklearn.linear_model.LogisticRegression",
        "coef": probe.coef_.tolist(),
        "intercept": probe.intercept_.tolist(),
        "n_features": int(probe.n_features_in_),
    }
    if not numbers:
        body |= {"classes": [str(name) for name in probe.label_names_], "probabilities": bool(probe.log_odds)}
    body["about"] = about_probe(data, layer)
    return json.dumps(body, indent=1, allow_nan=False).encode()


def gguf_bytes(data: ProbeData, layer: LayerResult) -> bytes:
    """A control vector of llama.cpp: the direction towards the second of two classes, or to higher numbers.

    Its length is 1, so that the strength counts units of the activations.

    Raises:
        UsageError: a probe without one direction, or a place that llama.cpp cannot steer.
    """
    probe = fitted(layer)
    direction = np.asarray(probe.direction, dtype=np.float64)
    if direction.ndim != 1:
        raise UsageError(f"a control vector is one direction, and the probe of {layer.place} has one for each class")
    length = float(np.linalg.norm(direction))
    if not length:
        raise UsageError(f"all weights of the probe of {layer.place} are 0; take another")
    vectors = {Place(layer.point, layer.layer): direction / length}
    return control_vector(vectors_by_block(vectors), printable(data.meta["model"]))
