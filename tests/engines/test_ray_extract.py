"""`extract --engine ray` on a cluster of three nodes: whatever dies, the store is that of one process, file by file.

Who gets which shard is tested without Ray in test_schedule.py; here it is that Ray says what happened.
"""

import os
import re
import signal
import subprocess
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from engine_cases import job, sums
from ray_workers import HELD, OddWorker
from store_cases import of_shards

from probekit.activations.parts.work import begin_work
from probekit.activations.plan.plan import ExtractionPlan
from probekit.cli.main import run
from probekit.engines import ray_extract, schedule
from probekit.engines.cluster import workers_that_fit
from probekit.engines.ray_extract import needs_of, run_on_ray
from probekit.errors import StorageError, UsageError
from probekit.options import EngineOptions

ray = pytest.importorskip("ray")
pytestmark = [
    pytest.mark.usefixtures("bounded", "one_thread"),
    pytest.mark.filterwarnings("default::UserWarning"),  # a busy machine may lose a worker more
]
PATIENCE = 300  # seconds that the background waits
TWO = EngineOptions(engine="ray", workers=2)
Started = Callable[..., None]


@pytest.fixture
def odd(nodes: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Started]:
    """Makes the workers misbehave."""
    monkeypatch.setattr(ray_extract, "ShardWorker", OddWorker)
    yield nodes.say
    nodes.say()


@contextmanager
def warned(*patterns: str) -> Iterator[None]:
    """Each pattern is in one of the warnings; on a busy machine another worker may be lost too."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        yield
    said = [str(one.message) for one in found]
    assert all(any(re.search(pattern, one) for one in said) for pattern in patterns), said


def wait_until(true: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE
    while not true() and time.monotonic() < until:
        time.sleep(0.02)


def when(true: Callable[[], bool], then: Callable[[], object]) -> threading.Thread:
    """Do something in the background as soon as something is true; a test that ends sooner waits for it in vain."""

    def wait() -> None:
        wait_until(true)
        then()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def ray_job(folder: Path, store: Path) -> list[str]:
    return job(folder, "--out", str(store), "--engine", "ray", "--quiet")


def records(path: Path) -> int:
    return len(list(path.glob("records/*.json")))


def test_two_workers_make_the_store_and_the_sums_of_one_process(
    nodes: Any, odd: Started, folder: Path, whole: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """As the command line runs it; stdout is the path alone, and stderr has nothing of Ray's."""
    odd("hold")
    when(lambda: len(nodes.ran) == 2, odd)
    assert run([*ray_job(folder, tmp_path / "store"), "--stats", "--workers", "1:8"]) == 0
    out, err = capfd.readouterr()
    assert out == f"{tmp_path / 'store'}\n"
    assert err == ""
    assert of_shards(tmp_path / "store") == of_shards(whole)
    assert sums(tmp_path / "store") == sums(whole) != {}


def test_a_machine_without_room_for_a_worker_says_so_at_once(nodes: Any, plan: ExtractionPlan, tmp_path: Path) -> None:
    options = EngineOptions(engine="ray", gpus_per_worker=1)
    with pytest.raises(
        UsageError, match=r"no node has room for a worker, which needs 1 CPU and 1 GPU; the nodes have 2 "
    ):
        run_on_ray(plan, tmp_path / "store", options, False)


def test_workers_get_as_many_cpus_as_let_all_of_them_fit(plan: ExtractionPlan) -> None:
    nodes = [{"CPU": 8.0}, {"CPU": 4.0, "GPU": 2.0}]

    def cpus(**options: Any) -> float:
        return needs_of(plan, EngineOptions(engine="ray", **options), nodes)["num_cpus"]

    assert [cpus(workers=n) for n in (1, 2, 3, 4, 5, 6, 12, 100)] == [8, 4, 4, 2, 2, 2, 1, 1]
    assert cpus() == cpus(workers=1, gpus_per_worker=0.5) == 1
    assert [workers_that_fit(node, {"num_cpus": 1.0, "num_gpus": 0.5}) for node in nodes] == [0, 4]


def test_workers_that_die_fail_and_hang_cost_two_warnings(
    odd: Started, plan: ExtractionPlan, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule, "PATIENCE", 0.5)
    odd("kill", "fail", "hang")
    died = r"^worker \d on .*: its process died; others will do its \d+ shards?$"
    with warned(died, r"^worker \d on .*: RuntimeError: CUDA error: unspecified launch failure; others"):
        run_on_ray(plan, tmp_path / "store", TWO, False)
    assert of_shards(tmp_path / "store") == of_shards(whole)


def test_a_removed_node_costs_a_warning(
    nodes: Any, odd: Started, plan: ExtractionPlan, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no room for its worker any more, and nobody waits for it."""
    processes: list[Path] = []

    def all_wait() -> bool:
        processes[:] = nodes.ran
        return len(processes) == 2 and records(tmp_path / "store") >= HELD

    def remove() -> None:
        nodes.remove()
        wait_until(lambda: not all(process.exists() for process in processes))  # which takes a second
        odd()

    odd("hold")
    removed = when(all_wait, remove)
    monkeypatch.setattr(schedule, "PATIENCE", PATIENCE)  # or the other worker would take the shards unasked
    try:
        with warned(r"others will do its \d+ shards?$"):
            run_on_ray(plan, tmp_path / "store", TWO, False)
    finally:
        removed.join(PATIENCE)
        nodes.add()
    assert of_shards(tmp_path / "store") == of_shards(whole)


def test_after_a_killed_driver_only_the_missing_shards_are_computed(
    nodes: Any, odd: Started, folder: Path, plan: ExtractionPlan, whole: Path, tmp_path: Path
) -> None:
    odd("hold")
    store = tmp_path / "store"
    command = [*ray_job(folder, store), "--address", nodes.address]
    driver = subprocess.Popen([nodes.driver, *command], stderr=subprocess.PIPE, text=True)
    when(lambda: records(store) >= HELD, nodes.kill_driver)
    _, err = driver.communicate(timeout=PATIENCE)
    assert nodes.ran, err
    wait_until(lambda: not any(process.exists() for process in nodes.ran))
    there = {file.name: file.stat().st_mtime_ns for file in (store / "records").iterdir()}
    assert HELD <= len(there) < len(plan.shards)
    assert not (store / "manifest.json").exists()
    odd()
    run_on_ray(plan, store, TWO, False)
    assert there.items() <= {file.name: file.stat().st_mtime_ns for file in (store / "records").iterdir()}.items()
    assert of_shards(store) == of_shards(whole)


def test_ctrl_c_ends_all_workers_with_one_line(
    nodes: Any, odd: Started, folder: Path, plan: ExtractionPlan, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    odd("hold")
    store = tmp_path / "store"
    when(lambda: records(store) >= HELD, lambda: os.kill(os.getpid(), signal.SIGINT))
    assert run(ray_job(folder, store)) == 130
    lines = capfd.readouterr().err.splitlines()
    [line] = [one for one in lines if not one.startswith("probekit: warning: worker")]  # a busy machine may lose one
    assert line.startswith("probekit: interrupted: saved ")
    assert nodes.ran
    wait_until(lambda: not any(process.exists() for process in nodes.ran))
    assert HELD <= records(store) < len(plan.shards)


def test_a_node_that_does_not_see_the_store_is_named(
    odd: Started, plan: ExtractionPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told before a model is loaded."""
    monkeypatch.setattr(schedule, "START_TRIES", 1)
    odd("elsewhere")
    said = r"^worker 1: node .* cannot see '.*', where the driver works; take a folder that all machines share"
    with pytest.raises(StorageError, match=said):
        run_on_ray(plan, tmp_path / "store", EngineOptions(engine="ray", workers=1), False)
    assert begin_work(plan, tmp_path / "store") == list(range(len(plan.shards)))
