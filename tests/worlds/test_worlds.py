"""The worlds' models: how they are judged is exact generation, and they come by name.

The models here are far smaller than the worlds' own, and hardly trained; those have their figures in
`experiments/README.md`.
"""

import importlib
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from small_worlds import shrunk, use_small_worlds

import probekit as pk
from probekit.errors import UsageError
from probekit.models import outline
from probekit.models.positional import sinusoids
from probekit.options import TrainingSettings
from probekit.tasks import BUILTIN_TASKS
from probekit.worlds import MODELS, WORLDS, counting, honesty, train, world
from probekit.worlds.definition import key_of, tokenizer_of, with_config
from probekit.worlds.train import examine, train_world, untrained

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
CONFIGS = Path(__file__).parents[2] / "configs"
NAMES = MODELS
KEYS = {
    "counting-gpt": "counting-gpt-9e7876b5",
    "ranking-transformer": "ranking-transformer-da903fcf",
    "spans-bert": "spans-bert-5919906f",
    "dialogue-gpt": "dialogue-gpt-63201dc3",
    "brackets-gpt": "brackets-gpt-9f3f017f",
    "ballots-gpt": "ballots-gpt-796ec11a",
    "honesty-gpt": "honesty-gpt-deb5ec92",
}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    use_small_worlds(monkeypatch, tmp_path)
    return tmp_path


def test_names_vocabularies_and_tasks_fit():
    for one in map(world, NAMES):
        assert one.task in BUILTIN_TASKS
        assert world(one.name) is world(one.task) is one
        assert len(set(one.vocabulary)) == len(one.vocabulary) == one.make_config().d_vocab
        assert one.vocabulary[0] in ("<eos>", "<pad>", "[PAD]")  # pads the shorter texts of a batch
        assert sum(weight.numel() for weight in untrained(shrunk(one), 0).parameters()) < 20_000
    with pytest.raises(UsageError, match="no world 'countin'; did you mean counting"):
        world("countin")


@pytest.mark.parametrize("name", NAMES)
def test_the_texts_of_the_task_are_what_the_model_has_learned_to_read(name):
    one = world(name)
    task = pk.load_task(one.task)
    longest = max(len(e.source or e.tokens) for e in [*one.examples("train", 300, 0), *one.examples("test", 300, 0)])
    assert longest <= one.make_config().n_ctx
    texts = task.inputs if task.chats is None else [" ".join(honesty.chat_words(chat)) for chat in task.chats]
    for text in texts[:200]:
        assert 0 < len(tokenizer_of(one).encode(str(text), bos=len(one.context) == 2)) <= longest
    if task.targets is not None:
        assert all(len(tokenizer_of(one).encode(str(text))) <= one.make_config().n_ctx for text in task.targets)


def test_the_figure_is_that_of_greedy_generation():
    """Counts: a model that is right about some starts and wrong about others."""
    settings = TrainingSettings(steps=90, batch_size=32, learning_rate=3e-3, warm_up_steps=10)
    one = replace(world("counting-gpt"), settings=settings)
    model = train_world(one).model
    starts = [*counting.starts("validation"), *counting.starts("test")]
    said = model.generate([str(start) for start in starts], max_new_tokens=60)
    right = [f"{start}{more}".split() == counting.words(start)[:-1] for start, more in zip(starts, said, strict=True)]
    assert examine(model, one) == {"exact": sum(right) / len(starts), "n": len(starts)}
    assert any(right)


def test_the_figure_of_labels_is_that_of_the_classes():
    one = shrunk(world("spans-bert"))
    model = untrained(one, 0)
    asked = one.examples("test", 40, [0, 0])
    right = []
    for example in asked:  # one at a time, without padding
        tokens = torch.tensor([example.tokens])
        with torch.no_grad():
            hidden = model(tokens, return_logits=False)
            right.append(int(model.classify(hidden).argmax()) == example.label)  # pyright: ignore[reportCallIssue]
    found = examine(model, one, n=40)
    assert found["label"] == sum(right) / 40
    assert 0 <= found["exact"] <= 1


@pytest.mark.parametrize("name", NAMES)
def test_a_model_is_trained_on_first_use_and_then_found(name, small, monkeypatch, capsys):
    one = world(name)
    model = pk.load_model(name, device="cpu")
    first, last = capsys.readouterr().err.splitlines()
    assert first.startswith(f"training {name}, 3 steps; the trained model is kept in ")
    assert last.startswith(f"{name} has not learned its world: exact ")
    assert last.endswith(" held-out examples, below 99%")
    assert model.name == name
    assert model.source is not None
    assert model.source["name_or_path"] == name
    folder = small / "models" / key_of(one)
    assert model.folder == folder
    files = {path.name for path in folder.iterdir()}
    settings = {"tokenizer_config.json"} if one.chat_templates else set()
    assert files == {"config.json", "model.safetensors", "tokenizer.json", "training.json"} | settings
    assert [path.name for path in folder.parent.iterdir()] == [key_of(one)]
    assert model.fingerprint() == train_world(one).model.fingerprint()
    monkeypatch.setattr(train, "train", lambda *_: pytest.fail("trained twice"))
    assert pk.load_model(name, device="cpu").fingerprint() == model.fingerprint()
    assert capsys.readouterr().err == ""
    assert pk.load_model(folder, device="cpu").fingerprint() == model.fingerprint()


def test_shape_and_random_weights_need_no_training(small, monkeypatch):
    monkeypatch.setattr(train, "train", lambda *_: pytest.fail("trained"))
    for name in NAMES:
        shape = outline(name)
        model = pk.load_model(name, device="cpu", random_init=True, seed=3)
        assert shape.name == name
        assert shape.cfg == model.cfg == world(name).make_config()
        assert model.source is not None
        assert model.source["name_or_path"] == name
        assert model.tokenizer is not None
    with pytest.raises(UsageError, match="'counting-gpt' is trained here"):
        pk.load_model("counting-gpt", revision="main")


def test_a_model_in_a_users_cache_is_found_again():
    """The name of its folder has not changed since these models were first trained."""
    assert {name: key_of(world(name)) for name in KEYS} == KEYS


def test_every_world_is_one_file_and_one_line():
    general = {"__init__", "definition", "grammar", "train"}
    files = {path.stem for path in Path(train.__file__).parent.glob("*.py")}
    assert files - general == set(WORLDS)
    for file, names in WORLDS.items():
        module = importlib.import_module(f"probekit.worlds.{file}")
        assert tuple(module.TASKS) == names.tasks
        assert getattr(module, "WORLD", None) is (world(file) if names.model else None)
        assert not names.model or module.WORLD.name == names.model


def test_worlds_are_known_without_torch():
    code = """
import sys, probekit
from probekit.worlds import MODELS, world
assert not {"numpy", "tokenizers"} & set(sys.modules)
assert all(world(name).settings.steps for name in MODELS)
probekit.load_task("counting")
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_config_can_be_changed_by_field():
    one = with_config(world("ranking"), positions="sinusoidal")
    assert one.make_config().positions == "sinusoidal"
    assert key_of(one) != key_of(world("ranking"))
    with pytest.raises(UsageError, match="no field 'position'; did you mean positions"):
        with_config(one, position="sinusoidal")
    with pytest.raises(UsageError, match="positions"):
        with_config(one, positions="rotary")


def test_the_papers_sinusoids_are_not_trained_and_survive_a_save(small, tmp_path):
    one = with_config(world("ranking"), positions="interleaved")
    config = one.make_config()
    model = train_world(one, tmp_path / "model").model
    loaded = pk.load_model(tmp_path / "model", device="cpu")
    for stack in ("encoder", "decoder"):
        table = loaded.get_parameter(f"{stack}.pos_embed.weight")
        assert torch.equal(table, sinusoids(torch.arange(config.n_ctx), config.d_model))
        assert torch.equal(table, model.get_parameter(f"{stack}.pos_embed.weight"))
    source, target = torch.tensor([[4, 9, 6]]), torch.tensor([[1, 5]])
    with torch.no_grad():
        assert torch.equal(loaded(source, target), model(source, target))


def test_other_settings_are_another_model():
    one = world("counting-gpt")
    others = [
        replace(one, settings=replace(one.settings, seed=1)),
        with_config(one, n_layers=3),
        replace(one, examples=lambda split, n, _: one.examples(split, n, 7)),
        replace(one, vocabulary=[*one.vocabulary[:-1], "100"]),
    ]
    assert len({key_of(one), *map(key_of, others)}) == 5
    assert key_of(replace(one)) == key_of(one)


def test_threads_stay_as_they_were():
    before = torch.get_num_threads()
    state = torch.get_rng_state()
    train_world(shrunk(world("counting-gpt")))
    assert torch.get_num_threads() == before
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("name", NAMES)
def test_the_prompt_that_is_shown_of_a_world_can_be_read(name):
    one = world(name)
    assert world(one.task) is one
    assert 0 < len(tokenizer_of(one).encode(one.prompt, True)) <= one.make_config().n_ctx
    assert one.prompt in (EXPERIMENTS / "README.md").read_text()


@pytest.mark.parametrize("name", NAMES)
def test_the_config_files_are_the_worlds_settings(name):
    one = world(name)
    config = yaml.safe_load((CONFIGS / f"{one.task}.yaml").read_text())
    said = {key.replace("-", "_"): value for key, value in config["train-model"].items()}
    assert said.pop("name") == name
    assert said.pop("positions", None) == getattr(one.make_config(), "positions", None)
    assert replace(TrainingSettings(), **said) == one.settings
    assert (config["extract"]["model"], config["extract"]["dataset"]) == (name, one.task)
