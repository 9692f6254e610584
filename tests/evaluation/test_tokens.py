"""Curves whose examples are tokens, and targets of several numbers."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.metrics import r2_score

from probekit.activations import load_activations
from probekit.activations.store.reader import Store
from probekit.errors import DataError, UsageError
from probekit.evaluation import ProbeResults, transfer
from probekit.evaluation.rows import resampling_units
from probekit.models.families.gpt2 import GPT2, GPT2Config
from probekit.tasks.base import Task
from probekit.tasks.token_labels import token_rows
from probekit.verbs.extract import extract
from probekit.verbs.train_probes import train_probes

N, L, VOCAB = 60, 9, 11
FAST = {"controls": 0, "baselines": False, "codelength": False}


@pytest.fixture(scope="module")
def model() -> GPT2:
    cfg = GPT2Config(
        d_model=12, n_heads=2, d_mlp=16, n_layers=2, n_ctx=L + 1, d_vocab=VOCAB, bos_token_id=0, init_std=0.3
    )
    return GPT2(cfg).init_weights(0)


def make_task(n: int = N, **changes) -> Task:
    rng = np.random.default_rng(1)
    ids = rng.integers(1, VOCAB, size=(n, L))
    before = np.concatenate([np.zeros((n, 1), dtype=int), ids[:, :-1]], axis=1)
    given = {
        "name": "walk",
        "inputs": ids,
        "labels": {"text": ids[:, 0] % 2},
        "label_names": {"text": ["even", "odd"], "parity": ["even", "odd"]},
        "splits": np.array(["train", "train", "validation", "test"])[np.arange(n) % 4],
        "target": "parity",
        "token_labels": {
            "parity": (ids + before) % 2,
            "sum": np.cumsum(ids, axis=1) / 10.0,
            "both": np.stack([ids, before], axis=2).astype(float),
        },
    }
    return Task(**{**given, **changes})


@pytest.fixture(scope="module")
def acts(model):
    return extract(model, make_task(), points="resid_pre", position="all", bos=True)


def by_hand(x: np.ndarray, y: np.ndarray, train: np.ndarray, test: np.ndarray) -> tuple[float, np.ndarray]:
    """R2 on test of numpy's least squares, and the predictions."""
    design = np.column_stack([x, np.ones(len(x))])
    predicted = design @ np.linalg.lstsq(design[train], y[train], rcond=None)[0]
    return r2_score(y[test], predicted[test], multioutput="uniform_average"), predicted


def test_every_token_is_a_row_and_texts_never_straddle(acts):
    results = train_probes(acts, label="parity", position="all", C=1.0, **FAST)
    assert results.meta["n"] == {"train": 30 * L, "validation": 15 * L, "test": 15 * L}
    assert results.meta["interval"]["unit"] == "text"
    assert results.meta["position"] == "all"
    rows = acts.at("all").task
    units = resampling_units(rows)
    assert units is not None
    assert units.reshape(N, L).tolist() == [[i] * L for i in range(N)]
    assert results.meta["audit"]["splits"]["train"]["texts"] == 30


def test_wider_intervals_than_of_independent_tokens(acts):
    """All tokens of a text share its label, so texts are what is independent."""
    one = train_probes(acts, label="text", position="all", C=1.0, **FAST)
    at_last = train_probes(acts, label="text", position="last", C=1.0, **FAST)
    wide, narrow = (np.ptp(each.best.intervals["accuracy"]) for each in (one, at_last))
    assert wide > 0.5 * narrow > narrow / np.sqrt(L)


@pytest.mark.parametrize("position", ["last", "first"])
def test_one_position_takes_that_tokens_label(acts, model, position):
    results = train_probes(acts, label="sum", position=position, probe="ridge", C=1.0, **FAST)
    task = make_task()
    at = -1 if position == "last" else 0
    y = np.array([one[at] for one in task.token_labels["sum"]])
    view = replace(task, labels={"sum": y}, label_names={"sum": []}, token_labels={}, target="sum", position=position)
    plain = extract(model, view, points="resid_pre", position=position, bos=True)
    again = train_probes(plain, C=1.0, **FAST)
    for one, other in zip(results.layers, again.layers, strict=True):
        assert one.metrics["test"]["r2"] == pytest.approx(other.metrics["test"]["r2"], abs=1e-4)


def test_folds_and_carving_keep_the_tokens_of_a_text_together(model):
    task = make_task(splits=np.array(["train", "train", "train", "test"])[np.arange(N) % 4])
    acts = extract(model, task, points="resid_pre", position="all")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = train_probes(acts, position="all", C=(0.1, 1.0), layers=1, **FAST)
    assert results.meta["n"]["validation"] % L == 0
    folds = train_probes(acts, position="all", C=1.0, layers=1, folds=3, **FAST)
    assert folds.meta["n"] == {"test": N * L}
    carved = token_rows(task).with_validation(0.25)
    assert all(len(set(carved.splits[i * L : (i + 1) * L])) == 1 for i in range(N))


def test_controls_and_the_baseline_are_of_token_types(acts):
    results = train_probes(acts, position="all", C=1.0, layers=1, controls=1, codelength=False)
    assert [one.name for one in results.baselines] == ["majority", "word-type"]
    assert results.meta["control"]["type"] == "token"
    tokens, rows = acts.at("all").layout.tokens, acts.at("all").task
    labels, train, test = rows.labels["parity"], rows.splits == "train", rows.splits == "test"
    most = {t: np.bincount(labels[train & (tokens == t)], minlength=2).argmax() for t in set(tokens.tolist())}
    right = np.mean([most[t] == y for t, y in zip(tokens[test].tolist(), labels[test], strict=True)])
    assert results.baselines[1].metrics["test"]["accuracy"] == pytest.approx(right, abs=0.06)  # ties


@pytest.mark.parametrize("label", ["sum", "both"])
def test_least_squares_is_that_of_numpy(acts, label, tmp_path):
    results = train_probes(acts, label=label, position="all", C=float("inf"), **FAST)
    rows = acts.at("all").task
    y, train, test = rows.labels[label], rows.splits == "train", rows.splits == "test"
    for layer in results.layers:
        x = acts[layer.point, layer.layer].double().numpy()
        r2, predicted = by_hand(x, y, train, test)
        assert layer.metrics["test"]["r2"] == pytest.approx(r2, abs=1e-6)
        assert np.allclose(layer.probe.predict(x)[test], predicted[test], atol=1e-6)
    results.save(tmp_path / "out")
    again = ProbeResults.load(tmp_path / "out")
    assert [layer.C for layer in again.layers] == [np.inf] * 3
    assert again.layers == results.layers
    assert np.array_equal(again.layers[0].probe.coef_, results.layers[0].probe.coef_)
    assert np.isinf(again.layers[0].probe.C)


def test_targets_of_several_numbers(acts):
    results = train_probes(acts, label="both", position="all", C=(0.1, 1.0), controls=1)
    rows = acts.at("all").task
    y, test = rows.labels["both"], rows.splits == "test"
    best = results.best
    predicted = best.probe.predict(acts[best.point, best.layer])
    assert predicted.shape == (N * L, 2)
    each = [r2_score(y[test, k], predicted[test, k]) for k in range(2)]
    assert best.outputs == pytest.approx(each)
    assert best.metrics["test"]["r2"] == pytest.approx(r2_score(y[test], predicted[test]))
    assert best.intervals["r2"][0] < best.metrics["test"]["r2"] < best.intervals["r2"][1]
    assert best.p_value is not None
    assert best.p_value < 0.01
    mean, word, _ = results.baselines
    assert (mean.name, word.name) == ("mean", "word-type")
    frame = results.to_frame()
    assert frame[frame.metric == "r2_output_1"].value.tolist() == pytest.approx(
        [one.outputs[1] for one in results.layers]
    )


def test_other_probes_say_that_they_predict_one_number(acts):
    from sklearn.ensemble import RandomForestRegressor
    from sklearn.svm import SVR

    with pytest.raises(UsageError, match=r"predicts one number, and 'both' holds 2 for each example; take ridge"):
        train_probes(acts, label="both", position="all", probe=SVR())
    forest = RandomForestRegressor(n_estimators=2, random_state=0)
    results = train_probes(acts, label="both", position="all", probe=forest, layers=1, **FAST)
    assert len(results.best.outputs) == 2
    with pytest.raises(UsageError, match=r"needs a finite C \(--C\), got inf; only ridge"):
        train_probes(acts, position="all", C=float("inf"))
    best = train_probes(acts, position="all", probe="ridge", C=float("inf"), **FAST).best
    assert np.isinf(best.C)


def test_layers_side_by_side(acts, model, tmp_path):
    how = {"label": "sum", "position": "all", "C": 1.0, "concatenate": True, **FAST}
    results = train_probes(acts, **how)
    (layer,) = results.layers
    assert layer.place == "resid_pre_0_to_1_and_resid_post_1"
    assert layer.probe.coef_.shape == (36,)
    joined = torch.cat([acts[place] for place in acts], dim=1)
    rows = acts.at("all").task
    from sklearn.linear_model import Ridge
    from sklearn.preprocessing import StandardScaler

    train, test = rows.splits == "train", rows.splits == "test"
    scaler = StandardScaler().fit(joined[train])
    ridge = Ridge(alpha=0.5).fit(scaler.transform(joined[train]), rows.labels["sum"][train])
    r2 = ridge.score(scaler.transform(joined[test]), rows.labels["sum"][test])
    assert layer.metrics["test"]["r2"] == pytest.approx(r2, abs=1e-5)
    extract(model, make_task(), points="resid_pre", position="all", bos=True, out=tmp_path / "store")
    again = train_probes(load_activations(tmp_path / "store"), **how)
    assert again.layers[0].metrics == layer.metrics
    results.save(tmp_path / "out")
    assert ProbeResults.load(tmp_path / "out").layers == results.layers
    noise = extract(GPT2(model.cfg).init_weights(5), make_task(), points="resid_pre", position="all", bos=True)
    assert train_probes(acts, **how, random_init=noise).random_init[0].place == layer.place
    two = train_probes(acts, **{**how, "layers": [0, 1]})
    assert two.layers[0].place == "resid_pre_0_to_1"
    assert "resid_pre_0_to_1" in str(two)


def test_transfer_between_tasks_of_tokens(acts, model):
    other = extract(model, replace(make_task(40), name="other"), points="resid_pre", position="all", bos=True)
    for concatenate in (False, True):
        found = transfer([acts, other], label="sum", position="all", C=1.0, concatenate=concatenate)
        assert found.matrix.shape == (2, 2)
        assert found.matrix.min() > 0.3


def test_an_output_that_does_not_vary_is_refused(model):
    flat = np.stack([np.zeros((N, L)), np.ones((N, L)).cumsum(axis=1)], axis=2)
    task = make_task(token_labels={"flat": flat}, label_names={"text": ["even", "odd"]}, target="flat")
    acts = extract(model, task, points="resid_pre", position="all")
    with pytest.raises(DataError, match="outputs that vary, and output 0 has one value in all of train of 'flat'"):
        train_probes(acts, position="all")


def test_tokens_that_memory_cannot_hold_are_refused_before_anything_is_read(model, tmp_path, monkeypatch):
    extract(model, make_task(), points="resid_pre", position="all", out=tmp_path / "store")
    store = load_activations(tmp_path / "store")
    how = {"label": "parity", "probe": "mlp", "layers": 1, **FAST}
    needed = 2 * N * L * 12 * 4
    monkeypatch.setattr(Store, "shards", None)  # nothing is read
    with pytest.raises(DataError, match=r"the 540 rows x 12 of resid_pre\.1 take .* in memory .*--memory"):
        train_probes(store, position="all", **how, memory=needed - 1)
