"""Compiled models compute their programs, and each truth holds in exact arithmetic.

The oracle is a forward of its own in float64 numpy, from the arrays of the file. A variable is read where least squares
explains it on fresh texts. It is used at a place where the answers follow when the stream of the read token is taken
from a text that differs in this variable alone, which a table of edits of the text makes.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

import probekit as pk
from probekit.worlds.compiled import NAMES, compiled_folder, compiled_model
from probekit.worlds.compiled.definition import (
    FILLERS,
    IS_READ,
    NEITHER,
    NOT_READ,
    READ,
    READ_AND_USED,
    USED,
    Compiled,
    Text,
)
from probekit.worlds.compiled.program import Program, compile_program

ONE_OF_FOUR = 0.2  # of the answers, or of the variance: what is there is far above, what is not is below a tenth of it


def forward(
    program: Program,
    texts: list[list[str]],
    patch: tuple[int, np.ndarray] | None = None,
    head: tuple[int, int, list[list[str]]] | None = None,
):
    """Logits at the last token, [N, V], and the stream there at each place, [places, N, D].

    Args:
        program: compiled here.
        texts: words, equally many.
        patch: a place, and the stream of the last token, [N, D], that is put there.
        head: a block, a head of it, and texts whose z it takes, at all tokens.
    """
    config, weights = compile_program(program)
    w = {name: value.astype(np.float64) for name, value in weights.items()}
    every = texts if head is None else [*texts, *head[2]]
    ids = np.array([[list(program.words).index(word) for word in text] for text in every])
    length = ids.shape[1]
    seen = np.tril(np.ones((length, length), bool)) if config["attention_dir"] == "causal" else True

    def norm(x, name):
        if config["normalization_type"] is None:
            return x
        centred = x - x.mean(-1, keepdims=True)
        scale = np.sqrt((centred**2).mean(-1, keepdims=True) + config["eps"])
        return centred / scale * w[f"{name}.w"] + w[f"{name}.b"]

    def patched(x, place):
        if patch is not None and patch[0] == place:
            x = x.copy()
            x[:, -1] = patch[1]
        streams.append(x[:, -1])
        return x

    streams: list[np.ndarray] = []
    x = w["embed.W_E"][ids] + w["pos_embed.W_pos"][:length]
    for i in range(config["n_layers"]):
        x, at = patched(x, i), f"blocks.{i}"
        h = norm(x, f"{at}.ln1")
        q, k, v = (
            np.einsum("nld,hdk->nhlk", h, w[f"{at}.attn.W_{one}"]) + w[f"{at}.attn.b_{one}"][:, None] for one in "QKV"
        )
        scores = np.where(seen, np.einsum("nhlk,nhmk->nhlm", q, k), -np.inf)
        pattern = np.exp(scores - scores.max(-1, keepdims=True))
        z = np.einsum("nhlm,nhmk->nhlk", pattern / pattern.sum(-1, keepdims=True), v)
        if head is not None and head[0] == i:
            z[: len(texts), head[1]] = z[len(texts) :, head[1]]
        x = x + np.einsum("nhlk,hkd->nld", z, w[f"{at}.attn.W_O"]) + w[f"{at}.attn.b_O"]
        hidden = np.maximum(norm(x, f"{at}.ln2") @ w[f"{at}.mlp.W_in"] + w[f"{at}.mlp.b_in"], 0)
        x = x + hidden @ w[f"{at}.mlp.W_out"] + w[f"{at}.mlp.b_out"]
    x = patched(x, config["n_layers"])
    return (norm(x, "ln_final") @ w["unembed.W_U"] + w["unembed.b_U"])[: len(texts), -1], np.stack(streams)


def drawn(compiled: Compiled, n: int) -> list[Text]:
    rng, found = np.random.default_rng(5), []
    while len(found) < n:
        found += compiled.texts(rng, "test")
    return found[:n]


def answers(program: Program, logits: np.ndarray) -> list[str]:
    words = list(program.words)
    return [words[i] for i in logits.argmax(1)]


@pytest.mark.parametrize("name", NAMES)
def test_the_model_computes_its_program(name):
    compiled = compiled_model(name)
    texts = drawn(compiled, 64)
    words = [list(text.words) for text in texts]
    logits, streams = forward(compiled.program, words)
    assert answers(compiled.program, logits) == [text.answer for text in texts]
    model = pk.load_model(name, progress=False)
    joined = [" ".join(text) for text in words]
    task = pk.Task(name="texts", inputs=joined)
    acts = pk.extract(model, task, points="resid_pre", progress=False)
    for place, stream in zip(acts, streams, strict=True):
        np.testing.assert_allclose(acts[place], stream, atol=2e-5)
    tokens = torch.tensor(model.need_tokenizer().encode_batch(joined))
    np.testing.assert_allclose(model(tokens)[:, -1].detach(), logits, atol=1e-4 * np.abs(logits).max())


@pytest.mark.parametrize("name", [name for name in NAMES if compiled_model(name).program.norm])
def test_the_norms_change_nothing(name):
    compiled = compiled_model(name)
    words = [list(text.words) for text in drawn(compiled, 16)]
    with_norms, _ = forward(compiled.program, words)
    without, _ = forward(replace(compiled.program, norm=False), words)
    np.testing.assert_allclose(with_norms, without, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_no_word_lies_on_an_axis(name):
    embedded = compile_program(compiled_model(name).program)[1]["embed.W_E"]
    embedded = embedded[(embedded != 0).any(axis=1)]
    assert (np.abs(embedded).max(axis=1) < 0.7 * np.linalg.norm(embedded, axis=1)).all()


def explained(x: np.ndarray, y: np.ndarray) -> float:
    """The share of the variance of y, [N, C], that least squares explains from x, corrected for the number of axes."""
    x, y = x - x.mean(0), y - y.mean(0)
    rank = np.linalg.matrix_rank(x, tol=1e-3)
    rest = y - x @ np.linalg.lstsq(x, y, rcond=1e-6)[0]
    return 1 - (rest**2).sum() / (y**2).sum() * len(x) / (len(x) - rank)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_read(name):
    compiled = compiled_model(name)
    texts = drawn(compiled, 2400)
    _, streams = forward(compiled.program, [list(text.words) for text in texts])

    def columns(label):
        value = np.array([text.labels[label] for text in texts])
        return np.eye(len(names))[value] if (names := compiled.classes[label]) else value.reshape(len(texts), -1)

    for truth in compiled.truths:
        assert len(truth.verdicts) == len(streams)
        for verdict, stream in zip(truth.verdicts, streams, strict=True):
            share = explained(stream, columns(truth.label))
            assert (
                (share > ONE_OF_FOUR) if verdict in (READ, READ_AND_USED, IS_READ) else (abs(share) < 0.1 * ONE_OF_FOUR)
            )
            if truth.cue is not None:
                cue = columns(truth.cue)[:, :1]
                both = explained(np.hstack([stream, cue]), columns(truth.label))
                beyond = both - explained(cue, columns(truth.label))
                is_read = truth.beyond == IS_READ and verdict == READ
                assert (beyond > ONE_OF_FOUR) if is_read else (abs(beyond) < 0.1 * ONE_OF_FOUR)


def put(place: int, choices: tuple[str, ...]) -> Callable[[list[str], np.random.Generator], list[str]]:
    """An edit of a text: another word of some at a place."""

    def edit(words, rng):
        other = [word for word in choices if word != words[place]]
        return [*words[:place], other[rng.integers(len(other))], *words[place + 1 :]][: len(words)]

    return edit


def fewer(words, rng):
    """A filler in place of an x, or an x in place of a filler."""
    place = int(rng.integers(8))
    return put(place, FILLERS if words[place] == "x" else ("x",))(words, rng)


def another_digit(words, rng):
    """A digit that is not there in place of one that is."""
    return put(int(2 * rng.integers(3)), tuple(set("01234") - set(words)))(words, rng)


EDITS = {  # (model, variable) -> what changes this variable, and neither another one nor the token that is read
    ("compiled-reverse", "mirrored"): put(0, ("a", "b")),
    ("compiled-fraction", "count"): fewer,
    ("compiled-histogram", "count"): put(3, ("a", "b", "c")),
    ("compiled-sort", "middle"): another_digit,
    ("compiled-brackets", "balanced"): put(2, ("(", ")")),
    ("compiled-palindrome", "palindrome"): put(1, ("a", "b")),
    ("compiled-names", "recipient"): put(6, ("Ann", "Bob")),
    ("compiled-xor", "differ"): put(0, ("hot", "cold")),
    ("compiled-xor", "heat"): put(0, ("hot", "cold")),
    ("compiled-addition", "sum"): put(3, tuple("0123456")),
    ("compiled-copies", "colour"): put(0, ("red", "blue")),
}
IGNORED = {  # what changes a variable on which no answer depends
    ("compiled-reverse", "own"): put(5, ("a", "b")),
    ("compiled-copies", "shape"): put(1, ("disc", "cube")),
    ("compiled-copies", "size"): put(2, ("big", "small")),
}
CASES = [
    (name, truth) for name in NAMES for truth in compiled_model(name).truths if truth.cue is None and truth.answers
]


@pytest.mark.parametrize(("name", "truth"), CASES, ids=[f"{name} {truth.label}" for name, truth in CASES])
def test_what_is_used(name, truth):
    program, rng = compiled_model(name).program, np.random.default_rng(0)
    words = [list(text.words) for text in drawn(compiled_model(name), 300)]
    is_ignored = (name, truth.label) in IGNORED
    edit = (IGNORED if is_ignored else EDITS)[name, truth.label]
    edited = [edit(text, rng) for text in words]
    (before, _), (after, streams) = forward(program, words), forward(program, edited)
    if is_ignored:
        np.testing.assert_allclose(after, before, atol=1e-6)
        assert not {READ_AND_USED, USED} & set(truth.verdicts)
        return
    own, other = answers(program, before), answers(program, after)
    changed = np.array(own) != np.array(other)
    assert changed.mean() > ONE_OF_FOUR
    for place, verdict in enumerate(truth.verdicts):
        found = answers(program, forward(program, words, (place, streams[place]))[0])
        follows = (np.array(found) == np.array(other))[changed].mean()
        is_answer = place == len(program.blocks) and truth.answers_label is not None  # in the stream that is exchanged
        assert is_answer or ((follows > ONE_OF_FOUR) if verdict in (READ_AND_USED, USED) else (follows == 0))


WITH_HEADS = [(name, truth) for name, truth in CASES if truth.heads is not None]


@pytest.mark.parametrize(("name", "truth"), WITH_HEADS, ids=[f"{name} {truth.label}" for name, truth in WITH_HEADS])
def test_which_heads_carry_it(name, truth):
    program, rng = compiled_model(name).program, np.random.default_rng(1)
    words = [list(text.words) for text in drawn(compiled_model(name), 200)]
    edited = [EDITS[name, truth.label](text, rng) for text in words]
    own, other = (answers(program, forward(program, some)[0]) for some in (words, edited))
    assert own != other
    for i, block in enumerate(program.blocks):
        for head in (f"{i}.{j}" for j in range(len(block.heads))):
            found = answers(program, forward(program, words, head=(i, int(head[-1]), edited))[0])
            assert head in truth.in_part or found == (other if head in truth.heads else own)


def test_a_redundant_variable_is_needed_only_where_both_copies_are():
    """Each copy by itself is set to its mean, 0, in the stream that block 2 reads."""
    compiled = compiled_model("compiled-copies")
    truth = next(truth for truth in compiled.truths if truth.label == "colour")
    texts = drawn(compiled, 160)
    words, colour = [list(text.words) for text in texts], np.array([text.labels["colour"] for text in texts])
    for place, needed in enumerate(truth.needed):
        stream = forward(compiled.program, words)[1][place]
        mean = np.stack([stream[colour == c].mean(0) for c in range(2)])
        erased = stream - mean[colour] + mean.mean(0)  # the classes have one mean: what a linear erasure makes
        found = answers(compiled.program, forward(compiled.program, words, (place, erased))[0])
        assert ([text.answer for text in texts] == found) is not needed


def test_every_kind_of_variable_is_there():
    verdicts = {verdict for name in NAMES for truth in compiled_model(name).truths for verdict in truth.verdicts}
    assert verdicts == {READ_AND_USED, READ, USED, NEITHER, IS_READ, NOT_READ}
    assert {compiled_model(name).program.causal for name in NAMES} == {True, False}
    assert {compiled_model(name).program.norm for name in NAMES} == {True, False}


def test_a_text_of_one_split_is_in_no_other():
    for name in NAMES:
        task = compiled_model(name).task((200, 200, 200))
        train, validation, test = (
            {str(text) for text, own in zip(task.inputs, task.splits, strict=True) if own == split}
            for split in ("train", "validation", "test")
        )
        assert not (train & validation | train & test | validation & test)


def test_the_folder_is_written_once(tmp_path, monkeypatch):
    monkeypatch.setenv("PROBEKIT_CACHE", str(tmp_path))
    first = compiled_folder("compiled-xor")
    written = {path.name: path.stat().st_mtime_ns for path in first.iterdir()}
    assert compiled_folder("compiled-xor") == first
    assert written == {path.name: path.stat().st_mtime_ns for path in first.iterdir()}


@pytest.mark.parametrize("damage", ["change", "cut", "remove"])
def test_a_damaged_folder_is_written_again(tmp_path, monkeypatch, damage):
    """Else a model of other weights would be judged by this one's truths."""
    monkeypatch.setenv("PROBEKIT_CACHE", str(tmp_path))
    path = compiled_folder("compiled-xor") / "model.safetensors"
    whole = path.read_bytes()
    path.unlink()
    if damage != "remove":
        path.write_bytes(whole[:-4] + (b"\0\0\0\1" if damage == "change" else b""))
    assert (compiled_folder("compiled-xor") / "model.safetensors").read_bytes() == whole
