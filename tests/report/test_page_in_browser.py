"""The report of `probekit demo`, opened: nothing is loaded, nothing complains, and mouse, keyboard and themes work."""

import json
from pathlib import Path

import pytest
from open_pages import DESK, PHONE, Pages

LEFT, RIGHT, UP, DOWN, TAB = "\ue012", "\ue014", "\ue013", "\ue015", "\ue004"  # as WebDriver names these keys
BACKGROUND = "return getComputedStyle(document.body).backgroundColor"
CLIPS = "return document.querySelector('.tk-list .sp').offsetParent.matches('.tk-list')"  # what is scrolled away
SHOWN = "return getComputedStyle(document.querySelector(arguments[0])).display"


@pytest.mark.parametrize("size", [DESK, PHONE])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_opens_quietly_and_fits_the_window(browser: Pages, demo_report: Path, size, theme):
    browser.open(demo_report, size, theme)
    browser.check_quiet(demo_report)
    assert browser.do("return document.documentElement.scrollWidth - innerWidth") <= 0
    assert browser.do(CLIPS)
    wide, narrow = (browser.do(SHOWN, f"#curve .{kind}") for kind in ("wide", "narrow"))
    assert (wide, narrow) == (("none", "block") if size == PHONE else ("block", "none"))
    colour = browser.do(BACKGROUND)
    assert (
        sum(json.loads(f"[{colour[4:-1]}]")) > 600 if theme == "light" else sum(json.loads(f"[{colour[4:-1]}]")) < 120
    )


def test_no_request_is_possible(browser: Pages, demo_report: Path):
    """The policy refuses what a script would ask for, and scripts and styles that are not the page's own."""
    browser.open(demo_report)
    answer = browser.driver.execute_async_script(
        "const done = arguments[0]; fetch('http://127.0.0.1:9/').then(() => done('sent'), (e) => done(String(e)))"
    )
    assert answer.startswith("TypeError")
    browser.do("document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.ran = 1'}))")
    browser.do("document.body.setAttribute('style', 'color: red')")
    assert browser.do("return window.ran") is None
    assert browser.do("return document.body.style.length") == 0
    said = " ".join(entry["message"] for entry in browser.driver.get_log("browser"))
    assert said.count("Content Security Policy") >= 3


def test_a_column_of_the_curve_says_its_values(browser: Pages, demo_report: Path):
    browser.open(demo_report)
    marks = browser.do("return [...document.querySelectorAll('#curve .wide .hot')].map((x) => x.ariaLabel)")
    assert "selected on validation" in "".join(marks)
    readout = "return document.querySelector('#curve .readout').textContent"
    hint = browser.do(readout)
    browser.do("document.querySelector('#curve .wide .hot').focus()")
    seen = [browser.do(readout)]
    for _ in marks[1:]:
        browser.press(RIGHT)
        seen.append(browser.do(readout))
    assert seen == marks
    browser.press(RIGHT)
    assert browser.do(readout) == marks[-1]
    browser.press(LEFT)
    assert browser.do(readout) == marks[-2]
    browser.do("document.activeElement.blur()")
    assert browser.do(readout) == hint


def test_arrow_keys_go_up_and_down_in_a_grid(browser: Pages, demo_report: Path):
    browser.open(demo_report)
    names = browser.do("return [...document.querySelectorAll('#confusion .hot')].map((x) => x.ariaLabel)")
    browser.do("document.querySelector('#confusion .hot').focus()")
    for key, place in ((DOWN, 2), (RIGHT, 3), (UP, 1), (LEFT, 0), (UP, 0)):
        browser.press(key)
        assert browser.do("return document.activeElement.ariaLabel") == names[place]


def test_one_tab_stop_for_each_picture(browser: Pages, demo_report: Path):
    """However many marks it has; the arrow keys reach the others."""
    browser.open(demo_report)
    stops = browser.do(
        "return [...document.querySelectorAll('svg')].map((x) => x.querySelectorAll('[tabindex=\"0\"]').length)"
    )
    assert set(stops) <= {0, 1}


def test_the_keyboard_reaches_the_content_first(browser: Pages, demo_report: Path):
    browser.open(demo_report)
    browser.press(TAB)
    assert browser.do("return document.activeElement.getAttribute('href')") == "#content"


def test_every_line_of_the_navigation_leads_to_its_section(browser: Pages, demo_report: Path):
    browser.open(demo_report)
    names = browser.do("return [...document.querySelectorAll('nav a')].map((x) => x.getAttribute('href').slice(1))")
    assert names == browser.do("return [...document.querySelectorAll('main > section')].map((x) => x.id)")
    assert len(names) > 6
    browser.do("document.documentElement.style.scrollBehavior = 'auto'")
    browser.do(f"document.querySelector('nav a[href=\"#{names[4]}\"]').click()")
    assert browser.do("return location.hash") == f"#{names[4]}"
    assert abs(browser.do(f"return document.getElementById('{names[4]}').getBoundingClientRect().top")) < 40


def test_a_phone_shows_the_first_sentences_whole(browser: Pages, demo_report: Path):
    browser.open(demo_report, PHONE)
    sentences = "[...document.querySelectorAll('.verdict, .lead, .caution')]"
    assert browser.do(f"return {sentences}.length") >= 1
    assert browser.do(f"return {sentences}.filter(e => e.scrollHeight > e.clientHeight).map(e => e.textContent)") == []
    assert browser.do("return document.documentElement.scrollWidth") <= PHONE[0]


def test_the_button_changes_the_theme(browser: Pages, demo_report: Path):
    browser.open(demo_report)
    colours, names = [], []
    for _ in range(4):
        names.append(browser.do("return document.getElementById('theme').textContent"))
        colours.append(browser.do(BACKGROUND))
        browser.do("document.getElementById('theme').click()")
    assert names == ["Theme: system", "Theme: light", "Theme: dark", "Theme: system"]
    assert colours[0] == colours[1] == colours[3] != colours[2]


def test_paper_has_no_navigation_and_shows_closed_parts(browser: Pages, demo_report: Path):
    browser.open(demo_report, theme="dark")
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert {browser.do(SHOWN, name) for name in ("nav", "#theme", "#curve .readout", "#curve .narrow")} == {"none"}
    assert browser.do(BACKGROUND) == "rgb(255, 255, 255)"
    browser.do("dispatchEvent(new Event('beforeprint'))")
    assert browser.do("return document.querySelectorAll('details:not([open])').length") == 0
    browser.do("dispatchEvent(new Event('afterprint'))")


def test_numbers_are_in_the_page_for_other_programs(browser: Pages, demo_report: Path):
    browser.open(demo_report)
    numbers = json.loads(browser.do("return document.getElementById('curve-curve').textContent"))
    (results,) = (demo_report.parent / "results").glob("*/results.json")
    saved = json.loads(results.read_text())
    assert [one["test"] for one in numbers["layers"]] == [one["metrics"]["test"]["accuracy"] for one in saved["layers"]]
