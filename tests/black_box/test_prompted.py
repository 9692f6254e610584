"""The prompted baseline: which rows are asked what, how scores are kept, and whether a model that knows does better."""

from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pytest
from hub_repos import sentences, tiny_gpt2
from sklearn.metrics import roc_auc_score
from store_cases import lasting

import probekit as pk
from probekit.black_box import answers as answering
from probekit.black_box import prompted as prompting
from probekit.black_box.prompts import BUILT_IN
from probekit.errors import DataError, ResumeMismatch, StorageError, UsageError
from probekit.tasks.base import Task

SHORT = "{{ text }} it was"  # the model's context has 64 tokens


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("models") / "tiny"
    path.mkdir()
    for name, data in tiny_gpt2(words=" good bad").items():
        (path / name).write_bytes(data)
    return pk.load_model(path, device="cpu")


@pytest.fixture(scope="module")
def task() -> Task:
    texts = [text for text, _ in sentences(seed=1, n=80)]
    return Task("films", texts, {"kind": np.arange(80) % 2}, {"kind": ["bad", "good"]})


def prompted(task: Any, model: Any, **options: Any) -> Any:
    return pk.prompted_scores(task, model=model, progress=False, **{"prompt": SHORT, **options})


def test_the_rows_that_choose_and_test_are_asked_and_each_whatever_the_others_are(model: Any, task: Task) -> None:
    found = prompted(task, model)
    assert found.ids == [own for own, split in zip(task.ids, task.splits, strict=True) if split != "train"]
    assert found.values.shape == (len(found), 2)
    order = np.random.default_rng(0).permutation(len(task))
    shuffled = prompted(task.subset(order), model)
    again = dict(zip(shuffled.ids, shuffled.values, strict=True))
    np.testing.assert_allclose([again[own] for own in found.ids], found.values, rtol=1e-5, atol=1e-5)
    assert len(prompted(task, model, every_row=True)) == len(task)


def test_the_tokens_are_those_of_the_prompts(model: Any, task: Task) -> None:
    found = prompted(task, model)
    texts = dict(zip(task.ids, task.inputs, strict=True))
    lengths = [len(model.tokenizer.encode(f"{texts[own]} it was", bos=True)) for own in found.ids]
    assert found.tokens.tolist() == lengths


def test_a_template_writes_what_jinja_writes_with_examples_of_train_alone(
    model: Any, task: Task, tmp_path: Path
) -> None:
    text = "{% for s in shots %}{{ s.text }}: {{ s.answer }}. {% endfor %}{{ text }} ({{ answers|join('/') }}):"
    (tmp_path / "p.jinja").write_text(text)
    found = prompted(task, model, prompt=tmp_path / "p.jinja", shots=2, answers=["worse", "better"])
    rows = [task.ids.index(own) for own in found.record["shots"]]
    assert set(task.splits[rows]) == {"train"}
    assert sorted(task.labels["kind"][rows]) == [0, 1]  # one of each class
    answers = ["worse", "better"]
    shots = [{"text": task.inputs[row], "answer": answers[task.labels["kind"][row]]} for row in rows]
    first = task.inputs[task.ids.index(found.ids[0])]
    wanted = jinja2.Template(text).render(shots=shots, text=first, answers=answers)
    assert found.record["first_prompt"] == wanted
    np.testing.assert_array_equal(prompted(task, model, prompt=text, shots=2, answers=answers).values, found.values)
    others = prompted(task, model, prompt=text, shots=2, answers=answers, seed=1)
    assert others.record["shots"] != found.record["shots"]


def test_a_template_that_fails_names_the_example_and_may_not_do_harm(model: Any, task: Task) -> None:
    first = next(own for own, split in zip(task.ids, task.splits, strict=True) if split != "train")
    for template, words in (
        ("{{ text }}{{ 1 / 0 }}", "fails: ZeroDivisionError"),
        ("{{ text.__class__.__mro__ }}", "does what the sandbox forbids"),
        ("{% for i in range(99999) %}{{ text * 999 }}{% endfor %}", "wrote more than"),
    ):
        with pytest.raises(DataError, match=f"example '{first}': the prompt template of this call {words}"):
            prompted(task, model, prompt=template)
    with pytest.raises(DataError, match=f"the prompt of '{first}' is empty"):
        prompted(task, model, prompt="{% if false %}{{ text }}{% endif %}")


def test_the_built_in_prompt_is_its_template(model: Any) -> None:
    labels, splits = {"kind": np.array([0, 1, 0, 1])}, np.array(["test"] * 4)
    task = Task("short", ["a", "b", "c", "d"], labels, {"kind": ["bad", "good"]}, splits=splits)
    found = prompted(task, model, prompt="question", every_row=True)
    given = {"kind": "Text", "text": "a", "question": "Which kind is it: bad or good?"}
    assert found.record["first_prompt"] == jinja2.Template(BUILT_IN, trim_blocks=True).render(**given)
    assert found.record["first_prompt"].endswith("Text: a\nWhich kind is it: bad or good?\nAnswer:")
    asked = prompted(task, model, prompt="question", every_row=True, question="Is it good?").record["first_prompt"]
    assert asked == found.record["first_prompt"].replace("Which kind is it: bad or good?", "Is it good?")


def test_what_was_computed_is_kept_and_resumed(
    model: Any, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompting, "ROWS", 5)
    whole, done = prompted(task, model), []

    def stopping(*args: Any) -> np.ndarray:
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(args)
        return answering.log_probabilities_of(*args)

    with monkeypatch.context() as patch:
        patch.setattr(prompting, "log_probabilities_of", stopping)
        with pytest.raises(KeyboardInterrupt):
            prompted(task, model, out=tmp_path / "p")
    kept = lasting(tmp_path / "p")
    found = prompted(task, model, out=tmp_path / "p")
    np.testing.assert_array_equal(found.values, whole.values)
    assert kept.items() <= lasting(tmp_path / "p").items()
    with monkeypatch.context() as patch:
        patch.setattr(prompting, "log_probabilities_of", lambda *_: 1 / 0)
        np.testing.assert_array_equal(prompted(task, model, out=tmp_path / "p").values, whole.values)
    for other in ({"answers": ["a", "b"]}, {"prompt": "{{ text }} is"}, {"every_row": True}):
        with pytest.raises(ResumeMismatch, match="holds the scores of other prompts"):
            prompted(task, model, out=tmp_path / "p", **other)
    record = tmp_path / "p/00001.json"
    record.write_bytes(record.read_bytes().replace(b"-", b" ", 1))
    with pytest.raises(StorageError, match=r"00001\.json"):
        prompted(task, model, out=tmp_path / "p")


def test_what_cannot_be_asked_is_refused(model: Any, task: Task) -> None:
    acts = pk.extract(model, task, progress=False)
    for given, options, words in (
        (task, {"model": None}, "a task names no model"),
        (acts, {"model": None}, "activations in memory hold no model"),
        (task, {"shots": 2, "every_row": True}, "2 shots come from train"),
        (task, {"shots": 500}, "which has 64 labelled rows"),
        (Task("numbers", ["a", "b"], {"x": np.array([0.5, 1.5])}), {}, "'x' holds numbers"),
        (Task("ids", [[1], [2]], {"x": np.array([0, 1])}), {}, "holds none"),
        ("films", {}, "takes activations, a store or a task"),
    ):
        with pytest.raises(UsageError, match=words):
            prompted(given, **{"model": model, **options})


@pytest.fixture(scope="module")
def honest() -> tuple[Any, Any]:
    """A model that answers whether a noun is alive, truthfully or not, and knows nothing else."""
    model = pk.load_model("honesty-gpt", device="cpu")
    task = pk.load_task("honesty", limit=240)
    return model, pk.extract(model, task, points="resid_pre", add_generation_prompt=True, progress=False)


def auroc(box: Any, acts: Any, label: str, split: str = "test") -> float:
    scores = dict(zip(box.ids, box.values[:, 1] - box.values[:, 0], strict=True))
    rows = np.flatnonzero(acts.splits == split)
    return float(roc_auc_score(acts.labels[label][rows], [scores[acts.ids[i]] for i in rows]))


def test_a_model_that_can_answer_is_right_and_one_that_cannot_is_at_chance(honest: Any) -> None:
    model, acts = honest
    how = {"prompt": "text", "answers": ["no", "yes"]}
    knows, guesses = (prompted(acts, model, label=label, **how) for label in ("answer", "size"))
    assert auroc(knows, acts, "answer") > 0.98
    assert abs(auroc(guesses, acts, "size") - 0.5) < 0.15
    assert knows.name == "prompted"
    results = pk.train_probes(acts, label="answer", C=1.0, black_boxes=knows, quick=True)
    baseline = {one.name: one for one in results.baselines}["prompted"]
    assert baseline.metrics["test"]["accuracy"] > 0.98
    record = results.meta["black_boxes"]["prompted"]
    assert record["over"] == pytest.approx(results.estimate[0] - baseline.metrics["test"]["accuracy"])
    results = pk.train_probes(acts, label="size", C=1.0, black_boxes=guesses, quick=True)
    assert abs({one.name: one for one in results.baselines}["prompted"].metrics["test"]["accuracy"] - 0.5) < 0.15


def test_chats_are_written_as_the_model_s_template_writes_them(honest: Any) -> None:
    """The chats of activations are texts already, which another template may read anew."""
    model, acts = honest
    chats = pk.load_task("honesty", limit=240)
    for template in (None, "inst"):
        how = {"prompt": "text", "answers": ["no", "yes"], "label": "answer", "prompt_template": template}
        own, given = prompted(acts, model, **how), prompted(chats, model, **how)
        np.testing.assert_array_equal(own.values, given.values)
        assert ("[INST]" in own.record["first_prompt"]) == (template == "inst")
    first = next(i for i, split in enumerate(acts.splits) if split != "train")
    assert prompted(acts, model, prompt="text", label="answer").record["first_prompt"] == acts.task.inputs[first]


def test_two_prompts_of_one_model_are_compared_under_two_names(model: Any, task: Task) -> None:
    acts = pk.extract(model, task, progress=False)
    boxes = [prompted(acts, model), prompted(acts, model, prompt="{{ text }} is", name="shorter")]
    assert [one.name for one in boxes] == ["prompted", "shorter"]
    results = pk.train_probes(acts, C=1.0, black_boxes=boxes, quick=True)
    assert [*results.meta["black_boxes"]] == ["prompted", "shorter"]
    with pytest.raises(UsageError, match="not blank"):
        prompted(acts, model, name=" ")


def test_a_prompt_without_the_examples_or_the_question_is_refused(model: Any, task: Task, honest: Any) -> None:
    shown = "{% for s in shots %}{{ s.answer }} {% endfor %}{{ text }} {{ question }}"
    assert (
        prompted(task, model, prompt=shown, shots=2).record["first_prompt"]
        != (prompted(task, model, prompt=shown).record["first_prompt"])
    )
    chats = pk.load_task("honesty", limit=40)
    for given, own, prompt in (
        (task, model, "text"),
        (task, model, SHORT),
        (task, model, "{% if shots %}{% endif %}{{ text }}"),
        (chats, honest[0], "text"),
    ):
        for how, name in (({"shots": 2}, "shots"), ({"question": "Is it?"}, "question")):
            with pytest.raises(UsageError, match=f"shows no {name}"):
                prompted(given, own, prompt=prompt, label=None if given is task else "answer", **how)
    needs = "{{ shots[0].answer + text }} it was"
    assert prompted(task, model, prompt=needs, shots=1).record["shots"]


def test_another_model_has_its_own_name(model: Any, task: Task) -> None:
    acts = pk.extract(model, task, progress=False)
    assert prompted(acts, model).name == "prompted"
    other = pk.load_model("agreement-gpt2", device="cpu", random_init=True)
    nouns = pk.load_task("agreement", limit=20)
    found = pk.prompted_scores(nouns, model=other, prompt="text", answers=["is", "are"], label="number", progress=False)
    assert found.name == f"prompted {other.name}"


@pytest.mark.parametrize(
    ("how", "error", "message"),
    [
        ({"prompt": "{{ txt }} the"}, UsageError, "no name 'txt' in prompts; they find answers, kind, label"),
        ({"prompt": "{% if label %}the{% endif %}"}, UsageError, "every prompt is the same, so no text is asked about"),
    ],
)
def test_prompts_that_ask_nothing_are_refused(model: Any, task: Task, how: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        prompted(task, model, **how)


def test_an_answer_that_the_tokenizer_cannot_write_is_named() -> None:
    model, task = pk.load_model("agreement-gpt2"), pk.load_task("agreement", limit=6)
    with pytest.raises(DataError, match=r"the answer 'zebra': .*give other answers"):
        pk.prompted_scores(task, model=model, prompt="text", answers=["zebra", "are"], progress=False)
