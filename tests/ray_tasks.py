"""Tasks of a Ray cluster that are killed, or wait for it; orders are files next to the store or sweep."""

import os
import signal
import time
from pathlib import Path
from typing import Any

from probekit.engines.ray_probes import fit_place_task
from probekit.engines.ray_sweep import run_task_of_sweep


def fit_or_die(payload: dict[str, Any]) -> dict[str, Any]:
    """As `fit_place_task`, once the orders are carried out."""
    carry_out(Path(payload["store"]).parent, ".".join(map(str, payload["place"])))
    return fit_place_task(payload)


def run_or_die(payload: dict[str, Any]) -> dict[str, Any]:
    """As `run_task_of_sweep`, once the orders are carried out."""
    carry_out(Path(payload["folder"]).parent, payload["task"][0])
    return run_task_of_sweep(payload)


def carry_out(folder: Path, name: str) -> None:
    """Die of `always-NAME`, which gets a line; of `once-NAME`, which is then gone; with `wait-NAME` wait once for the
    end of the node."""
    always, once, wait = (folder / f"{order}-{name}" for order in ("always", "once", "wait"))
    if always.exists():
        with always.open("a") as file:
            file.write("died\n")
        os.kill(os.getpid(), signal.SIGKILL)
    if once.exists():
        once.unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    if wait.exists():
        import ray

        wait.unlink()
        (folder / "node").write_text(ray.get_runtime_context().get_node_id())
        time.sleep(60)
