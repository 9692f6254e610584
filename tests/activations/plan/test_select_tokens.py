"""Each selection reads the tokens that a slow search finds, for three kinds of tokenizers; others name their row."""

# pyright: reportOptionalMemberAccess=false, reportOptionalSubscript=false, reportCallIssue=false, reportArgumentType=false

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from selection_cases import END, KINDS, MODELS, START, TASK, chats, gpt2, owned_characters, slow_part, slow_pick

from probekit.activations import load_activations
from probekit.activations.plan.reading.offsets import offsets_of
from probekit.activations.plan.reading.read_positions import read_positions
from probekit.activations.plan.token_ids import tokenise_inputs
from probekit.errors import DataError, UsageError
from probekit.evaluation.results.cautions import cautions
from probekit.tasks.base import Task
from probekit.verbs.extract import extract
from probekit.verbs.train_probes import train_probes

WORDS = st.sampled_from(
    ["the", "cats", " ", "  ", "\n", "\n\n", "café", "日", "🙂", "don't", "yes", "a", "\u00a0", START, END, "e\u0301"]
)
CONTENT = st.lists(WORDS, max_size=6).map("".join)
CHATS = st.lists(st.tuples(st.sampled_from(["user", "assistant", "system"]), CONTENT), min_size=1, max_size=4)
PICKS = st.one_of(
    st.sampled_from(["last", "first", "mean", "all"]),
    st.integers(-6, 12).map(str),
    st.tuples(st.integers(-6, 6) | st.none(), st.none()).map(lambda ends: f"{'' if ends[0] is None else ends[0]}:"),
    st.tuples(st.integers(0, 5), st.integers(6, 9)).map(lambda ends: f"{ends[0]}:{ends[1]}"),
)
PARTS = st.one_of(
    st.none(),
    st.tuples(st.just("role"), st.tuples(st.sampled_from(["user", "assistant"]), st.none() | st.sampled_from([0, -1]))),
    st.tuples(st.sampled_from(["in", "before", "after"]), st.sampled_from(["the", "yes", "é", "user\n", "s don't"])),
)


def written(pick: str, part: Any) -> str:
    if part is None:
        return pick
    kind, name = part
    if kind == "role":
        return f"{pick}@{name[0]}" + ("" if name[1] is None else f"[{name[1]}]")
    return f'{pick}@{kind}:"{name}"'


def slow_tokens(model: Any, task: Task, pick: str, part: Any, skip_special: bool) -> list[list[int]]:
    found = []
    for text, regions in zip(task.inputs, task.regions or [], strict=True):
        ids = model.tokenizer.encode(text)
        tokens = slow_part(part, str(text), regions, owned_characters(model.tokenizer, str(text)))
        if skip_special:
            tokens = [k for k in tokens if ids[k] not in model.tokenizer.special_ids]
        found.append(slow_pick(pick, tokens))
    return found


@pytest.mark.parametrize(("name", "bos"), [*((kind, False) for kind in KINDS), ("byte-level", True), ("bert", True)])
@given(several=st.lists(CHATS, min_size=1, max_size=3), pick=PICKS, part=PARTS, skip_special=st.booleans())
@settings(max_examples=40)
def test_a_selection_reads_the_tokens_of_a_slow_search(name, bos, several, pick, part, skip_special):
    model, task = MODELS[name], chats(*several)
    expected = slow_tokens(model, task, pick, part, skip_special)
    sequences = tokenise_inputs(model, task, bos, "error")
    reading, bad = read_positions(model, task, sequences, written(pick, part), skip_special)
    assert sorted(bad) == [row for row, tokens in enumerate(expected) if not tokens]
    if bad:
        return
    (read,), lengths = reading.reads, sequences.own_lengths
    if read.index is None:  # all of each text
        index, counts = np.concatenate([np.arange(n) for n in lengths]), lengths
    else:
        index, counts = read.index - sequences.n_bos, read.counts
    counts = np.ones(len(task), dtype=int) if counts is None else counts
    assert [one.tolist() for one in np.split(index, np.cumsum(counts)[:-1])] == expected
    assert read.is_mean == (pick == "mean")


@pytest.mark.parametrize("name", KINDS)
@given(st.lists(WORDS, max_size=8).map("".join), st.data())
@settings(max_examples=60)
def test_exact_token_ids_are_found_in_their_text(name, text, data):
    """Of ids that the tokenizer would not have chosen, the letters that each covers are still found."""
    model = MODELS[name]
    ids = model.tokenizer.encode(text)
    cut = data.draw(st.integers(0, len(text)))
    halves = [*model.tokenizer.encode(text[:cut]), *model.tokenizer.encode(text[cut:])]
    if name != "byte-level" or not ids or model.tokenizer.decode(halves) != text:
        halves = ids
    if not ids:
        return
    task = Task("t", [text], token_ids=[halves])
    (found,) = offsets_of(model, task, tokenise_inputs(model, Task("t", [halves]), False, "error"))
    first = model.tokenizer.offsets_batch([text[:cut]])[0]
    second = [(a + cut, b + cut) for a, b in model.tokenizer.offsets_batch([text[cut:]])[0]]
    expected = model.tokenizer.offsets_batch([text])[0] if halves == ids else [*first, *second]
    letters = [[i for i in range(a, b) if not text[i].isspace()] for a, b in expected]
    assert [[i for i in range(a, b) if not text[i].isspace()] for a, b in found.tolist()] == letters


SELECTIONS = [
    "last", "first", "mean", 2, -3, "all", "-5:", "2:4", "last@assistant", "mean@user", "all@user", "first@user[-1]",
    "all@assistant[0]", "1:@user", "-2@user", 'before:"<|im_start|>assistant"', 'last@after:"assistant"',
]  # fmt: skip


@pytest.mark.parametrize("position", SELECTIONS)
@pytest.mark.parametrize("name", ["byte-level", "bert"])
def test_a_store_of_all_tokens_gives_what_extraction_gives(name, position, tmp_path):
    """Without the tokenizer."""
    model = MODELS[name]
    own = extract(model, TASK, position=position)
    stored = extract(model, TASK, position="all", out=tmp_path / "store")
    stored = load_activations(tmp_path / "store")
    at = stored.at(position) if position != "all" else stored
    torch.testing.assert_close(at["resid_pre", 1], own["resid_pre", 1], rtol=1e-5, atol=1e-6)
    for known in ("picked", "token_index", "tokens"):
        mine, its = getattr(own.layout, known), getattr(at.layout, known)
        assert (mine is None and its is None) or known == "tokens" or mine.tolist() == its.tolist()
    again = extract(model, TASK, position=position, out=tmp_path / "own")
    loaded = load_activations(tmp_path / "own")
    assert torch.equal(loaded["resid_pre", 1], again["resid_pre", 1])
    for known in ("picked", "token_index", "tokens", "characters"):
        mine, its = getattr(own.layout, known), getattr(loaded.layout, known)
        assert (mine is None and its is None) or mine.tolist() == its.tolist()


@pytest.mark.parametrize("name", ["byte-level", "bert"])
def test_what_is_kept_is_the_rows_of_the_text_alone(name):
    """Packed with others or not."""
    model, place = MODELS[name], ("resid_pre", 1)
    for position in ("all@user", "mean@assistant", "-2@user"):
        together = extract(model, TASK, position=position).per_text(place)
        for row, own in enumerate(together):
            alone = extract(model, TASK.subset(np.array([row])), position=position).per_text(place)[0]
            torch.testing.assert_close(own, alone, rtol=1e-5, atol=1e-6)


UNREADABLE = [
    ("last@asistant", DataError, r"'0': no message has the role 'asistant', its roles are 'system', 'user'"),
    ("last@assistant[1]", DataError, "example '0': it has 1 message of the role 'assistant', and number 1"),
    ('in:"zebra"', DataError, "example '0': 'zebra' does not occur in it"),
    ('in:"the cats"', DataError, "example '1': 'the cats' does not occur in it.*2 such rows"),
    ('last@in:"user"', DataError, r"twice or more, at character 53 in \.\.\.'.*user.*'\.\.\. and at [0-9]+ in .*user"),
    ("90:99", DataError, "example '0': it has [0-9]+ tokens, and slice 90:99 is to be read"),
    ("40@user", DataError, "example '0': it has [0-9]+ tokens of user, and token 40 is to be read"),
    ("last@generated", UsageError, "needs texts that the model continued"),
    ("last@", UsageError, "expected a part of the text after @"),
    (["last", "all@user"], UsageError, "'all@user' keeps several tokens of a text"),
    (["last", "last"], UsageError, "must all differ"),
    ([], UsageError, "the tokens to read, got none"),
    (["last", 1.5], UsageError, r"got 1\.5"),
    (["last", [1, 2]], DataError, r"one position for each of the 3 examples, got \[2\]"),
]


@pytest.mark.parametrize(("position", "error", "message"), UNREADABLE)
def test_what_cannot_be_read_is_named_with_its_row(position, error, message):
    with pytest.raises(error, match=message):
        extract(MODELS["byte-level"], TASK, position=position)


def test_a_role_needs_a_chat_and_characters_need_texts():
    with pytest.raises(UsageError, match="needs a chat, rows of messages with roles"):
        extract(MODELS["byte-level"], ["the cats"], position="last@user")
    with pytest.raises(UsageError, match="only token ids are known"):
        extract(MODELS["byte-level"], [[1, 2]], position='in:"the"')


def test_rows_that_cannot_be_read_are_left_out_and_counted():
    acts = extract(MODELS["byte-level"], TASK, position='in:"cats see"', on_bad_row="skip")
    assert acts.ids == ["0"]
    assert acts.task.info["skipped"] == {"no such token": 2}
    assert acts.task.info["skipped_rows"] == 2
    kept = extract(MODELS["byte-level"], TASK.subset(np.array([0])), position='in:"cats see"')
    torch.testing.assert_close(acts["resid_pre", 1], kept["resid_pre", 1])
    every = extract(MODELS["byte-level"], TASK, position="all")
    for position in ("mean@assistant[0]", "last@user[-2]", 'all@before:"no"', "all@user[1]"):
        own = extract(MODELS["byte-level"], TASK, position=position, on_bad_row="skip")
        later = every.at(position, on_bad_row="skip")
        assert later.ids == own.ids
        assert later.task.info == own.task.info
        torch.testing.assert_close(later["resid_pre", 1], own["resid_pre", 1])
        assert later.layout.token_index.tolist() == own.layout.token_index.tolist()
        assert later.layout.lengths.tolist() == own.layout.lengths.tolist()
    assert len(extract(MODELS["byte-level"], TASK, position='all@before:"no"', on_bad_row="skip").ids) < len(TASK)
    with pytest.raises(DataError, match=r"example '1': 'cats see dogs\?' .*2 such rows.*--on-bad-row skip leaves them"):
        every.at('before:"cats see dogs?"')
    with pytest.raises(DataError, match="all 3 rows are left out; example '0': 'zebra' does not occur"):
        extract(MODELS["byte-level"], TASK, position='in:"zebra"', on_bad_row="skip")


def test_probes_leave_out_texts_without_the_token():
    """As from activations of the other texts alone, and the results say how many."""
    several = [[("user", ["the dogs", "the cats"][i % 2]), *[("assistant", "no")] * (i % 7 > 0)] for i in range(42)]
    splits = ["train"] * 14 + ["validation"] * 14 + ["test"] * 14
    task = chats(*several, labels=[i % 2 for i in range(42)], splits=splits)
    every = extract(MODELS["byte-level"], task, position="all")
    how: Any = {"quick": True, "C": 1.0, "intervals": False}
    results = train_probes(every, position="last@assistant", on_bad_row="skip", **how)
    left = [row for row, chat in enumerate(several) if len(chat) > 1]
    alone = extract(MODELS["byte-level"], task.subset(np.array(left)), position="last@assistant")
    own = train_probes(alone, **how)
    briers = [[layer.metrics["test"]["brier"] for layer in one.layers] for one in (results, own)]
    assert briers[0] == pytest.approx(briers[1])
    assert cautions(results)[-1:] == ["6 texts without the token to read left out"]
    with pytest.raises(DataError, match=r"6 such rows in all; --on-bad-row skip leaves them out"):
        train_probes(every, position="last@assistant", **how)
    with pytest.raises(UsageError, match=r"on_bad_row .* is one of error, skip; got 'leave'"):
        train_probes(every, position="last@assistant", on_bad_row="leave", **how)


def test_given_tokens_follow_the_rows_that_are_left():
    model, index = MODELS["byte-level"], np.array([1, 2, 3])
    acts = extract(model, TASK, position=[index, 'before:"1,000 cats"'], on_bad_row="skip")
    assert acts.ids == ["1"]
    assert acts.layout.token_index[0] == 2
    asked = [[{"role": "user", "content": text}] for text in ("the cats", "no", "a dog")]
    template = "{% if messages[0].content == 'no' %}{{ raise_exception('no') }}{% endif %}{{ messages[0].content }}"
    acts = extract(model, asked, position=index - 1, chat_template=template, on_bad_row="skip")
    assert acts.layout.token_index.tolist() == [0, 2]
    with pytest.raises(DataError, match=r"expected one position for each of the 3 examples, got \[2\]"):
        extract(model, TASK, position=index[:2])


def test_a_part_that_is_cut_off_at_the_context_is_not_read_elsewhere():
    model = gpt2("byte-level", n_ctx=60)
    long = chats([("user", "the cats"), ("assistant", "no " * 60), ("user", "yes")])
    with pytest.warns(UserWarning, match="cut to the first 60 tokens"):
        every = extract(model, long, position="all")
    with pytest.warns(UserWarning, match="cut to the first 60 tokens"):
        first = extract(model, long, position="first@assistant").layout.token_index
    assert every.at("first@assistant").layout.token_index.tolist() == first.tolist()
    for position in ("last@assistant", "all@user[1]", "-1@assistant"):
        for read in (lambda at: extract(model, long, position=at), every.at):
            with pytest.raises(DataError, match=r"example '0': the role .* is cut off at the model's context"):
                read(position)
    with pytest.warns(UserWarning, match="cut to the first 60 tokens"):
        assert extract(model, long, position="last").layout.token_index.tolist() == [59]


def test_special_tokens_of_the_text_are_left_out():
    model = MODELS["byte-level"]
    acts = extract(model, TASK, position="all", skip_special=True)
    special = model.tokenizer.special_ids
    ids = [model.tokenizer.encode(text) for text in TASK.inputs]
    assert acts.layout.tokens.tolist() == [i for own in ids for i in own if i not in special]
    last = extract(model, TASK, position=-2, skip_special=True)
    assert last.layout.tokens.tolist() == [[i for i in own if i not in special][-2] for own in ids]
    bare = gpt2("byte-level")
    bare.tokenizer = None
    with pytest.raises(UsageError, match="no tokenizer that lists special tokens"):
        extract(bare, [[1, 2]], skip_special=True)


def test_prompt_and_generated_tokens():
    model = MODELS["byte-level"]
    prompts, texts = ["the cats", "a yes"], ["the cats see", "a yes no: the"]
    ids = [model.tokenizer.encode(text) for text in texts]
    generated = np.array([len(own) - len(model.tokenizer.encode(one)) for own, one in zip(ids, prompts, strict=True)])
    task = Task("t", texts, token_ids=ids, generated=generated)
    every = extract(model, task, position="all")
    for position, at in (("all@generated", slice(None)), ("last@prompt", slice(-1, None)), ("0@generated", slice(1))):
        part = [(own[-n:] if "generated" in position else own[:-n])[at] for own, n in zip(ids, generated, strict=True)]
        acts = extract(model, task, position=position)
        assert acts.layout.tokens.tolist() == [i for own in part for i in own]
        torch.testing.assert_close(every.at(position)["resid_pre", 1], acts["resid_pre", 1])
    nothing = Task("t", texts, token_ids=ids, generated=np.array([0, 2]))
    with pytest.raises(DataError, match="example '0': the model wrote nothing"):
        extract(model, nothing, position="last@generated")


@pytest.mark.parametrize("name", ["byte-level", "bert"])
def test_words_are_read_at_any_selection_of_their_tokens(name):
    """And a selection with a part is of the text."""
    words = Task("t", ["see the don't café", "yes: naïve dogs"], spans=np.array([[4, 13], [5, 10]]), regions=None)
    model, place = MODELS[name], ("resid_pre", 1)
    every = extract(model, words, position="all")
    for position, one in (("last", -1), ("first", 0), (-1, -1), ("0:1", slice(0, 1))):
        own = extract(model, words, position=position).per_text(place)
        for mine, tokens in zip(own, every.per_text(place), strict=True):
            torch.testing.assert_close(mine, tokens[one], rtol=1e-5, atol=1e-6)
    means = extract(model, words, position="mean")[place]
    for mine, tokens in zip(means, every.per_text(place), strict=True):
        torch.testing.assert_close(mine, tokens.mean(0), rtol=1e-5, atol=1e-6)
    own = extract(model, words, position='before:"naïve"', on_bad_row="skip")
    of_text = extract(model, Task("t", words.inputs), position='before:"naïve"', on_bad_row="skip")
    assert own.ids == of_text.ids == ["1"]
    torch.testing.assert_close(own[place], of_text[place])


def test_tokens_that_were_not_kept_are_called_so():
    acts = extract(
        MODELS["byte-level"], chats([("user", "the cats"), ("assistant", "yes no")]), position="all@assistant"
    )
    for position in ('after:"cats"', "last@user", 'before:"yes"', 'after:"no"'):
        with pytest.raises(DataError, match=r"example '0': no token .* was kept; .*extract again with --position all"):
            acts.at(position)


def test_a_view_is_shown_as_it_is_made():
    acts = extract(MODELS["byte-level"], TASK, position="all")
    assert repr(acts.at("last@user")) == f"{acts!r}.at('last@user')"
    assert repr(acts.at("all")) == f"{acts!r}.at('all')"
    with pytest.raises(UsageError, match="expected the tokens to read, got 'per example'"):
        acts.at("per example")
