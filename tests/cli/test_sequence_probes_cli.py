"""`probekit train-probe` with probes over a sequence: results, their folder, parameters, and what is refused."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from probekit.cli.main import run
from probekit.evaluation import ProbeResults
from probekit.probes import AggregateProbe, AttentionProbe

Capture = pytest.CaptureFixture[str]
QUICK = ["--layer", "1", "--quick"]


@pytest.fixture(scope="module")
def all_tokens(gpt2_folder: Path, texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("sequences") / "store"
    job = ["extract", "--model", gpt2_folder, "--dataset", texts, "--position", "all", "--out", out, "--quiet"]
    assert run([*map(str, job)]) == 0
    return out


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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--aggregate", "top"], "aggregate (--aggregate) is one of mean, max, softmax, last; got 'top'"),
        (["--aggregate", "max", "--probe", "mlp"], "takes a linear probe of tokens"),
        (["--aggregate", "max", "--position", "last"], "position last is one; leave position (--position) out"),
        (["--aggregate", "max", "--by", "position"], "leave one of the two out"),
        (["--aggregate", "max", "--set", "train-probe.probe.standardise=false"], "it has C, temperature"),
    ],
)
def test_refused_in_one_line(
    here: Path, all_tokens: Path, refused: Callable[..., str], options: list[str], message: str
) -> None:
    assert message in refused(2, "train-probe", all_tokens, *QUICK, *options)


def test_one_token_of_each_text_is_not_enough(
    here: Path, gpt2_folder: Path, texts: Path, refused: Callable[..., str], capsys: Capture
) -> None:
    job = ["extract", "--model", gpt2_folder, "--dataset", texts, "--layers", "0", "--out", "one", "--quiet"]
    assert run([*map(str, job)]) == 0
    capsys.readouterr()
    said = refused(2, "train-probe", "one", "--probe", "attention")
    assert "these activations are of last; extract again with position all (--position all)" in said
