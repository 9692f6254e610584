import numpy as np
import pytest
import torch

from probekit.activations.extract import extract
from probekit.activations.imports.run import import_activations
from probekit.activations.plan import build as planning
from probekit.activations.store.reader import Store
from probekit.evaluation.fits.stream import stream_of
from probekit.models.families.gpt2 import GPT2, GPT2Config
from probekit.probes import LogisticProbe
from probekit.probes.problem import Labels, every_problem
from probekit.tasks.base import Task


@pytest.fixture
def store(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(4000, 6)).astype(np.float32)
    np.save(tmp_path / "resid_pre.0.npy", X)
    np.save(tmp_path / "labels.npy", (X[:, 0] + rng.logistic(size=4000) > 0).astype(np.int64))
    return import_activations(tmp_path / "resid_pre.0.npy", tmp_path / "labels.npy", out=tmp_path / "store")


def test_a_stream_of_a_store_holds_its_rows_in_the_order_it_says(store):
    stream = stream_of(store, ("resid_pre", 0))
    rows = torch.cat(list(stream.read()))
    assert stream.shape == (4000, 6)
    torch.testing.assert_close(rows, store["resid_pre", 0][torch.from_numpy(stream.order)], rtol=0, atol=0)


def test_a_probe_of_a_stream_is_that_of_the_rows(store):
    problems = every_problem([Labels(store.labels[store.target], 2)], (0.01, 1.0))
    streamed = LogisticProbe().fit_many(stream_of(store, ("resid_pre", 0)), problems)
    held = LogisticProbe().fit_many(store["resid_pre", 0], problems)
    for one, other in zip(streamed, held, strict=True):
        assert one.converged_
        np.testing.assert_allclose(one.coef_, other.coef_, atol=1e-3)


def test_tokens_of_shards_out_of_order_find_their_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(planning, "SHARD_BYTES", 20 * 16 * 4)
    model = GPT2(GPT2Config(d_model=16, n_heads=2, d_mlp=24, n_layers=1, n_ctx=12, d_vocab=27)).init_weights(0)
    rng = np.random.default_rng(0)
    task = Task(
        name="ids",
        inputs=[rng.integers(27, size=rng.integers(1, 12)).tolist() for _ in range(60)],
        labels={"odd": np.arange(60) % 2},
        label_names={"odd": ["no", "yes"]},
        splits=np.array(["train", "validation", "test"])[np.arange(60) // 2 % 3],
        target="odd",
    )
    store = extract(model, task, position="all", out=tmp_path / "store", batch_tokens=32, block_nodes=16)
    assert isinstance(store, Store)
    assert len(store.shard_examples()) > 1
    stream = stream_of(store, ("resid_pre", 0))
    assert stream.order is not None
    assert (np.diff(stream.order) < 0).any()
    rows = torch.cat(list(stream.read()))
    torch.testing.assert_close(rows, store["resid_pre", 0][torch.from_numpy(stream.order)], rtol=0, atol=0)
