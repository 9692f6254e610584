"""`train-probe` and `sweep` on a Ray cluster of two nodes: results equal those of one process, whatever dies."""

import json
import subprocess
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray_tasks
import torch
from tiny_configs import tiny_model
from user_files import write_model, write_texts

import probekit as pk
from probekit.activations import Store, load_activations
from probekit.engines import ray_probes, ray_sweep, tasks
from probekit.engines.ray_probes import as_bytes, check_engine, from_bytes
from probekit.errors import ProbekitError, UsageError
from probekit.evaluation.curve import fit_places
from probekit.evaluation.label_sets import plan_label_sets
from probekit.evaluation.request import check_requests
from probekit.options import CurvesArguments
from probekit.sweeps.files import read_body, read_runs
from probekit.tasks import Task
from probekit.verbs.extract import extract

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.usefixtures("bounded")
PATIENCE = 300  # seconds after which a test fails instead of waiting
HOW: dict[str, Any] = {"C": [0.1, 1.0], "controls": 1}
BRIEF: dict[str, Any] = {"quick": True, "intervals": False, "probe": "mean-diff"}


@pytest.fixture(scope="module")
def cluster(nodes: Any) -> Any:
    """A head without room for tasks, and two nodes of one CPU."""
    return nodes.cluster


def make_task(n: int = 80) -> Task:
    rng = np.random.default_rng(0)
    inputs = [rng.integers(1, 20, size=5).tolist() for _ in range(n)]
    last = np.array([ids[-1] for ids in inputs])
    labels = {"even": (last + (rng.random(n) < 0.1)) % 2, "size": last + rng.normal(size=n)}
    splits = np.array(["train", "train", "validation", "test"])[np.arange(n) % 4]
    return Task("ids", inputs, labels, {"even": ["no", "yes"], "size": []}, splits, "even")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    path = tmp_path_factory.mktemp("probes") / "store"
    extract(tiny_model("gpt2"), make_task(), points="resid_pre", out=path)
    return load_activations(path)


@pytest.fixture(scope="module")
def expected(store: Store, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of the results of one process."""
    return saved(pk.train_probes(store, **HOW), tmp_path_factory.mktemp("expected"))


def saved(results: Any, folder: Path) -> dict[str, bytes]:
    results.save(folder)
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_fit_comes_back_from_its_bytes_with_the_same_bits(store: Store):
    tokens = extract(tiny_model("gpt2"), make_task(), points="resid_pre", layers=0, position="all")
    several: list[tuple[Any, dict[str, Any]]] = [
        (store, {"label": "even"}),
        (store, {"label": "size"}),
        (store, {"probe": "mlp", "folds": 3}),
        (tokens, {"aggregate": "max"}),
    ]
    for acts, how in several:
        options = CurvesArguments(**how, controls=0, codelength=False, baselines=False)
        requests = check_requests(acts, options)
        sets = plan_label_sets(requests, options, lambda _: None)
        place = next(iter(acts))
        (found,) = fit_places([requests[0][0].features], [sets[0].plan], [place], lambda: None)
        one, other = found[place], from_bytes(as_bytes(found[place]))
        assert other.result == one.result
        assert {**vars(other.fit), "probe": 0, "test": 0} == {**vars(one.fit), "probe": 0, "test": 0}
        for name in one.fit.probe.ARRAYS:
            np.testing.assert_array_equal(getattr(other.fit.probe, name), getattr(one.fit.probe, name))
        assert (one.rises is None) == (acts is store)
        pairs = ((one.fit.test, other.fit.test), (one.validation, other.validation), (one.rises, other.rises))
        for given, back in pairs:
            for name, value in ({} if given is None else vars(given)).items():
                np.testing.assert_array_equal(getattr(back, name), value)


def test_results_are_those_of_one_process_file_by_file(cluster, store, expected, tmp_path):
    ticks: list[tuple[int, int]] = []
    results = pk.train_probes(store, **HOW, engine="ray", on_progress=lambda *at: ticks.append(at))
    assert saved(results, tmp_path / "results") == expected
    assert ticks == [(i, len(store)) for i in range(1, len(store) + 1)]


def test_a_worker_reads_labels_that_changed_since_the_run_before(cluster, tmp_path):
    path = tmp_path / "store"
    extract(tiny_model("gpt2"), make_task(), points="resid_pre", layers=0, out=path)
    found = []
    for seed in (0, 1):
        drawn = np.random.default_rng(seed).integers(2, size=80).tolist()
        pk.label_store(path, dict(zip(load_activations(path).ids, drawn, strict=True)), name="drawn", replace=True)
        acts = load_activations(path)
        how: dict[str, Any] = {"label": "drawn", **BRIEF}
        one, other = pk.train_probes(acts, **how), pk.train_probes(acts, **how, engine="ray")
        found.append(saved(other, tmp_path / f"ray{seed}"))
        assert found[-1] == saved(one, tmp_path / f"one{seed}")
    assert found[0] != found[1]


def test_a_place_whose_worker_is_killed_is_fitted_again(cluster, store, expected, tmp_path, monkeypatch):
    monkeypatch.setattr(ray_probes, "fit_place_task", ray_tasks.fit_or_die)
    (store.path.parent / "once-resid_pre.1").touch()
    results = pk.train_probes(store, **HOW, engine="ray")
    assert not (store.path.parent / "once-resid_pre.1").exists()
    assert saved(results, tmp_path) == expected


def test_a_worker_that_is_killed_every_time_is_one_line(cluster, store, monkeypatch):
    monkeypatch.setattr(ray_probes, "fit_place_task", ray_tasks.fit_or_die)
    monkeypatch.setattr(tasks, "RETRIES", 1)
    order = store.path.parent / "always-resid_pre.0"
    order.touch()
    try:
        with pytest.raises(ProbekitError, match=r"^the fits of resid_pre\.0: its process was lost 2 times .*$"):
            pk.train_probes(store, **HOW, engine="ray")
        assert order.read_text() == "died\n" * 2
    finally:
        order.unlink()


def test_a_node_that_is_removed_loses_nothing(nodes, store, expected, tmp_path, monkeypatch):
    monkeypatch.setattr(ray_probes, "fit_place_task", ray_tasks.fit_or_die)
    (store.path.parent / "wait-resid_pre.0").touch()
    told, results = store.path.parent / "node", list[Any]()
    runner = threading.Thread(target=lambda: results.append(pk.train_probes(store, **HOW, engine="ray")), daemon=True)
    runner.start()
    while not (told.exists() and told.read_text()):
        time.sleep(0.05)
    nodes.remove(told.read_text())
    nodes.add()
    runner.join(PATIENCE)
    assert saved(results[0], tmp_path) == expected


def test_what_python_raises_there_is_one_line_and_is_not_tried_again(cluster, tmp_path):
    path = tmp_path / "store"
    extract(tiny_model("gpt2"), make_task(), points="resid_pre", out=path)
    store = load_activations(path)
    shard = next((path / "shards").iterdir())
    data = bytearray(shard.read_bytes())
    data[-100] ^= 1
    shard.write_bytes(bytes(data))
    with pytest.raises(ProbekitError, match=r"^the fits of resid_p\w+\.\d on '.*': shard .* is damaged: .*$") as error:
        pk.train_probes(store, **HOW, engine="ray")
    assert error.value.exit_code == 4
    assert "\n" not in str(error.value)


def test_what_workers_cannot_read_is_refused_before_anything_runs(store):
    in_memory = extract(tiny_model("gpt2"), make_task(), points="resid_pre")
    from sklearn.linear_model import LogisticRegression

    refused = {
        "give a store": (in_memory, {}),
        "not those of the store on disk": (
            store,
            {"labels": {name: int(i // 4 % 2) for i, name in enumerate(store.ids)}},
        ),
        "got LogisticRegression": (store, {"probe": LogisticRegression()}),
        "by='position'": (store, {"by": "position"}),
    }
    for message, (acts, how) in refused.items():
        with pytest.raises(UsageError, match=message):
            pk.train_probes(acts, **how, engine="ray")
    with pytest.raises(UsageError, match=r"workers .*needs engine"):
        pk.train_probes(store, workers=2)
    check_engine(store, CurvesArguments(engine="ray"))


def runs_of(folder: Path) -> dict[str, Any]:
    """What the records of the runs say, but for the time, and the checksum over it."""
    own = ("seconds", "seal")
    return {
        path.name: {key: value for key, value in json.loads(path.read_text()).items() if key not in own}
        for path in (folder / "runs").glob("*.json")  # a driver that was killed may leave a temporary file
    }


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, three tables, of which one has no labels, and the sweep of one process."""
    folder = tmp_path_factory.mktemp("sweep")
    write_model(folder / "tiny")
    (folder / "tables").mkdir()
    for name in ("first", "second"):
        write_texts(folder / "tables" / f"{name}.csv")
    (folder / "tables" / "bad.csv").write_text("text\nhello\n")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pk.sweep(str(folder / "tiny"), str(folder / "tables"), out=folder / "one", **BRIEF)
    return folder


def test_a_sweep_on_workers_writes_what_one_process_writes(cluster, swept, monkeypatch):
    monkeypatch.setattr(ray_sweep, "run_task_of_sweep", ray_tasks.run_or_die)
    (swept / "once-second").touch()  # its worker is killed once
    how: dict[str, Any] = {**BRIEF, "engine": "ray", "out": swept / "ray"}
    results = pk.sweep(str(swept / "tiny"), str(swept / "tables"), **how)
    assert not (swept / "once-second").exists()
    assert [run.task for run in results.failed] == ["bad"]
    assert runs_of(swept / "ray") == runs_of(swept / "one")
    for name in ("one", "ray"):
        assert len(list((swept / name / "results").rglob("results.json"))) == 2
    one, other = ([path.read_bytes() for path in sorted((swept / at).rglob("results.json"))] for at in ("one", "ray"))
    assert one == other
    times = {path: path.stat().st_mtime_ns for path in (swept / "ray").rglob("results.json")}
    pk.sweep(str(swept / "tiny"), str(swept / "tables"), **how)
    assert times == {path: path.stat().st_mtime_ns for path in times}


def test_a_driver_that_is_killed_goes_on_where_it_was(nodes, swept):
    how: dict[str, Any] = {**BRIEF, "engine": "ray", "out": str(swept / "cut")}
    command = [nodes.driver, "sweep", nodes.address, swept / "tiny", swept / "tables", json.dumps(how)]
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        while len(list((swept / "cut").glob("runs/*.json"))) < 2 and first.poll() is None:
            time.sleep(0.02)
    finally:
        nodes.kill_driver()
        _, said = first.communicate(timeout=PATIENCE)
    done = [run for run in read_runs(swept / "cut", read_body(swept / "cut")).values() if run.results]
    assert done, said
    times = {path: path.stat().st_mtime_ns for run in done for path in (swept / "cut" / run.results).iterdir()}
    again: list[str] = []
    pk.sweep(str(swept / "tiny"), str(swept / "tables"), **how, on_run=lambda run: again.append(run.task))
    assert not {run.task for run in done} & set(again)
    assert {path: path.stat().st_mtime_ns for path in times} == times
    assert runs_of(swept / "cut") == runs_of(swept / "one")


def test_a_sweep_that_workers_cannot_do_is_refused(swept):
    model = tiny_model("gpt2")
    with pytest.raises(UsageError, match="needs a folder that all machines see"):
        pk.sweep(str(swept / "tiny"), str(swept / "tables"), engine="ray", **BRIEF)
    with pytest.raises(UsageError, match="is an object in memory"):
        pk.sweep(model, str(swept / "tables"), engine="ray", out=swept / "no", **BRIEF)
    assert torch.is_tensor(next(model.parameters()))
