"""Probes in evaluations of Inspect (https://inspect.aisi.org.uk): a scorer, a model that stops at an alarm, a hook.

Inspect finds this room by its entry point, so that `--model probekit/NAME` and `--scorer probekit/probe_scorer` work
without an import. What computes is imported when the first sample comes (`samples`).
"""

from probekit.errors import UsageError

try:
    import inspect_ai as _  # noqa: F401
except ImportError:
    raise UsageError(
        "probekit.inspect needs Inspect, which cannot be imported: pip install '.[inspect]' in the checkout"
    ) from None

from probekit.inspect.hook import StopAtAlarm
from probekit.inspect.model import ProbekitAPI
from probekit.inspect.scorer import probe_scorer

__all__ = ["ProbekitAPI", "StopAtAlarm", "probe_scorer"]
