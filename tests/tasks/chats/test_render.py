"""Chats as texts: equal to those of `transformers`, with the contents where a plain reference writes them."""

import json
import signal
import subprocess
import sys
from datetime import datetime
from typing import Any

import pytest
from chat_templates import HOSTILE, LOOP, ODD, STYLES, TOKENS
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.utils.chat_template_utils import render_jinja_template

from probekit.errors import DataError, ProbekitError
from probekit.tasks.chats import render
from probekit.tasks.chats.render import ChatTemplate, render_chats

CHAT = [
    {"role": "system", "content": " Be <b>brief</b>. "},
    {"role": "user", "content": 'Is "5" prime?\n'},
    {"role": "assistant", "content": "<think>\n2 no, 3 no\n</think>\n\nYes"},
    {"role": "user", "content": "5"},
    {"role": "assistant", "content": "<think>why</think>\nprime é 日本 {{ messages }}"},
]
CONTENTS = [" Be <b>brief</b>. ", 'Is "5" prime?\n']  # of the first two
contents = st.text(st.sampled_from(" \n\tab5<>|[]{}%'\"\\é日\ue000\ue001\u2028"), max_size=12) | st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8
)


def oracle(template: str, chat: list[dict], prompt: bool = False) -> str:
    given: dict[str, Any] = {"chat_template": template, "add_generation_prompt": prompt, **TOKENS}
    (text,), _ = render_jinja_template([chat], **given)
    return text


def rendered(template: str, chats: list[list[dict]], prompt: bool = False) -> list[render.Rendering]:
    return list(render_chats(ChatTemplate(template, "test.jinja", TOKENS), chats, prompt))


def alternating(texts: list[str], system: bool) -> list[dict]:
    roles = [*(["system"] if system else []), *["user", "assistant"] * len(texts)]
    return [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]


@pytest.mark.parametrize("style", STYLES)
@settings(max_examples=4)
@given(
    chats=st.lists(
        st.builds(alternating, st.lists(contents, min_size=2, max_size=5), st.booleans()), min_size=5, max_size=20
    ),
    prompt=st.booleans(),
)
def test_texts_and_contents_are_those_of_the_references(style, chats, prompt):
    template, pieces_of = STYLES[style]
    for chat, (text, regions, flaw, _) in zip(chats, rendered(template, chats, prompt), strict=True):
        pieces = pieces_of(chat, prompt)
        assert flaw is None
        assert text == oracle(template, chat, prompt) == "".join(piece for piece, _ in pieces)
        at, expected = 0, []
        for piece, role in pieces:
            expected += [] if role is None else [(role, at, at + len(piece))]
            at += len(piece)
        assert regions == expected


@pytest.mark.parametrize("what", ODD)
def test_odd_templates_give_the_texts_of_transformers(what):
    (one,) = rendered(ODD[what], [CHAT])
    assert one.text == oracle(ODD[what], CHAT)


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        (
            "thoughts left out of earlier turns",
            [*CONTENTS, "Yes", "5", "<think>\nwhy\n</think>\n\nprime é 日本 {{ messages }}"],
        ),
        (
            "an empty thought in the last turn",
            [*CONTENTS, "Yes", "5", "prime é 日本 {{ messages }}"],
        ),
        ("loop controls and namespaces", ['Is "5" prime?\n', CHAT[2]["content"], "5"]),
        ("json", [" Be <b>brief</b>. ", r"Is \"5\" prime?\n", r"<think>\n2 no, 3 no\n</think>\n\nYes", "5"]),
        ("macros", ["BE <B>BRIEF</B>.", 'IS "5" PRIME?']),
        ("generation blocks", CONTENTS),
        ("the last message first", ["<think>why</think>\nprime é 日本 {{ messages }}", "5"]),
    ],
)
def test_contents_are_found_in_what_odd_templates_write(what, expected):
    """What the template made of a content is that message's part; a message that it leaves out has none."""
    (one,) = rendered(ODD[what], [CHAT])
    assert one.flaw is None
    assert [one.text[start:end] for _, start, end in one.regions][: len(expected)] == expected


def test_a_content_that_is_written_twice_has_no_place():
    (one,) = rendered("{% for m in messages %}{{ m.content }}{% endfor %}{{ messages[1].content }}", [CHAT])
    assert one.flaw == ("parts", "does not write the content of message 1 (user) once, in one piece")


@pytest.mark.parametrize(
    "template", ["{{ messages[0].role }}", "{% for c in messages[0].content %}{{ c.text }}{% endfor %}x"]
)
def test_a_template_that_writes_no_content_is_refused(template):
    """Such as one that takes contents as lists of parts alone: all its texts would be the same."""
    (one,) = rendered(template, [CHAT])
    assert one.flaw == ("parts", "writes none of the contents of the messages")


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_templates_are_refused_and_the_next_chat_goes_on(what):
    template, kind = HOSTILE[what]
    guarded = "{% if messages[0].content == 'go' %}" + template + "{% endif %}{{ messages[0].content }}"
    chats = [[{"role": "user", "content": text}] for text in ("first", "go", "last")]
    first, bad, last = rendered(guarded, chats)
    assert bad.flaw is not None
    assert bad.flaw[0] == kind
    assert all(character.isprintable() for character in bad.flaw[1])
    assert (first.text, last.text) == ("first", "last")


def test_a_template_without_end_is_ended(monkeypatch):
    monkeypatch.setattr(render, "SECONDS", 0.4)
    chats = [[{"role": "user", "content": text}] for text in ("go", "last")]
    bad, last = rendered("{% if messages[0].content == 'go' %}" + LOOP + "{% endif %}{{ messages[0].content }}", chats)
    assert bad.flaw == ("time", "takes more than 0.4 s")
    assert last.text == "last"


def test_large_and_small_chats_come_in_order_whatever_the_template_does_between(monkeypatch):
    """Chats are sent ahead of their answers; after a process is ended, those without an answer are sent again."""
    monkeypatch.setattr(render, "SECONDS", 1.0)
    sizes = [3, 200_000, 5, 40_000, 4, 4, 20_000, *range(1, 300), 70_000]
    chats = [[{"role": "user", "content": f"{i} " + "x" * size}] for i, size in enumerate(sizes)]
    for i, what in ((2, "loop"), (5, "memory"), (40, "no")):
        chats[i][0]["content"] = what
    template = (
        "{% set c = messages[0].content %}{% if c == 'loop' %}" + LOOP + "{% elif c == 'memory' %}"
        "{{ 'a' * 10 ** 11 }}{% elif c == 'no' %}{{ raise_exception('no') }}{% endif %}{{ c }}"
    )
    found = rendered(template, chats)
    assert [one.flaw and one.flaw[0] for one in found if one.flaw] == ["time", "memory", "refused"]
    assert all(one.flaw or one.text == chat[0]["content"] for one, chat in zip(found, chats, strict=True))
    assert len(found) == len(chats)


def test_a_template_that_computes_with_a_content_does_not_write_it():
    """The marks in the places of contents are no numbers, which ends no run but that of this row."""
    chats = [[{"role": "user", "content": "7"}, {"role": "assistant", "content": text}] for text in ("yes", "no")]
    found = rendered("{{ 10 // (messages[0].content | int) }} {{ messages[1].content }}", chats)
    assert {one.flaw for one in found} == {
        ("parts", "does not write the content of message 0 (user) once, in one piece")
    }


@pytest.mark.parametrize("template", ["{% if", "{{ 1 + }}", "{% nothing %}", "{% for x in y %}", "{{ x | nothing }}"])
def test_what_is_no_template_is_refused(template):
    with pytest.raises(DataError, match=r"the chat template of test.jinja is no valid Jinja, line 1"):
        rendered(template, [CHAT])


def test_the_process_has_no_secrets_and_can_open_no_file(monkeypatch, tmp_path):
    """A template that got out of the sandbox would find nothing: here it is let out."""
    monkeypatch.setenv("HF_TOKEN", "secret")
    worker = render.WORKER.read_text(encoding="utf-8")
    let_out = worker.replace("ImmutableSandboxedEnvironment(", "jinja2.Environment(")
    assert let_out != worker
    (tmp_path / "worker.py").write_text(let_out, encoding="utf-8")
    monkeypatch.setattr(render, "WORKER", tmp_path / "worker.py")
    for call, kind in {
        "environ.get('HF_TOKEN', 'none')": None,
        "open('/', 0)": "failed",
        "close(2) or cycler.__init__.__globals__.os.open('/', 0)": "failed",  # the number 2 is free again
        "popen('id')": "failed",
    }.items():
        template = "{{ cycler.__init__.__globals__.os." + call + " }}{{ messages[0].content }}"
        (one,) = rendered(template, [CHAT[1:2]])
        assert (one.flaw and one.flaw[0]) == kind
        assert kind or one.text.startswith("none")


def test_a_process_whose_parent_was_killed_ends():
    """It has a clock of its own, as a template without end reads no closed pipe."""
    job = {"template": "{{ messages[0].content }}" + LOOP, "given": {}, "most": 10**6, "memory": 1 << 30}
    lines = [{**job, "now": "2026-01-02", "seconds": 0.3}, [{"role": "user", "content": "go"}]]
    process = subprocess.Popen(
        [sys.executable, "-P", str(render.WORKER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    said, _ = process.communicate("".join(json.dumps(line) + "\n" for line in lines).encode(), timeout=60)
    assert said == b"{}\n{}\n"
    assert process.returncode == -signal.SIGALRM


def test_all_chats_have_one_time():
    """Two renderings of a chat are compared, and a run has one date."""
    found = rendered("{{ strftime_now('%H:%M:%S.%f') }} {{ messages[0].content }}", [CHAT, CHAT])
    assert found[0] == found[1]
    assert found[0].flaw is None
    assert datetime.fromisoformat(str(found[0].date)).date() <= datetime.now().date()


def test_a_process_that_does_not_start_is_no_fault_of_the_template(monkeypatch, tmp_path):
    monkeypatch.setattr(render, "WORKER", tmp_path / "none.py")
    with pytest.raises(ProbekitError, match=r"the process that runs chat templates does not start; try it: .*none\.py"):
        rendered("{{ messages[0].content }}", [CHAT])
