"""Scoring new texts equals extracting them and applying the probe, for every family and every kind of probe."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from tiny_configs import new_model, tiny_configs, tiny_model

from probekit.activations.activations import Activations
from probekit.errors import DataError, ResumeMismatch, UsageError
from probekit.evaluation import ProbeCurves, ProbeResults
from probekit.interventions import project_out
from probekit.scoring import score as scoring
from probekit.tasks.base import Task
from probekit.verbs.extract import extract
from probekit.verbs.train_probes import train_probes

QUICK: dict[str, Any] = {"quick": True, "intervals": False, "baselines": False}


def token_lists(n: int, seed: int = 0) -> list[list[int]]:
    """Lists of 4 to 9 token ids."""
    rng = np.random.default_rng(seed)
    return [rng.integers(3, 40, size=rng.integers(4, 10)).tolist() for _ in range(n)]


def task_of(n: int, n_classes: int = 2, pairs: bool = False, seed: int = 0, **labels: Any) -> Task:
    """A task whose classes are told by the last token; `n_classes` 0 is a regression on its number."""
    ids = token_lists(n, seed)
    last = np.array([one[-1] for one in ids])
    values = last / 10 if not n_classes else (last + np.arange(n) % 2) % n_classes
    return Task(
        "made",
        ids,
        labels=labels.get("labels", {"y": values}),
        label_names=None if not n_classes else {"y": [f"class {k}" for k in range(n_classes)]},  # pyright: ignore
        splits=np.array(["train", "train", "validation", "test"])[np.arange(n) % 4],
        targets=[one[::-1] for one in ids] if pairs else None,
    )


@cache
def last_tokens(n_classes: int = 2, n: int = 80) -> Activations:
    """Of all layers of a tiny GPT-2, which several tests read."""
    return extract(tiny_model("gpt2"), task_of(n, n_classes))


def decided(results: ProbeResults, acts: Activations, place: str) -> np.ndarray:
    """The oracle: extracted activations through the probe's own method."""
    (probe,) = [layer.probe for layer in results.layers if layer.place == place]
    X: Any = acts.per_text(place) if probe.of_sequences else acts[place]
    return probe.predict(X) if probe.predicts == "numbers" else probe.decision_function(X)


@pytest.mark.parametrize("name", tiny_configs())
def test_every_family_scores_as_it_extracts(name: str) -> None:
    model = tiny_model(name)
    pairs = hasattr(model, "decode")
    for stack in ("encoder.", "decoder.") if pairs else ("",):
        task, new = task_of(32, pairs=pairs), task_of(7, pairs=pairs, seed=5)
        results = train_probes(extract(model, task, points=f"{stack}resid_pre"), probe="mean-diff", **QUICK)
        acts = extract(model, new, points=f"{stack}resid_pre")
        for place in (results.layers[1].place, results.layers[-1].place):
            found, expected = results.score(model, new, place=place), decided(results, acts, place)
            scale = np.abs(expected).max()
            np.testing.assert_allclose(found.scores, expected, rtol=0, atol=1e-6 * scale)
        alone = results.score(model, new.subset(np.array([2])), place=place)
        np.testing.assert_allclose(alone.scores, expected[2:3], rtol=0, atol=1e-5 * scale)


ONE_C: dict[str, Any] = {name: {"C": 1.0} for name in ("logistic", "ridge", "k-sparse")}


@pytest.mark.parametrize(
    ("probe", "n_classes"),
    [
        *((probe, n) for probe in ("logistic", "ridge", "lda", "mean-diff", "mlp") for n in (2, 4)),
        *(("k-sparse", 2), ("ridge", 0)),
    ],
)
def test_every_probe_scores_as_it_predicts_before_and_after_it_is_saved(
    probe: str, n_classes: int, tmp_path: Path
) -> None:
    model, new = tiny_model("gpt2"), token_lists(9, 3)
    results = train_probes(last_tokens(n_classes), probe=probe, layers=1, **ONE_C.get(probe, {}), **QUICK)
    expected = decided(results, extract(model, new, layers=1), results.best.place)
    for known in (results, ProbeResults.load(results.save(tmp_path / "r"))):
        found = known.best.score(model, new)
        np.testing.assert_allclose(found.scores, expected, rtol=1e-6, atol=1e-6)
        if n_classes:
            names = known.best.probe.predict_labels(extract(model, new, layers=1)[results.best.place])
            assert found.predicted is not None
            assert found.predicted.tolist() == names.tolist()
        else:
            assert (found.predicted, found.probabilities) == (None, None)


def test_a_probe_of_scikit_learn_scores_while_it_is_in_memory(tmp_path: Path) -> None:
    model, new = tiny_model("gpt2"), token_lists(6, 3)
    results = train_probes(last_tokens(), probe=LogisticRegression(max_iter=2000), layers=1, **QUICK)
    expected = decided(results, extract(model, new), "resid_pre.1")
    np.testing.assert_allclose(results.best.score(model, new).scores, expected, rtol=1e-6, atol=1e-6)
    with pytest.raises(DataError, match=r"no fitted probe of resid_pre\.1, as those of other packages are not saved"):
        ProbeResults.load(results.save(tmp_path / "r")).best.score(model, new)


@pytest.mark.parametrize("how", [{"probe": "attention", "C": 1.0}, {"aggregate": "max", "C": 1.0}])
def test_probes_over_a_sequence(how: dict[str, Any]) -> None:
    """Of single tokens there are scores alone: calibration, threshold and distances are of complete texts."""
    model, new = tiny_model("gpt2"), token_lists(6, 3)
    results = train_probes(extract(model, task_of(48), layers=1, position="all"), **how, **QUICK)
    found = results.best.score(model, new, fpr=0.5)
    every = extract(model, new, layers=1, position="all")
    expected = decided(results, every, results.best.place)
    np.testing.assert_allclose(found.scores, expected, rtol=1e-6, atol=1e-6)
    assert found.distance is not None
    assert found.flagged is not None
    tokens = results.best.score(model, new, tokens=True, fpr=0.5)
    each = [rows[None] for text in every.per_text(results.best.place) for rows in text]
    np.testing.assert_allclose(tokens.scores, results.best.probe.decision_function(each), rtol=1e-6, atol=1e-6)
    assert (tokens.probabilities, tokens.flagged, tokens.distance) == (None, None, None)
    assert "no flags: the threshold of this probe is of complete texts" in tokens.meta["notes"]


@pytest.mark.parametrize("position", ["last", "first", "mean", "-2:", "all", -3])
def test_tokens_that_the_probe_was_trained_on_are_marked(position: Any) -> None:
    """Each token's score is the linear one of its activation; those at the trained position equal the text's score."""
    model, new = tiny_model("gpt2"), token_lists(8, 3)
    each = position in ("-2:", "all")
    acts = extract(model, task_of(48), layers=1, position=position)
    results = train_probes(acts, probe="ridge", C=1.0, **({"position": "all"} if each else {}), **QUICK)
    every = extract(model, new, layers=1, position="all")
    tokens, texts = results.best.score(model, new, tokens=True), results.best.score(model, new)
    place = results.best.place
    np.testing.assert_allclose(tokens.scores, results.best.probe.decision_function(every[place]), rtol=1e-6, atol=1e-6)
    assert tokens.token_index is not None
    assert tokens.trained is not None
    assert tokens.token_index.tolist() == [i for one in new for i in range(len(one))]
    of_length = {"last": lambda n: [n - 1], "first": lambda n: [0], "mean": lambda n: [], -3: lambda n: [n - 3]}
    of_length |= {"-2:": lambda n: [n - 2, n - 1], "all": range}
    marked = [[i in of_length[position](len(text)) for i in range(len(text))] for text in new]
    assert tokens.trained.tolist() == [one for text in marked for one in text]
    if position != "mean":
        np.testing.assert_allclose(tokens.scores[tokens.trained], texts.scores, rtol=1e-5, atol=1e-6)
    assert (texts.token_index is not None) == each


def test_places_side_by_side() -> None:
    model, new = tiny_model("gpt2"), token_lists(6, 3)
    acts = last_tokens()
    results = train_probes(acts, concatenate=True, probe="ridge", **QUICK)
    expected = results.best.probe.decision_function(
        extract(model, new).concatenated(acts.curve("resid_pre"))[results.best.place]
    )
    np.testing.assert_allclose(results.best.score(model, new).scores, expected, rtol=1e-6, atol=1e-6)


def test_edits_are_those_of_the_training() -> None:
    model, new = tiny_model("gpt2"), token_lists(6, 3)
    edits = {("resid_pre", 1): project_out(torch.randn(32, generator=torch.Generator().manual_seed(0)))}
    results = train_probes(extract(model, task_of(80), layers=2, edits=edits), probe="ridge", **QUICK)
    found = results.best.score(model, new, edits=edits)
    expected = decided(results, extract(model, new, layers=2, edits=edits), "resid_pre.2")
    np.testing.assert_allclose(found.scores, expected, rtol=1e-6, atol=1e-6)
    with pytest.raises(ResumeMismatch, match=r"different edits \(trained under: "):
        results.best.score(model, new)
    plain = train_probes(extract(model, task_of(80), layers=2), probe="ridge", **QUICK)
    with pytest.raises(ResumeMismatch, match=r"different edits \(trained without any"):
        plain.best.score(model, new, edits=edits)


def test_bos_and_stored_type_are_those_of_the_training() -> None:
    model, new = tiny_model("llama"), token_lists(6, 3)
    how: dict[str, Any] = {"bos": True, "dtype": "float16", "layers": 2}
    results = train_probes(extract(model, task_of(80), **how), probe="ridge", **QUICK)
    expected = decided(results, extract(model, new, **how), "resid_pre.2")
    np.testing.assert_allclose(results.best.score(model, new).scores, expected, rtol=1e-6, atol=1e-6)


def test_texts_come_in_their_order_however_many_are_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model, new = tiny_model("gpt2"), token_lists(23, 3)
    results = train_probes(last_tokens(), layers=2, probe="ridge", **QUICK)
    whole = {tokens: results.best.score(model, new, tokens=tokens) for tokens in (False, True)}
    monkeypatch.setattr(scoring, "TEXTS_AT_ONCE", 5)
    for tokens, expected in whole.items():
        found = results.best.score(model, new, tokens=tokens)
        np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-5, atol=1e-6)
        assert found.ids.tolist() == expected.ids.tolist()


def test_another_model_is_refused_unless_that_is_wanted() -> None:
    other, new = new_model("gpt2"), token_lists(6, 3)
    results = train_probes(last_tokens(), layers=2, probe="ridge", **QUICK)
    with torch.no_grad():
        next(other.blocks.parameters()).add_(1e-3)
    with pytest.raises(ResumeMismatch, match="different weights; give that model"):
        results.best.score(other, new)
    found = results.best.score(other, new, any_model=True)
    assert found.meta["notes"][-1] == "not the model that the probe was trained on: different weights"
    half = new_model("gpt2").to(torch.bfloat16)
    with pytest.raises(ResumeMismatch, match=r"type \(trained in float32, loaded in bfloat16: --dtype\)"):
        results.best.score(half, new)


def test_places_are_named_and_refused_by_name() -> None:
    model, new = tiny_model("gpt2"), token_lists(3, 3)
    results = train_probes(last_tokens(), probe="ridge", C=1.0, **QUICK)
    assert results.score(model, new, place="1").meta["place"] == "resid_pre.1"
    assert results.layers[2].score(model, new).meta["place"] == "resid_pre.2"
    assert results.score(model, new).meta["place"] == results.best.place
    with pytest.raises(UsageError, match=r"no probe of 'resid_pre\.7' in these results; did you mean resid_pre\."):
        results.score(model, new, place="resid_pre.7")
    with pytest.raises(UsageError, match="has no option 'tokns'"):
        results.score(model, new, tokns=True)
    with pytest.raises(DataError, match="one text or more"):
        results.score(model, [])


def test_distances_are_of_the_selected_place_alone() -> None:
    model, new = tiny_model("gpt2"), token_lists(3, 3)
    results = train_probes(last_tokens(), probe="ridge", C=1.0, **QUICK)
    other = next(layer.place for layer in results.layers if layer.place != results.best.place)
    assert results.score(model, new, place=other).distance is None
    found = results.best.score(model, new)
    assert list(found.to_frame()) == ["id", "predicted", "probability", "score", "distance", "unusual"]


def test_without_validation_rows_there_are_raw_scores_alone() -> None:
    model, new, task = tiny_model("gpt2"), token_lists(3, 3), task_of(80)
    task = task.subset(np.flatnonzero(task.splits != "validation"))
    results = train_probes(extract(model, task), probe="mean-diff", layers=1, **QUICK)
    found = results.best.score(model, new)
    assert (found.probabilities, found.unusual) == (None, None)
    assert "no calibrated probabilities" in found.meta["notes"][0]
    with pytest.raises(DataError, match=r"no scores of validation rows at resid_pre\.1"):
        results.best.score(model, new, fpr=0.1)


def test_folds_have_distances_and_no_calibration() -> None:
    model, new = tiny_model("gpt2"), token_lists(3, 3)
    results = train_probes(extract(model, task_of(48), layers=1), probe="ridge", C=1.0, folds=3, **QUICK)
    found = results.best.score(model, new)
    assert found.probabilities is None
    assert found.distance is not None


def test_curves_hold_results_that_score(tmp_path: Path) -> None:
    model, new = tiny_model("gpt2"), token_lists(3, 3)
    acts = extract(model, task_of(48), layers=1, points="resid_pre,attn_out")
    curves: Any = train_probes(acts, points="all", probe="ridge", C=1.0, **QUICK)
    loaded = ProbeCurves.load(curves.save(tmp_path / "c"))
    for key, curve in loaded.items():
        expected = decided(curve, extract(model, new, points=key[1]), curve.best.place)
        np.testing.assert_allclose(curve.best.score(model, new).scores, expected, rtol=1e-6, atol=1e-6)


def test_results_of_older_versions_say_what_they_lack() -> None:
    model, new = tiny_model("gpt2"), token_lists(3, 3)
    results = train_probes(last_tokens(), probe="ridge", layers=1, **QUICK)
    expected = results.best.score(model, new)
    meta = {key: value for key, value in results.meta.items() if key != "reading"}
    older = ProbeResults(**{**vars(results), "meta": meta, "rows": None, "spread": None})
    found = older.best.score(model, new)
    np.testing.assert_allclose(found.scores, expected.scores)
    assert found.meta["notes"][-1].startswith("these results are of an older version")
