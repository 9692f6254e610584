"""Parameters, memory and FLOPs from the shape alone, against the modules themselves and torch's own counter."""

import json
import subprocess
import sys
import weakref
from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny_configs import tiny_configs
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from probekit.errors import UsageError
from probekit.models.accounting import (
    COMPONENTS,
    MATMULS,
    NORM_FLOPS,
    Account,
    account,
    block_parameters,
    cache_values,
    forward_flops,
    parameters,
    point_sizes,
    working_values,
)
from probekit.models.cache import KeyValueCache
from probekit.models.families import GPT2_SIZES, families, family_of, named_shape, shape_of
from probekit.models.families.gpt2 import GPT2Config

B, L = 2, 12
CONFIGS = tiny_configs()
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


@pytest.mark.parametrize(
    ("name", "total"),
    [("gpt2", 124_439_808), ("gpt2-medium", 354_823_168), ("gpt2-large", 774_030_080), ("gpt2-xl", 1_557_611_200)],
)
def test_the_sizes_of_gpt2_by_name(name: str, total: int) -> None:
    shape = named_shape(name)
    assert shape
    cfg = GPT2Config(**GPT2_SIZES[name], d_mlp=4 * GPT2_SIZES[name]["d_model"])
    assert shape == shape_of(cfg)
    assert parameters(shape) == total == sum(p.numel() for p in build(cfg).parameters())


def test_the_parts_of_gpt2() -> None:
    shape = named_shape("gpt2")
    assert shape
    assert shape.outside == {
        "token embedding": 38_597_376,
        "position embedding": 786_432,
        "final norm": 1_536,
        "head": 0,
    }
    assert sum(block_parameters(shape.stacks[0]).values()) == 7_087_872


def test_every_family_that_loads_is_counted() -> None:
    tested = {type(cfg) for cfg in CONFIGS.values()}
    assert tested == {family.config for family in families().values()}


def test_other_names_are_unknown() -> None:
    assert named_shape("distilgpt2") is None


@every_config
def test_parameters_are_those_of_the_module(cfg: Any) -> None:
    assert parameters(shape_of(cfg)) == sum(p.numel() for p in build(cfg).parameters())


@every_config
def test_products_are_those_that_torch_counts(cfg: Any) -> None:
    with FlopCounterMode(display=False) as counter:
        logits_of(build(cfg), inputs(cfg))
    flops = forward_flops(shape_of(cfg), L, B)
    assert sum(flops[name] for name in MATMULS) == counter.get_total_flops()
    assert list(flops) == list(COMPONENTS)


@pytest.mark.parametrize("name", ["gpt2", "gpt2-xl"])
def test_products_of_the_real_sizes(name: str) -> None:
    cfg = GPT2Config(**GPT2_SIZES[name], d_mlp=4 * GPT2_SIZES[name]["d_model"])
    with FlopCounterMode(display=False) as counter:
        build(cfg)(*inputs(cfg, batch=1, context=1024))
    flops = forward_flops(shape_of(cfg), 1024)
    assert sum(flops[name] for name in MATMULS) == counter.get_total_flops()


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


def test_each_product_is_counted_where_it_is() -> None:
    cfg = CONFIGS["gpt2"]
    with FlopCounterMode(display=False) as counter:
        build(cfg)(*inputs(cfg))
    counts = counter.get_flop_counts()
    flops = {name: n / cfg.n_layers for name, n in forward_flops(shape_of(cfg), L, B).items()}
    of = {name: sum(counts[f"GPT2.blocks.1.{name}"].values()) for name in ("attn", "attn.qkv", "attn.out", "mlp")}
    assert of["attn.qkv"] == flops["QKV"]
    assert of["attn.out"] == flops["output projection"]
    assert of["attn"] == flops["QKV"] + flops["output projection"] + flops["scores"] + flops["weighted sum"]
    assert of["mlp"] == flops["MLP up"] + flops["MLP down"]


@every_config
def test_norms_are_counted_by_element(cfg: Any) -> None:
    """One output element of a norm for each of its FLOPs, as the points of a forward say."""
    model = build(cfg, "cpu")
    elements = 0

    def count(module: Any, _: Any, out: Tensor) -> None:
        nonlocal elements
        elements += out.numel()

    for module in model.modules():
        if type(module).__name__ in ("LayerNorm", "RMSNorm"):
            module.register_forward_hook(count)
    logits_of(model, inputs(cfg, "cpu"))
    each = NORM_FLOPS[shape_of(cfg).stacks[0].norm_shift]
    assert forward_flops(shape_of(cfg), L, B)["norms"] == each * elements


@every_config
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_points_are_as_large_as_a_cache_of_all_of_them(cfg: Any, dtype: str) -> None:
    model = build(cfg, "cpu").to(getattr(torch, dtype))
    _, cache = model.run_with_cache(*inputs(cfg, "cpu"), return_logits=model.has_logits)
    sizes = point_sizes(shape_of(cfg), L, B, dtype)
    assert sum(size.layers for size in sizes) == len(cache) == len(model.points)
    assert sum(size.bytes for size in sizes) == sum(x.nbytes for x in cache.values())
    for size in sizes:
        of_point = [x for name, x in cache.items() if size.point in (name, short(name))]
        assert [x.shape for x in of_point] == [size.shape] * size.layers
        assert all(x.nbytes == size.bytes_each for x in of_point)


def short(name: str) -> str:
    from probekit.points import split_point

    return split_point(name)[0]


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
    cache = KeyValueCache(shape.stacks[-1].n_layers)
    *source, tokens = inputs(cfg, "cpu")
    positions, mask = torch.arange(L).expand(B, L), torch.ones(L, L).tril().bool().expand(B, L, L)
    read = [model.decode, model.encode(source[0])] if source else [model]
    read[0](tokens, *read[1:], position_ids=positions, attention_mask=mask, cache=cache)
    held = [x for layer in cache for x in (layer.keys, layer.values, *(getattr(layer, "memory", None) or ()))]
    assert cache_values(shape, L, B) == sum(x.numel() for x in held if x is not None)


def test_a_checkpoint_without_a_head_has_none() -> None:
    shape = shape_of(CONFIGS["bert-headless"])
    assert parameters(shape) == sum(p.numel() for p in build(CONFIGS["bert-headless"]).parameters())
    assert forward_flops(shape, L)["head"] == 0
    assert "head_ln" not in {size.point for size in point_sizes(shape, L, B, "float32")}


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


def test_the_context_is_the_models_own_and_may_be_longer() -> None:
    assert small().context == CONFIGS["gpt2"].n_ctx
    assert small(context=1000).flops["scores"] == 3 * 2 * 1000**2 * 32


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
