"""A column of labels for every token: files and objects, what is refused, and how texts are split by it."""

import json

import numpy as np
import pytest

from probekit.errors import DataError
from probekit.tasks import load_task
from probekit.tasks.base import SPLITS
from probekit.tasks.token_labels import Stretches, text_strata

WORDS = ["the", "cats", "see", "dogs", "here", "now"]


def rows(n: int = 40, **more) -> list[dict]:
    rng = np.random.default_rng(0)
    found = []
    for i in range(n):
        words = [*rng.choice(WORDS, size=4), "cats" if i % 2 else "see"]
        text = " ".join(words) + " "  # with a blank at the end
        tags = ["noun" if word in ("cats", "dogs") else "other" for word in words]
        starts = np.cumsum([0, *(len(word) + 1 for word in words)]).tolist()
        stretches = [
            {"start": a, "end": a + len(word), "label": tag} for a, word, tag in zip(starts, words, tags, strict=False)
        ]
        found.append({"text": text, "tags": tags, "spans": stretches, "key": i, **more})
    return found


def write(path, some):
    path.write_text("".join(json.dumps(row) + "\n" for row in some))
    return path


def test_lists_of_labels_and_stretches_come_from_a_column(tmp_path):
    path = write(tmp_path / "tagged.jsonl", rows())
    task = load_task(path, token_label_column="tags")
    assert (task.target, task.labels, task.label_names) == ("tags", {}, {"tags": ["noun", "other"]})
    assert task.inputs == [row["text"] for row in rows()]
    assert [[task.label_names["tags"][k] for k in one] for one in task.token_labels["tags"]] == [
        r["tags"] for r in rows()
    ]
    spans = load_task(path, token_label_column="spans")
    assert spans.label_names == {"spans": ["noun", "other"]}
    for one, row in zip(spans.token_labels["spans"], rows(), strict=True):
        assert isinstance(one, Stretches)
        assert one.spans.tolist() == [[span["start"], span["end"]] for span in row["spans"]]
        assert one.values[:-1].tolist() == [["noun", "other"].index(span["label"]) for span in row["spans"]]
    assert {split: int((task.splits == split).sum()) for split in SPLITS} == {"train": 32, "validation": 4, "test": 4}


def test_parquet_frames_lists_and_csv_are_the_same(tmp_path):
    import pandas as pd

    frame = pd.DataFrame(rows())[["text", "tags"]]
    frame.to_parquet(tmp_path / "tagged.parquet")
    written = frame.assign(tags=frame.tags.map(json.dumps))
    written.to_csv(tmp_path / "tagged.csv", index=False)
    given = [
        tmp_path / "tagged.parquet",
        tmp_path / "tagged.csv",
        frame,
        rows(),
        {"text": frame.text, "tags": frame.tags},
    ]
    tasks = [load_task(source, token_label_column="tags") for source in given]
    for task in tasks:
        assert [one.tolist() for one in task.token_labels["tags"]] == [
            one.tolist() for one in tasks[0].token_labels["tags"]
        ]
        assert task.splits.tolist() == tasks[0].splits.tolist()


def test_with_a_label_of_the_text_both_are_there(tmp_path):
    path = write(tmp_path / "tagged.jsonl", [{**row, "label": row["key"] % 2} for row in rows()])
    task = load_task(path, token_label_column="tags")
    assert (task.target, list(task.labels), list(task.token_labels)) == ("tags", ["label"], ["tags"])
    assert task.splits.tolist() == load_task(path).splits.tolist()
    task.check("label")


def test_splits_are_stratified_by_the_rarest_class_of_each_text():
    some = rows(60)
    for i in (5, 20, 40):
        some[i]["tags"][0] = "rare"
    task = load_task(some, token_label_column="tags")
    names = task.label_names["tags"]
    strata = text_strata(task, "tags")
    assert np.flatnonzero(strata == names.index("rare")).tolist() == [5, 20, 40]
    assert sorted(task.splits[[5, 20, 40]]) == ["test", "train", "validation"]
    noun_only = [i for i, one in enumerate(some) if "noun" in one["tags"] and i not in (5, 20, 40)]
    assert set(strata[noun_only]) == {names.index("noun")}
    given = [{**row, "split": "train" if i < 40 else "test"} for i, row in enumerate(some)]
    two = load_task(given, token_label_column="spans", validation=False)
    carved = two.with_validation(0.2)
    assert {split: int((carved.splits == split).sum()) for split in SPLITS}["validation"] == 8


def test_numbers_are_stratified_by_their_mean_and_may_be_missing():
    some = [{**row, "depth": [None if k == 1 else k / 2 + row["key"] for k in range(5)]} for row in rows()]
    task = load_task(some, token_label_column="depth")
    assert task.label_names == {"depth": []}
    assert np.isnan(task.token_labels["depth"][3][1])
    assert text_strata(task, "depth").tolist() == pytest.approx([np.mean([0, 1, 1.5, 2]) + i for i in range(40)])
    whole = [{**row, "depth": [1, 2, None, row["key"], 5]} for row in rows()]
    assert load_task(whole, token_label_column="depth", regression=True).label_names == {"depth": []}


@pytest.mark.parametrize("how", ["drop", "merge"])
@pytest.mark.parametrize("column", ["tags", "spans"])
def test_rare_classes_of_tokens_are_refused_dropped_or_merged(how, column):
    some = rows()
    for i, name in ((3, "x"), (7, "y"), (9, "x"), (35, "z")):
        some[i]["tags"][1] = some[i]["spans"][1]["label"] = name
    some = [{**row, "split": "test" if i == 3 else "train" if i < 30 else "test"} for i, row in enumerate(some)]
    with pytest.raises(DataError, match="every split needs every class of"):
        load_task(some, token_label_column=column, validation=False)
    task = load_task(some, token_label_column=column, validation=False, rare_classes=how)
    values = [one.values if isinstance(one, Stretches) else one for one in task.token_labels[column]]
    if how == "drop":
        assert task.label_names[column] == ["noun", "other", "x"]
        assert (values[7][1], values[35][1]) == (-1, -1)
        assert task.info["rare_classes"] == {"y": 1, "z": 1}
    else:
        assert task.label_names[column][-1] == "other 2"
        assert values[7][1] == task.label_names[column].index("other 2")


def test_a_limit_keeps_texts():
    task = load_task(rows(), token_label_column="tags", limit=3)
    assert [int((task.splits == split).sum()) for split in SPLITS] == [3, 3, 3]
    task.check()


def test_a_text_without_labels_has_none():
    some = rows()
    some[4]["tags"] = some[5]["spans"] = None
    task = load_task(some, token_label_column="tags")
    assert task.token_labels["tags"][4].values.tolist() == [-1]
    assert load_task(some, token_label_column="spans").token_labels["spans"][5].values.tolist() == [-1]
