"""Train probes for many tasks on many models, in this process or on a Ray cluster."""

from typing import Any

from probekit.engines.ray_sweep import runs_on_ray
from probekit.options import SweepArguments
from probekit.options.option import keywords
from probekit.sweeps.results import SweepResults
from probekit.sweeps.run import plan_sweep, run_sweep


@keywords(SweepArguments)
def sweep(models: Any, tasks: Any, options: SweepArguments) -> SweepResults:
    """Train probes for many tasks on many models: one row for each task, model, point and probe.

    A run is one task with one model. One that fails has its reason in the table, and the others are done. With `out`,
    each run that ends is written at once, and the same call resumes a sweep that was stopped, by whatever; runs that
    failed are tried again. More tasks and models can be added to a sweep; other options cannot.

    Args:
        models: names or folders as `load_model` takes them, with commas between them or in a list; or loaded models.
        tasks: what `load_task` takes, with commas between names or in a list; a folder of many tables is a task for
            each table. Or a dict name -> one of these.
        options: as keyword arguments.

    Raises:
        UsageError: no task or no model; options that contradict one another.
        StorageError: the folder holds something else; the disk refused.
        ResumeMismatch: the folder holds a sweep with other settings, or of data that changed since.
    """
    return run_sweep(plan_sweep(models, tasks, options), runs_on_ray)
