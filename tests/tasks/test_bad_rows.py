"""Bad input: one line with file, line, what was expected, what came and what to do; or skipped and counted."""

import gzip
import json
import lzma
from pathlib import Path

import pandas as pd
import pytest

from probekit.errors import DataError, UsageError
from probekit.tasks import load_task
from probekit.tasks.labels import NA

HINT = "or leave such rows out with on_bad_row='skip' (--on-bad-row skip)"
GOOD = [(f"text number {i}", i % 2) for i in range(20)]
CSV = "".join(f"{text},{label}\n" for text, label in GOOD).encode()
TSV = CSV.replace(b",", b"\t")
JSONL = "".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in GOOD).encode()


def refused(path: Path, **options) -> str:
    with pytest.raises(DataError) as caught:
        load_task(path, **options)
    words = str(caught.value)
    assert caught.value.exit_code == 3
    assert words.isascii()
    assert words.isprintable()
    assert path.name.split(".")[0] in words
    return words


def check_row(path: Path, kind: str, *words: str) -> None:
    """The row is refused with these words, and skipped and counted on demand, with the ids of the others unmoved."""
    message = refused(path)
    for word in (*words, HINT):
        assert word in message
    task = load_task(path, on_bad_row="skip")
    assert (task.info["skipped_rows"], task.info["skipped"]) == (1, {kind: 1})
    assert task.inputs == [text for text, _ in GOOD]
    assert task.ids == [f"{path.stem}:{i}" for i in (0, *range(2, 21))]


def with_row(path: Path, row: bytes) -> Path:
    """A file whose second row (line 3, or 2 where there is no header) is this one."""
    header, body = {"csv": (b"text,label\n", CSV), "tsv": (b"text\tlabel\n", TSV), "jsonl": (b"", JSONL)}[
        path.suffix[1:]
    ]
    first, rest = body.split(b"\n", 1)
    path.write_bytes(header + first + b"\n" + row + b"\n" + rest)
    return path


@pytest.mark.parametrize(
    ("row", "kind", "words"),
    [
        (b"a,b,1", "ragged", ["expected 2 cells as in the header, got 3", "double quotes"]),
        (b"alone", "ragged", ["expected 2 cells as in the header, got 1"]),
        (b",1", "empty", ["expected a text, got the empty ''"]),
        (b'" ",1', "empty", ["expected a text, got the empty ' '"]),
        (b"caf\xe9,1", "not_utf8", ["byte 0xe9 is not UTF-8", "save the file again as UTF-8"]),
        (b"a\0b,1", "nul", ["a NUL byte"]),
        (b"fine,", "na", ["expected a label, got ''"]),
        (b"fine,NA", "na", ["expected a label, got 'NA'"]),
        *[(f"{na},1".encode(), "na", [f"expected a text, got '{na}', a missing value"]) for na in sorted(NA - {""})],
    ],
)
def test_csv_rows(tmp_path, row, kind, words):
    check_row(with_row(tmp_path / "data.csv", row), kind, "data.csv, line 3: ", *words)


@pytest.mark.parametrize(
    ("row", "kind", "words"),
    [
        (b"a\tb\t1", "ragged", ["expected 2 cells as in the header, got 3", "no tab inside a text"]),
        (b"\t1", "empty", ["the empty ''"]),
        (b"\xff\t1", "not_utf8", ["byte 0xff is not UTF-8"]),
        (b"null\t1", "na", ["got 'null', a missing value"]),
    ],
)
def test_tsv_rows(tmp_path, row, kind, words):
    check_row(with_row(tmp_path / "data.tsv", row), kind, "data.tsv, line 3: ", *words)


@pytest.mark.parametrize(
    ("row", "kind", "words"),
    [
        (b'{"text": "cut of', "json", ["expected one JSON object, got broken JSON (Unterminated string", "correct it"]),
        (b'["text", 1]', "json", ["expected a JSON object, got ['text', 1]"]),
        (b"[" * 100_000, "json", ["broken JSON"]),
        (b'{"text": "caf\xe9", "label": 1}', "not_utf8", ["byte 0xe9 is not UTF-8"]),
        (b'{"text": "\\ud83d", "label": 1}', "not_utf8", ["\\ud83d is half a character"]),
        (b'{"text": "a\\u0000", "label": 1}', "nul", ["a NUL byte"]),
        (b'{"text": 5, "label": 1}', "not_text", ["expected a text, got 5 (int)"]),
        (b'{"text": ["a"], "label": 1}', "not_text", ["got ['a'] (list)"]),
        (b'{"text": true, "label": 1}', "not_text", ["got True (bool)"]),
        (b'{"text": null, "label": 1}', "na", ["expected a text, got None"]),
        (b'{"text": NaN, "label": 1}', "na", ["expected a text, got nan"]),
        (b'{"label": 1}', "na", ["expected a text, got None"]),
        (b'{"text": "", "label": 1}', "empty", ["the empty ''"]),
        (b'{"text": "a", "label": null}', "na", ["expected a label, got None"]),
        (b'{"text": "a", "label": NaN}', "na", ["expected a label, got nan"]),
        (b'{"text": "a", "label": {"x": 1}}', "label_type", ["expected a label", "got {'x': 1}"]),
        (b'{"text": "a"}', "na", ["expected a label, got None"]),
    ],
)
def test_jsonl_rows(tmp_path, row, kind, words):
    check_row(with_row(tmp_path / "data.jsonl", row), kind, "data.jsonl, line 2: ", *words)


@pytest.mark.parametrize(
    ("text", "label", "kind", "words"),
    [
        (None, 1.0, "na", "expected a text, got None"),
        ("", 1.0, "empty", "the empty ''"),
        ("a\0", 1.0, "nul", "a NUL byte"),
        ("a", None, "na", "expected a label, got"),
    ],
)
def test_parquet_rows(tmp_path, text, label, kind, words):
    rows = [GOOD[0], (text, label), *GOOD[1:]]
    path = tmp_path / "data.parquet"
    pd.DataFrame(rows, columns=["text", "label"]).to_parquet(path)
    check_row(path, kind, "data.parquet, row 2: ", words)


def test_in_typed_formats_na_is_a_word(tmp_path):
    path = with_row(tmp_path / "data.jsonl", b'{"text": "NA", "label": 1}')
    assert load_task(path).inputs[1] == "NA"


def test_words_that_only_look_missing_pass_in_csv(tmp_path):
    for word in (b"None", b"none", b"Na", b"Nan", b"1987"):
        assert load_task(with_row(tmp_path / "data.csv", word + b",1")).inputs[1] == word.decode()


def test_lines_are_counted_through_cells_with_line_breaks(tmp_path):
    path = with_row(tmp_path / "data.csv", b'"two\nlines",1\n,0')
    assert refused(path).startswith("data.csv, line 5: ")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("data.csv", b"", "data.csv is empty; expected a table"),
        ("data.csv", b" \n\n", "data.csv is empty"),
        ("data.tsv", b"\xef\xbb\xbf", "data.tsv is empty"),
        ("data.jsonl", b"\n", "data.jsonl is empty"),
        ("data.parquet", b"", "data.parquet is empty"),
        ("data.csv", b"text,label\n", "data.csv has a header and no rows"),
        ("data.parquet", b"PAR1 and so on", "data.parquet is not a readable Parquet file"),
        ("data.csv", b'text,label\na,1\n"b,0\nc,1\n', "data.csv, line 3: a quote is opened and never closed; close it"),
        ("data.csv", b'text,label\na,1\n"b" c,0\n', "data.csv, line 3: broken quoting"),
        ("data.csv", "text,label\na,1\n".encode("utf-16"), "data.csv is UTF-16, expected UTF-8; save it again"),
        (
            "data.csv",
            gzip.compress(b"text,label\na,1\n", mtime=0),
            "'data.csv' is compressed with gzip, expected the table itself",
        ),
        ("data.csv.gz", b"", "'data.csv.gz' is compressed with gzip, expected the table itself; unpack it first"),
        ("data.jsonl", lzma.compress(b"{}"), "'data.jsonl' is compressed with xz"),
        ("data.csv", b"t\xe9xt,label\na,1\n", "data.csv, line 1: byte 0xe9 is not UTF-8"),
        (
            "data.csv",
            b"text,label\n3.5,1\n-2,0\n",
            "data.csv, line 2: expected texts in column 'text', got only numbers",
        ),
        ("data.jsonl", b'{"text"\n{"label"\n', "data.jsonl, line 1: expected one JSON object"),
        ("data.jsonl", b"{}\n", "data.jsonl, line 1: expected a JSON object with names"),
        ("data.csv", b"text,label\na,0.5\nb,1\nc,inf\n", "line 4: expected a finite number, got the label 'inf' of"),
        ("data.csv", b"text,label\na,0.5\nb,1\nc,north\n", "line 4: expected a finite number, got the label 'north'"),
        ("data.jsonl", b'{"text": "a", "label": 0.5}\n{"text": "b", "label": "x"}\n', "must all be of one kind"),
        ("data.jsonl", b'{"text": "a", "label": 1e999}\n', "line 1: expected a finite number, got the label inf"),
        (
            "data.jsonl",
            b'{"text": "a", "label": "x"}\n{"text": "b", "label": 1}\n',
            "must all be of one kind, got data.jsonl, line 2: 1; data.jsonl, line 1: 'x'",
        ),
    ],
)
@pytest.mark.parametrize("on_bad_row", ["error", "skip"])
def test_files_that_cannot_be_used_are_refused_whatever_is_skipped(tmp_path, name, content, words, on_bad_row):
    (tmp_path / name).write_bytes(content)
    assert words in refused(tmp_path / name, on_bad_row=on_bad_row)


def test_what_came_is_escaped_and_cut(tmp_path):
    row = json.dumps({"text": ["\x1b[31m\u202e<b>" + "x" * 1000], "label": 1}).encode()
    words = refused(with_row(tmp_path / "data.jsonl", row))
    assert "\\x1b[31m\\u202e<b>xxx" in words
    assert len(words) < 300


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ([1] * 10, "two classes of 'label' or more, got train: 1=8; validation: 1=1; test: 1=1"),
        (
            [0, 1, -1, 0, 1, 0, 1, 0, 1, 0],
            "data.csv, line 4: expected a label of 'label', got -1, which means 'not labelled' (1 of 10 rows)",
        ),
        ([0, 0, 0, 0, 0, 0, 0, 0, 1, 1], "every split needs every class of 'label', got train: 0="),
    ],
)
def test_labels_no_probe_can_learn_are_counted_by_class_and_split(tmp_path, labels, words):
    path = tmp_path / "data.csv"
    path.write_text("text,label\n" + "".join(f"text {i},{label}\n" for i, label in enumerate(labels)))
    with pytest.raises(DataError) as caught:
        load_task(path)
    assert words in str(caught.value)


def test_a_class_missing_in_one_file_is_counted(tmp_path):
    (tmp_path / "train.csv").write_bytes(b"text,label\n" + CSV)
    (tmp_path / "dev.csv").write_bytes(b"text,label\n" + CSV)
    (tmp_path / "test.csv").write_bytes(b"text,label\na,1\n")
    with pytest.raises(DataError, match="train: 0=10, 1=10; validation: 0=10, 1=10; test: 0=0, 1=1; add examples"):
        load_task(tmp_path)


def test_rows_labelled_minus_one_can_be_skipped(tmp_path):
    path = with_row(tmp_path / "data.csv", b"unlabelled,-1")
    task = load_task(path, on_bad_row="skip")
    assert (task.info["skipped"], task.inputs) == ({"unlabelled": 1}, [text for text, _ in GOOD])
    assert task.label_names["label"] == ["0", "1"]


def test_a_file_with_only_bad_rows_says_so(tmp_path):
    (tmp_path / "data.csv").write_bytes(b"text,label\n,1\nNA,0\n")
    assert "skipped 2 of 2 rows" in refused(tmp_path / "data.csv", on_bad_row="skip")


@pytest.mark.parametrize(
    ("label", "more"),
    [("ab", {}), ("01", {"regression": True}), ("ab", {"span_column": "start,end"})],
)
def test_equal_texts_cannot_be_divided_and_leaving_rows_out_would_not_help(tmp_path, label, more):
    rows = [f"the same text,{label[i % 2]},{i % 2 * 4},{i % 2 * 5 + 3}\n" for i in range(12)]
    (tmp_path / "data.csv").write_text("text,label,start,end\n" + "".join(rows))
    with pytest.raises(DataError) as caught:
        load_task(tmp_path / "data.csv", **more)
    words = str(caught.value)
    assert words.endswith(
        "equal texts stay in one split, and the 12 examples have only 1 different text; add other texts, "
        "or give each split its own file"
    )
    assert "with_validation" not in words
    assert "--on-bad-row" not in words


def test_a_regression_from_a_file_has_no_advice_for_python(tmp_path):
    (tmp_path / "data.csv").write_text("text,label\none,0.5\ntwo,0.7\n")
    with pytest.raises(DataError) as caught:
        load_task(tmp_path / "data.csv")
    words = str(caught.value)
    assert "with_validation" not in words
    assert words.endswith("add examples, or name another column of labels")


def test_a_named_label_column_that_is_not_there_is_a_mistake_of_usage(tmp_path):
    (tmp_path / "data.csv").write_text("text,klass\none,0\n")
    with pytest.raises(UsageError, match="has no column"):
        load_task(tmp_path / "data.csv", label_column="lable")
