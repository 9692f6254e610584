"""Latents of activations are activations: probes, positions and streams of them equal those of the encoded rows."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

import probekit as pk
from probekit.activations.activations import Activations, ActivationSet, RowsOf
from probekit.errors import DataError, UsageError
from probekit.evaluation.fits.sequences import tokens_of_texts
from probekit.evaluation.fits.stream import stream_of
from probekit.latents import Sae
from probekit.latents.config import SaeConfig
from probekit.points import Place, UnknownPoint
from probekit.probes.sequence.ragged import text_parts
from probekit.probes.stream import held

D, F, N = 8, 48, 240


def an_sae(layer: int, seed: int = 0, d: int = D, **changed: object) -> Sae:
    draw = torch.Generator().manual_seed(seed)
    shapes = {"W_enc": (d, F), "W_dec": (F, d), "b_enc": (F,), "b_dec": (d,)}
    weights = {name: torch.randn(*shape, generator=draw) for name, shape in shapes.items()}
    cfg = SaeConfig("topk", d, F, d, k=6, place=Place("resid_pre", layer))
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
        torch.testing.assert_close(latents["latents", sae.cfg.place.layer], sae.encode(acts[sae.cfg.place]))
    about = latents.meta["latents"]
    assert {place: (one["of"], one["sae"]) for place, one in about.items()} == {
        "latents.0": ("resid_pre.0", "sae0"), "latents.2": ("resid_pre.2", "sae2"),
    }  # fmt: skip
    assert about["latents.0"]["fingerprint"] == an_sae(0).fingerprint() != an_sae(0, seed=1).fingerprint()
    assert an_sae(0).fingerprint() != an_sae(0, k=5).fingerprint()


@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize("position", ["all", ["last", -2]])
def test_latents_of_some_tokens_are_those_of_their_rows(tmp_path: Path, on_disk: bool, position: Any) -> None:
    """Whatever is taken of texts of several tokens: the same rows, in memory, as a stream, and some texts at once."""
    model = pk.load_model("agreement-gpt2")
    task = pk.load_task("agreement", limit=6)
    how: dict[str, Any] = {"points": "resid_pre", "layers": 1, "position": position, "progress": False}
    if on_disk:
        pk.extract(model, task, out=tmp_path / "store", **how)
    acts = pk.load_activations(tmp_path / "store") if on_disk else pk.extract(model, task, **how)
    d = acts["resid_pre", 1].shape[-1]
    sae = an_sae(1, d=d)
    latents = acts.encode(sae)
    place = latents.point_of("latents.1")
    examples, rows = zip(*latents.shards(place), strict=True)
    order = latents.layout.index(place, np.concatenate(examples))
    torch.testing.assert_close(torch.cat(rows), latents._rows(place)[torch.from_numpy(order)])
    for at in ["last", "mean", -1, "all"] if position == "all" else ["last", -2]:
        seen, wanted = latents.at(at), sae.encode(acts.at(at)["resid_pre", 1])
        if at == "mean":  # of latents, and not the latents of a mean
            wanted = torch.stack([sae.encode(x).mean(0) for x in acts.per_text(("resid_pre", 1))])
        torch.testing.assert_close(seen[place], wanted)
        stream = stream_of(seen, place)
        assert stream is not None
        torch.testing.assert_close(held(stream), seen[place])
        some = np.arange(0, len(seen.task), 3)
        fewer = stream_of(RowsOf(seen, some), place)
        assert fewer is not None
        torch.testing.assert_close(held(fewer), seen[place][torch.from_numpy(some)])


def test_a_probe_of_tokens_does_not_hold_all_latents(monkeypatch: pytest.MonkeyPatch) -> None:
    model, task = pk.load_model("agreement-gpt2"), pk.load_task("agreement", limit=12)
    acts = pk.extract(model, task, points="resid_pre", layers=1, position="all", progress=False)
    latents = acts.encode(an_sae(1, d=acts["resid_pre", 1].shape[-1]))
    place = latents.point_of("latents.1")
    assert tokens_of_texts(latents, place).values is not None
    monkeypatch.setattr("probekit.evaluation.fits.sequences.free_bytes", lambda _: 1)
    streamed = tokens_of_texts(latents, place)
    assert streamed.values is None
    found = [torch.empty(0)] * len(streamed)
    for part in text_parts(streamed):
        for text, own in zip(part.texts, part.rows.split(part.lengths.tolist()), strict=True):
            found[text] = own
    torch.testing.assert_close(torch.cat(found), latents[place])


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
        ([an_sae(1), an_sae(1)], UsageError, "are of one layer, and a layer has the latents of one"),
        ([an_sae(1, place=None)], UsageError, "the files of 'sae1' do not name the point that it reads; name it"),
        (
            [an_sae(1, place=None, hook="ln2.hook_normalized")],
            UsageError,
            "but 'ln2.hook_normalized', which is no point",
        ),
        ([an_sae(1, d=5)], UsageError, "'sae1' reads a width of 5, and resid_pre.1 is 8 wide"),
        ([], UsageError, "encode takes what load_sae gives, or a list of these; got an empty list"),
        ("my_sae", UsageError, "encode takes what load_sae gives, or a list of these; got"),
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


@pytest.mark.parametrize("ours", ["gpt2-xl", "gpt2-random0", "pythia-70m"])
def test_names_of_other_models_do_not(ours: str) -> None:
    acts: Activations = some_acts()
    acts.meta["model"] = ours
    with pytest.raises(UsageError, match="was trained on 'gpt2-small', and the activations are of"):
        acts.encode(an_sae(0, model="gpt2-small"))
    assert len(acts.encode(an_sae(0, model="gpt2-small"), force=True)) == 1


def test_latents_of_a_stack_are_named_after_it() -> None:
    draw, task = torch.Generator().manual_seed(0), some_acts().task
    acts = ActivationSet({Place("decoder.resid_pre", 1): torch.randn(N, D, generator=draw)}, task)
    assert [*acts.encode(an_sae(1, place=Place("decoder.resid_pre", 1)))] == [Place("decoder.latents", 1)]


def test_results_say_which_latents_were_read(tmp_path: Path) -> None:
    results = pk.train_probes(some_acts().encode(an_sae(1)), quick=True, progress=False)
    assert "latents of resid_pre 1 (sae1), last token" in results.summary()
    results.save(tmp_path / "results")
    page = pk.write_report(tmp_path / "results", tmp_path / "page.html").read_text()
    assert "latents of resid_pre 1 (sae1)" in page
    assert f"fingerprint {an_sae(1).fingerprint()}" in page
    assert "sae1, which reads resid_pre.1; explains" in page
    other = pk.train_probes(some_acts().encode(an_sae(1, seed=1)), quick=True, progress=False)
    told = pk.compare([results, other]).summary()
    assert told.count("sae sae1 (") >= 2


def test_transfer_takes_latents_of_one_autoencoder() -> None:
    one, other = some_acts(), some_acts()
    other.task = dataclasses.replace(other.task, name="u", inputs=[[i + N] for i in range(N)])
    assert len(pk.transfer([acts.encode(an_sae(1)) for acts in (one, other)], progress=False).cells) == 4
    for different in (an_sae(1, seed=1), an_sae(1, place=Place("resid_pre", 1), k=5)):
        with pytest.raises(UsageError, match="has latents of another autoencoder, or of another place, than 't'"):
            pk.transfer([one.encode(an_sae(1)), other.encode(different)], progress=False)


def test_a_model_has_no_latents() -> None:
    with pytest.raises(UnknownPoint, match=r"latents are those of an autoencoder, which reads activations \(acts.enc"):
        pk.load_model("agreement-gpt2").resolve("latents")


def test_dead_latents_and_a_k_above_those_that_are_alive() -> None:
    acts, sae = some_acts(), an_sae(1, activation="relu")
    sae.b_enc[:] = -1e6
    for probe in ("k-sparse", "logistic"):
        with pytest.raises(DataError, match="every latent of 'sae1' is 0 on all rows: dead, or of another layer"):
            pk.train_probes(acts.encode(sae), probe=probe, quick=True, progress=False)
    sae.b_enc[:3] = 0
    results = pk.train_probes(acts.encode(sae), probe="k-sparse", quick=True, progress=False)
    assert sorted(results.layers[0].probe.neurons_) == [0, 1, 2]
    assert "k = 16, and 3 features of latents.1 vary on train: the probe uses these." in results.summary()


def test_a_dead_autoencoder_of_random_weights_is_no_error() -> None:
    acts, sae = some_acts(), an_sae(1, activation="relu")
    sae.b_enc[:] = -8.0
    noise = ActivationSet({place: 1e-3 * acts[place] for place in acts}, acts.task)
    results = pk.train_probes(acts.encode(sae), random_init=noise.encode(sae), probe="k-sparse", progress=False)
    assert results.random_init[0].metrics["test"]["accuracy"] == pytest.approx(0.5)


def test_a_probe_over_a_sequence_of_latents_trains() -> None:
    model, task = pk.load_model("agreement-gpt2"), pk.load_task("agreement", limit=60)
    acts = pk.extract(model, task, points="resid_pre", layers=1, position="all", progress=False)
    latents = acts.encode(an_sae(1, d=model.cfg.d_model))
    results = pk.train_probes(latents, probe="mean-diff", aggregate="mean", quick=True, progress=False)
    assert "best_latents" not in results.meta
    with pytest.raises(DataError, match="over a sequence of latents, which cannot be applied"):
        results.score(model, ["one"])


def test_latents_are_not_put_side_by_side() -> None:
    with pytest.raises(UsageError, match="latents of several layers are not put side by side"):
        pk.train_probes(some_acts().encode([an_sae(0), an_sae(2)]), concatenate=True, progress=False)
