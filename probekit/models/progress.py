"""What is shown of a training: a line before it, one when it goes on, and on a terminal a bar with the time left."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

COLUMNS, ROWS = 80, 24  # of a terminal that does not say how large it is


@contextmanager
def shown(what: str, line: str, progress: bool | None = None) -> Iterator[Callable[[int, int], None] | None]:
    """Show a training on stderr.

    Args:
        what: stands before the bar.
        line: is printed first.
        progress: None shows the bar on a terminal only; False shows nothing.

    Yields:
        what is to be called with (steps done, steps), before the first step as well; None if nothing is shown.
    """
    if progress is False:
        yield None
        return
    from tqdm import tqdm

    say(line)
    disable = None if progress is None else not progress
    bars: list[Any] = []

    def show(done: int, total: int) -> None:
        if not bars:
            if done:
                say(f"going on from step {done:,} of {total:,}")
            looks = {"desc": what, "unit": " steps", "ncols": _columns(), "nrows": ROWS}
            bars.append(tqdm(total=total, initial=done, disable=disable, **looks))
        bars[0].update(done - bars[0].n)

    try:
        yield show
    finally:
        for bar in bars:
            bar.close()


def say(line: str) -> None:
    """Print a line to stderr, at once."""
    print(line, file=sys.stderr, flush=True)


def _columns() -> int:
    """How wide the bar may be; a terminal of no width, as some programs make it, would show nothing."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or COLUMNS
    except (OSError, ValueError, AttributeError):
        return COLUMNS
