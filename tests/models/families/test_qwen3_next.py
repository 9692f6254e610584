"""Qwen3-Next and Qwen3.5: the delta rule against its definition, texts side by side, and what a layer keeps of them."""

from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_configs import SIZES, new_model
from torch import Tensor
from torch.nn.functional import sigmoid, silu
from transformers_twins import error, tokens_for, twins

from probekit.activations.plan.packing import pack
from probekit.activations.plan.token_ids import Sequences
from probekit.errors import UsageError
from probekit.models.cache import LayerCache, RecurrentCache
from probekit.models.delta_rule import CHUNK, FORGOTTEN, delta_rule
from probekit.models.families.moe import SoftmaxAndShared
from probekit.models.families.qwen3_next import Qwen3NextConfig
from probekit.models.load import load_model
from probekit.models.weights import save_hf

FULL, LINEAR = "full_attention", "linear_attention"
# The output of a head of DeltaNet is divided by its size. With the usual 1e-6, rounding would show where a head reads
# next to nothing, as of the first token of a text, in transformers' numbers as much as in these.
EPS = 1e-2
DELTA: Any = {"norm_eps": EPS, "rotary_factor": 0.5, "layer_types": (LINEAR, FULL, LINEAR)}
DELTA |= {"n_key_heads": 2, "d_key_head": 6, "n_value_heads": 4, "d_value_head": 5}
TINY_SIZES: Any = SIZES | DELTA | {"n_kv_heads": 2, "d_head": 8}
EXPERTS: Any = {"d_mlp": 24, "n_experts": 6, "n_active_experts": 3, "d_shared_mlp": 20}
NONE: Any = dict.fromkeys(("n_experts", "n_active_experts", "d_shared_mlp"))
TINY = {
    "qwen3-next": Qwen3NextConfig(**TINY_SIZES | EXPERTS, dense_layers=(0,), d_dense_mlp=40, tie_embeddings=True),
    "qwen3.5": Qwen3NextConfig(**TINY_SIZES | NONE, model_type="qwen3_5_text"),
    "qwen3.5-moe": Qwen3NextConfig(
        **TINY_SIZES | EXPERTS | {"layer_types": (FULL, FULL, LINEAR)}, conv_width=3, model_type="qwen3_5_moe_text"
    ),
}
BASE = {
    "model_type": "qwen3_5_text", "hidden_size": 32, "intermediate_size": 20, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 61, "max_position_embeddings": 24,
    "linear_num_key_heads": 2, "linear_key_head_dim": 6, "linear_num_value_heads": 4, "linear_value_head_dim": 5,
    "rope_parameters": {"rope_theta": 100.0, "rope_type": "default", "partial_rotary_factor": 0.5},
    "rms_norm_eps": EPS,
}  # fmt: skip
MOE = BASE | {
    "model_type": "qwen3_5_moe_text", "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 12,
    "shared_expert_intermediate_size": 16, "num_hidden_layers": 2, "layer_types": [LINEAR, FULL],
}  # fmt: skip
del MOE["intermediate_size"]
NEXT = MOE | {"model_type": "qwen3_next", "intermediate_size": 20}
YARN = {"rope_theta": 100.0, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 6}
VARIANTS = {
    "qwen3_5_text": BASE,
    "qwen3_5_text, as many keys as values": BASE
    | {"linear_num_key_heads": 4, "linear_conv_kernel_dim": 2, "attention_bias": True, "tie_word_embeddings": True},
    "qwen3_5_moe_text": MOE,
    "qwen3_next with dense layers": NEXT
    | {"num_hidden_layers": 4, "layer_types": None, "full_attention_interval": 2, "mlp_only_layers": [0, 1],
       "norm_topk_prob": False, "rope_parameters": YARN | {"partial_rotary_factor": 0.5}},
    "qwen3_next": NEXT,
}  # fmt: skip
FEATURES = [
    ("qwen3_next with dense layers", {"norm_top_k": True}),
    ("qwen3_5_text", {"rotary_factor": 0.25}),
]


RULE: Any = delta_rule


def step_by_step(q: Tensor, k: Tensor, v: Tensor, keep: Tensor, replace: Tensor, memory: Tensor) -> Any:
    """The definition, of heads that share nothing: token by token, in float64."""
    q, k, v, keep, replace, memory = (x.double() for x in (q, k, v, keep, replace, memory))
    repeats, read = v.shape[2] // k.shape[2], []
    for t in range(q.shape[1]):
        memory = memory * keep[:, t].exp()[..., None, None]
        q_t, k_t = (x[:, t].repeat_interleave(repeats, 1) for x in (q, k))
        new = replace[:, t, :, None] * (v[:, t] - torch.einsum("bnkv,bnk->bnv", memory, k_t))
        memory = memory + torch.einsum("bnk,bnv->bnkv", k_t, new)
        read.append(torch.einsum("bnkv,bnk->bnv", memory, q_t))
    return torch.stack(read, 1), memory


def drawn(B: int, L: int, J: int, N: int) -> Any:
    """Operands of the rule, of which some tokens forget nearly nothing and others all."""
    generator = torch.Generator().manual_seed(L)
    draw = lambda *shape: torch.randn(shape, generator=generator)  # noqa: E731
    q, k = (torch.nn.functional.normalize(draw(B, L, J, 6), dim=-1) for _ in range(2))
    return [q, k, draw(B, L, N, 5), -draw(B, L, N).exp().pow(3), draw(B, L, N).sigmoid(), draw(B, N, 6, 5)]


@pytest.mark.parametrize("L", [1, 2, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 7])
@pytest.mark.parametrize(("J", "N"), [(2, 4), (3, 3)])
def test_the_delta_rule_equals_its_definition(L, J, N):
    operands = drawn(2, L, J, N)
    for got, wanted in zip(RULE(*operands), step_by_step(*operands), strict=True):
        assert error(got.double(), wanted) <= 1e-6
    for got, wanted in zip(RULE(*operands[:-1], None), RULE(*operands[:-1], 0 * operands[-1]), strict=True):
        assert torch.equal(got, wanted)
    whole = torch.autograd.grad(step_by_step(*(at := [x.requires_grad_() for x in operands]))[0].sum(), at)
    for got, wanted in zip(torch.autograd.grad(RULE(*at)[0].sum(), at), whole, strict=True):
        assert error(got, wanted) <= 1e-5


@pytest.mark.parametrize("starts", [[0, 5, 6, 64], [0, 63, 65, 130], [0]])
def test_a_text_finds_nothing_of_those_before_it(starts):
    """Nor of a memory that is as large as numbers go: what is forgotten is 0, not small."""
    L = 150
    *operands, memory = drawn(1, L, 2, 4)
    keep = operands[3]
    keep[:, starts] = FORGOTTEN
    (read, last), after = RULE(*operands, memory * 1e30), memory
    for start, end in zip(starts, [*starts[1:], L], strict=True):
        own, after = RULE(*(x[:, start:end] for x in operands), None)
        assert error(read[:, start:end], own) <= 1e-6
    assert error(last, after) <= 1e-6


@pytest.fixture(scope="module", params=TINY)
def model(request) -> Any:
    return new_model(request.param)


def test_what_came_before_a_text_in_its_row_changes_nothing_of_it(model):
    """And what is told to be one text is one: the memory passes on."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.tensor([1, 2, 9, 3, 12])
    texts = torch.repeat_interleave(torch.arange(5), lengths)
    tokens = torch.randint(50, (3, 27), generator=generator)
    tokens[1:, -12:] = tokens[0, -12:]
    positions = torch.cat([torch.arange(n) for n in lengths.tolist()]).expand(3, -1)
    mask = (texts[:, None] == texts) & torch.ones(27, 27, dtype=torch.bool).tril()
    with torch.no_grad():
        _, packed = model.run_with_cache(tokens, positions, mask.expand(3, -1, -1))
        _, alone = model.run_with_cache(tokens[:1, -12:])
        joined = model(tokens[:, 2:25], torch.arange(23).expand(3, -1), torch.ones(3, 23, 23, dtype=torch.bool).tril())
    for full, x in packed.items():
        if "L M" not in model.points[full].axes:
            assert error(x[:, -12:], alone[full].expand(3, *alone[full].shape[1:])) <= 5e-6, full
    assert error(joined[1], joined[0]) > 1e-3


def test_a_layer_with_deltanet_has_no_points_of_attention(model):
    kinds = model.cfg.layer_types
    layers = {kind: [i for i, own in enumerate(kinds) if own == kind] for kind in (FULL, LINEAR)}
    assert model.layers_of("mixer_out") == list(range(3))
    for point in ("attn_out", "z", "attn_gate", "q", "k_norm", "rot_q", "attn_pattern", "result"):
        assert model.layers_of(point) == layers[FULL]
        with pytest.raises(UsageError, match=rf"no point {point}\.2: layers with DeltaNet have no attention; take"):
            model.resolve((point, 2))
    _, cache = model.run_with_cache(tokens_for(model))
    for layer in layers[FULL]:
        assert torch.equal(cache["attn_out", layer], cache["mixer_out", layer])
    with torch.no_grad(), model.hooks([("attn_out", lambda x, _: 2 * x)]):
        _, doubled = model.run_with_cache(tokens_for(model))
    assert torch.equal(doubled["mixer_out", layers[FULL][0]], doubled["attn_out", layers[FULL][0]])


def test_a_cache_keeps_as_much_of_a_long_text_as_of_a_short_one(model):
    def held(length: int) -> list[list[int]]:
        cache: Any = model.empty_cache()
        mask = torch.ones(1, length, length, dtype=torch.bool).tril()
        model(tokens_for(model, 1, length), torch.arange(length)[None], mask, cache=cache)
        recurrent = lambda layer: [layer.recent.numel(), layer.memory.numel()]  # noqa: E731
        return [recurrent(layer) if type(layer) is RecurrentCache else [layer.length] for layer in cache]

    kinds = [LayerCache if kind == FULL else RecurrentCache for kind in model.cfg.layer_types]
    assert [type(layer) for layer in model.empty_cache()] == kinds
    for short, long, kind in zip(held(5), held(20), kinds, strict=True):
        assert long == ([20] if kind is LayerCache else short)


def test_the_shared_expert_computes_every_token():
    model = twins(VARIANTS["qwen3_next"])[1]
    _, cache = model.run_with_cache(tokens_for(model))
    for i, block in enumerate(model.blocks):
        mlp, x = block.mlp, cache["ln2_normalized", i]
        assert isinstance(mlp, SoftmaxAndShared)
        of = lambda e, x=x: (silu(x @ e.gate.weight.T) * (x @ e.up.weight.T)) @ e.down.weight.T  # noqa: E731
        routed = torch.einsum("ble,bled->bld", cache["expert_weights", i], torch.stack([of(e) for e in mlp.experts], 2))
        shared = sigmoid(x @ mlp.shared_gate.weight.T) * of(mlp.shared)
        assert error(cache["mlp_out", i], routed + shared) <= 1e-6
        assert shared.abs().max() > 1e-3


def test_layers_that_predict_several_tokens_are_left_out_of_a_file(model, tmp_path):
    save_hf(model, tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    extra = {"mtp.fc.weight": torch.ones(2, 2), "mtp.layers.0.mlp.gate.weight": torch.ones(1)}
    save_file(weights | extra, tmp_path / "model.safetensors", metadata={"format": "pt"})
    loaded = load_model(tmp_path, device="cpu")
    assert (loaded.left_out, loaded.fingerprint()) == (("a multi-token prediction head",), model.fingerprint())
    assert load_model(tmp_path, device="cpu", via="transformers").left_out == loaded.left_out
    save_hf(model, tmp_path)
    assert load_model(tmp_path, device="cpu").left_out == ()


def test_texts_that_begin_alike_share_nothing_and_a_text_goes_on_from_one_that_it_begins_with():
    texts = [[1, 2], [1, 2, 3], [1, 2, 3], [1, 2, 4], [1, 2, 3, 5], [7]]
    packing = pack(Sequences.of(texts), 20, share=True, forks=False)
    batch = packing.batch(np.arange(1))
    assert packing.nodes == 4 + 3 + 1
    assert {tuple(batch.position_ids[0].tolist())} == {(0, 1, 2, 3, 0, 1, 2, 0)}
    paths = np.split(batch.nodes, batch.starts[1:])
    for row, path in zip(batch.rows, paths, strict=True):
        assert batch.tokens[0, path].tolist() == texts[row]
        assert (np.diff(path) == 1).all()


_LAYERS = {"full_attention_interval": 4, "linear_num_key_heads": 16, "linear_key_head_dim": 128, "head_dim": 256}
_LAYERS |= {"linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "max_position_embeddings": 262144}
_ROPE = {"rope_theta": 10000000, "rope_type": "default", "partial_rotary_factor": 0.25}
_TEXT = _LAYERS | {
    "vocab_size": 248320, "attn_output_gate": True, "mamba_ssm_dtype": "float32", "mtp_num_hidden_layers": 1,
    "rope_parameters": _ROPE | {"mrope_section": [11, 11, 10], "mrope_interleaved": True},
}  # fmt: skip
PUBLISHED = {  # the text models' fields of config.json, and their parameters without those of the extra layers
    "Qwen3-Next 80B-A3B": (
        _LAYERS | {
            "model_type": "qwen3_next", "hidden_size": 2048, "intermediate_size": 5120, "num_hidden_layers": 48,
            "num_attention_heads": 16, "num_key_value_heads": 2, "vocab_size": 151936, "moe_intermediate_size": 512,
            "shared_expert_intermediate_size": 512, "num_experts": 512, "num_experts_per_tok": 10,
            "mlp_only_layers": [], "decoder_sparse_step": 1, "norm_topk_prob": True, "linear_num_value_heads": 32,
            "rope_theta": 10000000,
            "partial_rotary_factor": 0.25, "rope_scaling": None, "tie_word_embeddings": False, "hidden_act": "silu",
        },
        79_674_391_296,
    ),
    "Qwen3.5 4B": (
        _TEXT | {
            "model_type": "qwen3_5_text", "hidden_size": 2560, "intermediate_size": 9216, "num_hidden_layers": 32,
            "num_attention_heads": 16, "num_key_value_heads": 4, "linear_num_value_heads": 32,
            "tie_word_embeddings": True,
        },
        4_205_751_296,
    ),
    "Qwen3.5 27B": (
        _TEXT | {
            "model_type": "qwen3_5_text", "hidden_size": 5120, "intermediate_size": 17408, "num_hidden_layers": 64,
            "num_attention_heads": 24, "num_key_value_heads": 4, "linear_num_value_heads": 48,
        },
        26_895_998_464,
    ),
    "Qwen3.5 35B-A3B": (
        _TEXT | {
            "model_type": "qwen3_5_moe_text", "hidden_size": 2048, "num_hidden_layers": 40, "num_attention_heads": 16,
            "num_key_value_heads": 2, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
            "num_experts": 256, "num_experts_per_tok": 8, "linear_num_value_heads": 32,
        },
        34_660_610_688,
    ),
}  # fmt: skip
_REFUSED = [
    (NEXT, {"attn_output_gate": False}, "attn_output_gate = False is not implemented for model_type qwen3_next"),
    (NEXT, {"num_experts_per_tok": 6}, r"\(num_experts_per_tok\) 6 is more than n_experts \(num_experts\) 5"),
    (NEXT, {"mlp_only_layers": [2]}, r"mlp_only_layers must lie in 0\.\.1; got 2"),
    (NEXT, {"mlp_only_layers": [0], "intermediate_size": None}, r"d_dense_mlp \(intermediate_size\) must be"),
    (NEXT, {"shared_expert_intermediate_size": 0}, r"d_shared_mlp \(shared_expert_intermediate_size\) must be"),
    (NEXT, {"num_experts": 0}, r"n_experts \(num_experts\) must be a whole number in 1"),
    (BASE, {"linear_num_value_heads": 3}, r"n_value_heads \(linear_num_value_heads\) 3 must be a multiple"),
    (BASE, {"layer_types": [LINEAR] * 3}, "for each of 4 layers .*; got a list of 3"),
    (BASE, {"layer_types": ["sliding_attention"] * 4}, "unknown layer_types 'sliding_attention'"),
    (BASE, {"full_attention_interval": 0}, "full_attention_interval must be a whole number from 1; got 0"),
    (BASE, {"rope_parameters": {"partial_rotary_factor": 0.1}}, "must give an even number of coordinates"),
    (BASE, {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "'dynamic' is not implemented"),
]
IMPOSSIBLE = [(base | change, match) for base, change, match in _REFUSED]
OLD_AND_NEW = [
    (NEXT | {"rope_parameters": None, "rope_theta": 1e7, "partial_rotary_factor": 0.25, "rope_scaling": None},
     NEXT | {"rope_parameters": _ROPE}),
    (BASE | {"rope_parameters": _ROPE},
     BASE | {"rope_parameters": _ROPE | {"mrope_section": [11, 11, 10], "mrope_interleaved": True}}),
    (BASE | {"layer_types": [LINEAR, LINEAR, LINEAR, FULL]}, BASE),
]  # fmt: skip
