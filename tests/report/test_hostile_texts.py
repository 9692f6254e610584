"""Texts from data in the page: whatever they hold, they are shown and nothing else happens."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from open_pages import Pages
from reported_curves import curve

from probekit.options import ReportOptions
from probekit.report.build import report_html
from probekit.report.render import json_block
from probekit.report.runs import ReportRun
from probekit.report.sections.audit import audit_section
from probekit.report.svg.element import element
from probekit.tasks.base import Task

HOSTILE = (
    "</script><script>window.hacked = 1</script>",
    "<img src=x onerror='window.hacked = 1'>",
    "<!--<script>",
    "</style><style>body { display: none }",
    '" onmouseover="window.hacked = 1" x="',
    "' onfocus='window.hacked = 1' autofocus tabindex='1",
    "{{ 7 * 7 }}{% raw %}",
    "&lt;b&gt;&#x202e;",
    "</textarea></svg></title><svg onload=window.hacked=1>",
    "javascript:window.hacked=1",
    "a\u2028b\u2029c",
    "nul\0nul",
    "lone \ud800 surrogate \udfff",
    "\u202egnitirw desrever\u2066",
    "]]><script>window.hacked=1</script>",
    "line\nbreak\rand\ttab\x1b[31m",
)
PLAIN = ReportOptions(tokens=False)


class Tags(HTMLParser):
    """The tags of a page with the names of their attributes, and its JSON blocks."""

    def __init__(self, html: str):
        super().__init__()
        self.tags: list[tuple[str, tuple[str, ...]]] = []
        self.blocks: list[Any] = []
        self.in_block = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, tuple(name for name, _ in attrs)))
        self.in_block = ("type", "application/json") in attrs

    def handle_data(self, data: str) -> None:
        if self.in_block:
            self.blocks.append(json.loads(data))
            self.in_block = False


def page(text: str) -> str:
    """A page whose every name is a text."""
    names = {"model": text, "task": text, "label": text, "probe": text}
    audit = {"lines": [text, text], "splits": {"train": {"n": 2, "classes": {text: 1}}}, "shared": {}, "near": 0.7}
    asked = {"probe": text, "layers": text}
    results = curve((text, f"other {text}"), **names, audit=audit, asked=asked, versions={text: text}, lead=None)
    results.baselines[0] = type(results.baselines[0])(**{**vars(results.baselines[0]), "name": text})
    return report_html([ReportRun(Path("runs") / "x", results)], ReportOptions(tokens=False, title=text))


def test_no_text_becomes_a_tag_an_attribute_or_a_script():
    plain = Tags(page("plain"))
    assert plain.blocks
    for text in HOSTILE:
        found = Tags(page(text))
        assert found.tags == plain.tags, text
        names = {name for _, attrs in found.tags for name in attrs}
        assert not [name for name in names if name == "style" or name.startswith("on")]


@given(st.text(min_size=1, max_size=30))
@settings(max_examples=10)
def test_no_other_text_does_either(text):
    found, plain = Tags(page(text)).tags, Tags(page("plain")).tags
    assert [tag for tag, _ in found] == [tag for tag, _ in plain]
    assert {name for _, attrs in found for name in attrs} <= {name for _, attrs in plain for name in attrs} | {
        "transform"
    }


def test_the_browser_shows_them_and_runs_nothing(browser: Pages, tmp_path: Path):
    for i, text in enumerate(HOSTILE):
        path = tmp_path / f"page {i}.html"
        path.write_bytes(page(text).encode("utf-8"))  # a lone surrogate is an escape by now
        browser.open(path)
        browser.check_quiet(path)
        assert browser.do("return window.hacked") is None
        assert browser.do("return document.images.length") == 0
        assert browser.do("return getComputedStyle(document.body).display") != "none"
        seen = browser.do("return document.querySelector('h1').textContent")
        known = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
        assert seen.split() == known.split()


def test_texts_of_leaks_are_escaped():
    texts = [text for text in HOSTILE for _ in range(2)]
    task = Task(
        "t", texts, {"y": np.arange(len(texts)) % 2}, {"y": ["<a>", "b"]}, np.array(["train", "test"] * len(HOSTILE))
    )
    data = curve(
        audit={"lines": [], "shared": {"test in train": {"n": 1, "exact": 1, "near": 0}}, "near": 0.7}, label="y"
    )
    html = audit_section(data, task).html
    assert "pairs" in html
    assert {tag for tag, _ in Tags(html).tags} <= {
        "p",
        "details",
        "summary",
        "div",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
    }
    for text in HOSTILE[:6]:
        assert text not in html


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
    )
)
def test_json_blocks_hold_no_html_and_are_read_back(value):
    block = json_block({"": value})
    assert not re.search("[<>&\u2028\u2029\x7f-\U0010ffff]", block)
    assert json.loads(block) == {"": value}


@given(st.text())
def test_an_attribute_holds_any_text(text):
    (tag,) = Tags(element("g", text, aria_label=text)).tags
    assert tag == ("g", ("aria-label",))
