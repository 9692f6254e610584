"""The commands on a BERT as a user has it on disk: weights, config and vocab.txt."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from probekit.activations import load_activations
from probekit.cli.main import run
from probekit.models import load_model
from probekit.models.families.bert import Bert, BertConfig
from probekit.models.weights import save_hf

VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "text", "number", "good", "bad", *(f"##{i}" for i in range(10))]
VOCAB += [str(i) for i in range(10)]


@pytest.fixture
def bert_folder(tmp_path: Path) -> Path:
    """A tiny random BERT; its texts' two classes differ in their last word."""
    cfg = BertConfig(16, n_heads=2, d_mlp=32, n_layers=2, n_ctx=16, d_vocab=len(VOCAB), init_std=0.3)
    save_hf(Bert(cfg).init_weights(), tmp_path / "tiny-bert")
    (tmp_path / "tiny-bert/vocab.txt").write_text("\n".join(VOCAB))
    return tmp_path / "tiny-bert"


def configure(folder: Path, **fields: object) -> Path:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | fields))
    return folder


def test_two_commands(here: Path, bert_folder: Path, texts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first token knows the last word, as it cannot in a model that looks back."""
    args = ["extract", "--model", str(bert_folder), "--dataset", str(texts), "--position", "first", "--quiet"]
    assert run([*args, "--points", "resid_pre,head_ln"]) == 0
    acts = load_activations(here / capsys.readouterr().out.strip())
    assert acts.meta["bos"] is True
    tokenizer = load_model(bert_folder).tokenizer
    assert tokenizer is not None
    inputs: Any = acts.task.inputs
    assert acts.meta["tokens"] == sum(map(len, tokenizer.encode_batch(inputs, bos=True)))
    assert run(["train-probe", "--layer", "all", "--json"]) == 0
    layers = json.loads(capsys.readouterr().out)["layers"]
    embedded, *later = [layer["metrics"]["test"]["auroc"] for layer in layers]
    assert embedded == 0.5  # "text" is the first word of all of them
    assert max(later) >= 0.9


def test_selftest_and_points(bert_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["selftest", "--model", str(bert_folder)]) == 0
    assert "passed" in capsys.readouterr().out
    assert run(["points", "--model", str(bert_folder)]) == 0
    assert "head.ln.hook_normalized" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"is_decoder": True}, "is_decoder = True is not implemented"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type = 'relative_key' is not implemented"),
        ({"architectures": ["BertForTokenClassification"]}, "save the model below the head as BertModel"),
        ({"num_attention_heads": 3}, "must be a multiple of n_heads (num_attention_heads) 3"),
        ({"type_vocab_size": 5}, "misshapen: bert.embeddings.token_type_embeddings.weight (expected [5, 16]"),
    ],
)
def test_models_that_are_not_such_a_bert_are_refused(
    here: Path, bert_folder: Path, texts: Path, refused: Callable[..., str], fields: dict[str, object], says: str
) -> None:
    model = configure(bert_folder, **fields)
    assert says in refused(3, "extract", "--model", model, "--dataset", texts, "--via", "probekit")


def test_a_tokenizer_of_another_model(here: Path, bert_folder: Path, texts: Path, refused: Callable[..., str]) -> None:
    (bert_folder / "vocab.txt").write_text("\n".join([*VOCAB[:5], "film", *VOCAB[5:]]))
    line = refused(3, "extract", "--model", bert_folder, "--dataset", texts)
    assert f"has id {len(VOCAB)}, and the model knows 0..{len(VOCAB) - 1} only" in line
