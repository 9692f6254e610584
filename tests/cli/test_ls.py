"""`probekit ls`: the stores and results under a folder."""

import json
import shutil
from pathlib import Path

import pytest

from probekit.cli.main import run

Capture = pytest.CaptureFixture[str]


def test_an_empty_folder_is_reported_on_stderr(here: Path, capsys: Capture) -> None:
    assert run(["ls"]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert "no stores under 'runs'" in err
    assert run(["ls", "elsewhere"]) == 3
    assert "no folder 'elsewhere'" in capsys.readouterr().err


def test_stores_results_and_damage_are_listed(here: Path, store: Path, capsys: Capture) -> None:
    shutil.copytree(store, "runs/good")
    shutil.copytree(store, "runs/unfinished")
    Path("runs/unfinished/manifest.json").unlink()
    shutil.copytree(store, "runs/broken\x1b[1m")
    Path("runs/broken\x1b[1m/plan.json").write_text("{")
    results = Path("runs/good/results/label-resid_pre-ridge")
    results.mkdir(parents=True)
    (results / "results.json").write_text("{}")
    assert run(["ls"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    broken, good, beneath, unfinished = out.splitlines()
    assert broken == r"runs/broken\x1b[1m  damaged"
    assert good.startswith("runs/good  complete: tiny on texts, ")
    assert "90 texts" in good
    assert beneath == f"  {results}"
    assert "of 90 rows" in unfinished
    assert run(["ls", "runs", "--json"]) == 0
    stores = {Path(s["path"]).name: s for s in json.loads(capsys.readouterr().out)["stores"]}
    assert stores["good"]["results"] == [str(results)]
    assert stores["good"]["state"] == "complete"
    assert stores["broken\x1b[1m"]["state"] == "damaged"
