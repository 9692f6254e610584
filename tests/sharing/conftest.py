"""A Hub of this room's own, which this process uses as the Hub's client would use the real one."""

from collections.abc import Callable, Iterator
from pathlib import Path

import huggingface_hub.constants as constants
import numpy as np
import pytest
from hub_server import WRITE_TOKEN, HubServer
from planted_runs import planted, trained

import probekit as pk
from probekit.activations.imports import arrays as import_arrays
from probekit.files import hub as hub_module


@pytest.fixture
def own_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """An empty Hub; this process has a token that may write, and an empty cache."""
    server = HubServer({}, tmp_path / "home")
    for name, value in {
        "ENDPOINT": server.url,
        "HUGGINGFACE_CO_URL_TEMPLATE": server.url + "/{repo_id}/resolve/{revision}/{filename}",
        "HF_HUB_CACHE": str(tmp_path / "home" / "hub"),
        "HF_HOME": str(tmp_path / "home"),
        "HF_TOKEN_PATH": str(tmp_path / "home" / "token"),
        "HF_HUB_DISABLE_XET": True,
        "HF_HUB_OFFLINE": False,
    }.items():
        monkeypatch.setattr(constants, name, value)  # read at each call
    monkeypatch.setattr(hub_module, "_timeouts", [])
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    monkeypatch.setenv("HF_HUB_ETAG_TIMEOUT", "20")  # a loaded machine is no silent Hub
    monkeypatch.setenv("HF_TOKEN", WRITE_TOKEN)
    yield server
    server.close()


@pytest.fixture
def make_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Makes a store of several shards, with texts, at a folder of this name."""

    def make(name: str = "store", seed: int = 0, rows: int = 24) -> Path:
        source = tmp_path / f"{name}-source"
        source.mkdir()
        rng = np.random.default_rng(seed)
        for layer in range(2):
            np.save(source / f"resid_pre.{layer}.npy", rng.normal(size=(rows, 6)).astype(np.float32))
        lines = ["text,label", *(f"text {i} of {name},{'ab'[i % 2]}" for i in range(rows))]
        (source / "labels.csv").write_text("\n".join(lines))
        monkeypatch.setattr(import_arrays, "SHARD_BYTES", 2 * 6 * 4 * (rows // 3))
        how = {"labels": source / "labels.csv", "model_name": "a `model` | <b>x</b>"}
        pk.import_activations(source, out=tmp_path / name, **how)
        return tmp_path / name

    return make


@pytest.fixture(scope="session")
def results_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of a curve with planted signal, of a model and a task with hostile names."""
    results = trained(planted(model="gpt2", task="a `task` | <b>of</b> [ours](x)\x1b[2J"))
    return results.save(tmp_path_factory.mktemp("results") / "own")
