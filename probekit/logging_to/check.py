"""Whether a tracker is installed; nothing here imports it."""

import importlib.util

from probekit.errors import UsageError
from probekit.options.probe import BY_HEAD, TRACKERS, ProbeOptions


def check_tracker(name: str, options: ProbeOptions | None = None) -> None:
    """Raise a UsageError if the tracker is not installed, or if the options ask for no curve.

    Raises:
        UsageError: unknown, or not installed, with the line that installs it; a curve for each head, or a matrix.
    """
    if name not in TRACKERS:
        raise UsageError(f"unknown tracker {name!a:.60}; take {', '.join(TRACKERS)}")
    if importlib.util.find_spec(name) is None:
        raise UsageError(f"--log-to {name} needs the package {name}, which is not installed: pip install {name}")
    if options is not None and (options.by == BY_HEAD or options.shift_column is not None):
        which = "--by head" if options.by == BY_HEAD else "--shift-column"
        raise UsageError(f"--log-to logs curves by layer, and {which} makes none; leave one of the two out")
