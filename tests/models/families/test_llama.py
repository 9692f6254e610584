"""Llama and its relatives, written by hand, against `transformers`, against a trained model, and against themselves."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_configs import SIZES
from tokenizers import Tokenizer as Backend
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import (
    LlamaConfig as HfLlamaConfig,
)
from transformers import (
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from probekit.errors import DataError, UsageError
from probekit.models.config_fields import deciding_fields
from probekit.models.families.llama import HF_PREFIX, Llama, LlamaConfig, hf_names
from probekit.models.load import load_model
from probekit.models.positional import RopeScaling
from probekit.models.weights import our_part, save_hf
from probekit.models.windows import within
from probekit.points import POINTS

TINY = {
    "llama": LlamaConfig(**SIZES, n_kv_heads=4, d_head=8),
    "llama-grouped": LlamaConfig(**SIZES, n_kv_heads=2, d_head=6, tie_embeddings=True),
    "llama-biases": LlamaConfig(**SIZES, n_kv_heads=1, d_head=10, qkv_bias=True, out_bias=True, mlp_bias=True),
    "mistral": LlamaConfig(**SIZES, n_kv_heads=2, d_head=8, model_type="mistral"),
    "mistral-window": LlamaConfig(**SIZES, n_kv_heads=2, d_head=8, sliding_window=5, model_type="mistral"),
    "qwen2": LlamaConfig(**SIZES, n_kv_heads=2, d_head=8, qkv_bias=True, model_type="qwen2"),
    "qwen3": LlamaConfig(
        **SIZES, n_kv_heads=2, d_head=10, sliding_window=4, n_full_layers=1, bos_token_id=None, model_type="qwen3"
    ),
    "phi3": LlamaConfig(**SIZES, n_kv_heads=2, d_head=8, sliding_window=5, rotary_factor=0.5, model_type="phi3"),
    "phi3-long": LlamaConfig(
        **SIZES,
        n_kv_heads=4,
        d_head=8,
        rope_scaling=RopeScaling(
            "longrope",
            4.0,
            original_n_ctx=24,
            attention_factor=1.2,
            short_factors=(1.0, 1.5, 2.0, 3.0),
            long_factors=(2.0, 9.0, 20.0, 60.0),
        ),
        model_type="phi3",
    ),
}
CLASSES: dict[str, tuple[type[PretrainedConfig], type[PreTrainedModel]]] = {
    "llama": (HfLlamaConfig, LlamaForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "phi3": (Phi3Config, Phi3ForCausalLM),
}
BASE = {
    "model_type": "llama", "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 61, "max_position_embeddings": 24,
}  # fmt: skip
MISTRAL = BASE | {"model_type": "mistral", "sliding_window": None}
QWEN2 = BASE | {"model_type": "qwen2", "rms_norm_eps": 1e-5}
QWEN3 = QWEN2 | {"model_type": "qwen3", "head_dim": 10}
PHI3 = BASE | {"model_type": "phi3", "rms_norm_eps": 1e-5, "pad_token_id": None}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 6}
LONG = {"rope_type": "longrope", "short_factor": [1.0, 1.3, 2.0, 5.0], "long_factor": [2.0, 7.0, 30.0, 60.0]}
LONG_OF_2024 = {"type": "su", "short_factor": LONG["short_factor"], "long_factor": LONG["long_factor"]}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 16}  # fmt: skip
VARIANTS = {
    "grouped": BASE,
    "tied": BASE | {"tie_word_embeddings": True},
    "one kv head": BASE | {"num_key_value_heads": 1, "num_hidden_layers": 2},
    "all heads": BASE | {"num_key_value_heads": 4, "num_hidden_layers": 1, "rms_norm_eps": 1e-3},
    "wide heads": BASE | {"head_dim": 12},
    "narrow heads": BASE | {"head_dim": 2, "hidden_act": "gelu_pytorch_tanh"},
    "biases": BASE | {"attention_bias": True, "mlp_bias": True},
    "theta": BASE | {"rope_parameters": {"rope_theta": 123.0, "rope_type": "default"}},
    "linear": BASE | {"rope_parameters": {"rope_theta": 1e4, "rope_type": "linear", "factor": 3.0}},
    "llama3": BASE | {"rope_parameters": {"rope_theta": 5e5} | LLAMA3},
    "mistral": MISTRAL,
    "mistral with a window": MISTRAL | {"sliding_window": 4, "head_dim": 6},
    "qwen2": QWEN2,
    "qwen2, tied": QWEN2 | {"tie_word_embeddings": True},
    "qwen2 with a window": QWEN2 | {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1},
    "qwen2 with a window in all layers": QWEN2
    | {"use_sliding_window": True, "sliding_window": 2, "max_window_layers": 0},
    "qwen2 whose window is off": QWEN2 | {"use_sliding_window": False, "sliding_window": 3},
    "yarn": BASE | {"rope_parameters": {"rope_theta": 300.0} | YARN},
    "qwen3": QWEN3,
    "qwen3, tied, with biases": QWEN3 | {"tie_word_embeddings": True, "attention_bias": True, "num_key_value_heads": 1},
    "qwen3 with yarn": QWEN3 | {"rope_parameters": {"rope_theta": 1e6} | YARN},
    "qwen3 with a window": QWEN3 | {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 2},
    "qwen3 with a window by layer_types": QWEN3
    | {"use_sliding_window": True, "sliding_window": 4, "layer_types": ["full_attention", *["sliding_attention"] * 2]},
    "phi3": PHI3,
    "phi3 with a window": PHI3 | {"sliding_window": 4, "num_key_value_heads": 4},
    "phi3, rotated in part": PHI3 | {"partial_rotary_factor": 0.5, "tie_word_embeddings": True},
    "phi3 with longrope": PHI3 | {"original_max_position_embeddings": 12, "rope_parameters": LONG},
    "phi3 with longrope, rotated in part": PHI3
    | {
        "original_max_position_embeddings": 12,
        "partial_rotary_factor": 0.75,
        "rope_parameters": LONG | {"short_factor": [1.0, 1.3, 2.0], "long_factor": [2.0, 7.0, 30.0]},
    },
}


def from_hf(hf: dict, weights: dict[str, Tensor]) -> Llama:
    model = Llama(LlamaConfig.from_hf(hf))
    model.load_state_dict({ours: our_part(weights[there.name], there) for ours, there in hf_names(model.cfg).items()})
    return model.eval()


def twins(hf: dict, seed: int = 0) -> tuple[Any, Llama]:
    config_class, model_class = CLASSES[hf["model_type"]]
    torch.manual_seed(seed)
    config = config_class(**{key: value for key, value in hf.items() if key != "model_type"})
    config._attn_implementation = "eager"
    oracle = model_class(config).eval()
    with torch.no_grad():  # larger than at initialisation, so that every term of the arithmetic shows
        for p in oracle.parameters():
            p.add_(torch.randn_like(p) * 0.2)
    assert sum(p.numel() for p in oracle.parameters()) < 100_000
    return oracle, from_hf(config.to_dict(), oracle.state_dict())


def tokens_for(model: Llama, batch: int = 3, length: int = 9, seed: int = 1) -> Tensor:
    return torch.randint(model.cfg.d_vocab, (batch, length), generator=torch.Generator().manual_seed(seed))


def error(ours: Tensor, theirs: Tensor) -> float:
    """Largest difference, relative to the largest value of the reference."""
    return ((ours - theirs).abs().max() / theirs.abs().max()).item()


def products(cfg: Any) -> list[tuple[str, str, dict[str, Any]]]:
    """The points that projections compute: our name, their module, and the part of its output and its heads."""
    heads = {"q": cfg.num_attention_heads, "k": cfg.num_key_value_heads, "v": cfg.num_key_value_heads}
    if cfg.model_type != "phi3":
        of_mlp = [("mlp.hook_pre", "mlp.gate_proj", {}), ("mlp.hook_pre_linear", "mlp.up_proj", {})]
        return [*((f"attn.hook_{x}", f"self_attn.{x}_proj", {"heads": n}) for x, n in heads.items()), *of_mlp]
    found, start, width = [], 0, cfg.hidden_size // cfg.num_attention_heads
    for x, n in heads.items():
        found.append((f"attn.hook_{x}", "self_attn.qkv_proj", {"heads": n, "part": slice(start, start + n * width)}))
        start += n * width
    half = cfg.intermediate_size
    found.append(("mlp.hook_pre", "mlp.gate_up_proj", {"part": slice(half)}))
    return [*found, ("mlp.hook_pre_linear", "mlp.gate_up_proj", {"part": slice(half, None)})]


@contextmanager
def seen_in(oracle: Any) -> Iterator[dict[str, Tensor]]:
    """What the modules of transformers show of our points, by our full names."""
    seen: dict[str, Tensor] = {}

    def keep(name: str, path: str, of_input: bool = False, heads: int | None = None, part: slice = slice(None)) -> Any:
        def hook(_: Any, args: tuple, kwargs: dict, out: Any) -> None:
            x = (
                (args[0] if args else kwargs["hidden_states"])
                if of_input
                else out[0]
                if isinstance(out, tuple)
                else out
            )
            x = x[..., part]
            seen[name] = x.unflatten(-1, (heads, -1)) if heads else x

        return oracle.get_submodule(path).register_forward_hook(hook, with_kwargs=True)

    cfg = oracle.config
    handles = [keep("hook_embed", "model.embed_tokens"), keep("ln_final.hook_normalized", "model.norm")]
    for i in range(cfg.num_hidden_layers):
        ours, theirs = f"blocks.{i}", f"model.layers.{i}"
        handles += [
            keep(f"{ours}.hook_resid_pre", f"{theirs}.input_layernorm", of_input=True),
            keep(f"{ours}.ln1.hook_normalized", f"{theirs}.input_layernorm"),
            keep(f"{ours}.attn.hook_z", f"{theirs}.self_attn.o_proj", of_input=True, heads=cfg.num_attention_heads),
            keep(f"{ours}.hook_attn_out", f"{theirs}.self_attn"),
            keep(f"{ours}.hook_resid_mid", f"{theirs}.post_attention_layernorm", of_input=True),
            keep(f"{ours}.ln2.hook_normalized", f"{theirs}.post_attention_layernorm"),
            keep(f"{ours}.mlp.hook_post", f"{theirs}.mlp.down_proj", of_input=True),
            keep(f"{ours}.hook_mlp_out", f"{theirs}.mlp"),
            keep(f"{ours}.hook_resid_post", theirs),
            *(keep(f"{ours}.{name}", f"{theirs}.{path}", **where) for name, path, where in products(cfg)),
        ]
        if cfg.model_type == "qwen3":
            handles += [keep(f"{ours}.attn.{x}_norm.hook_normalized", f"{theirs}.self_attn.{x}_norm") for x in "qk"]
    yield seen
    for handle in handles:
        handle.remove()


@pytest.fixture(scope="module")
def pair() -> tuple[Any, Llama]:
    return twins(BASE)


@pytest.fixture(scope="module")
def model(pair) -> Llama:
    return pair[1]


@pytest.fixture(scope="module", params=["grouped", "biases", "qwen2 with a window", "qwen3 with a window"])
def each(request) -> Llama:
    return twins(VARIANTS[request.param])[1]


@pytest.mark.parametrize("hf", VARIANTS.values(), ids=VARIANTS)
def test_every_point_of_every_layer_equals_the_oracle(hf):
    oracle, model = twins(hf)
    tokens = tokens_for(model, length=11)
    with torch.no_grad(), seen_in(oracle) as theirs:
        out = oracle(tokens, output_attentions=True)
        logits, cache = model.run_with_cache(tokens)
    theirs |= {f"blocks.{i}.attn.hook_pattern": pattern for i, pattern in enumerate(out.attentions)}
    assert len(theirs) == 2 + (17 if hf["model_type"] == "qwen3" else 15) * model.cfg.n_layers
    for name, x in theirs.items():
        assert error(cache[name], x) <= 1e-5, name
    assert error(logits, out.logits) <= 1e-5
    with torch.no_grad():
        assert error(model(tokens), out.logits) <= 1e-5  # and through the fused kernels


TURNED_OFF = [
    ("qwen3 with a window", {"sliding_window": None}),
    ("qwen3 with a window", {"n_full_layers": 0}),
    ("qwen3", {"model_type": "llama"}),
    ("yarn", {"rope_scaling": None}),
    ("phi3 with a window", {"sliding_window": None}),
    ("phi3, rotated in part", {"rotary_factor": 1.0}),
    ("phi3 with longrope", {"rope_scaling": None}),
]


@pytest.mark.parametrize(("name", "off"), TURNED_OFF)
def test_what_a_variant_adds_changes_its_logits(name, off):
    _, model = twins(VARIANTS[name])
    other = Llama(replace(model.cfg, **off)).eval()
    other.load_state_dict(model.state_dict(), strict=False)
    tokens = tokens_for(model, length=11)
    with torch.no_grad():
        assert error(other(tokens), model(tokens)) > 1e-2


@pytest.mark.parametrize(
    "name",
    ["grouped", "llama3", "mistral with a window", "qwen2 with a window", "qwen3 with a window", "phi3 with a window"],
)
@pytest.mark.parametrize("side", ["left", "right"])
def test_padded_batches_equal_the_oracle(name, side):
    oracle, model = twins(VARIANTS[name])
    tokens, mask = tokens_for(model, 3, 12), torch.ones(3, 12, dtype=torch.long)
    for row, n in enumerate([0, 5, 2]):
        mask[row, :n] = 0
    mask = mask if side == "left" else mask.flip(1)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        theirs = oracle(tokens, attention_mask=mask, position_ids=positions).logits
        assert error(model(tokens, attention_mask=mask)[mask.bool()], theirs[mask.bool()]) <= 1e-5


def test_long_contexts_equal_the_oracle():
    """At position 2,000 the angles of float32 have an error of their own; it is the same error."""
    oracle, model = twins(BASE | {"max_position_embeddings": 2048, "num_hidden_layers": 2, "vocab_size": 17})
    tokens = tokens_for(model, 1, 40)
    position_ids = torch.arange(2000, 2040)[None]
    mask = torch.ones(40, 40, dtype=torch.bool).tril()[None]
    added = torch.zeros(1, 1, 40, 40).masked_fill(~mask, -torch.inf)
    with torch.no_grad():
        theirs = oracle(tokens, position_ids=position_ids, attention_mask=added).logits
        assert error(model(tokens, position_ids=position_ids, attention_mask=mask), theirs) <= 1e-5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_as_near_to_the_truth_as_transformers(pair, dtype):
    oracle, model = pair
    tokens = tokens_for(model)
    with torch.no_grad():
        truth = model(tokens)
        ours, theirs = (from_hf(oracle.config.to_dict(), oracle.state_dict()).to(dtype)(tokens), None)
        theirs = twins(BASE)[0].to(dtype)(tokens).logits
    assert ours.dtype == dtype
    assert error(ours.float(), truth) <= 2 * error(theirs.float(), truth) <= 0.2


def test_a_twin_in_float64_agrees(model):
    with torch.device("meta"):
        twin = Llama(model.cfg)
    twin.load_state_dict(model.state_dict(), assign=True)
    twin.double()
    with torch.no_grad():
        assert error(model(tokens_for(model)).double(), twin.eval()(tokens_for(model))) <= 1e-6


def test_gradients_equal_the_oracles(pair):
    oracle, model = pair
    tokens = tokens_for(model)
    oracle.zero_grad()
    theirs = cross_entropy(oracle(tokens).logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    ours = cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    theirs.backward()
    weights = dict(model.named_parameters())
    grads = dict(zip(weights, torch.autograd.grad(ours, list(weights.values())), strict=True))
    slots = dict(oracle.named_parameters())
    for name, there in hf_names(model.cfg).items():
        grad = slots[there.name].grad
        assert grad is not None
        assert error(grads[name], grad) <= 1e-4, name


def test_identities(each):
    model, tokens = each, tokens_for(each)
    cfg = model.cfg
    with torch.no_grad():
        logits, c = model.run_with_cache(tokens)
        for i in range(cfg.n_layers):
            attn = model.blocks[i].attn
            assert torch.equal(c["resid_pre", i] + c["attn_out", i], c["resid_mid", i])
            assert torch.equal(c["resid_mid", i] + c["mlp_out", i], c["resid_post", i])
            assert torch.allclose(c["attn_pattern", i].sum(-1), torch.ones(3, 4, 9), atol=1e-6)
            assert torch.allclose(c["attn_pattern", i], c["attn_scores", i].softmax(-1), atol=1e-6)
            bias = 0 if attn.out.bias is None else attn.out.bias
            assert torch.allclose(c["result", i].sum(2) + bias, c["attn_out", i], atol=1e-5)
            v = c["v", i].repeat_interleave(cfg.n_heads // cfg.n_kv_heads, 2)
            assert torch.allclose(torch.einsum("bhlm,bmhk->blhk", c["attn_pattern", i], v), c["z", i], atol=1e-5)
            k = c["rot_k", i].repeat_interleave(cfg.n_heads // cfg.n_kv_heads, 2)
            scores = torch.einsum("blhk,bmhk->bhlm", c["rot_q", i], k) / cfg.d_head**0.5
            finite = c["attn_scores", i].isfinite()
            assert torch.allclose(scores[finite], c["attn_scores", i][finite], atol=1e-5)
            q, k = ("q_norm", "k_norm") if cfg.model_type == "qwen3" else ("q", "k")
            assert torch.allclose(c["rot_q", i].norm(dim=-1), c[q, i].norm(dim=-1), rtol=1e-5)
            assert torch.equal(c["rot_k", i][:, 0], c[k, i][:, 0])  # at position 0 nothing turns
            if cfg.model_type == "qwen3":
                gain = model.blocks[i].attn.q_norm.weight
                assert torch.allclose(c["q", i] / c["q_norm_scale", i] * gain, c["q_norm", i], atol=1e-5)
            gate = torch.nn.functional.silu(c["mlp_pre", i])
            assert torch.allclose(gate * c["mlp_pre_linear", i], c["mlp_post", i], atol=1e-5)
            ln1 = model.blocks[i].ln1
            assert torch.allclose(c["resid_pre", i] / c["ln1_scale", i] * ln1.weight, c["ln1_normalized", i], atol=1e-5)
            if i:
                assert torch.equal(c["resid_pre", i], c["resid_post", i - 1])
        assert torch.equal(c["embed"], c["resid_pre", 0])
        assert torch.equal(model.head(c["ln_final"]), logits)


def test_it_has_every_point_of_a_pre_norm_decoder_but_learned_positions(model):
    elsewhere = ("pos_embed", "token_type_embed", "ln_embed", "ln_embed_scale", "head_ln", "head_ln_scale")
    others = ("q_norm", "k_norm", "ln1_post", "ln2_post", "router_logits", "expert_weights")
    mine = [full for short, full in POINTS.items() if not short.startswith((*elsewhere, *others, "encoder", "decoder"))]
    assert set(model.points) == {full.format(layer=i) for full in mine for i in range(model.cfg.n_layers)}


def test_a_hook_changes_what_follows(model):
    tokens = tokens_for(model)
    with torch.no_grad():
        plain, cache = model.run_with_cache(tokens)
        for name in model.points:
            if name.endswith("hook_attn_scores"):
                continue  # softmax does not see a shift
            changed = model.run_with_hooks(tokens, fwd_hooks=[(name, lambda x, hook: x + 1 + x.cos())])
            assert error(changed, plain) > 1e-4, name
        zeroed = model.run_with_hooks(tokens, fwd_hooks=[("blocks.1.attn.hook_rot_q", lambda x, hook: 0 * x)])
        flat = torch.ones(9, 9).tril() / torch.ones(9, 9).tril().sum(-1, keepdim=True)
        uniform = model.run_with_hooks(
            tokens, fwd_hooks=[("blocks.1.attn.hook_pattern", lambda x, hook: flat.expand_as(x))]
        )
        assert error(zeroed, uniform) <= 1e-5
        assert torch.equal(model.run_with_cache(tokens)[1]["resid_post", 2], cache["resid_post", 2])


def test_block_mask_packs_two_texts_in_one_row(each):
    """A mask [B, L, M] and the positions that follow from it: two texts side by side do not see each other."""
    model, (a, b) = each, (tokens_for(each, 1, 8, seed=2), tokens_for(each, 1, 7, seed=3))
    mask = torch.block_diag(torch.ones(8, 8).tril(), torch.ones(7, 7).tril())[None].bool()
    with torch.no_grad():
        packed = model(torch.cat([a, b], 1), attention_mask=mask)
        assert error(packed[:, :8], model(a)) <= 1e-5
        assert error(packed[:, 8:], model(b)) <= 1e-5


def test_a_window_is_of_the_last_tokens():
    positions = torch.tensor([[0, 1, 2, 3]])
    expected = [[1, 1, 1, 1], [1, 1, 1, 1], [0, 1, 1, 1], [0, 0, 1, 1]]
    assert within(2, positions, positions).int().tolist() == [expected]


def test_a_window_as_wide_as_the_text_is_none():
    hf = MISTRAL | {"sliding_window": 9}
    oracle, model = twins(hf)
    wide = from_hf(hf | {"sliding_window": None}, oracle.state_dict())
    with torch.no_grad():
        assert torch.equal(model(tokens_for(model)), wide(tokens_for(model)))
        longer = tokens_for(model, length=11)
        assert error(model(longer)[:, 9:], wide(longer)[:, 9:]) > 1e-3


@pytest.mark.parametrize("init_std", [0.02, None])
@pytest.mark.parametrize("tied", [True, False])
def test_initial_weights(init_std, tied):
    cfg = LlamaConfig(64, 4, 2, 16, 128, 2, 8, 50, init_std=init_std, tie_embeddings=tied, qkv_bias=True)
    one, two, other = (Llama(cfg).init_weights(seed) for seed in (3, 3, 4))
    assert one.fingerprint() == two.fingerprint() != other.fingerprint()
    embedding = (2 / (50 + 64)) ** 0.5 if tied else 1.0
    expected = {
        "embed.weight": init_std or embedding,
        "blocks.1.mlp.gate.weight": init_std or (2 / 192) ** 0.5,
        "blocks.0.attn.k.weight": init_std or (2 / 96) ** 0.5,
    }
    for name, std in expected.items():
        assert one.get_parameter(name).std().item() == pytest.approx(std, rel=0.1), name
    assert torch.equal(one.get_parameter("blocks.0.attn.q.bias"), torch.zeros(64))
    assert torch.equal(one.ln_final.weight, torch.ones(64))


def test_impossible_calls(model):
    tokens = tokens_for(model)
    with pytest.raises(UsageError, match="attention_mask is"):
        model(tokens, attention_mask=torch.ones(3, 8))
    with pytest.raises(UsageError, match="attention_mask is"):
        model(tokens, attention_mask=torch.ones(3, 9, 8))
    with pytest.raises(UsageError, match="25 tokens do not fit a context of 24"):
        model(torch.zeros(1, 25, dtype=torch.long))
    with pytest.raises(UsageError, match="position 24 is outside the context"):
        model(tokens, position_ids=torch.arange(16, 25).expand(3, 9))
    with pytest.raises(UsageError, match="this model has no point pos_embed; did you mean embed"):
        model.run_with_cache(tokens, points="pos_embed")


IMPOSSIBLE = [
    ({"num_hidden_layers": 0}, "num_hidden_layers"),
    ({"num_hidden_layers": None}, "num_hidden_layers"),
    ({"hidden_size": 10**10}, "hidden_size"),
    ({"num_attention_heads": True}, "num_attention_heads"),
    ({"num_attention_heads": 5}, r"d_model \(hidden_size\) 32 must be a multiple of n_heads \(num_attention_heads\) 5"),
    ({"num_key_value_heads": 3}, r"n_heads \(num_attention_heads\) 4 must be a multiple of n_kv_heads .* 3"),
    ({"num_key_value_heads": 8}, "must be a multiple of n_kv_heads"),
    ({"num_key_value_heads": 0}, "num_key_value_heads"),
    ({"head_dim": 7}, r"d_head \(head_dim\) must be even"),
    ({"hidden_size": 12}, r"d_head \(head_dim\) must be even.*; got 3"),
    ({"head_dim": "8"}, "head_dim"),
    ({"hidden_act": "swish"}, "silu"),
    ({"rms_norm_eps": 0}, "rms_norm_eps"),
    ({"rope_theta": -1.0}, "rope_theta"),
    ({"initializer_range": "a"}, "initializer_range"),
    ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
    ({"attention_bias": 1}, "qkv_bias"),
    ({"mlp_bias": None}, "mlp_bias"),
    ({"bos_token_id": "<s>"}, "bos_token_id"),
    ({"eos_token_id": [2, "a"]}, "eos_token_id"),
    ({"sliding_window": 8}, "sliding_window = 8 is not implemented for model_type llama"),
    ({"quantization_config": {"bits": 4}}, "quantization_config"),
    ({"layer_types": ["full_attention", "sliding_attention", "full_attention"]}, "layer_types"),
    ({"model_type": "gemma"}, "model_type"),
    ({"model_type": "mistral", "attention_bias": True}, "attention_bias = True is not implemented"),
    ({"model_type": "mistral", "mlp_bias": True}, "mlp_bias"),
    ({"model_type": "mistral", "sliding_window": 0}, "sliding_window"),
    ({"model_type": "mistral", "sliding_window": 4, "layer_types": ["full_attention"] * 3}, "layer_types"),
    ({"model_type": "qwen2", "attention_bias": False}, "attention_bias = False is not implemented"),
    ({"model_type": "qwen2", "use_sliding_window": "yes"}, "use_sliding_window"),
    ({"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": -1}, "max_window_layers"),
    (
        {"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 0, "layer_types": ["x"] * 3},
        "layer_types",
    ),
    (
        {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
        "'dynamic' is not implemented; only default, linear, ",
    ),
    ({"rope_parameters": YARN | {"truncate": False}}, "yarn with truncate = False is not implemented"),
    ({"rope_parameters": YARN | {"rope_theta": 1}}, "rope_theta must be above 1 for rope scaling yarn"),
    ({"rope_parameters": YARN | {"mscale": "2", "mscale_all_dim": 1}}, "yarn: mscale must be a positive number"),
    ({"rope_parameters": YARN | {"beta_fast": 0.5}}, "low_freq_factor 1 must be below high_freq_factor 0.5"),
    ({"rope_parameters": YARN | {"short_factor": [1]}}, "'yarn' with 'short_factor' is not implemented"),
    ({"rope_parameters": YARN, "original_max_position_embeddings": 7}, "is 7, but 6 in rope_parameters; leave one out"),
    ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0, "short_factor": [1.0]}}, "'longrope'"),
    ({"rope_scaling": {"type": "linear"}}, "factor must be a positive number below 1e.15; got None"),
    ({"rope_scaling": {"type": "linear", "factor": 2.0, "beta_fast": 32}}, "'linear' with 'beta_fast'"),
    ({"rope_scaling": LLAMA3 | {"high_freq_factor": None}}, "high_freq_factor must be a positive number"),
    ({"rope_scaling": {"type": ["linear"]}}, "not implemented; only default, linear, llama3 and yarn are"),
    ({"rope_scaling": ["linear"]}, "rope_parameters and rope_scaling must be objects"),
    ({"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": LLAMA3}, "they differ"),
    ({"rope_theta": 1e4, "rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}, "leave one out"),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    ({"model_type": "qwen3", "mlp_bias": True}, "mlp_bias = True is not implemented for model_type qwen3"),
    (
        {
            "model_type": "qwen3",
            "sliding_window": 4,
            "use_sliding_window": True,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        },
        "layer_types .* are not implemented",
    ),
    ({"model_type": "qwen3", "layer_types": ["sliding_attention"] * 3}, "layer_types"),
    ({"model_type": "qwen3", "layer_types": ["full_attention"] * 5}, "for each of 3 layers .*; got a list of 5"),
    ({"model_type": "qwen3", "layer_types": 3}, "for each of 3 layers .*; got 3"),
    ({"rope_theta": float("nan")}, "rope_theta must be a positive number .*; got nan"),
    ({"model_type": "phi3", "original_max_position_embeddings": -1}, "original_max_position_embeddings must be a pos"),
    ({"rope_parameters": {"rope_type": "default", "original_max_position_embeddings": 0}}, "must be a positive number"),
    ({"model_type": "phi3", "partial_rotary_factor": float("nan")}, "partial_rotary_factor must be a positive number"),
    (
        {"model_type": "phi3", "rope_parameters": {"partial_rotary_factor": -0.5}, "partial_rotary_factor": 1.0},
        "partial_rotary_factor must be a positive number",
    ),
    ({"model_type": "phi3", "attention_bias": True}, "attention_bias = True is not implemented for model_type phi3"),
    (
        {"model_type": "phi3", "partial_rotary_factor": 0.4},
        "an even number of coordinates in 2..8 .* gives 3",
    ),
    ({"model_type": "phi3", "partial_rotary_factor": 1.5}, "in 2..8 to rotate; 1.5 gives 12"),
    (
        {"model_type": "phi3", "partial_rotary_factor": 0.5, "rope_parameters": {"partial_rotary_factor": 1.0}},
        "leave one",
    ),
    ({"model_type": "phi3", "rope_scaling": LLAMA3}, "'llama3' is not implemented; only default and longrope are"),
    ({"model_type": "phi3", "rope_scaling": LONG | {"short_factor": 2.0}}, "must be lists of numbers"),
    (
        {"model_type": "phi3", "rope_scaling": LONG | {"long_factor": ["a"]}},
        "each short_factor and long_factor must",
    ),
    ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
    (
        {
            "rope_parameters": {
                "full_attention": {"rope_type": "default"},
                "sliding_attention": {"rope_type": "default"},
            }
        },
        "full_attention",
    ),
]


@pytest.mark.parametrize(("change", "match"), IMPOSSIBLE)
def test_impossible_config(change, match):
    with pytest.raises(DataError, match=match):
        LlamaConfig.from_hf(BASE | change)


def test_missing_kv_heads_are_all_heads_in_llama_alone():
    silent = {key: value for key, value in BASE.items() if key != "num_key_value_heads"}
    assert LlamaConfig.from_hf(silent).n_kv_heads == 4
    assert LlamaConfig.from_hf(silent | {"num_key_value_heads": None}).n_kv_heads == 4
    for model_type in ("mistral", "qwen2"):
        with pytest.raises(DataError, match=r"n_kv_heads \(num_key_value_heads\) is missing"):
            LlamaConfig.from_hf(silent | {"model_type": model_type})


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"rope_theta": 5e5}, {"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}),
        ({"rope_theta": 5e5, "rope_scaling": None}, {"rope_parameters": {"rope_theta": 5e5}}),
        ({}, {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 1.0}, "pretraining_tp": 2}),
        (
            {"rope_theta": 5e5, "rope_scaling": LLAMA3},
            {"rope_theta": 5e5, "rope_parameters": LLAMA3 | {"rope_theta": 5e5}},
        ),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, {"rope_parameters": {"rope_type": "linear", "factor": 2}}),
        (
            PHI3 | {"original_max_position_embeddings": 12, "partial_rotary_factor": 1.0, "rope_scaling": LONG_OF_2024},
            PHI3
            | {
                "rope_parameters": LONG | {"original_max_position_embeddings": 12, "partial_rotary_factor": 1.0},
                "original_max_position_embeddings": 12,
            },
        ),
    ],
)
def test_old_and_new_files_say_the_same(old, new):
    assert LlamaConfig.from_hf(BASE | old) == LlamaConfig.from_hf(BASE | new)


def test_llama3_scaling_of_a_file_that_is_silent_about_the_original_context():
    scaling = {key: value for key, value in LLAMA3.items() if key != "original_max_position_embeddings"}
    cfg = LlamaConfig.from_hf(BASE | {"rope_scaling": scaling})
    assert cfg.rope_scaling == RopeScaling("llama3", 8.0, 1.0, 4.0, 24)


@pytest.mark.parametrize("hf", VARIANTS.values(), ids=VARIANTS)
def test_config_round_trip(hf):
    config = CLASSES[hf["model_type"]][0](**{key: value for key, value in hf.items() if key != "model_type"})
    cfg = LlamaConfig.from_hf(config.to_dict())
    assert LlamaConfig.from_hf(cfg.to_hf()) == cfg
    theirs = type(config)(**cfg.to_hf())
    assert LlamaConfig.from_hf(theirs.to_dict()) == cfg


def test_new_fields_leave_the_identity_of_older_stores_as_it_was():
    cfg = LlamaConfig.from_hf(BASE | {"rope_scaling": LLAMA3})
    fields = deciding_fields(cfg)
    assert fields["rope_scaling"] == {"kind": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                      "original_n_ctx": 16}  # fmt: skip
    assert not fields.keys() & {"rotary_factor", "head_bias"}
    phi3 = deciding_fields(LlamaConfig.from_hf(VARIANTS["phi3 with longrope, rotated in part"]))
    assert phi3["rotary_factor"] == 0.75
    assert phi3["rope_scaling"].keys() == {*fields["rope_scaling"], "attention_factor", "short_factors", "long_factors"}


def test_several_ids_may_end_a_text():
    cfg = LlamaConfig.from_hf(BASE | {"eos_token_id": [3, 5]})
    assert cfg.eos_token_id == (3, 5)
    assert cfg.to_hf()["eos_token_id"] == [3, 5]


PUBLISHED = {  # what their config.json says, as transformers wrote it then, and how many parameters they have
    "Llama 2 7B": (
        {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
         "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 32000, "max_position_embeddings": 4096,
         "rope_scaling": None, "pretraining_tp": 1, "rms_norm_eps": 1e-5, "hidden_act": "silu"},
        6_738_415_616,
    ),
    "Llama 3.1 8B": (
        {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
         "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
         "rope_theta": 500000.0, "rope_scaling": LLAMA3 | {"original_max_position_embeddings": 8192},
         "attention_bias": False, "mlp_bias": False, "eos_token_id": [128001, 128008, 128009]},
        8_030_261_248,
    ),
    "Llama 3.2 1B": (
        {"model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "head_dim": 64,
         "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
         "rope_theta": 500000.0, "rope_scaling": LLAMA3 | {"factor": 32.0}, "tie_word_embeddings": True},
        1_235_814_400,
    ),
    "Mistral 7B v0.1": (
        {"model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
         "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000, "max_position_embeddings": 32768,
         "sliding_window": 4096, "rope_theta": 10000.0},
        7_241_732_096,
    ),
    "Qwen2 0.5B": (
        {"model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
         "num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 151936, "max_position_embeddings": 131072,
         "max_window_layers": 24, "sliding_window": 131072, "use_sliding_window": False, "tie_word_embeddings": True,
         "rope_theta": 1000000.0},
        494_032_768,
    ),
    "Qwen3 0.6B": (
        {"model_type": "qwen3", "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
         "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
         "max_position_embeddings": 40960, "max_window_layers": 28, "sliding_window": None, "rope_scaling": None,
         "use_sliding_window": False, "tie_word_embeddings": True, "rope_theta": 1000000, "attention_bias": False},
        596_049_920,
    ),
    "Qwen3 8B, stretched as its card says": (
        {"model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36,
         "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
         "max_position_embeddings": 40960, "max_window_layers": 36, "sliding_window": None, "rope_theta": 1000000,
         "use_sliding_window": False, "rope_scaling": {
             "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}},
        8_190_735_360,
    ),
    "Phi-3 mini 4k": (
        {"model_type": "phi3", "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 32,
         "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 32064, "max_position_embeddings": 4096,
         "original_max_position_embeddings": 4096, "rope_scaling": None, "rope_theta": 10000.0, "sliding_window": 2047,
         "auto_map": {}, "embd_pdrop": 0.0, "resid_pdrop": 0.0, "attention_bias": False, "rms_norm_eps": 1e-05},
        3_821_079_552,
    ),
    "Phi-3.5 mini": (
        {"model_type": "phi3", "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 32,
         "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 32064, "max_position_embeddings": 131072,
         "original_max_position_embeddings": 4096, "rope_theta": 10000.0, "sliding_window": 262144, "rope_scaling": {
             "type": "longrope", "short_factor": [1.0 + i / 50 for i in range(48)],
             "long_factor": [1.0 + i for i in range(48)]}},
        3_821_079_552,
    ),
    "Phi-4 mini": (
        {"model_type": "phi3", "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 32,
         "num_attention_heads": 24, "num_key_value_heads": 8, "vocab_size": 200064, "max_position_embeddings": 131072,
         "original_max_position_embeddings": 4096, "rope_theta": 10000.0, "sliding_window": 262144,
         "partial_rotary_factor": 0.75, "tie_word_embeddings": True, "rope_scaling": {
             "type": "longrope", "short_factor": [1.0] * 48, "long_factor": [1.0 + i for i in range(48)]}},
        3_836_021_760,
    ),
    "Phi-4": (
        {"model_type": "phi3", "hidden_size": 5120, "intermediate_size": 17920, "num_hidden_layers": 40,
         "num_attention_heads": 40, "num_key_value_heads": 10, "vocab_size": 100352, "max_position_embeddings": 16384,
         "original_max_position_embeddings": 16384, "rope_theta": 250000, "rope_scaling": None, "sliding_window": None},
        14_659_507_200,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("hf", "parameters"), PUBLISHED.values(), ids=PUBLISHED)
def test_published_sizes(hf, parameters):
    cfg = LlamaConfig.from_hf(hf)
    assert cfg.sliding_window == (hf.get("sliding_window") if hf["model_type"] in ("mistral", "phi3") else None)
    assert cfg.n_ctx == (4096 if "short_factor" in (hf.get("rope_scaling") or {}) else hf["max_position_embeddings"])
    assert LlamaConfig.from_hf(cfg.to_hf()) == cfg
    with torch.device("meta"):
        assert sum(p.numel() for p in Llama(cfg).parameters()) == parameters


@pytest.mark.parametrize(
    "name",
    [
        "grouped",
        "tied",
        "biases",
        "llama3",
        "mistral with a window",
        "qwen2 with a window",
        "qwen3 with a window",
        "phi3 with a window",
        "phi3, rotated in part",
        "phi3 with longrope",
    ],
)
def test_folders_of_transformers_load(tmp_path, name):
    """Written by transformers, read by us; written by us, read by transformers and by us."""
    oracle, model = twins(VARIANTS[name])
    oracle.save_pretrained(tmp_path / "theirs")
    loaded = load_model(tmp_path / "theirs", device="cpu")
    assert isinstance(loaded, Llama)
    assert loaded.fingerprint() == model.fingerprint()
    save_hf(loaded, tmp_path / "ours")
    assert load_model(tmp_path / "ours", device="cpu").fingerprint() == model.fingerprint()
    again = type(oracle).from_pretrained(tmp_path / "ours").eval()
    with torch.no_grad():
        assert error(loaded(tokens_for(model)), oracle(tokens_for(model)).logits) <= 1e-5
        assert error(again(tokens_for(model)).logits, oracle(tokens_for(model)).logits) <= 1e-5


def test_a_fused_tensor_that_does_not_fit_is_named(tmp_path):
    save_hf(twins(VARIANTS["phi3"])[1], tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    fused = {i: f"model.layers.{i}.self_attn.qkv_proj.weight" for i in range(3)}
    weights[fused[1]] = weights[fused[1]][:-1]
    weights["model.layers.0.self_attn.q_proj.weight"] = torch.ones(32, 32)
    del weights[fused[2]]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(DataError) as caught:
        load_model(tmp_path, device="cpu")
    assert f"missing: {fused[2]} [64, 32]; unexpected: model.layers.0.self_attn.q_proj.weight; " in str(caught.value)
    assert f"misshapen: {fused[1]} (expected [64, 32], found [63, 32])" in str(caught.value)


@pytest.mark.parametrize("prefix", [HF_PREFIX, ""])
def test_files_of_bare_and_of_old_models_load(tmp_path, prefix):
    oracle, model = twins(VARIANTS["tied"])
    save_hf(model, tmp_path)
    weights = {prefix + name: x for name, x in oracle.model.state_dict().items()}
    old = {f"{prefix}layers.{i}.self_attn.rotary_emb.inv_freq": torch.ones(4) for i in range(3)}
    save_file(weights | old, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert load_model(tmp_path, device="cpu").fingerprint() == model.fingerprint()


def test_random_weights_of_a_folder(tmp_path, model):
    save_hf(model, tmp_path)
    for dtype in ("float32", "bfloat16"):
        random = load_model(tmp_path, device="cpu", random_init=True, seed=1, dtype=dtype)
        with torch.no_grad():
            assert random(tokens_for(model)).isfinite().all()


def test_a_tokenizer_that_does_not_fit_the_vocabulary(tmp_path):
    """Its ids reach beyond the 17 rows of the embedding."""
    model = Llama(LlamaConfig(8, 2, 1, 4, 8, 1, 16, 17)).init_weights()
    save_hf(model, tmp_path)
    words = {f"w{i}": i for i in range(20)}
    backend = Backend(WordLevel(words, unk_token="w0"))
    backend.pre_tokenizer = WhitespaceSplit()
    backend.save(str(tmp_path / "tokenizer.json"))
    loaded = load_model(tmp_path, device="cpu")
    assert loaded.to_tokens("w16 w3").tolist() == [[16, 3]]
    with pytest.raises(DataError, match=r"token 'w18' has id 18, and the model knows 0\.\.16 only"):
        loaded.to_tokens("w3 w18")


@pytest.mark.shared
def test_stories_model(shared_dir: Path):
    """1.509 nats a token on TinyStories, each paragraph after a BOS; greedy text is of a girl named Lily."""
    model = load_model(shared_dir / "models/stories260k-llama", device="cpu")
    assert sum(p.numel() for p in model.parameters()) < 300_000
    text = (shared_dir / "data/text/tinystories_2MiB.txt").read_text()
    paragraphs = [p for p in text.split("\n") if len(p) > 100][:40]
    losses = []
    with torch.no_grad():
        for paragraph in paragraphs:
            tokens = model.to_tokens(paragraph, bos=True)[:, :256]
            losses.append(cross_entropy(model(tokens)[0, :-1], tokens[0, 1:], reduction="none"))
        greedy = model.to_tokens("Once upon a time", bos=True)
        for _ in range(20):
            greedy = torch.cat([greedy, model(greedy)[:, -1:].argmax(-1)], 1)
    assert len(torch.cat(losses)) == 4103
    assert torch.cat(losses).mean().item() == pytest.approx(1.509, abs=5e-4)
    assert model.tokenizer is not None
    assert "there was a little girl named Lily" in model.tokenizer.decode(greedy[0].tolist())
