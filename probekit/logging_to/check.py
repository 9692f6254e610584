"""Whether a tracker is installed; nothing here imports it."""

import importlib.util

from probekit.errors import UsageError
from probekit.options.probe import TRACKERS


def check_tracker(name: str) -> None:
    """Raise a UsageError if the tracker is not installed.

    Raises:
        UsageError: unknown, or not installed, with the line that installs it.
    """
    if name not in TRACKERS:
        raise UsageError(f"unknown tracker {name!a:.60}; take {', '.join(TRACKERS)}")
    if importlib.util.find_spec(name) is None:
        raise UsageError(f"--log-to {name} needs the package {name}, which is not installed: pip install {name}")
