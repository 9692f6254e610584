"""Nested folds: what is quoted of them is fair where there is nothing to find."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from probekit.activations.activations import ActivationSet
from probekit.errors import UsageError
from probekit.evaluation.compare.baseline_fits import BASELINE_C, bags_of_words, word_counts
from probekit.evaluation.fits.predict import pooled
from probekit.evaluation.fits.protocol import fold_protocol
from probekit.evaluation.scores.bootstrap import Bootstrap
from probekit.evaluation.scores.metrics import Predictions, metrics_of
from probekit.evaluation.scores.score import score, score_intervals
from probekit.tasks.base import Task
from probekit.tasks.quality.duplicates import linked_texts
from probekit.verbs.train_probes import train_probes

BARE: dict[str, Any] = {"baselines": False, "controls": 0, "codelength": False}


def noise(seed: int, n: int = 60, n_layers: int = 12, positives: float = 0.5, **task: Any) -> ActivationSet:
    """Activations and labels that have nothing to do with one another."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation((np.arange(n) < positives * n).astype(np.int64))
    about: dict[str, Any] = {"inputs": [f"text {i}" for i in range(n)], "splits": np.full(n, "train")} | task
    made = Task("noise", labels={"kind": labels}, label_names={"kind": ["a", "b"]}, target="kind", **about)
    places = [("resid_pre", i) for i in range(n_layers)]
    return ActivationSet({p: torch.from_numpy(rng.normal(size=(n, 6)).astype(np.float32)) for p in places}, made)


def assert_mean(values: list[float], expected: float) -> None:
    assert abs(np.mean(values) - expected) < 3 * np.std(values, ddof=1) / np.sqrt(len(values))


def quoted(results: Any) -> float:
    """The first number of the notes."""
    lines = results.summary().splitlines()
    (line,) = [line for line in lines if line.startswith("Quote: ")]
    return float(line.split("accuracy ")[1][:5])


def test_the_number_that_is_printed_of_noise_is_chance():
    how: dict[str, Any] = {"probe": "mean-diff", "folds": 5, "intervals": False, **BARE}
    worlds = [train_probes(noise(seed), **how) for seed in range(16)]
    assert_mean([quoted(results) for results in worlds], 0.5)
    assert np.mean([results.meta["optimism"]["over"] for results in worlds]) > 0.05


@pytest.mark.parametrize(("probe", "C"), [("ridge", (0.01, 1, 100)), ("mean-diff", None)])
def test_scores_of_different_folds_are_comparable(probe, C):
    """The rarer a class is in train, the commoner it is in test: intercepts alone would rank below chance."""
    how: dict[str, Any] = {"probe": probe, "C": C, "folds": 5, "intervals": False, **BARE}
    groups = np.arange(60) // 6  # so that folds differ in their shares
    sets = [noise(seed, n_layers=1, positives=0.15, groups=groups) for seed in range(50)]
    worlds = [train_probes(acts, **how).layers[0] for acts in sets]
    assert_mean([layer.metrics["test"]["auroc"] for layer in worlds], 0.5)


def test_pooling_keeps_a_perfect_order_and_undoes_shift_and_scale():
    rng = np.random.default_rng(0)
    truths = [(np.arange(12) < k).astype(np.int64) for k in (1, 2, 5)]
    scores = [rng.normal(size=12) / 10 + truth for truth in truths]
    shifted = [scale * each + shift for each, scale, shift in zip(scores, (1, 5, 0.1), (0, 9, -7), strict=True)]
    parts = [Predictions(t, t, s, 2) for t, s in zip(truths, scores, strict=True)]
    others = [Predictions(t, t, s, 2) for t, s in zip(truths, shifted, strict=True)]
    assert score(pooled(others)) == score(pooled(parts))
    assert score(pooled(others))["auroc"] == 1
    assert metrics_of(others[0])["auroc"] == score(pooled([others[0]]))["auroc"]
    flat = [replace(part, scores=np.full(12, 1e3 + i)) for i, part in enumerate(parts)]
    assert score(pooled(flat))["auroc"] == 0.5


def test_a_regression_ranks_within_folds_and_measures_across():
    truth = np.arange(10.0)
    parts = [Predictions(truth, truth + shift, truth + shift, 0) for shift in (0, 100)]
    whole = pooled(parts)
    assert score(whole)["spearman"] == pytest.approx(1)
    assert score(whole)["mae"] == 50
    assert score_intervals(Bootstrap(20), whole)["spearman"][1] == pytest.approx(1)


def test_each_output_of_a_regression_is_pooled_in_its_own_units():
    """The second is constant but for rounding, which must not be ranked; the third is that of a regression of one."""
    rng = np.random.default_rng(0)
    truth, said = rng.normal(size=(2, 2, 12, 3)) * [1e6, 1, 1e-3]
    said[1] = 5 * said[1] + 7
    said[:, :, 1] = 3 + 1e-15 * rng.normal(size=(2, 12))
    whole = pooled([Predictions(*both, both[1], 0) for both in zip(truth, said, strict=True)])
    third = pooled([Predictions(t[:, 2], s[:, 2], s[:, 2], 0) for t, s in zip(truth, said, strict=True)])
    assert not whole.scores[:, 1].any()
    np.testing.assert_allclose(whole.scores[:, 2], third.scores, atol=1e-9)


def test_folds_have_no_p_values_and_say_why():
    results = train_probes(noise(0, n_layers=2), probe="mean-diff", folds=3, **BARE)
    assert (results.meta["p_max"], results.meta["permutations"]) == (None, None)
    assert [layer.p_value for layer in results.layers] == [None, None]
    reason = "with folds, the pooled predictions depend on the labels that a permutation would shuffle"
    assert results.meta["no_p_values"] == reason
    assert "no p-values" in results.summary()
    assert "Intervals ignore that folds share training rows" in results.summary()


def test_the_picture_rings_no_place_that_all_rows_chose():
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    results = train_probes(noise(0, n_layers=3), probe="mean-diff", folds=3, **BARE)
    ax = results.plot(Figure().subplots())
    ax.figure.canvas.draw()
    labels = [text.get_text() for text in ax.figure.findobj(Text)]
    assert not any("selected" in label for label in labels)
    assert f"nested cross-validation: accuracy {results.estimate[0]:.3f}" in " ".join(labels)


def test_the_bag_of_words_is_fitted_on_the_rows_that_the_probe_is(monkeypatch):
    """The choosers choose its C; then it is fitted on the round's mask, as scikit-learn would."""
    n, words = 90, ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta"]
    rng = np.random.default_rng(0)
    acts = noise(0, n=n, n_layers=1, inputs=[f"{' '.join(rng.choice(words, size=4))} b{i}" for i in range(n)])
    seen: list[Any] = []
    monkeypatch.setattr(
        "probekit.evaluation.compare.baselines.bags_of_words",
        lambda counts, labels, train, *more: (
            seen.append(set(train.tolist())) or bags_of_words(counts, labels, train, *more)
        ),
    )
    results = train_probes(acts, probe="mean-diff", folds=3, controls=0)
    labels, texts = acts.labels["kind"], acts.inputs
    protocol = fold_protocol(labels, linked_texts(texts), 3, 0)
    assert all(set(np.flatnonzero(protocol.masks[each.mask]).tolist()) in seen for each in protocol.rounds)
    scores = np.empty(n)
    for each in protocol.rounds:
        risks = np.zeros(len(BASELINE_C))
        for mask, part in each.choosers:
            rows = protocol.parts[part]
            guesses = bags_of_words(word_counts(texts), labels, np.flatnonzero(protocol.masks[mask]), 2)
            risks += [(guess.predicted != labels)[rows].mean() for guess in guesses]
        kept = bags_of_words(word_counts(texts), labels, np.flatnonzero(protocol.masks[each.mask]), 2)[
            int(risks.argmin())
        ]
        scores[each.test] = kept.predicted[each.test] == labels[each.test]
    found = {baseline.name: baseline.metrics["test"]["accuracy"] for baseline in results.baselines}
    assert found["bag-of-words"] == pytest.approx(scores.mean())


def test_repeated_texts_never_straddle_folds():
    """Each text stands twice, nearly, with the same label and activations: only rows by heart would score."""
    n = 80
    rng = np.random.default_rng(1)
    words = [" ".join(rng.choice([f"w{k}" for k in range(400)], size=14, replace=False)) for _ in range(n // 2)]
    inputs = [f"{words[i // 2]} {'now' if i % 2 else 'then'}" for i in range(n)]
    acts = noise(1, n=n, n_layers=1, inputs=inputs)
    results = train_probes(acts, probe="mean-diff", folds=4, **BARE)
    assert "Audit: 80 texts have an exact or near duplicate; folds keep them together." in results.summary()
    assert results.meta["audit"]["linked"] == n
    linked = linked_texts(inputs)
    assert linked.tolist() == [i // 2 for i in range(n)]
    for each in fold_protocol(acts.labels["kind"], linked, 4, 0).rounds:
        assert sorted(each.test ^ 1) == sorted(each.test)
    with pytest.raises(UsageError, match="folds keep repeated and nearly repeated texts together"):
        train_probes(acts, folds=4, drop_leaks=True)
