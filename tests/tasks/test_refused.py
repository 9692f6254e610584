"""What `load_task` refuses, in tables: a row, a file or a call, the exit code, and a keyword of its one line.

A bad row is named with its file and line, or skipped and counted; a file that cannot be used is refused either way.
"""

import gzip
import json
import lzma
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from probekit.errors import DataError, ProbekitError
from probekit.tasks import load_task
from probekit.tasks.labels import NA

HINT = "or leave such rows out with on_bad_row='skip' (--on-bad-row skip)"
GOOD = [(f"text number {i}", i % 2) for i in range(20)]
CSV = "".join(f"{text},{label}\n" for text, label in GOOD).encode()
JSONL = "".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in GOOD).encode()
BODIES = {
    "data.csv": (b"text,label\n", CSV),
    "data.tsv": (b"text\tlabel\n", CSV.replace(b",", b"\t")),
    "data.jsonl": (b"", JSONL),
}


def refused(path: Path, code: int = 3, **options: Any) -> str:
    with pytest.raises(ProbekitError) as caught:
        load_task(path, **options)
    words = str(caught.value)
    assert caught.value.exit_code == code
    assert words.isascii()
    assert words.isprintable()
    return words


def with_row(folder: Path, name: str, row: bytes) -> Path:
    """A file whose second row (line 3, or 2 where there is no header) is this one."""
    header, body = BODIES[name]
    first, rest = body.split(b"\n", 1)
    (folder / name).write_bytes(header + first + b"\n" + row + b"\n" + rest)
    return folder / name


def json_row(**cells: Any) -> bytes:
    return json.dumps(cells).encode()


ROWS = [
    ("data.csv", b"a,b,1", "ragged", "expected 2 cells as in the header, got 3; check for double quotes"),
    ("data.csv", b"alone", "ragged", "got 1"),
    ("data.csv", b",1", "empty", "the empty ''"),
    ("data.csv", b'" ",1', "empty", "the empty ' '"),
    ("data.csv", b"caf\xe9,1", "not_utf8", "byte 0xe9 is not UTF-8; save"),
    ("data.csv", b"a\0b,1", "nul", "a NUL byte"),
    ("data.csv", b"fine,", "na", "expected a label, got ''"),
    ("data.csv", b"fine,NA", "na", "expected a label, got 'NA'"),
    *[("data.csv", f"{na},1".encode(), "na", f"expected a text, got '{na}', a missing") for na in sorted(NA - {""})],
    ("data.tsv", b"a\tb\t1", "ragged", "got 3; check for no tab inside a text"),
    ("data.tsv", b"\t1", "empty", "the empty ''"),
    ("data.tsv", b"\xff\t1", "not_utf8", "byte 0xff is not UTF-8"),
    ("data.tsv", b"null\t1", "na", "got 'null', a missing value"),
    ("data.jsonl", b'{"text": "cut of', "json", "expected one JSON object, got broken JSON (Unterminated string"),
    ("data.jsonl", b'["text", 1]', "json", "expected a JSON object, got ['text', 1]"),
    ("data.jsonl", b"[" * 100_000, "json", "broken JSON"),
    ("data.jsonl", b'{"text": "caf\xe9", "label": 1}', "not_utf8", "byte 0xe9 is not UTF-8"),
    ("data.jsonl", b'{"text": "\\ud83d", "label": 1}', "not_utf8", "\\ud83d is half a character"),
    ("data.jsonl", json_row(text="a\0", label=1), "nul", "a NUL byte"),
    ("data.jsonl", json_row(text=5, label=1), "not_text", "expected a text, got 5 (int)"),
    ("data.jsonl", json_row(text=["a"], label=1), "not_text", "got ['a'] (list)"),
    ("data.jsonl", json_row(text=True, label=1), "not_text", "got True (bool)"),
    ("data.jsonl", json_row(text=None, label=1), "na", "expected a text, got None"),
    ("data.jsonl", json_row(text=float("nan"), label=1), "na", "expected a text, got nan"),
    ("data.jsonl", json_row(label=1), "na", "expected a text, got None"),
    ("data.jsonl", json_row(text="", label=1), "empty", "the empty ''"),
    ("data.jsonl", json_row(text="a", label=None), "na", "expected a label, got None"),
    ("data.jsonl", json_row(text="a", label=float("nan")), "na", "expected a label, got nan"),
    ("data.jsonl", json_row(text="a", label={"x": 1}), "label_type", "true or false), got {'x': 1}"),
    ("data.jsonl", json_row(text="a"), "na", "expected a label, got None"),
    ("data.parquet", (None, 1.0), "na", "expected a text, got None"),
    ("data.parquet", ("", 1.0), "empty", "the empty ''"),
    ("data.parquet", ("a\0", 1.0), "nul", "a NUL byte"),
    ("data.parquet", ("a", None), "na", "expected a label, got"),
]


@pytest.mark.parametrize(("name", "row", "kind", "words"), ROWS)
def test_a_bad_row_is_named_or_skipped_and_counted(tmp_path, name, row, kind, words):
    """The ids of the others do not move."""
    if name == "data.parquet":
        path, place = tmp_path / name, "row 2"
        pd.DataFrame([GOOD[0], row, *GOOD[1:]], columns=["text", "label"]).to_parquet(path)
    else:
        path, place = with_row(tmp_path, name, row), "line 2" if name == "data.jsonl" else "line 3"
    message = refused(path)
    assert message.startswith(f"{name}, {place}: ")
    assert words in message
    assert HINT in message
    task = load_task(path, on_bad_row="skip")
    assert (task.info["skipped_rows"], task.info["skipped"]) == (1, {kind: 1})
    assert task.inputs == [text for text, _ in GOOD]
    assert task.ids == [f"data:{i}" for i in (0, *range(2, 21))]


@pytest.mark.parametrize(
    ("name", "word"), [("data.jsonl", "NA"), *[("data.csv", word) for word in ("None", "none", "Na", "Nan", "1987")]]
)
def test_words_that_only_look_missing_pass(tmp_path, name, word):
    row = json_row(text=word, label=1) if name == "data.jsonl" else f"{word},1".encode()
    assert load_task(with_row(tmp_path, name, row)).inputs[1] == word


SAMPLES: dict[str, list[dict[str, Any]]] = {
    "labelled": [{"text": f"text num{i}", "label": i % 2, "cell": "a", "key": f"q{i}"} for i in range(40)],
    "words": [{"text": f"text num{i}", "label": i % 2, "cell": [0, 4]} for i in range(40)],
    "spans": [{"text": f"text num{i}", "cell": [{"start": 0, "end": 4, "label": "xy"[i % 2]}]} for i in range(40)],
    "tags": [{"text": f"some words {i}", "cell": [["noun", "verb"][i % 2], "verb"], "label": i % 2} for i in range(40)],
    "ids": [{"cell": [i % 20, i % 7, i], "label": i % 2} for i in range(40)],
}
WORDS, SPANS, TAGS = ({f"{kind}_column": "cell"} for kind in ("span", "span", "token_label"))
IDS, OWN, KEPT = {"text_column": "cell"}, {"id_column": "cell"}, {"keep_columns": "cell"}
SPLIT, GROUP = {"split_column": "cell"}, {"group_column": "cell"}
CELLS = [
    ("words", WORDS, [0, 99], "expected a span from 0 to 9, the text's characters, got 0 to 99"),
    ("words", WORDS, [3, 3], "got 3 to 3"),
    ("words", WORDS, [-1, 3], "got -1 to 3"),
    ("words", WORDS, [4, 5], "holds only blanks"),
    ("words", WORDS, "3-99", "got 3 to 99"),
    *[("words", WORDS, cell, "expected a span") for cell in ([0.5, 2], [0, 1, 2], None, [True, 4])],
    *[("words", WORDS, cell, "such as [4, 7], got") for cell in ("0..4", "-1-4", "[0, 4, 5]", "0-", "a:b")],
    *[("spans", SPANS, cell, "expected a list of spans") for cell in (None, "0-4", [[0, 4]])],
    ("spans", SPANS, [{"start": 0, "label": "x"}], "expected a span"),
    ("spans", SPANS, [{"start": 0, "end": 99, "label": "x"}], "expected a span"),
    ("tags", TAGS, "noun", "expected a list of labels, or of stretches such as"),
    ("tags", TAGS, 5, "expected a list of labels"),
    ("tags", TAGS, [{"start": 0, "end": 99, "label": "a"}], "expected a span from 0 to "),
    ("tags", TAGS, [{"start": 0, "end": 2}], "expected a stretch such as"),
    ("tags", TAGS, [{"start": 0, "end": 3, "label": ""}], "expected a label, got ''"),
    ("tags", TAGS, ["noun", ""], "expected a label, got ''"),
    ("tags", TAGS, ["noun", {"label": "a"}], "expected a stretch such as"),
    ("ids", IDS, None, "expected token ids, got a missing value"),
    ("ids", IDS, [], "got an empty list"),
    ("ids", IDS, "1 2 3", "expected a list of token ids, got '1 2 3'"),
    ("ids", IDS, [1, 2.5], "token ids are whole numbers from 0, got 2.5"),
    *[("ids", IDS, cell, f"got {cell[-1]}") for cell in ([1, True], [1, -1], [1, [2]])],
    ("labelled", OWN, "a0", "the id 'a0' in 'cell' is that of data.jsonl, line 1 too"),
    ("labelled", OWN, None, "expected an id, got None"),
    ("labelled", OWN, "  ", "expected an id, got '  '"),
    *[("labelled", OWN, cell, "expected an id (a text or a number), got") for cell in ([1], True)],
    ("labelled", KEPT, [1], "number or a text"),
    ("labelled", KEPT, float("inf"), "expected a finite number in 'cell'"),
    ("labelled", KEPT, 10**400, "expected a finite number in 'cell'"),
    ("labelled", SPLIT, "tset", "expected a split (train, validation, test) in 'cell', got 'tset'; correct it"),
    ("labelled", SPLIT, True, "got True"),
    ("labelled", GROUP, " ", "expected a group, got ' '; write one"),
    ("labelled", GROUP, [1], "expected a group (a text, a number, true or false)"),
]


@pytest.mark.parametrize(("sample", "options", "cell", "words"), CELLS)
def test_a_bad_cell_is_named_or_skipped_and_counted(tmp_path, sample, options, cell, words):
    rows = [dict(row) for row in SAMPLES[sample]]
    if options is OWN:
        rows = [{**row, "cell": f"a{i}"} for i, row in enumerate(rows)]
    if options is SPLIT or options is GROUP:
        rows = [{**row, "cell": "train" if options is SPLIT else f"g{i}"} for i, row in enumerate(rows)]
    rows[6]["cell"] = cell
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    message = refused(path, **options)
    assert message.startswith("data.jsonl, line 7: ")
    assert words in message
    assert HINT in message
    task = load_task(path, on_bad_row="skip", **options)
    assert (len(task), task.info["skipped_rows"]) == (39, 1)


ONE = b'{"text": "a", "label": 0}\n'
FILES = [  # name, content, exit code, keyword
    ("data.csv", b"", 3, "data.csv is empty; expected a table"),
    ("data.csv", b" \n\n", 3, "is empty"),
    ("data.tsv", b"\xef\xbb\xbf", 3, "is empty"),
    ("data.jsonl", b"\n", 3, "is empty"),
    ("data.parquet", b"", 3, "is empty"),
    ("data.csv", b"text,label\n", 3, "has a header and no rows"),
    ("data.parquet", b"PAR1 and so on", 3, "is not a readable Parquet file"),
    ("data.csv", b'text,label\na,1\n"b,0\nc,1\n', 3, "line 3: a quote is opened and never closed; close it"),
    ("data.csv", b'text,label\na,1\n"b" c,0\n', 3, "line 3: broken quoting"),
    ("data.csv", "text,label\na,1\n".encode("utf-16"), 3, "is UTF-16, expected UTF-8; save it again"),
    ("data.csv", gzip.compress(b"text,label\na,1\n", mtime=0), 3, "'data.csv' is compressed with gzip, expected the"),
    ("data.csv.gz", b"", 3, "'data.csv.gz' is compressed with gzip, expected the table itself; unpack it first"),
    ("data.jsonl", lzma.compress(b"{}"), 3, "is compressed with xz"),
    ("data.csv", b"t\xe9xt,label\na,1\n", 3, "line 1: byte 0xe9 is not UTF-8"),
    ("data.csv", b"text,label\n3.5,1\n-2,0\n", 3, "line 2: expected texts in column 'text', got only numbers"),
    ("data.jsonl", b'{"text"\n{"label"\n', 3, "line 1: expected one JSON object"),
    ("data.jsonl", b"{}\n", 3, "line 1: expected a JSON object with names"),
    ("data.csv", b"text,label\na,0.5\nb,1\nc,inf\n", 3, "line 4: expected a finite number, got the label 'inf' of"),
    ("data.csv", b"text,label\na,0.5\nb,1\nc,north\n", 3, "line 4: expected a finite number, got the label 'north'"),
    ("data.jsonl", ONE.replace(b"0", b"0.5") + ONE.replace(b"0", b'"x"'), 3, "must all be of one kind"),
    ("data.jsonl", ONE.replace(b"0", b"1e999"), 3, "line 1: expected a finite number, got the label inf"),
    ("data.jsonl", ONE.replace(b"0", b'"x"') + ONE, 3, "one kind, got data.jsonl, line 2: 0; data.jsonl, line 1: 'x'"),
    ("data.csv", b"text,label\n,1\nNA,0\n", 3, ""),
    ("data.json", b"[]", 3, "data.json: expected a JSON object with names"),
    ("data.json", b"[" + ONE, 3, "data.json: expected a list of JSON objects, got broken JSON"),
    ("data.json", b"[" * 100_000, 3, "nested too deeply"),
    ("data.json", b'[{"a\x1b[31m": 1,', 3, "data.json: expected a list"),
    ("data.json", b'{"train": [\n{"text": "a"}]}', 3, "data.json, line 1: expected one JSON object"),
    ("data.txt", b"a\tx\n", 2, "no names for its columns; name them, such as --columns label,text"),
    ("data.dat", b"a\tx\n", 2, "--data-format"),
    ("data.xlsx", b"x", 2, "an unknown format; expected a name ending in .csv, .tsv, .jsonl, .json, .parquet"),
    ("data.csv", b"text,text,label\na,a,1\n", 3, "2 columns named 'text'; rename all but one"),
    ("data.csv", b"1,x\n2,y\n", 2, "without a header, name all columns: --columns text,label"),
    ("data.csv", ",".join(f"c{i}" for i in range(1000)).encode() + b"\nx\n", 2, "and 990 more"),
    ("data.csv", b"text,label,split\na,0,test\nb,1,test\n", 3, "no row is in the split train by column 'split'"),
    ("data.conllu", b"1\ta\t_\tX\t_\t_\t0\t_\t_\t_\n\n", 2, "no column named label or target, only 'text'"),
]


@pytest.mark.parametrize(("name", "content", "code", "words"), FILES)
@pytest.mark.parametrize("on_bad_row", ["error", "skip"])
def test_a_file_that_cannot_be_used_is_refused_whatever_is_skipped(tmp_path, name, content, code, words, on_bad_row):
    (tmp_path / name).write_bytes(content)
    message = refused(tmp_path / name, code, on_bad_row=on_bad_row)
    assert words in message
    assert name.split(".")[0] in message
    assert len(message) < 500


TWO, KINDS = b"x,0\ny,1\n", b"text,kind\n" + CSV
THREE = TWO + b"z,2\n"
OPTIONS = [  # name, content, options, exit code, keyword
    ("data.csv", TWO, {"columns": "text"}, 2, "data.csv, line 1: expected the 1 column of --columns (text), got 2"),
    ("data.csv", TWO, {"columns": "a,b,c"}, 2, "expected the 3 columns of --columns (a, b, c), got 2"),
    ("data.csv", TWO, {"columns": "text,text"}, 2, "different names"),
    ("data.csv", TWO, {"columns": ","}, 2, "different names"),
    ("data.csv", TWO, {"columns": 5}, 2, "columns must be a text, a list or None; got 5"),
    ("data.csv", TWO, {"header": False}, 2, "only '1', '2'"),
    ("data.csv", b"x,0\ny,1,2\n", {"columns": "text,label"}, 3, "line 2: expected 2 cells as in the first line, got 3"),
    ("data.jsonl", JSONL, {"columns": "text,label"}, 2, "'data.jsonl' names its columns; leave it out"),
    ("data.jsonl", JSONL, {"header": False}, 2, "'data.jsonl' names its columns; leave it out"),
    ("data.dat", TWO, {"data_format": "xml"}, 2, "got 'xml'"),
    ("data.csv", KINDS, {"text_column": "txt"}, 2, "no column 'txt', only 'text', 'kind'; did you mean 'text'"),
    ("data.csv", KINDS, {"label_column": "zzz"}, 2, "no column 'zzz', only 'text', 'kind'; name one of these"),
    ("data.csv", KINDS, {"label_column": "kind", "group_column": "knd"}, 2, "did you mean 'kind'"),
    ("data.csv", KINDS, {"label_column": "kind", "group_column": "kind"}, 2, "cannot be both label and group"),
    ("data.csv", KINDS, {"label_column": "text"}, 2, "cannot be both text and label"),
    ("data.csv", KINDS, {"label_column": "kind,kind"}, 2, "must be different names"),
    ("data.csv", KINDS, {"label_column": "kind,text"}, 2, "column 'text' cannot be both text and label"),
    ("data.csv", KINDS, {"label_column": "kind,nope"}, 2, "no column 'nope'"),
    ("data.csv", KINDS, {"label_column": "kind", "split_column": "splt"}, 2, "no column 'splt'"),
    ("data.csv", KINDS, {"label_column": "kind", "keep_columns": "sorce"}, 2, "no column 'sorce'"),
    ("data.csv", KINDS, {"label_column": "kind", "keep_columns": "a,a"}, 2, "keep-columns"),
    ("data.csv", KINDS, {"id_column": "text"}, 2, "'text' cannot be both text and id"),
    ("data.csv", KINDS, {"id_column": "idd"}, 2, "no column 'idd'"),
    ("data.csv", KINDS, {"id_column": "kind", "span_column": "kind"}, 2, "leave --id-column out"),
    ("data.csv", KINDS, {"span_column": "a,b,c", "label_column": "kind"}, 2, "in one column or in two"),
    ("data.csv", KINDS, {"token_label_column": "text"}, 2, "cannot be both text and labels of tokens"),
    ("data.csv", KINDS, {"token_label_column": "kind", "label_column": "kind"}, 2, "both label and labels of tokens"),
    ("data.csv", KINDS, {"token_label_column": "kind", "span_column": "kind"}, 2, "leave --token-label-column out"),
    ("data.csv", KINDS, {"messages_column": "kind"}, 2, "write chats as JSONL or Parquet"),
    ("data.csv", KINDS, {"messages_column": "kind", "text_column": "text"}, 2, "--text-column or --messages-column"),
    ("data.csv", KINDS, {"regression": True}, 2, "--regression is for labels, and data.csv has none"),
    (
        "data.csv",
        TWO.replace(b"1", b"north"),
        {"columns": "text,label", "regression": True},
        3,
        "line 2: expected a finite",
    ),
    ("data.csv", THREE, {"columns": "text,label", "max_classes": 2}, 2, "expected at most 2 classes, got 3 different"),
    ("data.csv", b"text,label\n" + CSV, {"limit": 1}, 2, "limit 1 is less than the 2 classes"),
]


@pytest.mark.parametrize(("name", "content", "options", "code", "words"), OPTIONS)
def test_options_that_do_not_fit_a_file_are_refused(tmp_path, name, content, options, code, words):
    (tmp_path / name).write_bytes(content)
    assert words in refused(tmp_path / name, code, **options)


@pytest.mark.parametrize(
    "options",
    [
        *(
            {f"{one}_column": "x"}
            for one in ("text", "label", "group", "span", "split", "id", "messages", "token_label")
        ),
        *({"keep_columns": "x"}, {"columns": "text,label"}, {"header": False}, {"data_format": "csv"}),
    ],
)
def test_a_built_in_task_takes_no_option_of_files(options):
    assert "is built in" in refused("agreement", 2, **options)  # pyright: ignore[reportArgumentType]


def test_a_label_that_was_seen_before_hides_nothing_in_its_text():
    rows = [{"text": f"text {i}", "label": "ab"[i % 2]} for i in range(20)]
    rows[7]["text"] = "a\0"
    with pytest.raises(DataError, match=r"^list, row 7: expected a text, got a NUL byte"):
        load_task(rows)


def test_lines_are_counted_through_cells_with_line_breaks(tmp_path):
    assert refused(with_row(tmp_path, "data.csv", b'"two\nlines",1\n,0')).startswith("data.csv, line 5: ")


def test_what_came_is_escaped_and_cut(tmp_path):
    words = refused(with_row(tmp_path, "data.jsonl", json_row(text=["\x1b[31m\u202e<b>" + "x" * 1000], label=1)))
    assert "\\x1b[31m\\u202e<b>xxx" in words
    assert len(words) < 300


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ([1] * 10, "two classes of 'label' or more, got train: 1=8; validation: 1=1; test: 1=1"),
        ([0, 1, -1, 0, 1, 0, 1, 0, 1, 0], "data.csv, line 4: expected a label of 'label', got -1, which means 'not"),
        ([0, 0, 0, 0, 0, 0, 0, 0, 1, 1], "every split needs every class of 'label', got train: 0="),
        ([0.5, 0.7], "add examples, or name another column of labels"),
        ([0.5] * 30, "two different values of 'label' or more in every split, got train: 24 of 0.5 to 0.5"),
    ],
)
def test_labels_no_probe_can_learn_are_counted_by_class_and_split(tmp_path, labels, words):
    path = tmp_path / "data.csv"
    path.write_text("text,label\n" + "".join(f"text {i},{label}\n" for i, label in enumerate(labels)))
    assert words in refused(path)


def test_rows_labelled_minus_one_can_be_skipped(tmp_path):
    task = load_task(with_row(tmp_path, "data.csv", b"unlabelled,-1"), on_bad_row="skip")
    assert (task.info["skipped"], task.inputs) == ({"unlabelled": 1}, [text for text, _ in GOOD])
    assert task.label_names["label"] == ["0", "1"]


@pytest.mark.parametrize(
    ("label", "more"), [("ab", {}), ("01", {"regression": True}), ("ab", {"span_column": "start,end"})]
)
def test_equal_texts_cannot_be_divided_and_leaving_rows_out_would_not_help(tmp_path, label, more):
    rows = [f"the same text,{label[i % 2]},{i % 2 * 4},{i % 2 * 5 + 3}\n" for i in range(12)]
    (tmp_path / "data.csv").write_text("text,label,start,end\n" + "".join(rows))
    words = refused(tmp_path / "data.csv", **more)
    assert "the 12 examples have only 1 different text; add other texts, or give each split its own file" in words
    assert "--on-bad-row" not in words


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("data.csv", b'text,label\n"open,1\n'),
        ("data.jsonl", b'{"text": 1'),
        ("data.json", b'[{"text": 1'),
        ("data.parquet", b"PAR1 and nothing else PAR1"),
        ("folder.csv", None),
    ],
)
def test_an_error_of_a_file_carries_no_traceback_of_a_library(tmp_path, name, content):
    """A notebook prints the causes of an error, and what it replaced unless that is suppressed."""
    path = tmp_path / name
    _ = path.mkdir() if content is None else path.write_bytes(content)
    with pytest.raises(ProbekitError) as caught:
        load_task(path)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None or caught.value.__suppress_context__


@pytest.mark.parametrize("alone", ["test", "dev"])
def test_a_folder_with_one_file_that_is_not_train_is_refused(tmp_path, alone):
    (tmp_path / f"{alone}.csv").write_bytes(b"text,label\n" + CSV)
    with pytest.raises(DataError, match=rf"expected a train file; add one, or give the path of '{alone}\.csv' itself"):
        load_task(tmp_path)
    assert len(load_task(tmp_path / f"{alone}.csv")) == 20
