"""What can be known without the data is refused without it: no torch is imported for a typing mistake."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from probekit.options.curve import PROBE_NAMES, WITHOUT_C
from probekit.options.probe import LOSSES, METRIC_NAMES
from probekit.probes import PROBES, REGRESSORS, SEQUENCE_PROBES

PROGRAM = """
import shlex, sys
from probekit.cli.main import run
for line in sys.stdin.read().splitlines():
    code = run(shlex.split(line))
    heavy = {"torch", "sklearn", "matplotlib", "scipy.stats"} & set(sys.modules)
    print(code, *sorted(heavy), flush=True)
"""
OF_OPTIONS = [
    "train-probe STORE --metric acc",
    "train-probe STORE --metric brier",
    "train-probe STORE --check nothing",
    "train-probe STORE --probe logistc",
    "train-probe STORE --probe mean-diff --C 1",
    "train-probe STORE --probe logistic --C inf",
    "train-probe STORE --layer 3-1",
    "train-probe STORE --C 1e300",
    "train-probe STORE --check hsah",
    "train-probe STORE --out FILE",
    "causal STORE --method stare",
    "causal STORE --answers is,is",
    "causal STORE --at all",
    "causal STORE --scale 0",
    "transfer STORE",
    "transfer STORE STORE --out FILE",
    "extract --model MODEL --dataset DATA --points nope",
    "extract --model MODEL --dataset DATA --points encoder.resid_pre,decoder.resid_pre",
    "extract --model MODEL --dataset DATA --layers abc",
    "extract --model MODEL --dataset DATA --revision main",
    "extract --model nope --dataset DATA",
    "extract --model MODEL --dataset nope",
    "extract --model MODEL --dataset DATA --text-column nope",
    "generate --model nope --prompt text",
    "points --model nope",
    "verify nope",
    "repair nope",
    "ls nope",
    "demo --out FILE",
    "import nope",
    "import MODEL --point nope",
    "import MODEL --stack-axis 2",
    "import MODEL --n-layers 0",
]
OF_THE_MANIFEST = [
    "train-probe nowhere",
    "train-probe",
    "train-probe STORE --layer 99",
    "train-probe STORE --point resid_mid",
    "train-probe STORE --point resid_pre,resid_mid",
    "train-probe STORE --point resid_pre.1",
    "train-probe STORE --position first",
    "causal nowhere",
    "causal STORE",
    "transfer STORE STORE --layer 99",
    "transfer nowhere elsewhere",
]


def test_wrong_options_are_refused_before_anything_is_loaded(here: Path, store: Path, gpt2_folder: Path, texts: Path):
    Path("file").write_text("mine")
    names = {"STORE": store, "MODEL": gpt2_folder, "DATA": texts, "FILE": "file"}
    lines = "\n".join([*OF_OPTIONS, *OF_THE_MANIFEST])
    for name, path in names.items():
        lines = lines.replace(name, str(path))
    done = subprocess.run([sys.executable, "-c", PROGRAM], input=lines, capture_output=True, text=True, check=True)
    answers = done.stdout.splitlines()
    assert len(answers) == len(OF_OPTIONS) + len(OF_THE_MANIFEST)
    wrong = {line: answer for line, answer in zip(lines.splitlines(), answers, strict=True) if answer not in "234"}
    assert wrong == {}
    assert done.stderr.count("probekit: error: ") == len(answers)


def test_the_names_that_need_no_torch_are_those_of_the_code() -> None:
    from probekit.evaluation.scores.metrics import HEADLINES, LOWER_IS_BETTER

    assert set(METRIC_NAMES) == set(HEADLINES)
    assert set(LOSSES) == set(LOWER_IS_BETTER)
    assert {*PROBES, *REGRESSORS, *SEQUENCE_PROBES} == set(PROBE_NAMES)
    for kinds in (PROBES, REGRESSORS):
        for name, kind in kinds.items():
            assert kind.has_C == (name not in WITHOUT_C)
            assert kind.without_penalty == (name == "ridge")


def test_a_store_that_may_not_be_written_is_refused_before_the_work(here: Path, store: Path, refused, monkeypatch):
    locked = Path(store)  # root may write everywhere, so the system's answer is replaced
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK or Path(path) != locked)
    for job in (["train-probe", store], ["transfer", store, store]):
        line = refused(4, *job)
        assert line.endswith("may not be written; name another folder for the results (--out)")
        assert str(locked) in line
    assert "may not be written" in refused(4, "train-probe", store, "--out", store)


def test_the_only_position_is_named(here: Path, store: Path, refused):
    line = refused(2, "train-probe", store, "--position", "first")
    assert line.endswith("position 'first' was not extracted; the only one is 'last': leave it out, or extract again")


@pytest.mark.parametrize("position", ["first,last", "all"])
def test_a_missing_position_names_those_that_there_are(
    here: Path, gpt2_folder: Path, texts: Path, refused, position, capsys
):
    from probekit.cli.main import run

    job = ["extract", "--model", str(gpt2_folder), "--dataset", str(texts), "--out", "s", "--layers", "0", "--quiet"]
    assert run([*job, "--position", position]) == 0
    capsys.readouterr()
    line = refused(2, "train-probe", "s", "--quick")
    known = "first, last" if position != "all" else "last, first, mean, a token's index, last@assistant, ... or all"
    assert line.endswith(f"name it with --position (in Python, position=): {known}")


def test_no_library_is_imported_that_a_quick_look_does_not_need(here: Path, store: Path) -> None:
    """Of scikit-learn only the base classes; they bring scipy.stats and pandas along."""
    heavy = {"transformers", "datasets", "sklearn.linear_model", "sklearn.preprocessing", "sklearn.model_selection"}
    code = "import sys; from probekit.cli.main import run; assert run(sys.argv[1:]) == 0; print(*sys.modules)"
    job = ["train-probe", str(store), "--quick", "--layer", "0", "--C", "1", "--out", "o", "--quiet"]
    done = subprocess.run([sys.executable, "-c", code, *job], capture_output=True, text=True, check=True)
    modules = set(done.stdout.splitlines()[-1].split())
    assert "sklearn.base" in modules
    assert heavy & modules == set()
