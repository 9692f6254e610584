"""Independent pieces of work as tasks of a Ray cluster: plain values in, plain values out.

A task whose process is killed is run again, on another machine if need be. An error that Python raised is not: the same
work would raise it again. It comes back as one line.
"""

import secrets
from collections import Counter, deque
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from typing import Any

import torch

from probekit.engines.answers import (
    check_sees,
    check_versions,
    error_answer,
    error_of,
    here,
    one_line,
    own_versions,
)
from probekit.engines.cluster import check_workers_fit, ray_cluster
from probekit.errors import ProbekitError
from probekit.machine.devices import at_most, free_bytes
from probekit.options.engine import ClusterOptions
from probekit.text import counted, printable

Payload = dict[str, Any]
RETRIES = 3  # times that a task is run again when its process was killed
_SECONDS = 1.0  # between looks at the tasks, so that Ctrl-C is noticed
_IN_FLIGHT = 1000  # tasks that Ray knows of at once, unless `workers` says how many run


def run_tasks(
    work: Callable[[Payload], Payload], payloads: Sequence[Payload], options: ClusterOptions, gpus: float = 0.0
) -> Generator[tuple[int, Payload]]:
    """Run `work` for each payload on the cluster; close the iterator to end what still runs.

    Args:
        work: a function of a module. What it raises is its answer, an `error_answer` with the "node" that raised it.
            It may take the memory that its payload names, or its share of what the machine has free.
        payloads: JSON-able, with "sees", a folder and a file in it that every machine must see. Added to each:
            "versions"; "run", a name of this call; "at_once", the most tasks that run at once.
        options: the cluster, and how many tasks run at once.
        gpus: that each task gets where the options do not say.

    Yields:
        The number of each payload and its answer as it ends. A task that was lost `RETRIES` times more has an answer
        with "error" and "lost".

    Raises:
        UsageError: Ray is not installed, the cluster does not answer, or this machine has no room for a task.
    """
    workers: Any = options.workers  # (least, most), as checked
    most = _IN_FLIGHT if workers is None else int(workers[-1])
    added = {"versions": own_versions(), "run": secrets.token_hex(8), "at_once": min(most, len(payloads))}
    needs = {"num_cpus": 1.0, "num_gpus": gpus if options.gpus_per_worker is None else options.gpus_per_worker}
    with ray_cluster(options) as ray:
        check_workers_fit(ray, needs, options)
        # Retries are ours: Ray repeats a task that it killed for its memory without end, whatever `max_retries` says
        task = ray.remote(**needs, max_retries=0)(_answer_of)
        waiting, running, losses = deque(range(len(payloads))), dict[Any, int](), Counter[int]()
        try:
            while waiting or running:
                while waiting and len(running) < most:
                    number = waiting.popleft()
                    running[task.remote(work, {**payloads[number], **added})] = number
                ready, _ = ray.wait(list(running), num_returns=1, timeout=_SECONDS)
                for reference in ready:
                    number = running.pop(reference)
                    answer = _result_of(ray, reference)
                    losses[number] += "lost" in answer
                    if "lost" in answer and losses[number] <= RETRIES:
                        waiting.append(number)
                    else:
                        yield number, answer
        finally:
            for reference in running:
                with suppress(Exception):
                    ray.cancel(reference, force=True)


def _result_of(ray: Any, reference: Any) -> Payload:
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:  # `work` answers with its own errors, so this is before it began
        lines = [line.strip() for line in str(error.cause).splitlines() if line.strip()]
        why = next((line for line in reversed(lines) if "Error: " in line), "".join(lines[:1]))
        return {"error": f"a worker could not begin ({why:.200}); install probekit there", "kind": "UsageError"}
    except ray.exceptions.RayError as error:
        lost = f"its process was lost {counted(RETRIES + 1, 'time')} ({printable(one_line(error)):.200})"
        return {"error": f"{lost}; give it more memory, or read the logs of Ray", "kind": "StorageError", "lost": True}


def as_json(value: Any) -> Any:
    """A NumPy number, or a sequence, as JSON has it: for `json.dumps(default=)`."""
    return value.item() if hasattr(value, "item") else list(value)


def _answer_of(work: Callable[[Payload], Payload], payload: Payload) -> Payload:
    """The task itself, on a worker."""
    try:
        check_versions(payload["versions"])
        check_sees(*payload["sees"])
        with at_most(payload.get("memory") or _share_of_memory(payload["at_once"])):
            return work(payload)
    except Exception as error:
        return error_answer(error) | {"node": here()}


def _share_of_memory(at_once: int) -> int | None:
    """The free memory of this machine, divided among the tasks that its CPUs run at once."""
    import ray

    free, own = free_bytes(torch.device("cpu")), ray.get_runtime_context().get_node_id()
    cpus = next((node["Resources"].get("CPU", 1.0) for node in ray.nodes() if node["NodeID"] == own), 1.0)
    return None if free is None else free // max(1, min(at_once, int(cpus)))


def raise_error(answer: Payload, what: str) -> None:
    """Raise the error of an answer, if it has one, as the same kind of error; `what` says which task."""
    if "error" in answer:
        where = f" on {answer['node']!a}" if "node" in answer else ""
        raise error_of(answer, f"{what}{where}", other=ProbekitError)
