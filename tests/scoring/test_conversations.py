"""Thresholds held per conversation: what they let through, when alarms go off, and that `Monitor` agrees."""

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from damage import correct_hashes

from probekit import Monitor, ProbeResults, extract, train_probes
from probekit.errors import DataError, UsageError
from probekit.evaluation.results.row_scores import RISES_AT, RISES_TO, TOKENS
from probekit.evaluation.scores.rates import rate_of, threshold_for
from probekit.models.families.gpt2 import GPT2, GPT2Config
from probekit.scoring.probe import is_each_token
from probekit.scoring.threshold import choose_threshold, threshold_text
from probekit.tasks.base import Task

FPR = 0.1
HOW: dict[str, dict[str, Any]] = {
    "max": {"aggregate": "max", "C": 0.1},
    "softmax": {"aggregate": "softmax", "C": 0.1},
    "multimax": {"probe": "multimax", "C": 0.1},
    "tokens": {"probe": "logistic", "C": 0.1, "position": "all"},
}


@pytest.fixture(scope="module")
def model() -> GPT2:
    cfg = GPT2Config(d_model=16, n_heads=2, d_mlp=16, n_layers=2, n_ctx=40, d_vocab=23, bos_token_id=0, init_std=0.3)
    return GPT2(cfg).init_weights(0).eval()


@pytest.fixture(scope="module")
def task() -> Task:
    """Half of the texts have the word 1, at any place."""
    rng = np.random.default_rng(0)
    inputs = [rng.integers(2, 23, size=rng.integers(3, 30)).tolist() for _ in range(480)]
    y = rng.integers(2, size=480)
    for ids, label in zip(inputs, y, strict=True):
        if label:
            ids[rng.integers(len(ids))] = 1
    splits = np.array(["train", "validation", "validation", "test"])[np.arange(480) % 4]
    return Task("one word", inputs, {"has it": y}, {"has it": ["no", "yes"]}, splits)


@pytest.fixture(scope="module")
def acts(model: GPT2, task: Task) -> Any:
    return extract(model, task, points="resid_pre", layers=1, position="all", bos=False)


@pytest.fixture(scope="module")
def results(acts: Any) -> dict[str, ProbeResults]:
    plain: dict[str, Any] = {"quick": True, "baselines": False, "intervals": False}
    return {name: train_probes(acts, **how, **plain) for name, how in HOW.items()}


def running(results: ProbeResults, acts: Any, texts: np.ndarray) -> list[np.ndarray]:
    """The score of each text up to each token, from the probe alone."""
    probe, every = results.best.probe, acts.per_text(results.best.place)
    if not probe.of_sequences:
        return [probe.decision_function(every[i]) for i in texts]
    return [probe.decision_function([every[i][: t + 1] for t in range(len(every[i]))]) for i in texts]


def chosen(results: ProbeResults, **more: Any) -> Any:
    own = {"each_token": is_each_token(results.meta, results.best.probe), **more}
    return choose_threshold(results.rows, results.best.place, FPR, **own)


@pytest.mark.parametrize("how", HOW)
def test_the_threshold_is_that_of_the_highest_score_of_each_negative_conversation(how, results, acts, task) -> None:
    found, y = chosen(results[how], base_rate=0.01), np.asarray(task.labels["has it"])
    one, test = np.flatnonzero(task.splits == "validation"), np.flatnonzero(task.splits == "test")
    tops = np.array([max(own) for own in running(results[how], acts, one)])
    assert found.of == "conversation"
    assert found.value == pytest.approx(threshold_for(tops, y[one], FPR).value, rel=1e-9)
    assert found.negatives == (y[one] == 0).sum()
    share = (tops[y[one] == 0] >= found.value - 1e-9).mean()
    assert FPR - 1 / found.negatives < share <= FPR
    scores = running(results[how], acts, test)
    alarm = [next((t for t, score in enumerate(own) if score >= found.value - 1e-9), None) for own in scores]
    rung = np.array([at is not None for at in alarm])
    for k, rate in ((1, found.tpr), (0, found.test_fpr)):
        assert rate == rate_of(rung[y[test] == k], np.flatnonzero(y[test] == k))
    early = [
        len(own) - 1 - at for own, at, label in zip(scores, alarm, y[test], strict=True) if label and at is not None
    ]
    assert (found.lead.alarms, found.lead.median) == (len(early), np.median(early))
    assert [found.lead.low, found.lead.high] == np.percentile(early, [25, 75]).tolist()
    assert found.precision is not None
    line = threshold_text(found, "yes")
    assert f"its {len(early)} alarms go off {np.median(early):g} token" in line
    assert "running score at any token >= " in line
    if results[how].best.probe.of_sequences:
        last = np.array([own[-1] for own in running(results[how], acts, one)])
        own: Any = threshold_for(last, y[one], FPR).value
        assert found.final.hits == sum(
            one[-1] >= own - 1e-9 for one, label in zip(scores, y[test], strict=True) if label
        )
    else:
        assert found.final is None


@pytest.mark.parametrize("how", HOW)
def test_single_scores_have_their_own_threshold(how, results) -> None:
    """It is lower, and of conversations more would be flagged by it."""
    single, whole = chosen(results[how], fpr_of="score"), chosen(results[how])
    rows, place = results[how].rows, results[how].best.place
    one = rows.splits == "validation"
    assert single.value == threshold_for(rows.scores[place][one], rows.labels[one], FPR).value
    assert (single.of, single.lead, single.final) == ("token" if how == "tokens" else "text", None, None)
    assert single.value <= whole.value
    if how in ("tokens", "softmax"):
        assert single.value < whole.value


@pytest.mark.parametrize("how", HOW)
def test_a_monitor_raises_as_many_false_alarms_as_validation_allows(how, results, model, task) -> None:
    """In forwards over the very texts that chose the threshold."""
    y, one = task.labels["has it"], np.flatnonzero(task.splits == "validation")
    with Monitor(model, results[how], fpr=FPR, prompt=True) as monitor, torch.no_grad():
        for i in one:
            model(torch.tensor([task.inputs[i]]))
    found = chosen(results[how])
    assert monitor.probes[0].threshold == found.value
    negative = [text for text, i in zip(monitor.texts, one, strict=True) if y[i] == 0]
    tops = np.array([text.running[monitor.probes[0].name].max for text in negative])
    assert not (np.abs(tops - found.value) < 1e-5).sum() > 1  # one is the threshold itself
    assert abs(sum(bool(text.alarms) for text in negative) - found.flagged) <= 1
    with Monitor(model, results[how], fpr=FPR, fpr_of="score") as single:
        assert single.probes[0].threshold == chosen(results[how], fpr_of="score").value


@pytest.mark.parametrize("how", ["max", "softmax", "multimax"])
def test_score_flags_texts_whose_alarm_goes_off_and_says_where(how, results, acts, model, task) -> None:
    test = np.flatnonzero(task.splits == "test")
    found = results[how].score(model, [task.inputs[i] for i in test], fpr=FPR)
    threshold = chosen(results[how]).value
    for scores, flagged, at, after in zip(
        running(results[how], acts, test), found.flagged, found.alarm_at, found.before_end, strict=True
    ):
        close = np.abs(scores - threshold).min() < 1e-5
        expected = next((t for t, score in enumerate(scores) if score >= threshold), None)
        assert close or (flagged, at) == (expected is not None, expected)
        assert (after is None) == (at is None)
        assert at is None or after == len(scores) - 1 - at
    frame = found.to_frame()
    assert {"flagged", "alarm_at", "before_end"} <= set(frame.columns)
    assert found.meta["threshold"]["lead"]["alarms"] > 0
    assert "None" not in found.summary()
    single = results[how].score(model, [task.inputs[i] for i in test], fpr=FPR, fpr_of="score")
    assert single.alarm_at is None
    assert (single.flagged == (single.scores >= single.meta["threshold"]["value"])).all()
    assert "the rate is of final scores" in single.summary()


def test_an_alarm_is_counted_from_the_first_token_of_the_text(model, task) -> None:
    """Also where the probe reads a part of it."""
    part = train_probes(
        extract(model, task, points="resid_pre", layers=1, position="2:", bos=False, on_bad_row="skip"),
        aggregate="max", C=0.1, quick=True, baselines=False, intervals=False,
    )  # fmt: skip
    new = [[5, 6, 1, 7, 8, 9], [5, 6, 7, 8, 9, 1]]
    found = part.score(model, new, fpr=0.5)
    whole = [part.best.probe.decision_function([acts_of(model, ids)[2 : t + 1] for t in range(2, 6)]) for ids in new]
    for scores, at in zip(whole, found.alarm_at, strict=True):
        rung = np.flatnonzero(scores >= found.meta["threshold"]["value"])
        assert at == (2 + rung[0] if len(rung) else None)
    assert found.flagged.any()


def acts_of(model: GPT2, ids: list[int]) -> np.ndarray:
    with torch.no_grad():
        return model.run_with_cache(torch.tensor([ids]), points="resid_pre.1")[1]["resid_pre.1"][0].double().numpy()


def test_tokens_of_one_text_that_differ_in_class_are_no_conversation(results, acts) -> None:
    rows, place = results["tokens"].rows, results["tokens"].best.place
    mixed = replace(rows, labels=np.arange(len(rows.labels)) % 2)
    found = choose_threshold(mixed, place, FPR, each_token=True)
    assert (found.of, found.lead) == ("token", None)
    with pytest.raises(UsageError, match=r"validation conversations of the first class, the lowest .* got 0\.10%"):
        choose_threshold(rows, place, 0.001, each_token=True)


def test_running_scores_are_saved_and_read_again(results, tmp_path) -> None:
    one = results["softmax"]
    one.save(tmp_path / "r")
    rows, again = one.rows, ProbeResults.load(tmp_path / "r").rows
    assert rows is not None
    assert again is not None
    assert list(again.rises) == list(rows.rises) == [one.best.place]
    for name, values in vars(rows.rises[one.best.place]).items():
        np.testing.assert_array_equal(getattr(again.rises[one.best.place], name), values)
    older = replace(one, rows=replace(rows, rises={}))
    assert chosen(older).of == "text"
    assert "rises" not in str(pq.read_schema(results["tokens"].save(tmp_path / "t") / "predictions.parquet").names)


def changed(table: pa.Table, name: str, cells: Any) -> pa.Table:
    return table.set_column(table.column_names.index(name), name, pa.array(cells))


@pytest.mark.parametrize("flaw", ["later", "falling", "empty", "no list", "no lengths", "half", "other lists"])
def test_rises_that_are_none_are_refused(results, tmp_path, flaw) -> None:
    file = results["max"].save(tmp_path / "r") / "predictions.parquet"
    table, place = pq.read_table(file), results["max"].best.place
    at, to = (table.column(prefix + place).to_pylist() for prefix in (RISES_AT, RISES_TO))
    row = next(i for i, own in enumerate(at) if len(own) > 1)
    at[row] = {"later": [0, 99, *at[row][2:]], "empty": []}.get(flaw, at[row])
    to[row] = {"falling": to[row][::-1], "empty": [], "other lists": to[row][:-1]}.get(flaw, to[row])
    table = changed(table, RISES_AT + place, [0] * len(at) if flaw == "no list" else at)
    table = changed(table, RISES_TO + place, to)
    table = table.drop_columns({"no lengths": [TOKENS], "half": [RISES_TO + place]}.get(flaw, []))
    before = file.read_bytes()
    pq.write_table(table, file)
    assert correct_hashes(tmp_path / "r", file, before)
    with pytest.raises(DataError, match=r"predictions.parquet.*train again"):
        ProbeResults.load(tmp_path / "r")
