"""Probes of latents as probes of the activations that the latents are of, so that a model's texts can be scored."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from probekit.errors import DataError, ProbekitError, UsageError
from probekit.evaluation.results.data import ProbeData
from probekit.evaluation.results.wording import latents_read
from probekit.latents import Sae, load_sae
from probekit.points import Place
from probekit.probes.base import ClassifierProbe, Probe
from probekit.text import kind_of


class EncodedClassifier(ClassifierProbe):
    """A fitted probe of classes that reads activations: it is applied to their latents.

    Args:
        probe: of the latents.
        sae: whose latents they are.
    """

    def __init__(self, probe: Any, sae: Sae):
        self.probe, self.sae = probe, sae
        self.classes_, self.n_features_in_ = probe.classes_, sae.cfg.d_in
        self.label_names_ = [str(name) for name in probe.label_names_]
        self.by_score, self.log_odds = probe.by_score, probe.log_odds

    def _decide(self, X: np.ndarray) -> np.ndarray:
        scores = self.probe.decision_function(self.sae.encode(torch.from_numpy(X)))
        return scores[:, None] if scores.ndim == 1 else scores


class EncodedRegressor(Probe):
    """The same for a probe of numbers."""

    predicts = "numbers"

    def __init__(self, probe: Any, sae: Sae):
        self.probe, self.sae = probe, sae
        self.n_features_in_, self.several_outputs = sae.cfg.d_in, probe.several_outputs

    def predict(self, X: Any) -> np.ndarray:
        """The values of each row of activations [N, D]."""
        return self.probe.predict(self.sae.encode(torch.as_tensor(X)))


def applied_to_model(results: ProbeData, place: str, probe: Any, sae: Any = None) -> tuple[Any, str]:
    """A probe of results and its place, as a model can be scored with them: those of latents read the activations.

    Args:
        results: of the probe.
        place: of the probe.
        probe: fitted.
        sae: the autoencoder, or where it is; None takes the path that the results record.

    Raises:
        UsageError: `sae` for a probe that reads activations; something else.
        DataError: a probe over a sequence of latents; the autoencoder cannot be read, or is another one.
    """
    read: Mapping[str, Any] = latents_read(results.meta)
    if place not in read:
        if sae is not None:
            raise UsageError(f"the probe of {place} reads activations; leave the autoencoder (--sae, sae=) out")
        return probe, place
    if probe.of_sequences:
        raise DataError(f"the probe of {place} is one over a sequence of latents, which cannot be applied to a model")
    one = read[place]
    position = str(results.meta.get("position"))
    if "mean" in position and str(one.get("position")) != position:
        raise DataError(
            f"the probe reads the mean of latents over tokens ({position}), and a model is scored with the latents of "
            "one token; train on one (--position last), or on every token (--position all)"
        )
    if not isinstance(sae, Sae | str | Path | None):
        raise UsageError(f"sae is what load_sae gives, or its path; got {kind_of(sae)}")
    try:
        found = sae if isinstance(sae, Sae) else load_sae(one["sae"] if sae is None else sae)
    except ProbekitError as error:
        if sae is not None:
            raise
        raise DataError(f"the probe reads latents, and {error} (or name the autoencoder: --sae PATH, sae=)") from None
    if found.fingerprint() != one["fingerprint"]:
        raise DataError(
            f"{found.name!a:.200} is not the autoencoder whose latents the probe reads: other weights, type or scale; "
            "name that one (--sae PATH, sae=)"
        )
    made = EncodedRegressor(probe, found) if probe.predicts == "numbers" else EncodedClassifier(probe, found)
    return made, str(Place.of(one["of"]))
