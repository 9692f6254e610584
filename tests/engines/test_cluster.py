"""What is said of a cluster that cannot be used: before a model is loaded, in one line, and without a cluster here."""

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from probekit.cli.main import run
from probekit.engines.answers import ShardWorker, own_versions
from probekit.engines.cluster import ray_cluster
from probekit.errors import UsageError
from probekit.options import ClusterOptions, SweepArguments

EXTRACT = ["extract", "--model", "no-such-model", "--dataset", "sst2", "--engine", "ray"]


class FakeRay(ModuleType):
    """The module `ray`, whose `init` fails, or takes the signals as the real one does."""

    def __init__(self, fails: Exception | None = None):
        super().__init__("ray")
        self.fails, self.is_on = fails, False
        self.given: dict[str, Any] = {}

    def init(self, **given: Any) -> None:
        signal.signal(signal.SIGTERM, lambda *_: None)
        self.given = given
        if self.fails:
            raise self.fails
        self.is_on = True

    def is_initialized(self) -> bool:
        return self.is_on

    def shutdown(self) -> None:
        self.is_on = False


@pytest.fixture
def head() -> Iterator[str]:
    """An address at which something listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def answers(monkeypatch: pytest.MonkeyPatch, code: int | None) -> None:
    """Let `ray status` end with this code, or never."""

    def status(command: list[str], timeout: float, **_: Any) -> Any:
        if code is None:
            raise subprocess.TimeoutExpired(command, timeout)
        return SimpleNamespace(returncode=code)

    monkeypatch.setattr(subprocess, "run", status)


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
    assert run([*EXTRACT, *options]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"probekit: error: {error}")
    assert len(said.splitlines()) == 1


def test_without_ray_the_package_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert run(EXTRACT) == 2
    assert capsys.readouterr().err == (
        "probekit: error: --engine ray needs Ray; from the checkout: pip install -e '.[ray]'\n"
    )


@pytest.mark.parametrize("code", [1, None])
def test_something_that_is_no_cluster_of_this_version_is_told(
    head: str, code: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", FakeRay())
    answers(monkeypatch, code)
    said = rf"--address: '{head}' is not the head of one, or it has another version of Ray; start it with ray start"
    with pytest.raises(UsageError, match=said), ray_cluster(ClusterOptions(engine="ray", address=head)):
        pass


def test_a_cluster_of_another_version_is_told_in_one_line(head: str, monkeypatch: pytest.MonkeyPatch) -> None:
    other = RuntimeError("Version mismatch: The cluster was started with:\n    Ray: 2.9\n    Python: 3.10")
    monkeypatch.setitem(sys.modules, "ray", FakeRay(other))
    answers(monkeypatch, 0)
    said = rf"^cannot connect to the Ray cluster '{head}': Version mismatch: .* Ray: 2.9 Python: 3.10$"
    with pytest.raises(UsageError, match=said), ray_cluster(ClusterOptions(engine="ray", address=head)):
        pass


def test_signals_are_those_of_the_program_again_and_only_an_own_cluster_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setitem(sys.modules, "ray", fake := FakeRay())
    before = signal.getsignal(signal.SIGTERM)
    with ray_cluster(ClusterOptions(engine="ray")):
        assert signal.getsignal(signal.SIGTERM) is before
        assert fake.given["address"] == "local"
        with ray_cluster(ClusterOptions(engine="ray")):
            pass
        assert fake.is_on
    assert not fake.is_on
    monkeypatch.setitem(sys.modules, "ray", FakeRay(RuntimeError("no")))
    with (
        pytest.raises(UsageError, match=r"^cannot start Ray on this machine: no$"),
        ray_cluster(ClusterOptions(engine="ray")),
    ):
        pass
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_worker_with_other_versions_says_which(tmp_path: Path) -> None:
    (tmp_path / "plan.json").touch()
    answer = ShardWorker().look(str(tmp_path), own_versions() | {"probekit": "0.0", "torch": "9.9"}, "size")
    own = own_versions()
    assert answer["kind"] == "UsageError"
    assert answer["error"].endswith(
        f" has other versions (probekit {own['probekit']} there, 0.0 here, torch {own['torch']} there, 9.9 here); "
        "install the same on all machines"
    )
    assert "node" in ShardWorker().look(str(tmp_path), own, "size")


@pytest.mark.parametrize(("progress", "said"), [(None, "starting Ray on this machine ...\n"), (False, "")])
def test_a_line_is_printed_while_ray_starts(
    progress: bool | None, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[str] = []
    started = SimpleNamespace(
        is_initialized=lambda: False, init=lambda **_: seen.append(capsys.readouterr().err), shutdown=lambda: None
    )
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("probekit.engines.cluster._import_ray", lambda: started)
    with ray_cluster(SweepArguments(engine="ray", progress=progress)):
        assert seen == [said]
