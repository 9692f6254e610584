"""`sweep --engine ray`: each task with each model is a task of a Ray cluster, which writes its own results.

The folder says what is done, as without Ray: a run whose file is there is not repeated. A worker writes the results of
its run, and the driver then writes the run's file. A worker that is killed leaves no file, and its run is done again.
"""

import json
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import fields
from functools import lru_cache
from pathlib import Path

from probekit.engines.tasks import Payload, as_json, raise_error, run_tasks
from probekit.errors import UsageError
from probekit.machine.devices import find_device
from probekit.models.base import LanguageModel
from probekit.options.sweep import SweepArguments, SweepOptions
from probekit.sweeps.data import SweepRun
from probekit.sweeps.files import FILE, body_of_run, run_of_body
from probekit.sweeps.run import SweepPlan, check_same_weights, fingerprints_of, loaded_model, run_task
from probekit.sweeps.sources import SweepSource


def runs_on_ray(
    plan: SweepPlan, todo: Sequence[tuple[SweepSource, SweepSource]], done: Mapping[tuple[str, str], SweepRun]
) -> Generator[SweepRun]:
    """Every run (model, task) that is to be done, as it ends on some worker.

    A run whose process was killed again and again has failed, and the others go on.

    Raises:
        UsageError: tasks or models that are objects of this process; Ray is not there.
        ResumeMismatch: other weights than in earlier runs.
        StorageError: a worker that does not see the folder.
    """
    assert plan.folder is not None
    options = _options_text(plan.options)
    payloads = [
        {
            "folder": str(plan.folder.absolute()),
            "sees": [str(plan.folder.absolute()), FILE],
            "stores": plan.options.stores,
            "options": options,
            "model": [model.name, _path_or_name(model)],
            "task": [task.name, _path_or_name(task)],
        }
        for model, task in todo
    ]
    device = plan.options.device
    gpus = float((find_device(device).type if device == "auto" else device).startswith("cuda"))
    with closing(run_tasks(run_task_of_sweep, payloads, plan.options, gpus)) as answers:
        for number, answer in answers:
            model, task = todo[number]
            if answer.get("lost"):
                yield SweepRun(task.name, model.name, 0.0, error=answer["error"])
                continue
            raise_error(answer, f"{task.name} on {model.name}")
            run = run_of_body(answer["run"])
            check_same_weights(run, fingerprints_of(model.name, done), plan.folder)
            yield run


def _path_or_name(source: SweepSource) -> str:
    """The name, or the complete path of what it names.

    Raises:
        UsageError: an object of this process.
    """
    if not isinstance(source.given, str | Path):
        raise UsageError(
            f"engine='ray' (--engine ray) sends names and paths to the workers, and {source.name!a} is an object in "
            "memory; give its name or its folder"
        )
    try:
        return str(Path(source.given).absolute()) if Path(source.given).exists() else str(source.given)
    except OSError:  # a name that is too long for a path
        return str(source.given)


def _options_text(options: SweepArguments) -> str:
    """The options that every run needs, as JSON.

    Raises:
        UsageError: probes that are objects of this process.
    """
    own = {field.name: getattr(options, field.name) for field in fields(SweepOptions)}
    probes = own["probe"] if isinstance(own["probe"], list | tuple) else [own["probe"]]
    for probe in probes:
        if not isinstance(probe, str | None):
            raise UsageError(
                f"engine='ray' (--engine ray) takes probes by name in a sweep; got {type(probe).__name__}: name it"
            )
    return json.dumps(own, default=as_json)


def run_task_of_sweep(payload: Payload) -> Payload:
    """A task: one run, whose results are written when it ends."""
    folder = Path(payload["folder"])
    options = SweepArguments(**json.loads(payload["options"]), out=folder, stores=payload["stores"])
    (model_name, model_given), (task_name, task_given) = payload["model"], payload["task"]
    source, task = SweepSource(model_name, model_given), SweepSource(task_name, task_given)
    model, error = _model(payload["run"], model_name, model_given, payload["options"])
    if model is None:
        return {"run": body_of_run(SweepRun(task.name, source.name, 0.0, error=error))}
    run = run_task(task, source.name, model, SweepPlan([source], [task], options, folder, {}))
    return {"run": json.loads(json.dumps(body_of_run(run), default=as_json))}


@lru_cache(maxsize=1)  # a worker does many tasks with one model; in the next sweep, its folder may hold another
def _model(run: str, name: str, given: str, options: str) -> tuple[LanguageModel | None, str]:
    return loaded_model(SweepSource(name, given), SweepArguments(**json.loads(options)))
