"""Print to the terminal: results on stdout, everything else on stderr, with control characters escaped."""

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from probekit.machine.progress import clear_line
from probekit.text import printable

if TYPE_CHECKING:
    from probekit.cli.fields import Output

LONGEST = 20_000  # characters of an error; a list of every weight that is missing has fewer


def result(text: object = "") -> None:
    """Print to stdout, line by line."""
    for line in str(text).split("\n"):
        print(printable(line))


def result_json(value: Mapping[str, Any]) -> None:
    """Print one JSON object to stdout; ASCII and strict JSON, so that any parser accepts it."""
    print(json.dumps(value, indent=2, ensure_ascii=True, allow_nan=False))


def answer(
    output: "Output", body: Callable[[], Mapping[str, Any]], text: object, note_first: object = "", brief: object = None
) -> None:
    """Print what a command gives.

    Args:
        output: with --json, `body` is printed; with --quiet, `brief` without the note.
        body: gives the JSON.
        text: for stdout.
        note_first: for stderr, before it.
        brief: what of the text --quiet leaves; None is all of it.
    """
    if output.json:
        result_json(body())
        return
    if note_first and not output.quiet:
        note(note_first)
    result(brief if output.quiet and brief is not None else text)


def note(text: object) -> None:
    """Print to stderr, line by line, after what is still buffered for stdout."""
    sys.stdout.flush()
    clear_line()
    for line in str(text).split("\n"):
        print(printable(line), file=sys.stderr, flush=True)


def warn(text: object) -> None:
    """Print one warning to stderr."""
    note(f"probekit: warning: {one_line(text)}")


def error(text: object) -> None:
    """Print one error to stderr; a very long one, such as a name of megabytes in a file, is cut."""
    line = one_line(text)
    more = f"... ({len(line) - LONGEST:,} more characters)" if len(line) > LONGEST else ""
    note(f"probekit: error: {line[:LONGEST]}{more}")


def interrupted(stop: KeyboardInterrupt) -> None:
    """Print to stderr that the command was interrupted, what was saved and how to resume."""
    said = one_line(stop).removeprefix("interrupted").lstrip(", ")
    note(f"probekit: interrupted: {said or 'what was saved before is kept; run the same command again'}")


def one_line(text: object) -> str:
    """The lines of a message, joined with spaces."""
    return " ".join(line.strip() for line in str(text).splitlines() if line.strip())


def hush_downloads(quiet: bool) -> None:
    """Hide the progress bars of the Hub's libraries if quiet or not on a terminal; call before they are imported."""
    if quiet or not sys.stderr.isatty():
        for library in ("HF_HUB", "HF_DATASETS"):
            os.environ.setdefault(f"{library}_DISABLE_PROGRESS_BARS", "1")


def bars(quiet: bool) -> bool | None:
    """Whether to show progress bars, as `progress_bar` takes it: not if quiet, else on a terminal only."""
    return False if quiet else None


@contextmanager
def interrupt_says(message: str) -> Iterator[None]:
    """Let Ctrl-C inside the context say what was saved and how to resume."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(message) from None
