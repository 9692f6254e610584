"""Nothing that data carries reaches the terminal as more than text."""

import json
import os

import pytest

from probekit.cli import console
from probekit.text import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain é 漢 🙂", "plain é 漢 🙂"),
        ("\x1b[31mred\x1b[0m", r"\x1b[31mred\x1b[0m"),
        ("abc\u202edcba", r"abc\u202edcba"),
        ("zero\u200bwidth", r"zero\u200bwidth"),
        ("two\nlines\r", r"two\nlines\r"),
        ("tab\tNUL\x00 C1\x9b", r"tab\tNUL\x00 C1\x9b"),
        ("half \udcff", r"half \udcff"),
        ("\u2028line\u00a0blank", r"\u2028line\xa0blank"),
        ("[bold]x[/bold]", "[bold]x[/bold]"),
    ],
)
def test_printable_escapes_what_does_not_show(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_results_and_notes_go_to_their_own_streams(capsys: pytest.CaptureFixture[str]) -> None:
    console.result("a\nb\x07")
    console.note("c")
    console.error("several\n  lines\n")
    out, err = capsys.readouterr()
    assert out == "a\nb\\x07\n"
    assert err == "c\nprobekit: error: several lines\n"


def test_json_is_ascii_and_strict(capsys: pytest.CaptureFixture[str]) -> None:
    console.result_json({"é": "\x1b\u202e"})
    out = capsys.readouterr().out
    assert out.isascii()
    assert json.loads(out) == {"é": "\x1b\u202e"}
    with pytest.raises(ValueError, match="JSON"):
        console.result_json({"x": float("nan")})


@pytest.mark.parametrize(
    ("quiet", "terminal", "hushed"), [(True, True, True), (False, False, True), (False, True, False)]
)
def test_download_bars_are_for_those_who_watch(
    monkeypatch: pytest.MonkeyPatch, quiet: bool, terminal: bool, hushed: bool
) -> None:
    monkeypatch.setattr("os.environ", {})
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal)
    console.hush_downloads(quiet)
    assert ("HF_HUB_DISABLE_PROGRESS_BARS" in os.environ) == hushed
    assert ("HF_DATASETS_DISABLE_PROGRESS_BARS" in os.environ) == hushed
