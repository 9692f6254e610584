"""Computed positions against their closed forms, `transformers` and the property that rotations are made for."""

import copy
import math
from functools import partial

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb
from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding

from probekit.errors import DataError
from probekit.models.positional import (
    ComputedTable,
    RopeScaling,
    Rotary,
    frequencies,
    rotary_table,
    rotate_half,
    rotate_interleaved,
    sinusoids,
    sinusoids_in_halves,
)
from probekit.models.rope_fields import rope_from_hf, rope_to_hf

ROTATIONS = [rotate_half, rotate_interleaved]


@pytest.mark.parametrize("d_model", [6, 7, 1])
def test_sinusoids_are_the_papers(d_model):
    table = sinusoids(torch.arange(50), d_model)
    assert table.shape == (50, d_model)
    for position in (0, 1, 7, 49):
        for j in range(d_model):
            angle = position / 10000 ** (2 * (j // 2) / d_model)
            expected = math.cos(angle) if j % 2 else math.sin(angle)
            assert table[position, j].item() == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize("d_model", [8, 7])
def test_sinusoids_in_halves_are_marians(d_model):
    theirs = MarianSinusoidalPositionalEmbedding(30, d_model)
    assert torch.equal(sinusoids_in_halves(torch.arange(30), d_model), theirs.create_weight())
    ours, halves = sinusoids(torch.arange(30), d_model), sinusoids_in_halves(torch.arange(30), d_model)
    assert torch.equal(torch.cat([ours[:, 0::2], ours[:, 1::2]], 1), halves)


def test_a_table_has_the_rows_that_were_read_and_the_same_numbers_whatever_was_read_before():
    make = partial(rotary_table, d_head=6, theta=500.0, scaling=None)
    n, asked = 5000, []

    def counting(positions):
        asked.extend(positions.tolist())
        return make(positions)

    one, other = ComputedTable(counting, n), ComputedTable(make, n)
    for largest, made in ((0, 1024), (1023, 1024), (1024, 2048), (7, 2048), (n - 1, n)):
        rows = one(torch.tensor([0, largest]))
        assert asked[-1] == made - 1
        assert torch.equal(rows, other(torch.arange(n))[[0, largest]])
    with pytest.raises(IndexError):
        one(torch.tensor([n]))
    assert torch.allclose(other(torch.arange(n)), make(torch.arange(n)), atol=1e-6)


@pytest.mark.parametrize("how", ["meta", "bfloat16 and back", "float64", "copy", "inference"])
def test_a_table_survives_what_happens_to_models(how):
    index = torch.arange(6)
    expected = sinusoids(index, 4)
    if how == "meta":
        with torch.device("meta"):
            table = ComputedTable(partial(sinusoids, d_model=4), 6)
        table.to("cpu")
    else:
        table = ComputedTable(partial(sinusoids, d_model=4), 6)
        with torch.inference_mode(how == "inference"):
            table(index)
    if how == "bfloat16 and back":
        table.to(torch.bfloat16)
        assert torch.equal(table(index), expected)
        table.float()
    table = table.double() if how == "float64" else copy.deepcopy(table) if how == "copy" else table
    assert torch.equal(table(index), expected)
    assert not table.state_dict()
    scale = torch.ones((), requires_grad=True)
    (table(index) * scale).sum().backward()  # rows made in inference mode could not be kept for this
    assert scale.grad is not None


def turned_by_complex_numbers(x, position_ids, theta, rotate):
    """exp(i position theta^(-2j / K)) times the complex number that a pair of coordinates is."""
    half = x.shape[-1] // 2
    z = torch.complex(*(x.chunk(2, -1) if rotate is rotate_half else (x[..., 0::2], x[..., 1::2])))
    angle = position_ids.double()[..., None, None] * theta ** (-torch.arange(half).double() / half)
    z = z * torch.polar(torch.ones_like(angle), angle)
    parts = [z.real, z.imag]
    return torch.cat(parts, -1) if rotate is rotate_half else torch.stack(parts, -1).flatten(-2)


@pytest.mark.parametrize("rotate", ROTATIONS)
def test_rotation_is_multiplication_by_a_complex_number(rotate):
    x = torch.randn(2, 5, 3, 8, dtype=torch.float64)
    position_ids = torch.tensor([[0, 1, 2, 3, 4], [7, 7, 0, 30, 12]])
    ours = rotate(x, Rotary(32, 8)(position_ids))
    assert torch.allclose(ours, turned_by_complex_numbers(x, position_ids, 10000.0, rotate), atol=1e-5)


def test_the_pairings_are_one_rotation_of_reordered_coordinates():
    x, rotation = torch.randn(2, 4, 3, 8), Rotary(16, 8)(torch.arange(4).expand(2, 4))
    order = torch.cat([torch.arange(0, 8, 2), torch.arange(1, 8, 2)])
    assert torch.equal(rotate_interleaved(x, rotation)[..., order], rotate_half(x[..., order], rotation))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_rotate_half_equals_transformers(dtype):
    config = LlamaConfig(
        hidden_size=32, num_attention_heads=2, max_position_embeddings=600,
        rope_parameters={"rope_theta": 500.0, "rope_type": "default"},
    )  # fmt: skip
    x = torch.randn(2, 600, 2, 16).to(dtype)
    position_ids = torch.arange(600).expand(2, 600)
    cos, sin = LlamaRotaryEmbedding(config)(x, position_ids)
    theirs, _ = apply_rotary_pos_emb(x, x, cos, sin, unsqueeze_dim=2)
    ours = rotate_half(x, Rotary(600, 16, 500.0)(position_ids))
    assert ours.dtype == dtype
    eps = torch.finfo(dtype).eps
    assert torch.allclose(ours, theirs, rtol=eps, atol=4 * eps)


SHORT = tuple(1 + i / 40 for i in range(32))
LONG = tuple(1 + i for i in range(32))


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (RopeScaling("linear", 2.5), {"rope_type": "linear", "factor": 2.5}),
        (
            RopeScaling("llama3", 8.0, 1.0, 4.0, 64),
            {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
             "original_max_position_embeddings": 64},
        ),
        (
            RopeScaling("llama3", 32.0, 2.0, 3.0, 1000),
            {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 2.0, "high_freq_factor": 3.0,
             "original_max_position_embeddings": 1000},
        ),
        (
            RopeScaling("yarn", 4.0, 1, 32, 1024, 0.1 * math.log(4) + 1),
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024},
        ),
        (
            RopeScaling("yarn", 8.0, 1, 32, 512, 0.7),
            {"rope_type": "yarn", "factor": None, "original_max_position_embeddings": 512, "attention_factor": 0.7,
             "mscale": 2.0, "mscale_all_dim": 3.0},
        ),
        (
            RopeScaling("yarn", 2.5, 3.0, 17.0, 64, (0.2 * math.log(2.5) + 1) / (0.05 * math.log(2.5) + 1)),
            {"rope_type": "yarn", "factor": 2.5, "original_max_position_embeddings": 64, "beta_slow": 3.0,
             "beta_fast": 17.0, "mscale": 2.0, "mscale_all_dim": 0.5, "truncate": True},
        ),
        (
            RopeScaling("yarn", 32.0, 1, 1, 4096, 1.0),  # as in Kimi K2
            {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, "beta_slow": 1.0,
             "beta_fast": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0},
        ),
        (
            RopeScaling("yarn", 32.0, 1, 32, 4096, 0.1 * math.log(32) + 1, truncate=False),  # as in GPT-OSS
            {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, "beta_slow": 1.0,
             "beta_fast": 32.0, "truncate": False},
        ),
        (
            RopeScaling("longrope", 2.0, 0, 0, 2048, math.sqrt(1 + math.log(2) / math.log(2048)), SHORT, LONG),
            {"rope_type": "longrope", "short_factor": [*SHORT], "long_factor": [*LONG],
             "original_max_position_embeddings": 2048},
        ),
        (
            RopeScaling("longrope", 2.0, 0, 0, 2048, math.sqrt(1 + math.log(8) / math.log(2048)), SHORT, LONG),
            {"rope_type": "longrope", "short_factor": [*SHORT], "long_factor": [*LONG], "factor": 8.0,
             "original_max_position_embeddings": 2048},
        ),
    ],
)  # fmt: skip
def test_scaled_frequencies_equal_transformers(ours, theirs):
    config = LlamaConfig(
        hidden_size=128,
        num_attention_heads=2,
        max_position_embeddings=4096,
        rope_parameters={"rope_theta": 1e4} | theirs,
    )
    expected, attention_factor = ROPE_INIT_FUNCTIONS[ours.kind](config, "cpu")
    found = frequencies(64, 1e4, ours)
    assert torch.allclose(found, expected, rtol=1e-6, atol=0)
    assert not torch.allclose(expected, frequencies(64, 1e4), rtol=1e-2, atol=0)
    rotated = torch.cat([(9 * expected).cos(), (9 * expected).sin()]) * attention_factor
    assert torch.allclose(rotary_table(torch.arange(10), 64, 1e4, ours)[9], rotated, atol=1e-6)
    for rope in ({"rope_theta": 1e4} | theirs, rope_to_hf(1e4, ours)):
        hf = {"max_position_embeddings": 4096, "rope_parameters": rope}
        assert rope_from_hf(hf, kinds=(ours.kind,)) == {"rope_theta": 1e4, "rope_scaling": ours}


def test_longrope_is_exact_in_the_original_context_alone():
    """transformers takes other factors for every token of a longer text."""
    scaling = RopeScaling("longrope", 2.0, original_n_ctx=16, short_factors=(1.0, 2.0), long_factors=(1.0, 3.0))
    Rotary(16, 4, scaling=scaling)
    with pytest.raises(DataError, match=r"not implemented for a context of 17 tokens; only up to original_.* 16 is"):
        Rotary(17, 4, scaling=scaling)
    with pytest.raises(DataError, match=r"short_factor must be 3 numbers, one for each pair of rotated .*; got 2"):
        Rotary(16, 6, scaling=scaling)


@pytest.mark.parametrize("where", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize("kind", [{}, {"rope_type": None}])
def test_a_factor_without_its_rule_is_refused(where, kind):
    with pytest.raises(DataError, match="rope scaling with 'factor' and no rope_type; give linear, llama3 or default"):
        rope_from_hf({where: {"factor": 2, **kind}})
    assert rope_from_hf({where: {"rope_theta": 500.0, **kind}}) == {"rope_theta": 500.0, "rope_scaling": None}


@pytest.mark.parametrize(
    ("scaling", "match"),
    [
        ({"kind": "ntk", "factor": 2.0}, "'ntk' is not implemented; only default, linear, llama3, yarn, longrope are"),
        ({"kind": "yarn", "factor": 2.0}, "yarn: low_freq_factor must be a positive number"),
        ({"kind": None, "factor": 2.0}, "not implemented"),
        ({"kind": "linear", "factor": 0}, "factor must be a positive number below 1e.15; got 0"),
        ({"kind": "linear", "factor": "2"}, "factor must be a positive number"),
        ({"kind": "llama3", "factor": 2.0}, "low_freq_factor must be a positive number below 1e.15; got 0"),
        (
            {"kind": "llama3", "factor": 2.0, "low_freq_factor": 4.0, "high_freq_factor": 4.0, "original_n_ctx": 8},
            "must be below",
        ),
    ],
)
def test_impossible_scaling(scaling, match):
    with pytest.raises(DataError, match=match):
        RopeScaling(**scaling)  # pyright: ignore[reportArgumentType]
