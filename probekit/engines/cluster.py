"""A connection to a Ray cluster, or a cluster on this machine that lives as long as it is used.

Ray is imported here and in the modules that run on it, and only when it is asked for.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING, Any

from probekit.engines.answers import one_line
from probekit.errors import UsageError

if TYPE_CHECKING:
    from probekit.options.engine import ClusterOptions

OBJECT_STORE_BYTES = 100 << 20  # Ray would reserve 30% of the memory; results are numbers, and never tensors
_CONNECT_SECONDS = 5.0
_ANSWER_SECONDS = 60.0  # `ray status` takes about 2 s where there is a cluster; ray.init tries for 5 minutes where not
_START = "start it with ray start --head, or leave --address out to run on this machine"


@contextmanager
def ray_cluster(options: "ClusterOptions") -> Iterator[Any]:
    """The module `ray`, connected; within the context nothing is printed to stdout.

    The cluster is, in this order: the one that this process is connected to already; that of `address`; that of the
    environment variable RAY_ADDRESS, as `ray job submit` sets it; a new one on this machine. Only a connection, or a
    cluster, that was made here is ended.

    Raises:
        UsageError: Ray is not installed, or the cluster does not answer.
    """
    with _environment(RAY_USAGE_STATS_ENABLED="0"):  # a cluster that is started here reports to nobody
        ray = _import_ray()
        if ray.is_initialized():
            with _silent_stdout():
                yield ray
            return
        address = options.address or os.environ.get("RAY_ADDRESS")
        if address:
            _check_answers(address)
        with own_signals():  # ray.init puts a handler of SIGTERM in place of the program's own
            if getattr(options, "progress", None) is not False:
                where = f"connecting to the Ray cluster {address!a}" if address else "starting Ray on this machine"
                print(f"{where} ...", file=sys.stderr, flush=True)
            _connect(ray, address)
    try:
        with _silent_stdout():
            yield ray
    finally:
        with own_signals():
            ray.shutdown()


def check_cluster(options: "ClusterOptions") -> None:
    """Raise a UsageError if Ray is not installed or nothing listens at the address; before a model is loaded."""
    _import_ray()
    if options.address:
        _check_address(options.address)


def check_workers_fit(ray: Any, needs: Mapping[str, float], options: "ClusterOptions") -> None:
    """Say that no node has room for a worker; a cluster of its own, which cannot grow, is not waited for.

    Args:
        ray: the module, connected.
        needs: what a worker gets, as Ray's `num_cpus` and `num_gpus`.
        options: the cluster.

    Raises:
        UsageError: this machine has no room.
    """
    if room_of(ray, needs):
        return
    gpus = f" and {needs['num_gpus']:g} GPU" if needs["num_gpus"] else ""
    cpu, gpu = (sum(node.get(name, 0.0) for node in resources_of(ray)) for name in ("CPU", "GPU"))
    lacking = (
        f"no node has room for a worker, which needs {needs['num_cpus']:g} CPU{gpus}; the nodes have {cpu:g} CPU and "
        f"{gpu:g} GPU in all"
    )
    if not (options.address or os.environ.get("RAY_ADDRESS")):
        raise UsageError(f"{lacking}; give fewer --gpus-per-worker, or the --address of a cluster")
    warnings.warn(f"{lacking}; waiting for one that joins", stacklevel=2)


def room_of(ray: Any, needs: Mapping[str, float]) -> int:
    """How many workers with these needs the nodes of the cluster have room for, if nothing else runs there."""
    return sum(workers_that_fit(node, needs) for node in resources_of(ray))


def resources_of(ray: Any) -> list[Mapping[str, float]]:
    """What each node of the cluster has."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def workers_that_fit(resources: Mapping[str, float], needs: Mapping[str, float]) -> int:
    """How many workers with these needs a node with these resources holds."""
    of_each = {"num_cpus": "CPU", "num_gpus": "GPU"}
    return int(min(resources.get(of_each[name], 0.0) / n + 1e-6 for name, n in needs.items() if n))


def _import_ray() -> Any:
    try:
        import ray
        from ray import init  # noqa: F401  (a folder that is named ray can be imported, too)
    except ImportError:
        raise UsageError("--engine ray needs Ray; from the checkout: pip install -e '.[ray]'") from None
    return ray


def _connect(ray: Any, address: str | None) -> None:
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    local = {"include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}
    try:
        ray.init(address=address or "local", **quiet, **({} if address else local))
    except (RuntimeError, ConnectionError, ValueError, OSError) as error:  # RuntimeError: other versions there
        what = f"connect to the Ray cluster {address!a}" if address else "start Ray on this machine"
        raise UsageError(f"cannot {what}: {one_line(error)}") from None


def _check_answers(address: str) -> None:
    """Raise a UsageError, within a minute, unless a Ray cluster answers at the address."""
    _check_address(address)
    command = [sys.executable, "-m", "ray.scripts.scripts", "status", "--address", address]
    try:
        asked = subprocess.run(command, capture_output=True, timeout=_ANSWER_SECONDS, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        asked = None
    if asked is None or asked.returncode:
        found = "no Ray cluster runs on this machine" if address == "auto" else f"{address!a} is not the head of one"
        raise UsageError(f"--address: {found}, or it has another version of Ray; {_START}")


def _check_address(address: str) -> None:
    """Raise a UsageError unless it is an address at which something listens."""
    if "://" in address:
        raise UsageError(
            f"--address is HOST:PORT of a cluster's head, or auto; got {address!a} (run the command on a machine of "
            "the cluster, or with ray job submit)"
        )
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise UsageError(f"--address is HOST:PORT, such as 10.0.0.5:6379, or auto; got {address!a}")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
    except (OSError, OverflowError, UnicodeError) as error:
        raise UsageError(f"no Ray cluster answers at {address!a} ({one_line(error)}); {_START}") from None


@contextmanager
def _silent_stdout() -> Iterator[None]:
    """Drop what Ray's threads print: when a node dies, the last lines of its log, whatever `log_to_driver` says."""
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):  # noqa: PTH123  (a device, and no path)
        yield


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    """Set environment variables that are not set, for as long as this lasts."""
    added = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


@contextmanager
def own_signals() -> Iterator[None]:
    """Put the handlers of this process back, whatever happens to them in between."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:  # None: it was not set by Python
                signal.signal(number, handler)
