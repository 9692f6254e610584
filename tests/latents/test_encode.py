"""Latents of activations are activations: probes, positions and streams of them equal those of the encoded rows."""

import dataclasses

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

import probekit as pk
from probekit.activations.activations import Activations, ActivationSet
from probekit.errors import UsageError
from probekit.evaluation.fits.stream import stream_of
from probekit.latents import Sae
from probekit.latents.config import SaeConfig
from probekit.points import Place, UnknownPoint
from probekit.probes.stream import held

D, F, N = 8, 48, 240


def an_sae(layer: int, seed: int = 0, **changed: object) -> Sae:
    draw = torch.Generator().manual_seed(seed)
    shapes = {"W_enc": (D, F), "W_dec": (F, D), "b_enc": (F,), "b_dec": (D,)}
    weights = {name: torch.randn(*shape, generator=draw) for name, shape in shapes.items()}
    cfg = SaeConfig("topk", D, F, D, k=6, place=Place("resid_pre", layer))
    return Sae(dataclasses.replace(cfg, **changed), weights, f"sae{layer}")  # type: ignore[arg-type]


def some_acts() -> ActivationSet:
    draw = torch.Generator().manual_seed(5)
    labels = np.arange(N) % 2
    task = pk.Task(
        "t", [[i] for i in range(N)], {"label": labels}, splits=np.repeat(["train", "validation", "test"], N // 3)
    )
    tensors = {Place("resid_pre", layer): torch.randn(N, D, generator=draw) for layer in range(3)}
    for layer, x in enumerate(tensors.values()):
        x[:, layer] += 2 * torch.from_numpy(labels).float()
    return ActivationSet(tensors, task)


def test_latents_are_places_of_their_own() -> None:
    acts, saes = some_acts(), [an_sae(0), an_sae(2, seed=1)]
    latents = acts.encode(saes)
    assert list(latents) == [Place("latents", 0), Place("latents", 2)]
    for sae in saes:
        assert sae.cfg.place is not None
        assert torch.equal(latents["latents", sae.cfg.place.layer], sae.encode(acts[sae.cfg.place]))
    about = latents.meta["latents"]
    assert {place: (one["of"], one["sae"]) for place, one in about.items()} == {
        "latents.0": ("resid_pre.0", "sae0"), "latents.2": ("resid_pre.2", "sae2"),
    }  # fmt: skip
    assert about["latents.0"]["fingerprint"] == an_sae(0).fingerprint() != an_sae(0, seed=1).fingerprint()
    assert an_sae(0).fingerprint() != an_sae(0, k=5).fingerprint()


def test_a_stream_of_latents_has_the_same_rows() -> None:
    latents = some_acts().encode(an_sae(1))
    stream = stream_of(latents, "latents.1")
    assert stream is not None
    assert stream.shape == (N, F)
    assert torch.equal(held(stream), latents["latents.1"])


def test_probes_of_latents_are_those_of_the_encoded_rows() -> None:
    acts, sae = some_acts(), an_sae(1)
    results = pk.train_probes(acts.encode(sae), probe="k-sparse", C=1.0, progress=False)
    X, y, train = sae.encode(acts["resid_pre.1"]).double().numpy(), acts.labels["label"], acts.splits == "train"
    probe = results.layers[0].probe
    differences = np.abs(X[train & (y == 1)].mean(0) - X[train & (y == 0)].mean(0)) / (X[train].std(0) + 1e-30)
    assert set(probe.neurons_) == set(np.argsort(-differences)[: len(probe.neurons_)])
    Z = ((X - X[train].mean(0)) / (X[train].std(0) + 1e-30))[:, probe.neurons_]
    theirs = LogisticRegression(C=1.0, tol=1e-12, max_iter=10_000).fit(Z[train], y[train])
    np.testing.assert_allclose(probe.predict_proba(X), theirs.predict_proba(Z), atol=1e-4)
    assert results.meta["activations"]["latents"]["latents.1"]["of"] == "resid_pre.1"


@pytest.mark.parametrize(
    ("saes", "error", "message"),
    [
        ([an_sae(7)], UnknownPoint, "no activations of resid_pre.7 here"),
        ([an_sae(1), an_sae(1)], UsageError, "are of one layer; encode each"),
        ([an_sae(1, place=None)], UsageError, "the files of 'sae1' do not say what it reads; give it"),
        (
            [an_sae(1, model="gemma-2-2b")],
            UsageError,
            "was trained on 'gemma-2-2b', and the activations are of 'unnamed'",
        ),
    ],
)
def test_an_sae_of_something_else_is_refused(saes: list[Sae], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        some_acts().encode(saes)


@pytest.mark.parametrize("ours", ["gpt2", "openai-community/gpt2", "GPT2-small"])
def test_names_of_one_model_agree(ours: str) -> None:
    acts: Activations = some_acts()
    acts.meta["model"] = ours
    assert len(acts.encode(an_sae(0, model="gpt2-small"))) == 1
    acts.meta["model"] = "pythia-70m"
    assert len(acts.encode(an_sae(0, model="gpt2-small"), force=True)) == 1
