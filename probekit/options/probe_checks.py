"""Checks of the options of `train_probes`; each takes the options, or one of them."""

import os
from collections.abc import Iterable, Mapping
from typing import Any

from probekit.errors import UsageError, nearest
from probekit.options.check import check_names, is_whole
from probekit.text import listed

DATA_FILES = (".csv", ".tsv", ".jsonl", ".parquet")
LEAST_FOLDS = 3  # one tests, one chooses, the rest are fitted
METRIC_NAMES = ("accuracy", "balanced_accuracy", "auroc", "average_precision", "f1", "r2", "spearman")
LOSSES = ("brier", "ece", "mae")  # metrics of which lower is better, so none selects


def are_labels(given: Any) -> bool:
    """Whether `labels` holds labels by id, rather than names of label sets."""
    if isinstance(given, str):
        return given.lower().endswith(DATA_FILES)
    if isinstance(given, os.PathLike) or hasattr(given, "items") or hasattr(given, "column_names"):
        return True  # a dict, a Series, a DataFrame, a Dataset
    return isinstance(given, list | tuple) and bool(given) and isinstance(given[0], Mapping | tuple)


def refuse_with_by(options: Any, names: Iterable[str]) -> None:
    """Refuse what a curve for each position does not do."""
    for name in names:
        given = getattr(options, name)
        if given in (None, False):
            continue
        is_one = isinstance(given, tuple) and len(given) == 1  # labels=["answer"]
        what = f"; give {name[:-1]}={given[0]!r:.40}" if is_one else "; leave one of the two out"
        raise UsageError(
            f"by={options.by!r} (--by) makes curves of one point and one label set on the task's splits, one token "
            f"at a time: without {name}={given!r:.40}{what}"
        )


def check_metric_name(metric: str | None) -> None:
    """Refuse a metric that is unknown, or that cannot select."""
    if metric in LOSSES:
        raise UsageError(f"lower {metric} is better, and the highest score is selected; take {listed(METRIC_NAMES)}")
    if metric is not None and metric not in METRIC_NAMES:
        raise UsageError(f"unknown metric {metric!a}; {nearest(str(metric), METRIC_NAMES)}")


def check_surface(options: Any) -> None:
    """Check the names of nuisances, and refuse what surface controls do not go together with."""
    if options.nuisance is not None:
        object.__setattr__(options, "nuisance", check_names("nuisance", options.nuisance))
    excluded = {"nuisance": ["folds", "by", "aggregate"]}
    excluded["shift_column"] = [*excluded["nuisance"], "nuisance", "controls", "codelength", "baselines", "log_to"]
    for name in (name for name in excluded if getattr(options, name) is not None):
        taken = [one for one in excluded[name] if getattr(options, one, None) not in (None, False)]
        if taken or options.of_sequences:
            what = taken[0] if taken else "probe"
            raise UsageError(
                f"--{name.replace('_', '-')} ({name}=) reads one row of each text on the task's splits: without "
                f"{what}={getattr(options, what)!r:.40}; leave one of the two out"
            )


def several_names(what: str, given: Any) -> tuple[str, ...]:
    """Names in their order, each once."""
    names = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Iterable) else ()
    if not names or not all(isinstance(name, str) for name in names):
        raise UsageError(f'{what} takes a list of names, or "all"; got {given!a}')
    return tuple(dict.fromkeys(names))


def checked_folds(folds: int, drop_leaks: bool) -> int:
    """The number of folds as an int; refuses too few, and leaks dropped on top."""
    if not is_whole(folds) or folds < LEAST_FOLDS:
        raise UsageError(
            f"nested folds must be {LEAST_FOLDS} or more (one to test, one to choose, the rest to fit); got {folds!a}"
        )
    if drop_leaks:
        raise UsageError(
            "drop_leaks (--drop-leaks) is for splits: folds keep repeated and nearly repeated texts together, so "
            "nothing leaks; leave it out"
        )
    return int(folds)
