"""Classes whose names look alike: composed and decomposed accents, upper and lower case, spaces."""

import unicodedata
import warnings
from collections.abc import Iterable

from probekit.tasks.base import Task
from probekit.tasks.splitting.same_text import folded
from probekit.text import listed


def look_alikes(names: Iterable[str]) -> list[list[str]]:
    """The classes that differ only in case, Unicode form or spaces, together."""
    alike: dict[str, list[str]] = {}
    for name in names:
        alike.setdefault(_plain_form(name), []).append(name)
    return [together for together in alike.values() if len(together) > 1]


def look_alike_words(names: Iterable[str]) -> str:
    """A phrase that names such classes; "" if there are none."""
    found = look_alikes(names)
    if not found:
        return ""
    shown = listed([" and ".join(map(ascii, together)) for together in found], most=5, between="; ")
    return f"separate classes look alike: {shown}"


def warn_of_look_alikes(task: Task) -> None:
    """Warn if classes of the target look alike."""
    if alike := look_alike_words(task.label_names[task.target]):
        warnings.warn(f"labels {task.target!a}: {alike}; spell them the same to join them", stacklevel=4)


def _plain_form(name: str) -> str:
    """The name without what the eye does not see: NFKC, case folded, white space collapsed, no format characters."""
    return " ".join("".join(c for c in folded(name) if unicodedata.category(c) != "Cf").split())
