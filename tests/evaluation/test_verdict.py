"""The verdict as a table of intervals, and which notes are never hidden."""

from collections.abc import Sequence

import numpy as np
import pytest
from drawn_curves import make
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import r2_score, roc_auc_score

from probekit.evaluation.compare.controls import ControlTasks, record_of_controls
from probekit.evaluation.fits.protocol import Protocol, Round
from probekit.evaluation.results.cautions import cautions
from probekit.evaluation.results.report import ALWAYS, MOST_NOTES, every_note, footnotes, summary, title
from probekit.evaluation.results.verdict import chance_level, chance_of, standing, verdict
from probekit.evaluation.scores.bootstrap import LEAST_GROUPS

ABOVE, ACROSS, BELOW = (0.6, 0.7), (0.45, 0.55), (0.3, 0.4)  # of a score whose chance is 0.5
AHEAD, TIED, BEHIND = (0.1, 0.2), (-0.1, 0.1), (-0.2, -0.1)  # of a lead


@pytest.mark.parametrize("guess", [None, 0.3])
def test_chance_is_what_a_guess_that_knows_no_text_scores(guess: float | None) -> None:
    """Of a ranking and of a regression it is the same for all labels; of other metrics it is the guess's own."""
    truth = np.array([0, 1, 1, 0, 1])
    assert chance_level("auroc", guess) == roc_auc_score(truth, np.zeros(5))
    assert chance_level("r2", guess) == r2_score(truth, np.full(5, truth.mean()))
    assert chance_level("spearman", guess) == 0
    assert chance_level("accuracy", guess) == chance_level("macro_f1", guess) == guess


@pytest.mark.parametrize("share", [0.5, 0.3])
def test_chance_is_the_better_of_two_guesses_from_train(share: float) -> None:
    """The majority class of train is the rarer one of test: then a guess by train's frequencies scores more."""
    train, test = np.repeat([0, 1], [490, 510]), np.repeat([0, 1], [round(100 * (1 - share)), round(100 * share)])
    drawn = np.random.default_rng(0).choice(train, size=(20_000, 100))
    counts = {
        name: {"a": int((y == 0).sum()), "b": int((y == 1).sum())} for name, y in (("train", train), ("test", test))
    }
    found = chance_of(make(baselines={"majority": float((test == 1).mean())}, counts=counts))
    assert found == pytest.approx((drawn == test).mean(), abs=0.002)


@pytest.mark.parametrize(
    ("score", "chance", "baseline", "lead", "wanted"),
    [
        (ABOVE, 0.5, "bag-of-words", AHEAD, "ahead"),
        (ABOVE, 0.5, "bag-of-words", TIED, "no better"),
        (ABOVE, 0.5, "bag-of-words", BEHIND, "worse"),
        (ACROSS, 0.5, "bag-of-words", TIED, "not above chance"),
        (BELOW, 0.5, "bag-of-words", BEHIND, "not above chance"),
        (ACROSS, 0.5, "majority", AHEAD, "ahead"),  # paired on the same rows, which is the sharper question
        (ABOVE, 0.5, "majority", TIED, "not above chance"),
        (ABOVE, 0.5, "mean", BEHIND, "not above chance"),
        (ABOVE, 0.5, None, None, None),
        (ACROSS, 0.5, None, None, "not above chance"),
        (ACROSS, 0.5, "bag-of-words", None, "not above chance"),
        (None, 0.5, "bag-of-words", None, None),  # without intervals nothing is decided
        (ACROSS, None, "bag-of-words", None, None),
        (None, None, "embedding", TIED, "no better"),
        ((0.5, 0.6), 0.5, None, None, "not above chance"),
        (ABOVE, 0.5, "bag-of-words", (0.0, 0.1), "no better"),
    ],
)
def test_the_standing_is_decided_from_intervals(score, chance, baseline, lead, wanted):
    assert standing(score, chance, baseline, lead) == wanted


def test_a_poor_verdict_is_the_first_line():
    poor = make(full=True, baselines={"majority": 0.95}, lead={"baseline": "majority", "over": 0.0, "interval": TIED})
    assert summary(poor).splitlines()[0] == verdict(poor) == "Not above chance (chance level: accuracy 0.950)."
    assert "not above chance" in repr(poor)
    assert "Not above chance" in poor._repr_html_().partition("<table")[0]
    good = make(full=True, lead={"baseline": "majority", "over": 0.4, "interval": AHEAD})
    assert verdict(good) == ""
    assert summary(good).splitlines()[0] == title(good)


@pytest.mark.parametrize(
    ("groups", "over", "interval", "is_said"),
    [
        (LEAST_GROUPS - 1, -0.1, None, True),
        (LEAST_GROUPS - 1, 0.0, None, True),
        (LEAST_GROUPS - 1, 0.1, None, False),  # undecided, and not behind
        (None, -0.1, None, False),  # intervals were not asked for
        (LEAST_GROUPS, -0.1, BEHIND, False),  # the interval decides
    ],
)
def test_a_score_behind_its_baseline_is_said_to_be_so_without_an_interval_too(groups, over, interval, is_said):
    lead = {"baseline": "bag-of-words", "over": over, "interval": interval}
    said = verdict(make(lead=lead, test_groups=groups))
    assert said.endswith("; too few groups for an interval.") is is_said
    assert said.startswith("Not ahead of a bag of words (accuracy ") is is_said


@pytest.mark.parametrize("groups", [None, LEAST_GROUPS - 1, LEAST_GROUPS])
def test_the_note_of_the_permutation_test_says_how_groups_limit_it(groups):
    (note,) = [n for n in every_note(make(p_max=0.001, test_groups=groups)) if n.subject == "permutation test"]
    assert ("within groups or by complete groups" in note.text) is (groups is not None)
    assert ("nothing about other groups" in note.text) is (groups is not None and groups < LEAST_GROUPS)


FINDINGS = st.lists(st.sampled_from(["75 of 100 leak", "imbalanced classes", "5 groups span splits"]), max_size=3)


@given(findings=FINDINGS, late=st.booleans(), tested=st.booleans(), longer=st.booleans(), ahead=st.booleans())
def test_no_note_of_the_first_rank_is_hidden(findings, late, tested, longer, ahead):
    one = {"split": "test", "what": "length", "values": [104.8, 52.5], "unit": "characters", "d": 1.0, "p": 0.0}
    audit = {"findings": findings, "differences": [one] if longer else []}
    lead = {"baseline": "bag-of-words", "over": 0.1, "interval": AHEAD if ahead else TIED}
    meta = {"audit": audit, "lead": lead, "p_max": 0.01 if tested else None, "no_texts": late}
    meta |= {"optimism": {"layer": "resid_pre.1", "value": 0.96, "over": 0.01}, "control": None}
    data = make(full=True, **meta)
    shown, notes = footnotes(data), every_note(data)
    assert all(note.text in shown for note in notes if note.rank == ALWAYS)
    assert [note.rank for note in notes] == sorted(note.rank for note in notes)
    assert len(shown) <= MOST_NOTES
    hidden = [note.subject for note in notes if note.text not in shown]
    assert all(subject in shown[-1] for subject in hidden if subject != "few negatives")
    assert ("times as long as train texts" in shown[0]) is longer


@pytest.mark.parametrize(
    ("difference", "wanted"),
    [
        ({"what": "length", "values": [104.8, 52.5], "unit": "characters"}, "2.0 times as long"),
        ({"what": "length", "values": [20.0, 60.0], "unit": "tokens"}, "0.3 times as long"),
        ({"what": "length", "values": [60.0, 52.5], "unit": "characters"}, ""),
        ({"what": "label", "values": [0.5, 0.2], "class": "x" * 90}, "class '"),
        ({"what": "target", "values": [3.0, 9.0], "label": "y"}, "mean 'y': 3 in test, 9 in train"),
        ({"what": "repeated texts", "values": [0.5, 0.2]}, ""),
    ],
)
def test_test_rows_unlike_train_are_a_caution_where_that_changes_the_score(difference, wanted):
    (said,) = cautions(make(audit={"differences": [{"split": "test", **difference}]})) or [""]
    assert wanted in said
    assert bool(said) is bool(wanted)
    assert len(said) <= 70
    assert cautions(make(audit={"differences": [{"split": "validation", **difference}]})) == []


@pytest.mark.parametrize("n_classes", [2, 3, 0])
def test_the_ceiling_of_a_control_task_is_what_a_table_of_types_scores(n_classes):
    """Types in train are known exactly, others are guessed: the commonest class of train, or its mean."""
    rng = np.random.default_rng(0)
    types = rng.integers(12, size=90).tolist()
    rows = np.arange(90)
    fitted = (rows < 60) & (np.array(types) > 2)  # types 0 to 2 are in test alone
    test = rows[60:]
    draws = [
        rng.normal(size=12)[types] if not n_classes else (rng.integers(n_classes, size=12))[types] for _ in range(2)
    ]
    protocol = Protocol([fitted.astype(float)], [], [Round(0, test, [])], 0, {"test": test})
    record = record_of_controls(
        ControlTasks(draws, {"draws": 2}, types=types), protocol, "accuracy" if n_classes else "r2", n_classes
    )
    assert record is not None
    assert record["ceiling"] == pytest.approx(
        np.mean([table(labels, types, fitted, test, n_classes) for labels in draws])
    )
    assert record_of_controls(ControlTasks([], None), protocol, "accuracy", 2) is None


def table(labels: np.ndarray, types: Sequence[int], fitted: np.ndarray, test: np.ndarray, n_classes: int) -> float:
    """The score of a dictionary."""
    known = {types[i]: labels[i] for i in np.flatnonzero(fitted).tolist()}
    other = np.bincount(labels[fitted]).argmax() if n_classes else labels[fitted].mean()
    guess, truth = np.array([known.get(types[i], other) for i in test]), labels[test]
    if n_classes:
        return float((guess == truth).mean())
    return float(1 - ((truth - guess) ** 2).sum() / ((truth - truth.mean()) ** 2).sum())


def test_a_negative_selectivity_is_explained():
    from dataclasses import replace

    control = {"type": "token", "unit": "token that is read", "draws": 3, "seen": 0.9, "ceiling": 0.97}
    for level, wanted in ((0.96, "easier than the label"), (0.5, "suggests memorised tokens")):
        made = make(full=True, control=control)
        layers = [replace(x, control=level, selectivity=x.metrics["test"]["accuracy"] - level) for x in made.layers]
        (note,) = [one for one in every_note(replace(made, layers=layers)) if one.subject == "control task"]
        assert wanted in note.text
        assert "would score 0.970" in note.text
