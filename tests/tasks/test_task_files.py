"""Tasks from files: what is written is read, and the splits are disjoint and stratified."""

import csv
import io
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from probekit.errors import DataError, UsageError
from probekit.tasks import load_task
from probekit.tasks.base import SPLITS
from probekit.tasks.tables.readers import read_table

TEN = [(f"text number {i}", i % 2) for i in range(10)]
IN_A_FOLDER = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
CHARACTERS = st.characters(exclude_categories=("Cs",), exclude_characters="\0")
WORDS = st.text(CHARACTERS, max_size=20)
# TSV has no quoting, so a text there cannot hold a tab or a line break.
PLAIN = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0\t\r\n"), max_size=20)


def write(path: Path, rows=TEN, header=("text", "label")) -> Path:
    """A table in the format that the name says."""
    if path.suffix == ".jsonl":
        content = "".join(json.dumps(dict(zip(header, row, strict=True))) + "\n" for row in rows)
    elif path.suffix == ".parquet":
        pd.DataFrame(rows, columns=list(header)).to_parquet(path)
        return path
    elif path.suffix == ".tsv":
        content = "".join("\t".join(map(str, row)) + "\n" for row in (header, *rows))
    else:
        buffer = io.StringIO(newline="")
        csv.writer(buffer).writerows([header, *rows])
        content = buffer.getvalue()
    path.write_bytes(content.encode("utf-8"))
    return path


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet", ".CSV"])
def test_every_format_gives_the_same_task(tmp_path, suffix):
    path = write(tmp_path / f"data{suffix}")
    task = load_task(str(path))
    assert (task.name, task.target, task.label_names) == ("data", "label", {"label": ["0", "1"]})
    assert task.inputs == [text for text, _ in TEN]
    assert task.labels["label"].tolist() == [label for _, label in TEN]
    assert task.ids == [f"data:{i}" for i in range(10)]
    assert task.fingerprint() == load_task(write(tmp_path / "data.csv")).fingerprint()
    json.dumps(task.info)
    assert task.info["sha256"].keys() == {path.name}


@IN_A_FOLDER
@given(rows=st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=8))
@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_what_is_written_is_read(tmp_path, suffix, rows):
    table = read_table(write(tmp_path / f"data{suffix}", rows))
    assert (table.columns, table.bad) == (["text", "label"], {})
    assert list(zip(table.column("text"), table.column("label"), strict=True)) == rows


@IN_A_FOLDER
@given(rows=st.lists(st.tuples(PLAIN, PLAIN), min_size=1, max_size=8))
def test_what_is_written_is_read_from_tsv(tmp_path, rows):
    table = read_table(write(tmp_path / "data.tsv", rows))
    assert list(zip(table.column("text"), table.column("label"), strict=True)) == rows


def test_bom_crlf_blank_lines_quotes_and_line_breaks_in_cells(tmp_path):
    path = tmp_path / "data.csv"
    body = "".join(f'"he said ""{i}"",\r\nand left",{i % 2}\r\n\r\n' for i in range(10))
    path.write_bytes(b"\xef\xbb\xbf" + f"text,label\r\n{body}".encode())
    assert load_task(path).inputs[3] == 'he said "3",\r\nand left'
    path = tmp_path / "data.tsv"
    path.write_bytes(
        b"\xef\xbb\xbftext\tlabel\r\n" + b"".join(b'a "lone quote %d\t%d\r\n' % (i, i % 2) for i in range(10))
    )
    assert load_task(path).inputs[3] == 'a "lone quote 3'


def test_a_text_longer_than_the_csv_modules_limit_is_read(tmp_path):
    limit = csv.field_size_limit()
    assert len(load_task(write(tmp_path / "data.csv", [("x" * 200_000, 1), *TEN])).inputs[0]) == 200_000
    assert csv.field_size_limit() == limit


@pytest.mark.parametrize("dev", ["dev", "validation", "val", "valid"])
def test_a_folder_gives_its_splits(tmp_path, dev):
    write(tmp_path / "train.csv", TEN)
    write(tmp_path / f"{dev}.tsv", TEN[:4])
    write(tmp_path / "test.jsonl", [("a", 0), ("b", 1)])
    (tmp_path / "README.md").write_text("about")
    (tmp_path / "extra.csv").write_text("not,ours")
    task = load_task(tmp_path)
    assert [int((task.splits == split).sum()) for split in SPLITS] == [10, 4, 2]
    assert task.ids[:1] + task.ids[-1:] == ["train:0", "test:1"]
    assert task.name == tmp_path.name
    assert task.info["also_in_train"] == {"validation": 4, "test": 0}
    assert task.info["carved_from_train"] == []


@pytest.mark.parametrize(("there", "sizes"), [("dev", [90, 4, 10]), ("test", [90, 10, 4])])
def test_a_missing_split_is_a_tenth_of_train(tmp_path, there, sizes):
    write(tmp_path / "train.csv", [(f"text {i}", i % 2) for i in range(100)])
    write(tmp_path / f"{there}.csv", TEN[:4])
    task = load_task(tmp_path)
    assert [int((task.splits == split).sum()) for split in SPLITS] == sizes


@IN_A_FOLDER
@given(counts=st.lists(st.integers(3, 60), min_size=2, max_size=4), seed=st.integers(0, 9))
def test_a_single_file_is_split_80_10_10_stratified(tmp_path, counts, seed):
    rows = [(f"{label} {i}", f"class{label}") for label, count in enumerate(counts) for i in range(count)]
    task = load_task(write(tmp_path / "data.csv", rows), seed=seed)
    size = max(len(counts), round(0.1 * len(rows)))
    found = task.counts()
    for split in ("validation", "test"):
        assert sum(found[split].values()) == size
        for label, count in enumerate(counts):
            share = size * count / len(rows)
            assert abs(found[split][f"class{label}"] - share) <= 1 or min(counts) * size < len(rows)


@IN_A_FOLDER
@given(
    texts=st.lists(st.integers(0, 150), min_size=60, max_size=120),
    size=st.integers(1, 4),
    seed=st.integers(0, 9),
    alone=st.booleans(),
)
def test_no_group_and_no_text_stands_on_two_sides(tmp_path, texts, size, seed, alone):
    rows = [(f"word {text}", i % 2, f"pair {i // size}") for i, text in enumerate(texts)]
    header, folder = ("text", "label", "pair"), tmp_path / "folder"
    folder.mkdir(exist_ok=True)
    write(folder / "train.csv", rows, header)
    write(folder / "test.csv", [("never", 0, "x"), ("seen", 1, "y")], header)
    try:
        task = load_task(folder / "train.csv" if alone else folder, group_column="pair", seed=seed)
    except DataError as error:  # chains of texts and groups may leave a class nowhere to go
        assume("every split needs every class" not in str(error))
        raise
    groups = [row[2] for row in rows] + ([] if alone else ["x", "y"])
    for keys in (groups, task.inputs, np.asarray(task.groups).tolist()):
        parts = [{str(keys[i]) for i in np.flatnonzero(task.splits == split)} for split in SPLITS]
        assert not parts[0] & parts[1] | parts[0] & parts[2] | parts[1] & parts[2]
    assert (task.info["group_column"], task.info["groups_across_splits"]) == ("pair", 0)


def test_groups_that_the_data_tears_are_counted_and_a_group_has_one_name_in_all_formats(tmp_path):
    header = ("text", "label", "pair")
    write(tmp_path / "train.csv", [(f"a {i}", i % 2, i // 2) for i in range(20)], header)
    write(tmp_path / "dev.jsonl", [(f"b {i}", i % 2, float(i)) for i in range(4)], header)
    write(tmp_path / "test.parquet", [("c", 0, 100), ("a 19", 1, 101)], header)
    task = load_task(tmp_path, group_column="pair")
    assert task.info["groups_across_splits"] == 5  # 0 to 3, and 9 with 101 by their text
    assert task.info["also_in_train"] == {"validation": 0, "test": 1}
    plain = load_task(tmp_path)
    assert plain.groups is None
    assert (plain.info["group_column"], plain.info["groups_across_splits"]) == (None, None)


def test_a_group_may_be_called_na_but_not_nothing(tmp_path):
    rows = [(text, label, "NA") if label else (text, label, f"c{i}") for i, (text, label) in enumerate(TEN)]
    path = write(tmp_path / "data.csv", [*rows, ("one more", 0, " ")], ("text", "label", "country"))
    with pytest.raises(
        DataError, match=r"every split needs every class .*, make the groups smaller, or use another label"
    ):
        load_task(path, group_column="country", on_bad_row="skip")


def test_what_also_stands_in_train_is_counted_in_the_task_that_is_given(tmp_path):
    write(tmp_path / "train.csv", [(f"text {i}", i % 2) for i in range(400)])
    write(tmp_path / "dev.csv", [(f"text {i}", i % 2) for i in range(40)])
    write(tmp_path / "test.csv", TEN)
    assert load_task(tmp_path).info["also_in_train"] == {"validation": 40, "test": 0}
    task = load_task(tmp_path, limit=40)
    train, validation = ({str(task.inputs[i]) for i in np.flatnonzero(task.splits == split)} for split in SPLITS[:2])
    both = len(train & validation)
    assert task.info["also_in_train"] == {"validation": both, "test": 0}
    assert both < 40


def test_limit_is_stratified_seeded_and_for_each_split(tmp_path):
    path = write(tmp_path / "data.csv", [(f"text {i}", "no" if i % 4 else "yes") for i in range(1000)])
    task = load_task(path, limit=40)
    assert task.counts() == {split: {"no": 30, "yes": 10} for split in SPLITS}
    whole = load_task(path)
    at = {row: i for i, row in enumerate(whole.ids)}
    assert all(whole.splits[at[row]] == split for row, split in zip(task.ids, task.splits, strict=True))
    assert (
        task.fingerprint() == load_task(path, limit=40).fingerprint() != load_task(path, limit=40, seed=1).fingerprint()
    )
    assert (
        load_task(path, limit=10_000).fingerprint()
        == whole.subset(np.concatenate([np.flatnonzero(whole.splits == split) for split in SPLITS])).fingerprint()
    )


def test_trailing_white_space_is_dropped_and_counted(tmp_path):
    rows = [(f"  text {i}" + " \t" * (i % 2), i % 2) for i in range(10)]
    path = write(tmp_path / "data.csv", rows)
    dropped, kept = load_task(path), load_task(path, keep_blanks=True)
    assert dropped.inputs == [text.rstrip() for text, _ in rows]
    assert dropped.info["dropped_blanks"] == 5
    assert kept.inputs == [text for text, _ in rows]
    assert kept.info["dropped_blanks"] == 0


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        (["10", "9"], ["9", "10"]),
        ([10, 9], ["9", "10"]),
        (["b", "a"], ["a", "b"]),
        (["True", "False"], ["False", "True"]),
        ([True, False], ["False", "True"]),
        ([1.0, 0.0], ["0", "1"]),
        (["1.0", "0"], ["0", "1"]),
        ([" yes", "no "], ["no", "yes"]),
        (["None", "some"], ["None", "some"]),
    ],
)
@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_classes_are_in_order_numbers_by_value(tmp_path, suffix, labels, names):
    rows = [(f"text {i}", labels[i % 2]) for i in range(10)]
    task = load_task(write(tmp_path / f"data{suffix}", rows))
    assert task.label_names["label"] == names
    assert task.labels["label"].tolist() == [1, 0] * 5 if labels[0] not in ("None",) else [0, 1] * 5


@pytest.mark.parametrize(
    ("header", "options", "chosen"),
    [
        (("target", "prompt"), {}, ("prompt", "target")),
        (("label", "Statement"), {}, ("Statement", "label")),
        (("label", "sentence"), {"text_column": "sentence"}, ("sentence", "label")),
        (("what", "body"), {"text_column": "body", "label_column": "what"}, ("body", "what")),
    ],
)
def test_columns_are_recognised_or_named(tmp_path, header, options, chosen):
    task = load_task(write(tmp_path / "data.csv", [(label, text) for text, label in TEN], header), **options)
    assert (task.info["text_column"], task.info["label_column"]) == chosen
    assert task.inputs == [text for text, _ in TEN]


def test_of_several_usual_names_the_first_in_order_is_taken(tmp_path):
    rows = [("prompt", 9, text, label) for text, label in TEN]
    task = load_task(write(tmp_path / "data.csv", rows, ("prompt", "target", "text", "label")))
    assert (task.info["text_column"], task.info["label_column"]) == ("text", "label")


def test_two_columns_of_one_name_are_fine_where_they_are_not_used(tmp_path):
    path = write(tmp_path / "data.csv", [("x", text, "x", label) for text, label in TEN], ("", "text", "", "label"))
    assert load_task(path).inputs == [text for text, _ in TEN]


def test_places_that_are_not_there(tmp_path):
    with pytest.raises(UsageError, match="no file or folder"):
        load_task(tmp_path / "data.csv")
    with pytest.raises(UsageError, match=r"'nothing_here\.csv': not a file, a folder or"):
        load_task("nothing_here.csv")
    with pytest.raises(UsageError, match=r"'\./nothing': not a file, a folder or"):
        load_task("./nothing")
    (tmp_path / "data.xlsx").write_text("x")
    with pytest.raises(DataError, match=r"no train, validation \(dev\) or test file .*it has 'data.xlsx'"):
        load_task(tmp_path)
    write(tmp_path / "dev.csv")
    write(tmp_path / "val.csv")
    with pytest.raises(DataError, match=r"two files for validation: 'dev.csv' and 'val.csv'"):
        load_task(tmp_path)
