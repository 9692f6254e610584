"""Thresholds for a false-positive rate: exact on validation, within the binomial interval on new rows."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from reported_curves import curve
from scipy.stats import binom, binomtest, norm

from probekit.errors import DataError, UsageError
from probekit.evaluation import ProbeResults
from probekit.evaluation.results.report import GIVE_WAY, MOST_NOTES, every_note, footnotes
from probekit.evaluation.results.row_scores import RowScores
from probekit.evaluation.scores.rates import EACH_OF_TWO, precision_at, rate_of, rates_at, threshold_for
from probekit.evaluation.train_probes import rates_of
from probekit.scoring.threshold import choose_threshold, threshold_text


def test_at_most_the_wanted_share_of_negatives_is_flagged_however_scores_tie() -> None:
    """And the next lower score would flag too many."""
    rng = np.random.default_rng(0)
    for n in range(1, 61):
        for fpr in rng.uniform(0.01, 0.99, size=5).tolist():
            scores, most = rng.integers(-3, 4, size=n).astype(float), fpr * n * (1 + 1e-9)
            found = threshold_for(scores, np.zeros(n, dtype=int), fpr)
            if found.value is None:
                assert fpr * n < 1
                continue
            assert (scores >= found.value).sum() == found.flagged <= most
            lower = scores[scores < found.value]
            if len(lower):
                assert (scores >= lower.max()).sum() > most


@pytest.mark.parametrize(
    ("n", "fpr", "k"), [(100, 0.01, 1), (99, 0.01, 0), (100, 0.29, 29), (199, 0.01, 1), (1000, 0.05, 50)]
)
def test_as_many_are_flagged_as_the_rate_allows(n: int, fpr: float, k: int) -> None:
    found = threshold_for(np.random.default_rng(0).normal(size=n), np.zeros(n, dtype=int), fpr)
    assert (found.flagged, found.value is None, found.least) == (k, k == 0, 1 / n)


def test_thresholds_hold_their_rate_on_new_rows() -> None:
    """Over 400 draws, the flagged share of new negatives is k / (n + 1) within its interval of 99.9%."""
    rng, n, new, draws, fpr = np.random.default_rng(0), 300, 50, 400, 0.02
    flagged = 0
    for _ in range(draws):
        chosen = threshold_for(rng.normal(size=n), np.zeros(n, dtype=int), fpr)
        assert chosen.value is not None
        flagged += int((rng.normal(size=new) >= chosen.value).sum())
    rate, trials = 6 / 301, draws * new
    spread = np.sqrt(rate * (1 - rate) / trials * (1 + (new - 1) * 1.2 / n))  # rows of one draw share a threshold
    assert abs(flagged / trials - rate) < 3.3 * spread
    assert flagged / trials < fpr + 3.3 * spread


@pytest.mark.parametrize(("hits", "rows"), [(0, 10), (10, 10), (3, 40), (1, 1), (0, 1)])
def test_intervals_are_those_of_clopper_and_pearson(hits: int, rows: int) -> None:
    found, exact = rate_of(np.arange(rows) < hits, np.arange(rows)), binomtest(hits, rows).proportion_ci(0.95)
    assert (found.low, found.high) == pytest.approx((exact.low, exact.high), abs=1e-12)
    copies = rate_of(np.repeat(np.arange(rows) < hits, 7), np.repeat(np.arange(rows), 7))
    assert copies.groups == rows
    if hits in (0, rows):  # copies of a row say nothing more
        assert (copies.low, copies.high) == (found.low, found.high)
    else:
        assert copies.low <= found.low < found.high <= copies.high


def test_precision_at_a_base_rate_is_that_of_a_population_with_it() -> None:
    """And its interval holds it in 95% of 400 draws or more."""
    rng, base, tpr, fpr = np.random.default_rng(0), 0.02, 0.7, 0.05
    exact = base * tpr / (base * tpr + (1 - base) * fpr)
    many = np.arange(100_000)
    found = precision_at(base, rate_of(many < 70_000, many), rate_of(many < 5_000, many))
    assert found.value == pytest.approx(exact)
    held = 0
    for _ in range(400):
        flagged = [rng.random(n) < rate for n, rate in ((60, tpr), (200, fpr))]
        one = precision_at(base, *(rate_of(some, np.arange(len(some)), EACH_OF_TWO) for some in flagged))
        held += one.low <= exact <= one.high
        ends = [binomtest(int(some.sum()), len(some)).proportion_ci(0.975) for some in flagged]  # both hold with 95%
        for got, found, wrongly in (
            (one.value, flagged[0].mean(), flagged[1].mean()),
            (one.low, ends[0].low, ends[1].high),
            (one.high, ends[0].high, ends[1].low),
        ):
            assert got == pytest.approx(base * found / (base * found + (1 - base) * wrongly))
    assert held >= 380
    none = precision_at(base, rate_of(many < 0, many), rate_of(many < 0, many))
    assert (none.value, none.low) == (None, 0.0)


def test_intervals_hold_where_rows_of_a_group_agree() -> None:
    """In 300 draws of 30 groups of 8 rows, which share much of their rate; rows as if independent would not hold."""
    rng, groups, held = np.random.default_rng(0), np.repeat(np.arange(30), 8), np.zeros(2)
    for _ in range(300):
        flagged = rng.random(240) < rng.beta(0.2 * 0.7 / 0.3, 0.8 * 0.7 / 0.3, size=30)[groups]
        both = rate_of(flagged, groups), rate_of(flagged, np.arange(240))
        held += [each.low <= 0.2 <= each.high for each in both]
    assert held[0] / 300 > 0.92  # of 95%, less 2.4 standard errors
    assert held[1] / 300 < 0.85


def test_a_row_at_the_threshold_is_flagged() -> None:
    tpr, fpr = rates_at(1.0, np.array([1.0, 0.9, 1.0, 0.5]), np.array([1, 1, 0, 0]))
    assert tpr is not None
    assert fpr is not None
    assert (tpr.hits, tpr.rows, fpr.hits, fpr.rows) == (1, 2, 1, 2)
    assert rates_at(1.0, np.array([1.0]), np.array([1]))[1] is None


def rows_of(n: int, **changes: Any) -> RowScores:
    rng = np.random.default_rng(0)
    labels, splits = np.arange(n) % 2, np.array(["validation", "test"], dtype=object)[np.arange(n) // 2 % 2]
    own = {"scores": {"p.0": rng.normal(size=n) + labels}, "predicted": {"p.0": labels}, **changes}
    blank = np.array([""] * n, dtype=object)
    return RowScores(blank, blank, splits, labels, np.arange(n), **own)


def test_what_a_threshold_gives_is_told_of_test_alone() -> None:
    rows = rows_of(800)
    found = choose_threshold(rows, "p.0", 0.05)
    tested = rows.splits == "test"
    flagged, labels = rows.scores["p.0"][tested] >= found.value, rows.labels[tested]
    tpr, fpr = (rate_of(flagged[labels == k], np.flatnonzero(labels == k)) for k in (1, 0))
    assert (found.tpr, found.test_fpr, found.negatives, found.flagged) == (tpr, fpr, 200, 10)
    line = threshold_text(found, "yes")
    assert f"it finds {tpr.value:.3f} [{tpr.low:.3f}, {tpr.high:.3f}], {tpr.hits} of 200 of yes" in line
    assert "false-positive rate of 5.00%" in line
    assert found.precision is None
    rare = choose_threshold(rows, "p.0", 0.05, base_rate=0.001).precision
    assert rare is not None
    assert rare.value is not None
    assert rare.low < 0.001 * tpr.value / (0.001 * tpr.value + 0.999 * fpr.value) == rare.value < rare.high
    line = threshold_text(choose_threshold(rows, "p.0", 0.05, base_rate=0.001), "yes")
    assert f"; at a base rate of 0.001, precision {rare.value:.2g} [{rare.low:.2g}, {rare.high:.2g}] (95% int" in line


@pytest.mark.parametrize("share", [0.05, 0.3, 0.6])
def test_the_interval_of_a_rate_covers_it_with_groups_of_unequal_sizes(share: float) -> None:
    """40 groups of geometric sizes, which share half of the variance of their scores."""
    inside, worlds, n, G = 0, 200, 400, 40
    for seed in range(worlds):
        rng = np.random.default_rng(seed)
        group = np.searchsorted(np.sort(rng.choice(np.arange(1, n), G - 1, replace=False)), np.arange(n), side="right")
        scores = np.sqrt(0.5) * (rng.normal(size=n) + rng.normal(size=G)[group])
        rate = rate_of(scores > norm.ppf(1 - share), group)
        inside += rate.low <= share <= rate.high
    assert inside >= binom.ppf(1e-4, worlds, 0.93)


def test_rows_of_a_group_are_counted_together() -> None:
    alone, rows = choose_threshold(rows_of(800), "p.0", 0.05), rows_of(800)
    shared = choose_threshold(RowScores(**{**vars(rows), "groups": np.arange(800) // 40}), "p.0", 0.05)
    assert alone.tpr is not None
    assert shared.tpr is not None
    assert (alone.tpr.groups, shared.tpr.groups) == (200, 20)
    assert "in 20 groups" in threshold_text(shared, "yes")
    assert "groups" not in threshold_text(alone, "yes")
    assert (alone.groups, shared.groups) == (None, len(np.unique(np.arange(800)[rows.splits == "validation"] // 40)))
    assert f"from {shared.groups} groups; on new groups the rate may be higher" in threshold_text(shared, "yes")


def test_what_cannot_be_chosen_is_refused_with_the_least_rate() -> None:
    with pytest.raises(UsageError, match=r"50 validation rows of the first class, the lowest .* 2\.00%; got 1\.00%"):
        choose_threshold(rows_of(200), "p.0", 0.01)
    with pytest.raises(UsageError, match="for probes of two classes"):
        choose_threshold(rows_of(200, predicted={}), "p.0", 0.05)
    with pytest.raises(UsageError, match="for probes of two classes"):
        choose_threshold(rows_of(200, scores={"p.0": np.zeros((200, 3))}), "p.0", 0.05)
    with pytest.raises(DataError, match="no scores of validation rows"):
        choose_threshold(None, "p.0", 0.05)


def notes_of(results: ProbeResults) -> dict[str, str]:
    return {note.subject: note.text for note in every_note(results)}


def with_rates(rows: RowScores) -> ProbeResults:
    """Made-up results whose selected place has these rows."""
    made = curve()
    rates = rates_of(rows, "p.0")
    return ProbeResults(**{**vars(made), "layers": [replace(layer, rates=rates) for layer in made.layers]})


def test_results_hold_the_rates_of_a_threshold_for_one_percent() -> None:
    rows = RowScores(**{**vars(rows_of(800)), "groups": np.arange(800) // 4})
    found, rates = choose_threshold(rows, "p.0", 0.01), rates_of(rows, "p.0")
    assert rates is not None
    assert found.tpr is not None
    assert found.test_fpr is not None
    assert (rates["fpr"], rates["negatives"], rates["threshold"]) == (0.01, 200, found.value)
    for name, rate in (("tpr", found.tpr), ("test_fpr", found.test_fpr)):
        assert (rates[name], rates[f"{name}_low"], rates[f"{name}_high"]) == (rate.value, rate.low, rate.high)
    results = with_rates(rows)
    note = notes_of(results)["true-positive rate"]
    assert f"test TPR {found.tpr.value:.3f} [{found.tpr.low:.3f}, {found.tpr.high:.3f}]" in note
    frame = results.to_frame()
    own = frame[frame["metric"] == "tpr_at_fpr_0.01"]
    assert own["value"].tolist() == [found.tpr.value] * len(results.layers)


def test_too_few_negatives_are_said_where_no_other_note_gives_way() -> None:
    results = with_rates(rows_of(200))
    notes = notes_of(results)
    assert (
        notes["few negatives"]
        == "No TPR at 1% FPR: with 50 validation rows of the first class, the lowest FPR is 2.0%."
    )
    assert "true-positive rate" not in notes
    without = [note for name, note in notes.items() if name not in GIVE_WAY]
    shown = footnotes(results)
    assert shown == list(notes.values()) if len(notes) <= MOST_NOTES else shown[:5] == without[:5]
