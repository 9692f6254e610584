"""For the tests of this folder: an extraction and its store, one Ray cluster, and a limit to the time of a test."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import ray_workers
import torch
from engine_cases import SIZES, N
from ray_workers import CONTROL
from user_files import write_model, write_texts

from probekit.activations import plan_extraction, run_plan
from probekit.activations.plan.plan import ExtractionPlan
from probekit.engines.cluster import own_signals
from probekit.models import load_model
from probekit.options import ExtractOptions
from probekit.tasks import load_task

ROOT = Path(__file__).parents[2]
PATIENCE = 300  # seconds after which a test fails instead of waiting
NODE: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 80 << 20}


class Nodes:
    """A cluster of a head, which has no room for workers, and two nodes of one CPU; and orders for its workers."""

    def __init__(self, folder: Path):
        from ray.cluster_utils import Cluster

        self.control = folder / "control"
        self.control.mkdir()
        self.driver = folder / "forked"
        self._forks = subprocess.Popen([sys.executable, ray_workers.__file__, self.driver], stdin=subprocess.PIPE)
        while not self.driver.exists() and self._forks.poll() is None:
            time.sleep(0.02)
        self._python = folder / "python"
        workers = f'case "$1" in *default_worker.py) exec {self.driver} "$@";; esac'
        self._python.write_text(f'#!/bin/sh\n{workers}\nexec {sys.executable} "$@"\n')
        self._python.chmod(0o755)
        head = {**NODE, "num_cpus": 0, "temp_dir": str(folder / "ray"), "include_dashboard": False}
        with self._forked_workers():
            self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.address = str(self.cluster.address)
        for _ in range(2):
            self.add()

    @contextmanager
    def _forked_workers(self) -> Iterator[None]:
        """Nodes that are started within start their workers with our program."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "executable", str(self._python))
            yield

    def close(self) -> None:
        self.cluster.shutdown()
        self._forks.communicate()

    @property
    def ran(self) -> list[Path]:
        """A folder in /proc for each worker that was given shards since the last order; it is gone with the worker."""
        return [Path("/proc") / file.name.removeprefix("ran-") for file in self.control.glob("ran-*")]

    def say(self, *orders: str) -> None:
        """Give workers these orders, and forget the earlier ones and who ran."""
        for file in self.control.iterdir():
            file.unlink()
        for order in orders:
            (self.control / order).touch()

    def kill_driver(self) -> None:
        """Kill -9 to the driver that said its number, once."""
        file = self.control / "driver"
        if file.exists():
            with suppress(ProcessLookupError):
                os.kill(int(file.read_text()), signal.SIGKILL)
            file.unlink()

    def add(self) -> None:
        """Add a node."""
        with self._forked_workers():
            self.cluster.add_node(**NODE)

    def remove(self, node_id: str | None = None) -> None:
        """Remove one of the nodes, or this one, with all of its processes."""
        lost = next(node for node in self.cluster.worker_nodes if node_id in (None, node.node_id))
        self.cluster.remove_node(lost, allow_graceful=False)


@pytest.fixture(scope="package")
def nodes() -> Iterator[Nodes]:
    ray = pytest.importorskip("ray")
    folder = Path(tempfile.mkdtemp(prefix="pk-ray-", dir="/tmp"))  # sockets have short paths
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_TMPDIR", str(folder))  # where it writes its address; /tmp/ray may not be there
        patch.setenv(CONTROL, str(folder / "control"))
        paths = [str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH")]
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
        patch.setenv("OMP_NUM_THREADS", "1")
        made = Nodes(folder)
        try:
            with own_signals():
                ray.init(address=made.address, log_to_driver=False, logging_level="ERROR")
            yield made
        finally:
            with own_signals():
                ray.shutdown()
            made.close()
            shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def bounded() -> Iterator[None]:
    """The test does not hang."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"still running after {PATIENCE} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(PATIENCE)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Bits are promised for one number of threads; a forked process may use one alone."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="package")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("engines")
    write_model(folder / "tiny")
    write_texts(folder / "texts.csv", N)
    return folder


@pytest.fixture(scope="package")
def plan(folder: Path) -> ExtractionPlan:
    model, task = load_model(str(folder / "tiny")), load_task(str(folder / "texts.csv"))
    return plan_extraction(model, task, ExtractOptions(**SIZES))


@pytest.fixture(scope="package")
def whole(folder: Path, plan: ExtractionPlan) -> Path:
    """The store of one process, with its sums."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    run_plan(plan, folder / "whole", progress=False, stats=True)
    torch.set_num_threads(threads)
    assert len(plan.shards) >= 10
    return folder / "whole"
