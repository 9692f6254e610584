"""A latent's decoder direction steers and erases as any direction does."""

from typing import Any

import numpy as np
import pytest
import torch

import probekit as pk
from probekit.errors import UsageError
from probekit.points import Place, UnknownPoint
from tests.latents.test_encode import an_sae, some_acts


@pytest.mark.parametrize("latent", [None, 7])
def test_the_direction_of_a_latent_is_its_row_of_the_decoder(latent: int | None) -> None:
    acts, sae = some_acts(), an_sae(1)
    vectors = pk.steering_vectors(acts.encode(sae), method="latent", latent=latent)
    X, y, train = sae.encode(acts["resid_pre.1"]).double().numpy(), acts.labels["label"], acts.splits == "train"
    change = X[train & (y == 1)].mean(0) - X[train & (y == 0)].mean(0)
    number = int(np.argmax(np.abs(change) / (X[train].std(0) + 1e-30))) if latent is None else latent
    (place,) = vectors
    assert place == Place("resid_pre", 1)
    one = vectors[place]
    row = sae.W_dec[number].double()
    torch.testing.assert_close(one.vector_D, np.sign(change[number] or 1) * row / row.norm())
    along = acts["resid_pre.1"].double()[torch.from_numpy(train)] @ one.vector_D
    assert one.std == pytest.approx(float(along.std(correction=0)))
    assert one.name == f"latent {number}"


def test_steering_and_erasing_by_a_latent_change_the_model() -> None:
    model = pk.load_model("agreement-gpt2")
    sae = an_sae(1, d=model.cfg.d_model)
    acts = pk.extract(model, pk.load_task("agreement", limit=60), points="resid_pre", layers=1, progress=False)
    vectors = pk.steering_vectors(acts.encode(sae), method="latent", latent=3)
    tokens = torch.tensor([[3, 5, 7]])
    with model.edited({("resid_pre", 1): vectors["resid_pre", 1].erasing()}):
        _, cache = model.run_with_cache(tokens, points="resid_pre.1")
    unit = sae.W_dec[3] / sae.W_dec[3].norm()
    assert float((cache["resid_pre.1"].detach() @ unit).abs().max()) < 1e-3
    with model.edited(vectors.edits(2.0, layers=1)):
        _, steered = model.run_with_cache(tokens, points="resid_pre.1")
    _, plain = model.run_with_cache(tokens, points="resid_pre.1")
    step = vectors["resid_pre", 1].step_D.float()
    change = steered["resid_pre.1"] - plain["resid_pre.1"]
    torch.testing.assert_close(change, (2 * step).expand_as(change), atol=1e-4, rtol=1e-3)


def test_directions_of_latents_are_refused_for_anything_else() -> None:
    acts, sae = some_acts(), an_sae(1)
    cases: list[tuple[Any, dict[str, Any]]]
    cases = [(acts, {"method": "latent"}), (acts.encode(sae), {}), (acts, {"latent": 3})]
    for given, how in cases:
        with pytest.raises(UsageError, match="method 'latent' is for latents"):
            pk.steering_vectors(given, **how)
    with pytest.raises(UsageError, match="latent is one of 0 to 47, got 48"):
        pk.steering_vectors(acts.encode(sae), method="latent", latent=48)


def test_a_transcoder_writes_elsewhere() -> None:
    acts = some_acts()
    sae = an_sae(1, place_out=Place("resid_pre", 2), is_transcoder=True)
    acts["resid_pre.2"].mul_(50)
    vectors = pk.steering_vectors(acts.encode(sae), method="latent", latent=4)
    assert [*vectors] == [Place("resid_pre", 2)]
    one = vectors["resid_pre", 2]
    along = acts["resid_pre.2"].double()[torch.from_numpy(acts.splits == "train")] @ one.vector_D
    assert one.std == pytest.approx(float(along.std(correction=0)))
    elsewhere = an_sae(1, place_out=Place("mlp_out", 1), is_transcoder=True)
    with pytest.raises(UnknownPoint, match=r"no activations of mlp_out.1 here"):
        pk.steering_vectors(acts.encode(elsewhere), method="latent", latent=4)
    with pytest.raises(UsageError, match="of several autoencoders is another one in each"):
        pk.steering_vectors(acts.encode([an_sae(0), an_sae(1)]), method="latent", latent=4)
