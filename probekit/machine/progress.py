"""Progress of every long run, as a bar or as one line on stderr: on a terminal and in a notebook, unless requested."""

import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

COLUMNS, ROWS = 80, 24  # of a terminal that does not say how large it is
SELDOM = 10.0  # seconds between lines on a terminal that cannot write over one


def is_shown(show: bool | None) -> bool:
    """What `progress` means everywhere: None shows it on a terminal and in a notebook, True always, False never."""
    return sys.stderr.isatty() or in_notebook() if show is None else show


def in_notebook() -> bool:
    """Whether a notebook's kernel runs this program."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and "IPKernelApp" in shell.config


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
        show: as `is_shown` takes it.
    """
    scale = unit == "B"
    label = unit if scale else f" {unit}"
    size = {} if in_notebook() else {"ncols": _columns(), "nrows": ROWS}
    how = {"total": total, "desc": what, "unit": label, "unit_scale": scale, "disable": not is_shown(show), **size}
    with _bar_class()(**how) as bar:
        yield Progress(bar)


class Steps(NamedTuple):
    """Where a run says what it is doing.

    Attributes:
        begin: takes the name of a part as it begins.
        advance: takes (done, total) of the part.
    """

    begin: Callable[[str], None]
    advance: Callable[[int, int], None]


SILENT = Steps(lambda name: None, lambda done, total: None)


def _bar_class() -> Any:
    """Tqdm's bar for a terminal, or a notebook's; without ipywidgets a notebook has the former, in text."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that ipywidgets is not installed
        if in_notebook():
            from tqdm.auto import tqdm
        else:
            from tqdm import tqdm
    return tqdm


class PartsLine:
    """One line that says which part of a run is being done, how much of it, and the time left.

    Args:
        show: False writes nothing.
        over: whether a line can be written over; if not, as with TERM=dumb, each has its own row.
    """

    def __init__(self, show: bool, over: bool = True):
        self._show, self._over = show, over
        self._name, self._began, self._written = "", 0.0, ""
        self._last, self._count = -SELDOM, ""

    def part(self, name: str) -> None:
        """Begin a part, such as "comparing texts"; after a comma, say what is new within it: "fitting, pass 3"."""
        if "," in name and name.partition(",")[0] == self._name.partition(",")[0]:
            self._name = name
            if self._over or time.monotonic() - self._last >= SELDOM:
                self._last = time.monotonic()
                self._write([f"{name}{self._count}", name])
            return
        self._name, self._began, self._last, self._count = name, time.monotonic(), -SELDOM, ""
        self._write([name])

    def set(self, done: int, total: int) -> None:
        """Show how much of the part is done, and the time left at the rate of this part."""
        now = time.monotonic()
        if not self._over and done < total and now - self._last < SELDOM:
            return
        self._last = now
        left = f", {_clock((now - self._began) / done * (total - done))} left" if 0 < done < total else ""
        self._count = f": {done} of {total}{left}"
        self._write([f"{self._name}{self._count}", f"{done} of {total}{left}", f"{done}/{total}"])

    def clear(self) -> None:
        """Remove the line, so that something else can be written."""
        if self._written and self._over:
            _write(f"\r{' ' * len(self._written)}\r")
        self._written = ""

    def _write(self, texts: list[str]) -> None:
        """Write the first text that fits, or as much of the last as does."""
        if not self._show:
            return
        room = max(1, _columns() - 1)  # a terminal may begin a new row after its last column
        text = next((each for each in texts if len(each) <= room), texts[-1][:room])
        if not self._over:
            _write(f"{text}\n")
            return
        _write(f"\r{text}{' ' * (min(len(self._written), room) - len(text))}")
        self._written = text


_open: list[PartsLine] = []  # at most one line at a time


@contextmanager
def parts_line(show: bool | None = None) -> Iterator[PartsLine]:
    """A `PartsLine` on stderr, removed at the end; `show` as `is_shown` takes it."""
    line = PartsLine(is_shown(show), over=in_notebook() or os.environ.get("TERM") != "dumb")
    _open.append(line)
    try:
        yield line
    finally:
        line.clear()
        _open.remove(line)


@contextmanager
def shown_parts(options: Any, part: str = "") -> Iterator[Any]:
    """The options with functions that show a `parts_line`, where it is to be shown and the options have none.

    Args:
        options: a dataclass with the fields of `PartsOptions`; `on_part` may be missing.
        part: the name of the first part, if there is no other.
    """
    given = options.on_progress is not None or getattr(options, "on_part", None) is not None
    if given or not is_shown(options.progress):
        yield options
        return
    with parts_line(True) as line:
        if part:
            line.part(part)
        more = {"on_part": line.part} if hasattr(options, "on_part") else {}
        yield replace(options, progress=False, on_progress=line.set, **more)


def clear_line() -> None:
    """Remove the line of `parts_line`, if there is one, before something else is written to the terminal."""
    for line in _open:
        line.clear()


def _write(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


def _clock(seconds: float) -> str:
    """75.2 -> "1:15", 3_675 -> "1:01:15"."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def _columns() -> int:
    """Columns of the bar; a terminal of width 0, as some programs make it, would show nothing."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or COLUMNS
    except (OSError, ValueError, AttributeError):
        return COLUMNS
