"""The worlds from the command line: the two commands work out of the box, and say that a model is trained."""

import json
import re
from pathlib import Path

import pytest
from small_worlds import use_small_worlds
from terminal import Terminal

from probekit.cli.main import run
from probekit.tasks import BUILTIN_TASKS, load_task
from probekit.worlds import MODELS, world
from probekit.worlds.definition import World
from probekit.worlds.train import untrained

CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.fixture
def small(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    use_small_worlds(monkeypatch, here / "cache")
    return here


def test_a_terminal_sees_the_training_that_extract_needs(small, capsys, monkeypatch):
    terminal = Terminal(monkeypatch)
    assert run(["extract", "--model", "counting-gpt", "--dataset", "counting"]) == 0
    said = terminal.read()
    assert said.startswith("training counting-gpt, 3 steps; the trained model is kept in ")
    assert re.search(r"counting-gpt: 100%\|█+\| 3/3 \[\d\d:\d\d<\d\d:\d\d, ", said)


@pytest.mark.usefixtures("blank_pictures")
@pytest.mark.parametrize("name", MODELS)
def test_every_command_takes_every_world(name, small, capsys):
    """Train, count, generate, extract and probe; each by the world's own config file where it has a section there."""
    one = world(name)
    config = ["--config", str(CONFIGS / f"{one.task}.yaml")]
    assert run(["train-model", *config, "--steps", "3", "--warm-up-steps", "1", "--batch-size", "4", "--json"]) == 0
    trained = json.loads(capsys.readouterr().out)
    assert (trained["model"], trained["world"]) == (name, one.task)
    assert run(["params", trained["folder"], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["parameters"]["total"] == weights_of(one)
    task = load_task(one.task)
    prompt = one.prompt if task.chats else str(task.inputs[0])  # a chat is no text before a template makes it one
    said = run(["generate", "--model", trained["folder"], "--prompt", prompt, "--max-new-tokens", "2", "--quiet"])
    assert said == (2 if name == "spans-bert" else 0)
    capsys.readouterr()
    limit = [] if one.task == "counting" else ["--limit", "64"]
    assert run(["extract", *config, "--model", trained["folder"], *limit, "--quiet"]) == 0
    assert run(["train-probe", *config, "--quick", "--C", "1"]) == 0
    assert "\nQuote: " in capsys.readouterr().out


def test_help_of_extract_names_every_world_and_its_tasks(capsys):
    assert run(["extract", "--help"]) == 0
    said = " ".join(capsys.readouterr().out.split()).replace("- ", "-")  # names are cut at their hyphens
    assert all(name in said for name in (*MODELS, *BUILTIN_TASKS))


def weights_of(one: World) -> int:
    return sum(weight.numel() for weight in untrained(one, 0).parameters())


def test_quiet_says_nothing_of_the_training(small, capsys):
    assert run(["extract", "--model", "brackets-gpt", "--dataset", "brackets-depth", "--limit", "32", "--quiet"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert len(out.splitlines()) == 1
    assert run(["points", "--model", "dialogue-gpt"]) == 0
    assert "resid_post" in capsys.readouterr().out
