"""A tiny GPT-2 with a tokenizer of single bytes, and a small file of texts, as a user would have them on disk."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from probekit.cli.main import run
from probekit.models.families.gpt2 import GPT2, GPT2Config, hf_names

N_LAYERS = 3


def write_model(folder: Path, n_layers: int = N_LAYERS, **config: object) -> Path:
    """Write a random GPT-2 in Hugging Face format; `config` overrides fields of its config.json."""
    cfg = GPT2Config(d_model=16, n_heads=2, d_mlp=32, n_layers=n_layers, n_ctx=48, d_vocab=257, bos_token_id=256)
    weights = GPT2(cfg).init_weights(seed=0).state_dict()
    names = hf_names(cfg)
    folder.mkdir()
    tensors = {there.name: weights[ours].T if there.transposed else weights[ours] for ours, there in names.items()}
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({**cfg.to_hf(), **config}))
    vocab = {byte: i for i, byte in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab={**vocab, "<|endoftext|>": 256}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def write_texts(path: Path, n: int = 90) -> Path:
    """Write a CSV whose two classes differ in the last character."""
    rows = [f"text number {i} {'good' if i % 2 else 'bad'},{i % 2}" for i in range(n)]
    path.write_text("\n".join(["text,label", *rows]) + "\n")
    return path


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


@pytest.fixture(scope="session")
def store(gpt2_folder: Path, texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store made by the command itself; tests only read it."""
    path = tmp_path_factory.mktemp("stores") / "tiny-texts"
    args = ["extract", "--model", str(gpt2_folder), "--dataset", str(texts), "--out", str(path)]
    assert run([*args, "--points", "resid_pre,attn_out", "--quiet"]) == 0
    return path


@pytest.fixture
def blank_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files without content for pictures: drawing them takes most of the time of a probe of so few examples.

    Pictures are the subject of tests/plots; those that a command draws, of `test_train.py` and `test_two_commands.py`.
    """

    def write(_: object, path: Path) -> Path:
        for suffix in (".svg", ".png"):
            path.with_suffix(suffix).write_bytes(b"")
        return path.with_suffix(".png")

    for module in ("side_by_side", "curve", "panels", "heatmap", "causal", "patching"):
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
