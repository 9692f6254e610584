"""The marked tokens are those whose activations are kept, and formatting tokens are called so."""

# pyright: reportOptionalSubscript=false, reportCallIssue=false, reportArgumentType=false, reportPossiblyUnboundVariable=false

import re
from dataclasses import replace

import numpy as np
import pytest
from selection_cases import END, MODELS, START, TASK, chats

from probekit import show_reading
from probekit.activations import describe_plan, plan_extraction
from probekit.activations.plan.reading.show import formatting_note, formatting_tokens
from probekit.options import ExtractOptions
from probekit.plots import plot_reading, save_reading_plot
from probekit.tasks.base import Task
from probekit.verbs.extract import extract


@pytest.mark.parametrize("position", ["last", "mean@user", "all@assistant", ["first", "last@user"], "-4:"])
@pytest.mark.parametrize("name", ["byte-level", "bert"])
def test_the_marked_tokens_are_the_ones_that_are_kept(name, position):
    model = MODELS[name]
    shown = show_reading(model, TASK, position, options=ExtractOptions(bos=True))
    every = extract(model, TASK, position="all", bos=True)
    starts = every.layout.offsets(("", None))
    for one in position if isinstance(position, list) else [position]:
        parts = one.split("@") if "mean" in one else ["all", one]
        kept = every.at(f"all@{parts[1]}" if "mean" in one else one).layout
        for row, counts in enumerate(kept.counts(("", None))):
            tokens = np.split(kept.token_index, np.cumsum(kept.counts(("", None)))[:-1])[row]
            marked = {k for k, token in enumerate(shown[row].tokens) if token.is_read}
            assert len(tokens) == counts
            assert {int(k) + 1 for k in tokens} <= marked  # after the BOS
            assert len(shown[row].tokens) == starts[row + 1] - starts[row] + (2 if name == "bert" else 1)
    if not isinstance(position, list):
        assert sum(token.is_read for row in shown for token in row.tokens) == len(kept.token_index)


def test_formatting_is_what_no_message_says():
    model = MODELS["byte-level"]
    plan = plan_extraction(model, TASK, ExtractOptions(position=["last", "last@assistant"]))
    for row, (formatting, text) in enumerate(zip(formatting_tokens(plan, 3), TASK.inputs, strict=True)):
        contents = [str(text)[start:end] for _, start, end in TASK.regions[row]]
        tokens = model.tokenizer.tokens(model.tokenizer.encode(text))
        content = "".join(token for token, no in zip(tokens, formatting, strict=True) if not no)
        assert content == "".join(contents)
    lines = {line.split()[0]: line for line in describe_plan(plan).split("\n")}
    assert "last token is a formatting token, not content, in 3 of 3 rows" in lines["note"]
    assert "last token of assistant" not in lines["note"].split(";")[0]
    only = plan_extraction(model, TASK, ExtractOptions(position="last@assistant"))
    assert "\nnote " not in describe_plan(only)
    special = plan_extraction(model, Task("t", ["the cats", f"the cats{END}"]), ExtractOptions())
    assert "last token is a special token, not content, in 1 of 2 rows" in describe_plan(special)


def test_text_from_data_is_escaped_and_long_texts_are_shortened():
    text = "the \x1b[31m cats <b>" + "the cats " * 40 + "end\n"
    shown = show_reading(MODELS["byte-level"], Task("t", [text], ids=["<i>\x1b"]), "last")
    assert "\x1b" not in repr(shown)
    assert len(repr(shown).splitlines()) == 2
    assert len(repr(shown).splitlines()[1]) < 80
    assert repr(shown).endswith("{{\\n}}")
    every = show_reading(MODELS["byte-level"], Task("t", [text], ids=["<i>\x1b"]), "all")
    assert "\\x1b[31m cats <b>" in repr(every)
    page = every._repr_html_()
    assert "<b>the" not in page
    assert "&lt;b&gt;" in page
    assert "&lt;i&gt;" in page
    assert "\x1b" not in page
    assert len(repr(every).splitlines()[1]) < 90


def test_the_record_says_which_tokens(tmp_path):
    shown = show_reading(MODELS["pieces"], TASK, "last", rows=2)
    assert len(shown) == 2
    for one, text in zip(shown.as_dict(), TASK.inputs, strict=False):
        assert one["text"].split() == str(text).replace(START, f"{START} ").replace(END, f"{END} ").split()
        assert [token[2] for token in one["tokens"]] == [True]
        assert re.fullmatch(r"last token: token [0-9]+ of 0-[0-9]+, '.*', a formatting token", one["reads"][0])
    assert save_reading_plot(shown, tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"
    drawn = [text.get_text() for text in plot_reading(shown).texts]
    assert START in drawn


def test_words_without_blanks_are_shown_with_them():
    shown = show_reading(MODELS["word pieces"], chats([("user", "the cat is not a dog")]), "last@user")
    assert "the ca" in repr(shown).replace("##", "")
    assert " dog" in "".join(token.text for token in shown[0].tokens).replace("##", "")


def test_every_position_is_marked_however_many_stretches_another_has():
    chat = chats([("user", "the cats"), ("assistant", "yes no")] * 9)
    text = str(show_reading(MODELS["byte-level"], chat, ["mean@assistant", "last", "first@user"])).splitlines()[-1]
    marked = re.findall(r"{{(.*?)}}", text)
    assert marked == ["the", *["yes no"] * 5, "\\n"]  # the first four stretches of the mean, and its last
    outside = re.sub(r"{{.*?}}", "", text)
    assert "yes no" not in outside
    assert outside.count("...") == 1


@pytest.mark.parametrize(
    ("position", "info", "is_said"),
    [
        ("last", {}, True),
        ('after:"yes no"', {}, False),
        ("last", {"chat": {"add_generation_prompt": True}}, False),
        ("last", {"chat": {"add_generation_prompt": True, "has_no_generation_prompt": True}}, True),
        (["first", "last"], {"chat": {"add_generation_prompt": False}}, True),
    ],
)
def test_the_last_content_is_offered_where_the_last_token_is_taken(position, info, is_said):
    chat = replace(chats([("user", "the cats"), ("assistant", "yes no")]), info=info)
    said = formatting_note(plan_extraction(MODELS["byte-level"], chat, ExtractOptions(position=position)))
    assert "is a formatting token" in said
    assert ("last@assistant reads the last content" in said) == is_said
