"""A monitor's scores against those of the whole text, run at once; its alarms against the scores."""

from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from models.adapter.wrapped import wrapped
from tiny_configs import new_model, tiny_configs, tiny_model

from probekit import Monitor, ProbeResults, extract, train_probes
from probekit.errors import DataError, ResumeMismatch, UsageError
from probekit.interventions import add
from probekit.models.families import family_of
from probekit.models.families.transformer import Transformer
from probekit.options.curve import AGGREGATES
from probekit.probes import (
    AggregateProbe,
    AttentionProbe,
    LogisticProbe,
    MeanDifferenceProbe,
    MLPProbe,
    MultiMaxProbe,
    RidgeRegressionProbe,
)
from probekit.scoring.calibrate import calibrated
from probekit.scoring.watched import Alarm, WatchedText
from probekit.tasks.base import Task

PROMPTS = [[7, 3, 9, 9, 2], [4], [11, 30, 8, 1, 1, 6]]
PLACE = "resid_pre.2"
SAMPLED = {"max_new_tokens": 9, "temperature": 1.0, "seed": 3}
CAUSAL = [
    name
    for name, cfg in tiny_configs().items()
    if getattr(cfg, "causal", family_of(cfg).model.causal) and not issubclass(family_of(cfg).model, Transformer)
]
WRAPPED = ["gptj", "bloom", "opt", "mamba", "cohere2"]
TOLERANCE = 1e-5


def fitted(probe: Any, width: int = 32, classes: int = 2, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    labels = np.arange(120) % classes
    return probe.fit(rng.normal(size=(120, width)) + 0.3 * labels[:, None], labels)


def fitted_to_texts(probe: Any, classes: int = 2) -> Any:
    rng = np.random.default_rng(0)
    labels = np.arange(60) % classes
    return probe.fit([rng.normal(size=(3 + i % 4, 32)) + 0.3 * label for i, label in enumerate(labels)], labels)


@pytest.fixture(scope="module")
def probe() -> Any:
    return fitted(LogisticProbe())


@pytest.fixture(scope="module")
def gpt2() -> Any:
    return tiny_model("gpt2")


def activations(model: Any, tokens: list[int], place: str = PLACE) -> np.ndarray:
    """The place's activations of a text that is run at once, float64 [L, D]."""
    with torch.no_grad():
        _, cache = model.run_with_cache(torch.tensor([tokens]), points=place)
    return cache[place][0].flatten(1).double().numpy()


def scores(text: WatchedText, name: str = PLACE) -> np.ndarray:
    return np.array(text.scores[name])


def close(found: np.ndarray, wanted: np.ndarray) -> bool:
    return found.shape == wanted.shape and bool((np.abs(found - wanted) <= TOLERANCE * (1 + np.abs(wanted))).all())


@pytest.mark.parametrize("name", CAUSAL)
def test_scores_equal_those_of_the_whole_text(name: str, probe: Any) -> None:
    """In every family, whatever is in the batch; the last token of a text is written and never read."""
    model = tiny_model(name)
    assert model.size_of("D", "resid_pre") == 32
    with Monitor(model, probe, PLACE) as monitor:
        written = model.generate(PROMPTS, **SAMPLED, stop_tokens=[5])
    assert len(monitor.texts) == len(PROMPTS)
    for text, prompt, new in zip(monitor.texts, PROMPTS, written, strict=True):
        assert text.tokens == prompt + new
        assert text.n_prompt == len(prompt)
        x_ND = activations(model, text.tokens[:-1])
        added = np.abs(x_ND) @ np.abs(probe.coef_[0])  # rounding is relative to what the score is the sum of
        assert (np.abs(scores(text) - probe.decision_function(x_ND)) <= TOLERANCE * (1 + added)).all()


@pytest.mark.parametrize("kind", WRAPPED)
def test_scores_of_adapted_models_equal_those_of_the_whole_text(kind: str, probe: Any) -> None:
    model = wrapped(kind)
    with Monitor(model, probe, PLACE) as monitor:
        written = model.generate(PROMPTS, **SAMPLED, stop_tokens=[])
    for text, prompt, new in zip(monitor.texts, PROMPTS, written, strict=True):
        assert text.tokens == prompt + new
        assert close(scores(text), probe.decision_function(activations(model, text.tokens[:-1])))


def test_scores_of_an_encoder_decoder_are_of_its_decoder(probe: Any) -> None:
    model = tiny_model("marian")
    place = "decoder.resid_pre.1"
    with Monitor(model, probe, place) as monitor:
        written = model.generate(PROMPTS, **SAMPLED, stop_tokens=[])
    start = model.cfg.decoder_start_token_id
    for text, source, new in zip(monitor.texts, PROMPTS, written, strict=True):
        assert text.tokens == [start, *new]
        target = torch.tensor([text.tokens[:-1]])
        with torch.no_grad():
            _, cache = model.run_with_cache(torch.tensor([source]), target, points=place)
        assert close(scores(text, place), probe.decision_function(cache[place][0].double().numpy()))
    with pytest.raises(UsageError, match="reads the source once"):
        Monitor(model, probe, "encoder.resid_pre.1")


@pytest.mark.parametrize("use_cache", [True, False])
def test_rows_that_leave_the_batch_take_no_other_rows_scores(gpt2: Any, probe: Any, use_cache: bool) -> None:
    with Monitor(gpt2, probe, PLACE) as together:
        written = gpt2.generate(PROMPTS, **SAMPLED, stop_tokens=[*range(0, 50, 4)], use_cache=use_cache)
    assert len({len(new) for new in written}) > 1
    for i, prompt in enumerate(PROMPTS):
        with Monitor(gpt2, probe, PLACE) as alone:
            how = {**SAMPLED, "seed": SAMPLED["seed"] + i}
            assert gpt2.generate(prompt, **how, stop_tokens=[*range(0, 50, 4)]) == written[i]
        assert close(scores(together.texts[i]), scores(alone.texts[0]))


def test_a_monitor_changes_nothing_and_leaves_nothing_behind(gpt2: Any, probe: Any) -> None:
    plain = gpt2.generate(PROMPTS, **SAMPLED, stop_tokens=[])
    with Monitor(gpt2, probe, PLACE, threshold=0.0) as monitor:
        assert gpt2.generate(PROMPTS, **SAMPLED, stop_tokens=[]) == plain
    assert not any(point.hooked for point in gpt2.points.values())
    before = len(monitor.texts)
    gpt2.generate(PROMPTS, **SAMPLED, stop_tokens=[])
    assert len(monitor.texts) == before
    broken = [(PLACE, lambda x, hook: x * float("nan"))]
    with pytest.raises(DataError, match="NaN or infinity"), gpt2.hooks(broken), Monitor(gpt2, probe, PLACE):
        gpt2.generate(PROMPTS, max_new_tokens=2)  # a comparison with NaN is false: no alarm would ever be raised
    assert not any(point.hooked for point in gpt2.points.values())


@pytest.mark.parametrize("kind", ["gpt2", "opt"])
def test_an_error_of_the_callback_ends_the_call(kind: str, probe: Any) -> None:
    """An adapted model, which runs a row again where its class's cache fails, does not take it for such a failure."""
    model = tiny_model(kind) if kind == "gpt2" else wrapped(kind)

    def fail(alarm: Alarm) -> None:
        raise ValueError(alarm.name)

    with Monitor(model, probe, PLACE, threshold=-1e9, on_alarm=fail) as monitor:
        with pytest.raises(ValueError, match=PLACE):
            model.generate(PROMPTS[0], max_new_tokens=4, stop_tokens=[])
        with pytest.raises(ValueError, match=PLACE):
            model.generate(PROMPTS[0], max_new_tokens=4, stop_tokens=[])
    assert [alarm.text for alarm in monitor.alarms] == [0, 1]


def test_several_probes_at_several_places(gpt2: Any) -> None:
    probes = {
        "a": (fitted(LogisticProbe()), "resid_pre.1"),
        "b": (fitted(MeanDifferenceProbe(), seed=1), "resid_pre.1"),
        "mlp": (fitted(MLPProbe(hidden=4, max_epochs=3)), "resid_pre.1"),
        "heads": (fitted(LogisticProbe(), seed=2), ("z", 0)),
        "number": (RidgeRegressionProbe().fit(np.eye(32), np.arange(32.0)), "mlp_out.2"),
    }
    with Monitor(gpt2, probes, threshold={"b": 0.0}) as monitor:
        gpt2.generate(PROMPTS, **SAMPLED, stop_tokens=[])
    for text in monitor.texts:
        for name, (probe, place) in probes.items():
            where = place if isinstance(place, str) else "z.0"
            x = activations(gpt2, text.tokens[:-1], where)
            wanted = probe.predict(x) if name == "number" else probe.decision_function(x)
            assert close(scores(text, name), wanted)
    assert {alarm.name for alarm in monitor.alarms} <= {"b"}


OWN: dict[str, dict[str, int]] = {"rolling-max": {"window": 4}, "ema-max": {"window": 4}, "top-k": {"k": 3}}


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize(
    "kind",
    [
        AttentionProbe(C=1.0, n_random=1),
        AttentionProbe(C=1.0, n_random=1, heads=3),
        MultiMaxProbe(C=1.0, n_random=1, heads=2),
        *(AggregateProbe("ridge", how, **OWN.get(how, {})) for how in AGGREGATES),
    ],
    ids=lambda probe: getattr(probe, "aggregate", type(probe).__name__),
)
def test_probes_over_a_sequence_score_the_text_so_far(gpt2: Any, kind: Any, classes: int) -> None:
    probe = fitted_to_texts(kind, classes)
    target = probe.label_names_[1]
    with Monitor(gpt2, probe, PLACE, target=target) as monitor:
        gpt2.generate(PROMPTS, **SAMPLED, stop_tokens=[])
    for text in monitor.texts:
        x = activations(gpt2, text.tokens[:-1])
        decided = probe.decision_function([x[: t + 1] for t in range(len(x))])
        own = decided if classes == 2 else decided[:, 1] - np.delete(decided, 1, axis=1).max(1)
        assert close(scores(text), own)


def test_the_class_that_is_watched(gpt2: Any) -> None:
    two, three = fitted(LogisticProbe()), fitted(LogisticProbe(), classes=3)
    two.label_names_, three.label_names_ = ["calm", "angry"], ["a", "b", "c"]
    text: dict[str, WatchedText] = {}
    for target in ("calm", "angry"):
        with Monitor(gpt2, two, PLACE, target=target) as monitor:
            gpt2.generate(PROMPTS[0], **SAMPLED, stop_tokens=[])
        text[target] = monitor.texts[0]
    assert (scores(text["calm"]) == -scores(text["angry"])).all()
    with Monitor(gpt2, three, PLACE, target="c") as monitor:
        gpt2.generate(PROMPTS[0], **SAMPLED, stop_tokens=[])
    x = activations(gpt2, monitor.texts[0].tokens[:-1])
    assert ((scores(monitor.texts[0]) > 0) == (three.predict_labels(x) == "c")).all()
    with pytest.raises(UsageError, match="name the class to watch for"):
        Monitor(gpt2, three, PLACE)
    with pytest.raises(UsageError, match="no class 'd'"):
        Monitor(gpt2, three, PLACE, target="d")


@pytest.mark.parametrize("prompt", [False, True])
@pytest.mark.parametrize("each", [False, True])
def test_an_alarm_is_a_score_at_or_above_the_threshold(gpt2: Any, probe: Any, each: bool, prompt: bool) -> None:
    with Monitor(gpt2, probe, PLACE) as silent:
        gpt2.generate(PROMPTS, **SAMPLED, stop_tokens=[])
    threshold = float(np.median([score for text in silent.texts for score in text.scores[PLACE]]))
    heard: list[Alarm] = []
    with Monitor(gpt2, probe, PLACE, threshold=threshold, on_alarm=heard.append, each=each, prompt=prompt) as monitor:
        gpt2.generate(PROMPTS, **SAMPLED, stop_tokens=[])
    for text in monitor.texts:
        own, first = scores(text), 0 if prompt else text.n_prompt
        wanted = [i for i in range(len(own)) if i >= first and own[i] >= threshold]
        assert [alarm.index for alarm in text.alarms] == (wanted if each else wanted[:1])
        for alarm in text.alarms:
            assert alarm.score == own[alarm.index] >= alarm.threshold
            assert alarm.token == text.tokens[alarm.index]
            assert alarm.generated == (alarm.index >= text.n_prompt)
        running = text.running[PLACE]
        assert (running.n, running.last, running.max) == (len(own[first:]), own[-1], own[first:].max())
        assert running.mean == pytest.approx(own[first:].mean())
    assert sorted(heard, key=lambda alarm: (alarm.text, alarm.index)) == monitor.alarms != []


def test_an_alarm_ends_its_text_and_no_other(gpt2: Any, probe: Any) -> None:
    plain = gpt2.generate(PROMPTS, **SAMPLED, stop_tokens=[])
    with Monitor(gpt2, probe, PLACE) as silent:
        gpt2.generate(PROMPTS, **SAMPLED, stop_tokens=[])
    tops = [max(text.scores[PLACE][text.n_prompt :]) for text in silent.texts]
    loud = int(np.argmax(tops))
    threshold = tops[loud]
    with Monitor(gpt2, probe, PLACE, threshold=threshold, on_alarm=lambda alarm: True) as monitor:
        written = gpt2.generate(PROMPTS, **SAMPLED, stop_tokens=[])
    (alarm,) = monitor.alarms
    assert alarm.text == loud
    at = alarm.index - len(PROMPTS[loud]) + 1
    for i, (new, whole) in enumerate(zip(written, plain, strict=True)):
        assert new == (whole[:at] if i == loud else whole)
    assert len(monitor.texts[loud].scores[PLACE]) == len(monitor.texts[loud].tokens)
    with Monitor(gpt2, probe, PLACE, threshold=-1e9, on_alarm=lambda alarm: True, prompt=True):
        assert gpt2.generate(PROMPTS, **SAMPLED) == [[], [], []]


def test_edits_come_before_what_is_read(gpt2: Any, probe: Any) -> None:
    edits = {PLACE: add(torch.ones(32), 2.0)}
    with gpt2.edited(edits), Monitor(gpt2, probe, PLACE) as monitor:
        gpt2.generate(PROMPTS, **SAMPLED, stop_tokens=[])
    for text in monitor.texts:
        x = activations(gpt2, text.tokens[:-1]) + 2.0
        with gpt2.edited(edits):
            edited = activations(gpt2, text.tokens[:-1])
        assert np.allclose(x, edited, atol=1e-5)
        assert close(scores(text), probe.decision_function(edited))


def test_calls_follow_one_another_and_plain_forwards_count(gpt2: Any, probe: Any) -> None:
    monitor = Monitor(gpt2, probe, PLACE)
    with monitor:
        gpt2.generate([1, 2], max_new_tokens=2, stop_tokens=[])
        gpt2.generate([1, 2, 3], max_new_tokens=2, stop_tokens=[])
        tokens = torch.tensor([[4, 5, 6, 0], [7, 8, 9, 10]])
        gpt2(tokens, attention_mask=torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]]))
    assert [len(text.scores[PLACE]) for text in monitor.texts] == [3, 4, 3, 4]
    assert close(scores(monitor.texts[2]), probe.decision_function(activations(gpt2, [4, 5, 6])))
    with monitor:
        gpt2.generate([1], max_new_tokens=2, stop_tokens=[])
    assert [text.index for text in monitor.texts] == [0, 1, 2, 3, 4]
    assert [text.number for text in monitor.texts] == [0, 0, 0, 1, 0]
    frame = monitor.to_frame()
    assert len(frame) == sum(len(text.scores[PLACE]) for text in monitor.texts)
    assert frame.score.tolist() == [score for text in monitor.texts for score in text.scores[PLACE]]
    monitor.clear()
    assert monitor.texts == []


def test_what_cannot_be_watched(gpt2: Any, probe: Any) -> None:
    cases: list[tuple[str, Any, dict[str, Any]]] = [
        ("needs its place", probe, {}),
        ("32 features, and mlp_post.1 of gpt2 has 80", probe, {"place": "mlp_post.1"}),
        ("one place with a row for each token", probe, {"place": "attn_pattern.1"}),
        ("one place with a row for each token", probe, {"place": "resid_pre"}),
        ("expected results of train_probes", 5, {"place": PLACE}),
        ("needs threshold or fpr", probe, {"place": PLACE, "on_alarm": print}),
        ("a threshold is a finite number", probe, {"place": PLACE, "threshold": float("nan")}),
        ("a threshold is a finite number", probe, {"place": PLACE, "threshold": "high"}),
        ("the name of no probe", {"a": (probe, PLACE)}, {"threshold": {"b": 1.0}}),
        ("have their own places", {"a": (probe, PLACE)}, {"place": PLACE}),
        ("got none", {}, {}),
        ("layer 9 is not in 0..2", probe, {"place": "resid_pre.9"}),
    ]
    for message, given, how in cases:
        with pytest.raises(UsageError, match=message):
            Monitor(gpt2, given, **how)
    several = RidgeRegressionProbe().fit(np.eye(32), np.arange(64.0).reshape(32, 2))
    with pytest.raises(UsageError, match="one of several"):
        Monitor(gpt2, several, PLACE)
    with pytest.raises(UsageError, match="no text was watched"):
        Monitor(gpt2, probe, PLACE).plot()


@pytest.fixture(scope="module")
def results(gpt2: Any) -> ProbeResults:
    """Whether the last id of a list is large."""
    rng = np.random.default_rng(0)
    ids = [rng.integers(3, 40, size=rng.integers(3, 6)).tolist() for _ in range(160)]
    task = Task(
        "made",
        ids,
        labels={"large": np.array([int(one[-1] > 20) for one in ids])},
        label_names={"large": ["no", "yes"]},
        splits=np.array(["train", "validation", "validation", "test"])[np.arange(160) % 4],
    )
    return train_probes(extract(gpt2, task), quick=True, intervals=False, baselines=False, C=1.0)


def test_results_bring_place_threshold_and_probabilities(gpt2: Any, results: ProbeResults) -> None:
    best = results.best
    with Monitor(gpt2, {"all": results, "one": results.best, "no": (results, 1)}, fpr=0.1) as monitor:
        gpt2.generate(PROMPTS, **SAMPLED, stop_tokens=[])
    frame = monitor.to_frame()
    assert [one.place for one in monitor.probes] == [(best.point, best.layer)] * 2 + [("resid_pre", 1)]
    rows = results.rows
    assert rows is not None
    negatives = rows.scores[best.place][(rows.splits == "validation") & (rows.labels == 0)]
    threshold = monitor.probes[0].threshold
    assert threshold is not None
    assert 0 < (negatives >= threshold).mean() <= 0.1
    every = frame[frame.probe == "all"]
    assert every.score.tolist() == frame[frame.probe == "one"].score.tolist()
    calibration = monitor.probes[0].calibration
    assert calibration is not None
    assert np.allclose(every.probability, calibrated(calibration, every.score.to_numpy())[:, 1], rtol=0, atol=1e-12)
    with Monitor(gpt2, results, target="no") as opposite:
        gpt2.generate(PROMPTS, **SAMPLED, stop_tokens=[])
    mirrored = opposite.to_frame()
    assert np.allclose(mirrored.score, -every.score, rtol=0, atol=1e-12)
    assert np.allclose(mirrored.probability, 1 - every.probability, rtol=0, atol=1e-12)
    with pytest.raises(UsageError, match="no probe of '9'"):
        Monitor(gpt2, results, 9)


def test_results_are_of_this_model_type_and_edits(gpt2: Any, results: ProbeResults) -> None:
    other, narrow = new_model("gpt2"), new_model("gpt2").to(torch.bfloat16)
    with torch.no_grad():
        other.embed.weight[0, 0] += 1
    for model, what in ((other, "weights"), (narrow, "type .trained in float32, loaded in bfloat16")):
        for given in (results, results.best):
            with pytest.raises(ResumeMismatch, match=f"different {what}"):
                Monitor(model, given)
        assert Monitor(model, results, any_model=True).texts == []
    origin = {**results.meta["activations"], "edited": "add at resid_pre.1"}
    edited = ProbeResults([*results.layers], [], {**results.meta, "activations": origin})
    with pytest.raises(ResumeMismatch, match=r"trained under edits \(add at resid_pre.1\)"), Monitor(gpt2, edited):
        pass
    with gpt2.edited({"resid_pre.1": add(torch.ones(32))}), Monitor(gpt2, edited):
        pass
    joined = ProbeResults([*results.layers], [], {**results.meta, "reading": {"places": [["resid_pre", 0]]}})
    with pytest.raises(UsageError, match="several side by side"):
        Monitor(gpt2, joined)


def test_the_picture_has_the_scores_the_threshold_and_the_alarms(gpt2: Any, probe: Any) -> None:
    with Monitor(gpt2, probe, PLACE) as silent:
        gpt2.generate(PROMPTS[0], **SAMPLED, stop_tokens=[])
    new = silent.texts[0].scores[PLACE][silent.texts[0].n_prompt :]
    with Monitor(gpt2, probe, PLACE, threshold=max(new)) as monitor:
        gpt2.generate(PROMPTS[0], **SAMPLED, stop_tokens=[])
    curve, level, alarm = monitor.plot(ax=Figure().subplots()).lines
    assert np.asarray(curve.get_ydata()).tolist() == monitor.texts[0].scores[PLACE]
    assert set(np.asarray(level.get_ydata()).tolist()) == {max(new)}
    assert np.asarray(alarm.get_xdata()).tolist() == [monitor.alarms[0].index]


def test_a_text_is_followed_from_its_first_token(gpt2: Any, probe: Any) -> None:
    def clear(alarm: Alarm) -> None:
        monitor.clear()

    with Monitor(gpt2, probe, PLACE, threshold=-1e9, on_alarm=clear) as monitor:
        with pytest.raises(UsageError, match="clear it between generations"):
            gpt2.generate(PROMPTS[0], max_new_tokens=4, stop_tokens=[])
        gpt2.generate(PROMPTS[0], max_new_tokens=1, stop_tokens=[])
    assert len(monitor.texts) == 1
