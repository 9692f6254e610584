"""What a dry run says of time and memory: its FLOPs are those of the run, and its parts add up."""

import importlib
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from store_cases import ROW_BYTES, plan_of
from torch.utils.flop_counter import FlopCounterMode

from probekit.activations import Estimate, describe_estimate, estimate, plan_as_dict
from probekit.activations.plan.packing import filled_nodes
from probekit.activations.plan.plan import shard_rows
from probekit.activations.run.loop import compute_shard
from probekit.models import kernels, layers
from probekit.models.families.bert import Bert, BertConfig
from probekit.models.families.gpt2 import GPT2
from probekit.models.families.llama import Llama, LlamaConfig
from probekit.models.families.transformer import Transformer, TransformerConfig
from probekit.tasks import Task

Make = Callable[..., Any]


def nodes_of(planned: Any) -> int:
    """Nodes of all batches, with those that fill them up."""
    return filled_nodes(planned.packing.sizes, planned.batches)


def nodes_of_sources(planned: Any) -> int:
    sources = planned.packing.sources
    return 0 if sources is None else filled_nodes(sources.sizes, planned.batches)


def pair_of_stacks() -> Transformer:
    sizes: Any = {"d_model": 16, "n_heads": 2, "n_decoder_heads": 4, "d_mlp": 24, "d_decoder_mlp": 40, "n_ctx": 16}
    ids: Any = {"pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 1}
    return Transformer(TransformerConfig(**sizes, n_layers=2, n_decoder_layers=3, d_vocab=27, **ids)).init_weights(0)


def with_targets(task: Task) -> Task:
    return replace(task, targets=[[1, *ids[::-1]][:9] for ids in task.inputs])


@pytest.fixture
def countable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products by torch's own kernels, the only ones that its counter knows."""
    monkeypatch.setattr(kernels, "onednn_linear", lambda dtype: None)


def counted_flops(planned: Any) -> int:
    """What torch counts in the products of a run."""
    with FlopCounterMode(display=False) as counter:
        for number in range(len(planned.shards)):
            compute_shard(planned, number)
    return counter.get_total_flops()


HOW: Any = {"batch_tokens": 64, "block_nodes": 32}
SIZES: Any = {"d_model": 16, "n_heads": 2, "d_mlp": 24, "n_layers": 3, "n_ctx": 16, "d_vocab": 27}


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("wanted", ["0", "0-1", "all"])
def test_flops_are_those_of_the_run(countable: None, model: GPT2, letters: Make, wanted: str, share: bool) -> None:
    """Patterns are read in every layer that runs, so that no product hides in a fused kernel."""
    planned = plan_of(model, letters(60), points=["attn_pattern"], layers=wanted, share=share, **HOW)
    norms = nodes_of(planned) * (planned.stop_at_layer or 0) * 2 * 7 * model.cfg.d_model
    assert estimate(planned).flops == counted_flops(planned) + norms


@pytest.mark.parametrize(
    ("made", "norm"), [(Llama(LlamaConfig(**SIZES, n_kv_heads=1, d_head=8)), 4), (Bert(BertConfig(**SIZES)), 7)]
)
def test_flops_of_the_other_families(countable: None, letters: Make, made: Any, norm: int) -> None:
    task = letters(40, texts=False)
    planned = plan_of(made.init_weights(0), task, points=["attn_pattern"], layers="0-1", **HOW)
    assert estimate(planned).flops == counted_flops(planned) + nodes_of(planned) * 2 * 2 * norm * 16


@pytest.mark.parametrize(("wanted", "n_blocks"), [("0", 1), ("0-1", 2)])
def test_flops_of_a_decoder_include_all_of_the_encoders(
    countable: None, letters: Make, wanted: str, n_blocks: int
) -> None:
    model, task = pair_of_stacks(), with_targets(letters(40, texts=False))
    planned = plan_of(model, task, points=["decoder.attn_pattern"], layers=wanted, **HOW)
    with model.hooks([(lambda name: name.endswith("hook_pattern"), lambda x, hook: None)]):
        counted = counted_flops(planned)
    norms = (nodes_of_sources(planned) * 2 * 2 + nodes_of(planned) * n_blocks * 3) * 7 * 16
    assert estimate(planned).flops == counted + norms


@pytest.mark.parametrize(("point", "n_norms"), [("resid_post", 2), ("decoder.resid_post", 3)])
def test_flops_of_the_last_block_are_those_of_the_nodes_that_are_read(
    countable: None, monkeypatch: pytest.MonkeyPatch, model: GPT2, letters: Make, point: str, n_norms: int
) -> None:
    rows = list[int]()

    def in_products(q: Any, k: Any, v: Any, attn_mask: Any = None, **_: Any) -> Any:
        scores = q @ k.mT if attn_mask is None else (q @ k.mT).masked_fill(~attn_mask, -1e9)
        return scores.softmax(-1) @ v

    monkeypatch.setattr(layers.F, "scaled_dot_product_attention", in_products)
    is_pair = point.startswith("decoder")
    used: Any = pair_of_stacks() if is_pair else model
    task = with_targets(letters(40, texts=False)) if is_pair else letters(40)
    getattr(used, "decoder", used).blocks[1].mlp.register_forward_hook(
        lambda _, args, __: rows.append(args[0][..., 0].numel())
    )
    planned = plan_of(used, task, points=[point], layers="0-1", **HOW)
    counted = counted_flops(planned)
    assert sum(rows) < nodes_of(planned) / 2
    norms = (nodes_of_sources(planned) * 2 * 2 + (nodes_of(planned) + sum(rows)) * n_norms) * 7 * used.cfg.d_model
    assert estimate(planned).flops == counted + norms


def test_no_block_is_no_flops(model: GPT2, task: Task) -> None:
    found = estimate(plan_of(model, task, points="embed"))
    assert found.flops == 0
    assert found.seconds > 0


def test_memory_is_weights_and_a_batch_and_what_waits(model: GPT2, task: Task) -> None:
    planned = plan_of(model, task)
    found = estimate(planned)
    assert found.weights_bytes == sum(p.nbytes for p in model.parameters())
    assert len(planned.shards) == 1
    assert found.kept_bytes == 2 * plan_as_dict(planned)["bytes"]
    assert found.memory_bytes == found.weights_bytes + found.batch_bytes + found.kept_bytes


def test_shards_are_written_before_the_next(small_shards: None, model: GPT2, task: Task) -> None:
    """Memory holds one shard that is computed and three on their way to the disk, each as large as the largest."""
    planned = plan_of(model, task, points=["resid_pre", "q"], batch_tokens=16, block_nodes=8)
    rows = [len(shard_rows(planned, number)) for number in range(len(planned.shards))]
    assert len(rows) >= 4
    assert estimate(planned).kept_bytes == 4 * max(rows) * ROW_BYTES < (max(rows) + sum(rows)) * ROW_BYTES


def test_pairs_need_all_of_their_scores(model: GPT2, task: Task) -> None:
    few, many = (estimate(plan_of(model, task, points=point, share=False)) for point in ("z", "attn_scores"))
    assert many.batch_bytes > few.batch_bytes


def test_the_model_is_left_as_it_was(model: GPT2, task: Task) -> None:
    before = model.fingerprint()
    estimate(plan_of(model.to(torch.bfloat16), task))
    assert model.device.type == "cpu"
    assert not any(point.hooked for point in model.points.values())
    assert before != model.fingerprint()  # of another type; the values did not change
    assert all(module._prepared is None for module in model.modules() if isinstance(module, layers.Linear))


@pytest.mark.parametrize(
    ("seconds", "says"), [(0.01, "0.1 s"), (41.91, "41.9 s"), (600.0, "10 min"), (7 * 3600.0, "7.0 h")]
)
def test_in_words(seconds: float, says: str) -> None:
    found = Estimate(2 * 10**12, 10.0**11, seconds, 498 * 10**6, 39 * 10**6, 119 * 10**6)
    time, memory = describe_estimate(found).splitlines()
    assert time == f"time     about {says}: 2.00 TFLOPs at 100 GFLOPs/s, measured now"
    assert memory == "memory   about 498 MB weights, 39.0 MB a batch, 119 MB kept; Python's own on top"
    assert json.loads(json.dumps(found.as_dict()))["memory_bytes"] == 656 * 10**6


def test_seconds_go_by_flops(monkeypatch: pytest.MonkeyPatch, model: GPT2, task: Task) -> None:
    module = importlib.import_module("probekit.activations.estimate")
    monkeypatch.setattr(module, "_measured", lambda *_: (0.5, 1e6))
    planned = plan_of(model, task)
    found = estimate(planned)
    assert np.isclose(found.seconds, 0.5 * nodes_of(planned) + found.flops / 1e6)
