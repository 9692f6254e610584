"""Latents that a store keeps are those that the autoencoder gives; probes of sparse rows are those of dense ones."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from scipy.sparse import csr_array

import probekit as pk
from probekit.activations import Store
from probekit.activations.activations import RowsOf
from probekit.activations.latents import Latents
from probekit.causal.behaviour.measure import reconstruction_loss
from probekit.errors import DataError, StorageError, UsageError
from probekit.evaluation.fits.stream import features_to_fit, stream_of
from probekit.interventions import project_out, through
from probekit.latents import Sae
from probekit.models.base import LanguageModel
from probekit.points import Place
from probekit.probes import KSparseProbe, MeanDifferenceProbe
from probekit.probes.problem import Labels, every_problem
from probekit.probes.stream import SparseRows, held, some_of
from tests.latents.test_encode import F, N, an_sae, some_acts


def sae_files(folder: Path, sae: Sae, model: str) -> Path:
    """The files of a TopK autoencoder as SAELens writes them."""
    folder.mkdir()
    save_file({name: weight.contiguous() for name, weight in sae.named_buffers()}, folder / "sae_weights.safetensors")
    assert sae.cfg.place is not None
    about = {"hook_name": f"blocks.{sae.cfg.place.layer}.hook_{sae.cfg.place.point}", "model_name": model}
    sizes = {"architecture": "topk", "d_in": sae.cfg.d_in, "d_sae": sae.cfg.d_latents, "k": sae.cfg.k}
    (folder / "cfg.json").write_text(json.dumps({**sizes, "metadata": about}))
    return folder


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return pk.load_model("agreement-gpt2")


@pytest.fixture
def store(tmp_path: Path, model: LanguageModel) -> Store:
    how = {
        "points": "resid_pre",
        "layers": 1,
        "position": "all",
        "shard_bytes": 20_000,
        "batch_tokens": 64,
        "progress": False,
    }
    acts = pk.extract(model, pk.load_task("agreement", limit=30), out=tmp_path / "store", **how)
    assert isinstance(acts, Store)
    assert len(acts.shard_examples()) > 2
    return acts


def test_kept_latents_are_the_encoded_ones(store: Store) -> None:
    sae = an_sae(1, d=store.width(Place("resid_pre", 1)))
    wanted, kept = Latents(store, [sae]), store.encode(sae, keep=True)
    assert isinstance(kept, Latents)
    place = Place("latents", 1)
    assert kept.is_kept(place)
    assert not wanted.is_kept(place)
    for latents in (kept, store.encode(), pk.load_activations(store.path).encode(sae)):
        assert torch.equal(latents[place], wanted[place])
        assert torch.equal(latents.at("last")[place], wanted.at("last")[place])
        torch.testing.assert_close(latents.at("mean")[place], wanted.at("mean")[place])
        assert latents.meta["latents"] == wanted.meta["latents"]
        stream = stream_of(latents.at("mean"), place, sparse=True)
        assert isinstance(stream, SparseRows)
        torch.testing.assert_close(held(stream), wanted.at("mean")[place])
    sizes = [file.stat().st_size for file in (store.path / "latents").rglob("*.safetensors")]
    assert sum(sizes) < 8 * np.count_nonzero(wanted[place]) + 4 * len(wanted[place]) + 600 * len(sizes)


def test_keeping_resumes_and_finds_damage(store: Store) -> None:
    sae = an_sae(1, d=store.width(Place("resid_pre", 1)))
    calls = 0

    def interrupted(x: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls > 3:
            raise KeyboardInterrupt
        return Sae.encode(sae, x)

    sae.encode = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        store.encode(sae, keep=True)
    with pytest.raises(UsageError, match="no latents are kept here"):
        store.encode()
    (folder,) = (store.path / "latents").iterdir()
    done = len(list(folder.glob("0*.json")))
    assert done
    written = {file: file.stat().st_mtime_ns for file in folder.glob("*.safetensors")}
    again = an_sae(1, d=sae.cfg.d_in)
    store.encode(again, keep=True)
    assert all(file.stat().st_mtime_ns == at for file, at in written.items())
    assert torch.equal(store.encode()["latents.1"], an_sae(1, d=sae.cfg.d_in).encode(store["resid_pre.1"]))
    store.verify()
    file = next(folder.glob("*.safetensors"))
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(bytes(data))
    with pytest.raises(StorageError, match="does not match its checksum"):
        _ = pk.load_activations(store.path).encode()["latents.1"]
    with pytest.raises(StorageError, match="latents/"):
        store.verify()


def test_latents_that_are_not_finite_are_refused(store: Store) -> None:
    sae = an_sae(1, d=store.width(Place("resid_pre", 1)))
    sae.b_enc[3] = torch.nan
    with pytest.raises(DataError, match="hold NaN or infinity, as in example '") as error:
        store.encode(sae, keep=True)
    assert any(f"{one!a};" in str(error.value) for one in store.ids)
    with pytest.raises(UsageError, match="these activations are in memory"):
        some_acts().encode(an_sae(1), keep=True)


def sparse_problem(classes: int = 2) -> tuple[torch.Tensor, SparseRows, np.ndarray]:
    draw = np.random.default_rng(0)
    y = draw.integers(0, classes, N)
    X = np.where(draw.random((N, F)) < 0.1, draw.random((N, F)) + 0.1, 0)
    X[:, 5] += (y == 1) * draw.random(N)
    X[:, 9] += (y == classes - 1) * draw.random(N)
    X = X.astype(np.float32)
    return torch.from_numpy(X), SparseRows.of(csr_array(X)), y


@pytest.mark.parametrize("probe", [KSparseProbe(k=4), MeanDifferenceProbe()])
@pytest.mark.parametrize("classes", [2, 3])
def test_probes_of_sparse_rows_are_those_of_dense_ones(probe, classes: int) -> None:
    dense, sparse, y = sparse_problem(classes)
    problems = every_problem([Labels(y, classes)], [0.1, 1.0] if probe.has_C else [None])
    assert probe.reads_sparse
    for ours, theirs in zip(probe.fit_many(sparse, problems), probe.fit_many(dense, problems), strict=True):
        np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-6)
        np.testing.assert_allclose(ours.intercept_, theirs.intercept_, atol=1e-6)
    rows = np.array([7, 3, 100])
    assert torch.equal(held(some_of(sparse, rows)), dense[torch.from_numpy(rows)])
    assert torch.equal(held(sparse), dense)


def test_latents_stay_sparse_for_probes_that_read_them_so() -> None:
    acts = some_acts()
    latents, place = acts.encode(an_sae(1)), Place("latents", 1)
    assert isinstance(features_to_fit(latents, place, sparse=True), SparseRows)
    dense = acts.encode(an_sae(1, activation="relu"))  # half of the latents are not 0
    assert isinstance(features_to_fit(dense, place, sparse=True), torch.Tensor)


def test_the_variance_explained_is_that_of_the_reconstruction() -> None:
    acts, sae = some_acts(), an_sae(1)
    x = acts["resid_pre.1"].double()
    left = (x - sae(x).double()).square().sum() / (x - x.mean(0)).square().sum()
    assert acts.encode(sae).meta["latents"]["latents.1"]["explained"] == pytest.approx(float(1 - left), abs=1e-5)


def test_the_loss_added_is_that_of_the_model_with_the_reconstruction(tmp_path: Path, model) -> None:
    sae, texts = an_sae(1, d=model.cfg.d_model), [[1, 5, 3, 8], [2, 4, 4], [7]]
    plain, spliced = list[float](), list[float]()

    def splice(x: torch.Tensor, hook: object) -> torch.Tensor:
        return torch.cat([x[:, :1], sae(x[:, 1:])], dim=1)

    for text in texts:
        tokens = torch.tensor([text])
        for found, hooks in ((plain, []), (spliced, [("resid_pre.1", splice)])):
            logits = model.run_with_hooks(tokens, fwd_hooks=hooks)
            losses = torch.nn.functional.cross_entropy(logits[0, :-1], tokens[0, 1:], reduction="none")
            found += losses.tolist()
    got = reconstruction_loss(model, sae, Place("resid_pre", 1), texts, n_context=1)
    assert got["tokens"] == 5
    assert got["loss"] == pytest.approx(np.mean(plain), rel=1e-5)
    assert got["loss_added"] == pytest.approx(np.mean(spliced) - np.mean(plain), rel=1e-4)
    edited = model.edited({("resid_pre", 1): through(sae)})
    with edited:
        _, cache = model.run_with_cache(torch.tensor([texts[0]]), points="resid_pre.1")
    with torch.no_grad():
        _, before = model.run_with_cache(torch.tensor([texts[0]]), points="resid_pre.1")
    torch.testing.assert_close(cache["resid_pre.1"], sae(before["resid_pre.1"]), rtol=1e-3, atol=1e-3)


def test_extract_keeps_latents_for_the_command_line_and_python(tmp_path: Path, model) -> None:
    folder = sae_files(tmp_path / "sae", an_sae(1, d=model.cfg.d_model), "agreement-gpt2")
    task = pk.load_task("agreement", limit=60)
    acts = pk.extract(model, task, out=tmp_path / "store", sae=str(folder), progress=False)
    assert isinstance(acts, Store)
    assert list(acts) == [Place("resid_pre", 1)]
    about = acts.encode().meta["latents"]["latents.1"]
    assert {"explained", "loss", "loss_added"} <= about.keys()
    with pytest.raises(UsageError, match="none is named; give out=PATH"):
        pk.extract(model, task, sae=str(folder))
    with pytest.raises(UsageError, match=r"no activations of resid_pre.1 here"):
        pk.extract(model, task, out=tmp_path / "other", points="mlp_out", sae=str(folder))


def test_two_autoencoders_of_one_layer_are_refused_before_anything_is_computed(tmp_path: Path, model) -> None:
    folders = [
        str(sae_files(tmp_path / str(seed), an_sae(1, seed=seed, d=model.cfg.d_model), "agreement-gpt2"))
        for seed in (0, 1)
    ]
    with pytest.raises(UsageError, match="are of one layer, and a layer has the latents of one"):
        pk.extract(model, pk.load_task("agreement", limit=9), out=tmp_path / "store", sae=folders, progress=False)
    assert not (tmp_path / "store").exists()


def test_a_loss_is_not_measured_under_edits(tmp_path: Path, model) -> None:
    folder = str(sae_files(tmp_path / "sae", an_sae(1, d=model.cfg.d_model), "agreement-gpt2"))
    edits = {("resid_pre", 0): project_out(torch.ones(model.cfg.d_model))}
    task = pk.load_task("agreement", limit=9)
    acts = pk.extract(model, task, out=tmp_path / "store", sae=folder, edits=edits, progress=False)
    about = acts.encode().meta["latents"]["latents.1"]
    assert "explained" in about
    assert "loss" not in about


@pytest.mark.parametrize("position", ["all", ["last", -2]])
@pytest.mark.parametrize("on_disk", [False, True])
def test_only_the_rows_that_are_read_are_encoded(tmp_path: Path, model, position, on_disk: bool, monkeypatch) -> None:
    how: dict[str, Any] = {"points": "resid_pre", "layers": 1, "position": position, "progress": False}
    task = pk.load_task("agreement", limit=10)
    acts = pk.extract(model, task, out=tmp_path / "store" if on_disk else None, **how)
    sae, place = an_sae(1, d=model.cfg.d_model), Place("latents", 1)
    latents = acts.encode(sae)
    some = np.array([20, 3, 11])
    wanted = latents.at("last")[place]
    seen = list[int]()
    encode = Sae.encode
    monkeypatch.setattr(Sae, "encode", lambda self, x: (seen.append(len(x)), encode(self, x))[1])
    for view, rows in (
        (latents.at("last"), wanted),
        (RowsOf(latents.at("last"), some), wanted[torch.from_numpy(some)]),
    ):
        seen.clear()
        stream = stream_of(view, place, sparse=True)
        assert isinstance(stream, SparseRows)
        torch.testing.assert_close(held(stream), rows)
        assert sum(seen) == len(rows)
