"""The options of `sweep`: those of loading, extracting and training that are the same for all of its tasks."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from probekit.options.engine import ClusterOptions, ProgressOptions
from probekit.options.extract import ExtractOptions, OnLong
from probekit.options.kinds import POSITION, Kind, names
from probekit.options.load import DeviceOptions, Via
from probekit.options.option import OUTPUT, READ, Options, like, option
from probekit.options.probe import CurvesArguments, ProbeOptions
from probekit.options.task import OnBadRow, RareClasses, TaskOptions

O = TypeVar("O")  # noqa: E741


@dataclass(frozen=True, kw_only=True)
class SweepOptions(Options, heading=READ):
    """How each model is loaded, each task read, and what is extracted and trained; the same for all of them."""

    points: str | Iterable[str] = like(
        ExtractOptions, "points", "Points to read, with commas between them (see: probekit points).", flag="--point"
    )
    layers: str | int | Iterable[int] = like(
        ProbeOptions, "layers", "Layers to extract and probe: all, 3, 0,4,8 or 2-6."
    )
    probe: Any = like(
        ProbeOptions,
        "probe",
        "Probe, or several with commas, as of train-probe.  [default: logistic; ridge where labels are numbers]",
        takes_parameters=False,
    )
    regression: str | Iterable[str] | None = option(
        None,
        "Tasks whose whole-number labels, such as years, are numbers, not classes.",
        notes="Names of tasks, as the table has them. Labels with fractions are always numbers. It may be given later "
        "for a task that failed.",
        kind=Kind(lambda _, value: names(value) if isinstance(value, str) else [*value], names, "TASKS"),
    )
    position: str | int | None = like(
        ExtractOptions, "position", "Token to read, as of extract.  [default: each task's own]", kind=POSITION
    )
    limit: int | None = like(TaskOptions, "limit")
    quick: bool = like(ProbeOptions, "quick")
    text_column: str | None = like(TaskOptions, "text_column")
    label_column: str | None = like(TaskOptions, "label_column", "Column of the labels.  [default: label or target]")
    group_column: str | None = like(TaskOptions, "group_column")
    on_bad_row: OnBadRow = like(TaskOptions, "on_bad_row")
    rare_classes: RareClasses = like(TaskOptions, "rare_classes")
    max_classes: int = like(TaskOptions, "max_classes")
    keep_blanks: bool = like(TaskOptions, "keep_blanks")
    bos: bool | None = like(ExtractOptions, "bos")
    on_long: OnLong = like(ExtractOptions, "on_long")
    batch_tokens: int | None = like(ExtractOptions, "batch_tokens")
    C: float | Iterable[float] | None = like(ProbeOptions, "C")
    metric: str | None = like(ProbeOptions, "metric")
    folds: int | None = like(ProbeOptions, "folds")
    drop_leaks: bool = like(ProbeOptions, "drop_leaks")
    controls: int | None = like(ProbeOptions, "controls")
    codelength: bool | None = like(ProbeOptions, "codelength")
    intervals: bool = like(ProbeOptions, "intervals")
    baselines: bool | None = like(ProbeOptions, "baselines")
    device: str = like(DeviceOptions, "device")
    dtype: str = like(DeviceOptions, "dtype")
    via: Via | None = like(DeviceOptions, "via")
    seed: int = like(ProbeOptions, "seed")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.regression is None:
            object.__setattr__(self, "regression", [])
        for made in (model_options_of, task_options_of, extract_options_of, curves_options_of):
            made(self)  # each class checks its own


@dataclass(frozen=True, kw_only=True)
class SweepArguments(ProgressOptions, ClusterOptions, SweepOptions, heading=OUTPUT):
    """`SweepOptions`, where results go, and who does the work."""

    out: str | Path | None = option(
        None,
        "Folder of the sweep: the same call resumes it.  [default: runs/sweep-...]",
        notes="In Python None keeps the table in memory, and writes nothing.",
        metavar="DIR",
    )
    stores: bool = option(
        False,
        "Keep the activations of every run too, as stores in the folder.",
        notes="Otherwise they are in memory while their probes are trained. A run that is interrupted is then done "
        "again from its start; with stores its extraction resumes.",
    )
    on_progress: Callable[[int, int], None] | None = option(
        None, "Called with (runs done, runs) after each run of this call, in place of the line on stderr.", flag=None
    )
    on_run: Callable[[Any], None] | None = option(
        None, "Called with the record of each run, a `SweepRun`, as it ends.", flag=None
    )


def shared_options(options: SweepOptions) -> SweepOptions:
    """Those that are the same for all tasks, without where results go and who does the work."""
    return SweepOptions(**_shared(options, SweepOptions))


def model_options_of(options: SweepOptions) -> DeviceOptions:
    """How models are loaded."""
    return DeviceOptions(**_shared(options, DeviceOptions))


def task_options_of(options: SweepOptions, task: str = "") -> TaskOptions:
    """How the task of this name is read; the token is chosen when it is extracted."""
    return TaskOptions(
        **{**_shared(options, TaskOptions), "position": None, "regression": task in [*(options.regression or ())]}
    )


def extract_options_of(options: SweepOptions) -> ExtractOptions:
    """What is extracted; kept in float32."""
    own = _shared(options, ExtractOptions)
    del own["dtype"], own["device"]  # those of the model
    return ExtractOptions(**own)


def curves_options_of(options: SweepOptions) -> CurvesArguments:
    """What is trained: a curve for each point and probe."""
    own = _shared(options, CurvesArguments)
    for name in ("position", "points"):  # everything that was extracted is probed
        own.pop(name, None)
    probe = own.pop("probe")
    several: Sequence[Any] = tuple(probe) if isinstance(probe, list | tuple) else (probe,)
    return CurvesArguments(**own, points="all", probes=several)


def _shared(options: SweepOptions, of: type) -> dict[str, Any]:
    """The values of the fields that the options share with another list."""
    own = {field.name for field in fields(SweepOptions)}
    return {field.name: getattr(options, field.name) for field in fields(of) if field.name in own}
