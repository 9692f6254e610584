"""Latents by k: a curve for each k, the k that validation chooses, the best latents, and where they are strongest."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

import probekit as pk
from probekit.charts.by_k import k_chart
from probekit.charts.lines import Ring, Rule, Series
from probekit.evaluation import ProbeCurves
from probekit.evaluation.results.by_k import chosen_k, curves_by_k
from probekit.probes import KSparseProbe, find_probe, probe_name
from tests.latents.test_encode import an_sae, some_acts

KS = (1, 2, 4, 8)


@pytest.fixture(scope="module")
def curves() -> ProbeCurves:
    latents = some_acts().encode(an_sae(1))
    found = pk.train_probes(latents, probes=[f"k-sparse-{k}" for k in KS], progress=False)
    assert isinstance(found, ProbeCurves)
    return found


def test_each_k_is_the_probe_with_that_k(curves: ProbeCurves) -> None:
    by_k = curves_by_k([*curves.values()])
    assert tuple(by_k) == KS
    alone = pk.train_probes(some_acts().encode(an_sae(1)), probe=KSparseProbe(k=4), progress=False)
    assert by_k[4].layers[0].metrics == alone.layers[0].metrics
    assert probe_name(KSparseProbe(k=4)) == "k-sparse-4"
    assert find_probe("k-sparse-4", 2).get_params() == KSparseProbe(k=4).get_params()
    assert not curves_by_k([by_k[1], alone, pk.train_probes(some_acts(), quick=True, progress=False)])


def test_validation_chooses_k_and_equal_scores_go_to_the_smaller(curves: ProbeCurves) -> None:
    by_k = curves_by_k([*curves.values()])
    scores = [curve.layers[0].metrics["validation"][curve.headline] for curve in by_k.values()]
    k = chosen_k(by_k)
    assert k == KS[int(np.argmax(scores))]
    assert f"k = {k} is chosen on validation" in curves.summary()


def test_the_picture_has_each_k_and_the_probe_of_the_activations(curves: ProbeCurves) -> None:
    by_k = curves_by_k([*curves.values()])
    chart, k = k_chart(by_k), chosen_k(by_k)
    assert k is not None
    (line,) = [mark for mark in chart.marks if isinstance(mark, Series)]
    assert line.ys == tuple(curve.layers[0].metrics["test"][curve.headline] for curve in by_k.values())
    assert [*chart.x_ticks.values()] == [str(k) for k in KS]
    (ring,) = [mark for mark in chart.marks if isinstance(mark, Ring)]
    assert (ring.x, ring.y) == (KS.index(k), line.ys[KS.index(k)])
    values = [mark.value for mark in chart.marks if isinstance(mark, Rule)]
    assert by_k[k].pooled["activations"][0].metrics["test"][by_k[k].headline] in values
    assert len(chart.tips) == len(KS)
    best = max(one.metrics["test"][by_k[k].headline] for one in by_k[k].baselines)
    assert best in values


def test_each_of_the_best_latents_is_scored_alone(curves: ProbeCurves) -> None:
    acts, sae = some_acts(), an_sae(1)
    best = curves["label", "latents", "k-sparse-4"].meta["best_latents"]
    X, y = sae.encode(acts["resid_pre.1"]).double().numpy(), acts.labels["label"]
    train, test = acts.splits == "train", acts.splits == "test"
    means = [X[train & (y == k)].mean(0) for k in (0, 1)]
    differences = np.abs(means[1] - means[0]) / (X[train].std(0) + 1e-30)
    order = np.argsort(-differences, kind="stable")[: len(best["latents"])]
    assert {one["latent"] for one in best["latents"]} == {*order.tolist()}
    for one in best["latents"]:
        x = X[:, [one["latent"]]]
        z = (x - x[train].mean()) / x[train].std()
        theirs = LogisticRegression(C=1.0, tol=1e-10).fit(z[train], y[train])
        assert one["score"] == pytest.approx(theirs.score(z[test], y[test]))
        assert one["active"] == pytest.approx((x != 0).mean())
        assert one["class"] == int(means[1][one["latent"]] > means[0][one["latent"]])
        rows = np.argsort(-x[:, 0], kind="stable")[: len(one["rows"])]
        assert [name for name, _ in one["rows"]] == [acts.ids[row] for row in rows]


def test_results_of_latents_are_the_same_after_loading(curves: ProbeCurves, tmp_path: Path) -> None:
    curves.save(tmp_path / "curves")
    loaded = ProbeCurves.load(tmp_path / "curves")
    assert loaded.summary() == curves.summary()
    first = loaded["label", "latents", "k-sparse-4"]
    assert first.meta["best_latents"] == curves["label", "latents", "k-sparse-4"].meta["best_latents"]
    page = pk.write_report(tmp_path / "curves", tmp_path / "page.html").read_text()
    assert "k: features that the probe reads" in page
    assert "Best latents" in page


def test_the_report_shows_the_tokens_where_a_latent_is_strongest(tmp_path: Path) -> None:
    model, task = pk.load_model("agreement-gpt2"), pk.load_task("agreement", limit=60)
    sae = an_sae(1, d=model.cfg.d_model)
    with torch.no_grad():
        sae.W_enc.div_(20)
    store = pk.extract(model, task, points="resid_pre", layers=1, position="all", out=tmp_path / "s", progress=False)
    store.encode(sae, keep=True)
    latents = pk.load_activations(tmp_path / "s").encode()
    results = pk.train_probes(latents, position="last", probe="k-sparse", quick=True, progress=False)
    results.save(tmp_path / "s" / "results" / "r")
    page = pk.write_report(tmp_path / "s" / "results" / "r", tmp_path / "page.html").read_text()
    best = results.meta["best_latents"]["latents"][0]
    values = latents["latents.1"][:, best["latent"]]
    row = int(values.argmax())
    example = int(np.searchsorted(np.cumsum(store.layout.counts()), row, side="right"))
    assert store.layout.characters is not None
    start, stop = store.layout.characters[row].tolist()
    text = str(store.inputs[example])
    assert f"[{text[start:stop]}]" in page
    assert f"{float(values[row]):.3g}" in page


def test_curves_of_other_rows_or_autoencoders_are_no_curve_by_k(curves: ProbeCurves) -> None:
    first = curves_by_k([*curves.values()])[1]
    other_sae = pk.train_probes(some_acts().encode(an_sae(1, seed=3)), probe="k-sparse-4", quick=True, progress=False)
    other_seed = pk.train_probes(some_acts().encode(an_sae(1)), probe="k-sparse-4", seed=3, quick=True, progress=False)
    same = pk.train_probes(some_acts().encode(an_sae(1)), probe="k-sparse-4", quick=True, progress=False)
    assert not curves_by_k([first, other_sae])
    assert not curves_by_k([first, other_seed])
    assert [*curves_by_k([first, same])] == [1, 4]
    renamed = dataclasses.replace(same, meta={**same.meta, "task": "another"})
    assert not curves_by_k([first, renamed])


def test_the_picture_of_nested_folds_has_the_scores_of_the_procedure() -> None:
    latents = some_acts().encode([an_sae(0), an_sae(1), an_sae(2)])
    several = pk.train_probes(latents, probes=["k-sparse-1", "k-sparse-4"], folds=3, C=1.0, controls=0, progress=False)
    by_k = curves_by_k([*several.values()])
    (line,) = [mark for mark in k_chart(by_k).marks if isinstance(mark, Series)]
    assert line.ys == tuple(curve.estimate[0] for curve in by_k.values())
    assert line.name == "k-sparse probe, nested folds"


def test_a_report_of_other_runs_too_has_the_score_by_k(curves: ProbeCurves, tmp_path: Path) -> None:
    curves.save(tmp_path / "by_k")
    other = pk.train_probes(some_acts(), quick=True, progress=False)
    other.save(tmp_path / "other")
    page = pk.write_report([tmp_path / "by_k", tmp_path / "other"], tmp_path / "page.html").read_text()
    assert "Score by k" in page
    assert "is chosen on validation" in page
