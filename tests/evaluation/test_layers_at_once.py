"""Several layers at once: the same bytes as one after another, with any number of threads."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from probekit.activations.activations import ActivationSet
from probekit.errors import DataError
from probekit.evaluation import transfer
from probekit.evaluation.curve import places_at_once
from probekit.points import Place
from probekit.probes import LogisticProbe, MLPProbe
from probekit.probes.logistic.systems import Kernel
from probekit.tasks.base import Task
from probekit.verbs.train_probes import train_probes


@pytest.fixture(autouse=True)
def threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def saved(results: Any, folder: Path) -> dict[str, Any]:
    """Every byte that is written, but for the recorded number of threads, and hashes of files that hold it."""
    results.save(folder)
    files = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if path.is_file()}
    found: dict[str, Any] = {name: path.read_bytes() for name, path in files.items()}
    for name in (name for name in found if name.endswith(".json")):
        found[name] = json.loads(found[name], object_hook=without_threads)
    return found


def without_threads(record: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key not in ("threads", "sha256")}


def test_label_sets_and_controls_on_the_same_rows_share_one_kernel_matrix(world, monkeypatch):
    made, make = [], Kernel.__init__

    def counted(self: Kernel, n: int, *a: Any, **k: Any) -> None:
        made.append(n)
        make(self, n, *a, **k)

    monkeypatch.setattr(Kernel, "__init__", counted)
    wide = torch.randn(120, 200, generator=torch.Generator().manual_seed(0))
    acts = world(n=120, extra={Place("mlp_out", 0): wide, Place("mlp_out", 1): wide.square()})
    how: dict[str, Any] = {"point": "mlp_out", "baselines": False, "controls": 2, "C": [0.01, 1.0], "codelength": False}
    together = train_probes(acts, labels="all", **how)
    assert len(made) == 2  # one a layer
    for (label, _), curve in together.items():
        alone = train_probes(acts, label=label, **how)
        pd.testing.assert_frame_equal(curve.to_frame(), alone.to_frame())


HOW: list[dict[str, Any]] = [
    {"baselines": True},
    {"folds": 3, "codelength": False, "C": [0.01, 1.0]},
    {"probe": "ridge", "control_C": "own"},
    {"probe": MLPProbe(max_epochs=2), "C": None},
    {"labels": "all", "C": 1.0},
]


@pytest.mark.parametrize("how", HOW, ids=["default", "folds", "ridge", "mlp", "label sets"])
def test_the_number_of_threads_changes_no_byte(world, tmp_path, how):
    acts = world(n=120, inputs=[f"text {i} word{i % 9}" for i in range(120)])
    how = {"C": [0.01, 1.0, 100.0], "layers": "0-2", "baselines": False, "controls": 1, **how}
    found = []
    for n in (1, 2, 5):
        torch.set_num_threads(n)
        found.append(saved(train_probes(acts, **how), tmp_path / str(n)))
        assert torch.get_num_threads() == n
    assert len(found[0]) > 3
    assert found[1] == found[0]
    assert found[2] == found[0]


def test_nor_does_it_in_transfer(world, tmp_path):
    tasks = [world(seed=seed, n=120) for seed in (0, 1)]
    found = []
    for n in (1, 2):
        torch.set_num_threads(n)
        found.append(saved(transfer(tasks, layers="0-1", C=[0.1, 1.0]), tmp_path / str(n)))
    assert found[1] == found[0]


def test_nor_does_it_inside_one_solve_of_many_rows():
    """Rows enough for several shares, of which each thread takes some."""
    rng = np.random.default_rng(0)
    X = torch.from_numpy(rng.normal(size=(9_000, 16)).astype(np.float32))
    y = (X[:, 0].numpy() + rng.normal(size=9_000) > 0).astype(int)
    coefs = []
    for n in (1, 2, 5):
        torch.set_num_threads(n)
        coefs.append(LogisticProbe(C=1.0).fit(X, y).coef_)
    assert np.array_equal(coefs[0], coefs[1])
    assert np.array_equal(coefs[0], coefs[2])


class Watched(LogisticProbe):
    """Counts how many fits run at once; they wait for one another where they can."""

    running, most, threads = 0, 0, frozenset()
    both = threading.Condition()

    def fit_many(self, X, problems):  # pyright: ignore[reportIncompatibleMethodOverride]
        cls = type(self)
        with cls.both:
            cls.running += 1
            cls.most = max(cls.most, cls.running)
            cls.both.notify_all()
            cls.both.wait_for(lambda: cls.most > 1, timeout=0.05)
        try:
            return super().fit_many(X, problems)
        finally:
            with cls.both:
                cls.running -= 1


class WatchedAlone(Watched):
    fits_in_threads = False


BARE: dict[str, Any] = {"baselines": False, "codelength": False, "intervals": False, "controls": 0, "C": 1.0}


def most_at_once(acts: ActivationSet, probe: type[Watched], **how: Any) -> int:
    probe.most = probe.running = 0
    train_probes(acts, probe=probe, **BARE, **how)
    return probe.most


def test_as_many_places_are_fitted_at_once_as_torch_has_threads(world):
    acts = world(n=40)
    torch.set_num_threads(2)
    assert most_at_once(acts, Watched) == 2
    assert most_at_once(acts, WatchedAlone) == 1
    assert most_at_once(acts, Watched, layers="1") == 1
    torch.set_num_threads(1)
    assert most_at_once(acts, Watched) == 1


def test_one_place_at_a_time_where_memory_is_short(world, monkeypatch):
    torch.set_num_threads(2)
    monkeypatch.setattr("probekit.evaluation.curve.free_bytes", lambda device: 1_000)
    assert most_at_once(world(n=40), Watched) == 1


def test_one_place_at_a_time_on_a_gpu():
    assert places_at_once(torch.empty(2, 2), []) > 1
    assert places_at_once(torch.empty(2, 2, device="meta"), []) == 1  # a device other than the processor


def test_progress_comes_from_the_calling_thread_and_counts_every_place(world):
    torch.set_num_threads(3)
    here, seen = threading.get_ident(), []
    train_probes(world(n=40), on_progress=lambda done, of: seen.append((threading.get_ident(), done, of)), **BARE)
    assert seen == [(here, done, 5) for done in range(1, 6)]


@pytest.mark.parametrize("n_threads", [1, 3])
def test_the_error_is_that_of_the_first_place(n_threads):
    torch.set_num_threads(n_threads)
    X = np.random.default_rng(0).normal(size=(30, 2)).astype(np.float32)
    flawed = X.copy()
    flawed[7] = np.nan
    splits = np.array(["train", "test", "test"] * 10)
    task = Task("t", [f"text {i}" for i in range(30)], {"y": np.arange(30) % 2}, splits=splits)
    places = [X, X, flawed, X, flawed]
    acts = ActivationSet({("resid_pre", i): torch.from_numpy(x) for i, x in enumerate(places)}, task)
    with pytest.raises(DataError, match=r"activations of resid_pre\.2 hold NaN, first in row 7"):
        train_probes(acts, **BARE)
    assert torch.get_num_threads() == n_threads


def test_an_interrupt_ends_all_places(world):
    torch.set_num_threads(2)

    def stop(done: int, of: int) -> None:
        raise KeyboardInterrupt

    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        train_probes(world(n=40), on_progress=stop, **BARE)
    assert threading.active_count() == before
    assert torch.get_num_threads() == 2


def test_curves_in_threads_of_the_user_are_those_of_one(world):
    """Four calls at once, each of which fits several places where it may."""
    torch.set_num_threads(3)
    acts = world(n=60)
    how = {**BARE, "C": [0.1, 1.0]}
    alone = train_probes(acts, **how)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: train_probes(acts, **how), range(4)))
    for one in found:
        assert one.layers == alone.layers
        pairs = zip(one.layers, alone.layers, strict=True)
        assert all(np.array_equal(a.probe.coef_, b.probe.coef_) for a, b in pairs)
    assert torch.get_num_threads() == 3
