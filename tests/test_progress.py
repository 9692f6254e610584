"""The one progress bar: hidden where nobody watches, and right about what is done."""

import pytest

from probekit.progress import progress_bar


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
