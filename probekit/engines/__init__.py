"""Spread the shards of an extraction over processes and machines.

An engine gets a plan and the path of its store. It begins the store (`begin_work`), lets its workers do the shards
without a record (`open_work`, `write_shards`), and returns when every record is on disk, or raises. It decides only who
does which shard: what is done is what the store says.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from probekit.errors import UsageError
from probekit.files.remote.path import AnyPath, is_private
from probekit.options.engine import EngineOptions

if TYPE_CHECKING:
    from probekit.activations import ExtractionPlan
    from probekit.models.base import LanguageModel


def run(plan: "ExtractionPlan", path: AnyPath, options: EngineOptions, progress: bool | None = None) -> None:
    """Have every shard of the plan written to the store at `path`, by the engine that the options name.

    Args:
        plan: what is extracted.
        path: the store.
        options: with `devices` or `engine`.
        progress: show progress on stderr: None on a terminal and in a notebook, True always, False never.

    Raises:
        As `extract`; of what happened to workers, the first reason.
    """
    if is_private(path):
        raise UsageError(f"{str(path)!a} is in the memory of this process alone; name a folder or a bucket for workers")
    with _in_host_memory(plan.model):
        if options.engine == "ray":
            from probekit.engines.ray_extract import run_on_ray

            run_on_ray(plan, path, options, progress)
        else:
            from probekit.engines.devices import run_on_devices

            run_on_devices(plan, path, options, progress)


@contextmanager
def _in_host_memory(model: "LanguageModel") -> Iterator[None]:
    """Leave its GPU to the workers, which have models of their own; afterwards the model is where it was before."""
    if model.stays or model.device.type == "cpu":
        yield
        return
    home = model.device
    try:
        model.to("cpu")
        yield
    finally:
        model.to(home)
