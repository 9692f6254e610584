"""The view in chromium: it recolours, sorts, filters and follows links, and text from data stays text."""

import base64
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probekit.report.tokens.data import TRAINED, Attention, Lens, ScoredText, TokenScores
from probekit.report.tokens.find import view_of_texts
from probekit.report.tokens.notebook import WIDGET, TokenView
from probekit.report.tokens.section import token_page
from probekit.tasks.base import Task

HOSTILE = [
    "</script><script>window.hurt=1</script>",
    '<img src=x onerror="window.hurt=1">',
    "<!--<script>",
    "a\u2028b\u2029c",
    "nul\x00bell\x07",
    "\ud800 lone",
    "\u202egnirts\u202c",
    "{{ 7*7 }} ${window.hurt=1} `",
    "'\"><svg onload=window.hurt=1>",
    "שלום עולם",
    "e\u0301\u0323 \u0301alone",
    "x" * 5000,
]
COLOURS = "return [...document.querySelectorAll('.tk-one.on .t')].map(e => getComputedStyle(e).backgroundColor)"
Open = Callable[..., Any]


def made_up(pieces: list[list[str]], n_places: int = 4, name: str = "plain") -> TokenScores:
    """A view with these tokens; the score of token t at place p is (t - 1) * (p + 1)."""
    lengths = [len(one) for one in pieces]
    T, offsets = sum(lengths), np.cumsum([0, *lengths])
    at = np.concatenate([np.arange(n) for n in lengths])
    scores = ((at - 1.0)[None] * np.arange(1, n_places + 1)[:, None])[None]
    marks = np.zeros(T, dtype=np.uint8)
    marks[offsets[1:] - 1] = TRAINED
    texts = [ScoredText(f"{name}{i}", name, name, i % 3 == 0, "random") for i in range(len(pieces))]
    kept = ("model", "task", "label", "probe", "point")
    return TokenScores(
        texts=texts,
        offsets=offsets,
        pieces=[piece for one in pieces for piece in one],
        marks=marks,
        places=[f"resid_pre.{p}" for p in range(n_places - 1)] + [f"resid_post.{n_places - 2}"],
        layers=[*range(n_places - 1), n_places - 2],
        best=1,
        outputs=[name],
        scores=scores,
        placebo=-scores,
        text_scores=scores[:, :, offsets[1:] - 1],
        centres=np.zeros(n_places),
        units=np.ones(n_places),
        meta={
            **dict.fromkeys(kept, name),
            "position": "last",
            "kind": "log odds",
            "classes": ["no", name],
            "of_sequences": False,
            "has_best": True,
            "fpr": None,
            "calibrated_on": None,
            "notes": [name],
        },
    )


@pytest.fixture
def opened(chromium: Any, tmp_path: Path) -> Iterator[Open]:
    """A function that opens a view and checks that it loads nothing and reports no error."""

    def open_page(view: TokenScores, anchor: str = "") -> Any:
        path = tmp_path / "view.html"
        path.write_text(token_page(view), encoding="utf-8")
        for kind in ("browser", "performance"):
            chromium.get_log(kind)
        chromium.get("about:blank")
        chromium.get(path.as_uri() + anchor)
        return chromium

    yield open_page
    assert chromium.get_log("browser") == []
    sent = [json.loads(one["message"])["message"] for one in chromium.get_log("performance")]
    urls = {one["params"]["request"]["url"] for one in sent if one["method"] == "Network.requestWillBeSent"}
    assert all(url.startswith(("file:", "data:", "about:")) for url in urls), urls
    assert chromium.execute_script("return window.hurt") is None


def set_field(driver: Any, name: str, value: Any) -> None:
    driver.execute_script(
        "const f = document.querySelector(`[name='${arguments[0]}']`);"
        "if (f.type === 'checkbox') f.checked = arguments[1]; else f.value = arguments[1];"
        "f.dispatchEvent(new Event(f.tagName === 'SELECT' ? 'change' : 'input', { bubbles: true }));",
        name,
        value,
    )


def ids(driver: Any) -> list[str]:
    return [one.text.split(" · ")[1] for one in driver.find_elements("css selector", ".tk-one .tk-head")]


PLAIN = [["one", " two", " three"], ["four", " five"], ["the", " last", " text", " here"]]


def test_the_slider_and_the_placebo_recolour(opened):
    driver = opened(made_up(PLAIN))
    first = driver.execute_script(COLOURS)
    assert len(set(first)) == 3  # below the threshold, at it, above it
    assert "rgba(0, 0, 0, 0)" in first[1]
    set_field(driver, "layer", "3")
    deeper = driver.execute_script(COLOURS)
    assert deeper[0] != first[0]
    assert deeper[2] != first[2]
    assert driver.find_element("name", "place").text == "resid_post.2"
    set_field(driver, "layer", "1")
    assert driver.execute_script(COLOURS) == first
    set_field(driver, "placebo", True)
    turned = driver.execute_script(COLOURS)
    assert (turned[0], turned[2]) == (first[2], first[0])


def test_a_row_for_each_layer(opened):
    driver = opened(made_up(PLAIN))
    set_field(driver, "mode", "layers")
    rows = driver.find_elements("css selector", ".tk-rows tr")
    assert [row.find_element("tag name", "th").text for row in rows] == made_up(PLAIN).places
    assert [len(row.find_elements("tag name", "td")) for row in rows] == [3] * 4
    rows[3].find_elements("tag name", "td")[0].click()
    assert driver.find_element("name", "place").text == "resid_post.2"


def test_sort_filter_and_search(opened):
    driver = opened(made_up(PLAIN))
    assert ids(driver) == ["plain0", "plain1", "plain2"]
    set_field(driver, "sort", "up")
    assert ids(driver) == ["plain1", "plain0", "plain2"]
    set_field(driver, "sort", "down")
    assert ids(driver) == ["plain2", "plain0", "plain1"]
    set_field(driver, "only", "1")
    assert ids(driver) == ["plain0"]
    set_field(driver, "only", "")
    set_field(driver, "find", "LAST TEXT")
    assert ids(driver) == ["plain2"]
    set_field(driver, "find", "nowhere")
    assert "No text matches" in driver.find_element("css selector", ".tk-list").text


def test_links_and_keys(opened):
    from selenium.webdriver.common.keys import Keys

    driver = opened(made_up(PLAIN), "#text=2&layer=0")
    assert driver.find_element("name", "place").text == "resid_pre.0"
    assert driver.find_element("css selector", ".tk-one.on").text.startswith("2 ·")
    area = driver.find_element("css selector", ".tk-list")
    area.send_keys(Keys.ARROW_UP)
    area.send_keys(Keys.ARROW_LEFT)
    area.send_keys(".")
    assert driver.execute_script("return location.hash") == "#text=1&layer=1"
    assert "token 0" in driver.find_element("css selector", ".tk-now").text
    area.send_keys(".", ".", ".", ".")
    assert driver.execute_script("return location.hash") == "#text=1&layer=resid_post.2"
    driver.execute_script("location.hash = '#text=0&layer=2'")
    assert driver.find_element("name", "place").text == "resid_pre.2"
    driver.execute_script("location.hash = '#text=99&layer=nonsense'")
    assert driver.find_elements("css selector", ".tk-one.on")


def test_the_value_and_its_step_are_told(opened):
    driver = opened(made_up(PLAIN), "#text=2&layer=2")
    told = driver.find_element("css selector", ".tk-now").text
    score, error = (float(part) for part in told.split("log odds ")[1].split(";")[0].split(" ± "))
    assert abs(score - 6) <= error * 1.6  # the error is rounded to one digit
    assert "trained token" in told


def test_lens_and_attention(opened):
    view = made_up(PLAIN)
    top = np.tile(np.arange(3), (4, 9, 1)) + np.arange(4)[:, None, None]
    lens = Lens(3, view.places, top, np.full(top.shape, 0.5), {i: f" word{i}" for i in range(6)})
    patterns = [np.tril(np.ones((2, 3, n, n))) / np.arange(1, n + 1)[:, None] for n in (3, 2)]
    patterns[0][1, 2, 2] = [1, 0, 0]
    driver = opened(replace(view, lens=lens, attention=Attention([0, 1], [0, 1], patterns)))
    rows = [one.text for one in driver.find_elements("css selector", ".tk-token tr")]
    assert rows[1].endswith("word0 50%, word1 50%, word2 50%")
    assert rows[4].endswith("word3 50%, word4 50%, word5 50%")
    weights = "return [...document.querySelectorAll('.tk-pattern .t')].map(e => e.title.split('%')[0])"
    assert driver.execute_script(weights) == ["33", "33", "33"]
    set_field(driver, "at", "1")
    set_field(driver, "head", "2")
    assert driver.execute_script(weights) == ["100", "0", "0"]
    set_field(driver, "lens", True)
    assert driver.find_elements("css selector", ".tk-rows td")[0].text.strip() == "word0"
    set_field(driver, "mode", "texts")
    driver.execute_script("location.hash = '#text=2'")
    assert "have patterns" in driver.find_element("css selector", ".tk-pattern").text


@pytest.mark.parametrize("name", HOSTILE[:3])
def test_hostile_text_stays_text(opened, name):
    view = made_up([[one, " " + one, name] for one in HOSTILE], name=name)
    texts = [ScoredText(one, one, one, False, "random") for one in HOSTILE]
    view = replace(view, texts=texts, meta={**view.meta, "notes": HOSTILE, "label": "".join(HOSTILE[:11])})
    top = np.zeros((4, 36, 1), dtype=np.int64)
    lens = Lens(12, view.places, top, np.ones(top.shape), {0: name})
    driver = opened(replace(view, lens=lens))
    assert len(driver.find_elements("css selector", ".tk-one")) == len(HOSTILE)
    assert not driver.find_elements("css selector", ".tk img, .tk svg, .tk script")
    shown = driver.execute_script("return document.querySelector('.tk').textContent")
    assert "</script><script>window.hurt=1</script>" in shown
    assert not set(shown) & set("\u202e\u202c\x00\x07\u2028\u2029")
    set_field(driver, "mode", "layers")
    set_field(driver, "find", "<img")


def test_hidden_characters_have_glyphs_that_are_not_copied(opened):
    driver = opened(made_up([["a b", "\n", "\tc", "\u202e", "\u0301d", "", "  "]]))
    glyphs = "return [...document.querySelectorAll('.tk-one .g')].map(e => e.dataset.g)"
    assert driver.execute_script(glyphs) == ["⏎", "⇥", "U+202E", "◌", "⋯", "·", "·"]
    body = driver.execute_script("return document.querySelector('.tk-one .tk-text').textContent")
    assert body == "a b\nc\u0301d  "


def test_arabic_and_hebrew_run_from_the_right(opened):
    from selenium.webdriver.common.keys import Keys

    driver = opened(made_up([["שלום", " עולם", " טוב"]]))
    direction = "return getComputedStyle(document.querySelector('.tk-one .tk-text')).direction"
    assert driver.execute_script(direction) == "rtl"
    driver.find_element("css selector", ".tk-list").send_keys(Keys.ARROW_RIGHT)  # towards the beginning
    assert "token 1" in driver.find_element("css selector", ".tk-now").text


def test_a_phone_needs_no_sideways_scrolling(opened):
    driver = opened(made_up([[*one, "x" * 400] for one in PLAIN]))
    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    )
    try:
        assert driver.execute_script("return document.documentElement.scrollWidth <= innerWidth")
    finally:
        driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_several_views_on_a_page_have_their_own_links(opened, chromium, tmp_path):
    from probekit.report.page import Group, Page, page_html
    from probekit.report.tokens.section import SCRIPTS, STYLES, token_section

    parts = [token_section(made_up(PLAIN), name) for name in ("run-1-tokens", "run-2-tokens")]
    path = tmp_path / "two.html"
    path.write_text(page_html(Page("two", "", [Group("runs", "Runs", parts)]), STYLES, SCRIPTS), encoding="utf-8")
    chromium.get("about:blank")
    chromium.get(path.as_uri() + "#run-2-tokens&text=1&layer=2")
    names = [one.text for one in chromium.find_elements("name", "place")]
    assert names == ["resid_pre.1 (best)", "resid_pre.2"]


def test_folded_views_draw_their_texts_when_they_are_opened_and_on_paper(chromium, tmp_path):
    from selenium.webdriver.support.ui import WebDriverWait

    from probekit.report.page import Group, Page, page_html
    from probekit.report.tokens.section import SCRIPTS, STYLES, token_section

    texts = PLAIN * 30
    parts = [replace(token_section(made_up(texts), f"run-{i}-tokens"), folded=True) for i in (1, 2)]
    path = tmp_path / "folded.html"
    path.write_text(page_html(Page("two", "", [Group("runs", "Runs", parts)]), STYLES, SCRIPTS), encoding="utf-8")
    chromium.get(path.as_uri())
    last = "return document.querySelectorAll('#run-2-tokens .tk-one:last-child .t').length"
    chromium.execute_script("document.querySelectorAll('details').forEach((one) => (one.open = true))")
    chromium.execute_script("const list = document.querySelector('#run-2-tokens .tk-list'); list.scrollTop = 1e6")
    WebDriverWait(chromium, 10).until(lambda driver: driver.execute_script(last) == len(texts[-1]))
    chromium.refresh()
    assert chromium.execute_script(last) == 0
    chromium.execute_cdp_cmd("Page.printToPDF", {})
    filled = "return [...document.querySelectorAll('.tk-one')].filter((one) => one.querySelector('.t')).length"
    assert chromium.execute_script(filled) == 2 * len(texts)


def test_the_notebook_s_frame_runs_and_cannot_leave(chromium, agreement, tmp_path):
    """The HTML of a notebook's output, put into a page as Jupyter does it."""
    results, model, _ = agreement
    view = results.tokens(model, Task("one", ["the doctors near the old coat"]))
    html = view._repr_html_()
    assert 'sandbox="allow-scripts"' in html
    path = tmp_path / "notebook.html"
    path.write_text(f"<!doctype html><body>{html}</body>", encoding="utf-8")
    chromium.get_log("browser")
    chromium.get(path.as_uri())
    chromium.switch_to.frame(0)
    try:
        assert chromium.find_element("name", "place").text.startswith("resid_")
        assert len(chromium.find_elements("css selector", ".tk-one .t")) == 6
    finally:
        chromium.switch_to.default_content()
    assert chromium.get_log("browser") == []


def test_the_widget_shows_the_page_and_sends_the_chosen_token(chromium, tmp_path):
    """The module that anywidget loads, with a model as anywidget gives it."""
    page = token_page(made_up(PLAIN))
    module = base64.b64encode(WIDGET.encode()).decode()
    script = f"""
        const widget = (await import("data:text/javascript;base64,{module}")).default, state = {{ height: 700 }};
        state.page = document.getElementById("page").content.textContent;
        window.state = state;
        const model = {{ get: (k) => state[k], set: (k, v) => (state[k] = v), save_changes: () => (state.done = 1) }};
        window.remove = widget.render({{ model, el: document.body }});
    """
    path = tmp_path / "widget.html"
    body = f"<!doctype html><template id=page>{escape(page)}</template><script type=module>{script}</script>"
    path.write_text(body, encoding="utf-8")
    chromium.get(path.as_uri())
    chromium.switch_to.frame(0)
    try:
        chromium.find_elements("css selector", ".tk-one .t")[3].click()
    finally:
        chromium.switch_to.default_content()
    wait = "const done = arguments[0]; const look = () => state.done ? done(state.chosen) : setTimeout(look, 5); look()"
    assert chromium.execute_async_script(wait) == {"text": 1, "place": "resid_pre.1", "token": 0}
    assert chromium.get_log("browser") == []


def test_the_widget_of_anywidget_holds_the_page():
    pytest.importorskip("anywidget")
    view = TokenView(made_up(PLAIN), "plain")
    widget = view.widget(height=300)
    assert (widget.page, widget.height, widget.chosen) == (view.to_html(), 300, {})


def test_a_saved_view_is_the_page_and_the_table_has_every_score(agreement, tmp_path):
    results, model, task = agreement
    view = results.tokens(model, task)
    assert view.save(tmp_path / "view.html").read_text(encoding="utf-8") == view.to_html()
    frame = view.to_frame()
    assert len(frame) == np.isfinite(view.data.scores).sum()
    one = frame[(frame["text"] == 3) & (frame["place"] == "resid_pre.2") & frame["trained"]]
    assert one["score"].tolist() == [view.data.text_scores[0, 2, 3]]
    assert repr(view).startswith("TokenView(12 texts, ")
    assert view_of_texts(results, model, task).texts[0].label in ("singular", "plural")
