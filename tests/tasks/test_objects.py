"""Python's own objects as tasks: the same task and the same messages as the same table in a file."""

import subprocess
import sys
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pytest

import probekit
from probekit.errors import DataError, UsageError
from probekit.tasks import load_task

N = 60
TEXTS = [f"text number {i} of the set" for i in range(N)]
LABELS = ["yes" if i % 3 else "no" for i in range(N)]
GROUPS = [f"group {i // 3}" for i in range(N)]
FRAME = pd.DataFrame({"text": TEXTS, "label": LABELS, "group": GROUPS})
ROWS = FRAME.to_dict(orient="records")
COLUMNS: dict[str, Any] = {"text": TEXTS, "label": LABELS, "group": GROUPS}

WHOLE = {
    "DataFrame": FRAME,
    "Dataset": datasets.Dataset.from_dict(COLUMNS),
    "list of dicts": ROWS,
    "dict of columns": COLUMNS,
    "dict of arrays": {name: np.array(cells) for name, cells in COLUMNS.items()},
    "iterator": iter(ROWS),
}


def as_file(folder, name="data"):
    FRAME.to_json(folder / f"{name}.jsonl", orient="records", lines=True)
    return folder / f"{name}.jsonl"


def same(one, other) -> None:
    assert one.inputs == other.inputs
    assert one.splits.tolist() == other.splits.tolist()
    assert (one.label_names, one.target) == (other.label_names, other.target)
    assert one.labels[one.target].tolist() == other.labels[other.target].tolist()
    assert (one.groups is None) == (other.groups is None)
    if one.groups is not None:
        assert one.groups.tolist() == other.groups.tolist()


@pytest.mark.parametrize("kind", WHOLE)
@pytest.mark.parametrize("options", [{}, {"group_column": "group"}, {"limit": 4, "seed": 3}])
def test_an_object_gives_the_task_of_its_file(kind, options, tmp_path):
    given = list(ROWS) if kind == "iterator" else WHOLE[kind]
    same(load_task(iter(given) if kind == "iterator" else given, **options), load_task(as_file(tmp_path), **options))


@pytest.mark.parametrize("pairs", [list(zip(TEXTS, LABELS, strict=True)), np.array([TEXTS, LABELS]).T])
def test_pairs_and_their_iterators_give_the_task_of_the_file(pairs, tmp_path):
    same(load_task(pairs), load_task(as_file(tmp_path)))
    same(load_task(zip(TEXTS, LABELS, strict=True)), load_task(as_file(tmp_path)))


def test_splits_give_the_task_of_a_folder(tmp_path):
    (tmp_path / "data").mkdir()
    for name in ("train", "dev", "test"):
        as_file(tmp_path / "data", name)
    pairs = list(zip(TEXTS, LABELS, strict=True))
    task = load_task({"train": FRAME, "dev": pairs, "test": COLUMNS}, name="mine")
    same(task, load_task(tmp_path / "data"))
    assert (task.name, task.ids[0], task.ids[-1]) == ("mine", "train:0", "test:59")
    assert load_task({"train": FRAME}).info["carved_from_train"] == ["validation", "test"]


def test_a_dataset_dict_is_taken_as_from_the_hub():
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["negative", "positive"])}
    )
    labels = [int(one == "yes") for one in LABELS]
    part = datasets.Dataset.from_dict({"text": TEXTS, "label": labels}, features=features)
    hidden = datasets.Dataset.from_dict({"text": TEXTS, "label": [-1] * N}, features=features)
    parts: Any = {"train": part, "validation": part, "test": hidden, "unsupervised": hidden}
    with pytest.warns(UserWarning, match="DatasetDict: 1 split left out, 'unsupervised'; they are called train, "):
        task = load_task(datasets.DatasetDict(parts))
    assert task.label_names == {"label": ["negative", "positive"]}
    assert [int((task.splits == split).sum()) for split in ("train", "validation", "test")] == [54, 6, 60]
    assert load_task(part.with_format("torch")).label_names == task.label_names
    with pytest.raises(DataError, match="means 'not labelled'"):
        load_task(hidden)


def test_rows_are_named_by_their_index_and_ids_too():
    assert load_task(FRAME).ids[:2] == ["row:0", "row:1"]
    assert (load_task(FRAME).name, load_task(FRAME, name="cities").name) == ("DataFrame", "cities")
    assert load_task("agreement", name="mine", limit=4).name == "mine"


def changed(column: str, row: int, value: Any) -> pd.DataFrame:
    frame = FRAME.astype(object)
    frame.loc[row, column] = value
    return frame


@pytest.mark.parametrize(
    ("column", "value"),
    [("text", None), ("text", ""), ("text", 5), ("label", None), ("label", "  "), ("label", {"a": 1}), ("group", None)],
)
def test_a_bad_row_has_the_message_of_a_file(column, value, tmp_path):
    rows = [{**row, **({column: value} if i == 17 else {})} for i, row in enumerate(ROWS)]
    file = tmp_path / "data.jsonl"
    pd.DataFrame(rows, dtype=object).to_json(file, orient="records", lines=True)
    with pytest.raises(DataError) as of_file:
        load_task(file, group_column="group")
    for given in (rows, pd.DataFrame(rows, dtype=object), {k: [row[k] for row in rows] for k in COLUMNS}):
        with pytest.raises(DataError, match=rf"^{type(given).__name__}, row 17: ") as caught:
            load_task(given, group_column="group")
        assert str(caught.value).split(": ", 1)[1] == str(of_file.value).split(": ", 1)[1]
        assert load_task(given, group_column="group", on_bad_row="skip").info["skipped_rows"] == 1


@pytest.mark.parametrize("missing", [np.nan, pd.NA, pd.NaT, None])
def test_missing_values_of_pandas_are_missing(missing):
    for column, what in (("text", "expected a text"), ("label", "expected a label")):
        with pytest.raises(DataError, match=f"DataFrame, row 3: {what}, got (None|nan)"):
            load_task(changed(column, 3, missing))
    whole = FRAME.assign(label=pd.array([i % 2 for i in range(N)], dtype="Int64"))
    assert load_task(whole).label_names == {"label": ["0", "1"]}


def test_spans_come_from_lists_of_dicts():
    spans = [{"start": 4, "end": 7, "label": "A"}, {"start": 8, "end": 11, "label": "N"}]
    rows = [{"text": f"the red fox {i} ran", "spans": spans} for i in range(40)]
    for given in (rows, pd.DataFrame(rows), {name: [row[name] for row in rows] for name in rows[0]}):
        task = load_task(given, span_column="spans")
        assert task.words == ["red", "fox"] * 40
        assert task.label_names == {"label": ["A", "N"]}


PAIRS = list(zip(TEXTS, LABELS, strict=True))
REFUSED = [
    (5, UsageError, "load_task takes a name, a path, a DataFrame, .* got an int"),
    (None, UsageError, "got None"),
    (b"x", UsageError, "got a bytes"),
    ({"text"}, UsageError, "got a set"),
    (FRAME["text"], UsageError, r"got texts alone; extract\(model, texts\) takes these"),
    (FRAME["text"].map(len), UsageError, "got a Series; give one of these"),
    (
        FRAME.set_index(["text", "label", "group"]),
        DataError,
        r"got only an index of 'text', 'label', 'group'; write df",
    ),
    (pd.DataFrame(index=TEXTS), DataError, r"got only an index; write df\.reset_index\(\)"),
    (pd.concat({"a": FRAME, "b": FRAME}, axis=1), DataError, "one name each, .* got 2 levels of names; take one of"),
    (TEXTS, UsageError, r"\(text, label\) pairs, got texts alone; extract\(model, texts\) takes these"),
    ((TEXTS, LABELS), UsageError, r"got two lists; write load_task\(list\(zip"),
    ([*PAIRS, ("a",)], DataError, r"list, row 60: expected \(text, label\), got \('a',\)"),
    ([*ROWS, "a"], DataError, "list, row 60: expected a dict, as in row 0, got 'a'"),
    ([], DataError, "list has no rows"),
    ({}, DataError, "dict has no rows"),
    (FRAME[:0], DataError, "DataFrame has no rows"),
    ({"text": TEXTS, "label": LABELS[:5]}, DataError, "several lengths: 'text' has 60, 'label' has 5"),
    ({"text": TEXTS, "label": "x"}, UsageError, "'label' is a str; give lists"),
    ({"train": FRAME, "trian": FRAME}, UsageError, "splits are named train, .* got 'trian'"),
    ({"dev": FRAME, "val": FRAME}, DataError, "two tables for validation: 'dev' and 'val'"),
    ({"train": FRAME, "test": 5}, UsageError, "got an int"),
    ({"train": {"train": FRAME}}, UsageError, "or splits, such as 'train'; 'train' is a DataFrame"),
    (datasets.Dataset.from_dict(COLUMNS).to_iterable_dataset(), UsageError, "streamed dataset"),
    (load_task(FRAME), UsageError, "got a Task; pass it to extract as it is"),
]


@pytest.mark.parametrize(("given", "error", "words"), REFUSED, ids=[words for *_, words in REFUSED])
def test_what_is_no_table_is_refused_in_one_line(given, error, words):
    with pytest.raises(error, match=words) as caught:
        load_task(given)
    assert "\n" not in str(caught.value)


def test_labels_given_by_position_are_no_column():
    with pytest.raises(UsageError, match="text_column must be a text or None; got a list; give options by name"):
        load_task(TEXTS, LABELS)  # pyright: ignore[reportArgumentType]


def test_no_library_is_imported_to_recognise_its_objects():
    code = (
        "import sys, probekit as pk; pk.load_task([(f'text {i}', i % 2) for i in range(60)]);"
        "assert not {'datasets', 'pandas'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert probekit.load_task is load_task
