"""Answers are the tokens that continue the texts, or that replace their mask; pairs of texts are read from files."""

import json
from typing import Any

import numpy as np
import pytest
import torch
from models.test_encoder_tokenizers import write_modernbert, write_roberta
from tiny_configs import tiny_configs, tiny_model
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers

from probekit.causal.behaviour.answers import answer_ids, answer_tokens
from probekit.causal.behaviour.measure import headline, loss_per_token, of_pairs
from probekit.causal.behaviour.neutral import load_neutral
from probekit.causal.behaviour.pairs import Align, MinimalPairs, load_pairs
from probekit.causal.branches.run import run_trunk
from probekit.errors import DataError, UsageError
from probekit.models.families import family_of
from probekit.models.tokenizer import Tokenizer
from probekit.models.tokenizer_files import read_tokenizer
from probekit.options import CausalOptions

WORDS = ["the", "key", "keys", "near", "door", "is", "are"]
BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
MERGES = [("\u0120", "i"), ("\u0120i", "s"), ("\u0120", "a"), ("i", "s")]


def with_tokenizer(config: str, tokenizer: Tokenizer | None) -> Any:
    assert tokenizer is not None
    cfg = tiny_configs()[config]
    cfg = type(cfg)(**{**vars(cfg), "d_vocab": max(cfg.d_vocab, len(tokenizer))})
    model = family_of(cfg).model(cfg).init_weights(1).eval()
    model.tokenizer, model.name = tokenizer, config
    return model


@pytest.fixture(scope="module")
def words():
    backend = Backend(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="?"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return with_tokenizer("gpt2", Tokenizer(backend, d_vocab=50))


@pytest.fixture(scope="module")
def pieces():
    """Byte-level BPE in which " is" and "is" are tokens of their own, and " a" is one."""
    vocabulary = {piece: i for i, piece in enumerate([*BYTES, *map("".join, MERGES)])}
    backend = Backend(models.BPE(vocabulary, MERGES))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return with_tokenizer("gpt2", Tokenizer(backend))


@pytest.fixture(scope="module")
def wordpieces():
    """A vocabulary in which "s" only continues a word."""
    pieces = ["[UNK]", "key", "##s", "the", ",", "cafe"]
    backend = Backend(models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return with_tokenizer("gpt2", Tokenizer(backend))


@pytest.fixture(scope="module")
def roberta(tmp_path_factory):
    folder = tmp_path_factory.mktemp("roberta")
    write_roberta(folder, {"mask_token": {"__type": "AddedToken", "content": "<mask>", "lstrip": True}})
    return with_tokenizer("roberta", read_tokenizer(folder, bos_token_id=0, causal=False))


@pytest.fixture(scope="module")
def modernbert(tmp_path_factory):
    folder = tmp_path_factory.mktemp("modernbert")
    write_modernbert(folder)
    return with_tokenizer("modernbert", read_tokenizer(folder, bos_token_id=None, causal=False))


def test_an_answer_is_the_token_after_the_text(words, pieces):
    assert answer_ids(words, ["is", "are"], ["the key", "the keys near the door"]) == [5, 6]
    spelled = pieces.tokenizer
    assert answer_ids(pieces, ["is", " a"], ["it", "so"]) == [spelled.token_id("\u0120is"), spelled.token_id("\u0120a")]
    assert answer_ids(pieces, ["is", "a"], ["(", "\n"]) == [spelled.token_id("\u0120is"), spelled.token_id("\u0120a")]


def test_answers_to_token_ids_are_words_by_themselves(words, pieces):
    assert answer_ids(words, ["is", "are"], [[0, 1]]) == [5, 6]
    spelled = pieces.tokenizer
    assert answer_ids(pieces, ["is", "\u0120a"], [[0]]) == [spelled.token_id("\u0120is"), spelled.token_id("\u0120a")]
    without = with_tokenizer("gpt2", words.tokenizer)
    without.tokenizer = None
    assert answer_ids(without, ["17", "4"], [[0, 1]]) == [17, 4]
    with pytest.raises(UsageError, match=r"token ids of gpt2 are 0\.\.49, got 50"):
        answer_ids(without, ["50", "4"], [[0, 1]])


def test_numbers_are_token_ids_with_and_without_a_tokenizer(words):
    assert answer_ids(words, np.array([5, 6]).tolist(), ["the key", "the keys"]) == [5, 6]
    assert answer_ids(words, [49, "are"], [[0, 1]]) == [49, 6]
    assert CausalOptions(answers=[2, 3]).answers == (2, 3)
    for wrong in ([2, 2], [2, True], [2, 0.5], [2]):
        with pytest.raises(UsageError, match=r"answers \(--answers\)"):
            CausalOptions(answers=wrong)
    for beyond in (50, -1):
        with pytest.raises(UsageError, match=rf"token ids of gpt2 are 0\.\.49, got {beyond}"):
            answer_ids(words, [1, beyond], [[0, 1]])


def test_a_masked_model_without_a_tokenizer_says_what_it_lacks():
    with pytest.raises(UsageError, match=r"put a tokenizer\.json with \[MASK\] into its folder") as caught:
        answer_tokens(tiny_model("bert"), [[1, 2]])
    assert "give token ids" not in str(caught.value)


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        (["is"], "expected two answers or more, one for each class, got 1"),
        (["is", "is"], "'is' and 'is' are the same token 5"),
        (["is", "was"], "answer 'was': 'was' is not in the vocabulary"),
        (["is near", "are"], r"answer 'is near' is 2 tokens after 'the key' \('is', 'near'\)"),
        (["is", " "], "an answer must be a word, got ' '"),
    ],
)
def test_wrong_answers_are_refused(words, answers, why):
    with pytest.raises(UsageError, match=why):
        answer_ids(words, answers, ["the key", "the keys"])


def test_an_answer_that_depends_on_the_text_is_refused(pieces):
    with pytest.raises(UsageError, match=r"answer 'are' is 3 tokens after 'it'"):
        answer_ids(pieces, ["is", "are"], ["it"])
    with pytest.raises(UsageError, match=r"answer '\\u6771' is 3 tokens|is 4 tokens"):
        answer_ids(pieces, ["is", "\u6771"], ["it"])


def test_an_unknown_word_is_no_answer(wordpieces):
    assert answer_ids(wordpieces, ["the", "Caf\u00c9"], ["key"]) == [3, 5]
    assert answer_ids(wordpieces, ["the", "s"], ["key", "the key"]) == [3, 2]
    with pytest.raises(UsageError, match=r"answer 'zz' is read as '\[UNK\]'; give a word"):
        answer_ids(wordpieces, ["the", "zz"], ["key"])
    with pytest.raises(UsageError, match=r"answer 's' is read as '\[UNK\]'; give a word"):
        answer_ids(wordpieces, ["the", "s"], ["key", "the,"])  # "keys" is "key", "##s", and ",s" is ",", "[UNK]"


def test_masked_answers_replace_the_mask(roberta, modernbert):
    for model, mask in ((roberta, "<mask>"), (modernbert, "[MASK]")):
        spelled = model.tokenizer
        assert answer_ids(model, ["the", "k"], [f"a {mask} b", f"b {mask}"]) == [
            spelled.token_id("\u0120the"),
            spelled.token_id("\u0120k"),
        ]
        ids = spelled.encode_batch([f"a {mask} b", f"{mask} b"], bos=True)
        places = answer_tokens(model, ids).tolist()
        assert [row[at] for row, at in zip(ids, places, strict=True)] == 2 * [spelled.token_id(mask)]
        with pytest.raises(DataError, match=rf"text 1 has 0 .{mask[1:-1]}., where"):
            answer_ids(model, ["the", "k"], [f"a {mask}", "b"])
        with pytest.raises(DataError, match="text 0 has 2"):
            answer_ids(model, ["the", "k"], [f"{mask} {mask}"])


@torch.no_grad()
def test_the_loss_of_a_masked_model_is_that_of_its_masked_tokens(roberta):
    tokenizer = roberta.tokenizer
    texts = tokenizer.encode_batch(["keykeykeykeykey the key the key", "the the <mask> key", "k"], bos=True)
    mask, losses = tokenizer.token_id("<mask>"), []
    for ids in texts:
        at = [i for i in range(1, len(ids) - 1) if ids[i] != mask][2::7]  # a mask of the text's own is not predicted
        hidden = [mask if i in at else token for i, token in enumerate(ids)]
        logits = roberta(torch.tensor([hidden]))[0]
        losses += [float(-logits[i].log_softmax(-1)[ids[i]]) for i in at]
    assert len(losses) > 2
    assert loss_per_token(roberta, texts) == pytest.approx(sum(losses) / len(losses), rel=1e-5)


ROW = {"clean": "the keys", "corrupted": "the key", "clean_answer": "are", "corrupted_answer": "is"}


def written(path, rows):
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        cell = {".csv": ",", ".tsv": "\t"}[path.suffix]
        path.write_text("\n".join([cell.join(rows[0]), *(cell.join(map(str, row.values())) for row in rows)]) + "\n")
    return path


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl"])
def test_pairs_are_read_from_a_file(words, tmp_path, ending):
    long = ROW | {"clean": "the keys near the door", "corrupted": "the key near the door"}
    pairs = load_pairs(written(tmp_path / f"pairs.{ending}", [ROW, long]), words)
    assert (pairs.clean, pairs.corrupted) == ([[0, 2], [0, 2, 3, 0, 4]], [[0, 1], [0, 1, 3, 0, 4]])
    assert (pairs.own_N.tolist(), pairs.other_N.tolist()) == ([6, 6], [5, 5])
    assert pairs.clean_answer_N.tolist() == pairs.corrupted_answer_N.tolist() == [1, 4]
    assert len(pairs) == 2
    assert pairs.can_patch
    first = 1 if ending == "jsonl" else 2
    assert pairs.names == [f"pairs.{ending}, line {first}", f"pairs.{ending}, line {first + 1}"]


def test_sentences_differ_in_one_token_after_a_shared_text(words, tmp_path):
    rows = [{"sentence_good": "the keys near the door are", "sentence_bad": "the keys near the door is near the key"}]
    pairs = load_pairs(written(tmp_path / "blimp.jsonl", rows), words)
    assert pairs.clean == pairs.corrupted == [[0, 2, 3, 0, 4]]
    assert (pairs.own_N.tolist(), pairs.other_N.tolist()) == ([6], [5])
    assert not pairs.can_patch
    clean, corrupted = of_pairs(pairs)
    trunk = run_trunk(words, pairs.clean, clean.answer_N)
    with torch.no_grad():
        got = headline(words, clean, trunk.hidden_ND, torch.tensor([0]))
        logits = words(torch.tensor(pairs.clean))[0, -1]
    assert float(got) == pytest.approx(float(logits[6] - logits[5]), abs=1e-5)
    assert torch.equal(corrupted.own_N, clean.own_N)


def test_texts_that_do_not_align_are_refused_by_row(words, tmp_path):
    longer = ROW | {"clean": "the keys near the door"}
    path = written(tmp_path / "pairs.csv", [ROW, longer, longer])
    why = "line 3: the clean text has 5 tokens and the corrupted one 2, so they do not align .as have 2 of 3 pairs"
    with pytest.raises(DataError, match=why):
        load_pairs(path, words)
    pairs = load_pairs(path, words, align="last")
    assert (pairs.clean_answer_N.tolist(), pairs.corrupted_answer_N.tolist()) == ([1, 4, 4], [1, 1, 1])


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (ROW | {"clean_answer": "are near"}, "line 2: answer 'are near' is 2 tokens"),
        (ROW | {"clean_answer": "is"}, "line 2: answers 'is' and 'is' are the same token"),
        (ROW | {"clean": "the dogs"}, "line 2: 'dogs' is not in the vocabulary"),
        (ROW | {"corrupted": "the keys"}, "line 2: the clean and the corrupted text are the same"),
        (ROW | {"clean": ""}, "line 2: expected a text in every column of a pair, got ''"),
        (ROW | {"clean": 30 * "the "}, "line 2: the text has 30 tokens and the context 24"),
        (
            {"clean": "the keys", "answer": "are"},
            "has the columns clean, answer; expected clean, corrupted, clean_answer",
        ),
        ({"sentence_good": "the key", "sentence_bad": "the key is"}, "line 2: .* one that begins with the other"),
        ({"sentence_good": "is", "sentence_bad": "are"}, "line 2: the sentences differ in their first token"),
    ],
)
def test_rows_that_are_no_pairs_are_refused(words, tmp_path, row, why):
    with pytest.raises(DataError, match=why):
        load_pairs(written(tmp_path / "pairs.csv", [row]), words)


def test_rows_that_are_no_pairs_can_be_left_out(words, tmp_path):
    path = written(tmp_path / "pairs.csv", [ROW, ROW | {"clean": "the dogs"}, ROW, ROW | {"clean": ""}])
    pairs = load_pairs(path, words, on_bad_row="skip")
    assert pairs.names == ["pairs.csv, line 2", "pairs.csv, line 4"]
    assert [why.partition(":")[0] for why in pairs.left_out] == ["pairs.csv, line 3", "pairs.csv, line 5"]
    with pytest.raises(DataError, match=r"no row of none.csv is a pair; the first: none.csv, line 2: 'dogs'"):
        load_pairs(written(tmp_path / "none.csv", [ROW | {"clean": "the dogs"}]), words, on_bad_row="skip")
    with pytest.raises(UsageError, match=r"on_bad_row .* is one of error, skip"):
        load_pairs(path, words, on_bad_row="drop")  # pyright: ignore[reportArgumentType]


def test_other_misuse_is_refused(words, roberta, tmp_path):
    path = written(tmp_path / "pairs.csv", [ROW])
    with pytest.raises(UsageError, match="align is tokens or last, got 'first'"):
        load_pairs(path, words, align="first")  # pyright: ignore[reportArgumentType]
    with pytest.raises(DataError, match="cannot read"):
        load_pairs(tmp_path / "none.csv", words)
    rows = [{"sentence_good": "a b", "sentence_bad": "a k"}]
    with pytest.raises(DataError, match="for models that predict the next token; give roberta a file with clean"):
        load_pairs(written(tmp_path / "blimp.jsonl", rows), roberta)


def test_pairs_of_a_masked_model_have_a_mask(roberta, tmp_path):
    row = {"clean": "key <mask>", "corrupted": "the <mask>", "clean_answer": "the", "corrupted_answer": "k"}
    pairs = load_pairs(written(tmp_path / "pairs.csv", [row]), roberta, align="last")
    at = int(pairs.clean_answer_N[0])
    assert pairs.clean[0][at] == roberta.tokenizer.token_id("<mask>")
    assert pairs.clean[0][0] == roberta.tokenizer.bos_token_id
    with pytest.raises(DataError, match="line 2 has 0 <mask>, where roberta answers"):
        load_pairs(written(tmp_path / "pairs.csv", [row | {"corrupted": "the"}]), roberta, align="last")


def test_neutral_texts_are_lines_or_a_column(words, roberta, tmp_path):
    (tmp_path / "plain.txt").write_text("the key\n\nthe keys are near the door\nthe door\n")
    assert load_neutral(tmp_path / "plain.txt", words, most=2) == [[0, 1], [0, 2, 6, 3, 0, 4]]
    rows = [
        {"sentence": "the key", "label": 1},
        {"sentence": " ", "label": 0},
        {"sentence": 8 * "the door is ", "label": 0},
    ]
    texts = load_neutral(written(tmp_path / "table.jsonl", rows), words)
    assert [len(ids) for ids in texts] == [2, 24]  # the second is cut at the context
    (tmp_path / "plain.txt").write_text("the key")
    ids = load_neutral(tmp_path / "plain.txt", roberta)
    assert (ids[0][0], ids[0][-1]) == (roberta.tokenizer.bos_token_id, roberta.tokenizer.sep_token_id)


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("none.txt", None, "cannot read .*none.txt"),
        ("a.txt", b" \n", "a.txt is empty; expected a text in each line"),
        ("a.txt", b"caf\xe9", "a.txt is not UTF-8 at byte 3"),
        ("a.txt", b"the\nkey\n", "no text of two tokens or more"),
        ("a.csv", b"words,label\nthe key,1\n", "a.csv has the columns words, label; expected text or sentence"),
    ],
)
def test_files_without_neutral_texts_are_refused(words, tmp_path, name, content, why):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=why):
        load_neutral(tmp_path / name, words)


def test_positions_whose_words_differ_between_pairs_are_counted_from_the_last():
    def varied(clean: list[list[int]], align: Align = "tokens") -> int:
        ids = torch.zeros(len(clean), dtype=torch.int64)
        return MinimalPairs(clean, clean, ids, ids, ids, ids, ["a"] * len(clean), align).varied

    assert varied([[1, 2, 3], [1, 5, 3]]) == 1
    assert varied([[1, 2, 3]]) == varied([[1, 2], [1, 2]]) == 0
    assert varied([[1, 2, 3], [2, 3]]) == 1
    assert varied([[1, 2], [3, 4]], "last") == 0
