"""Whether a run shows its progress, and who else is told of it."""

from collections.abc import Callable
from dataclasses import dataclass

from probekit.options.option import option


@dataclass(frozen=True, kw_only=True)
class ProgressOptions:
    """Whether progress is shown."""

    progress: bool | None = option(
        None, "Show progress on stderr: None on a terminal and in a notebook, True always, False never.", flag=None
    )


@dataclass(frozen=True, kw_only=True)
class PartsOptions(ProgressOptions):
    """`ProgressOptions` of runs with several parts, which can tell a function of yours instead of showing a line."""

    on_progress: Callable[[int, int], None] | None = option(
        None, "Called with (done, total) of a part, in place of the line on stderr.", flag=None
    )
    on_part: Callable[[str], None] | None = option(
        None,
        'Called with the name of each part as it begins, such as "fitting probes", in place of the line on stderr.',
        flag=None,
    )
