"""The hand-written GPT-2 against `transformers`, against a published trace, and against itself."""

import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tiny_configs import SIZES
from torch import Tensor
from transformers import GPT2Config as HfConfig
from transformers import GPT2LMHeadModel

from probekit.errors import DataError, UsageError
from probekit.models.families.gpt2 import GPT2, GPT2Config, hf_names

TINY = {
    "gpt2": GPT2Config(**SIZES),
    "gpt2-untied": GPT2Config(**SIZES, tie_embeddings=False),
    "gpt2-wide-heads": GPT2Config(**SIZES, head_dim=14, head_bias=True),
}
SHAPES = [
    {"n_embd": 32, "n_head": 4, "n_layer": 3, "vocab_size": 61, "n_positions": 24},
    {"n_embd": 48, "n_head": 3, "n_layer": 2, "vocab_size": 29, "n_positions": 16, "n_inner": 40},
    {"n_embd": 24, "n_head": 1, "n_layer": 1, "vocab_size": 17, "n_positions": 12, "activation_function": "gelu"},
    {"n_embd": 16, "n_head": 8, "n_layer": 4, "vocab_size": 33, "n_positions": 20, "activation_function": "relu"},
]
VARIANTS = [
    SHAPES[0] | {"scale_attn_by_inverse_layer_idx": True},
    SHAPES[0] | {"reorder_and_upcast_attn": True},
    SHAPES[1] | {"scale_attn_by_inverse_layer_idx": True, "reorder_and_upcast_attn": True},
]


def from_hf(hf: dict, weights: dict[str, Tensor]) -> GPT2:
    cfg = GPT2Config.from_hf(hf)
    model = GPT2(cfg)
    named = {ours: weights[key] for ours, t in hf_names(cfg).items() for key in weights if key == t.name}
    model.load_state_dict({ours: w.T if hf_names(cfg)[ours].transposed else w for ours, w in named.items()})
    return model.eval()


def twins(shape: dict, tied: bool = True, seed: int = 0) -> tuple[GPT2LMHeadModel, GPT2]:
    torch.manual_seed(seed)
    config = HfConfig(**shape, tie_word_embeddings=tied)
    config._attn_implementation = "eager"
    oracle = GPT2LMHeadModel(config).eval()
    with torch.no_grad():  # larger than at initialisation, so that every term of the arithmetic shows
        for p in oracle.parameters():
            p.add_(torch.randn_like(p) * 0.2)
    assert sum(p.numel() for p in oracle.parameters()) < 100_000
    return oracle, from_hf(config.to_dict(), oracle.state_dict())


def tokens_for(model: GPT2, batch: int = 3, length: int = 9, seed: int = 1) -> Tensor:
    return torch.randint(model.cfg.d_vocab, (batch, length), generator=torch.Generator().manual_seed(seed))


def error(ours: Tensor, theirs: Tensor) -> float:
    """Largest difference, relative to the largest value of the reference."""
    return ((ours - theirs).abs().max() / theirs.abs().max()).item()


@pytest.fixture(scope="module")
def pair() -> tuple[GPT2LMHeadModel, GPT2]:
    return twins(SHAPES[0])


@pytest.fixture(scope="module")
def model(pair) -> GPT2:
    return pair[1]


@pytest.mark.parametrize(("shape", "tied"), [*product(SHAPES, [True, False]), *product(VARIANTS, [True])])
def test_every_layer_equals_the_oracle(shape, tied):
    oracle, model = twins(shape, tied)
    tokens = tokens_for(model)
    mids: list[Any] = []
    posts: list[Any] = []
    block: Any
    for block in oracle.transformer.h:
        block.ln_2.register_forward_pre_hook(lambda _, args: mids.append(args[0]))
        block.register_forward_hook(lambda _, __, out: posts.append(out[0] if isinstance(out, tuple) else out))
    with torch.no_grad():
        theirs = oracle(tokens, output_hidden_states=True, output_attentions=True)
        logits, cache = model.run_with_cache(tokens)
    assert error(logits, theirs.logits) <= 1e-5
    for i in range(model.cfg.n_layers):
        assert error(cache["resid_pre", i], theirs.hidden_states[i]) <= 1e-5
        assert error(cache["resid_mid", i], mids[i]) <= 1e-5
        assert error(cache["resid_post", i], posts[i]) <= 1e-5
        assert error(cache["attn_pattern", i], theirs.attentions[i]) <= 1e-5
    assert error(cache["ln_final"], theirs.hidden_states[-1]) <= 1e-5


def test_heads_may_be_wider_than_their_share():
    """Zeros behind each head, and queries larger by the root of the ratio of widths, change nothing."""
    oracle, narrow = twins(SHAPES[0])
    cfg = replace(narrow.cfg, head_dim=2 * narrow.cfg.d_head)
    wide = GPT2(cfg)

    def padded(weight: Tensor, parts: int) -> Tensor:
        """[parts * H * K, ...] with zeros after each head's K rows."""
        heads = weight.unflatten(0, (parts * cfg.n_heads, -1))
        return torch.cat([heads, torch.zeros_like(heads)], 1).flatten(0, 1)

    state = narrow.state_dict()
    for name in list(state):
        if ".attn.qkv." in name:
            queries, rest = padded(state[name], 3).split([cfg.n_heads * cfg.d_head, 2 * cfg.n_heads * cfg.d_head])
            state[name] = torch.cat([queries * 2**0.5, rest])
        if name.endswith("attn.out.weight"):
            state[name] = padded(state[name].T, 1).T
    wide.load_state_dict(state)
    tokens = tokens_for(narrow)
    with torch.no_grad():
        logits, cache = wide.run_with_cache(tokens)
        assert error(logits, oracle(tokens).logits) <= 1e-5
    assert cache["z", 0].shape == (3, 9, cfg.n_heads, 2 * narrow.cfg.d_head)
    assert GPT2Config.from_hf(cfg.to_hf()) == cfg
    assert "head_dim" not in narrow.cfg.to_hf()


def test_heads_must_share_the_width_evenly_unless_theirs_is_given():
    with pytest.raises(DataError, match="multiple"):
        GPT2Config(d_model=30, n_heads=4)
    assert GPT2Config(d_model=30, n_heads=4, head_dim=8).d_head == 8


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_upcast_attention_has_float32_scores_in_half_precision(dtype):
    """Large queries: scores of half precision would differ by much more from the oracle's."""
    oracle, model = twins(VARIANTS[1])
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


def test_inner_points_equal_the_oracle_modules(pair):
    oracle, model = pair
    tokens = tokens_for(model)
    seen: dict[str, Tensor] = {}
    theirs = {
        "attn_out": "attn",
        "mlp_out": "mlp",
        "ln1_normalized": "ln_1",
        "ln2_normalized": "ln_2",
        "mlp_pre": "mlp.c_fc",
    }

    def keep(name):
        return lambda _, __, out: seen.__setitem__(name, out[0] if isinstance(out, tuple) else out)

    with torch.no_grad():
        handles = [
            oracle.transformer.h[1].get_submodule(path).register_forward_hook(keep(name))
            for name, path in theirs.items()
        ]
        oracle(tokens)
        [handle.remove() for handle in handles]
        _, cache = model.run_with_cache(tokens)
    for name in theirs:
        assert error(cache[name, 1], seen[name]) <= 1e-5, name


def test_identities(model):
    tokens = tokens_for(model)
    with torch.no_grad():
        logits, c = model.run_with_cache(tokens)
        for i in range(model.cfg.n_layers):
            assert torch.equal(c["resid_pre", i] + c["attn_out", i], c["resid_mid", i])
            assert torch.equal(c["resid_mid", i] + c["mlp_out", i], c["resid_post", i])
            assert torch.allclose(c["attn_pattern", i].sum(-1), torch.ones(3, 4, 9), atol=1e-6)
            assert torch.equal(c["attn_pattern", i], c["attn_scores", i].softmax(-1))
            assert torch.allclose(c["result", i].sum(2) + model.blocks[i].attn.out.bias, c["attn_out", i], atol=1e-6)
            z = torch.einsum("bhlm,bmhk->blhk", c["attn_pattern", i], c["v", i])
            assert torch.allclose(z, c["z", i], atol=1e-6)
            centred = c["resid_pre", i] - c["resid_pre", i].mean(-1, keepdim=True)
            ln1 = model.blocks[i].ln1
            assert torch.allclose(
                centred / c["ln1_scale", i] * ln1.weight + ln1.bias, c["ln1_normalized", i], atol=1e-5
            )
            if i:
                assert torch.equal(c["resid_pre", i], c["resid_post", i - 1])
        assert torch.equal(c["embed"] + c["pos_embed"], c["resid_pre", 0])
        assert torch.equal(model.head(c["ln_final"]), logits)


def test_a_row_that_sees_nothing_stays_finite(model):
    tokens, mask = tokens_for(model, 1), torch.ones(1, 9, 9, dtype=torch.bool).tril()
    mask[0, 2] = False
    with torch.no_grad():
        fused = model(tokens, attention_mask=mask)
        explicit, cache = model.run_with_cache(tokens, attention_mask=mask)
    assert fused.isfinite().all()
    assert error(explicit, fused) <= 1e-6
    assert (cache["attn_pattern", 0][0, :, 2] == 0).all()


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


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"n_layer": -1}, "n_layer"),
        ({"n_layer": 2.5}, "n_layer"),
        ({"n_layer": True}, "n_layer"),
        ({"n_layer": None}, "n_layer"),
        ({"n_head": 5}, "n_head"),
        ({"vocab_size": 0}, "vocab_size"),
        ({"n_positions": "8"}, "n_positions"),
        ({"n_inner": 0}, "n_inner"),
        ({"activation_function": "gelu_nwe"}, "gelu_new"),
        ({"activation_function": None}, "activation_function"),
        ({"activation_function": ["gelu"]}, "activation_function"),
        ({"vocab_size": 10**18}, "vocab_size"),
        ({"n_embd": 10**10}, "n_embd"),
        ({"n_positions": 10**11}, "n_positions"),
        ({"n_layer": 3_000_000}, "n_layer"),
        ({"bos_token_id": True}, "bos_token_id"),
        ({"initializer_range": 0}, "initializer_range"),
        ({"layer_norm_epsilon": -1e-5}, "layer_norm_epsilon"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"scale_attn_by_inverse_layer_idx": 1}, "scale_attn_by_inverse_layer_idx"),
        ({"reorder_and_upcast_attn": None}, "reorder_and_upcast_attn"),
        ({"scale_attn_weights": False}, "scale_attn_weights"),
        ({"add_cross_attention": True}, "add_cross_attention"),
    ],
)
def test_impossible_config(change, field):
    with pytest.raises(DataError, match=field):
        GPT2Config.from_hf(SHAPES[0] | change)


def test_config_round_trip():
    cfg = GPT2Config.from_hf(SHAPES[1])
    assert GPT2Config.from_hf(cfg.to_hf()) == cfg
    assert (cfg.d_mlp, cfg.d_head) == (40, 16)


@pytest.mark.shared
def test_published_trace(shared_dir: Path):
    """minGPT's sorter: every inner tensor of block 0, every block's output, the norm and the logits, to 2e-6."""
    folder = shared_dir / "models/gpt-nano-sort"
    model = from_hf(json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors"))
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
