"""Probes of latents score a model's texts, and watch its generation, as they scored the latents that were extracted."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

import probekit as pk
from probekit.errors import DataError, UsageError
from probekit.evaluation.results.results import ProbeResults
from probekit.latents import Sae
from probekit.models.base import LanguageModel
from tests.latents.test_encode import an_sae
from tests.latents.test_kept import sae_files


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return pk.load_model("agreement-gpt2")


@pytest.fixture(scope="module")
def sae(model: LanguageModel, tmp_path_factory: pytest.TempPathFactory) -> Sae:
    folder = tmp_path_factory.mktemp("saes") / "one"
    return pk.load_sae(str(sae_files(folder, an_sae(1, d=model.cfg.d_model), "agreement-gpt2")))


def trained(model: LanguageModel, sae: Sae, probe: str = "k-sparse", position: str = "last") -> ProbeResults:
    task = pk.load_task("agreement", limit=120)
    acts = pk.extract(model, task, points="resid_pre", layers=1, position=position, progress=False)
    found = pk.train_probes(acts.encode(sae), probe=probe, quick=True, progress=False)
    assert isinstance(found, ProbeResults)
    return found


@pytest.mark.parametrize(("probe", "position"), [("k-sparse", "last"), ("mean-diff", "last"), ("mean-diff", "mean")])
def test_scores_of_texts_are_those_of_their_latents(model: LanguageModel, sae: Sae, probe: str, position: str) -> None:
    results = trained(model, sae, probe, position)
    task = pk.load_task("agreement", limit=20)
    latents = pk.extract(model, task, points="resid_pre", layers=1, position=position, progress=False).encode(sae)
    wanted = results.layers[0].probe.decision_function(latents["latents.1"])
    scores = results.score(model, task.inputs, progress=False)
    np.testing.assert_allclose(scores.scores, wanted, rtol=1e-3, atol=1e-3)


def test_a_monitor_scores_tokens_by_their_latents(model: LanguageModel, sae: Sae) -> None:
    results = trained(model, sae)
    prompt = pk.load_task("agreement", limit=2).inputs[:1]
    with pk.Monitor(model, results) as monitor:
        model.generate(prompt, max_new_tokens=4)
    (text,) = monitor.texts
    (name,) = text.scores
    n = len(text.scores[name])
    acts = pk.extract(model, [text.tokens[:n]], points="resid_pre", layers=1, position="all", bos=False, progress=False)
    wanted = results.layers[0].probe.decision_function(acts.encode(sae)["latents.1"])
    np.testing.assert_allclose(text.scores[name], wanted, rtol=1e-3, atol=1e-3)


def test_another_autoencoder_is_refused(model: LanguageModel, sae: Sae, tmp_path: Path) -> None:
    results = trained(model, sae)
    other = an_sae(1, seed=3, d=model.cfg.d_model)
    with pytest.raises(DataError, match="is not the autoencoder whose latents the probe reads"):
        results.score(model, ["one"], sae=other)
    read = results.meta["activations"]
    moved = {place: {**one, "sae": str(tmp_path / "gone")} for place, one in read["latents"].items()}
    gone = dataclasses.replace(results, meta={**results.meta, "activations": {**read, "latents": moved}})
    with pytest.raises(DataError, match=r"does not exist.*--sae PATH"):
        gone.score(model, ["one"])
    acts = pk.extract(model, pk.load_task("agreement", limit=40), points="resid_pre", layers=1, progress=False)
    plain = pk.train_probes(acts, quick=True, progress=False)
    with pytest.raises(UsageError, match="leave the autoencoder"):
        plain.score(model, ["one"], sae=sae)


def test_a_mean_of_latents_is_not_the_latents_of_a_mean(model: LanguageModel, sae: Sae) -> None:
    task = pk.load_task("agreement", limit=60)
    acts = pk.extract(model, task, points="resid_pre", layers=1, position="all", progress=False)
    results = pk.train_probes(acts.encode(sae), position="mean", probe="mean-diff", quick=True, progress=False)
    with pytest.raises(DataError, match="reads the mean of latents over tokens"):
        results.score(model, ["one"])
    inside = pk.train_probes(acts.at("mean").encode(sae), probe="mean-diff", quick=True, progress=False)
    wanted = inside.layers[0].probe.decision_function(acts.at("mean").encode(sae)["latents.1"])[:5]
    scores = inside.score(model, task.inputs[:5], progress=False)
    np.testing.assert_allclose(scores.scores, wanted, rtol=1e-3, atol=1e-2)
