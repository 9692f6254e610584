"""Files as people have them: what is recognised, what is refused because it could be two things, and from stdin."""

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
from probekit.sweeps.sources import task_sources
from probekit.tasks import load_task
from probekit.tasks.base import SPLITS
from probekit.tasks.tables.readers import read_table

N = 60
TEXTS = [f"text number {i}" for i in range(N)]
LABELS = ["PAST" if i % 2 else "PRES" for i in range(N)]
SIZES = {"train": 40, "validation": 10, "test": 10}
CUTS = {"train": slice(0, 40), "validation": slice(40, 50), "test": slice(50, 60)}


def rows(*columns, between="\t", cut=slice(None)):
    return "".join(between.join(row) + "\n" for row in zip(*(one[cut] for one in columns), strict=True))


def layout(folder: Path, names: tuple[str, str, str], ending: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name, cut in zip(names, CUTS.values(), strict=True):
        (folder / f"{name}{ending}").write_text(rows(LABELS, TEXTS, cut=cut))
    return folder


def sizes(task):
    return {split: int((task.splits == split).sum()) for split in SPLITS}


def numbers(task):
    return [*sizes(task).values()]


@pytest.mark.parametrize(
    "names",
    [("tr", "va", "te"), ("train", "valid", "test"), ("training", "val", "testing"), ("TRAIN", "dev", "te")],
)
@pytest.mark.parametrize(
    ("ending", "options"),
    [
        (".txt", {"columns": "label,text"}),
        (".txt", {}),
        (".tsv", {"columns": "label,text"}),
        (".dat", {"columns": "label,text", "data_format": "tsv"}),
        ("", {"columns": "label,text", "data_format": "tsv"}),
    ],
)
def test_splits_by_the_names_of_files(tmp_path, names, ending, options):
    """X-Probe has past/tr.txt, va.txt and te.txt."""
    task = load_task(layout(tmp_path / "past", names, ending), **options)
    assert (task.name, sizes(task), task.label_names) == ("past", SIZES, {"label": ["PAST", "PRES"]})
    assert task.inputs == TEXTS
    assert task.info["carved_from_train"] == []
    assert ("read_as" in task.info) == (options == {})
    if ending in (".txt", ".tsv"):
        assert [source.name for source in task_sources(tmp_path)] == ["past"]


def test_beside_other_languages_tr_and_te_are_languages(tmp_path):
    for name in ("en", "de", "tr", "te"):
        (tmp_path / f"{name}.txt").write_text("".join(f"{name} {i}\n" for i in range(20)))
    assert load_task(tmp_path).label_names == {"label": ["de", "en", "te", "tr"]}
    for name in ("en", "de"):
        (tmp_path / f"{name}.txt").unlink()
    with pytest.raises(UsageError, match=r"'(tr|te)\.txt' has no names for its columns; name them, such as --columns"):
        load_task(tmp_path)
    with pytest.raises(UsageError, match="has no column named text or sentence or statement or prompt"):
        load_task({"tr": ["a"], "en": ["b"]})


@pytest.mark.parametrize(
    "columns", [(LABELS, TEXTS), (TEXTS, LABELS), (["tr"] * 40 + ["va"] * 10 + ["te"] * 10, LABELS, TEXTS)]
)
def test_a_text_file_whose_columns_are_beyond_doubt(tmp_path, columns):
    (tmp_path / "data.txt").write_text(rows(*columns))
    task = load_task(tmp_path / "data.txt")
    assert (task.inputs, task.label_names["label"]) == (TEXTS, ["PAST", "PRES"])
    assert sizes(task) == SIZES if len(columns) == 3 else len(task) == N
    names = ["split"] * (len(columns) - 2) + (["text", "label"] if columns[0] is TEXTS else ["label", "text"])
    assert task.info["read_as"] == f"columns {', '.join(names)} by their content; --columns names others"


def test_a_text_file_with_a_header(tmp_path):
    (tmp_path / "data.txt").write_text("Label\tText\n" + rows(LABELS, TEXTS))
    assert load_task(tmp_path / "data.txt").inputs == TEXTS


@pytest.mark.parametrize(
    "content",
    [
        "".join(f"{text}\n" for text in TEXTS),  # no columns
        rows(TEXTS, TEXTS[::-1]),  # two columns of texts
        rows(LABELS, ["yes", "no"] * (N // 2)),  # two of labels
        rows(LABELS, [text.split()[-1] for text in TEXTS]),  # ids, numbers or single words
        rows(TEXTS, [f"{i / 7:.3f}" for i in range(N)]),  # numbers
        "sentiment\treview\n" + rows(LABELS, TEXTS),  # a header of other names: a label that occurs once
        rows(LABELS, TEXTS) + "PAST\tone\tmore\n",
        rows(LABELS[:6], TEXTS[:6]),
    ],
)
def test_a_text_file_in_doubt_is_refused_with_what_to_type(tmp_path, content):
    (tmp_path / "data.txt").write_text(content)
    with pytest.raises(UsageError, match=r"name them, such as --columns label,text"):
        load_task(tmp_path / "data.txt")


def test_tables_named_after_tasks_are_no_texts_of_classes(tmp_path):
    """The tasks of SentEval, in one folder."""
    for name in ("past_present", "subj_number"):
        (tmp_path / f"{name}.txt").write_text(rows(LABELS, TEXTS))
    with pytest.raises(UsageError, match=r"'past_present\.txt' .* are tables, .* look like label,text; give one of"):
        load_task(tmp_path)


SEPARATED = {"semicolons": ";", "tabs": "\t", "bars": "|"}


@pytest.mark.parametrize(("name", "between"), SEPARATED.items())
def test_the_header_of_a_csv_says_what_separates_its_cells(tmp_path, name, between):
    texts = [f'"a, {between} and ""b"" {i}"' for i in range(N)]
    (tmp_path / "data.csv").write_text(rows(["text", *texts], ["label", *LABELS], between=between))
    task = load_task(tmp_path / "data.csv")
    assert task.inputs == [f'a, {between} and "b" {i}' for i in range(N)]
    assert task.info["read_as"] == f"{name} between the cells, as in the first line"
    (tmp_path / "data.csv").write_text(rows(texts, LABELS, between=between))
    if between != "\t":
        assert load_task(tmp_path / "data.csv", columns="text,label").inputs == task.inputs


@pytest.mark.parametrize(
    ("ending", "header", "columns"),
    [
        (".csv", "text,label", ["text", "label"]),
        (".csv", '"a;b;c",label', ["a;b;c", "label"]),
        (".csv", "text", ["text"]),
        (".csv", "a;b,c", ["a;b", "c"]),  # a tie goes to the comma
        (".tsv", "a, b, c\tlabel\tx", ["a, b, c", "label", "x"]),
        (".tsv", "text,label", ["text", "label"]),
        (".tsv", 'say "hi"\tlabel', ['say "hi"', "label"]),
        (".tsv", "text\tnote (a, b, c)", ["text", "note (a, b, c)"]),
        (".csv", 'x,"a;b;c;d"', ["x", "a;b;c;d"]),
        (".csv", "Text;score, mean, of all", ["Text", "score, mean, of all"]),
        (".csv", 'text,"la\nbel",x', ["text", "la\nbel", "x"]),
    ],
)
def test_separators_of_headers(tmp_path, ending, header, columns):
    (tmp_path / f"data{ending}").write_text(f"\n{header}\n{header}\n")
    table = read_table(tmp_path / f"data{ending}")
    assert table.columns == columns
    first = 3 + header.count("\n")  # after an empty line and the header
    assert ([table.column(name)[0] for name in columns], table.lines[0]) == (columns, first)


def test_a_json_file_is_a_table(tmp_path, monkeypatch):
    objects = [{"text": text, "label": label} for text, label in zip(TEXTS, LABELS, strict=True)]
    path = tmp_path / "data.json"
    wanted = None
    for content in (json.dumps(objects), json.dumps(objects, indent=1), "\n".join(map(json.dumps, objects))):
        path.write_text(content)
        task = load_task(path)
        wanted = wanted or task.fingerprint()
        assert task.fingerprint() == wanted
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(json.dumps(objects).encode())))
    assert load_task("-").inputs == TEXTS
    for name, part in zip(("train", "dev"), (objects[:40], objects[40:]), strict=True):
        (tmp_path / f"{name}.json").write_text(json.dumps(part))
    path.unlink()
    assert sizes(load_task(tmp_path)) == {"train": 36, "validation": 20, "test": 4}


@pytest.mark.parametrize(
    ("column", "cells", "named", "wanted"),
    [
        ("is_test", ["False"] * 50 + ["True"] * 10, False, {"train": 45, "validation": 5, "test": 10}),
        ("is_test", ["0"] * 50 + ["1"] * 10, True, {"train": 45, "validation": 5, "test": 10}),
        ("Is_Train", ["true"] * 50 + ["false"] * 10, True, {"train": 45, "validation": 5, "test": 10}),
        ("is_dev", ["True"] * 10 + ["False"] * 50, True, {"train": 45, "validation": 10, "test": 5}),
    ],
)
@pytest.mark.parametrize("typed", [False, True])
def test_truth_values_are_splits_in_a_column_that_says_which(tmp_path, column, cells, named, wanted, typed):
    if typed:
        values = [json.loads(cell.lower()) for cell in cells]
        objects = [{"text": t, "label": k, column: v} for t, k, v in zip(TEXTS, LABELS, values, strict=True)]
        path = tmp_path / "data.json"
        path.write_text(json.dumps(objects))
    else:
        path = tmp_path / "data.csv"
        path.write_text(rows(["text", *TEXTS], ["label", *LABELS], [column, *cells], between=","))
    task = load_task(path, split_column=column if named else None)
    assert sizes(task) == wanted
    assert task.info["splits_from"] == f"by column {column!r}"


def test_what_is_here_goes_before_the_hub_and_says_so(tmp_path, monkeypatch):
    """As for models (`test_an_existing_folder_comes_before_the_hub`)."""
    layout(tmp_path / "sst2", ("train", "dev", "test"), ".txt")
    monkeypatch.chdir(tmp_path)
    with pytest.warns(UserWarning, match=r"^the dataset 'sst2' is the one in this folder; that of the Hub is stanf"):
        assert sizes(load_task("sst2")) == SIZES
    assert sizes(load_task("./sst2")) == sizes(load_task(Path("sst2"))) == SIZES


def with_header(path: Path) -> Path:
    path.write_text("text\tlabel\n" + rows(TEXTS, LABELS))
    return path


@pytest.mark.parametrize(("name", "between"), [("data.csv", ","), ("data.tsv", "\t"), ("data.txt", "\t")])
@pytest.mark.parametrize("columns", ["label,text", ["label", "text"]])
def test_columns_name_those_of_a_file_without_a_header(tmp_path, name, between, columns):
    (tmp_path / name).write_text(rows(LABELS, TEXTS, between=between))
    task = load_task(tmp_path / name, columns=columns)
    (tmp_path / "headed").mkdir()
    assert task.fingerprint() == load_task(with_header(tmp_path / "headed" / "data.tsv")).fingerprint()


def test_without_names_the_columns_are_numbered(tmp_path):
    (tmp_path / "data.csv").write_text(rows(LABELS, TEXTS, between=","))
    task = load_task(tmp_path / "data.csv", header=False, text_column="2", label_column="1")
    assert task.inputs == TEXTS


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
    path = tmp_path / "data.csv"
    path.write_text("text,label,split,fold\n" + rows(TEXTS, LABELS, ["banana"] * 60, ["train"] * 60, between=","))
    with pytest.warns(UserWarning, match="column 'split' of data.csv is not read as splits, .*: it holds 'banana'; "):
        task = load_task(path)
    assert (task.info["split_column"], numbers(task)) == (None, [48, 6, 6])
    assert numbers(load_task(path, split_column="fold")) == [48, 6, 6]


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
    assert numbers(task) == [40, 8, 12]
    for text, split in zip(task.inputs, task.splits, strict=True):
        assert str(text).split()[0] == {"validation": "dev"}.get(split, split)


@pytest.mark.parametrize("dev", ["dev", "valid", "val", "validation", "development"])
def test_dev_and_test_without_train_is_fitted_on_dev_and_says_so(tmp_path, dev):
    with_header(tmp_path / f"{dev}.tsv")
    with_header(tmp_path / "test.tsv")
    task = load_task(tmp_path)
    assert numbers(task) == [54, 6, 60]
    assert task.info["splits_from"] == f"no train: fitted on {dev}.tsv"
    assert task.info["carved_from_train"] == ["validation"]


def test_no_validation_keeps_a_published_split(tmp_path):
    for split in ("train", "test"):
        with_header(tmp_path / f"{split}.tsv")
    assert numbers(load_task(tmp_path, validation=False)) == [60, 0, 60]
    assert numbers(load_task(tmp_path)) == [54, 6, 60]
    assert numbers(load_task(tmp_path / "train.tsv", validation=False)) == [54, 0, 6]
    task = load_task(tmp_path, validation=False, rare_classes="drop", limit=20)
    assert (numbers(task), task.info["carved_from_train"]) == ([20, 0, 20], [])


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
    frame = pd.DataFrame({"text": TEXTS, "label": LABELS})
    jsonl = "".join(
        json.dumps({"text": text, "label": label}) + "\n" for text, label in zip(TEXTS, LABELS, strict=True)
    )
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
    headerless = rows(LABELS, TEXTS).encode()
    assert from_stdin(monkeypatch, headerless, columns="label,text").fingerprint() == wanted.fingerprint()


def test_stdin_of_conllu(tmp_path, monkeypatch):
    sentence = "# text = a b\n1\ta\t_\tDET\t_\t_\t2\tdet\t_\t_\n2\tb\t_\tNOUN\t_\t_\t0\troot\t_\t_\n\n"
    data = "".join(sentence.replace(" b", f" b{i}").replace("\tb", f"\tb{i}") for i in range(30)).encode()
    task = from_stdin(monkeypatch, data, label_column="upos")
    assert task.label_names == {"upos": ["DET", "NOUN"]}


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
    splits = np.sort(rng.permutation(["dev"] * 10 + ["test"] * 14 + ["train"] * 36))[::-1]
    (tmp_path / "all.csv").write_text("text,label,split\n" + rows(TEXTS, LABELS, splits.tolist(), between=","))
    folder = tmp_path / "folder"
    folder.mkdir()
    for split in ("train", "dev", "test"):
        own_rows = [f"{text},{label}\n" for text, label, own in zip(TEXTS, LABELS, splits, strict=True) if own == split]
        (folder / f"{split}.csv").write_text("text,label\n" + "".join(own_rows))
    one, several = load_task(tmp_path / "all.csv"), load_task(folder)
    for part in (one, several):
        assert numbers(part) == [36, 10, 14]
    known = dict(zip(one.inputs, zip(one.splits.tolist(), one.labels["label"].tolist(), strict=True), strict=True))
    found = zip(
        several.inputs, zip(several.splits.tolist(), several.labels["label"].tolist(), strict=True), strict=True
    )
    assert known == dict(found)
