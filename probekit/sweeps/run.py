"""Run a sweep: each model is loaded once for all of its tasks, and every run that ends is kept at once."""

import json
import math
import time
import warnings
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, cast

from probekit.activations.extract import extract_task
from probekit.errors import ProbekitError, ResumeMismatch, StorageError, UsageError, nearest
from probekit.evaluation.results.curves import ProbeCurves
from probekit.evaluation.results.data import EMBEDDING, ProbeData
from probekit.evaluation.train_probes import train_curves
from probekit.machine.progress import shown_parts
from probekit.machine.threads import one_thread
from probekit.machine.versions import versions_of
from probekit.models import load_model
from probekit.models.base import LanguageModel
from probekit.options import CurvesArguments, ExtractArguments, SweepArguments
from probekit.options.check import check_path
from probekit.options.sweep import (
    SweepOptions,
    curves_options_of,
    extract_options_of,
    model_options_of,
    task_options_of,
)
from probekit.options.typed import json_value
from probekit.points import Place, depth_of
from probekit.sweeps.data import SweepData, SweepRow, SweepRun
from probekit.sweeps.files import begin, read_runs, run_file_name, write_run, write_table
from probekit.sweeps.results import SweepResults
from probekit.sweeps.sources import SweepSource, file_digest, model_sources, task_sources
from probekit.tasks import Task, load_task
from probekit.text import counted, kind_of


def row_of(curve: ProbeData) -> SweepRow:
    """The row of a curve."""
    meta, quoted, lead = curve.meta, curve.quoted, curve.meta.get("lead")
    value = None if quoted is None else quoted.value
    place = None if quoted is None else quoted.layer
    low, high = (None if quoted is None else quoted.interval) or (None, None)
    lead_low, lead_high = (lead or {}).get("interval") or (None, None)
    over = None if lead is None else lead["over"]
    return SweepRow(
        label=meta["label"],
        point=meta["point"],
        probe=str(meta["probe"]),
        metric=curve.headline,
        classes=int(meta["n_classes"]),
        n_train=int(meta["n"].get("train", 0)),
        n_test=int(meta["n"].get("test", 0)),
        place="" if place is None else place.place,
        layer=None if place is None else place.layer,
        depth=None if place is None else depth_of(Place(place.point, place.layer), int(meta["n_layers"])),
        C=None if place is None else place.C,
        value=_finite(value),
        low=low,
        high=high,
        baseline="" if lead is None else lead["baseline"],
        baseline_value=None if lead is None or value is None else _finite(value - lead["over"]),
        lead=_finite(over),
        lead_low=lead_low,
        lead_high=lead_high,
        flags=tuple(flags_of(curve)),
    )


def flags_of(curve: ProbeData) -> list[str]:
    """What the audit found, whether the embedding was selected, and fits that did not converge, in a few words each."""
    audit: dict[str, Any] = curve.meta.get("audit") or {}
    leaks = sum((audit.get("leaks") or {}).values())
    conflicts = (audit.get("conflicts") or {}).get("texts", 0)
    train = (audit.get("splits") or {}).get("train", {})
    found = [f"{counted(leaks, 'leak')}{' left out' if audit.get('dropped') else ''}"] if leaks else []
    found += [f"{counted(conflicts, 'contradictory text')}"] if conflicts else []
    found += [f"{train['share']:.0%} one class"] if any("imbalanced" in x for x in audit.get("findings", [])) else []
    found += ["groups span splits"] if audit.get("groups_across_splits") else []
    found += ["splits differ"] if audit.get("differences") else []
    is_embedding = curve.quoted is not None and curve.quoted.layer is curve.layers[0]
    if is_embedding and any(baseline.name == EMBEDDING for baseline in curve.baselines):
        found += ["embedding selected"]  # so it is no baseline of itself, and a lead is over the others
    unconverged = [layer.place for layer in curve.layers if not layer.converged]
    return found + ([f"not converged: {counted(len(unconverged), 'place')}"] if unconverged else [])


def _finite(value: float | None) -> float | None:
    """The number; None for NaN and infinity, which JSON cannot hold."""
    return value if value is not None and math.isfinite(value) else None


SMALL_MODEL = 20_000_000  # weights; below, one thread extracts faster: on a busy machine two threads took 10x as long
TABLE_SECONDS = 2.0  # between two writings of results.csv, which is made of the files of the runs
NOT_SETTINGS = ("device", "batch_tokens", "regression")  # these change no number; `data_digest` holds the last
PACKAGES = ("torch", "numpy", "scikit-learn", "scipy")


@dataclass(frozen=True, eq=False)
class SweepPlan:
    """What a sweep will run.

    Attributes:
        models: in order.
        tasks: in order.
        options: as given.
        folder: where results go; None keeps the table in memory.
        settings: the options that decide the numbers, as JSON.
        asked: the question of the command line; None of a call in Python.
    """

    models: list[SweepSource]
    tasks: list[SweepSource]
    options: SweepArguments
    folder: Path | None
    settings: dict[str, Any]
    asked: dict[str, Any] | None = None


def plan_sweep(models: Any, tasks: Any, options: SweepArguments) -> SweepPlan:
    """What a sweep will run; nothing is loaded or written.

    Raises:
        UsageError: as `sweep`.
        DataError: a folder without any table.
    """
    folder = None if options.out is None else check_path("out", options.out)
    if options.engine is not None and folder is None:
        raise UsageError("engine='ray' needs a folder that all machines see (--out, in Python out=); name one")
    if options.stores and folder is None:
        raise UsageError("stores need a folder (--out, in Python out=); name one, or leave stores out")
    sources = task_sources(tasks)
    _check_regression(options.regression or (), sources)
    return SweepPlan(model_sources(models), sources, options, folder, sweep_settings(options))


def _check_regression(names: Iterable[str], sources: Sequence[SweepSource]) -> None:
    """Refuse names that are not of a task that the sweep reads."""
    given = {source.name: source.given for source in sources}
    for name in names:
        if name not in given:
            hint = nearest(name, given)
            raise UsageError(f"--regression (regression=) names {name!a}, no task of this sweep; {hint}")
        if isinstance(given[name], Task):
            raise UsageError(
                f"--regression (regression=) names {name!a}, which is loaded already; give load_task(..., "
                "regression=True) instead"
            )


def sweep_settings(options: SweepOptions) -> dict[str, Any]:
    """The options that decide the numbers, as JSON."""
    known = {
        one.name: json_value(getattr(options, one.name)) for one in fields(SweepOptions) if one.name not in NOT_SETTINGS
    }
    return json.loads(json.dumps(known, default=lambda value: list(value) if _is_list(value) else repr(value)))


def _is_list(value: Any) -> bool:
    return isinstance(value, Iterable) and not hasattr(value, "get_params")


def data_digest(source: SweepSource, options: SweepOptions) -> str:
    """A digest of a task's data and of how its labels are read; "" where it is known by its name alone."""
    if isinstance(source.given, str | Path):
        numbers = " as numbers" if source.name in [*(options.regression or ())] else ""
        return f"{file_digest(source)}{numbers}"
    try:
        return read_task(source, options).fingerprint()
    except Exception:  # the run will record why
        return ""


RunElsewhere = Callable[
    [SweepPlan, list[tuple[SweepSource, SweepSource]], dict[tuple[str, str], SweepRun]], Generator[SweepRun]
]
"""The runs of some models and tasks, given those that are done, as they end on other machines."""


def run_sweep(plan: SweepPlan, run_elsewhere: RunElsewhere | None = None) -> SweepResults:
    """Carry out a plan, elsewhere if its options name an engine; errors as `sweep`."""
    asked, known = _begun(plan)
    done = {key: run for key, run in known.items() if not run.error}
    todo = {model: [task for task in plan.tasks if (task.name, model.name) not in done] for model in plan.models}
    total, written = sum(map(len, todo.values())), 0.0
    with shown_parts(plan.options, "runs") as options, closing(_runs(plan, todo, done, run_elsewhere)) as runs:
        for ended, run in enumerate(runs, start=1):
            known[run.task, run.model] = run
            if plan.folder is not None:
                write_run(plan.folder, asked, run)
                if time.monotonic() - written > TABLE_SECONDS:
                    write_table(plan.folder, _data(asked, known))
                    written = time.monotonic()
            if plan.options.on_run is not None:
                plan.options.on_run(run)
            if options.on_progress is not None:
                options.on_progress(ended, total)
    data = _data(asked, known)
    if plan.folder is not None:
        write_table(plan.folder, data)
    return SweepResults(data.runs, data.meta)


def _begun(plan: SweepPlan) -> tuple[dict[str, Any], dict[tuple[str, str], SweepRun]]:
    """What the folder of the sweep records, and the runs of earlier calls that ended, by task and model."""
    models = [source.name for source in plan.models]
    if plan.folder is None:
        tasks = {source.name: "" for source in plan.tasks}
        return {"settings": plan.settings, "tasks": tasks, "models": models, "asked": []}, {}
    digests = {source.name: data_digest(source, plan.options) for source in plan.tasks}
    asked = begin(plan.folder, plan.settings, digests, models, plan.asked)
    return asked, read_runs(plan.folder, asked)


def _data(asked: Mapping[str, Any], known: Mapping[tuple[str, str], SweepRun]) -> SweepData:
    """The runs that ended, in the order of models and tasks."""
    tasks, models = [*asked["tasks"]], asked["models"]
    ordered = [known[task, model] for model in models for task in tasks if (task, model) in known]
    meta = {"tasks": tasks, "models": models, **{key: asked[key] for key in ("settings", "asked")}}
    return SweepData(tuple(ordered), {**meta, "versions": versions_of(*PACKAGES)})


def _runs(
    plan: SweepPlan,
    todo: dict[SweepSource, list[SweepSource]],
    done: dict[tuple[str, str], SweepRun],
    run_elsewhere: RunElsewhere | None,
) -> Generator[SweepRun]:
    """Every run that is to be done, as it ends; a model is loaded before its first one."""
    if plan.options.engine is not None:
        assert run_elsewhere is not None
        yield from run_elsewhere(plan, [(source, task) for source, tasks in todo.items() for task in tasks], done)
        return
    for source, tasks in todo.items():
        if not tasks:
            continue
        model, error = loaded_model(source, plan.options)
        if model is None:
            yield from (SweepRun(task.name, source.name, 0.0, error=error) for task in tasks)
            continue
        for task in tasks:
            run = run_task(task, source.name, model, plan)
            check_same_weights(run, fingerprints_of(source.name, done), plan.folder)
            yield run


def fingerprints_of(model: str, done: Mapping[tuple[str, str], SweepRun]) -> set[str]:
    """The fingerprints of a model's weights in the runs that ended well."""
    return {run.model_fingerprint for (_, name), run in done.items() if name == model}


def check_same_weights(run: SweepRun, before: Collection[str], folder: Path | None) -> None:
    """Raise a ResumeMismatch if a run has other weights than those before it."""
    if before and run.model_fingerprint and run.model_fingerprint not in before:
        raise ResumeMismatch(
            f"the weights of {run.model!a} are not those of the runs in {str(folder)!a}; name another folder (--out), "
            "or the model of that sweep"
        )


def loaded_model(source: SweepSource, options: SweepArguments) -> tuple[LanguageModel | None, str]:
    """The model, or why it could not be loaded.

    Raises:
        StorageError: the disk refused, as it would all others.
    """
    if isinstance(source.given, LanguageModel):
        return source.given, ""
    if not isinstance(source.given, str | Path):
        return None, f"expected the name or folder of a model, or one from load_model; got {kind_of(source.given)}"
    try:
        return load_model(source.given, **vars(model_options_of(options)), progress=False), ""
    except StorageError:
        raise
    except Exception as error:
        return None, reason_of(error)


def run_task(task: SweepSource, model_name: str, model: LanguageModel, plan: SweepPlan) -> SweepRun:
    """One task with one model, and the warnings that came; what fails is recorded.

    Raises:
        StorageError: the disk refused, as it would the runs after this one; or a file of the sweep is damaged.
    """
    start, name, folder = time.monotonic(), run_file_name(task.name, model_name), plan.folder
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            curves = _curves(task, model, plan, None if folder is None else folder / "stores" / name)
        except StorageError:
            raise
        except Exception as error:
            return SweepRun(task.name, model_name, _since(start), error=reason_of(error), warnings=_texts(caught))
        rows = tuple(row_of(curve) for curve in curves.values())
        if folder is not None:
            _saved(curves, folder / "results" / name)
    first = next(iter(curves.values()))
    return SweepRun(
        task=task.name,
        model=model_name,
        seconds=_since(start),
        rows=rows,
        warnings=_texts(caught),
        results="" if folder is None else f"results/{name}",
        model_fingerprint=str(first.meta["activations"].get("model_fingerprint", "")),
    )


def _curves(task: SweepSource, model: LanguageModel, plan: SweepPlan, store: Path | None) -> ProbeCurves:
    """Read, extract and train; the store is used where the options keep one."""
    made = read_task(task, plan.options)
    training = curves_options_of(plan.options)
    how = extract_options_of(plan.options)
    if training.of_sequences:
        how = replace(how, position="all")
    out = store if plan.options.stores else None
    with _threads_for(model):
        acts = extract_task(model, made, ExtractArguments(**vars(how), out=out, progress=False))
    given = {name: value for name, value in vars(training).items() if value is not None}
    return cast(ProbeCurves, train_curves(acts, CurvesArguments(**given, progress=False)))


def read_task(source: SweepSource, options: SweepOptions) -> Task:
    """The task of a source, which has labels.

    Raises:
        As `load_task`; UsageError where there are no labels.
    """
    if isinstance(source.given, Task):
        task = source.given
    else:
        task = load_task(source.given, **vars(task_options_of(options, source.name)))
    if not task.target:
        raise UsageError("no labels: no column is named label or target; name it with --label-column")
    return task


def _threads_for(model: LanguageModel) -> AbstractContextManager[Any]:
    """One thread for a small model on the CPU."""
    weights = list(model.parameters())
    is_small = all(weight.device.type == "cpu" for weight in weights) and sum(w.numel() for w in weights) < SMALL_MODEL
    return one_thread() if is_small else nullcontext()


def _saved(curves: ProbeCurves, folder: Path) -> None:
    """Save one curve as `ProbeResults`, several as `ProbeCurves`."""
    only = next(iter(curves.values()))
    (only if len(curves) == 1 else curves).save(folder)


def reason_of(error: Exception) -> str:
    """The error in one line."""
    text = " ".join(str(error).split())
    if isinstance(error, ProbekitError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _texts(caught: Sequence[warnings.WarningMessage]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(" ".join(str(each.message).split()) for each in caught))


def _since(start: float) -> float:
    return round(time.monotonic() - start, 2)
