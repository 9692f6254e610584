"""`probekit train-probe` with probes over a sequence: results, their folder, parameters, and what is refused."""

import json
from pathlib import Path

import pytest

from probekit.cli.main import run
from probekit.evaluation import ProbeResults
from probekit.probes import AggregateProbe, AttentionProbe, MultiMaxProbe

Capture = pytest.CaptureFixture[str]
QUICK = ["--layer", "1", "--quick"]


def test_attention_and_its_folder(here: Path, all_tokens: Path, capsys: Capture) -> None:
    assert run(["train-probe", str(all_tokens), "--probe", "attention", "--C", "0.1", "--layer", "0,1"]) == 0
    out = capsys.readouterr().out
    assert "attention probe (local minima, converged by the norm of the gradient and not certified)" in out
    assert "over the last-token probe at" in out
    (folder,) = (all_tokens / "results").glob("label-resid_pre-attention-*")
    assert "controls" not in folder.name
    assert (folder / "accuracy_by_layer.png").is_file()
    results = ProbeResults.load(folder)
    assert isinstance(results.best.probe, AttentionProbe)
    assert set(results.pooled) == {"mean", "last"}


def test_an_aggregate_with_parameters(here: Path, all_tokens: Path, capsys: Capture) -> None:
    job = ["train-probe", str(all_tokens), "--aggregate", "softmax", "--probe", "ridge", *QUICK, "--json"]
    assert run(job) == 0
    assert Path(json.loads(capsys.readouterr().out)["results"]).name.startswith(
        "label-resid_pre-softmax-over-tokens-ridge-quick"
    )
    assert run([*job, "--set", "train-probe.probe.temperature=0.3"]) == 0
    folder = Path(json.loads(capsys.readouterr().out)["results"])
    assert "temperature-0.3" in folder.name
    assert "softmax" in folder.name
    probe = ProbeResults.load(folder).best.probe
    assert isinstance(probe, AggregateProbe)
    assert (probe.probe, probe.aggregate, probe.temperature) == ("ridge", "softmax", 0.3)


def test_heads_are_a_parameter_and_part_of_the_folder(here: Path, all_tokens: Path, capsys: Capture) -> None:
    job = ["train-probe", str(all_tokens), "--probe", "multimax", "--C", "0.1", *QUICK, "--json"]
    assert run(job) == 0
    assert Path(json.loads(capsys.readouterr().out)["results"]).name.startswith("label-resid_pre-multimax-")
    assert run([*job, "--set", "train-probe.probe.heads=2"]) == 0
    folder = Path(json.loads(capsys.readouterr().out)["results"])
    assert "heads-2" in folder.name
    probe = ProbeResults.load(folder).best.probe
    assert isinstance(probe, MultiMaxProbe)
    assert probe.coef_.shape[0] == probe.heads == 2
