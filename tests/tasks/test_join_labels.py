"""Labels joined to a task by id are those that `load_task` would have read with the texts."""

import csv

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probekit.errors import DataError, UsageError
from probekit.options import LabelOptions
from probekit.tasks import Task, load_task
from probekit.tasks.join_labels import join_labels

N = 60
TEXTS = [f"text number {i // 2 if i % 5 == 0 else i}" for i in range(N)]  # some are equal
KEYS = [f"q{i:02d}" for i in range(N)]
LABELS = ["yes" if i % 3 else "no" for i in range(N)]
TOPICS = [f"topic {i % 7}" for i in range(N)]


def write(path, **columns):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([columns, *zip(*columns.values(), strict=True)])
    return path


def unlabelled(path, **more):
    return load_task(write(path / "texts.csv", text=TEXTS, key=KEYS, **more), id_column="key")


def join(task, source, **options):
    return join_labels(task, source, LabelOptions(**options))


def same(one: Task, other: Task) -> None:
    assert one.fingerprint() == other.fingerprint()
    assert one.target == other.target


@pytest.mark.parametrize("seed", [0, 5])
@pytest.mark.parametrize("validation", [True, False])
@pytest.mark.parametrize("labels", [LABELS, [str(i % 4) for i in range(N)], [f"{i / 7:.3f}" for i in range(N)]])
def test_all_labels_joined_later_give_the_task_that_was_labelled_at_once(tmp_path, seed, validation, labels):
    both = write(tmp_path / "texts.csv", text=TEXTS, key=KEYS, label=labels)
    at_once = load_task(both, id_column="key", seed=seed, validation=validation)
    order = np.random.default_rng(1).permutation(N)
    table = write(tmp_path / "labels.csv", id=[KEYS[i] for i in order], label=[labels[i] for i in order])
    later = join(unlabelled(tmp_path), table, seed=seed, validation=validation)
    same(later, at_once)
    assert later.info["carved_from_train"] == at_once.info["carved_from_train"]


def test_groups_and_splits_of_the_label_file_are_those_that_load_task_reads(tmp_path):
    table = write(tmp_path / "labels.csv", id=KEYS, label=LABELS, topic=TOPICS)
    both = write(tmp_path / "texts.csv", text=TEXTS, key=KEYS, label=LABELS, topic=TOPICS)
    at_once = load_task(both, id_column="key", group_column="topic")
    same(join(unlabelled(tmp_path), table, group_column="topic"), at_once)
    splits = ["test" if i % 4 == 0 else "train" for i in range(N)]
    both = write(tmp_path / "texts.csv", text=TEXTS, key=KEYS, label=LABELS, split=splits)
    at_once = load_task(both, id_column="key")
    same(join(unlabelled(tmp_path), write(tmp_path / "labels.csv", id=KEYS, label=LABELS, split=splits)), at_once)
    same(join(unlabelled(tmp_path, split=splits), dict(zip(KEYS, LABELS, strict=True))), at_once)


SOURCES = {
    "dict": dict(zip(KEYS, LABELS, strict=True)),
    "series": pd.Series(LABELS, index=KEYS),
    "frame": pd.DataFrame({"label": LABELS, "id": KEYS}),
    "frame with ids in its index": pd.DataFrame({"label": LABELS}, index=KEYS),
    "lists of two": [list(pair) for pair in zip(KEYS, LABELS, strict=True)],
    "pairs": list(zip(KEYS, LABELS, strict=True)),
    "dicts": [{"id": key, "label": one} for key, one in zip(KEYS, LABELS, strict=True)],
    "columns": {"id": KEYS, "label": LABELS},
}


@pytest.mark.parametrize("source", SOURCES.values(), ids=list(SOURCES))
def test_what_python_holds_is_the_same_as_a_file(tmp_path, source):
    table = write(tmp_path / "labels.csv", id=KEYS, label=LABELS)
    same(join(unlabelled(tmp_path), source), join(unlabelled(tmp_path), table))


def test_ids_that_are_numbers_are_equal_to_their_texts():
    task = Task("t", [f"text {i}" for i in range(30)])
    made = join(task, {i: i % 2 for i in range(30)})
    assert made.labels["label"].tolist() == [i % 2 for i in range(30)]
    same(made, join(task, {f" {i} ": i % 2 for i in range(30)}))
    same(made, join(task, pd.Series([i % 2 for i in range(30)], index=[float(i) for i in range(30)])))


def test_a_second_label_set_keeps_the_splits_and_becomes_the_target(tmp_path):
    first = join(unlabelled(tmp_path), SOURCES["dict"], seed=3)
    second = join(first, {key: f"{i % 2}" for i, key in enumerate(KEYS)}, name="parity", seed=4)
    assert second.splits.tolist() == first.splits.tolist()
    assert (list(second.labels), second.target) == (["label", "parity"], "parity")
    assert second.labels["label"].tolist() == first.labels["label"].tolist()


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 24), st.sampled_from(["a", "b", "", None])), min_size=8, max_size=60))
def test_skipped_rows_are_counted_and_the_rest_is_a_plain_join(rows):
    """The oracle: a dict of the ids of texts that occur once, with a usable label."""
    task = Task("t", [f"text {i}" for i in range(20)])
    keys = [key for key, _ in rows]
    wanted = {f"{key}": one for key, one in rows if key < 20 and keys.count(key) == 1 and one}
    classes = list(wanted.values())
    if min(classes.count("a"), classes.count("b")) < 3:  # a class needs a text in each split
        with pytest.raises(DataError, match=r"two classes|every class|no row of list labels a text"):
            join(task, rows, on_bad_row="skip")
        return
    made = join(task, rows, on_bad_row="skip")
    names, found = made.label_names["label"], made.labels["label"].tolist()
    assert wanted == {made.ids[row]: names[label] for row, label in enumerate(found) if label >= 0}
    info = made.info["label_sets"]["label"]
    assert info["labelled"] + info["unlabelled"] == 20
    assert info["labelled"] + sum(info["skipped"].values()) == len(rows)


ROWS = dict(zip(KEYS, LABELS, strict=True))
BAD = [
    ([*ROWS.items(), ("q99", "no")], DataError, r"list, row 60: no text has the id 'q99', only 'q00', 'q01'"),
    ([*ROWS.items(), ("q07", "no")], DataError, r"row 60: the id 'q07' is that of list, row 7 too; keep one"),
    (list(ROWS.items())[:-2], DataError, r"no label for the id 'q58' \(2 of 60 texts have none\)"),
    ([*list(ROWS.items())[:-1], (None, "no")], DataError, r"row 59: expected an id, got None"),
    ([*list(ROWS.items())[:-1], ("q59", None)], DataError, r"row 59, id 'q59': expected a label, got None"),
    ({(key, 0): one for key, one in ROWS.items()}, DataError, r"row 0: expected an id .*, got \('q00', 0\)"),
    ({"lie": ROWS, "truth": ROWS}, UsageError, r"one set, .* got a dict of dicts \('lie', 'truth'\); give one"),
    ({key: [one] * 3 for key, one in ROWS.items()}, DataError, r"one label for the text 'q00', .*; labels of tokens"),
    ([{"id": "q00", "label": [0, 1]}], DataError, r"row 0, id 'q00': expected one label .*--token-label-column"),
    ([("q00:3", "no")], DataError, r"no text has the id 'q00:3', .*; labels of tokens are extracted with their texts"),
    (
        {key: i % 2 - 1 for i, key in enumerate(KEYS)},
        DataError,
        r"got -1, which means 'not labelled' \(30 of 60 rows\)",
    ),
    (dict.fromkeys(KEYS, "yes"), DataError, r"a probe needs two classes of 'label' or more"),
    ({}, DataError, r"dict of labels is empty"),
    (LABELS, UsageError, r"joined by id, and a list holds none; write dict\(zip\(acts\.ids, labels\)\)"),
    (np.array([0, 1] * 30), UsageError, r"joined by id, and a ndarray holds none"),
    (7, UsageError, r"labels are a file, .*; got an int"),
    ("nothing.csv", UsageError, r"no file 'nothing\.csv'"),
    ({"ident": KEYS, "label": LABELS}, UsageError, r"no column named id, .*name the id column with --id-column"),
    ({"id": KEYS, "truth": LABELS}, UsageError, r"no column named label or target, .*--label-column"),
    ({"train": SOURCES["frame"], "test": SOURCES["frame"]}, UsageError, r"expected one table of labels, got splits"),
]


@pytest.mark.parametrize(("source", "error", "words"), BAD, ids=[words for *_, words in BAD])
def test_bad_labels_are_one_line_with_the_id(tmp_path, source, error, words):
    with pytest.raises(error, match=words) as caught:
        join(unlabelled(tmp_path), source)
    assert "\n" not in str(caught.value)


def test_ids_from_data_are_escaped(tmp_path):
    with pytest.raises(DataError) as caught:
        join(unlabelled(tmp_path), {"\x1b[31m": "no"})
    assert "\x1b" not in str(caught.value)


def test_labels_of_a_part_of_the_texts(tmp_path):
    part = dict(list(ROWS.items())[:40]) | {"q99": "no"}
    made = join(unlabelled(tmp_path), part, on_bad_row="skip")
    labels = made.labels["label"]
    assert labels[40:].tolist() == [-1] * 20
    assert sorted(made.label_names["label"]) == ["no", "yes"]  # -1 is no class
    assert sum(sum(classes.values()) for classes in made.counts().values()) == 40
    info = made.info["label_sets"]["label"]
    assert (info["labelled"], info["unlabelled"], info["skipped"]) == (40, 20, {"unknown_id": 1})
    made.check()
    made.subset(labels >= 0).check()


def test_numbers_of_a_part_of_the_texts(tmp_path):
    part = {key: i / 3 for i, key in enumerate(KEYS[:50])}
    made = join(unlabelled(tmp_path), part, on_bad_row="skip")
    assert np.isnan(made.labels["label"][50:]).all()
    assert set(made.splits[:50]) == {"train", "validation", "test"}
    made.check()


def test_what_comes_too_late_is_refused(tmp_path):
    first = join(unlabelled(tmp_path), SOURCES["dict"])
    table = {"id": KEYS, "label": LABELS, "topic": TOPICS}
    with pytest.raises(UsageError, match="have splits, made without them, already; leave --group-column out"):
        join(first, table, name="again", group_column="topic")
    with pytest.raises(UsageError, match="has a label set 'label' already"):
        join(first, SOURCES["dict"])
    splits = {"id": KEYS, "label": LABELS, "split": ["train"] * N}
    with pytest.raises(DataError, match=r"the split of 'q\d\d' is (test|validation), got train; all label sets have"):
        join(first, splits, name="again")
    splits["split"] = first.splits.tolist()
    assert join(first, splits, name="again").splits.tolist() == first.splits.tolist()


def test_options_are_checked():
    with pytest.raises(UsageError, match="got 'skp'; did you mean skip"):
        LabelOptions(on_bad_row="skp")  # pyright: ignore[reportArgumentType]
    with pytest.raises(UsageError, match=r"name \(--name\) must be a text that is not blank"):
        LabelOptions(name=" ")


def test_continuations_of_one_prompt_stay_in_one_split():
    prompts = [[i // 4, 9] for i in range(80)]
    ids = [[*prompt, 10 + i, 10] for i, prompt in enumerate(prompts)]
    task = Task("t", [f"text {i}" for i in range(80)], token_ids=ids, generated=np.full(80, 2))
    made = join(task, {str(i): i // 4 % 2 for i in range(80)})
    assert all(len(set(made.splits[4 * k : 4 * k + 4])) == 1 for k in range(20))
