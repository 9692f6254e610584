"""The scores of the view equal those of the probes on the activations of each text by itself."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tiny_configs import tiny_model

from probekit.errors import ResumeMismatch, UsageError
from probekit.report.tokens.build import by_output, pieces_of, placebo_scores, random_weights, token_scores
from probekit.report.tokens.data import CONTEXT, TRAINED
from probekit.report.tokens.find import Shown, view_of_results, view_of_texts
from probekit.report.tokens.read import rows_from_model, rows_from_store
from probekit.scoring.calibrate import calibrated, calibration_of
from probekit.verbs.extract import extract


def alone(model: Any, ids: list[int], place: tuple[str, int]) -> torch.Tensor:
    """The activations of one text by itself, [L, D]."""
    _, cache = model.run_with_cache(torch.tensor([ids]), points=[place], return_logits=False)
    return cache[place][0]


def log_odds(results: Any, layer: Any, decision: np.ndarray) -> np.ndarray:
    """Calibrated log odds of a decision, [R] or [R, C]."""
    found = calibration_of(results.rows, layer.place, layer.probe.log_odds)
    assert found is not None
    likely = calibrated(found, decision)
    return np.log(likely / (1 - likely))[:, 1 if decision.ndim == 1 else slice(None)]


@pytest.mark.parametrize("family", ["gpt2", "bert", "gemma3"])
def test_every_token_has_the_calibrated_log_odds_of_its_text_alone(curve_of, family):
    results, _, task = curve_of(family)
    model = tiny_model(family)
    view = view_of_texts(results, model, task.subset(np.arange(3)))
    assert view.meta["calibrated_on"] == (results.rows.splits == "validation").sum()
    for p, layer in enumerate(results.layers):
        for i in range(3):
            found = view.scores[0, p, view.offsets[i] : view.offsets[i + 1]]
            decision = layer.probe.decision_function(alone(model, task.inputs[i], (layer.point, layer.layer)))
            expected = log_odds(results, layer, decision)
            np.testing.assert_allclose(found, expected, atol=2e-4 * np.abs(expected).max())


def test_tokens_have_the_probabilities_that_score_gives_them(curve_of):
    results, _, task = curve_of("gpt2")
    some, model = task.subset(np.arange(5)), tiny_model("gpt2")
    view = view_of_texts(results, model, some)
    scored = results.score(model, some, tokens=True)
    np.testing.assert_allclose(1 / (1 + np.exp(-view.scores[0, view.best])), scored.probabilities[:, 1], atol=1e-5)
    assert ((view.marks & TRAINED) > 0).tolist() == scored.trained.tolist()


@pytest.mark.parametrize("position", ["last", "mean", 1, -2])
@pytest.mark.parametrize("source", ["model", "store"])
def test_texts_have_the_scores_that_tested_the_probe(curve_of, position, source):
    """At the marked tokens the view gives each text the calibrated score that train_probes gave it."""
    results, _, task = curve_of("gpt2", position)
    rows, model = results.rows, tiny_model("gpt2")
    test = np.flatnonzero(task.splits == "test")
    if source == "model":
        view = view_of_texts(results, model, task.subset(test))
    else:
        view = token_scores(results, rows_from_store(extract(model, task, position="all"), test, position))
    for p, layer in enumerate(results.layers):
        expected = log_odds(results, layer, rows.scores[layer.place][rows.splits == "test"])
        np.testing.assert_allclose(view.text_scores[0, p], expected, rtol=1e-3, atol=1e-4)
    lengths = np.diff(view.offsets)
    for i, n in enumerate(lengths.tolist()):
        marked = np.flatnonzero(view.marks[view.offsets[i] : view.offsets[i + 1]] & TRAINED).tolist()
        assert marked == {"last": [n - 1], "mean": [*range(n)], 1: [1], -2: [n - 2]}[position]
    predicted = rows.predicted[results.layers[view.best].place][rows.splits == "test"]
    assert [one.predicted for one in view.texts] == [f"class {k}" for k in predicted]
    assert [one.is_mistake for one in view.texts] == (predicted != task.labels["kind"][test]).tolist()


def test_a_false_positive_rate_moves_the_centre_and_the_predictions(curve_of):
    results, _, task = curve_of("gpt2")
    test, model = task.subset(np.flatnonzero(task.splits == "test")), tiny_model("gpt2")
    view = view_of_texts(results, model, test, fpr=0.2)
    flagged = results.score(model, test, fpr=0.2).flagged
    assert 0 < flagged.sum() < len(test)
    assert [one.predicted == "class 1" for one in view.texts] == flagged.tolist()
    assert ((view.text_scores[0] >= view.centres[:, None] - 1e-6)[view.best]).tolist() == flagged.tolist()
    assert len(set(view.centres)) == len(view.places)  # a threshold for each place
    with pytest.raises(UsageError, match="lowest"):
        view_of_texts(results, model, test, fpr=1e-4)
    with pytest.raises(UsageError, match="between 0 and 1"):
        results.tokens(model, test, fpr=2)


def test_several_classes_have_the_log_odds_of_each(curve_of):
    results, _, task = curve_of("gpt2", n_classes=3, n=200)
    model = tiny_model("gpt2")
    view = view_of_texts(results, model, task.subset(np.array([5])))
    layer = results.layers[1]
    x = alone(model, task.inputs[5], ("resid_pre", 1))
    assert view.outputs == ["class 0", "class 1", "class 2"]
    expected = log_odds(results, layer, layer.probe.decision_function(x))
    np.testing.assert_allclose(view.scores[:, 1], expected.T, rtol=1e-3, atol=1e-4)


def test_a_regression_is_centred_on_the_mean_of_the_trained_tokens(curve_of):
    results, _, task = curve_of("gpt2", regression=True)
    view = view_of_texts(results, tiny_model("gpt2"), task)
    trained = (view.marks & TRAINED) > 0
    assert view.meta["kind"] == "value"
    assert view.centres.tolist() == pytest.approx([view.scores[0][:, trained].mean()] * len(view.places))
    assert len(set(view.units)) == 1
    assert all(one.is_mistake is None for one in view.texts)


@pytest.mark.parametrize("probe", ["attention", "mean-diff", "lda", "ridge"])
def test_other_probes(curve_of, probe):
    results, _, task = curve_of("gpt2", "all" if probe == "attention" else "last", probe)
    model = tiny_model("gpt2")
    view = view_of_texts(results, model, task.subset(np.arange(3)))
    layer = results.layers[2]
    x = alone(model, task.inputs[0], ("resid_pre", 2))
    each = layer.probe.decision_function([row[None] for row in x] if probe == "attention" else x)
    whole = layer.probe.decision_function([x] if probe == "attention" else x[-1:])
    if probe != "attention":
        each, whole = (log_odds(results, layer, one) for one in (each, whole))
    np.testing.assert_allclose(view.scores[0, 2, : len(x)], each, rtol=1e-3, atol=1e-4)
    assert view.text_scores[0, 2, 0] == pytest.approx(whole[0], rel=1e-3, abs=1e-4)
    assert set(view.units) == {1.0}


def test_scores_without_log_odds_and_without_validation_rows_are_in_standard_deviations(curve_of):
    results, _, task = curve_of("gpt2", "last", "mean-diff")
    view = view_of_texts(replace(results, rows=None), tiny_model("gpt2"), task.subset(np.arange(30)))
    assert view.meta["kind"] == "score"
    trained = (view.marks & TRAINED) > 0
    np.testing.assert_allclose(view.units, view.scores[0][:, trained].std(axis=1))


def test_context_tokens_are_marked_and_have_no_score(agreement):
    results, model, task = agreement
    some = task.subset(np.arange(3))
    view = token_scores(results, rows_from_model(model, some, results, {"bos": True}))
    first = view.offsets[:-1]
    assert (view.marks[first] & CONTEXT).all()
    assert [view.pieces[i] for i in first] == ["<eos>"] * 3
    assert np.isnan(view.scores[:, :, first]).all()
    assert np.isfinite(np.delete(view.scores, first, axis=2)).all()
    assert ["".join(view.pieces[i + 1 : j]) for i, j in itertools.pairwise(view.offsets)] == some.inputs


def test_the_pieces_of_a_text_are_the_text(agreement):
    results, model, task = agreement
    view = view_of_texts(results, model, task)
    assert ["".join(view.pieces[i:j]) for i, j in itertools.pairwise(view.offsets)] == task.inputs


def test_the_placebo_is_a_random_direction_with_the_probe_s_mean_and_spread():
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.normal(size=(400, 6)) * [5, 1, 1, 1, 1, 0.1])
    own, trained = rng.normal(3, 2, size=(1, 400)), rng.random(400) < 0.5
    found = placebo_scores(x, own, trained, random_weights(400, 0))
    assert found[0, trained].mean() == pytest.approx(own[0, trained].mean())
    assert found[0, trained].std() == pytest.approx(own[0, trained].std())
    fitted = np.linalg.lstsq(np.c_[x.numpy(), np.ones(400)], found[0], rcond=None)[0]
    np.testing.assert_allclose(np.c_[x.numpy(), np.ones(400)] @ fitted, found[0], atol=1e-8)  # affine in x
    draws = [placebo_scores(x, own, trained, random_weights(400, seed))[0] for seed in range(200)]
    assert abs(np.mean([np.corrcoef(own[0], one)[0, 1] for one in draws])) < 0.05
    assert placebo_scores(torch.ones(5, 3), own[:, :5], trained[:5], random_weights(5, 0)).std() == 0


def test_scores_without_probabilities_are_compared_with_the_largest_other():
    assert by_output(np.array([[3.0, 1.0, 2.0]]), "score")[:, 0].tolist() == [1.0, -2.0, -1.0]


def test_other_models_and_missing_ones_are_refused(curve_of):
    results, acts, task = curve_of("gpt2")
    with pytest.raises(ResumeMismatch, match="different weights"):
        view_of_texts(results, tiny_model("gpt2-untied"), task)
    with pytest.raises(UsageError, match="--model"):
        view_of_results(results, acts)
    with pytest.raises(UsageError, match="position all"):
        rows_from_store(acts, np.arange(2), "last")


def test_shown_texts_are_test_texts_with_the_reasons(curve_of):
    results, acts, task = curve_of("gpt2", n=400)
    view = view_of_results(results, acts, tiny_model("gpt2"), Shown(texts=20))
    by_id = dict(zip(task.ids, task.splits.tolist(), strict=True))
    assert len(view.texts) == 20
    assert {by_id[one.id] for one in view.texts} == {"test"}
    assert all(one.is_mistake for one in view.texts if one.why == "mistake")
    assert {one.why for one in view.texts} == {"mistake", "least confident", "most confident", "random"}


def test_pieces_without_a_tokenizer_are_ids(curve_of):
    _, _, task = curve_of("gpt2")
    acts = extract(tiny_model("gpt2"), task.subset(np.array([0])), position="all")
    assert pieces_of(acts) == [str(i) for i in task.inputs[0]]
