"""The progress bar of every long run: on stderr, and by default on a terminal only."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

COLUMNS, ROWS = 80, 24  # of a terminal that does not say how large it is


class Progress:
    """A bar that counts up to a total, with the time left."""

    def __init__(self, bar: Any):
        self._bar = bar

    def advance(self, n: int = 1, note: str = "") -> None:
        """Count `n` more as done; `note` is shown after the bar."""
        if note:
            self._bar.set_postfix_str(note, refresh=False)
        self._bar.update(n)

    def set(self, done: int, total: int) -> None:
        """Show `done` of `total`; what was done before the first call is not counted in the rate."""
        if self._bar.total is None:
            self._bar.total, self._bar.initial, self._bar.n = total, done, done
            self._bar.refresh()
        self._bar.update(done - self._bar.n)


@contextmanager
def progress_bar(what: str, unit: str, total: int | None = None, show: bool | None = None) -> Iterator[Progress]:
    """A progress bar on stderr.

    Args:
        what: the word before the bar.
        unit: what is counted, such as "texts"; "B" is shown as kB, MB and so on.
        total: how many there are; None leaves it to `Progress.set`.
        show: None shows the bar on a terminal only.
    """
    from tqdm import tqdm

    hidden = None if show is None else not show
    scale = unit == "B"
    label = unit if scale else f" {unit}"
    with tqdm(
        total=total, desc=what, unit=label, unit_scale=scale, disable=hidden, ncols=_columns(), nrows=ROWS
    ) as bar:
        yield Progress(bar)


def _columns() -> int:
    """Columns of the bar; a terminal of width 0, as some programs make it, would show nothing."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or COLUMNS
    except (OSError, ValueError, AttributeError):
        return COLUMNS
