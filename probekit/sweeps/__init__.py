"""Many tasks, models, points and probes in one resumable call, with one table."""

from probekit.sweeps.data import SweepRow, SweepRun
from probekit.sweeps.results import SweepResults
from probekit.sweeps.run import sweep

__all__ = ["SweepResults", "SweepRow", "SweepRun", "sweep"]
