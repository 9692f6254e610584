"""What reaches the terminal: results on stdout, everything else on stderr, and nothing hostile on either."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from probekit.text import printable


def result(text: object = "") -> None:
    """Print to stdout, line by line."""
    for line in str(text).split("\n"):
        print(printable(line))


def result_json(value: dict[str, Any]) -> None:
    """Print one JSON object to stdout; ASCII and strict, so that any reader takes it."""
    print(json.dumps(value, indent=2, ensure_ascii=True, allow_nan=False))


def note(text: object) -> None:
    """Print to stderr, line by line, after whatever stdout still holds."""
    sys.stdout.flush()
    for line in str(text).split("\n"):
        print(printable(line), file=sys.stderr, flush=True)


def warn(text: object) -> None:
    """Print one warning to stderr."""
    note(f"probekit: warning: {one_line(text)}")


def error(text: object) -> None:
    """Print one error to stderr."""
    note(f"probekit: error: {one_line(text)}")


def one_line(text: object) -> str:
    """The lines of a message joined by blanks."""
    return " ".join(line.strip() for line in str(text).splitlines() if line.strip())


def hush_downloads(quiet: bool) -> None:
    """No bars of the Hub's libraries when quiet or when nobody watches; they read this when they are imported."""
    if quiet or not sys.stderr.isatty():
        for library in ("HF_HUB", "HF_DATASETS"):
            os.environ.setdefault(f"{library}_DISABLE_PROGRESS_BARS", "1")


@contextmanager
def interrupt_says(what: str) -> Iterator[None]:
    """Ctrl-C inside says what is kept and how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(what) from None


@contextmanager
def progress(what: str, unit: str, quiet: bool) -> Iterator[Callable[[int, int], None] | None]:
    """A bar on stderr, to be called with (done, total); None when quiet or when nobody watches."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from tqdm import tqdm

    with tqdm(desc=what, unit=f" {unit}", dynamic_ncols=True) as bar:

        def show(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield show
