"""`extract --devices`: as many processes as devices end in the store of one process, whatever happens to some of them.

Two processes on the CPU play two GPUs. All but one test use forks of this process, which start at once.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from engine_cases import SIZES, N, job, sums
from forked_workers import Crew, Fault
from store_cases import of_shards

from probekit import engines
from probekit.activations import load_activations
from probekit.activations.plan.plan import ExtractionPlan
from probekit.cli.main import run
from probekit.engines import devices
from probekit.engines.devices import find_devices, run_on_devices, visible
from probekit.errors import StorageError, UsageError
from probekit.options import EngineOptions
from probekit.tasks import load_task
from probekit.verbs.extract import extract

Many = Callable[..., Crew]
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def crew(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes the workers forks of this process, with a fault; at the end none is left."""
    made = []

    def many(fault: Fault | None = None) -> Crew:
        made.append(Crew(fault))
        monkeypatch.setattr(devices, "start", made[-1].start)
        return made[-1]

    yield many
    assert all(one.all_ended for one in made), "a process is left"


def on(n: int) -> EngineOptions:
    return EngineOptions(devices=["cpu"] * n)


def numbers(path: Path) -> list[str]:
    return sorted(file.stem for file in (path / "records").glob("*.json"))


def test_the_command_ends_in_the_store_of_one_process_with_its_statistics(
    folder: Path, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two processes of their own, as the user has them."""
    out = tmp_path / "two"
    assert run([*job(folder), "--devices", "cpu,cpu", "--out", str(out), "--stats"]) == 0
    assert of_shards(out) == of_shards(whole)
    assert sums(out) == sums(whole) != {}
    assert capsys.readouterr().out == f"{out}\n"
    assert load_activations(out).n_examples == N


@pytest.mark.parametrize("n", [1, 3])
def test_any_number_of_processes_ends_in_the_same_bits(
    plan: ExtractionPlan, whole: Path, tmp_path: Path, crew: Many, n: int
) -> None:
    made = crew()
    run_on_devices(plan, tmp_path / "store", on(n), False)
    assert of_shards(tmp_path / "store") == of_shards(whole)
    assert len(made.made) == n
    assert len(plan.shards) > 3 * n
    assert len(list((tmp_path / "store" / "shards").iterdir())) == len(plan.shards)


def killed(name: str, number: int) -> None:
    if name.endswith("#1"):
        os.kill(os.getpid(), signal.SIGKILL)


def out_of_memory(name: str, number: int) -> None:
    if name.endswith("#1"):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.\nGPU 0 has ...")


def broken(name: str, number: int) -> None:
    if name.endswith("#1"):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")


def exits(name: str, number: int) -> None:
    if name.endswith("#1"):
        os.write(2, b"noise\nthe last words\n")
        os._exit(7)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (
            killed,
            r"its process was ended by SIGKILL \(by the system, if memory ran out\); others will do its \d+ shards?",
        ),
        (
            out_of_memory,
            r"cpu: out of memory \(CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has ...\); others",
        ),
        (broken, "cpu: RuntimeError: CUDA error: an illegal memory access was encountered; others will"),
        (exits, r"cpu: its process ended with exit code 7 \(the last words\); others will"),
    ],
)
def test_shards_of_a_process_that_fails_are_done_by_the_other(
    plan: ExtractionPlan, whole: Path, tmp_path: Path, crew: Many, fault: Fault, reason: str
) -> None:
    crew(fault)
    with pytest.warns(UserWarning, match=reason) as said:
        run_on_devices(plan, tmp_path / "store", on(2), False)
    assert len(said) == 1
    assert of_shards(tmp_path / "store") == of_shards(whole)


def test_when_all_fail_the_first_reason_is_the_error_and_finished_shards_stay(
    plan: ExtractionPlan, whole: Path, tmp_path: Path, crew: Many
) -> None:
    first = len(plan.shards) // 2

    def later(name: str, number: int) -> None:
        done = len(numbers(tmp_path / "store"))
        if done >= first:
            raise MemoryError

    crew(later)
    with (
        pytest.warns(UserWarning, match="cpu: out of memory; others will do its"),
        pytest.raises(StorageError, match=r"^cpu: out of memory; then 1 other failed; a smaller --batch-tokens"),
    ):
        run_on_devices(plan, tmp_path / "store", on(2), False)
    done = numbers(tmp_path / "store")
    assert first <= len(done) < len(plan.shards)
    recomputed: list[int] = []
    crew(lambda name, number: (tmp_path / f"again{number}").write_text("") and None)
    run_on_devices(plan, tmp_path / "store", on(2), False)
    recomputed = sorted(int(file.name.removeprefix("again")) for file in tmp_path.glob("again*"))
    assert recomputed == sorted(set(range(len(plan.shards))) - {int(number) for number in done})
    assert of_shards(tmp_path / "store") == of_shards(whole)


def test_an_interrupt_ends_all_processes_and_the_next_run_resumes(
    folder: Path, plan: ExtractionPlan, whole: Path, tmp_path: Path, crew: Many, capsys: pytest.CaptureFixture[str]
) -> None:
    """One process is in a call that does not come back; the other has finished some shards."""
    store = tmp_path / "store"

    def fault(name: str, number: int) -> None:
        if name.endswith("#1"):
            time.sleep(60)
        elif len(numbers(store)) >= 3:
            os.kill(driver, signal.SIGTERM)
            time.sleep(60)

    driver, made = os.getpid(), crew(fault)
    command = [*job(folder), "--devices", "cpu,cpu", "--out", str(store)]
    assert run([*command, "--quiet"]) == 143
    assert made.all_ended
    done = len(numbers(store))
    assert 3 <= done < len(plan.shards)
    assert f" of {N} texts in " in capsys.readouterr().err
    crew()
    assert run([*command, "--quiet"]) == 0
    assert of_shards(store) == of_shards(whole)


def test_processes_end_when_their_driver_is_killed(plan: ExtractionPlan, tmp_path: Path, crew: Many) -> None:
    pids = tmp_path / "pids"

    def fault(name: str, number: int) -> None:
        with pids.open("a") as file:
            file.write(f"{os.getpid()}\n")
        time.sleep(60)

    driver = os.fork()
    if driver == 0:
        crew(fault)
        run_on_devices(plan, tmp_path / "store", on(2), False)
        os._exit(0)
    until = time.monotonic() + 60
    while time.monotonic() < until and (not pids.exists() or len(pids.read_text().split()) < 2):
        time.sleep(0.01)
    os.kill(driver, signal.SIGKILL)
    os.waitpid(driver, 0)
    for pid in pids.read_text().split():
        while _runs(int(pid)):
            assert time.monotonic() < until, "a process outlived its driver"
            time.sleep(0.01)


def _runs(pid: int) -> bool:
    """A process that nobody waits for stays as a zombie where no init reaps it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("fails", [False, True])
def test_the_model_of_the_caller_leaves_its_gpu_to_the_workers(monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    moves: list[str] = []
    home = torch.device("cuda:1")
    model = SimpleNamespace(stays=False, device=home, to=lambda device: moves.append(str(device)))

    def run_here(*_: object) -> None:
        moves.append("run")
        if fails:
            raise StorageError("full")

    monkeypatch.setattr(devices, "run_on_devices", run_here)
    with pytest.raises(StorageError) if fails else nullcontext():
        engines.run(SimpleNamespace(model=model), Path("store"), EngineOptions(devices=[0, 1]))  # type: ignore[arg-type]
    assert moves == ["cpu", "run", "cuda:1"]


def test_devices_are_of_one_type_and_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert find_devices(["auto"]) == ["cpu"]
    with pytest.raises(UsageError, match="device 'cuda:0' cannot be used here"):
        find_devices(["cuda:0"])
    assert find_devices(["cpu", "cpu"]) == ["cpu", "cpu"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert find_devices(["auto"]) == ["cuda:0", "cuda:1"]
    assert find_devices(["cuda:1", "cuda:1"]) == ["cuda:1", "cuda:1"]
    for names, message in [
        (["cuda:0", "cpu"], "of one type, as a store has one; got cpu, cuda"),
        (["cuda:2"], "'cuda:2' .--devices. is not there: 2 GPUs here, counted from 0"),
        (["gpu"], "device 'gpu' cannot be used here .no such type of device."),
    ]:
        with pytest.raises(UsageError, match=message):
            find_devices(names)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--device", "cpu"], "device (--device) and devices (--devices)"),
        (["--device-map", "auto"], "(--device-map) and devices (--devices)"),
        (["--stats-only"], "one process adds up; side by side it is --stats-only --part 1/4"),
        (["--part", "1/2"], "(--devices) exclude each other: each says where the work runs"),
    ],
)
def test_options_that_several_devices_exclude(
    folder: Path, more: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*job(folder), "--devices", "cpu,cpu", *more]) == 2
    assert message in capsys.readouterr().err


def test_a_python_call_takes_devices_too_and_needs_a_store(
    folder: Path, plan: ExtractionPlan, whole: Path, tmp_path: Path, crew: Many
) -> None:
    crew()
    how: dict[str, Any] = {**SIZES, "devices": ["cpu", "cpu"], "progress": False}
    extract(plan.model, load_task(str(folder / "texts.csv")), out=tmp_path / "store", **how)
    assert of_shards(tmp_path / "store") == of_shards(whole)
    with pytest.raises(UsageError, match="give out=PATH"):
        extract(plan.model, ["a text"], **how)
    made_here = type(plan.model)(plan.model.cfg).init_weights(0)
    with pytest.raises(UsageError, match="was not loaded from a folder or the Hub"):
        extract(made_here, [[1, 2, 3]], out=tmp_path / "other", **how)


def test_a_process_sees_its_gpu_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [visible(i, None) for i in range(2)] == ["0", "1"]
    assert [visible(i, "4, GPU-8e,6") for i in range(3)] == ["4", "GPU-8e", "6"]
    begun: dict[str, Any] = {}
    monkeypatch.setattr(subprocess, "Popen", lambda command, **how: begun.update(how, command=command))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6")
    devices.start("cuda:2", tmp_path, "size", 3)
    assert begun["command"][-3:] == [str(tmp_path), "cuda", "size"]
    assert begun["env"]["CUDA_VISIBLE_DEVICES"] == "6"
    assert begun["env"]["OMP_NUM_THREADS"] == "3"
    assert begun["start_new_session"]


def test_processes_share_the_threads_and_refuse_a_model_that_is_spread(
    plan: ExtractionPlan, tmp_path: Path, crew: Many, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = crew()
    monkeypatch.setattr(torch, "get_num_threads", lambda: 5)
    run_on_devices(plan, tmp_path / "store", on(2), False)
    assert made.threads == [2, 2]
    monkeypatch.setattr(type(plan.model), "stays", True)
    with pytest.raises(UsageError, match="was loaded with device_map or quantize, and stays where it is"):
        run_on_devices(plan, tmp_path / "other", on(2), False)
    assert not (tmp_path / "other").exists()
