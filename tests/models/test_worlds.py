"""The worlds' models: what they learn is the truth, how they are judged is exact generation, and they come by name.

The models here are far smaller than the worlds' own, and hardly trained; those have their figures in
`experiments/README.md`.
"""

from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from small_worlds import shrunk, use_small_worlds

import probekit as pk
from probekit.errors import UsageError
from probekit.models import load, outline, worlds
from probekit.models.gpt2 import GPT2Config
from probekit.models.settings import WORLD_PROMPTS
from probekit.models.training import IGNORE, Example, TrainingSettings
from probekit.models.worlds import WORLDS, World, figures, train_world, world
from probekit.tasks import BUILTIN_TASKS, counting

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
CONFIGS = Path(__file__).parents[2] / "configs"
NAMES = tuple(WORLDS)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    use_small_worlds(monkeypatch, tmp_path)
    return tmp_path


def words(one: World, ids: list[int]) -> list[str]:
    return [one.vocabulary[i] for i in ids]


def pairs(one: World, example: Example) -> list[tuple[str, str | None]]:
    """Each word that is read, and the one to be said there (None: none)."""
    said = [None if target == IGNORE else one.vocabulary[target] for target in example.targets]
    return list(zip(words(one, example.tokens), said, strict=True))


def test_names_vocabularies_and_tasks_fit():
    assert NAMES == load.WORLD_MODELS
    for one in WORLDS.values():
        assert one.task in BUILTIN_TASKS
        assert world(one.name) is world(one.task) is one
        assert len(set(one.vocabulary)) == len(one.vocabulary) == one.config.d_vocab
        assert one.vocabulary[0] in ("<eos>", "<pad>", "[PAD]")  # what stands behind shorter texts of a batch
        assert sum(weight.numel() for weight in shrunk(one).untrained(0).parameters()) < 20_000
    with pytest.raises(UsageError, match="no world 'countin'; did you mean counting"):
        world("countin")


@pytest.mark.parametrize("name", NAMES)
def test_the_texts_of_the_task_are_what_the_model_has_learned_to_read(name):
    one = WORLDS[name]
    task = pk.load_task(one.task)
    longest = max(len(e.source or e.tokens) for e in [*one.learned(300, 0), *one.asked(300, 0)])
    assert longest <= one.config.n_ctx
    for text in task.inputs[:200]:
        assert 0 < len(one.tokenizer.encode(str(text), bos=name == "spans-bert")) <= longest
    if task.targets is not None:
        assert all(len(one.tokenizer.encode(str(text))) <= one.config.n_ctx for text in task.targets)


def test_counting_says_the_next_number_and_stops_at_42():
    one = WORLDS["counting-gpt"]
    for example in [*one.learned(200, 1), *one.asked(1, 0)]:
        for read, said in pairs(one, example):
            assert said == ("<eos>" if int(read) >= 42 else str(int(read) + 1))
    first = {int(words(one, e.tokens)[0]) for e in one.asked(1, 0)}
    assert first.isdisjoint(int(words(one, e.tokens)[0]) for e in one.learned(3000, 1))
    assert len(first) == 21


def test_ranking_says_the_ranks():
    one = WORLDS["ranking-transformer"]
    learned, asked = one.learned(300, 1), one.asked(300, 2)
    for example in learned + asked:
        assert example.source is not None
        x = np.array([int(word) for word in words(one, example.source)])
        ranks = [str(r) for r in np.tril(x[None, :] <= x[:, None], -1).sum(1)]
        assert pairs(one, example) == list(zip(["<bos>", *ranks], [*ranks, "<eos>"], strict=True))
    assert not {str(e.source) for e in learned} & {str(e.source) for e in asked}


def test_spans_says_hidden_numbers_and_the_side_of_the_mean():
    one = WORLDS["spans-bert"]
    learned, asked = one.learned(300, 1), one.asked(300, 2)
    for example in learned + asked:
        (cls, none), *middle, (sep, also_none) = pairs(one, example)
        assert (cls, none, sep, also_none) == ("[CLS]", None, "[SEP]", None)
        assert all((said is None) == (read != "[MASK]") for read, said in middle)
        numbers = [int(said or read) for read, said in middle]
        assert numbers == [*range(numbers[0], numbers[0] + len(numbers))]
        assert example.label == (np.mean(numbers) > 15.5)
    assert not {str(e.tokens) for e in learned} & {str(e.tokens) for e in asked}


def test_dialogue_says_the_answers_and_nothing_else():
    one = WORLDS["dialogue-gpt"]
    learned, asked = one.learned(200, 1), one.asked(200, 2)
    for example in learned + asked:
        read, said = zip(*pairs(one, example), strict=True)
        parts = " ".join(read).split(" <sep>")
        assert parts.pop() == ""
        turns = len(parts) // 2
        for question, answer in zip(parts[::2], parts[1::2], strict=True):
            a, first, b, second, c = question.split()
            assert int(a) + int(first + b) + int(second + c) == int(answer)
        expected = [word for answer in parts[1::2] for word in (answer.strip(), "<sep>")]
        assert [word for word in said if word is not None] == [*expected, "<eos>"]
        assert all(read[k + 1] == word for k, word in enumerate(said[:-1]) if word is not None)
        assert len(read) == 8 * turns
    texts = [[" ".join(words(one, e.tokens)) for e in part] for part in (learned, asked)]
    questions = [{q.strip() for text in part for q in text.split(" <sep>")[:-1:2]} for part in texts]
    assert questions[0].isdisjoint(questions[1])


def test_brackets_says_the_verdict():
    one = WORLDS["brackets-gpt"]
    learned, asked = one.learned(300, 1), one.asked(300, 2)
    for example in learned + asked:
        read, said = zip(*pairs(one, example), strict=True)
        *word, question, verdict = read
        rest = "".join(word)
        while "()" in rest:
            rest = rest.replace("()", "")
        assert (question, verdict) == ("?", "no" if rest else "yes")
        assert said[len(word) :] == (verdict, "<eos>")
    assert all(e.targets[: len(e.tokens) - 2] == [IGNORE] * (len(e.tokens) - 2) for e in asked)
    assert all(e.targets[:-1] == e.tokens[1:] for e in learned)
    assert not {str(e.tokens) for e in learned} & {str(e.tokens) for e in asked}


def test_the_figure_is_that_of_greedy_generation():
    """Counts: a model that is right about some starts and wrong about others."""
    settings = TrainingSettings(steps=90, batch_size=32, learning_rate=3e-3, warm_up_steps=10)
    one = replace(WORLDS["counting-gpt"], settings=settings)
    model = train_world(one).model
    starts = [*counting.starts("validation"), *counting.starts("test")]
    said = model.generate([str(start) for start in starts], max_new_tokens=60)
    right = [f"{start}{more}".split() == counting.words(start)[:-1] for start, more in zip(starts, said, strict=True)]
    assert figures(model, one) == {"exact": sum(right) / len(starts), "n": len(starts)}
    assert any(right)


def test_the_figure_of_labels_is_that_of_the_classes():
    one = shrunk(WORLDS["spans-bert"])
    model = one.untrained(0)
    asked = one.asked(40, [0, 0])
    right = []
    for example in asked:  # one at a time, without padding
        tokens = torch.tensor([example.tokens])
        with torch.no_grad():
            hidden = model(tokens, return_logits=False)
            right.append(int(model.classify(hidden).argmax()) == example.label)  # pyright: ignore[reportCallIssue]
    found = figures(model, one, n=40)
    assert found["label"] == sum(right) / 40
    assert 0 <= found["exact"] <= 1


@pytest.mark.parametrize("name", NAMES)
def test_a_model_is_trained_on_first_use_and_then_found(name, small, monkeypatch, capsys):
    one = worlds.WORLDS[name]
    model = pk.load_model(name, device="cpu")
    first, last = capsys.readouterr().err.splitlines()
    assert first.startswith(f"training {name}, 3 steps; kept in ")
    assert last.startswith(f"{name} has not learned its world: exact ")
    assert last.endswith(" held-out examples, below 99%")
    assert model.name == name
    assert model.source is not None
    assert model.source["name_or_path"] == name
    folder = small / "models" / one.key
    assert model.folder == folder
    files = {path.name for path in folder.iterdir()}
    assert files == {"config.json", "model.safetensors", "tokenizer.json", "training.json"}
    assert [path.name for path in folder.parent.iterdir()] == [one.key]
    assert model.fingerprint() == train_world(one).model.fingerprint()
    monkeypatch.setattr(worlds, "train", lambda *_: pytest.fail("trained twice"))
    assert pk.load_model(name, device="cpu").fingerprint() == model.fingerprint()
    assert capsys.readouterr().err == ""
    assert pk.load_model(folder, device="cpu").fingerprint() == model.fingerprint()


def test_shape_and_random_weights_need_no_training(small, monkeypatch):
    monkeypatch.setattr(worlds, "train", lambda *_: pytest.fail("trained"))
    for name in NAMES:
        shape = outline(name)
        model = pk.load_model(name, device="cpu", random_init=True, seed=3)
        assert shape.name == name
        assert shape.cfg == model.cfg == worlds.WORLDS[name].config
        assert model.source is not None
        assert model.source["name_or_path"] == name
        assert model.tokenizer is not None
    with pytest.raises(UsageError, match="'counting-gpt' is trained here"):
        pk.load_model("counting-gpt", revision="main")


def test_progress_false_says_nothing(small, capsys):
    pk.load_model("counting-gpt", device="cpu", progress=False)
    assert capsys.readouterr() == ("", "")


def test_other_settings_are_another_model():
    one = WORLDS["counting-gpt"]
    others = [
        replace(one, settings=replace(one.settings, seed=1)),
        replace(one, config=GPT2Config(**{**asdict(one.config), "n_layers": 3})),
        replace(one, learned=lambda n, seed: one.learned(n, 7)),
        replace(one, vocabulary=[*one.vocabulary[:-1], "100"]),
    ]
    assert len({one.key, *(other.key for other in others)}) == 5
    assert replace(one).key == one.key


def test_threads_stay_as_they_were():
    before = torch.get_num_threads()
    state = torch.get_rng_state()
    train_world(shrunk(WORLDS["counting-gpt"]))
    assert torch.get_num_threads() == before
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("name", NAMES)
def test_the_prompt_that_is_shown_of_a_world_can_be_read(name):
    one = worlds.world(name)
    assert worlds.world(one.task) is one
    assert 0 < len(one.tokenizer.encode(WORLD_PROMPTS[name], True)) <= one.config.n_ctx
    assert WORLD_PROMPTS[name] in (EXPERIMENTS / "README.md").read_text()


@pytest.mark.parametrize("name", NAMES)
def test_the_config_files_are_the_worlds_settings(name):
    one = WORLDS[name]
    config = yaml.safe_load((CONFIGS / f"{one.task}.yaml").read_text())
    said = {key.replace("-", "_"): value for key, value in config["train-model"].items()}
    assert said.pop("name") == name
    assert replace(TrainingSettings(), **said) == one.settings
    assert (config["extract"]["model"], config["extract"]["dataset"]) == (name, one.task)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "ranking-transformer"])
def test_extract_and_probe(name, small):
    one = worlds.WORLDS[name]
    task = pk.load_task(one.task, limit=None if one.task == "counting" else 64)
    acts = pk.extract(pk.load_model(name, device="cpu"), task, points="resid_pre", progress=False)
    results = pk.train_probes(acts, layers="all", controls=1, codelength=False)
    assert len(results.layers) == 2  # the input of the one block, and its output
