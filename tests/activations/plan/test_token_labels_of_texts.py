"""Labels of characters become labels of tokens: against a plain count of characters, for three kinds of tokenizers."""

import dataclasses
import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from activations.plan.test_word_tokens import TEXTS
from hypothesis import given
from hypothesis import strategies as st
from selection_cases import KINDS, gpt2
from store_cases import plan_of

from probekit.activations import ActivationSet, load_activations, repair
from probekit.activations.plan.summary import describe_plan
from probekit.errors import DataError
from probekit.models.families.gpt2 import GPT2
from probekit.models.tokenizer import Tokenizer
from probekit.tasks import Task, load_task
from probekit.tasks.base import SPLITS
from probekit.tasks.token_labels import Stretches, labels_of_tokens, stretches_of_characters
from probekit.verbs.extract import extract
from probekit.verbs.train_probes import train_probes

BYTE_LEVEL = KINDS["byte-level"]
NO = -1


def by_counting(characters: list[int | None], inside: list[bool], rest: int, offsets: Any) -> list[int]:
    """The label of each token, by counting its characters one by one.

    Args:
        characters: the label of each character that is in a stretch, else None.
        inside: of each character, whether it continues the stretch of the character before it.
        rest: the label of tokens outside all stretches.
        offsets: of the tokens.
    """
    found = []
    for start, end in offsets:
        own = [label for label in characters[start:end] if label is not None]
        if own:
            most = max(Counter(own).values())
            found.append(next(label for label in own if Counter(own)[label] == most))
        elif start == end and 0 < start < len(characters) and inside[start]:  # a token of blanks in a stretch
            found.append(characters[start])
        else:
            found.append(rest)
    return found


@pytest.mark.parametrize("kind", KINDS)
@given(text=TEXTS, data=st.data())
def test_tokens_have_the_label_of_most_of_their_characters(kind, text, data):
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=8)) | {0, len(text)})
    pieces = list(itertools.pairwise(cuts))
    labels = [data.draw(st.sampled_from([None, NO, 0, 1, 2])) for _ in pieces]
    rest = data.draw(st.sampled_from([NO, 2]))
    characters: list[int | None] = [None] * len(text)
    inside = [False] * len(text)
    for (start, end), label in zip(pieces, labels, strict=True):
        for i in range(start, end):
            characters[i], inside[i] = label, i > start and label is not None
    own = [(piece, label) for piece, label in zip(pieces, labels, strict=True) if label is not None]
    spans = np.array([piece for piece, _ in own], dtype=np.int64).reshape(-1, 2)
    stretches = Stretches(spans, np.array([*(label for _, label in own), rest]))
    offsets = Tokenizer(KINDS[kind]).offsets(text)
    found = labels_of_tokens(stretches, np.array(offsets, dtype=np.int64).reshape(-1, 2))
    assert found.tolist() == by_counting(characters, inside, rest, offsets)


@given(st.lists(st.sampled_from([NO, 0, 1, 2])), st.lists(st.sampled_from([np.nan, 0.5, -1.0])))
def test_labels_of_characters_are_stretches_of_equal_labels(classes, numbers):
    for labels in (np.array(classes, dtype=np.int64), np.array(numbers, dtype=np.float64)):
        found = stretches_of_characters(labels)
        again = np.full(len(labels), found.values[-1])
        for (start, end), value in zip(found.spans.tolist(), found.values, strict=False):
            again[start:end] = value
        assert np.array_equal(again, labels, equal_nan=labels.dtype.kind == "f")
        assert (found.spans[1:, 0] >= found.spans[:-1, 1]).all()


def test_a_token_over_two_stretches_has_the_longer_one_and_ties_go_to_the_first():
    stretches = Stretches(np.array([[0, 2], [2, 5], [5, 6], [6, 7]]), np.array([0, 1, 0, 2, NO]))
    offsets = np.array([[0, 5], [0, 6], [1, 3], [5, 7], [6, 9], [7, 9], [3, 3], [2, 2]])
    # 2 against 3; 3 of class 0 in two stretches against 3 of class 1; 1 against 1, twice; and tokens of blanks
    assert labels_of_tokens(stretches, offsets).tolist() == [1, 0, 0, 0, 2, NO, 1, NO]


WORDS = ["the", "cats", "see", "dogs", "don't", "café", "naïve"]
HOW: dict[str, Any] = {"points": "resid_pre,resid_post", "position": "all"}
FAST = {"controls": 0, "baselines": False, "codelength": False}


def make_model(n_ctx: int = 40) -> GPT2:
    return gpt2("byte-level", n_ctx=n_ctx, init_std=0.3)


@pytest.fixture(scope="module")
def model() -> GPT2:
    return make_model()


def texts(n: int = 36) -> list[str]:
    rng = np.random.default_rng(0)
    return [" ".join(rng.choice(WORDS, size=rng.integers(3, 8))) for _ in range(n)]


def stretches_of(text: str, label: str = "animal") -> list[dict[str, Any]]:
    """The animals, and a label for all other tokens."""
    found = [
        {"start": i, "end": i + 4, "label": label} for i in range(len(text)) if text[i : i + 4] in ("cats", "dogs")
    ]
    return [*found, {"label": "other"}]


def characters_of(text: str) -> list[str]:
    labels = ["other"] * len(text)
    for one in stretches_of(text)[:-1]:
        labels[one["start"] : one["end"]] = ["animal"] * 4
    return labels


def tokens_of(text: str) -> list[str]:
    """The tokens that hold a letter of an animal, found in the tokenizer's strings."""
    offsets = BYTE_LEVEL.encode(text, add_special_tokens=False).offsets
    animals = {i for one in stretches_of(text)[:-1] for i in range(one["start"], one["end"])}
    return ["animal" if animals & set(range(*offset)) else "other" for offset in offsets]


def task_of(of_tokens: Any, **changes: Any) -> Task:
    given = {"splits": np.array(SPLITS)[np.arange(36) % 3], "labels": {"long": [len(t) > 20 for t in texts()]}}
    return Task("animals", texts(), token_labels={"kind": of_tokens}, target="kind", **{**given, **changes})


@pytest.mark.parametrize("form", [stretches_of, characters_of, tokens_of])
@pytest.mark.parametrize("bos", [False, True])
def test_every_form_gives_the_labels_of_the_tokens(model, form, bos):
    task = task_of([form(text) for text in texts()])
    task.check()
    acts = extract(model, task, bos=bos, **HOW)
    wanted = [label for text in texts() for label in tokens_of(text)]
    rows = acts.at("all")
    assert [acts.label_names["kind"][k] for k in rows.labels["kind"]] == wanted
    assert rows.labels["long"].tolist() == [
        k for k, text in zip(task.labels["long"], texts(), strict=True) for _ in tokens_of(text)
    ]
    ids = [model.tokenizer.encode(text) for text in texts()]
    by_ids = dataclasses.replace(task, inputs=ids, token_labels={"kind": [tokens_of(text) for text in texts()]})
    same = extract(model, by_ids, bos=bos, **HOW).at("all")
    assert same.labels["kind"].tolist() == rows.labels["kind"].tolist()
    assert torch.equal(same["resid_post.1"], rows["resid_post.1"])


@pytest.mark.parametrize("form", [stretches_of, characters_of, tokens_of])
def test_texts_that_are_cut_keep_the_labels_of_their_first_tokens(form, tmp_path):
    small = make_model(n_ctx=7)
    task = task_of([form(text) for text in texts()])
    with pytest.warns(UserWarning, match="cut to the first 7 tokens"):
        acts = extract(small, task, out=tmp_path / "store", bos=True, **HOW)
    wanted = [label for text in texts() for label in tokens_of(text)[:6]]
    for one in (acts, load_activations(tmp_path / "store")):
        assert [one.label_names["kind"][k] for k in one.at("all").labels["kind"]] == wanted
    shard = next((tmp_path / "store" / "shards").iterdir())
    shard.write_bytes(shard.read_bytes()[:-1] + b"?")
    repair(tmp_path / "store", small)


def numbers_of(text: str) -> list[float | None]:
    return [None if label == "other" else float(k) for k, label in enumerate(tokens_of(text))]


def test_tokens_without_a_label_are_rows_that_no_probe_uses(model, tmp_path):
    """A probe of the labelled rows alone is the same probe."""
    classes = [[None if k % 3 == 0 else label for k, label in enumerate(tokens_of(text))] for text in texts()]
    task = Task(
        "animals",
        texts(),
        token_labels={"kind": classes, "at": [numbers_of(text) for text in texts()]},
        splits=np.array(SPLITS)[np.arange(36) % 3],
        target="kind",
    )
    extract(model, task, out=tmp_path / "store", **HOW)
    acts = load_activations(tmp_path / "store")
    rows = acts.at("all")
    for label, probe in (("kind", "logistic"), ("at", "ridge")):
        found = train_probes(acts, label=label, position="all", probe=probe, C=1.0, layers=1, **FAST)
        y = rows.labels[label]
        there = np.flatnonzero(y != NO if label == "kind" else ~np.isnan(y))
        assert 0 < len(there) < len(y)
        assert sum(found.meta["n"].values()) == len(there)
        names = {label: rows.label_names[label]}
        info = {key: value for key, value in rows.task.info.items() if key != "unlabelled"}
        plain = dataclasses.replace(
            rows.task.subset(there), labels={label: y[there]}, label_names=names, target=label, info=info
        )
        alone = ActivationSet({("resid_pre", 1): rows["resid_pre.1"][there]}, plain, rows.meta)
        again = train_probes(alone, probe=probe, C=1.0, layers=1, **FAST)
        assert found.best.metrics == again.best.metrics
        assert np.allclose(found.best.probe.coef_, again.best.probe.coef_)
        assert found.meta["interval"]["unit"] == "text"


@pytest.mark.parametrize("change", [1, -1])
def test_a_wrong_number_of_labels_is_named_with_both_numbers_or_skipped_and_counted(model, change):
    labels = [tokens_of(text) for text in texts()]
    n = len(labels[4])
    labels[4] = (labels[4] * 2)[: n + change]
    task = task_of(labels)
    with pytest.raises(DataError) as error:
        extract(model, task, **HOW)
    told = f"example '4': it has {n} tokens, {len(texts()[4])} characters and {n + change} labels of 'kind'; give one"
    assert told in str(error.value)
    acts = extract(model, task, on_bad_row="skip", **HOW)
    assert acts.n_examples == 35
    assert "4" not in acts.ids
    assert acts.task.info["skipped"] == {"token_labels": 1}
    wanted = [label for i, text in enumerate(texts()) for label in tokens_of(text) if i != 4]
    assert [acts.label_names["kind"][k] for k in acts.at("all").labels["kind"]] == wanted


@pytest.mark.parametrize(
    ("stretches", "words"),
    [
        ([{"start": 0, "end": 99, "label": "a"}], "expected a span from 0 to 7, the text's characters, got 0 to 99"),
        ([{"start": 3, "end": 2, "label": "a"}], "got 3 to 2"),
        ([{"start": 3, "end": 4, "label": "a"}], "holds only blanks"),
        ([{"start": 0, "end": "1", "label": "a"}], "expected whole numbers as start and end of a stretch, got"),
        ([{"start": 0, "end": True, "label": "a"}], "expected whole numbers as start and end"),
        ([{"start": 0, "end": 3}], "expected a stretch such as"),
        ([{"start": 0, "end": 3, "label": "a"}, 5], "expected a stretch such as"),
        ([{"start": 0, "end": 5, "label": "a"}, {"start": 4, "end": 6, "label": "b"}], "0 to 5 and 4 to 6 overlap"),
        ([{"label": "a"}, {"label": "b"}], "expected one label for the rest of the text, got 2"),
    ],
)
def test_stretches_that_cannot_be_used_are_named_with_their_example(stretches, words):
    good = [{"start": 0, "end": 3, "label": "a"}]
    with pytest.raises(DataError, match=words) as error:
        Task("t", ["the dog", "the cat"], token_labels={"kind": [good, stretches]}, ids=["x", "y"])
    assert "example 'y', token labels 'kind'" in str(error.value)


def test_labels_by_character_need_a_tokenizer():
    task = task_of([stretches_of(text) for text in texts()])
    from probekit.tasks.token_labels import token_rows

    with pytest.raises(DataError, match="'kind' are by character, and no tokenizer has made tokens of the texts"):
        token_rows(task, np.full(36, 2))
    with pytest.raises(DataError, match="has 1 characters, and token labels 'kind' up to character"):
        dataclasses.replace(task, inputs=["a"] * 36)


@pytest.mark.parametrize("selection", ["last", "first", 1, "-2:", "all", 'in:"X"', 'last@in:"X"'])
def test_a_selection_reads_the_labels_of_its_tokens(model, selection, tmp_path):
    """Read at once, or chosen from all tokens later, in memory and from a store: the label is that of the token."""
    marked = [f"the {text.replace('cats', 'cat')} X dogs" for text in texts()]
    labels = [tokens_of(text) for text in marked]
    task = Task("x", marked, token_labels={"kind": labels}, splits=np.array(SPLITS)[np.arange(36) % 3])
    ids = [model.tokenizer.encode(text) for text in marked]
    x = model.tokenizer.encode(" X")[-1]
    at = {
        "last": lambda n, k: [n - 1],
        "first": lambda n, k: [0],
        1: lambda n, k: [1],
        "-2:": lambda n, k: [n - 2, n - 1],
    }
    at |= {"all": lambda n, k: range(n), 'in:"X"': lambda n, k: [k], 'last@in:"X"': lambda n, k: [k]}
    wanted = [labels[i][j] for i, own in enumerate(ids) for j in at[selection](len(own), own.index(x))]
    is_ragged = selection in ("-2:", "all", 'in:"X"')
    extract(model, task, out=tmp_path / "store", **{**HOW, "position": selection})
    for acts in (load_activations(tmp_path / "store"), extract(model, task, **HOW)):
        read = acts.at(selection) if acts.layout.positions != [str(selection)] else acts
        rows = read.at("all") if is_ragged else acts.at(selection)
        assert [rows.label_names["kind"][k] for k in rows.labels["kind"]] == wanted


def test_tokens_that_the_model_wrote_have_no_label(model):
    """Labels of the prompt's tokens, or of its characters."""
    prompts, ids = texts(), [model.tokenizer.encode(text) for text in texts()]
    written = [f"{text} the dogs" for text in prompts]
    exact = [[*own, *model.tokenizer.encode(" the dogs")] for own in ids]
    n = np.array([len(whole) - len(own) for whole, own in zip(exact, ids, strict=True)])
    splits = np.array(SPLITS)[np.arange(36) % 3]
    for form in (tokens_of, stretches_of):
        task = Task(
            "x",
            written,
            token_labels={"kind": [form(text) for text in prompts]},
            token_ids=exact,
            generated=n,
            splits=splits,
        )
        acts = extract(model, task, **HOW)
        for one, prompt in zip(acts.task.token_labels["kind"], prompts, strict=True):
            names = [None if k == NO else acts.label_names["kind"][k] for k in one]
            assert names == [*tokens_of(prompt), *[None] * (len(one) - len(tokens_of(prompt)))]


def test_the_plan_shows_the_labels_of_the_first_text_and_counts_them(model):
    """The tokens and labels of the first text, so that a shift is seen before anything is computed."""
    task = task_of([stretches_of(text) for text in texts()])
    told = describe_plan(plan_of(model, task, **HOW))
    counts = Counter(label for text in texts() for label in tokens_of(text))
    assert f"labels   kind of each token: other={counts['other']}, animal={counts['animal']}" in told
    first = texts()[0]
    tokens = model.tokenizer.tokens(model.tokenizer.encode(first))
    shown = [f"{token!a} {label}" for token, label in zip(tokens, tokens_of(first), strict=True)]
    assert f"first    {', '.join(shown[:8])}" in told
    some = task_of([numbers_of(text) for text in texts()])
    told = describe_plan(plan_of(model, some, **HOW))
    missing = sum(number is None for text in texts() for number in numbers_of(text))
    assert f"without  {missing} tokens have no kind: no probe reads them" in told
    highest = max(number for text in texts() for number in numbers_of(text) if number is not None)
    assert f" to {highest:g}: a regression" in told


def test_chats_have_labels_of_the_tokens_of_the_rendered_text(model):
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
    chats = [
        [{"role": "user", "content": text[:6]}, {"role": "assistant", "content": text[6:12] + "!"}] for text in texts()
    ]
    rendered = [f"<user>{text[:6]}\n<assistant>{text[6:12]}!\n" for text in texts()]
    rows = [{"messages": chat, "tags": tokens_of(text)} for chat, text in zip(chats, rendered, strict=True)]
    task = load_task(rows, token_label_column="tags")
    acts = extract(model, task, chat_template=template, **HOW)
    assert acts.inputs == rendered
    wanted = [label for text in rendered for label in tokens_of(text)]
    assert [acts.label_names["tags"][k] for k in acts.at("all").labels["tags"]] == wanted
    last = acts.at("last@assistant")
    assert [acts.label_names["tags"][k] for k in last.labels["tags"]] == ["other"] * 36
    with pytest.raises(DataError, match="by character, and is a chat, whose text is made by a template"):
        load_task([row | {"tags": [{"start": 0, "end": 3, "label": "a"}]} for row in rows], token_label_column="tags")
