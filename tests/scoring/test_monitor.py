"""A monitor's scores against those of the whole text, run at once; its alarms against the scores."""

from typing import Any

import numpy as np
import pytest
import torch
from models.adapter.wrapped import wrapped
from tiny_configs import tiny_configs, tiny_model

from probekit import Monitor
from probekit.errors import DataError, UsageError
from probekit.interventions import add
from probekit.models.families import family_of
from probekit.models.families.transformer import Transformer
from probekit.probes import (
    AggregateProbe,
    AttentionProbe,
    LogisticProbe,
    MeanDifferenceProbe,
    MLPProbe,
    RidgeRegressionProbe,
)
from probekit.scoring.watched import Alarm, WatchedText

PROMPTS = [[7, 3, 9, 9, 2], [4], [11, 30, 8, 1, 1, 6]]
PLACE = "resid_pre.2"
SAMPLED = {"max_new_tokens": 9, "temperature": 1.0, "seed": 3}
CAUSAL = [
    name
    for name, cfg in tiny_configs().items()
    if family_of(cfg).model.causal and not issubclass(family_of(cfg).model, Transformer)
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
        assert close(scores(text), probe.decision_function(activations(model, text.tokens[:-1])))


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

    def fail(alarm: Alarm) -> None:
        raise RuntimeError(alarm.name)

    with pytest.raises(RuntimeError, match=PLACE), Monitor(gpt2, probe, PLACE, threshold=-1e9, on_alarm=fail):
        gpt2.generate(PROMPTS, **SAMPLED)
    assert not any(point.hooked for point in gpt2.points.values())


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


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize(
    "kind",
    [
        AttentionProbe(C=1.0, n_random=1),
        *(AggregateProbe("ridge", how) for how in ("mean", "max", "softmax", "last")),
    ],
    ids=lambda probe: getattr(probe, "aggregate", "attention"),
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
    assert len(monitor.texts) == 5
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
        ("give threshold= or fpr= too", probe, {"place": PLACE, "on_alarm": print}),
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


def test_activations_that_are_not_finite_do_not_pass_in_silence(probe: Any) -> None:
    """A comparison with NaN is false, so a monitor that went on would never raise an alarm."""
    model = tiny_model("gpt2")
    broken = [(PLACE, lambda x, hook: x * float("nan"))]
    with pytest.raises(DataError, match="NaN or infinity"), model.hooks(broken), Monitor(model, probe, PLACE):
        model.generate(PROMPTS, max_new_tokens=2)
