"""The worlds from the command line: the two commands work out of the box, and say that a model is trained."""

from pathlib import Path

import pytest
from small_worlds import use_small_worlds

from probekit.cli.main import run

CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.fixture
def small(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    use_small_worlds(monkeypatch, here / "cache")
    return here


@pytest.mark.parametrize("task", ["counting", "spans"])
def test_extract_and_train_probe_work_out_of_the_box(task, small, capsys):
    config = ["--config", str(CONFIGS / f"{task}.yaml")]
    limit = [] if task == "counting" else ["--limit", "64"]
    assert run(["extract", *config, *limit]) == 0
    out, err = capsys.readouterr()
    assert "is trained now, once, and kept in " in err
    assert Path(out.splitlines()[-1]).is_dir()
    assert run(["train-probe", *config, "--controls", "1"]) == 0
    assert "Best: " in capsys.readouterr().out


def test_quiet_says_nothing_of_the_training(small, capsys):
    assert run(["extract", "--model", "brackets-gpt", "--dataset", "brackets-depth", "--limit", "32", "--quiet"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert len(out.splitlines()) == 1
    assert run(["points", "--model", "dialogue-gpt"]) == 0
    assert "resid_post" in capsys.readouterr().out
