"""Words of texts: each has exactly the tokens that hold a part of it, and their activations in the text alone."""

from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from selection_cases import KINDS
from store_cases import plan_of
from tokenizers import Tokenizer as Backend
from transformers.convert_slow_tokenizer import bytes_to_unicode

from probekit.activations import Store, load_activations
from probekit.activations.plan.reading.read_positions import token_spans
from probekit.activations.plan.summary import describe_plan, plan_as_dict
from probekit.errors import DataError, UsageError
from probekit.models.families.gpt2 import GPT2, GPT2Config
from probekit.models.tokenizer import Tokenizer
from probekit.models.tokenizer_files import read_tokenizer
from probekit.tasks import load_task
from probekit.tasks.base import Task
from probekit.verbs.extract import extract

PIECES = st.sampled_from(
    [*"abcdeé “”日🙂.,'-", " ", "  ", "the", "cats", "don't", "café", "\u00a0", "\u0301", "ﬁ", "Å"]
)
TEXTS = st.lists(PIECES, min_size=1, max_size=12).map("".join).filter(str.strip)
BYTES = {letter: byte for byte, letter in bytes_to_unicode().items()}


BYTE_LEVEL, SENTENCE_PIECE, WORD_PIECE = KINDS.values()


def as_bytes(token: str, is_piece: bool) -> bytes:
    """What a token of SentencePiece's or of GPT-2's kind means."""
    if not is_piece:
        return bytes(BYTES[letter] for letter in token)
    return bytes([int(token[3:5], 16)]) if token.startswith("<0x") else token.replace("▁", " ").encode()


def tokens_with(text: str, tokens: list[bytes], start: int, end: int, before: int) -> list[int]:
    """The tokens with a byte of a letter (no blank) of text[start:end], by counting bytes."""
    owner = np.repeat(np.arange(len(text)), [len(letter.encode()) for letter in text])
    owner = np.concatenate([np.full(before, -1), owner])
    wanted = np.array([start <= i < end and not text[i].isspace() for i in owner])
    cuts = np.cumsum([len(token) for token in tokens])
    assert cuts[-1] == len(owner)
    return [k for k, own in enumerate(np.split(wanted, cuts[:-1])) if own.any()]


@pytest.mark.parametrize(("backend", "before"), [(BYTE_LEVEL, 0), (SENTENCE_PIECE, 1)], ids=["byte-level", "pieces"])
@given(text=TEXTS, data=st.data())
def test_a_span_has_the_tokens_that_hold_a_byte_of_it(backend, before, text, data):
    tokenizer = Tokenizer(backend)
    tokens = [as_bytes(token, before == 1) for token in backend.encode(text, add_special_tokens=False).tokens]
    assert b"".join(tokens) == b" " * before + text.encode()
    start = data.draw(st.integers(0, len(text) - 1))
    end = data.draw(st.integers(start + 1, len(text)))
    expected = tokens_with(text, tokens, start, end, before)
    [(first, last)] = token_spans(np.array(tokenizer.offsets(text)), np.array([[start, end]])).tolist()
    assert expected == [] if first == last else (expected[0], expected[-1]) == (first, last - 1)


UNITS = st.sampled_from(
    ["the", "Cats", "café", "CAFÉ", "cafe\u0301", "don", "'", "t", "“", "-", ".", "🙂", "abe", "日"]
)


@given(st.lists(st.tuples(UNITS, st.sampled_from([" ", "  ", "\n", "\u00a0"])), min_size=1, max_size=8))
def test_word_pieces_of_a_word_are_those_of_the_word_alone(words):
    tokenizer, text, spans, expected = Tokenizer(WORD_PIECE), "", [], []
    for word, blank in words:
        n = sum(len(each) for each in expected)
        expected.append(range(n, n + len(tokenizer.encode(word))))
        spans.append((len(text), len(text) + len(word)))
        text += word + blank
    found = token_spans(np.array(tokenizer.offsets(text)), np.array(spans))
    assert found.tolist() == [[each.start, each.stop] for each in expected]


def test_words_inside_one_token_and_two_in_one():
    """Each word that is a part of a token has that token."""
    tokenizer = Tokenizer(SENTENCE_PIECE)
    text = "the cats"
    assert SENTENCE_PIECE.encode(text).tokens == ["▁the", "▁cat", "s"]
    spans = np.array([[0, 3], [0, 1], [1, 3], [4, 6], [6, 8], [7, 8]])
    found = token_spans(np.array(tokenizer.offsets(text)), spans)
    assert found.tolist() == [[0, 1], [0, 1], [0, 1], [1, 2], [1, 3], [2, 3]]


TEXT = ["the cats see the dogs", "the cats don't", "café “do” 🙂!", "the cats see the dogs", "dogs"]
N = sum(len(text.split()) for text in TEXT)


def words_task(position: str = "last") -> Any:
    """Every word of five texts; one of them is in two splits."""
    rows = [(k, i, j) for k, text in enumerate(TEXT) for i, j in _words(text)]
    of = np.array([k for k, _, _ in rows])
    labels = np.arange(len(rows)) % 2
    return Task(
        "words",
        [TEXT[k] for k in of],
        {"y": labels},
        {"y": ["a", "b"]},
        np.array(["train", "train", "validation", "test", "test"])[of],
        "y",
        position=position,
        groups=of,
        spans=np.array([(i, j) for _, i, j in rows]),
    )


def _words(text):
    at = 0
    for word in text.split(" "):
        yield at, at + len(word)
        at += len(word) + 1


class Ahead(GPT2):
    """A GPT-2 whose tokens see those after them."""

    causal = False


def make(kind: type[GPT2], backend: Backend = BYTE_LEVEL, n_ctx: int = 48) -> Any:
    cfg = GPT2Config(
        d_model=16, n_heads=2, d_mlp=24, n_layers=2, n_ctx=n_ctx, d_vocab=400, init_std=0.3, bos_token_id=399
    )
    model = kind(cfg).init_weights(0)
    model.tokenizer = Tokenizer(backend, bos_token_id=399, d_vocab=400)
    model.name = "tiny"
    assert sum(p.numel() for p in model.parameters()) < 20_000
    return model


@pytest.mark.parametrize("bos", [False, True])
@pytest.mark.parametrize("backend", [BYTE_LEVEL, SENTENCE_PIECE], ids=["byte-level", "pieces"])
@pytest.mark.parametrize("kind", [GPT2, Ahead])
def test_each_word_is_what_its_text_alone_gives(kind, backend, bos):
    """First, last and mean of the word's tokens, against each text whole in float64."""
    model, task = make(kind, backend), words_task()
    acts = extract(model, task, position=["first", "last", "mean"], bos=bos, block_nodes=40)
    exact = kind(model.cfg).double()
    exact.load_state_dict(model.state_dict())
    offsets = {text: np.array(model.tokenizer.offsets(text)) for text in TEXT}
    for i, (text, span) in enumerate(zip(task.inputs, task.spans, strict=True)):
        ids = torch.tensor([model.tokenizer.encode(text, bos=bos)])
        L = ids.shape[1]
        mask = torch.ones(1, L, L, dtype=torch.bool)
        with torch.no_grad():
            _, cache = exact.run_with_cache(
                ids,
                position_ids=torch.arange(L)[None],
                attention_mask=mask.tril() if kind.causal else mask,
                points="resid_pre",
            )
        (first, end) = token_spans(offsets[text], span[None])[0] + bos
        own = cache["resid_pre", 1][0, first:end]
        for position, wanted in (("first", own[0]), ("last", own[-1]), ("mean", own.mean(0))):
            torch.testing.assert_close(acts.at(position)["resid_pre", 1][i].double(), wanted, rtol=1e-5, atol=1e-5)


def test_repeated_texts_are_computed_once():
    lengths = {text: len(make(GPT2).tokenizer.encode(text)) for text in TEXT}
    ahead = plan_of(make(Ahead), words_task())
    assert ahead.packing.nodes == sum(lengths.values())
    assert plan_of(make(GPT2), words_task()).packing.nodes <= ahead.packing.nodes
    assert plan_as_dict(ahead)["tokens"] == sum(lengths[text] for text in TEXT)  # one text is in two splits
    assert f"{N} words in 5 texts" in describe_plan(ahead)
    assert plan_as_dict(ahead)["words"] == N


@pytest.mark.parametrize("position", ["lsat", np.arange(N), ["last", "last"], []])
def test_positions_that_words_do_not_have(position):
    with pytest.raises(UsageError, match=r"(did you mean|a position is|must all differ|the tokens to read)"):
        plan_of(make(GPT2), words_task(), position=position)


def test_a_word_without_a_token_and_one_outside_the_context():
    hidden = replace(
        words_task().subset(np.arange(2)), inputs=["the \u200d\u200d"] * 2, spans=np.array([[0, 3], [4, 6]])
    )
    with pytest.raises(DataError, match=r"example '1': the tokenizer makes no token of the word '\\u200d\\u200d'"):
        plan_of(make(GPT2, WORD_PIECE), hidden)
    with pytest.raises(DataError, match=r"outside the model's context.* rows in all"):
        plan_of(make(GPT2, n_ctx=4), words_task())


def test_a_text_that_is_cut_counts_once_for_all_its_words():
    task = words_task()
    inputs = [
        f"{text}{' and so on' * 40}" if of < 2 else text for text, of in zip(task.inputs, task.groups, strict=True)
    ]
    plan = plan_of(make(GPT2), replace(task, inputs=inputs))
    assert plan_as_dict(plan)["cut"] == 2
    assert "cut      2 texts to the first 48 tokens, the model's context\n" in f"{describe_plan(plan)}\n"


def test_a_store_of_words_reads_back(tmp_path):
    """A text is written once for the words that follow one another."""
    model, task = make(GPT2), words_task("mean")
    made = extract(model, task, out=tmp_path / "store", stats=True)
    assert isinstance(made, Store)
    store, acts = load_activations(tmp_path / "store"), extract(model, task)
    assert store.task.fingerprint() == task.fingerprint() != replace(task, spans=None).fingerprint()
    assert store.task.words == task.words
    assert all(torch.equal(store[place], acts[place]) for place in acts)
    (piece,) = (tmp_path / "store" / "examples").iterdir()
    inputs = pq.read_table(piece)["inputs"].to_pylist()
    assert [text for text in inputs if text is not None] == [text for text, _ in groupby(task.inputs)]


@pytest.fixture(scope="module")
def english_words(shared_dir) -> Any:
    return load_task(shared_dir / "data" / "ud-english-ewt" / "en_ewt-ud-dev.conllu", label_column="upos")


@pytest.mark.shared
@pytest.mark.parametrize("name", ["gpt2-tokenizer", "stories260k-llama"])
def test_words_of_the_english_web_treebank(shared_dir, english_words, name):
    """No word of a hundred of its texts is lost, and each is spelled by its tokens' bytes."""
    task = english_words
    tokenizer = read_tokenizer(shared_dir / "models" / name)
    assert tokenizer is not None
    before = int(name.startswith("stories"))
    for row in np.unique(np.array(task.inputs), return_index=True)[1][::20][:100]:
        text = task.inputs[row]
        rows = [i for i in range(row, min(row + 80, len(task))) if task.inputs[i] == text]
        found = token_spans(np.array(tokenizer.offsets(text)), task.spans[rows])
        tokens = [as_bytes(t, before == 1) for t in tokenizer._backend.encode(text, add_special_tokens=False).tokens]
        for i, (first, end) in zip(rows, found.tolist(), strict=True):
            expected = tokens_with(text, tokens, task.spans[i, 0], task.spans[i, 1], before)
            assert (expected[0], expected[-1]) == (first, end - 1), task.ids[i]


def test_spans_that_do_not_fit_the_task():
    task = words_task()
    for changes, message in (
        ({"spans": task.spans[:-1]}, f"one of spans for each of the {N} inputs, got {N - 1}"),
        ({"spans": task.spans.astype(float)}, "spans are whole numbers"),
        ({"spans": task.spans + 40}, "example '0': expected a span from 0 to 21"),
        ({"position": np.zeros(N, dtype=int)}, "first or last token or their mean"),
        ({"inputs": [[1, 2]] * N}, "list of token ids"),
    ):
        with pytest.raises(DataError, match=message):
            replace(task, **changes).check()
