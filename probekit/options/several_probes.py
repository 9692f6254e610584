"""Several probes in one call: which may be trained together."""

from collections.abc import Iterable, Sequence
from typing import Any

from probekit.errors import UsageError
from probekit.options.curve import SEQUENCE_NAMES, check_probe_name


def check_each_probe(several: Sequence[Any], aggregate: str | None, by: str | None) -> None:
    """Refuse several probes that read different rows, or a curve of each with a curve at each position."""
    if len({is_of_sequences(probe) for probe in several}) > 1 and aggregate is None:
        raise UsageError(
            "a probe over a sequence takes all tokens of a text, and the others one row; train them in two calls"
        )
    if by is not None and len(several) > 1:
        raise UsageError(f"--by (by=) takes one probe, got {len(several)}; train the others in calls of their own")


def is_of_sequences(probe: Any) -> bool:
    """Whether a probe, or the probe of a name, takes all tokens of a text."""
    name = probe.get("name") if isinstance(probe, dict) else probe
    return name in SEQUENCE_NAMES if isinstance(name, str) else getattr(name, "of_sequences", False)


def several_probes(given: Any) -> tuple[Any, ...]:
    """Probes in their order, each name once; names are checked."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise UsageError(f"probes= takes a list, such as ['logistic', 'mean-diff']; got {given!a:.80}")
    probes: list[Any] = []
    for probe in given:
        check_probe_name(probe)
        if not isinstance(probe, str) or probe not in probes:
            probes.append(probe)
    if not probes:
        raise UsageError("the list of probes is empty; name one or more")
    return tuple(probes)
