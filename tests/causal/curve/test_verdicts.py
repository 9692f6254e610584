"""What the full vector shows: its exchange against that with a text of the row's own class and answer."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from probekit.causal.curve.edits import NamedEdit
from probekit.causal.curve.places import EditedAnswers, effect_of, with_full_vector
from probekit.causal.curve.prepared import _of_the_same_class
from probekit.causal.results.view import CONTROL, FULL
from probekit.evaluation.scores.bootstrap import Bootstrap
from probekit.points import Place

N = 200


def shows_use(full_N: np.ndarray, control_N: np.ndarray) -> bool | None:
    """`Effect.full_vector` where the exchanges take these shares of each row's way, from 2 to -2."""
    before, whole = np.full(N, 2.0), np.full(N, 4.0)
    rows: Any = SimpleNamespace(
        split="test", index=np.arange(N), difference=before, whole=lambda method: whole, bootstrap=Bootstrap(N, 0, None)
    )
    edits: Any = [NamedEdit("interchange", name, None, False, None) for name in (FULL, CONTROL)]  # pyright: ignore
    answers = [
        EditedAnswers(edit, before - share * whole, np.ones(N))
        for edit, share in zip(edits, (full_N, control_N), strict=True)
    ]
    effects = [effect_of(each, rows, Place("resid_pre", 1)) for each in answers]
    found, control = with_full_vector(effects, answers, rows)
    assert control.full_vector is None
    return found.full_vector


def test_a_swap_that_harms_with_any_text_shows_no_use():
    """Both take half of the way, with much noise that the rows share."""
    rng = np.random.default_rng(0)
    harm = 0.5 + rng.normal(size=N)
    assert not shows_use(harm + 0.05 * rng.normal(size=N), harm + 0.05 * rng.normal(size=N))


def test_the_difference_is_paired():
    """It is far smaller than the noise that the two have in common, and clear on the same rows."""
    rng = np.random.default_rng(1)
    harm = 0.3 + rng.normal(size=N)
    assert shows_use(harm + 0.2, harm)


def test_a_lead_within_the_noise_of_both_shows_no_use():
    """0.15 more, where the rows say it to 0.2: the full vector's own interval is far above 0."""
    full, control = np.random.default_rng(4).normal(size=(2, N))
    full, control = (2 * (x - x.mean()) / x.std() for x in (full, control))
    assert not shows_use(0.65 + full, 0.5 + control)
    assert shows_use(0.65 + full, 0.5 + full)


@pytest.mark.parametrize("more", [0.05, 0.15])
def test_it_has_to_matter(more):
    """In logits: no answer flips, as each row stays on its own side."""
    control = 0.1 * np.random.default_rng(2).random(N)
    assert shows_use(control + more, control) is (more > 0.1)


def test_flips_count_beyond_those_of_the_control():
    """A tenth of the answers flip with either: near ties, which any swap turns."""
    share = np.where(np.arange(N) % 8 == 0, 0.51, 0.0)
    assert not shows_use(share + 0.02, share)
    assert shows_use(share + 0.02, np.zeros(N))


def test_the_control_has_the_own_class_and_the_own_answer():
    rng = np.random.default_rng(3)
    labels, answers = rng.integers(3, size=(2, 100))
    same = _of_the_same_class(labels, answers, 0)
    assert (labels[same] == labels).all()
    assert (answers[same] == answers).all()
    assert (same != np.arange(100)).all()  # every kind has several rows
    assert sorted(same) == list(range(100))
