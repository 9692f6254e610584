"""`probekit train-model` from the command line, a few steps of a world."""

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from terminal import Terminal

from probekit.cli.main import run
from probekit.models import load_model, training
from probekit.models.training import CHECKPOINT
from probekit.worlds import MODELS, world
from probekit.worlds import train as train_module

ARGS = ["train-model", "counting-gpt", "--steps", "12", "--batch-size", "4", "--warm-up-steps", "2", "--seed", "3"]
SETTINGS = {"steps": 12, "batch_size": 4, "warm_up_steps": 2, "seed": 3}


def train(capsys: pytest.CaptureFixture[str], *args: object) -> dict:
    assert run([*ARGS, "--json", *map(str, args)]) == 0
    out, err = capsys.readouterr()
    assert err.startswith("training counting-gpt, 12 steps; the trained model is kept in ")
    return json.loads(out)


def test_a_model_that_can_be_loaded_its_curve_and_its_figures(here, capsys):
    said = train(capsys)
    folder = Path("models/counting-gpt")
    assert said["folder"] == str(folder)
    assert {name: said["settings"][name] for name in SETTINGS} == SETTINGS
    assert (said["model"], said["world"], said["resumed_from"]) == ("counting-gpt", "counting", 0)
    assert 0 <= said["held_out"]["exact"] <= 1
    assert {path.name for path in folder.iterdir()} >= {"loss.png", "loss.svg", "training.json", CHECKPOINT}
    model = load_model(folder, device="cpu")
    assert model.generate("30", 2, stop_tokens=[])
    assert train(capsys)["resumed_from"] == 12
    assert load_model(folder, device="cpu").fingerprint() == model.fingerprint()


def test_an_encoder_decoder_is_trained_with_the_sinusoids_of_the_paper(here, capsys):
    args = ["train-model", "ranking", "--steps", "2", "--batch-size", "4", "--positions", "interleaved", "--json"]
    assert run(args) == 0
    model = load_model(json.loads(capsys.readouterr().out)["folder"], device="cpu")
    table = model.get_parameter("decoder.pos_embed.weight")
    assert table[3, :2].tolist() == pytest.approx([math.sin(3), math.cos(3)])


def test_what_is_printed(here, capsys):
    assert run(ARGS) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    first, last = err.splitlines()
    assert first == "training counting-gpt, 12 steps; the trained model is kept in 'models/counting-gpt'"
    assert last.startswith("counting-gpt has not learned its world: exact ")
    assert last.endswith(" of 21 held-out examples, below 99%; more --steps or another --learning-rate may help")
    assert lines[0].startswith("counting-gpt: 12 steps, loss ")
    assert lines[1].startswith("On 21 held-out examples: exact ")
    assert lines[2:] == ["Model: models/counting-gpt", "Loss:  models/counting-gpt/loss.png"]
    assert run([*ARGS, "--quiet"]) == 0
    assert capsys.readouterr() == ("models/counting-gpt\n", "")


def test_a_terminal_sees_a_bar_with_the_time_left(here, capsys, monkeypatch):
    terminal = Terminal(monkeypatch)
    assert run(ARGS) == 0
    said = terminal.read()
    assert said.startswith("training counting-gpt, 12 steps; the trained model is kept in 'models/counting-gpt'\r\n")
    assert "counting-gpt:   0%|" in said
    assert re.search(r"counting-gpt: 100%\|█+\| 12/12 \[\d\d:\d\d<\d\d:\d\d, ", said)
    terminal = Terminal(monkeypatch)
    assert run([*ARGS, "--quiet"]) == 0
    assert terminal.read() == ""


def test_its_own_settings_say_about_how_long(capsys):
    with train_module.training_shown(world("counting"), Path("there"), None):
        assert (
            capsys.readouterr().err == "training counting-gpt, about a minute; the trained model is kept in 'there'\n"
        )


def test_settings_are_checked_before_torch_is_there():
    code = """
import sys
from probekit.cli.main import run
assert run(["train-model", "counting-gpt", "--learning-rate", "nan"]) == 2
assert run(["generate", "--model", "gpt2", "--prompt", "a", "--temperature", "-1"]) == 2
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_the_name_and_all_settings_may_come_from_a_file(here, capsys):
    keys = "".join(f"  {key.replace('_', '-')}: {value}\n" for key, value in SETTINGS.items())
    Path("counting.yaml").write_text(f"train-model:\n  name: counting-gpt\n{keys}  out: there\n")
    assert run(["train-model", "--config", "counting.yaml", "--json"]) == 0
    from_file = json.loads(capsys.readouterr().out)
    assert from_file["folder"] == "there"
    assert from_file["loss_nats"] == train(capsys)["loss_nats"]


def test_an_interrupted_run_resumes_and_ends_in_the_same_weights(here, capsys, monkeypatch):
    whole = train(capsys, "--out", "whole")

    @contextmanager
    def interrupting(*_: object):
        yield lambda done, total: os.kill(os.getpid(), signal.SIGINT) if done == 5 else None

    with monkeypatch.context() as patch:
        patch.setattr(train_module, "training_shown", interrupting)
        assert run([*ARGS, "--out", "stopped"]) == 130
    out, err = capsys.readouterr()
    assert (out, err) == (
        "",
        "probekit: interrupted: after step 5 of 12; to resume, give the same command again\n",
    )
    assert run([*ARGS, "--json", "--out", "stopped"]) == 0
    out, err = capsys.readouterr()
    assert err.splitlines()[1] == "resuming after step 5 of 12"
    stopped = json.loads(out)
    assert stopped["resumed_from"] == 5
    assert stopped["loss_nats"] == whole["loss_nats"]
    weights = [(Path(name) / "model.safetensors").read_bytes() for name in ("whole", "stopped")]
    assert weights[0] == weights[1]


def test_what_cannot_be_overwritten(here, capsys, refused):
    folder = Path(train(capsys)["folder"])
    assert "seed: 3 there, 4 here" in refused(5, *ARGS[:-1], "4")
    (tensors,) = (folder / CHECKPOINT).glob("*.safetensors")
    tensors.write_bytes(tensors.read_bytes()[:-1])
    assert "is damaged or missing; remove" in refused(4, *ARGS)
    shutil.rmtree(folder / CHECKPOINT)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert "holds a model that train-model did not make" in refused(5, *ARGS)


def test_a_folder_that_cannot_be_written_is_reported_before_the_first_step(here, refused, monkeypatch):
    Path("file").touch()
    monkeypatch.setattr(training, "loss_of", lambda *_: pytest.fail("a step was made"))
    assert "'file' is a file, expected a folder" in refused(4, *ARGS, "--out", "file/model")


def test_help_names_every_world(capsys):
    assert run(["train-model", "--help"]) == 0
    said = " ".join(capsys.readouterr().out.split()).replace("- ", "-")  # names are cut at their hyphens
    assert all(name in said for name in MODELS)


def test_fewer_steps_than_the_warm_up_shorten_it(here, capsys):
    assert run(["train-model", "counting-gpt", "--steps", "3", "--batch-size", "2", "--json"]) == 0
    settings = json.loads(capsys.readouterr().out)["settings"]
    assert (settings["steps"], settings["warm_up_steps"]) == (3, 3)
