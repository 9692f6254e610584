"""`probekit train-probe --sae`: the numbers of Python, a folder of their own, and the command that makes them."""

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import probekit as pk
from probekit.cli.main import run
from probekit.options.question import words_of
from probekit.points import Place

Capture = pytest.CaptureFixture[str]


def sae_folder(folder: Path, width: int, layer: int, seed: int = 0, **about: Any) -> str:
    folder.mkdir(parents=True)
    draw = torch.Generator().manual_seed(seed)
    shapes = {"W_enc": (width, 64), "W_dec": (64, width), "b_enc": (64,), "b_dec": (width,)}
    save_file({name: torch.randn(*s, generator=draw) for name, s in shapes.items()}, folder / "sae_weights.safetensors")
    fields = {"architecture": "topk", "d_in": width, "d_sae": 64, "k": 8}
    fields["metadata"] = {"hook_name": f"blocks.{layer}.hook_resid_pre", **about}
    (folder / "cfg.json").write_text(json.dumps(fields))
    return str(folder)


@pytest.fixture
def own_store(store: Path, tmp_path: Path) -> Path:
    """A copy, in which results may be written."""
    return shutil.copytree(store, tmp_path / "own_store")


def results_of(capsys: Capture) -> Path:
    return Path(json.loads(capsys.readouterr().out)["results"])


def test_latents_from_the_command_line(here: Path, own_store: Path, tmp_path: Path, capsys: Capture) -> None:
    acts = pk.load_activations(own_store)
    width = acts["resid_pre", 0].shape[1]
    paths = [sae_folder(tmp_path / f"sae{layer}", width, layer) for layer in range(2)]
    job = ["train-probe", str(own_store), "--probe", "k-sparse", "--C", "1", "--json"]
    assert run([*job, "--sae", ",".join(paths)]) == 0
    folder = results_of(capsys)
    found = pk.ProbeResults.load(folder)
    wanted = pk.train_probes(acts.encode([pk.load_sae(path) for path in paths]), probe="k-sparse", C=1.0)
    assert [Place(layer.point, layer.layer) for layer in found.layers] == [Place("latents", 0), Place("latents", 1)]
    assert [layer.metrics for layer in found.layers] == [layer.metrics for layer in wanted.layers]
    assert found.meta["activations"]["latents"] == wanted.meta["activations"]["latents"]


def test_other_autoencoders_have_another_folder(here: Path, own_store: Path, tmp_path: Path, capsys: Capture) -> None:
    width = pk.load_activations(own_store)["resid_pre", 0].shape[1]
    paths = [sae_folder(tmp_path / f"of{seed}", width, 1, seed) for seed in range(2)]
    job = ["train-probe", str(own_store), "--quick", "--json"]
    folders = set()
    for path in [*paths, paths[0]]:
        assert run([*job, "--sae", path]) == 0
        folders.add(results_of(capsys))
    assert len(folders) == 2
    assert run([*job, "--sae", paths[0], "--out", str(tmp_path / "out")]) == 0
    capsys.readouterr()
    assert run([*job, "--sae", paths[1], "--out", str(tmp_path / "out")]) == 5
    assert "holds results of other settings or data" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("about", "layer", "width", "code", "words"),
    [
        ({"model_name": "gemma-2-2b"}, 0, 0, 2, "was trained on 'gemma-2-2b', and the activations are of"),
        ({}, 7, 0, 2, "no activations of resid_pre.7 here"),
        ({}, 0, 5, 2, "reads a width of 5"),
    ],
)
def test_an_autoencoder_of_something_else(
    here: Path,
    own_store: Path,
    tmp_path: Path,
    capsys: Capture,
    about: Any,
    layer: int,
    width: int,
    code: int,
    words: str,
) -> None:
    own = pk.load_activations(own_store)["resid_pre", 0].shape[1]
    path = sae_folder(tmp_path / "sae", width or own, layer, **about)
    assert run(["train-probe", str(own_store), "--quick", "--sae", path]) == code
    assert words in capsys.readouterr().err
    if about:
        assert run(["train-probe", str(own_store), "--quick", "--sae", path, "--force", "--json"]) == 0
        found = json.loads((results_of(capsys) / "results.json").read_text())
        assert found["meta"]["asked"]["force"]


def test_the_command_that_results_print_makes_them_again(
    here: Path, own_store: Path, tmp_path: Path, capsys: Capture
) -> None:
    width = pk.load_activations(own_store)["resid_pre", 0].shape[1]
    path = sae_folder(tmp_path / "sae", width, 0)
    assert run(["train-probe", str(own_store), "--quick", "--sae", path, "--json"]) == 0
    folder = results_of(capsys)
    before = json.loads((folder / "results.json").read_text())
    words = words_of(before["meta"]["asked"], [str(own_store)], ["--json"])
    assert shlex.join(words).endswith(f"--sae {path} --json")
    assert run(words[1:]) == 0
    assert results_of(capsys) == folder


def test_latents_that_extract_keeps_are_a_point_of_the_store(here: Path, tmp_path: Path, capsys: Capture) -> None:
    path = sae_folder(tmp_path / "sae", 128, 1, model_name="agreement-gpt2")
    job = ["extract", "--model", "agreement-gpt2", "--dataset", "agreement", "--limit", "120", "--sae", path]
    assert run([*job, "--out", "kept", "--json"]) == 0
    about = json.loads(capsys.readouterr().out)["latents"]["latents.1"]
    assert {"explained", "loss", "loss_added"} <= about.keys()
    assert run([*job, "--out", "kept"]) == 0
    assert "latents a row that are not 0, adds" in capsys.readouterr().err
    assert run(["verify", "kept"]) == 0
    assert run(["ls", "kept"]) == 0
    assert "latents resid_pre.1 of sae" in capsys.readouterr().out
    probe = ["train-probe", "kept", "--probe", "k-sparse", "--C", "1", "--quick", "--json"]
    assert run([*probe, "--point", "latents"]) == 0
    folder = results_of(capsys)
    found = pk.ProbeResults.load(folder)
    assert run(["causal", str(folder), "--answers", "is,are"]) == 2
    assert "or edit along a latent" in capsys.readouterr().err
    words = words_of(json.loads((folder / "results.json").read_text())["meta"]["asked"], ["kept"], ["--json"])
    assert run(words[1:]) == 0
    assert results_of(capsys) == folder
    assert run([*probe, "--sae", path]) == 0
    assert pk.ProbeResults.load(results_of(capsys)).layers[0].metrics == found.layers[0].metrics
    (folder,) = Path("kept", "latents").iterdir()
    for broken in (next(folder.glob("*.safetensors")), folder / "00000.json", folder / "plan.json"):
        for damage in (Path.unlink, lambda path: path.write_bytes(b"x" * 40)):
            damage(broken)
            assert run(["verify", "kept"]) == 4
            assert "run its extract --sae command again, which writes them anew" in capsys.readouterr().err
            assert run([*job, "--out", "kept", "--quiet"]) == 0
            assert run(["verify", "kept"]) == 0
            capsys.readouterr()
    assert pk.load_activations("kept").encode()["latents.1"].count_nonzero()


def test_an_autoencoder_that_is_dead_here_is_refused_before_its_latents_are_kept(
    here: Path, tmp_path: Path, capsys: Capture
) -> None:
    path = Path(sae_folder(tmp_path / "sae", 128, 1, model_name="gemma-2-2b"))
    weights = load_file(path / "sae_weights.safetensors")
    save_file({**weights, "b_enc": weights["b_enc"] - 1e6}, path / "sae_weights.safetensors")
    job = ["extract", "--model", "agreement-gpt2", "--dataset", "agreement", "--limit", "20", "--sae", str(path)]
    assert run([*job, "--out", "kept"]) == 2
    assert "was trained on 'gemma-2-2b'" in capsys.readouterr().err
    assert run([*job, "--out", "kept", "--force"]) == 3
    assert "is 0 on all rows: dead, or of another layer or model" in capsys.readouterr().err
    save_file(weights, path / "sae_weights.safetensors")
    assert run([*job, "--out", "kept", "--force"]) == 0
    assert "is by its files of another model, gemma-2-2b" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--stats-only"], 2, "latents are kept along with all activations of a complete store"),
        (["--part", "1/2", "--out", "p"], 2, "latents are kept along with all activations of a complete store"),
        (["--points", "mlp_out"], 2, "no activations of resid_pre.1 here; there are mlp_out 0-"),
    ],
)
def test_latents_that_cannot_be_kept(
    here: Path, tmp_path: Path, capsys: Capture, words: list[str], code: int, message: str
) -> None:
    path = sae_folder(tmp_path / "sae", 128, 1)
    job = ["extract", "--model", "agreement-gpt2", "--dataset", "agreement", "--limit", "20", "--sae", path]
    assert run([*job, *words]) == code
    assert message in capsys.readouterr().err
