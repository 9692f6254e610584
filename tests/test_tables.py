import pytest

from probekit.tables import html_page, html_table, text_table, without_empty_columns

HOSTILE = "<b>\x1b[31m"


def test_columns_are_aligned_and_lines_end_where_text_ends():
    assert text_table([["layer", "C", ""], ["a", "10", ""], ["long name", "0.1", ""]]).split("\n") == [
        "layer        C",
        "a           10",
        "long name  0.1",
    ]


def test_cells_are_escaped_before_they_are_measured():
    lines = text_table([["x", "y"], [HOSTILE, "1"]]).split("\n")
    assert [len(line) for line in lines] == [len("<b>\\x1b[31m  1")] * 2
    page = html_page(HOSTILE, html_table([["x"], [HOSTILE]]), [HOSTILE])
    assert "\x1b" not in page
    assert page.count("&lt;b&gt;\\x1b[31m") == 3


@pytest.mark.parametrize(("bold", "weights"), [((), ["normal", "normal"]), ([1], ["normal", "bold"])])
def test_rows_can_be_bold_and_numbers_are_flush_right(bold, weights):
    page = html_table([["name", "n"], ["a", "1"], ["b", "2"]], bold=bold)
    assert [part.split('"')[0] for part in page.split("font-weight:")[1:]] == weights
    assert '<td style="text-align:left">a</td><td style="text-align:right">1</td>' in page


def test_columns_without_cells_are_left_out():
    assert without_empty_columns([["", "C", "n"], ["", "", "1"], ["", "", ""]]) == [["", "n"], ["", "1"], ["", ""]]
