"""Inspect, with its mock model and local files: scores equal those of `score`, and alarms stop what they should.

https://inspect.aisi.org.uk is not in the way of who does without it: these tests are skipped where it is not installed.
"""

import gc
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("inspect_ai", reason="Inspect is not installed: pip install -e '.[inspect]'")
from inspect_ai import Task as Evaluation
from inspect_ai import eval as evaluate
from inspect_ai._util import registry
from inspect_ai.dataset import Sample
from inspect_ai.hooks import hooks
from inspect_ai.model import (
    ChatMessageAssistant,
    ChatMessageSystem,
    ChatMessageUser,
    ModelOutput,
    ModelUsage,
    get_model,
)
from inspect_ai.solver import generate, solver

import probekit as pk
from probekit.errors import UsageError
from probekit.inspect import StopAtAlarm, probe_scorer
from probekit.inspect.samples import SampleProbe, plain_messages
from probekit.options.samples import SampleOptions
from probekit.tasks.base import Task
from tests.latents.test_encode import an_sae

pytest_plugins = ("cli.conftest",)
pytestmark = pytest.mark.filterwarnings(  # what Inspect leaves to its libraries, and open
    "ignore::DeprecationWarning", "ignore:Unclosed <MemoryObject:ResourceWarning"
)
QUICK: dict[str, Any] = {"quick": True, "intervals": False, "baselines": False, "probe": "ridge", "layers": "1,2"}
SPLITS = np.array(["train", "train", "validation", "test"])
TEMPLATE = (
    "{% for m in messages %}<{{ m.role[0] }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<a>{% endif %}"
)
ANSWERS = ["no", "yes it is", "never was", "so it seems"]


def chat(i: int) -> list[dict[str, str]]:
    question = {"role": "user", "content": f"is {i} {'odd' if i % 2 else 'even'}"}
    return [question, {"role": "assistant", "content": f"{ANSWERS[i % 2 + 2 * (i % 3 == 0)]} {i}"}]


def labelled(inputs: list[Any], **more: Any) -> Task:
    n = len(inputs)
    return Task("made", inputs, {"y": np.arange(n) % 2}, {"y": ["no", "yes"]}, SPLITS[np.arange(n) // 2 % 4], **more)


@pytest.fixture(scope="module")
def folder(gpt2_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a chat template of its own."""
    path = tmp_path_factory.mktemp("chatty")
    for file in gpt2_folder.iterdir():
        (path / file.name).write_bytes(file.read_bytes())
    (path / "chat_template.jinja").write_text(TEMPLATE)
    return path


@pytest.fixture(scope="module")
def trained(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """The folder of the results of a probe of 48 chats, or texts, at a position."""
    model = pk.load_model(str(folder))

    def results(position: str, chats: bool = True) -> str:
        inputs: list[Any] = [""] * 48 if chats else [f"{ANSWERS[i % 4]} {i}" for i in range(48)]
        task = labelled(inputs, chats=[chat(i) for i in range(48)] if chats else None)
        out = tmp_path_factory.mktemp("results") / "ridge"
        chosen: dict[str, Any] = {"position": position} if position == "all" else {}
        pk.train_probes(pk.extract(model, task, position=position), **QUICK, **chosen).save(out)
        return str(out)

    return results


@pytest.fixture(scope="module")
def probe(trained: Callable[..., str]) -> str:
    return trained("last@assistant")


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("INSPECT_LOG_DIR", str(tmp_path / "logs"))
    monkeypatch.setenv("INSPECT_DISPLAY", "none")
    yield
    gc.collect()  # streams that Inspect left open, before a test that does not expect their warnings


def sample(i: int) -> Sample:
    return Sample(input=chat(i)[0]["content"], target="yes", id=f"s{i}")


def mock(answers: list[str]) -> Any:
    """Without a usage Inspect would count tokens by a table that it downloads."""
    outputs = [ModelOutput.from_content("mockllm/model", answer) for answer in answers]
    for output in outputs:
        output.usage = ModelUsage()
    return get_model("mockllm/model", custom_outputs=outputs, memoize=False)


def run(numbers: range, scorer: Any, model: Any = None, **more: Any) -> Any:
    answers = [chat(i)[1]["content"] for i in numbers]
    evaluation = Evaluation(dataset=[sample(i) for i in numbers], solver=more.pop("solver", generate()), scorer=scorer)
    (log,) = evaluate(evaluation, model=model or mock(answers), display="none", max_samples=1, **more)
    assert log.status == "success", log.error
    return log


def scores(log: Any) -> list[Any]:
    return [next(iter(one.scores.values())) for one in log.samples]


@pytest.mark.parametrize("position", ["last@assistant", "mean@user", "last"])
def test_a_sample_has_the_score_of_its_chat(trained: Callable[..., str], folder: Path, position: str):
    results = trained(position)
    log = run(range(60, 65), probe_scorer(results, str(folder)))
    wanted = pk.ProbeResults.load(results).score(pk.load_model(str(folder)), [chat(i) for i in range(60, 65)])
    assert wanted.probabilities is not None
    found = scores(log)
    np.testing.assert_allclose([one.value for one in found], wanted.probabilities[:, 1], rtol=1e-5)
    np.testing.assert_allclose([one.metadata["score"] for one in found], wanted.scores, rtol=1e-5, atol=1e-6)
    assert [one.answer for one in found] == list(wanted.predicted)
    (metric,) = [one.metrics["mean"].value for one in log.results.scores]
    assert metric == pytest.approx(wanted.probabilities[:, 1].mean(), rel=1e-5)


def test_the_peak_is_the_highest_token(probe: str, folder: Path):
    model, results = pk.load_model(str(folder)), pk.ProbeResults.load(probe)
    for i, found in zip(range(60, 64), scores(run(range(60, 64), probe_scorer(probe, str(folder)))), strict=True):
        every = results.score(model, [chat(i)], tokens=True)
        peak = found.metadata["peak"]
        assert peak["token"] == every.tokens[peak["index"]]
        ends = np.cumsum([len(token) for token in every.tokens])
        question, answer = chat(i)[0]["content"], chat(i)[1]["content"]
        assert "".join(every.tokens) == f"<u>{question}<a>{answer}"
        spans = {"user": (3, 3 + len(question)), "assistant": (ends[-1] - len(answer), ends[-1])}
        where = {
            t: f"{role} message 1"
            for role, (start, end) in spans.items()
            for t in np.flatnonzero((ends > start) & (ends - [*map(len, every.tokens)] < end)).tolist()
        }
        best = max(where, key=lambda t: every.scores[t])
        assert (peak["index"], peak["where"]) == (best, where[best])
        assert peak["trained"] == bool(every.trained[best])
        assert ascii(peak["token"]) in found.explanation


def test_a_threshold_flags_samples(probe: str, folder: Path):
    values = [one.metadata["score"] for one in scores(run(range(60, 66), probe_scorer(probe, str(folder))))]
    middle = float(np.median(values))
    log = run(range(60, 66), probe_scorer(probe, str(folder), threshold=middle))
    assert [bool(one.value) for one in scores(log)] == [value >= middle for value in values]
    assert log.results.scores[0].metrics["mean"].value == pytest.approx(0.5)
    found = scores(run(range(60, 62), probe_scorer(probe, str(folder), fpr=0.5)))
    wanted = pk.ProbeResults.load(probe).score(pk.load_model(str(folder)), [chat(60)], fpr=0.5).meta["threshold"]
    assert found[0].metadata["threshold"] == wanted["value"]


def test_a_probe_of_plain_texts_reads_the_answer(trained: Callable[..., str], folder: Path):
    results = trained("all", chats=False)
    answers = ["never was 70", "yes it is 71"]
    per_token = pk.ProbeResults.load(results).score(pk.load_model(str(folder)), answers)
    own = [per_token.scores[per_token.ids == name] for name in dict.fromkeys(per_token.ids)]
    both: list[tuple[Any, Any]] = [("max", np.max), ("mean", np.mean)]
    for aggregate, of in both:
        found = scores(run(range(2), probe_scorer(results, str(folder), aggregate=aggregate), mock(answers)))
        np.testing.assert_allclose([one.metadata["score"] for one in found], [of(x) for x in own], rtol=1e-5)


def test_a_sample_that_the_probe_cannot_read_is_unscored(probe: str, folder: Path):
    """An empty answer has no token of the assistant."""
    found = scores(run(range(60, 62), probe_scorer(probe, str(folder)), mock(["", "yes"])))
    assert np.isnan(found[0].value)
    assert found[0].reason == "scoring_failed"
    assert "assistant" in found[0].explanation
    assert np.isfinite(found[1].value)


def test_the_model_writes_what_generate_writes(folder: Path):
    model = pk.load_model(str(folder))
    log = run(range(60, 63), None, f"probekit/{folder}", max_tokens=6)
    assert len(log.samples) == 3
    for i, one in zip(range(60, 63), log.samples, strict=True):
        wanted = model.generate(f"<u>{chat(i)[0]['content']}<a>", max_new_tokens=6)
        assert one.output.completion == wanted
        assert one.output.stop_reason == ("max_tokens" if one.output.usage.output_tokens == 6 else "stop")


def test_an_alarm_stops_the_text_at_its_token(probe: str, folder: Path):
    """The scores of a text without alarms say where one with a threshold must stop."""
    free = run(range(60, 64), None, f"probekit/{folder}", model_args={"probe": probe}, max_tokens=12)
    watched = [one.output.metadata["probe"]["scores"] for one in free.samples]
    assert all(one.output.metadata["alarm"] is None for one in free.samples)
    threshold = float(np.median([max(own[1:-1]) for own in watched]))
    args = {"probe": probe, "threshold": threshold}
    log = run(range(60, 64), None, f"probekit/{folder}", model_args=args, max_tokens=12)
    stopped = 0
    for one, before, own in zip(log.samples, free.samples, watched, strict=True):
        hits = [i for i, score in enumerate(own) if score >= threshold]
        output = one.output
        if not hits:
            assert output.completion == before.output.completion
            continue
        stopped += 1
        assert output.stop_reason == "content_filter"
        assert output.metadata["alarm"]["index"] == hits[0]
        assert output.usage.output_tokens == hits[0] + 1
        np.testing.assert_allclose(output.metadata["probe"]["scores"], own[: hits[0] + 1], rtol=1e-5, atol=1e-6)
        assert before.output.completion.startswith(output.completion)
        assert "reached the threshold" in output.choices[0].stop_details.explanation
    assert 0 < stopped < 4
    told = run(range(60, 64), None, f"probekit/{folder}", model_args={**args, "stop": False}, max_tokens=12)
    assert [one.output.completion for one in told.samples] == [one.output.completion for one in free.samples]
    assert sum(one.output.metadata["alarm"] is not None for one in told.samples) == stopped


def test_what_the_model_does_not_offer_is_refused(probe: str, folder: Path):
    name = f"probekit/{folder}"
    with pytest.raises(UsageError, match="name it with -M probe=RESULTS"):
        get_model(name, threshold=1.0, memoize=False)
    with pytest.raises(UsageError, match="no option 'thresold'"):
        get_model(name, probe=probe, thresold=1.0, memoize=False)
    (log,) = evaluate(
        Evaluation(dataset=[sample(1)], solver=generate()), model=name, display="none", stop_seqs=["x"], max_tokens=2
    )
    assert log.status == "error"
    assert log.error is not None
    assert "have no stop_seqs" in log.error.message


def test_what_a_scorer_and_a_hook_cannot_take_is_refused(probe: str, folder: Path, tmp_path: Path):
    with pytest.raises(UsageError, match="the rate chooses the threshold"):
        probe_scorer(probe, str(folder), fpr=0.1, threshold=1.0)
    names = ["a", "b", "c"]
    task = Task(
        "made",
        [f"{i} is {names[i % 3]}" for i in range(48)],
        {"y": np.arange(48) % 3},
        {"y": names},
        SPLITS[np.arange(48) // 3 % 4],
    )
    pk.train_probes(pk.extract(pk.load_model(str(folder)), task), **QUICK).save(tmp_path / "three")
    with pytest.raises(UsageError, match="take one of two classes"):
        probe_scorer(str(tmp_path / "three"), str(folder))
    with pytest.raises(UsageError, match="and fpr or threshold among its options"):
        type("Alarm", (StopAtAlarm,), {"probe": probe, "model": str(folder)})()


@pytest.fixture
def without_hooks() -> Iterator[None]:
    """Takes out the hooks that a test registers."""
    before = set(registry._registry)
    yield
    for key in set(registry._registry) - before:
        del registry._registry[key]


@pytest.mark.usefixtures("without_hooks")
def test_a_hook_ends_a_sample_before_the_next_call(probe: str, folder: Path):
    @solver
    def talk(turns: int) -> Any:
        async def solve(state: Any, generate: Any) -> Any:
            for _ in range(turns):
                state = await generate(state)
                state.messages.append(ChatMessageUser(content="on"))
            return state

        return solve

    answers = ["no", "yes", "so"]
    model, results = pk.load_model(str(folder)), pk.ProbeResults.load(probe)
    turns = [{"role": "user", "content": chat(60)[0]["content"]}]
    after = []
    for answer in answers:
        turns.append({"role": "assistant", "content": answer})
        turns.append({"role": "user", "content": "on"})
        after.append(float(results.score(model, [turns]).scores[0]))
    first = int(np.argmax(after[:2]))
    line = after[first] if first else max(after[0], after[1])

    own = probe, str(folder)

    @hooks(name="alarm", description="ends a sample")
    class Alarm(StopAtAlarm):
        probe, model = own
        options = {"threshold": line - 1e-6}  # noqa: RUF012

    log = run(range(60, 61), None, mock(answers), solver=talk(3))
    (one,) = log.samples
    assert one.limit.type == "custom"
    assert "raised an alarm: score" in one.limit.reason
    assert sum(message.role == "assistant" for message in one.messages) == first + 1


@pytest.mark.usefixtures("without_hooks")
@pytest.mark.parametrize(("answer", "ends"), [("", False), ("so " * 40, True)])
def test_a_hook_fails_closed(probe: str, folder: Path, answer: str, ends: bool):
    """Messages without a token to read are passed over; those whose newest part is not read end the sample."""

    @solver
    def talk() -> Any:
        async def solve(state: Any, generate: Any) -> Any:
            return await generate(await generate(state))

        return solve

    own = probe, str(folder)

    @hooks(name="alarm", description="ends a sample")
    class Alarm(StopAtAlarm):
        probe, model = own
        options = {"threshold": 1e9}  # noqa: RUF012

    (one,) = run(range(60, 61), None, mock([answer, "yes"]), solver=talk()).samples
    assert (one.limit is not None) == ends
    if ends:
        assert "the newest cannot be read" in one.limit.reason
    assert sum(message.role == "assistant" for message in one.messages) == 2 - ends


def test_a_text_that_is_cut_says_so(trained: Callable[..., str], folder: Path):
    """A probe of users' messages reads what is in the context, and the score tells what was not read."""
    results = trained("mean@user")
    long, short = scores(run(range(60, 62), probe_scorer(results, str(folder)), mock(["so " * 40, "yes"])))
    n_ctx = pk.load_model(str(folder)).cfg.n_ctx
    assert (long.metadata["cut"], short.metadata["cut"]) == (n_ctx, None)
    assert f"only the first {n_ctx} tokens were read" in long.explanation


def test_epochs_are_different_texts_and_their_seeds_are_recorded(folder: Path):
    how = {"temperature": 1.0, "max_tokens": 8, "epochs": 3}
    log = run(range(60, 61), None, f"probekit/{folder}", **how)
    seeds = {one.output.completion: one.output.metadata["seed"] for one in log.samples}
    assert len(set(seeds.values())) == len(seeds) == 3
    for text, seed in seeds.items():
        again = run(range(60, 61), None, f"probekit/{folder}", **{**how, "epochs": 1, "seed": seed})
        assert again.samples[0].output.completion == text


def test_the_autoencoder_is_loaded_once(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    model = pk.load_model(str(folder))
    sae = an_sae(1, d=model.cfg.d_model)
    acts = pk.extract(model, labelled([""] * 48, chats=[chat(i) for i in range(48)]), layers=[1], progress=False)
    results = pk.train_probes(acts.encode(sae), quick=True, baselines=False, C=1.0)
    results.save(tmp_path / "latents")
    loaded = []
    monkeypatch.setattr("probekit.scoring.encoded.load_sae", lambda path: loaded.append(path) or sae)
    known = SampleProbe(str(tmp_path / "latents"), str(folder), SampleOptions(sae="elsewhere"))
    for i in (60, 61):
        wanted = results.score(model, [chat(i)], sae=sae).scores[0]
        assert known.score(chat(i), "").score == pytest.approx(float(wanted), rel=1e-5)
    assert loaded == ["elsewhere"]


def test_messages_of_inspect_are_those_of_templates():
    messages = [ChatMessageSystem(content="s"), ChatMessageUser(content="u"), ChatMessageAssistant(content="a")]
    assert plain_messages(messages) == [{"role": m.role, "content": m.content} for m in messages]


def test_inspect_finds_the_room_by_its_entry_point():
    """In a process of its own, in which nothing was imported from here."""
    code = "import sys; from inspect_ai._util.registry import registry_lookup as find; "
    code += "import probekit; assert 'inspect_ai' not in sys.modules or 'probekit.inspect' not in sys.modules; "
    code += "assert find('scorer', 'probekit/probe_scorer') is not None; print('torch' in sys.modules)"
    import importlib.metadata

    if not any(one.value == "probekit.inspect" for one in importlib.metadata.entry_points(group="inspect_ai")):
        pytest.skip("probekit was installed before it had this entry point: pip install -e . again")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
