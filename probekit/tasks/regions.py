"""Named parts of texts: the contents of a chat's messages."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from probekit.errors import DataError


class Region(NamedTuple):
    """The characters [start, end) of a text, and the role of the message whose content they are."""

    name: str
    start: int
    end: int


def check_regions(regions: Sequence[Sequence[Region]], inputs: Sequence[Any], ids: Sequence[Any]) -> None:
    """Check that each region lies in its text, and that those of a text follow one another.

    Raises:
        DataError: the first that does not.
    """
    for row, (own, text) in enumerate(zip(regions, inputs, strict=True)):
        last = 0
        for name, start, end in own:
            if not isinstance(text, str) or not last <= start <= end <= len(text):
                raise DataError(
                    f"example {ids[row]!a}: the region {name!a} [{start}, {end}) is not in the text of {len(text)} "
                    "characters after the one before it; give regions in order, without overlap"
                )
            last = end
