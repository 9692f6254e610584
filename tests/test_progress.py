"""Progress: hidden where nobody watches, right about what is done, and readable on a terminal of any width."""

import dataclasses

import pytest
from terminal import Terminal

from probekit import options
from probekit.cli import console
from probekit.machine.progress import parts_line, progress_bar, shown_parts
from probekit.options.option import help_of


def test_a_bar_is_hidden_unless_it_is_asked_for_or_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    for show in (None, False):
        with progress_bar("train", "layers", show=show) as bar:
            bar.set(1, 2)
            bar.advance()
    assert capsys.readouterr() == ("", "")


def test_a_bar_counts_up_to_a_total_that_comes_later(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("train", "layers", show=True) as bar:
        for done in (1, 3, 4):
            bar.set(done, 4)
    out, err = capsys.readouterr()
    assert out == ""
    last = err.strip().split("\r")[-1]
    assert last.startswith("train: 100%|")
    assert "4/4" in last
    assert " layers/s]" in last or "s/ layers]" in last


def test_bytes_are_shown_in_units(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("verify", "B", total=20_000_000, show=True) as bar:
        bar.advance(20_000_000, note="done")
    last = capsys.readouterr().err.strip().split("\r")[-1]
    assert "20.0M/20.0M" in last
    assert "B/s, done]" in last


def run_of_parts(show: bool | None = None) -> None:
    with parts_line(show) as line:
        line.part("comparing texts")
        line.part("fitting probes")
        for done in range(1, 14):
            line.set(done, 13)
        console.warn("a class is rare")
        line.part("comparing layers")


@pytest.mark.parametrize("columns", [0, 1, 20, 200])
def test_a_line_of_parts_fits_the_terminal_and_is_removed(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    terminal = Terminal(monkeypatch, columns)
    run_of_parts()
    shown = terminal.read()
    warning = "probekit: warning: a class is rare\r\n"
    assert shown.count(warning) == 1
    rows = shown.replace(warning, "").split("\r")
    assert max(map(len, rows)) <= max(1, (columns or 80) - 1)
    assert "\n" not in shown.replace(warning, "")
    assert shown.index("comparing texts"[: max(1, columns - 1)] if columns else "comparing texts") >= 0
    if columns != 1:
        place = "3 of 13, 0:00 left" if columns == 20 else "fitting probes: 3 of 13, 0:00 left"
        assert place in [row.rstrip() for row in rows]
    for before in (shown[: shown.index(warning)], shown):  # nothing is left beside a warning, or at the end
        assert before.endswith("\r")
        *_, blank, end = before.split("\r")
        assert (blank.strip(), end) == ("", "")


def test_a_terminal_that_cannot_write_over_a_line_gets_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    terminal = Terminal(monkeypatch)
    run_of_parts()
    assert terminal.read().split("\r\n") == [
        "comparing texts",
        "fitting probes",
        "fitting probes: 1 of 13, 0:00 left",
        "fitting probes: 13 of 13",
        "probekit: warning: a class is rare",
        "comparing layers",
        "",
    ]


def test_a_line_of_parts_is_hidden_where_nobody_watches(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_of_parts()
    assert capsys.readouterr() == ("", "probekit: warning: a class is rare\n")
    terminal = Terminal(monkeypatch)
    run_of_parts(show=False)
    assert terminal.read() == "probekit: warning: a class is rare\r\n"


def test_the_time_left_is_at_the_rate_of_the_part(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 1000.0, 1030.0, 1600.0])
    monkeypatch.setattr("probekit.machine.progress.time.monotonic", lambda: next(clock))
    terminal = Terminal(monkeypatch)
    with parts_line() as line:
        line.part("reading")
        line.part("fitting")
        line.set(1, 3)
        line.set(2, 9)
    shown = terminal.read()
    assert "fitting: 1 of 3, 1:00 left" in shown
    assert "fitting: 2 of 9, 35:00 left" in shown


def test_progress_means_one_thing_in_every_list_of_options() -> None:
    found = {
        (field.type, help_of(field).text)
        for name in options.__all__
        for field in dataclasses.fields(getattr(options, name))
        if field.name == "progress"
    }
    assert found == {
        (bool | None, "Show progress on stderr: None on a terminal and in a notebook, True always, False never.")
    }


def test_functions_that_are_told_take_the_place_of_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[object] = []
    asked = options.TransferArguments(progress=True, on_progress=lambda *at: seen.append(at))
    with shown_parts(asked) as same:
        assert same is asked
    for show, is_there in ((True, True), (None, False), (False, False)):
        with shown_parts(options.TransferArguments(progress=show)) as given:
            assert (given.on_part is not None) == (given.on_progress is not None) == is_there
            if given.on_part is not None:
                given.on_part("fitting probes")
    assert capsys.readouterr().err.count("fitting probes") == 1
