"""The hand-written GPT-2 against `transformers`, against a published trace, and against itself."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_configs import SIZES
from transformers_twins import error, make_twins, tokens_for, twins

from probekit.errors import UsageError
from probekit.models.families.gpt2 import GPT2, GPT2Config
from probekit.models.load import load_model

TINY = {
    "gpt2": GPT2Config(**SIZES),
    "gpt2-untied": GPT2Config(**SIZES, tie_embeddings=False),
    "gpt2-wide-heads": GPT2Config(**SIZES, head_dim=14, head_bias=True),
}

BASE = {"model_type": "gpt2", "n_embd": 32, "n_head": 4, "n_layer": 3, "vocab_size": 61, "n_positions": 24}
OTHER = BASE | {"n_embd": 48, "n_head": 3, "n_layer": 2, "vocab_size": 29, "n_positions": 16, "n_inner": 40}
VARIANTS = {
    "tied gpt2": BASE,
    "untied gpt2": BASE | {"tie_word_embeddings": False},
    "gpt2 with a narrow mlp": OTHER,
    "gpt2 of one head": BASE | {"n_embd": 24, "n_head": 1, "n_layer": 1, "activation_function": "gelu"},
    "gpt2 of narrow heads": BASE | {"n_embd": 16, "n_head": 8, "n_layer": 4, "activation_function": "relu"},
    "gpt2, scores by layer": BASE | {"scale_attn_by_inverse_layer_idx": True},
    "gpt2, scores upcast": BASE | {"reorder_and_upcast_attn": True},
    "gpt2, scores by layer and upcast": OTHER
    | {"scale_attn_by_inverse_layer_idx": True, "reorder_and_upcast_attn": True},
}
FEATURES = [("gpt2, scores by layer", {"scale_by_layer": False})]
_REFUSED = [
    ({"n_head": 5}, "n_head"),
    ({"n_layer": 3_000_000}, "n_layer"),
    ({"scale_attn_weights": False}, "scale_attn_weights"),
    ({"add_cross_attention": True}, "add_cross_attention"),
]
IMPOSSIBLE = [(BASE | change, match) for change, match in _REFUSED]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_upcast_attention_has_float32_scores_in_half_precision(dtype):
    """Large queries: scores of half precision would differ by much more from the oracle's."""
    oracle, model = make_twins(VARIANTS["gpt2, scores upcast"])
    with torch.no_grad():
        for block, ours in zip(oracle.transformer.h, model.blocks, strict=True):
            block.attn.c_attn.weight.mul_(3)  # pyright: ignore[reportCallIssue, reportAttributeAccessIssue]
            ours.attn.qkv.weight.mul_(3)  # pyright: ignore[reportCallIssue, reportAttributeAccessIssue]
        oracle, model, tokens = oracle.to(dtype), model.to(dtype), tokens_for(model)
        patterns = oracle(tokens, output_attentions=True).attentions
        _, cache = model.run_with_cache(tokens)
        assert cache["attn_scores", 0].dtype == torch.float32
        assert cache["attn_pattern", 0].dtype == dtype
        assert error(cache["attn_pattern", 0].float(), patterns[0].float()) <= 2 * torch.finfo(dtype).eps
        assert torch.equal(model(tokens), model.run_with_cache(tokens, points="attn_scores")[0])


@pytest.fixture(scope="module")
def model() -> GPT2:
    return twins(BASE)[1]


@pytest.mark.parametrize(
    ("tokens", "match"),
    [
        ("the keys", "to_tokens"),
        (torch.zeros(3, dtype=torch.long), "int64"),
        (torch.zeros(1, 0, dtype=torch.long), "int64"),
        (torch.zeros(1, 3), "int64"),
        (torch.zeros(1, 25, dtype=torch.long), "25 tokens do not fit a context of 24"),
        (torch.full((1, 2), 61), r"0\.\.60"),
        (torch.full((1, 2), -1), r"0\.\.60"),
    ],
)
def test_impossible_tokens(model, tokens, match):
    with pytest.raises(UsageError, match=match):
        model(tokens)


def test_only_several_texts_in_a_row_may_be_longer_than_the_context(model):
    tokens = tokens_for(model, 2, 20).view(1, 40)
    position_ids = torch.arange(20).repeat(2)[None]
    for mask in (None, torch.ones(1, 40)):
        with pytest.raises(UsageError, match="40 tokens do not fit a context of 24"):
            model(tokens, position_ids=position_ids, attention_mask=mask)
    blocks = torch.ones(20, 20).tril()
    with torch.no_grad():
        packed = model(tokens, position_ids=position_ids, attention_mask=torch.block_diag(blocks, blocks)[None])
        assert error(packed.view(2, 20, -1), model(tokens.view(2, 20))) <= 1e-5


def test_impossible_mask(model):
    with pytest.raises(UsageError, match="attention_mask is"):
        model(tokens_for(model), attention_mask=torch.ones(3, 8))


@pytest.mark.shared
def test_published_trace(shared_dir: Path):
    """minGPT's sorter: every inner tensor of block 0, every block's output, the norm and the logits, to 2e-6."""
    folder = shared_dir / "models/gpt-nano-sort"
    model = load_model(folder, device="cpu")
    assert sum(p.numel() for p in model.parameters()) < 100_000
    reference = {name: torch.from_numpy(x) for name, x in np.load(folder / "reference_activations.npz").items()}
    with torch.no_grad():
        logits, c = model.run_with_cache(reference["idx"].long())
    q, k, v = (c[name, 0].transpose(1, 2) for name in "qkv")
    ours = {
        "tok_emb": c["embed"], "pos_emb": c["pos_embed"][:1], "x": c["resid_pre", 0], "ln1": c["ln1_normalized", 0],
        "q": q, "k": k, "v": v, "qkv": torch.cat([c[name, 0].flatten(2) for name in "qkv"], -1),
        "att": c["attn_scores", 0], "attSm": c["attn_pattern", 0], "y": c["z", 0].flatten(2), "yProj": c["attn_out", 0],
        "attnResid": c["resid_mid", 0], "ln2": c["ln2_normalized", 0], "fc": c["mlp_pre", 0], "gelu": c["mlp_post", 0],
        "mlp": c["mlp_out", 0], "mlpResid": c["resid_post", 0], "block0": c["resid_post", 0],
        "block1": c["resid_post", 1], "block2": c["resid_post", 2], "ln_f": c["ln_final"],
        "lm_head": logits, "probs": logits.softmax(-1),
    }  # fmt: skip
    assert set(ours) == set(reference) - {"idx"}
    for name, x in ours.items():
        finite = reference[name].isfinite()
        assert torch.equal(x.isfinite(), finite), name
        assert error(x[finite], reference[name][finite]) <= 2e-6, name


@pytest.mark.parametrize("mask", [torch.full((1, 4), 2), torch.full((1, 4), 0.5), torch.zeros(1, 4, 4).log()])
def test_a_mask_of_other_numbers_than_one_and_zero_is_refused(mask):
    """Additive masks, of 0 and -inf, would hide what they mean to show."""
    model = GPT2(GPT2Config(d_model=16, n_heads=2, d_mlp=24, n_layers=1, n_ctx=8, d_vocab=11)).init_weights(0)
    tokens, seen = torch.tensor([[1, 2, 3, 4]]), torch.tensor([[1, 1, 0, 1]])
    with pytest.raises(UsageError, match=r"true \(1\) where tokens are seen and false \(0\) elsewhere; got"):
        model(tokens, attention_mask=mask)
    assert torch.equal(model(tokens, attention_mask=seen), model(tokens, attention_mask=seen.bool()))
    assert torch.equal(model(tokens, attention_mask=seen), model(tokens, attention_mask=seen.float()))


def test_initial_weights_into_the_stream_are_smaller():
    """By the root of twice the number of layers (Radford et al. 2019), as in transformers."""
    model = GPT2(GPT2Config(d_model=64, n_heads=4, d_mlp=256, n_layers=8, n_ctx=8, d_vocab=50)).init_weights(0)
    for name, sigma in {"attn.qkv": 0.02, "mlp.up": 0.02, "attn.out": 0.02 / 4, "mlp.down": 0.02 / 4}.items():
        assert model.get_parameter(f"blocks.3.{name}.weight").std().item() == pytest.approx(sigma, rel=0.1), name
