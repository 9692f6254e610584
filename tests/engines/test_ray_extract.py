"""`extract --engine ray` on a cluster of three nodes: whatever dies, the store is that of one process, file by file."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from ray_workers import CONTROL, HELD, OddWorker
from store_cases import lasting
from user_files import write_model, write_texts

from probekit.activations import plan_extraction, run_plan
from probekit.activations.parts.work import begin_work
from probekit.activations.plan.plan import ExtractionPlan
from probekit.cli.main import run
from probekit.durable import TEMPORARY
from probekit.engines import ray_extract, ray_pool
from probekit.engines.ray_extract import needs_of, run_on_ray
from probekit.engines.ray_pool import workers_that_fit
from probekit.errors import StorageError, UsageError
from probekit.models import load_model
from probekit.options import EngineOptions, ExtractOptions
from probekit.tasks import load_task

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.filterwarnings("default::UserWarning")  # a busy machine may lose a worker more
TESTS = Path(__file__).parents[1]
PATIENCE = 300  # seconds after which a test fails instead of waiting
N = 200
HOW: dict[str, Any] = {"batch_tokens": 40, "shard_bytes": 1000}
NODE: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 80 << 20}
TWO = EngineOptions(engine="ray", workers=2)
Started = Callable[..., None]


class Nodes:
    """A cluster of a head, which has no room for workers, and two nodes of one CPU; and orders for its workers."""

    def __init__(self, folder: Path):
        from ray.cluster_utils import Cluster

        self.control = folder / "control"
        self.control.mkdir()
        head = {**NODE, "num_cpus": 0, "temp_dir": str(folder / "ray"), "include_dashboard": False}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.nodes = [self.cluster.add_node(**NODE) for _ in range(2)]

    @property
    def ran(self) -> int:
        """Workers that were given shards since the last order."""
        return len(list(self.control.glob("ran-*")))

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    def say(self, *orders: str) -> None:
        for file in self.control.iterdir():
            file.unlink()
        for order in orders:
            (self.control / order).touch()

    def add(self) -> None:
        """Add a node."""
        self.nodes.append(self.cluster.add_node(**NODE))

    def remove(self) -> None:
        """Remove the first of the nodes, with all of its processes."""
        self.cluster.remove_node(self.nodes.pop(0), allow_graceful=False)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    folder = Path(tempfile.mkdtemp(prefix="pk-ray-", dir="/tmp"))  # sockets have short paths
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv(CONTROL, str(folder / "control"))
        root = str(Path(ray_pool.__file__).parents[2])
        patch.setenv("PYTHONPATH", os.pathsep.join([root, str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]))
        patch.setenv("OMP_NUM_THREADS", "1")
        made = Nodes(folder)
        try:
            ray.init(address=made.address, log_to_driver=False, logging_level="ERROR")
            yield made
        finally:
            ray.shutdown()
            made.cluster.shutdown()
            shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(autouse=True)
def bounded() -> Iterator[None]:
    """No test hangs, and bits are those of one thread."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"still running after {PATIENCE} seconds")

    threads, before = torch.get_num_threads(), signal.signal(signal.SIGALRM, stop)
    torch.set_num_threads(1)
    signal.alarm(PATIENCE)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
    torch.set_num_threads(threads)


@pytest.fixture
def odd(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> Iterator[Started]:
    """Makes the workers misbehave."""
    monkeypatch.setattr(ray_pool, "ShardWorker", OddWorker)
    yield nodes.say
    nodes.say()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ray")
    write_model(folder / "tiny")
    write_texts(folder / "texts.csv", N)
    return folder


@pytest.fixture(scope="module")
def plan(folder: Path) -> ExtractionPlan:
    model, task = load_model(str(folder / "tiny")), load_task(str(folder / "texts.csv"))
    return plan_extraction(model, task, ExtractOptions(**HOW))


@pytest.fixture(scope="module")
def whole(folder: Path, plan: ExtractionPlan) -> Path:
    """The store of one process."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    run_plan(plan, folder / "whole", progress=False)
    torch.set_num_threads(threads)
    assert len(plan.shards) >= 10
    return folder / "whole"


def check_same(path: Path, whole: Path) -> None:
    """File by file, and no other files, so that no shard is there twice; a killed process leaves temporary ones."""
    files = {name: data for name, data in lasting(path).items() if not name.name.startswith(TEMPORARY)}
    assert files == lasting(whole)


@contextmanager
def warned(words: str) -> Iterator[None]:
    """One of the warnings has these words; on a busy machine another worker may be lost too."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        yield
    said = [str(one.message) for one in found]
    assert any(re.search(words, one) for one in said), said


def when(true: Callable[[], bool], then: Callable[[], object]) -> threading.Thread:
    """Do something in the background as soon as something is true; a test that ends sooner waits for it in vain."""

    def wait() -> None:
        until = time.monotonic() + PATIENCE
        while not true() and time.monotonic() < until:
            time.sleep(0.02)
        then()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def records(path: Path) -> int:
    return len(list(path.glob("records/*.json")))


def test_two_workers_make_the_store_and_the_sums_of_one_process(
    nodes: Nodes, odd: Started, folder: Path, plan: ExtractionPlan, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """As the command line runs it; stdout is the path alone, and stderr has nothing of Ray's."""
    job = ["--model", str(folder / "tiny"), "--dataset", str(folder / "texts.csv"), "--quiet"]
    sizes = ["--batch-tokens", "40", "--shard-bytes", "1000", "--stats"]
    where = ["--engine", "ray", "--workers", "1:8", "--out", str(tmp_path / "store")]
    odd("hold")
    when(lambda: nodes.ran == 2, odd)
    assert run(["extract", *job, *sizes, *where]) == 0
    out, err = capfd.readouterr()
    assert out == f"{tmp_path / 'store'}\n"
    assert err == ""
    run_plan(plan, tmp_path / "one", progress=False, stats=True)
    one, other = (
        {k: v for k, v in lasting(p).items() if "statistics" not in k.parts}
        for p in (tmp_path / "one", tmp_path / "store")
    )
    assert one == other
    sums = [
        {f.name: f.read_bytes() for f in (p / "statistics").glob("*.safetensors")}
        for p in (tmp_path / "one", tmp_path / "store")
    ]
    assert sums[0] == sums[1] != {}


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["--address", "127.0.0.1:1"], "no Ray cluster answers at '127.0.0.1:1'"),
        (["--address", "rubbish"], "--address is HOST:PORT, such as 10.0.0.5:6379, or auto; got 'rubbish'"),
        (
            ["--address", "ray://head:10001"],
            "--address is HOST:PORT of a cluster's head, or auto; got 'ray://head:10001'",
        ),
    ],
)
def test_an_address_without_a_cluster_is_told_before_anything_is_loaded(
    options: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["extract", "--model", "no-such-model", "--dataset", "sst2", "--engine", "ray", *options]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"probekit: error: {error}")
    assert len(said.splitlines()) == 1


def test_a_machine_without_room_for_a_worker_says_so_at_once(
    nodes: Nodes, plan: ExtractionPlan, tmp_path: Path
) -> None:
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


def test_a_killed_worker_costs_a_warning(odd: Started, plan: ExtractionPlan, whole: Path, tmp_path: Path) -> None:
    odd("kill")
    with warned(r"^worker \d on .*: its process died; others will do its \d+ shards?$"):
        run_on_ray(plan, tmp_path / "store", TWO, False)
    check_same(tmp_path / "store", whole)


def test_a_worker_whose_device_fails_is_replaced(
    odd: Started, plan: ExtractionPlan, whole: Path, tmp_path: Path
) -> None:
    odd("fail")
    with warned(r"worker \d on .*: RuntimeError: CUDA error: unspecified launch failure; others"):
        run_on_ray(plan, tmp_path / "store", EngineOptions(engine="ray", workers=1), False)
    check_same(tmp_path / "store", whole)


def test_a_removed_node_costs_a_warning(
    nodes: Nodes, odd: Started, plan: ExtractionPlan, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no room for its worker any more, and nobody waits for it."""

    def remove() -> None:
        nodes.remove()
        until = time.monotonic() + PATIENCE
        while all(map(os.path.exists, processes)) and time.monotonic() < until:
            time.sleep(0.02)  # a process notices a second later that its node is gone
        odd()

    odd("hold")
    nodes.add()
    processes: list[str] = []

    def all_wait() -> bool:
        processes[:] = [f"/proc/{file.name.removeprefix('ran-')}" for file in nodes.control.glob("ran-*")]
        return len(processes) == 3 and records(tmp_path / "store") >= HELD

    removed = when(all_wait, remove)
    monkeypatch.setattr(ray_extract, "_PATIENCE", PATIENCE)  # or idle workers would take the shards unasked
    with warned(r"others will do its \d+ shards?$"):
        run_on_ray(plan, tmp_path / "store", EngineOptions(engine="ray", workers=3), False)
    removed.join(PATIENCE)
    check_same(tmp_path / "store", whole)


def test_shards_of_a_slow_worker_are_given_to_another(
    odd: Started, plan: ExtractionPlan, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_extract, "_PATIENCE", 0.5)
    odd("hang")
    run_on_ray(plan, tmp_path / "store", TWO, False)
    check_same(tmp_path / "store", whole)


def test_a_worker_that_is_stuck_is_ended(
    odd: Started, plan: ExtractionPlan, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one worker there is nobody who could take its shards."""
    monkeypatch.setattr(ray_extract, "_STUCK_PATIENCE", 3.0)
    odd("hold")
    when(lambda: records(tmp_path / "store") >= HELD, lambda: odd("hang"))
    with warned(r"no answer for \d+ seconds; others"):
        run_on_ray(plan, tmp_path / "store", EngineOptions(engine="ray", workers=1), False)
    check_same(tmp_path / "store", whole)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_driver_leaves_a_store_that_another_goes_on_with(
    nodes: Nodes, odd: Started, folder: Path, plan: ExtractionPlan, whole: Path, tmp_path: Path, number: int
) -> None:
    odd("hold")
    store = tmp_path / "store"
    job = ["--model", str(folder / "tiny"), "--dataset", str(folder / "texts.csv"), "--quiet", "--out", str(store)]
    sizes = ["--batch-tokens", "40", "--shard-bytes", "1000", "--engine", "ray", "--address", nodes.address]
    driver = subprocess.Popen(
        [sys.executable, "-m", "ray_workers", "extract", *job, *sizes], stderr=subprocess.PIPE, text=True
    )
    when(lambda: records(store) >= HELD, lambda: driver.send_signal(number))
    _, err = driver.communicate(timeout=PATIENCE)
    assert nodes.ran > 0
    there = {file.name: file.stat().st_mtime_ns for file in (store / "records").iterdir()}
    assert HELD <= len(there) < len(plan.shards)
    assert not (store / "manifest.json").exists()
    if number == signal.SIGINT:
        assert driver.returncode == 130
        assert len(err.splitlines()) == 1
    odd()
    run_on_ray(plan, store, TWO, False)
    assert there.items() <= {file.name: file.stat().st_mtime_ns for file in (store / "records").iterdir()}.items()
    check_same(store, whole)


def test_a_node_that_does_not_see_the_store_is_named(
    odd: Started, plan: ExtractionPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told before a model is loaded."""
    odd("elsewhere")
    said = r"^worker 1: node .* cannot see '.*', which the driver has begun; write to a folder that all machines share"
    with warned("more starts? will be tried"), pytest.raises(StorageError, match=said):
        run_on_ray(plan, tmp_path / "store", EngineOptions(engine="ray", workers=1), False)
    assert begin_work(plan, tmp_path / "store") == list(range(len(plan.shards)))
