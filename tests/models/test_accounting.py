"""Parameters, memory and FLOPs from the shape alone, against the modules themselves and torch's own counter."""

import json
import math
import subprocess
import sys
import weakref
from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny_configs import LIKE_ANOTHER, tiny_configs
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from probekit.errors import UsageError
from probekit.models.accounting import (
    COMPONENTS,
    MATMULS,
    Account,
    account,
    cache_values,
    describe_account,
    forward_flops,
    norm_flops,
    parameters,
    point_sizes,
    working_values,
)
from probekit.models.families import families, family_of, named_shape, shape_of
from probekit.models.shapes import StackShape, decoder_shape
from probekit.points import Place

B, L = 2, 12
CONFIGS = {name: cfg for name, cfg in tiny_configs().items() if name not in LIKE_ANOTHER}
every_config = pytest.mark.parametrize("cfg", CONFIGS.values(), ids=CONFIGS.keys())


def build(cfg: Any, device: str = "meta") -> Any:
    with torch.device("meta"):
        model = family_of(cfg).model(cfg)
    return model if device == "meta" else model.to_empty(device=device).init_weights(0)


def logits_of(model: Any, tokens: list[Tensor]) -> Tensor:
    """The logits, or the last output of a model without a head."""
    return model(*tokens, return_logits=model.has_logits)


def inputs(cfg: Any, device: str = "meta", batch: int = B, context: int = L) -> list[Tensor]:
    tokens = torch.zeros(batch, context, dtype=torch.long, device=device)
    return [tokens] * len(shape_of(cfg).stacks)  # source and target


def test_every_family_that_loads_is_counted() -> None:
    tested = {type(cfg) for cfg in CONFIGS.values()}
    assert tested == {family.config for family in families().values()}


@every_config
def test_parameters_are_those_of_the_module(cfg: Any) -> None:
    assert parameters(shape_of(cfg)) == sum(p.numel() for p in build(cfg).parameters())


@every_config
def test_products_are_those_that_torch_counts(cfg: Any) -> None:
    device = "cpu" if shape_of(cfg).stacks[0].n_experts else "meta"  # experts are chosen by numbers
    solved = {torch.ops.aten.linalg_solve_triangular: lambda a, b, **_: math.prod(a) * b[-1]}  # torch counts none
    counter = FlopCounterMode(display=False, custom_mapping=solved)
    with sdpa_kernel(SDPBackend.MATH), counter:  # it knows no fused kernel of CPUs
        logits_of(build(cfg, device), inputs(cfg, device))
    flops = forward_flops(shape_of(cfg), L, B)
    assert sum(flops[name] for name in MATMULS) == counter.get_total_flops()
    assert list(flops) == list(COMPONENTS)


def test_closed_forms_of_a_plain_decoder() -> None:
    D, F, V, n = 1600, 6400, 50257, 48
    for context in (1024, 16384):
        flops = forward_flops(named_shape("gpt2-xl"), context)  # pyright: ignore[reportArgumentType]
        layers = n * (8 * context * D**2 + 4 * context**2 * D + 4 * context * D * F)
        assert sum(flops[name] for name in MATMULS if name != "head") == layers
        assert flops["head"] == 2 * context * D * V
        assert flops["QKV"] == n * 6 * context * D**2
        assert flops["scores"] == flops["weighted sum"] == n * 2 * context**2 * D
        assert flops["norms"] == (2 * n + 1) * 7 * context * D
        assert flops["embeddings"] == context * D


@every_config
def test_norms_are_counted_by_element(cfg: Any) -> None:
    """One output element of a norm for each of its FLOPs, as the points of a forward say."""
    model = build(cfg, "cpu")
    elements = 0

    def count(module: Any, _: Any, out: Tensor) -> None:
        nonlocal elements
        elements += out.numel()

    for module in model.modules():
        if hasattr(module, "hook_scale"):
            module.register_forward_hook(count)
    logits_of(model, inputs(cfg, "cpu"))
    each = norm_flops(shape_of(cfg).stacks[0])
    assert forward_flops(shape_of(cfg), L, B)["norms"] == each * elements


@every_config
def test_points_are_as_large_as_a_cache_of_all_of_them(cfg: Any) -> None:
    """In bfloat16, where scales of norms are wider than the rest."""
    dtype = "bfloat16"
    model = build(cfg, "cpu").to(torch.bfloat16)
    _, cache = model.run_with_cache(*inputs(cfg, "cpu"), return_logits=model.has_logits)
    sizes = point_sizes(shape_of(cfg), L, B, dtype)
    assert sum(size.layers for size in sizes) == len(cache) == len(model.points)
    assert sum(size.bytes for size in sizes) == sum(x.nbytes for x in cache.values())
    for size in sizes:
        of_point = [x for name, x in cache.items() if size.point in (name, short(name)) and x.shape == size.shape]
        assert len(of_point) == size.layers
        assert all(x.nbytes == size.bytes_each for x in of_point)


def short(name: str) -> str:
    return Place.of(name)[0]


class Living(TorchDispatchMode):
    """The largest number of bytes of results in memory at once; views of weights do not count."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
        self.storages: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for x in tree_leaves(out):
            if isinstance(x, Tensor) and x.untyped_storage().data_ptr() not in self.weights:
                self.storages[x.untyped_storage()] = x.untyped_storage().nbytes()
        self.peak = max(self.peak, sum(self.storages.values()))
        return out


@every_config
@pytest.mark.parametrize("d_vocab", [50, 1000])
def test_the_peak_memory_of_a_forward_is_about_the_estimate(cfg: Any, d_vocab: int) -> None:
    """To within a half: masks, ids and copies of the heads' results are left out, and tensors die when Python likes."""
    cfg = replace(cfg, d_vocab=d_vocab)
    model, tokens = build(cfg, "cpu"), inputs(cfg, "cpu")
    with torch.no_grad(), Living(model) as living:
        logits_of(model, tokens)
    estimate = 4 * working_values(shape_of(cfg), L, B)
    assert 0.5 * estimate < living.peak < 1.5 * estimate


@every_config
def test_the_cache_holds_keys_and_values_of_every_layer(cfg: Any) -> None:
    model, shape = build(cfg, "cpu"), shape_of(cfg)
    if not shape.cached:
        assert cache_values(shape, L, B) == 0
        return
    cache = model.empty_cache()
    *source, tokens = inputs(cfg, "cpu")
    positions, mask = torch.arange(L).expand(B, L), torch.ones(L, L).tril().bool().expand(B, L, L)
    read = [model.decode, model.encode(source[0])] if source else [model]
    read[0](tokens, *read[1:], position_ids=positions, attention_mask=mask, cache=cache)
    parts = ("keys", "values", "memory", "recent")
    held = tree_leaves([getattr(layer, part, None) for layer in dict.fromkeys(cache) for part in parts])
    assert cache_values(shape, L, B) == sum(x.numel() for x in held if x is not None)


PLAIN: dict[str, Any] = {"n_layers": 3, "d_model": 32, "n_heads": 4, "d_head": 16, "d_mlp": 24, "n_kv_heads": 2}
RMS: dict[str, Any] = {**PLAIN, **dict.fromkeys(("qkv_bias", "out_bias", "mlp_bias", "norm_shift"), False)}
RMS |= {"gated": True, "rotary": True}
EXPERTS: dict[str, Any] = {**RMS, "n_experts": 8, "n_active_experts": 2}


def test_parameters_that_compute_a_token() -> None:
    shape = decoder_shape("any", StackShape(**EXPERTS), 50, 64, False)
    found = account("mixture", shape)
    assert found.parameters - found.active_parameters == 3 * 6 * (3 * 32 * 24)
    assert "computing a token" in describe_account(found)
    assert "3 blocks with 8 experts of" in describe_account(found)
    assert small().active_parameters == small().parameters


def small(**how: Any) -> Account:
    return account("small", shape_of(CONFIGS["gpt2"]), **how)


def test_the_parts_of_an_account_sum_to_its_totals_and_are_json() -> None:
    counted = small(context=7, batch=3, dtype="bfloat16")
    assert sum(counted.shares.values()) == pytest.approx(1, abs=1e-12)
    assert counted.weights_bytes == 2 * counted.parameters
    facts = json.loads(json.dumps(counted.as_dict()))
    assert facts["flops"]["total"] == sum(x["flops"] for x in facts["flops"]["components"].values())
    blocks, outside = facts["parameters"]["blocks"], facts["parameters"]["outside"]
    assert facts["parameters"]["total"] == sum(b["layers"] * b["each"] for b in blocks) + sum(outside.values())
    assert facts["memory"]["all_points"] == sum(x["bytes"] for x in facts["memory"]["points"])


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"context": 0}, "context is a positive whole number of tokens; got 0"),
        ({"context": 1.5}, "got 1.5"),
        ({"batch": -1}, "batch is a positive whole number of texts; got -1"),
        ({"batch": True}, "got True"),
        ({"dtype": "float31"}, "unknown dtype 'float31'; did you mean float32"),
    ],
)
def test_what_cannot_be_counted(how: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        small(**how)


def test_counting_takes_no_torch() -> None:
    code = (
        "import sys\n"
        "from probekit.models.accounting import account\n"
        "from probekit.models.families import named_shape\n"
        "account('gpt2-xl', named_shape('gpt2-xl'), 16384).as_dict()\n"
        "print('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
