"""Both commands on real texts, with GPT-2's own tokenizer and a small random model."""

import json
import shutil
from pathlib import Path

import pytest

from probekit.cli.main import run
from probekit.models.families.gpt2 import GPT2Config

Capture = pytest.CaptureFixture[str]


@pytest.mark.shared
@pytest.mark.parametrize(("data", "n_test"), [("sst2", 300), ("geometry-of-truth/cities.csv", 150)])
def test_both_commands_on_real_texts(shared_dir: Path, here: Path, capsys: Capture, data: str, n_test: int) -> None:
    model = here / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(GPT2Config(d_model=32, n_heads=2, d_mlp=64, n_layers=2).to_hf()))
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(shared_dir / "models/gpt2-tokenizer" / name, model)
    job = ["extract", "--model", str(model), "--dataset", str(shared_dir / "data" / data), "--random-init"]
    assert run([*job, "--limit", "300", "--quiet"]) == 0
    store = capsys.readouterr().out.strip()
    assert run(["train-probe", "--layer", "all", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["store"] == store
    assert [(place["point"], place["layer"]) for place in found["layers"]] == [
        ("resid_pre", 0),
        ("resid_pre", 1),
        ("resid_post", 1),
    ]
    assert found["meta"]["n"]["test"] == n_test
    assert Path(found["picture"]).is_file()
