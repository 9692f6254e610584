"""Probes of the unedited activations after an edit that turns each row's class into another."""

import math

import numpy as np
import pytest
import torch

from probekit.activations import ActivationSet
from probekit.causal.curve.after_edits import ExchangeReading, read_exchange
from probekit.causal.erasure.completeness import read_afresh
from probekit.errors import UsageError
from probekit.points import Place
from probekit.tasks import Task

N, D = 480, 6
HERE = Place("resid_pre", 1)
LATER = Place("resid_post", 1)


def planted() -> tuple[Task, torch.Tensor]:
    rng = np.random.default_rng(0)
    a, b, c = rng.integers(0, 2, N), rng.integers(0, 3, N), rng.normal(size=N)
    x = rng.normal(size=(N, D)) * 0.3
    x[:, :3] += np.stack([3.0 * a, 2.0 * b, c], axis=1)
    texts, splits = [f"text {i}" for i in range(N)], np.resize(["train", "validation", "validation", "test"], N)
    return Task("planted", texts, {"a": a, "b": b, "c": c}, splits=splits, target="a"), torch.from_numpy(x).float()


class Rows:
    """Test rows of activations in which class a is in column 0, class b in column 1, and the number c in column 2."""

    def __init__(self):
        task, x = planted()
        self.reading = read_afresh(ActivationSet({HERE: x, LATER: 2 * x}, task))
        test = task.splits == "test"
        self.x, self.labels = x[torch.from_numpy(test)], {name: y[test] for name, y in task.labels.items()}
        self.other_class = torch.from_numpy(1 - 2 * self.labels["a"]) * 3.0  # what turns column 0 into the other class

    def read(self, here: torch.Tensor, later: torch.Tensor | None = None, label: str = "a") -> ExchangeReading:
        before = {HERE: self.x, LATER: 2 * self.x}
        after = {HERE: here, LATER: 2 * here if later is None else later}
        return read_exchange(self.reading, before, after, self.labels, 1 - self.labels["a"], label)

    def exchanged(self, share: float = 1.0) -> torch.Tensor:
        x = self.x.clone()
        x[:, 0] += share * self.other_class
        return x


@pytest.fixture(scope="module")
def rows() -> Rows:
    return Rows()


def test_an_exchanged_coordinate_is_complete_and_selective_here_and_later(rows):
    found = rows.read(rows.exchanged())
    assert found.places == [HERE, LATER]
    assert found.completeness == pytest.approx([1, 1], abs=0.05)
    assert found.selectivity == pytest.approx([1, 1], abs=0.05)
    assert found.reliability == pytest.approx([1, 1], abs=0.05)


def test_no_edit_reads_as_the_own_class(rows):
    """Two classes: every row that reads as its own class does not read as the other one."""
    found = rows.read(rows.x)
    assert found.completeness == [-1, -1]
    assert found.selectivity == [1, 1]
    assert found.reliability == [0, 0]


def test_what_is_computed_again_later_shows_there(rows):
    assert rows.read(rows.exchanged(), later=2 * rows.x).completeness == pytest.approx([1, -1], abs=0.05)


def test_a_vector_of_another_row_brings_all_of_its_labels(rows):
    """Each row becomes one of the other class of a, whatever its other labels: complete, and not selective."""
    a = rows.labels["a"]
    rng = np.random.default_rng(0)
    of = {c: np.flatnonzero(a == c) for c in (0, 1)}
    source = np.array([rng.choice(of[1 - c]) for c in a])
    found = rows.read(rows.x[torch.from_numpy(source)])
    assert found.completeness[0] == pytest.approx(1, abs=0.1)
    assert found.selectivity[0] < 0.3


def test_what_could_not_be_read_before_is_not_a_number(rows):
    noise = torch.randn(N, D, generator=torch.Generator().manual_seed(1))
    reading = read_afresh(ActivationSet({HERE: noise}, planted()[0]))
    found = read_exchange(reading, {HERE: rows.x}, {HERE: rows.x}, rows.labels, 1 - rows.labels["a"], "a")
    assert all(map(math.isnan, [*found.completeness, *found.reliability]))


def test_places_and_label_sets_without_probes_are_refused(rows):
    with pytest.raises(UsageError, match="no fresh probes of 'd'"):
        rows.read(rows.x, label="d")
    with pytest.raises(UsageError, match=r"probes of resid_post\.1; read the same places"):
        read_exchange(rows.reading, {HERE: rows.x}, {LATER: rows.x}, rows.labels, rows.labels["a"], "a")
