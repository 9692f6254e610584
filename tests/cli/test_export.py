"""`probekit export` on results that `train-probe` wrote."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from probekit import ProbeResults
from probekit.cli.main import run
from probekit.options.export import KINDS, TABLES


@pytest.fixture(scope="module")
def results(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results") / "r:1"  # a colon in the name of the folder itself
    assert (
        run(["train-probe", str(store), "--quick", "--no-intervals", "--C", "1", "--quiet", "--out", str(folder)]) == 0
    )
    return folder


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "gguf-control-vector"])
def test_every_kind_is_written_and_named(
    results: Path, here: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    assert run(["export", str(results), "--to", kind, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    best = ProbeResults.load(results).best.place
    assert (said["to"], said["place"]) == (kind, None if kind in TABLES else best)
    assert Path(said["path"]).is_file()
    assert run(["export", str(results), "--to", kind, "--out", str(here / "named"), "--quiet"]) == 0
    out, err = capsys.readouterr()
    assert (out.strip(), err) == (str(here / "named" / "README.md" if kind == "card" else here / "named"), "")


def test_a_place_is_taken_from_the_name(results: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["export", f"{results}:resid_pre.1", "--to", "numpy", "--out", "p.npz"]) == 0
    assert capsys.readouterr().err == "the probe of resid_pre.1\n"
    probe = next(layer.probe for layer in ProbeResults.load(results).layers if layer.place == "resid_pre.1")
    assert (np.load(here / "p.npz")["coef"] == probe.coef_).all()


def test_what_cannot_be_exported_is_one_line(results: Path, here: Path, refused: Callable[..., str]) -> None:
    assert "unknown kind of export 'pickle'" in refused(2, "export", results, "--to", "pickle")
    assert "no probe of 'resid_pre.77'" in refused(2, "export", f"{results}:resid_pre.77")
    assert "leave the place" in refused(2, "export", f"{results}:resid_pre.1", "--to", "csv")
    assert "no folder of results" in refused(3, "export", "nowhere")
    (here / "file").write_text("x")
    assert "is a file" in refused(4, "export", results, "--out", here / "file" / "x.npz")
    (here / "README.md").write_text("mine")
    assert "is no card of a probe" in refused(4, "export", results, "--to", "card", "--out", here)
    assert (here / "README.md").read_text() == "mine"
