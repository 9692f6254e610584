"""The command line's fixtures: a model and texts on disk, a working folder, a store."""

from collections.abc import Callable
from pathlib import Path

import pytest
from user_files import write_model, write_texts

from probekit.cli.main import run

SOURCES = ["=cmd()", "<script>", "web"]


@pytest.fixture(scope="session")
def gpt2_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_texts(tmp_path_factory.mktemp("data") / "texts.csv")


@pytest.fixture(scope="session")
def make_model() -> Callable[..., Path]:
    return write_model


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder of the test's own, so that ./runs is empty."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def extracted(model: Path, texts: Path, out: Path, *more: str) -> Path:
    assert run(["extract", "--model", str(model), "--dataset", str(texts), "--out", str(out), "--quiet", *more]) == 0
    return out


@pytest.fixture(scope="session")
def store(gpt2_folder: Path, texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store made by the command itself; tests only read it."""
    path = tmp_path_factory.mktemp("stores") / "tiny-texts"
    return extracted(gpt2_folder, texts, path, "--points", "resid_pre,attn_out")


@pytest.fixture(scope="session")
def all_tokens(gpt2_folder: Path, texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of every token."""
    return extracted(gpt2_folder, texts, tmp_path_factory.mktemp("all") / "store", "--position", "all")


@pytest.fixture(scope="session")
def heads(gpt2_folder: Path, texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the outputs of heads."""
    return extracted(gpt2_folder, texts, tmp_path_factory.mktemp("heads") / "store", "--points", "resid_pre,z")


@pytest.fixture(scope="session")
def columns(gpt2_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of 180 texts with a hostile column, a number and a label."""
    folder = tmp_path_factory.mktemp("columns")
    rows = [
        f"text {i * i * 31 % 1009} of the {chr(97 + i % 26)}{i} kind,{i // 3 % 2},{SOURCES[i % 3]},{i / 7:.2f}\n"
        for i in range(180)
    ]
    (folder / "t.csv").write_text("text,label,source,size\n" + "".join(rows))
    more = ["--layers", "0", "--keep-columns", "source,size"]
    return extracted(gpt2_folder, folder / "t.csv", folder / "store", *more)


@pytest.fixture(scope="session")
def probed(gpt2_folder: Path, texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store, and the results of two kinds of probes; `causal` cannot use the newest."""
    path = extracted(gpt2_folder, texts, tmp_path_factory.mktemp("probed") / "store", "--points", "resid_pre")
    for more in (["--C", "0.1,1"], ["--probe", "mlp", "--layer", "1"]):
        assert run(["train-probe", str(path), "--quick", "--quiet", *more]) == 0
    return path


@pytest.fixture
def blank_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files without content for pictures: drawing them takes most of the time of a probe of so few examples.

    Pictures are the subject of tests/plots; those that a command draws, of `test_train.py` and `test_two_commands.py`.
    """

    def write(_: object, path: Path, formats: object = ()) -> Path:
        for suffix in (".svg", ".png"):
            path.with_suffix(suffix).write_bytes(b"")
        return path.with_suffix(".png")

    for module in ("side_by_side", "curve", "panels", "grids", "causal"):
        monkeypatch.setattr(f"probekit.plots.{module}.write_figure", write)


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command that must fail; its one line of error."""

    def refuse(code: int, *args: object) -> str:
        assert run([str(arg) for arg in args]) == code
        out, err = capsys.readouterr()
        assert out == ""
        assert "Traceback" not in err
        (line,) = [line for line in err.splitlines() if line.startswith("probekit: error: ")]
        assert err.endswith(line + "\n")
        return line

    return refuse
