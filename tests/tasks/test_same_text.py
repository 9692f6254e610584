"""One rule for the same text: what is carved, folded or grouped by it has no exact duplicate in two splits."""

import csv
import json
import unicodedata
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probekit.options import ImportOptions
from probekit.tasks import load_task
from probekit.tasks.base import Task
from probekit.tasks.load import labelled_task
from probekit.tasks.quality.audit import audit
from probekit.tasks.quality.duplicates import Inputs, linked_texts
from probekit.tasks.splitting.splits import normalised_words, text_numbers

PIECES = st.sampled_from(["Café", "straße", "ﬁne", "It", "'", "s", "GOOD", "film", ".", "?", "(", ")", "日本", "19"])
BLANKS = st.sampled_from(["", " ", "  ", "\u00a0", "\u3000", "\t"])
FORMS = st.sampled_from(["NFC", "NFD", "NFKC", "NFKD"])


@st.composite
def variants(draw) -> str:
    """Few words, written in many ways."""
    pieces = draw(st.lists(PIECES, min_size=1, max_size=3))
    text = "".join(draw(BLANKS) + piece for piece in pieces) + draw(BLANKS)
    return unicodedata.normalize(draw(FORMS), draw(st.sampled_from([text, text.upper(), text.lower(), text.title()])))


def task_of(texts: list[str], labels: list[int], **changes) -> Task:
    splits = np.where(np.arange(len(texts)) % 7 == 0, "test", "train")
    names = {"y": [str(k) for k in range(max(labels) + 1)]}
    return replace(Task("t", texts, {"y": np.array(labels)}, names, splits, "y"), **changes)


def exact_leaks(task: Task) -> int:
    return sum(one["exact"] for one in audit(task).shared.values())


@given(st.lists(variants() | st.text(max_size=3), min_size=1, max_size=30))
def test_texts_are_the_same_if_their_normalised_words_are(texts):
    words = [tuple(normalised_words(text)) for text in texts]
    firsts = list(dict.fromkeys(words))
    assert text_numbers(texts).tolist() == [firsts.index(one) for one in words]
    assert Inputs.of(texts).number.tolist() == text_numbers(texts).tolist()


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=3), min_size=1, max_size=30))
def test_token_ids_are_the_same_if_all_are(inputs):
    firsts = [list(one) for one in dict.fromkeys(map(tuple, inputs))]
    assert text_numbers(inputs).tolist() == [firsts.index(one) for one in inputs]
    assert text_numbers([np.array(one) for one in inputs]).tolist() == text_numbers(inputs).tolist()


ROWS = st.lists(st.tuples(variants(), st.integers(0, 1)), min_size=12, max_size=60)


@given(ROWS, st.integers(0, 3))
@settings(max_examples=60)
def test_a_carved_validation_split_shares_no_text_with_train(rows, seed):
    texts, labels = [text for text, _ in rows], [label for _, label in rows]
    train = replace(task_of(texts, [0, 1, *labels[2:]]), splits=np.array(["train"] * len(rows)))
    assert exact_leaks(train.with_validation(0.3, seed)) == 0


@given(ROWS, st.sampled_from(["csv", "words", "labelled"]))
@settings(max_examples=60)
def test_carved_files_have_no_exact_leak(rows, kind):
    """Enough rows of other texts make sure that every split gets every class."""
    more = [(f"row number {i} of this file", i % 2) for i in range(60)]
    with TemporaryDirectory() as folder:
        path = Path(folder) / ("task.jsonl" if kind == "words" else "task.csv")
        if kind == "words":
            lines = [{"text": f"{text}!", "label": f"c{k}", "at": [0, 1]} for text, k in rows + more if text.strip()]
            path.write_text("\n".join(json.dumps(line) for line in lines), encoding="utf-8")
            task = load_task(path, span_column="at", on_bad_row="skip", keep_blanks=True)
        else:
            with path.open("w", newline="", encoding="utf-8") as file:
                csv.writer(file).writerows([("text", "label"), *((text, f"c{k}") for text, k in rows + more)])
            task = load_task(path) if kind == "csv" else labelled_task(path, ImportOptions(), "task")
    assert exact_leaks(task) == 0
    assert task.info["also_in_train"] == {"validation": 0, "test": 0}


@given(ROWS)
@settings(max_examples=30)
def test_folds_and_carving_tie_the_same_texts(rows):
    texts = [text for text, _ in rows]
    task = task_of(texts, [i % 2 for i in range(len(rows))])
    assert task.split_keys().tolist() == text_numbers(texts).tolist()
    pairs = set(zip(text_numbers(texts).tolist(), linked_texts(texts).tolist(), strict=True))
    assert len({text for text, _ in pairs}) == len(pairs)


def test_names_of_rows_are_not_texts():
    names = ["a:1", "A:1", "a : 1", "b", "c", "d"]
    task = task_of(names, [0, 1] * 3, info={"no_texts": True})
    assert task.split_keys().tolist() == list(range(6))


@pytest.mark.parametrize("other", ["The  FILM .", "the film.", "The film\u00a0."])
def test_a_text_of_train_in_other_letters_is_counted_as_one_of_test(tmp_path, other):
    def write(split: str, texts: list[str]) -> None:
        rows = "".join(f"{text},{i % 2}\n" for i, text in enumerate(texts))
        (tmp_path / f"{split}.csv").write_text(f"text,label\n{rows}", encoding="utf-8")

    write("train", ["The film.", *(f"text {i} of train" for i in range(40))])
    write("test", [other, "another"])
    assert load_task(tmp_path).info["also_in_train"] == {"validation": 0, "test": 1}
