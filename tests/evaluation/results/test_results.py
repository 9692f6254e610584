import copy
import dataclasses
import json
import re
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import ttest_1samp

from probekit.activations.activations import ActivationSet
from probekit.errors import DataError
from probekit.evaluation import ProbeResults
from probekit.evaluation.compare.lead import lead, optimism
from probekit.evaluation.results.report import GIVE_WAY, MOST_NOTES, every_note, footnotes
from probekit.evaluation.results.verdict import chance_of
from probekit.evaluation.scores.bootstrap import Bootstrap
from probekit.evaluation.scores.metrics import Predictions
from probekit.probes import LogisticProbe
from probekit.results.table import COLUMNS
from probekit.verbs.train_probes import train_probes

HOSTILE = 'a<script>alert("x")</script>\x1b[31m‮&'


@pytest.fixture(scope="module")
def trained(world):
    words = [f"text {i} is number {i % 19}" for i in range(300)]
    acts, noise = world(inputs=words), world(seed=3)
    return train_probes(acts, C=[0.01, 1], random_init=ActivationSet(dict(noise), acts.task, noise.meta))


@pytest.fixture
def results(trained):
    """A copy for each test, trained once."""
    return copy.deepcopy(trained)


def with_meta(results, **changes):
    return dataclasses.replace(results, meta={**results.meta, **changes})


def test_a_choice_at_the_edge_of_the_grid_is_said(results):
    """A curve cut off by its grid measures the grid; the smallest C is no such edge, for less fits nothing."""
    at_edge = [dataclasses.replace(layer, C=1.0, tried=[(0.01, 0.5), (1.0, 0.9)]) for layer in results.layers]
    inside = [dataclasses.replace(layer, C=0.01) for layer in results.layers]
    text = dataclasses.replace(results, layers=at_edge).summary()
    for place in ("resid_pre.0", "resid_pre.1", "resid_pre.2", "resid_pre.3", "resid_post.3 (output)"):
        assert f"{place} ^" in text
    assert "^ largest C of the grid: extend it (--C)" in text
    assert "^" not in dataclasses.replace(results, layers=inside).summary()
    tied = [dataclasses.replace(layer, C=1.0, tried=[(0.01, 0.9), (1.0, 0.9)]) for layer in results.layers]
    assert "^" not in dataclasses.replace(results, layers=tied).summary()


def test_what_rounds_to_zero_has_no_sign(results):
    tiny = dataclasses.replace(results.layers[0], selectivity=-0.0001)
    lines = dataclasses.replace(results, layers=[tiny, *results.layers[1:]]).summary()
    assert "-0.000" not in lines
    assert "0.000" in lines


def test_fits_whose_certificate_bounds_nothing_are_saved_and_marked(world, tmp_path, monkeypatch):
    fit_many = LogisticProbe.fit_many

    def hopeless(self, X, problems):
        probes = fit_many(self, X, problems)
        for probe in probes:
            probe.converged_, probe.gap_ = False, float("inf")
        return probes

    monkeypatch.setattr(LogisticProbe, "fit_many", hopeless)
    results = train_probes(world(), layers=[0, 1], C=[1], controls=0, codelength=False)
    results.save(tmp_path / "r")
    loaded = ProbeResults.load(tmp_path / "r")
    assert loaded == results
    assert [(layer.converged, layer.gap) for layer in loaded.layers] == [(False, None)] * 2
    assert "Not converged: resid_pre.0, resid_pre.1" in loaded.summary()


def test_saved_and_loaded_results_are_the_same(results, world, tmp_path):
    acts = world()
    assert results.save(tmp_path / "r") == tmp_path / "r"
    names = sorted(str(p.relative_to(tmp_path / "r")) for p in (tmp_path / "r").rglob("*") if p.is_file())
    assert names == sorted(
        ["results.json", "results.csv", "predictions.parquet", "training_activations.safetensors"]
        + [f"probes/{layer.place}.{ending}" for layer in results.layers for ending in ("json", "safetensors")]
    )
    loaded = ProbeResults.load(tmp_path / "r")
    assert loaded == results
    pd.testing.assert_frame_equal(loaded.to_frame(), results.to_frame())
    assert loaded.summary() == results.summary()
    for one, other in zip(results.layers, loaded.layers, strict=True):
        X = acts[one.point, one.layer]
        np.testing.assert_array_equal(other.probe.decision_function(X), one.probe.decision_function(X))


@pytest.mark.parametrize("probe", ["ridge", "mean-diff"])
def test_other_probes_come_back_too(world, probe, tmp_path):
    results = train_probes(world(n_classes=3), probe=probe, layers="0,2", baselines=False)
    results.save(tmp_path)
    assert ProbeResults.load(tmp_path) == results


def test_saving_twice_writes_the_same_bytes(results, tmp_path):
    for folder in ("a", "b", "b"):
        results.save(tmp_path / folder)
    for path in (tmp_path / "a").rglob("*"):
        if path.is_file():
            assert path.read_bytes() == (tmp_path / "b" / path.relative_to(tmp_path / "a")).read_bytes()


def test_damaged_results_are_refused(results, tmp_path):
    with pytest.raises(DataError, match="missing"):
        ProbeResults.load(tmp_path)
    results.save(tmp_path)
    path = tmp_path / "results.json"
    good = path.read_text()
    for bad, message in [
        ("{", "could not read"),
        ("[]", "not a file of results"),
        (good.replace('"baselines"', '"b"'), "damaged at baselines: expected a list, got nothing"),
        (good.replace('"point": "resid_pre"', '"point": "../../x"'), "expected the name of a point"),
    ]:
        path.write_text(bad)
        with pytest.raises(DataError, match=message):
            ProbeResults.load(tmp_path)
    path.write_text(good)
    results.layers[0].probe.save(tmp_path / "probes" / "resid_pre.1")
    with pytest.raises(DataError, match=r"resid_pre\.1.*not the one of these results"):
        ProbeResults.load(tmp_path)


def test_the_frame_is_tidy(results, tmp_path):
    frame = results.to_frame()
    assert list(frame.columns) == list(COLUMNS)
    shown = [*results.layers, *results.random_init, *results.baselines]
    metrics = sum(len(values) for result in shown for values in result.metrics.values())
    # selectivity, bits of three codes, compression, gain and the control of each place; the lead and the joint p; and
    # of each place two rates of the ROC curve that its negatives are too few for
    assert len(frame) == metrics + 5 * 7 + 2 + 5 * 2
    few = frame[frame["value"].isna() & frame["metric"].str.startswith("roc_tpr")]
    negatives = [int((results.rows.labels[results.rows.splits == "test"] == 0).sum())] * 5
    assert few["note"].str.extract(r"of which there are (\d+)")[0].astype(int).tolist() == 2 * negatives
    assert set(few["metric"]) == {"roc_tpr_0.001", "roc_tpr_0.01"}
    assert set(frame["kind"]) == {"probe", "control", "baseline", "random-init", "lead", "curve"}
    assert not frame.duplicated(["kind", "name", "place", "split", "metric"]).any()
    bands = frame.dropna(subset="band_low")
    assert bands["metric"].tolist() == ["accuracy"] * 5
    assert (bands.eval("band_low <= value <= band_high")).all()
    known = frame.drop(few.index)
    assert known["value"].notna().equals(known["kind"] != "curve")  # of which there is a p-value alone
    tested = frame.dropna(subset="p_value")
    assert tested["p_value"].tolist() == [layer.p_value for layer in results.layers]
    assert set(tested["chance"]) == {chance_of(results)}
    assert not frame["low"].notna()[frame["split"] != "test"].any()
    assert frame["low"].notna()[(frame["split"] == "test") & (frame["metric"] == "auroc")].all()
    assert (frame.dropna(subset="low").eval("low <= value <= high")).all()
    row = frame.query("kind == 'probe' and place == 'resid_post.3' and split == 'test' and metric == 'auroc'").iloc[0]
    assert (row["kind"], row["name"], row["point"], row["layer"]) == ("probe", "logistic", "resid_post", 3)
    assert row["value"] == results.layers[-1].metrics["test"]["auroc"]
    results.save(tmp_path)
    written = pd.read_csv(tmp_path / "results.csv")
    np.testing.assert_array_equal(written["value"], frame["value"])


def test_the_frame_holds_everything_that_the_table_shows(results):
    frame = results.to_frame()
    header, *lines = [re.split(r"\s{2,}", line.strip(" ")) for line in results.summary().splitlines()[3:9]]
    assert header == [
        *("layer", "C", "validation", "test accuracy", "95% interval", "control", "selectivity"),
        *("bits", "compression", "random init"),
    ]
    for layer, line in zip(results.layers, lines, strict=True):
        own = frame[(frame["place"] == layer.place)]
        test = own[own["split"] == "test"].set_index(["kind", "metric"])
        code = own[own["split"] == "train"].set_index("metric")["value"]
        probe = test.loc["probe", "accuracy"]
        within = "[{:.3f}, {:.3f}]".format(*probe[["low", "high"]])
        validation = own[(own["split"] == "validation") & (own["metric"] == "accuracy") & (own["kind"] == "probe")]
        assert line[1:] == [
            f"{probe['C']:g}",
            f"{validation['value'].item():.3f}",
            f"{probe['value']:.3f}",
            within,
            f"{test.loc['control', 'accuracy']['value']:.3f}",
            f"{test.loc['probe', 'selectivity']['value']:z.3f}",
            f"{code['codelength_bits']:,.0f}",
            f"{code['compression']:.2f}",
            f"{test.loc['random-init', 'accuracy']['value']:.3f}",
        ]
        marks = {"*": probe["selected"], "=": probe["in_best_set"], "!": not probe["converged"], "^": probe["at_edge"]}
        assert {mark for mark, is_there in marks.items() if is_there} == set(line[0]) & set(marks)
    lead = frame[frame["kind"] == "lead"].iloc[0]
    assert f"Best minus the best baseline ({lead['name']}): {lead['value']:+z.3f}" in results.summary()
    joint = frame[frame["kind"] == "curve"].iloc[0]
    assert joint["p_corrected"] == results.meta["p_max"]


def test_the_summary_is_a_table_with_the_choice_and_how_it_was_made(results):
    text = results.summary()
    lines = text.splitlines()
    assert lines[0] == "Decoding kind from unnamed (planted): resid_pre, last token"
    marked = [line for line in lines if line.startswith("*")]
    assert len(marked) == 1
    assert results.best.place in marked[0]
    for result in [*results.layers, *results.baselines]:
        assert f"{result.metrics['test']['accuracy']:.3f}" in text
    assert "resid_post.3 (output)" in text
    assert "majority" in text
    assert "bag-of-words" in text
    assert "random init" in text
    assert "selectivity" in text
    assert " bits" in text
    (explained,) = [line for line in lines if line.startswith("Marks: ")]
    assert "* selected on validation; = statistically tied with the best on test (95%, all layers jointly)" in explained
    assert "; layer and C selected on validation." in text
    assert lines[3].split()[:6] == ["layer", "C", "validation", "test", "accuracy", "95%"]
    table = lines[3 : lines.index(explained)]
    assert len({line.index("]") for line in table[1:]}) == 1


def test_the_summary_claims_no_choice_that_was_not_made(world):
    acts = world()
    assert "; layer selected on validation." in train_probes(acts, probe="mean-diff", baselines=False).summary()
    assert "; C selected on validation." in train_probes(acts, layers=2, baselines=False).summary()
    assert "nothing was selected" in train_probes(acts, layers=2, C=1, baselines=False).summary()


def test_what_did_not_converge_is_said(results):
    late = dataclasses.replace(results.layers[1], converged=False)
    mixed = dataclasses.replace(results, layers=[results.layers[0], late, *results.layers[2:]])
    for text in (mixed.summary(), mixed._repr_html_()):
        assert "resid_pre.1 !" in text
        assert "Not converged: resid_pre.1" in text
    assert "onverged" not in results.summary()


def test_hostile_names_reach_neither_terminal_nor_page(results):
    hostile = with_meta(results, model=HOSTILE, task=HOSTILE, label=HOSTILE, position=HOSTILE)
    assert all(c.isprintable() or c == "\n" for c in hostile.summary())
    page = hostile._repr_html_()
    assert "<script" not in page
    assert "\x1b" not in page
    tags: list[str] = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attrs: tags.append(tag)
    parser.feed(page)
    assert set(tags) <= {"div", "p", "b", "table", "thead", "tbody", "tr", "th", "td"}
    assert results.best.place in re.search(r"font-weight:bold\"><td[^>]*>([^<]*)", page).group(1)  # pyright: ignore


def test_what_a_file_of_results_says_reaches_no_terminal(results, tmp_path):
    path = results.save(tmp_path) / "results.json"
    body = json.loads(path.read_text())
    body["baselines"][0]["name"] = body["meta"]["lead"]["baseline"] = HOSTILE
    body["meta"]["audit"]["findings"] = [HOSTILE]
    body["meta"]["optimism"]["layer"] = body["meta"]["control"]["type"] = HOSTILE
    path.write_text(json.dumps(body))
    loaded = ProbeResults.load(tmp_path)
    assert all(c.isprintable() or c == "\n" for c in loaded.summary())
    assert all(c.isprintable() for c in loaded._repr_html_())
    assert "<script" not in loaded._repr_html_()
    table = loaded.summary().split("Marks")[0].splitlines()[3:]
    assert len({line.index("]") for line in table if "]" in line and "31m" not in line}) == 1


def test_a_headline_that_is_not_there_and_an_older_format_are_said(results, tmp_path):
    path = results.save(tmp_path) / "results.json"
    good = json.loads(path.read_text())
    for wrong in ("\x1b[31m", ["accuracy"], None, 1):
        path.write_text(json.dumps({**good, "meta": {**good["meta"], "headline": wrong}}))
        with pytest.raises(DataError, match=r"at meta\.headline: expected (one of accuracy, .*auroc, .*r2|a text)"):
            ProbeResults.load(tmp_path)
    path.write_text(json.dumps({**good, "meta": {**good["meta"], "headline": "r2"}}))
    with pytest.raises(DataError, match=r"at layers\[0\]\.metrics\.validation: expected the headline, r2"):
        ProbeResults.load(tmp_path)
    path.write_text(json.dumps({**good, "format": "probekit.results/1"}))
    with pytest.raises(DataError, match=r"older format of results \(probekit\.results/1"):
        ProbeResults.load(tmp_path)


def test_of_equals_on_test_the_chosen_place_is_no_optimism(results):
    layers = [dataclasses.replace(x, metrics={**x.metrics, "test": {"accuracy": 0.9}}) for x in results.layers]
    assert optimism(layers, layers[2], "accuracy", 0.9) == {"layer": layers[2].place, "value": 0.9, "over": 0.0}


def test_a_procedure_without_an_interval_is_shown(results):
    whole = {"metrics": {"accuracy": 0.75}, "intervals": {}, "layers": []}
    text = with_meta(results, procedure=whole, folds=3).summary()
    assert "Quote: nested cross-validation accuracy 0.750; layer and C" in text


def test_the_lead_over_the_best_baseline_is_that_of_shared_resamples(results, world):
    told = results.meta["lead"]
    values = {b.name: b.metrics["test"]["accuracy"] for b in results.baselines}
    assert values[told["baseline"]] == max(values.values())
    assert told["over"] == pytest.approx(results.best.metrics["test"]["accuracy"] - max(values.values()))
    assert told["interval"][0] < told["over"] < told["interval"][1]
    line = f"Best minus the best baseline ({told['baseline']}): {told['over']:+.3f}, 95% interval ["
    assert line in results.summary()
    one = train_probes(world(), layers=1, C=1, controls=0, codelength=False, baselines=False)
    assert one.meta["lead"] is None


def test_the_report_says_that_the_embedding_is_no_baseline_of_itself(results):
    said = "The best place is the embedding itself, so the embedding is not one of these baselines."
    assert said not in results.summary()
    embedding = dataclasses.replace(results.baselines[0], name="embedding")
    own = ProbeResults(results.layers[results.layers.index(results.best) :], [embedding], results.meta)
    assert said in own.summary()


def test_a_paired_difference_has_the_interval_of_a_paired_t_test():
    rng = np.random.default_rng(0)
    truth = rng.integers(2, size=400)
    one, other = (np.where(rng.random(400) < p, truth, 1 - truth) for p in (0.8, 0.6))
    said = [Predictions(truth, p, p * 1.0, 2) for p in (one, other)]
    told: Any = lead(said[0], [("length", said[1])], "accuracy", Bootstrap(400))
    difference = (one == truth) * 1.0 - (other == truth)
    low, high = ttest_1samp(difference, 0).confidence_interval(0.95)
    assert told["over"] == pytest.approx(difference.mean())
    assert told["interval"] == pytest.approx([low, high], abs=0.006)


def test_json_is_strict(results, tmp_path):
    broken = dataclasses.replace(results.layers[0], metrics={**results.layers[0].metrics, "test": {"accuracy": np.nan}})
    with pytest.raises((ValueError, KeyError)):
        dataclasses.replace(results, layers=[broken]).save(tmp_path)
    assert not (tmp_path / "results.json").exists()
    results.save(tmp_path)
    json.loads((tmp_path / "results.json").read_text(), parse_constant=pytest.fail)


def test_repr_is_one_line(results):
    assert repr(results).startswith("ProbeResults(5 layers; best on validation resid_")
    assert "\n" not in repr(results)


def test_the_footer_has_six_lines_at_most_and_names_what_it_leaves_out(results):
    late = [dataclasses.replace(layer, converged=False) for layer in results.layers]
    audit = {**results.meta["audit"], "findings": ["one", "two", "three", "four", "five"]}
    full = dataclasses.replace(results, layers=late, meta={**results.meta, "audit": audit})
    assert len(footnotes(results)) == MOST_NOTES == 6
    notes = footnotes(full)
    assert len(notes) == MOST_NOTES
    assert notes[0].startswith("Quote: ")
    assert "Audit: one; two; three; four; five." in notes
    left = [note.subject for note in every_note(full) if note.text not in notes and note.subject not in GIVE_WAY]
    assert notes[-1].endswith(f": {', '.join(left)}.")


def test_the_unit_of_the_control_task_stays_in_the_footer_beside_an_audit(results):
    audit = {**results.meta["audit"], "findings": ["one"]}
    notes = footnotes(dataclasses.replace(results, meta={**results.meta, "audit": audit}))
    assert any(note.startswith("Control task: a random label for each distinct ") for note in notes)
    assert notes[-1].endswith(": selection on test, compression.")


def test_a_lead_without_an_interval_is_not_said_to_be_paired(results):
    lead = {**results.meta["lead"], "interval": None}
    note = footnotes(dataclasses.replace(results, meta={**results.meta, "lead": lead}))[1]
    assert note.endswith(f"({lead['baseline']}): {lead['over']:+z.3f}.")


def test_an_audit_of_an_older_version_is_shown_by_its_lines(results):
    audit = {name: value for name, value in results.meta["audit"].items() if name != "findings"}
    older = with_meta(results, audit={**audit, "lines": ["3 of the 9 test texts also stand in train"]})
    assert "Audit: 3 of the 9 test texts also stand in train." in footnotes(older)


def test_probes_of_a_stack_of_layers_come_back_and_are_replaced(results, tmp_path):
    """Points of an encoder-decoder have a dot in their names."""
    layers = [dataclasses.replace(layer, point=f"encoder.{layer.point}") for layer in results.layers]
    meta = {**results.meta, "point": "encoder.resid_pre"}
    stacked = dataclasses.replace(results, layers=layers, meta=meta, random_init=[], rows=None, spread=None)
    for _ in range(2):
        stacked.save(tmp_path)
    assert ProbeResults.load(tmp_path) == stacked


@pytest.mark.parametrize(
    "change",
    [
        lambda body: body.update(layers=5),
        lambda body: body["layers"][0].update(metrics=5),
        lambda body: body["layers"][0].update(late="probe"),
        lambda body: body["layers"][0].update(tried=[[1]]),
        lambda body: body["baselines"][0].update(intervals={"accuracy": ["low", "high"]}),
        lambda body: body["baselines"].append(None),
        lambda body: body.update(meta=[]),
        lambda body: body["meta"].update(n=5),
        lambda body: body["meta"].pop("model"),
    ],
)
def test_results_of_other_types_are_refused(results, tmp_path, change):
    results.save(tmp_path)
    path = tmp_path / "results.json"
    body = json.loads(path.read_text())
    change(body)
    path.write_text(json.dumps(body))
    with pytest.raises(DataError, match="damaged at"):
        ProbeResults.load(tmp_path)


def test_results_nested_a_hundred_thousand_deep_are_refused(results, tmp_path):
    results.save(tmp_path)
    for path in [tmp_path / "results.json", *(tmp_path / "probes").glob("*.json")]:
        good = path.read_text()
        path.write_text("[" * 100_000)
        with pytest.raises(DataError, match="nested too deeply"):
            ProbeResults.load(tmp_path)
        path.write_text(good)


def test_the_note_of_the_roc_curve_has_the_values_of_the_frame_and_says_what_is_missing(results):
    (note,) = [note.text for note in every_note(results) if note.subject == "ROC curve"]
    best = results.best
    low, high = best.intervals["roc_tpr_0.05"]
    value = best.metrics["test"]["roc_tpr_0.05"]
    assert f"<NA> at 0.1% FPR, <NA> at 1% FPR, {value:.3f} [{low:.3f}, {high:.3f}] at 5% FPR." in note
    negatives = int((results.rows.labels[results.rows.splits == "test"] == 0).sum())
    assert f"1% needs 100 test rows of the first class, of which there are {negatives}." in note
    older = dataclasses.replace(results, meta={key: x for key, x in results.meta.items() if key != "counts"})
    assert "<NA>" not in "".join(note.text for note in every_note(older))
