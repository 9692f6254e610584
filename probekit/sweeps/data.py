"""The results of a sweep as data: a run for each task and model, and in it a row for each curve."""

from dataclasses import dataclass, field
from typing import Annotated, Any

from probekit.evaluation.results.meta import Headline, Layer, Penalty
from probekit.files.records import Count, Must, Share


@dataclass(frozen=True)
class SweepRow:
    """One curve in one line.

    Attributes:
        label: the label set.
        point: short name.
        probe: its name.
        metric: the headline, which `value` is of.
        classes: how many; 0 for a regression.
        n_train: rows that were fitted.
        n_test: rows that tested.
        place: the best place, selected on validation; "" where none was selected, and with nested folds.
        layer: its layer; None for a place without one.
        depth: layer / (layers of the model), 1 for the output of the last block; None without a layer.
        C: of the selected probe.
        value: the headline on test of the selected place; None where none was selected.
        low: lower end of its 95% interval.
        high: upper end.
        baseline: name of the best baseline.
        baseline_value: its headline on test.
        lead: `value` minus `baseline_value`.
        lead_low: lower end of the 95% interval of the lead, paired on the test rows.
        lead_high: upper end.
        flags: what the audit found, whether the embedding was selected, and fits that did not converge, in a few words
            each.
    """

    label: str
    point: str
    probe: str
    metric: Headline
    classes: Count
    n_train: Count
    n_test: Count
    place: str
    layer: Layer | None
    depth: Share | None
    C: Penalty | None
    value: float | None
    low: float | None
    high: float | None
    baseline: str
    baseline_value: float | None
    lead: float | None
    lead_low: float | None
    lead_high: float | None
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class SweepRun:
    """One task with one model.

    Attributes:
        task: its name in the sweep.
        model: its name in the sweep.
        seconds: for reading, extracting and training; the model's loading is not included.
        rows: one for each point and probe; none if the run failed.
        error: why it failed, in one line; "" if it did not.
        warnings: what was warned of, each once.
        results: the folder of its results, relative to the sweep's; "" where nothing is written.
        model_fingerprint: of the model's weights; "" if the run failed.
    """

    task: str
    model: str
    seconds: Annotated[float, Must("0 or more", lambda seconds: seconds >= 0)]
    rows: tuple[SweepRow, ...] = ()
    error: str = ""
    warnings: tuple[str, ...] = ()
    results: str = ""
    model_fingerprint: str = ""


@dataclass(frozen=True)
class SweepData:
    """A sweep: its runs in the order of models and tasks, and what was asked.

    Attributes:
        runs: those that ended.
        meta: JSON-able: "tasks", "models" (names in order), "settings", "versions" and "asked" (the questions of
            the command line, one for each call that differed).
    """

    runs: tuple[SweepRun, ...]
    meta: dict[str, Any] = field(default_factory=dict)

    @property
    def failed(self) -> list[SweepRun]:
        """The runs that failed."""
        return [run for run in self.runs if run.error]
