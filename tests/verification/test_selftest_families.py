"""A self-test passes on every family as it is, shows every point, and finds what is wrong in each."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import probekit as pk
from probekit.models.base import LanguageModel
from probekit.models.bert import Bert, BertConfig
from probekit.models.llama import Llama, LlamaConfig
from probekit.models.transformer import Transformer, TransformerConfig
from probekit.models.weights import save_hf
from probekit.points import split_point

LLAMA: dict[str, Any] = {"d_model": 16, "n_heads": 4, "n_kv_heads": 2, "d_head": 4, "d_mlp": 24, "n_layers": 2}
LLAMA |= {"n_ctx": 24, "d_vocab": 61}
BERT: dict[str, Any] = {
    "d_model": 16,
    "n_heads": 2,
    "d_mlp": 24,
    "n_layers": 2,
    "n_ctx": 24,
    "d_vocab": 61,
    "init_std": 0.3,
}
PAIRS: dict[str, Any] = {
    "d_model": 16,
    "n_heads": 2,
    "n_decoder_heads": 4,
    "d_mlp": 24,
    "d_decoder_mlp": 40,
    "n_layers": 2,
}
IDS: dict[str, Any] = {"pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 1}
MADE: dict[str, Callable[[], LanguageModel]] = {
    "llama": lambda: Llama(LlamaConfig(**LLAMA)),
    "mistral": lambda: Llama(LlamaConfig(**LLAMA, model_type="mistral", tie_embeddings=False)),
    "mistral with a window": lambda: Llama(
        LlamaConfig(**LLAMA, model_type="mistral", tie_embeddings=False, sliding_window=4)
    ),
    "qwen2": lambda: Llama(LlamaConfig(**LLAMA, model_type="qwen2", qkv_bias=True)),
    "bert": lambda: Bert(BertConfig(**BERT)),
    "bert without heads": lambda: Bert(BertConfig(**BERT, mlm_head=False, seq_head=False)),
    "marian": lambda: Transformer(TransformerConfig(**PAIRS, n_decoder_layers=3, n_ctx=24, d_vocab=61, **IDS)),
}
SCALES = {"ln1_scale", "ln2_scale", "ln3_scale", "ln_embed_scale", "ln_final_scale", "head_ln_scale"}
UNSEEN = SCALES | {"attn_scores", "result", "rot_q", "rot_k"}  # by transformers


def made(family: str) -> Any:
    model = MADE[family]().init_weights(1).eval()
    assert sum(p.numel() for p in model.parameters()) < 30_000
    with torch.no_grad():  # so that biases and norms show
        for p in model.parameters():
            p.add_(0.05 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())))
    model.name = family
    return model


def base(point: str) -> str:
    return point.rpartition(".")[2].removeprefix("cross_")


@pytest.mark.parametrize("family", MADE)
def test_a_right_model_passes_at_every_point(family):
    model = made(family)
    found = pk.selftest(model)
    assert found.passed, found.describe()
    points = {split_point(name)[0] for name in model.points}
    if getattr(model.cfg, "mlm_head", True):
        points |= {"logits"}
    assert {row.point for row in found.rows} == points
    own = {row.point for row in found.rows if row.against == "float64"}
    assert {base(point) for point in own} <= UNSEEN | {"embed"}  # Marian's is one module for both stacks
    assert len(own) < len(found.rows) / 2


@pytest.mark.parametrize("family", MADE)
def test_a_folder_is_read_by_both(family, tmp_path):
    save_hf(made(family), tmp_path / "model")
    found = pk.selftest(pk.load_model(tmp_path / "model", device="cpu"))
    assert found.passed, found.describe()
    assert "read from the model's folder" in found.oracle


@pytest.mark.parametrize(
    ("family", "spoil", "where"),
    [
        ("llama", lambda model: setattr(model.blocks[1].ln2, "eps", 1e-1), "ln2_scale"),
        ("bert", lambda model: setattr(model.blocks[1].ln1, "eps", 1e-1), "ln1_scale"),
        ("marian", lambda model: setattr(model.decoder.blocks[1].ln3, "eps", 1e-1), "decoder.ln3_scale"),
    ],
)
def test_a_wrong_norm_is_named(family, spoil, where):
    model = made(family)
    spoil(model)
    found = pk.selftest(model)
    assert not found.passed
    assert found.first is not None
    assert (found.first.point, found.first.layer, found.first.check) == (where, 1, "reference")


@pytest.mark.parametrize(
    ("family", "norm"),
    [("bert", "ln_embed"), ("bert", "head.ln"), ("marian", "encoder.blocks.0.ln1"), ("marian", "decoder.blocks.2.ln3")],
)
def test_a_norm_is_tested_fused_and_in_steps(family, norm):
    """Listening to its scale makes it go in steps, so that is not all that is tested."""
    model = made(family)
    module = model.get_submodule(norm)
    right = module.forward
    module.forward = lambda x: right(x if module.hook_scale.hooked else x + 0.01 * x.roll(1, -1))
    found = pk.selftest(model)
    assert not found.passed
    assert found.first is not None
    assert found.first.check == "reference"


def test_a_source_that_leaks_into_its_neighbours_is_named(monkeypatch):
    monkeypatch.setattr(
        "probekit.activations.plan.packing.PackedBatch.cross_mask",
        lambda self, device: torch.ones(len(self.tokens), self.tokens.shape[1], self.source.tokens.shape[1]).bool(),
    )
    found = pk.selftest(made("marian"))
    assert not found.passed
    assert {figure.check for row in found.rows for figure in row.figures.values() if not figure.passed} == {
        "packed",
        "shuffled",
    }
