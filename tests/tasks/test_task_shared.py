"""Real data, kept beside the project."""

import csv

import numpy as np
import pytest

from probekit.tasks import load_task
from probekit.tasks.base import SPLITS

pytestmark = pytest.mark.shared


def sizes(task) -> list[int]:
    return [int((task.splits == split).sum()) for split in SPLITS]


def test_sst2_folder(shared_dir):
    """Every phrase is taken, also "1987" and "none"; the 75 that stand in train and dev are counted."""
    task = load_task(shared_dir / "data" / "sst2")
    assert sizes(task) == [60_614, 6_735, 872]
    assert task.info["skipped_rows"] == 0
    assert task.info["dropped_blanks"] == len(task)
    assert task.info["also_in_train"] == {"validation": 75, "test": 0}
    assert not any(text != text.rstrip() for text in map(str, task.inputs))
    with (shared_dir / "data" / "sst2" / "train.tsv").open(encoding="utf-8", newline="") as file:
        lines = file.read().split("\n")[1:-1]
    assert [f"{text} \t{label}" for text, label in zip(task.inputs, task.labels[task.target], strict=True)][
        :60_614
    ] == lines


def test_sst2_carved_without_a_leak(shared_dir):
    task = load_task(shared_dir / "data" / "sst2" / "train.tsv")
    assert sizes(task) == [48_492, 6_061, 6_061]
    assert task.info["also_in_train"] == {"validation": 0, "test": 0}
    share = [np.mean(task.labels[task.target][task.splits == split]) for split in SPLITS]
    assert np.ptp(share) < 1e-3


def test_geometry_of_truth(shared_dir):
    task = load_task(shared_dir / "data" / "geometry-of-truth" / "cities.csv")
    assert task.counts() == {"train": {"0": 598, "1": 598}, **{split: {"0": 75, "1": 75} for split in SPLITS[1:]}}
    assert (task.info["text_column"], task.info["label_column"]) == ("statement", "label")


@pytest.mark.parametrize(
    ("file", "classes"),
    [
        ("10_nyc_borough", ["Bronx", "Brooklyn", "Manhattan", "Queens", "Staten Island"]),
        ("24_headline_isiran", ["False", "True"]),
        ("42_temp_sense", ["no", "yes"]),
        ("87_glue_cola", ["0", "1"]),
        ("96_spam_is", ["0", "1"]),
    ],
)
def test_sae_probes(shared_dir, file, classes):
    path = shared_dir / "data" / "sae-probes" / f"{file}.csv"
    task = load_task(path, keep_blanks=True)
    assert task.label_names[task.target] == classes
    with path.open(encoding="utf-8", newline="") as given:
        rows = list(csv.DictReader(given))
    assert task.inputs == [row["prompt"] for row in rows]
    assert [classes[k] for k in task.labels[task.target]] == [row["target"] for row in rows]


def test_latitudes_are_a_regression(shared_dir):
    path = shared_dir / "data" / "sae-probes" / "11_us_lat.csv"
    task = load_task(path)
    with path.open(encoding="utf-8", newline="") as given:
        rows = list(csv.DictReader(given))
    assert (task.n_classes(), task.label_names) == (0, {"target": []})
    assert task.labels["target"].tolist() == [float(row["target"]) for row in rows]
    medians = [np.median(task.labels["target"][task.splits == split]) for split in SPLITS]
    assert np.ptp(medians) < 0.5
