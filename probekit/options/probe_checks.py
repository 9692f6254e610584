"""Checks of the options of `train_probes` that need more than a line."""

from typing import Any

from probekit.errors import UsageError, nearest
from probekit.options.check import check_names
from probekit.text import listed

METRIC_NAMES = ("accuracy", "balanced_accuracy", "auroc", "average_precision", "f1", "r2", "spearman")
LOSSES = ("brier", "ece", "mae")  # metrics of which lower is better, so none selects


def check_metric_name(metric: str | None) -> None:
    """Raise a UsageError unless the metric can select, or is None."""
    if metric in LOSSES:
        raise UsageError(f"lower {metric} is better, and the highest score is selected; take {listed(METRIC_NAMES)}")
    if metric is not None and metric not in METRIC_NAMES:
        raise UsageError(f"unknown metric {metric!a}; {nearest(str(metric), METRIC_NAMES)}")


def check_surface(options: Any) -> None:
    """Check the names of nuisances, and refuse what surface controls do not go together with."""
    if options.nuisance is not None:
        object.__setattr__(options, "nuisance", check_names("nuisance", options.nuisance))
    apart = {"nuisance": ["folds", "by", "aggregate"]}
    apart["shift_column"] = [*apart["nuisance"], "nuisance", "controls", "codelength", "baselines", "log_to"]
    for name in (name for name in apart if getattr(options, name) is not None):
        taken = [one for one in apart[name] if getattr(options, one, None) not in (None, False)]
        if taken or options.of_sequences:
            what = taken[0] if taken else "probe"
            raise UsageError(
                f"--{name.replace('_', '-')} ({name}=) reads one row of each text on the task's splits: without "
                f"{what}={getattr(options, what)!r:.40}; leave one of the two out"
            )
