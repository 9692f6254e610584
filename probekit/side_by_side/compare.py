"""Compare runs: their curves on one axis, and the differences of their estimates on the same test rows."""

import itertools
from collections.abc import Sequence
from typing import Any

from probekit.errors import UsageError
from probekit.evaluation.results.coordinates import coordinates
from probekit.evaluation.results.wording import metric_name
from probekit.machine.threads import one_thread
from probekit.machine.versions import versions_of
from probekit.options import CompareOptions
from probekit.options.option import keywords
from probekit.side_by_side.checkpoints import by_step, onset_of
from probekit.side_by_side.data import ComparedRun
from probekit.side_by_side.describe import compared_runs, shared_by_all
from probekit.side_by_side.differences import Differences, corrected, seed_groups
from probekit.side_by_side.results import Comparison
from probekit.side_by_side.rows import run_rows
from probekit.side_by_side.runs import NamedRun, find_runs


@keywords(CompareOptions)
@one_thread()
def compare(runs: Any, options: CompareOptions) -> Comparison:
    """Put runs side by side: models, seeds, points, probes, or checkpoints of one model.

    Each run's layer was selected on its own validation rows. The differences of the estimates are taken on the same
    test rows, with 95% intervals; rows are the same where id, text and label are. Runs without enough rows in common
    are compared as independent, and the comparison says so.

    Args:
        runs: a list of folders of results ("runs/a/results/x", or with a place of its curve "...:resid_pre.5"), stores
            with results, folders of stores, `ProbeResults` and `ProbeCurves`; or a dictionary of them by name.
        options: as keyword arguments.

    Raises:
        UsageError: fewer than two runs, one twice, other labels, classes or metrics; with by="step" a run without one.
        DataError: no results in a folder, or damaged ones.
    """
    found = find_runs(runs)
    _check_comparable(found)
    if options.by == "step":
        found = by_step(found)
    compared = compared_runs(found)
    classes = list(found[0].data.meta["classes"])
    rows = [run_rows(run.data, _place(run, own), classes) for run, own in zip(found, compared, strict=True)]
    differences = Differences(compared, rows, options.seed)
    pairs = options.pairs or ("previous" if options.by == "step" else "first")
    made = [differences.of(*pair) for pair in _pairs(len(found), pairs)]
    notes = [*dict.fromkeys(run.note for run in found if run.note)]
    if options.by == "step":
        compared, more = onset_of(compared, found, options.seed)
        notes += more
    meta = {
        "headline": compared[0].headline,
        "label": found[0].data.meta["label"],
        "n_classes": int(found[0].data.meta["n_classes"]),
        "axis": options.axis,
        "by": options.by,
        "pairs": pairs,
        "seed": options.seed,
        "shared": shared_by_all([run.facts for run in compared]),
        "notes": notes,
        "versions": versions_of("numpy", "scipy"),
    }
    groups = seed_groups(compared) if options.by == "run" else []
    return Comparison(compared, corrected([each for each in made if each is not None]), groups, meta)


def _place(run: NamedRun, compared: ComparedRun) -> Any:
    return None if compared.best is None else run.data.layers[compared.best]


def _pairs(n: int, pairs: str) -> list[tuple[int, int]]:
    """(run, the one that is subtracted)."""
    if pairs == "all":
        return [(j, i) for i, j in itertools.combinations(range(n), 2)]
    return [(j, 0 if pairs == "first" else j - 1) for j in range(1, n)]


def _check_comparable(runs: Sequence[NamedRun]) -> None:
    """Raise a UsageError unless there are two runs or more, all different, of one label and one metric."""
    if len(runs) < 2:
        raise UsageError(f"compare needs two runs or more; got {len(runs)}")
    _check_different(runs)
    first = runs[0]
    for other in runs[1:]:
        names = f"{_name(first)} and {_name(other)}"
        if other.data.headline != first.data.headline:
            metrics = f"{metric_name(first.data.headline)} and {metric_name(other.data.headline)}"
            if bool(first.data.meta["n_classes"]) != bool(other.data.meta["n_classes"]):
                raise UsageError(
                    f"{names} are scored by {metrics}: one predicts classes, the other numbers, and no metric is of "
                    "both; compare runs of one kind"
                )
            raise UsageError(f"{names} are scored by {metrics}; train one of them again with --metric of the other")
        if other.data.meta["label"] != first.data.meta["label"]:
            labels = f"{first.data.meta['label']!a:.60} and {other.data.meta['label']!a:.60}"
            raise UsageError(f"{names} are of other labels, {labels}; compare runs of one label")
        if set(other.data.meta["classes"]) != set(first.data.meta["classes"]):
            raise UsageError(f"{names} have other classes; compare runs of one label")


def _check_different(runs: Sequence[NamedRun]) -> None:
    for one, other in itertools.combinations(runs, 2):
        same_data = one.data is other.data or (
            one.path is not None and other.path is not None and one.path.resolve() == other.path.resolve()
        )
        if same_data and _key(one) == _key(other):
            raise UsageError(f"{_name(one)} is given twice; give each run once, or name two of its places")


def _key(run: NamedRun) -> tuple[Any, ...]:
    """Which curve of a folder, and which place of it."""
    curve = coordinates(run.data.meta).values()
    return (*curve, None if run.place is None else run.place.place)


def _name(run: NamedRun) -> str:
    if run.path is not None:
        return ascii(str(run.path))
    return ascii(str(run.name or run.data.meta["model"]))
