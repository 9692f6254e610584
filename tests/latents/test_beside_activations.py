"""A probe of latents is compared, on the same rows, with a probe of the activations that they are of."""

import numpy as np
import pytest

import probekit as pk
from probekit.activations.activations import RowsOf
from probekit.activations.latents import before_encoding
from probekit.points import Place
from tests.latents.test_encode import an_sae, some_acts


@pytest.mark.parametrize("probe", ["k-sparse", "mean-diff"])
def test_the_probe_of_the_activations_is_that_of_train_probes(probe: str) -> None:
    acts = some_acts()
    results = pk.train_probes(acts.encode([an_sae(0), an_sae(2)]), probe=probe, progress=False)
    other = "logistic" if probe == "k-sparse" else probe
    wanted = pk.train_probes(acts, probe=other, layers=[0, 2], progress=False)
    assert [layer.metrics for layer in results.pooled["activations"]] == [layer.metrics for layer in wanted.layers]
    paired = results.meta["pooled"]["activations"]
    assert wanted.best is not None
    assert results.quoted is not None
    assert paired["value"] == wanted.estimate[0]
    assert paired["over"] == pytest.approx(results.quoted.value - wanted.estimate[0])
    low, high = paired["interval"]
    assert low <= paired["over"] <= high
    text = results.summary()
    assert f"over the probe of the activations at {wanted.best.place} " in text
    assert "explains" in text
    assert "activations" in results.to_frame().query("kind == 'pooled'")["name"].tolist()


def test_rows_before_encoding_are_those_that_the_autoencoder_reads() -> None:
    model, task = pk.load_model("agreement-gpt2"), pk.load_task("agreement", limit=10)
    acts = pk.extract(model, task, points="resid_pre", layers=1, position="all", progress=False)
    latents = acts.encode(an_sae(1, d=acts["resid_pre", 1].shape[-1]))
    place = Place("latents", 1)
    some = np.array([4, 1, 7])
    for view, wanted in (
        (latents, acts),
        (latents.at("last"), acts.at("last")),
        (latents.at("all"), acts.at("all")),
        (RowsOf(latents.at(-2), some), RowsOf(acts.at(-2), some)),
    ):
        found = before_encoding(view)
        assert found is not None
        assert (found[place] == wanted["resid_pre.1"]).all()
    assert before_encoding(acts) is None
    results = pk.train_probes(latents, position="last", probe="k-sparse", baselines=False, quick=True, progress=False)
    assert not results.pooled
