"""Classes that a split lacks: an error that names the option, or dropped, or merged into one, in every kind of task."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probekit.errors import DataError, UsageError
from probekit.options.task import RareClasses
from probekit.tasks import Task, load_task
from probekit.tasks.base import SPLITS
from probekit.tasks.quality.audit import audit, audit_lines
from probekit.tasks.splitting.classes import OTHER

COMMON = {"a": 40, "b": 30}
RARE = {"x": 2, "y": 1, "z": 2}  # three in all of train, validation and test would be the least


def write(path: Path, counts: dict[str, int], extra: str = "") -> Path:
    rows = [f"{name} number {i},{name}{extra}" for name, n in counts.items() for i in range(n)]
    path.write_text("\n".join(["text,label" + (",group" if extra else ""), *rows]) + "\n")
    return path


def names_by_row(task: Task) -> list[str]:
    return [task.label_names[task.target][k] for k in task.labels[task.target]]


def check_whole(task: Task) -> None:
    """Every class is in every split that has rows, and no row has the label of another."""
    for split in SPLITS:
        if (task.splits == split).any():
            assert all(task.counts()[split].values()), split
    for text, name in zip(task.inputs, names_by_row(task), strict=True):
        own = str(text).split()[0]
        assert name == own or name == task.info.get("merged_classes")


def test_the_default_names_the_option_and_the_classes(tmp_path):
    path = write(tmp_path / "data.csv", COMMON | RARE)
    with pytest.raises(DataError) as caught:
        load_task(path)
    words = str(caught.value)
    assert "--rare-classes drop" in words
    assert "5 examples of 3 classes (x=2, z=2, y=1)" in words
    assert "--on-bad-row" not in words


def test_drop_leaves_out_exactly_the_rare_rows(tmp_path):
    task = load_task(write(tmp_path / "data.csv", COMMON | RARE), rare_classes="drop")
    check_whole(task)
    assert task.label_names["label"] == ["a", "b"]
    assert task.info["rare_classes"] == RARE
    assert (task.info["skipped_rows"], len(task)) == (0, 70)
    alone = load_task(write(tmp_path / "other.csv", COMMON), rare_classes="drop")
    assert (alone.splits == task.splits).all()  # carving does not see the rows that were dropped
    assert "rare_classes" not in alone.info


def test_merge_makes_one_class_with_a_name_of_its_own(tmp_path):
    task = load_task(write(tmp_path / "data.csv", COMMON | RARE), rare_classes="merge")
    check_whole(task)
    assert task.label_names["label"] == ["a", "b", OTHER]
    assert names_by_row(task).count(OTHER) == 5
    taken = load_task(write(tmp_path / "taken.csv", COMMON | RARE | {"Other": 9}), rare_classes="merge")
    assert taken.label_names["label"] == ["Other", "a", "b", "other 2"]


def test_one_word_alone_cannot_be_merged(tmp_path):
    path = write(tmp_path / "data.csv", COMMON | {"INTJ": 1})
    with pytest.raises(DataError, match=r"1 example of 1 class \(INTJ=1\).* too few even as one class.*drop"):
        load_task(path, rare_classes="merge")
    assert load_task(path, rare_classes="drop").label_names["label"] == ["a", "b"]


@pytest.mark.parametrize("how", ["drop", "merge"])
def test_given_splits(tmp_path, how):
    write(tmp_path / "train.csv", COMMON | {"x": 5, "y": 3})
    write(tmp_path / "dev.csv", {"a": 5, "b": 5, "x": 1})
    write(tmp_path / "test.csv", {"a": 5, "b": 5, "y": 2, "unseen": 1})
    task = load_task(tmp_path, rare_classes=how)
    check_whole(task)
    assert task.info["rare_classes"] == {"unseen": 1, "x": 6, "y": 5}
    assert task.label_names["label"] == ["a", "b", *([OTHER] if how == "merge" else [])]
    assert len(task) == 70 + 20 + (12 if how == "merge" else 0)


def test_a_class_in_few_groups_is_rare(tmp_path):
    """Eight rows in one group can be in one split only."""
    rows = [f"{name} number {i},{name},{name}{i // 2}" for name, n in COMMON.items() for i in range(n)]
    rows += [f"x number {i},x,together" for i in range(8)]
    (tmp_path / "data.csv").write_text("\n".join(["text,label,group", *rows]) + "\n")
    assert load_task(tmp_path / "data.csv", rare_classes="drop").n_classes() == 3
    task = load_task(tmp_path / "data.csv", rare_classes="drop", group_column="group")
    check_whole(task)
    assert task.info["rare_classes"] == {"x": 8}
    assert task.info["groups_across_splits"] == 0


def test_words(tmp_path):
    rows = [f"{name} {i},{name},0-1,{name}{i}" for name, n in (COMMON | RARE).items() for i in range(n)]
    (tmp_path / "data.csv").write_text("\n".join(["text,label,span,at", *rows]) + "\n")
    ways: dict[RareClasses, list[str]] = {"drop": ["a", "b"], "merge": ["a", "b", OTHER]}
    for how, classes in ways.items():
        task = load_task(tmp_path / "data.csv", span_column="span", rare_classes=how)
        assert task.words is not None
        check_whole(task)
        assert task.label_names["label"] == classes


@pytest.mark.parametrize("words", [False, True])
def test_a_limit_that_is_too_small_for_all_classes_makes_some_rare(tmp_path, words):
    """Without the option it is an error; with it, every class that is left is in every split."""
    counts = {f"c{k}": 10 * (k + 1) for k in range(8)}
    rows = [f"{name} number {i},{name},0-1" for name, n in counts.items() for i in range(n)]
    (tmp_path / "data.csv").write_text("\n".join(["text,label,span", *rows]) + "\n")
    span: dict[str, Any] = {"span_column": "span"} if words else {}
    with pytest.raises(UsageError, match="limit 5 is less than the"):
        load_task(tmp_path / "data.csv", limit=5, **span)
    task = load_task(tmp_path / "data.csv", limit=5, rare_classes="drop", **span)
    check_whole(task)
    assert 2 <= task.n_classes() <= 5
    assert all((task.splits == split).sum() <= 5 for split in SPLITS)
    kept = set(task.label_names["label"]) | set(task.info["rare_classes"])
    assert kept == set(counts)
    enough = load_task(tmp_path / "data.csv", limit=8, rare_classes="drop", **span)
    assert enough.n_classes() == 8


def test_merging_twice_keeps_one_class_of_merged_ones(tmp_path):
    counts = {f"c{k}": 30 for k in range(6)} | {"x": 2, "y": 2}
    task = load_task(write(tmp_path / "data.csv", counts), rare_classes="merge", limit=4)
    check_whole(task)
    assert [name for name in task.label_names["label"] if name.startswith(OTHER)] == [OTHER]
    assert {"x", "y"} < set(task.info["rare_classes"])


def test_dropping_everything_is_an_error(tmp_path):
    (tmp_path / "data.csv").write_text("text,label\n" + "".join(f"text {i},id{i}\n" for i in range(30)))
    for how in ("error", "drop"):
        with pytest.raises(DataError, match="every split needs every class"):
            load_task(tmp_path / "data.csv", rare_classes=how)


def test_many_classes_are_refused_with_three_of_them_and_what_to_do(tmp_path):
    path = tmp_path / "data.csv"
    path.write_text("text,id\n" + "".join(f"text {i},row-{i:05}\n" for i in range(3000)))
    with pytest.raises(UsageError) as caught:
        load_task(path, label_column="id")
    words = str(caught.value)
    for part in ("data.csv: ", "'id'", "3,000", "'row-00000', 'row-00001', 'row-00002'", "2,000", "--max-classes"):
        assert part in words
    assert "--regression" not in words
    path.write_text("text,label\n" + "".join(f"text {i},{i}\n" for i in range(3000)))
    with pytest.raises(UsageError, match="--regression"):
        load_task(path)
    with pytest.raises(DataError, match="every split needs every class"):
        load_task(path, max_classes=3000)
    task = load_task(write(path, {f"w{k:04}": 4 for k in range(1000)}))
    check_whole(task)
    assert task.n_classes() == 1000


def test_counts_are_those_of_a_plain_loop():
    rng = np.random.default_rng(0)
    labels, splits = rng.integers(0, 7, 200), np.array(SPLITS)[rng.integers(0, 3, 200)]
    texts, names = [f"text {i}" for i in range(200)], list("abcdefg")
    task = Task("t", texts, {"l": labels}, {"l": names}, splits, "l")
    for split in SPLITS:
        for k, name in enumerate(names):
            assert task.counts()[split][name] == sum((labels == k) & (splits == split))


@pytest.mark.parametrize(
    ("classes", "alike"),
    [
        (["True", "true", "TRUE", "no"], "'TRUE' and 'True' and 'true'"),
        (["caf\u00e9", "cafe\u0301", "tea"], r"'cafe\u0301' and 'caf\xe9'"),
        (["new  york", "new york", "rome"], "'new  york' and 'new york'"),
        (["yes", "no", "maybe"], None),
    ],
)
def test_classes_that_look_alike_are_named_and_stay_apart(tmp_path, classes, alike):
    path = tmp_path / "data.csv"
    rows = [f"text {i},{classes[i % len(classes)]}" for i in range(80)]
    path.write_text("\n".join(["text,label", *rows]) + "\n", encoding="utf-8")
    if alike is None:
        assert load_task(path).n_classes() == len(classes)
        return
    with pytest.warns(UserWarning, match="alike") as caught:
        task = load_task(path)
    assert f"separate classes look alike: {alike}" in audit_lines(audit(task))
    assert alike in str(caught[0].message)
    assert task.n_classes() == len(classes)
