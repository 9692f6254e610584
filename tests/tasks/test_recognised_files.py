"""What is recognised in files as people have them, and what is refused because it could be two things."""

import io
import json
import sys
from pathlib import Path

import pytest

from probekit.errors import UsageError
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
