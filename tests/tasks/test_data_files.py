"""Files as people have them: without a header, text files, folders of classes, stdin, a column of splits."""

import gzip
import hashlib
import io
import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from probekit.errors import DataError, UsageError
from probekit.tasks import load_task
from probekit.tasks.base import SPLITS

ROWS = [(f"text number {i}", "ab"[i % 2]) for i in range(60)]


def lines(*cells, between="\t"):
    return "".join(between.join(row) + "\n" for row in zip(*cells, strict=True))


def texts_and_labels():
    return [text for text, _ in ROWS], [label for _, label in ROWS]


def with_header(path: Path) -> Path:
    path.write_text("text\tlabel\n" + lines(*texts_and_labels()))
    return path


def sizes(task):
    return [int((task.splits == split).sum()) for split in SPLITS]


@pytest.mark.parametrize(("name", "between"), [("data.csv", ","), ("data.tsv", "\t"), ("data.txt", "\t")])
@pytest.mark.parametrize("columns", ["label,text", ["label", "text"]])
def test_columns_name_those_of_a_file_without_a_header(tmp_path, name, between, columns):
    texts, labels = texts_and_labels()
    (tmp_path / name).write_text(lines(labels, texts, between=between))
    task = load_task(tmp_path / name, columns=columns)
    (tmp_path / "headed").mkdir()
    assert task.fingerprint() == load_task(with_header(tmp_path / "headed" / "data.tsv")).fingerprint()


def test_without_names_the_columns_are_numbered(tmp_path):
    texts, labels = texts_and_labels()
    (tmp_path / "data.csv").write_text(lines(labels, texts, between=","))
    task = load_task(tmp_path / "data.csv", header=False, text_column="2", label_column="1")
    assert task.inputs == texts
    with pytest.raises(UsageError, match=r"no column named text .*, only '1', '2'"):
        load_task(tmp_path / "data.csv", header=False)
    with pytest.raises(UsageError, match=r"without a header, name all columns: --columns text,label"):
        load_task(tmp_path / "data.csv")


def test_a_format_may_be_given_for_other_endings(tmp_path):
    with_header(tmp_path / "data.tsv").rename(tmp_path / "data.dat")
    assert len(load_task(tmp_path / "data.dat", data_format="tsv")) == 60
    with pytest.raises(UsageError, match="--data-format"):
        load_task(tmp_path / "data.dat")
    with pytest.raises(UsageError, match=r"data_format .*; got 'xml'"):
        load_task(tmp_path / "data.dat", data_format="xml")  # pyright: ignore[reportArgumentType]


def test_senteval_splits_in_a_column(tmp_path):
    """Tab-separated split, label, text, as the probing tasks of SentEval are."""
    texts, labels = texts_and_labels()
    splits = ["tr"] * 40 + ["va"] * 10 + ["te"] * 10
    (tmp_path / "subj_number.txt").write_text(lines(splits, labels, texts))
    task = load_task(tmp_path / "subj_number.txt", columns="split,label,text")
    assert task.splits.tolist() == ["train"] * 40 + ["validation"] * 10 + ["test"] * 10
    assert task.inputs == texts
    assert (task.info["split_column"], task.info["splits_from"]) == ("split", "by column 'split'")
    assert task.info["carved_from_train"] == []


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_a_split_column_is_honoured(tmp_path, suffix):
    splits = ["train", "Training", "dev ", "val", "valid", "validation", "test", "test"] * 8
    frame = pd.DataFrame({"text": [f"t {i}" for i in range(64)], "split": splits})
    frame["label"] = ["xy"[i // 8 % 2] for i in range(64)]
    path = tmp_path / f"data{suffix}"
    if suffix == ".csv":
        frame.to_csv(path, index=False)
    elif suffix == ".jsonl":
        frame.to_json(path, orient="records", lines=True)
    else:
        frame.to_parquet(path)
    task = load_task(path)
    assert task.splits.tolist() == (["train"] * 2 + ["validation"] * 4 + ["test"] * 2) * 8


def test_a_column_called_split_of_something_else_is_not_read(tmp_path):
    texts, labels = texts_and_labels()
    path = tmp_path / "data.csv"
    path.write_text("text,label,split,fold\n" + lines(texts, labels, ["banana"] * 60, ["train"] * 60, between=","))
    with pytest.warns(UserWarning, match="column 'split' of data.csv is not read as splits, .*: it holds 'banana'; "):
        task = load_task(path)
    assert (task.info["split_column"], sizes(task)) == (None, [48, 6, 6])
    with pytest.raises(DataError, match=r"line 2: expected a split .* in 'split', got 'banana'"):
        load_task(path, split_column="split")
    with pytest.raises(UsageError, match=r"no column 'splt'.*did you mean 'split'"):
        load_task(path, split_column="splt")
    assert sizes(load_task(path, split_column="fold")) == [48, 6, 6]
    path.write_text("text,label,split\n" + lines(texts, labels, ["test"] * 60, between=","))
    with pytest.raises(DataError, match="no row is in the split train by column 'split'"):
        load_task(path)


def test_class_named_text_files(tmp_path):
    for name in ("pos", "neg"):
        (tmp_path / f"{name}.txt").write_text("".join(f"{name}\ttext {i}\r\n\n" for i in range(20)))
    (tmp_path / "README.txt").write_text("about\n")
    task = load_task(tmp_path)
    assert task.label_names == {"label": ["neg", "pos"]}
    assert task.info["classes_from_files"]
    assert len(task) == 40
    for text, k in zip(task.inputs, task.labels["label"], strict=True):
        assert str(text).startswith(f"{['neg', 'pos'][k]}\ttext")
    assert task.info["sha256"] == {
        f"{name}.txt": hashlib.sha256((tmp_path / f"{name}.txt").read_bytes()).hexdigest() for name in ("neg", "pos")
    }
    (tmp_path / "pos.txt").write_bytes(b"fine\nbad \xff\n")
    with pytest.raises(DataError, match=r"pos\.txt, line 2: byte 0xff is not UTF-8"):
        load_task(tmp_path)


def test_class_named_text_files_in_folders_of_splits(tmp_path):
    for split, n in (("train", 20), ("dev", 4), ("test", 6)):
        (tmp_path / split).mkdir()
        for name in ("pos", "neg"):
            (tmp_path / split / f"{name}.txt").write_text("".join(f"{split} {name} {i}\n" for i in range(n)))
    task = load_task(tmp_path)
    assert sizes(task) == [40, 8, 12]
    for text, split in zip(task.inputs, task.splits, strict=True):
        assert str(text).split()[0] == {"validation": "dev"}.get(split, split)


def test_folders_of_split_text_files(tmp_path):
    texts, labels = texts_and_labels()
    for split in ("train", "dev", "test"):
        (tmp_path / f"{split}.txt").write_text(lines(labels, [f"{split} {text}" for text in texts]))
    assert sizes(load_task(tmp_path, columns="label,text")) == [60, 60, 60]
    (tmp_path / "dev.txt").write_text("0\ta text\n1\tanother text\n")
    with pytest.raises(UsageError, match=r"'dev\.txt' has no names for its columns"):
        load_task(tmp_path)


@pytest.mark.parametrize("dev", ["dev", "valid", "val", "validation", "development"])
def test_dev_and_test_without_train_is_fitted_on_dev_and_says_so(tmp_path, dev):
    with_header(tmp_path / f"{dev}.tsv")
    with_header(tmp_path / "test.tsv")
    task = load_task(tmp_path)
    assert sizes(task) == [54, 6, 60]
    assert task.info["splits_from"] == f"no train: fitted on {dev}.tsv"
    assert task.info["carved_from_train"] == ["validation"]


def test_no_validation_keeps_a_published_split(tmp_path):
    for split in ("train", "test"):
        with_header(tmp_path / f"{split}.tsv")
    assert sizes(load_task(tmp_path, validation=False)) == [60, 0, 60]
    assert sizes(load_task(tmp_path)) == [54, 6, 60]
    assert sizes(load_task(tmp_path / "train.tsv", validation=False)) == [54, 0, 6]
    task = load_task(tmp_path, validation=False, rare_classes="drop", limit=20)
    assert (sizes(task), task.info["carved_from_train"]) == ([20, 0, 20], [])


def test_a_test_file_without_labels_is_named(tmp_path):
    rows = "".join(f"text {i}\t{i % 2}\n" for i in range(40))
    (tmp_path / "train.tsv").write_text("text\tlabel\n" + rows)
    (tmp_path / "test.tsv").write_text("text\tlabel\n" + rows.replace("\t0", "\t-1").replace("\t1", "\t-1"))
    with pytest.raises(DataError, match=r"test\.tsv, line 2: .* got -1, .* in every row of test; leave test out"):
        load_task(tmp_path)


def from_stdin(monkeypatch, data: bytes, **options):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    return load_task("-", **options)


@pytest.mark.parametrize("options", [{}, {"data_format": "csv"}, {"columns": "text,label"}])
def test_compressed_stdin_is_to_be_unpacked(options, monkeypatch):
    with pytest.raises(DataError, match=r"^standard input is compressed with gzip, expected the table itself; unpack"):
        from_stdin(monkeypatch, gzip.compress(b"text,label\na,1\n"), **options)


def test_stdin_is_recognised_by_its_first_line(tmp_path, monkeypatch):
    wanted = load_task(with_header(tmp_path / "stdin.tsv"))
    texts, labels = texts_and_labels()
    frame = pd.DataFrame({"text": texts, "label": labels})
    jsonl = "".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in ROWS)
    forms = {
        "tsv": (tmp_path / "stdin.tsv").read_bytes(),
        "csv": b"\xef\xbb\xbf" + frame.to_csv(index=False).encode(),
        "jsonl": b"\n" + jsonl.encode(),
        "parquet": frame.to_parquet(),
    }
    for name, data in forms.items():
        for options in ({}, {"data_format": name}):
            task = from_stdin(monkeypatch, data, **options)
            assert task.fingerprint() == wanted.fingerprint()
            assert (task.name, task.info["source"]) == ("stdin", "stdin")
            assert task.info["sha256"] == {"stdin": hashlib.sha256(data).hexdigest()}
    headerless = lines(labels, texts).encode()
    assert from_stdin(monkeypatch, headerless, columns="label,text").fingerprint() == wanted.fingerprint()


def test_stdin_of_conllu(tmp_path, monkeypatch):
    sentence = "# text = a b\n1\ta\t_\tDET\t_\t_\t2\tdet\t_\t_\n2\tb\t_\tNOUN\t_\t_\t0\troot\t_\t_\n\n"
    data = "".join(sentence.replace(" b", f" b{i}").replace("\tb", f"\tb{i}") for i in range(30)).encode()
    task = from_stdin(monkeypatch, data, label_column="upos")
    assert task.label_names == {"upos": ["DET", "NOUN"]}


def test_stdin_that_cannot_be_used(monkeypatch):
    with pytest.raises(DataError, match="stdin is empty"):
        from_stdin(monkeypatch, b"")
    with pytest.raises(DataError, match="stdin, line 2: expected 2 cells"):
        from_stdin(monkeypatch, b"text,label\na,1,2\n")


def test_a_place_that_is_neither_file_nor_folder(tmp_path):
    import os

    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="neither a file nor a folder; pipe data in with --dataset -"):
        load_task(tmp_path / "pipe")


@pytest.mark.parametrize("name", ["", "x" * 5000, "a\0b", "~nobody-of-this-name/x"])
def test_names_that_no_file_can_have(name):
    with pytest.raises(UsageError, match="not a file, a folder or an owner/name on the Hub"):
        load_task(name)


def test_fingerprints_do_not_depend_on_how_the_splits_are_given(tmp_path):
    """One file with a column of splits and one file for each split: the same texts, labels and splits."""
    rng = np.random.default_rng(0)
    texts, labels = texts_and_labels()
    splits = np.sort(rng.permutation(["dev"] * 10 + ["test"] * 14 + ["train"] * 36))[::-1]
    (tmp_path / "all.csv").write_text("text,label,split\n" + lines(texts, labels, splits.tolist(), between=","))
    folder = tmp_path / "folder"
    folder.mkdir()
    for split in ("train", "dev", "test"):
        rows = [f"{text},{label}\n" for text, label, own in zip(texts, labels, splits, strict=True) if own == split]
        (folder / f"{split}.csv").write_text("text,label\n" + "".join(rows))
    one, several = load_task(tmp_path / "all.csv"), load_task(folder)
    for part in (one, several):
        assert sizes(part) == [36, 10, 14]
    known = dict(zip(one.inputs, zip(one.splits.tolist(), one.labels["label"].tolist(), strict=True), strict=True))
    found = zip(
        several.inputs, zip(several.splits.tolist(), several.labels["label"].tolist(), strict=True), strict=True
    )
    assert known == dict(found)
