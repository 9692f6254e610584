"""Labels that are numbers and no classes."""

from dataclasses import replace

import numpy as np
import pytest

from probekit.errors import DataError, UsageError
from probekit.tasks import Task, load_task
from probekit.tasks.base import SPLITS


def small(values=(0.5, 1.5, 2.0, 3.0, -1.0, 0.0), **changes) -> Task:
    labels, names = {"height": np.array(values)}, {"height": []}
    return replace(Task("small", list("abcdef"), labels, names, np.repeat(SPLITS, 2), "height"), **changes)


def write(path, labels, column="label"):
    path.write_text(f"text,{column}\n" + "".join(f"text {i},{label}\n" for i, label in enumerate(labels)))
    return path


def test_a_regression_passes_and_says_what_it_is():
    task = small()
    task.check()
    assert (task.n_classes(), task.counts()) == (0, {split: {} for split in SPLITS})
    assert repr(task) == "Task('small': train 2, validation 2, test 2; target 'height' a regression)"
    assert task.subset(np.array([4, 1])).labels["height"].tolist() == [-1.0, 1.5]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (
            (0.5, np.nan, 2, 3, 4, np.inf),
            r"example '1' has nan as its 'height'; leave it out \(2 in all",
        ),
        ((1, 2, 3, 4, 5, -np.inf), "example '5' has -inf"),
        ((1.0,) * 6, "two different values of 'height' or more in every split, got train: 2 of 1 to 1; "),
        ((1.0, 2, 3, 4, 5, 5), "test: 2 of 5 to 5; add examples"),
    ],
)
def test_check_refuses(values, words):
    with pytest.raises(DataError, match=words):
        small(np.array(values, dtype=float)).check()


def test_integers_without_names_are_no_regression():
    with pytest.raises(DataError, match="whole numbers without class names; leave label_names out, or give floats"):
        small(np.arange(6)).check()


def test_fingerprint_sees_every_bit_of_a_number():
    given = small()
    assert given.fingerprint() == small().fingerprint()
    assert given.fingerprint() != small((np.nextafter(0.5, 1), 1.5, 2.0, 3.0, -1.0, 0.0)).fingerprint()


def test_numbers_that_are_not_whole_are_a_regression(tmp_path):
    values = [f"{i / 8}" for i in range(80)]
    task = load_task(write(tmp_path / "data.csv", values))
    assert task.labels["label"].tolist() == [float(value) for value in values]
    assert (task.labels["label"].dtype, task.label_names) == (np.float64, {"label": []})
    assert [int((task.splits == split).sum()) for split in SPLITS] == [64, 8, 8]
    assert [len(load_task(tmp_path / "data.csv", limit=3).labels["label"])] == [9]
    with pytest.raises(UsageError, match="limit 1 is less than the 2 values that a regression needs"):
        load_task(tmp_path / "data.csv", limit=1)


def test_whole_numbers_are_classes_unless_said_otherwise(tmp_path):
    years = [1900 + i % 4 for i in range(90)]
    path = write(tmp_path / "data.csv", [*years[:-1], -1], "year")
    with pytest.raises(DataError, match="not labelled"):
        load_task(path, label_column="year")
    task = load_task(path, label_column="year", regression=True)
    assert task.labels["year"].tolist() == [*map(float, years[:-1]), -1.0]
    assert load_task(write(path, years)).n_classes() == 4


def test_a_class_may_look_like_a_number(tmp_path):
    task = load_task(write(tmp_path / "data.csv", ["3.5", "large", "small"] * 30))
    assert task.label_names["label"] == ["3.5", "large", "small"]
