"""What runs on a GPU, on a machine without one: every tensor on the device that was named, and none read too early.

`simulated_cuda.py` stands in for two GPUs. Work that names cuda:1 must never touch cuda:0, which is the current one.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from simulated_cuda import Misused, SimulatedCuda, simulated_cuda
from simulated_devices import SimulatedDevices
from store_cases import lasting
from tiny_configs import LIKE_ANOTHER, new_model, tiny_configs, tiny_model

from probekit import Monitor, extract, extract_statistics, logit_lens, train_probes
from probekit.activations.activations import ActivationSet
from probekit.activations.plan.build import plan_extraction
from probekit.activations.run.loop import check_sums
from probekit.causal.patching.patching import patch_grid
from probekit.interventions import add, project_out, swap
from probekit.machine.devices import find_device, free_bytes
from probekit.models.layers import attention
from probekit.options import ExtractOptions
from probekit.tasks.base import Task

GPU = "cuda:1"
N, D = 24, 32
FAMILIES = list({type(cfg): name for name, cfg in tiny_configs().items() if name not in LIKE_ANOTHER}.values())
NEAR = 2e-5  # other kernels: a simulated GPU does not use the CPU's own
_drawn = np.random.default_rng(0)
TEXTS = [_drawn.integers(3, 50, n).tolist() for n in _drawn.integers(2, 9, N)]
ROWS = torch.from_numpy(_drawn.normal(size=(N, D)))
DIRECTIONS = torch.from_numpy(_drawn.normal(size=(D, 2)))


def task(two: bool = False, n: int = N) -> Task:
    splits = np.array(["train", "train", "validation", "test"])[np.arange(n) % 4]
    labels = {"kind": np.arange(n) // 4 % 2, "third": np.arange(n) // 4 % 3}
    names = {"kind": ["a", "b"], "third": ["x", "y", "z"]}
    return Task("drawn", TEXTS[:n], labels, names, splits, "kind", targets=TEXTS[:n] if two else None)


def points_of(name: str) -> list[str]:
    two = hasattr(tiny_configs()[name], "n_decoder_layers")
    return ["decoder.resid_pre", "decoder.q"] if two else ["resid_pre", "q"]


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedCuda]:
    with simulated_cuda(monkeypatch) as found:
        yield found
        assert "cuda:0" not in found.used, "what names cuda:1 uses cuda:0"


def near(got: torch.Tensor, wanted: torch.Tensor) -> bool:
    return float((got.cpu() - wanted).abs().max() / wanted.abs().max()) < NEAR


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_extracts_on_the_device_that_is_named(cuda, name):
    model, points = new_model(name), points_of(name)
    two = points[0].startswith("decoder")
    how: dict[str, Any] = {"points": points, "position": ["last", "mean"], "batch_tokens": 24, "block_nodes": 12}
    acts = extract(model, task(two, 8), device=GPU, **how)
    assert {str(x.device) for x in acts.values()} == {GPU}
    assert str(model.device) == "cpu", "the model goes back to where it was"
    wanted = extract(model, task(two, 8), device="cpu", **how)
    assert all(near(acts[place], wanted[place]) for place in wanted)


def test_a_store_and_its_sums_are_those_of_memory(cuda, tmp_path):
    model, small = new_model("gpt2").to(GPU), task(n=12)
    how: dict[str, Any] = {"points": ["resid_pre", "q"], "layers": [1], "batch_tokens": 32, "position": "all"}
    in_memory = extract(model, small, **how)
    cuda.order.clear()
    stored: Any = extract(model, small, out=tmp_path / "store", stats=True, **how)
    assert all(torch.equal(stored[place], in_memory[place].cpu()) for place in in_memory)
    assert cuda.order.count("copy") == cuda.order.count("arrived") > 0
    sums = extract_statistics(model, small, ExtractOptions(**how))
    for key, moments in stored.statistics.items():
        assert torch.equal(moments.shifted_gram, sums[key].shifted_gram.cpu())


def test_a_store_of_several_shards_has_the_same_files_whenever_copies_arrive(cuda, tmp_path, monkeypatch):
    monkeypatch.setattr("probekit.activations.plan.build.SHARD_BYTES", 1000)
    model = new_model("gpt2").to(GPU)
    stores = [
        extract(model, task(), points="resid_pre", batch_tokens=16, block_nodes=8, out=tmp_path / str(i))
        for i in (0, 1)
    ]
    files = [lasting(tmp_path / str(i)) for i in (0, 1)]
    assert cuda.order.count("copy") >= 2 * 3 * 4  # two stores, three layers, several shards
    assert files[0] == files[1]
    wanted = extract(tiny_model("gpt2"), task(), points="resid_pre")
    assert all(near(stores[0][place], wanted[place]) for place in wanted)


@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_edits_are_done_where_their_tensor_is(cuda, name):
    edits = {
        ("resid_pre", 0): [add(ROWS, 2.0), project_out(DIRECTIONS, scale=0.5)],
        ("attn_out", 1): [add(ROWS), swap(DIRECTIONS[:, 0], ROWS)],
    }
    got, wanted = (
        extract(model, task(), points="resid_post", edits=edits, edit_positions="read")
        for model in (new_model(name).to(GPU), tiny_model(name))
    )
    assert all(near(got[place], wanted[place]) for place in wanted)
    assert {str(x.device) for x in got.values()} == {GPU}


@torch.no_grad()
def test_edits_at_positions_take_tokens_of_the_host_and_of_the_device(cuda):
    model, tokens = new_model("gpt2").to(GPU), torch.tensor([TEXTS[0], TEXTS[0]])
    at: list[Any] = ["last", "all", 0, slice(0, 1), [0, 1], torch.tensor([1, 0]), torch.tensor(TEXTS[0]) > 9]
    for positions in [*at, *(x.to(GPU) for x in at if isinstance(x, torch.Tensor))]:
        found = []
        for one, there in ((model, GPU), (tiny_model("gpt2"), "cpu")):
            place = positions.cpu() if isinstance(positions, torch.Tensor) and there == "cpu" else positions
            with one.edited({("resid_pre", 1): add(DIRECTIONS[:, 0])}, place):
                found += [one(tokens), one(tokens.to(there))]
        assert all(near(x, found[-1]) for x in found)


@pytest.fixture(scope="module")
def results() -> Any:
    return train_probes(extract(tiny_model("gpt2"), task(), points="resid_pre"), layers=[1], quick=True)


@pytest.mark.parametrize("how", [{}, {"temperature": 1.0, "seed": 3}], ids=["greedy", "sampled"])
def test_generation_and_a_monitor(cuda, results, how):
    prompts = [[3, 4, 5], [7], [11, 30, 8, 1, 1, 6]]
    given, scores = [], []
    for model in (new_model("gpt2").to(GPU), tiny_model("gpt2")):
        with Monitor(model, results) as monitor:
            given.append(model.generate(prompts, max_new_tokens=4, stop_tokens=[], **how))
            scores.append(monitor.to_frame()["score"].to_numpy())
    assert given[0] == given[1]
    assert len(scores[0]) > 12
    assert np.abs(scores[0] - scores[1]).max() < 1e-3


@pytest.mark.parametrize("probe", ["logistic", "ridge", "lda", "mean-diff"])
def test_probes_are_trained_on_activations_of_the_device(cuda, probe):
    here = extract(tiny_model("gpt2"), task(), points="resid_pre", layers=[1])
    there = ActivationSet({place: x.to(GPU) for place, x in here.items()}, task())
    there, here = (train_probes(one, probe=probe, quick=True) for one in (there, here))
    weights = [results.best.probe.direction for results in (there, here)]
    assert np.abs(weights[0] - weights[1]).max() < 1e-2 * np.abs(weights[1]).max()


def test_what_the_model_uses_is_measured_on_its_device(cuda):
    from causal.patching.test_patching import pairs_of

    there, here = new_model("gpt2").to(GPU), tiny_model("gpt2")
    for point in ("resid_pre", "z"):
        got, wanted = (patch_grid(model, pairs_of(2, length=4), point) for model in (there, here))
        assert np.allclose(got.recovery, wanted.recovery, atol=1e-3)
    lenses = [logit_lens(model, TEXTS[0], [7, 30], k=3) for model in (there, here)]
    assert np.allclose(lenses[0].probability, lenses[1].probability, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_grouped_heads_take_a_fused_kernel(cuda, dtype):
    q, k, v = (torch.randn(2, 5, heads, 8, dtype=dtype) for heads in (4, 2, 2))
    mask = torch.ones(2, 5, 5, dtype=torch.bool).tril()
    wanted = attention(q, k, v, "causal")
    qs, ks, vs, there = (x.to(GPU) for x in (q, k, v, mask))
    for got in (attention(qs, ks, vs, "causal"), attention(qs, ks, vs, there), attention(q, k, v, mask)):
        assert float((got.cpu() - wanted).abs().max()) < 16 * torch.finfo(dtype).eps
    heads_first = [x.transpose(1, 2) for x in (qs, ks, vs)]
    with pytest.raises(Misused, match="materialises"):
        F.scaled_dot_product_attention(*heads_first, attn_mask=there[:, None], enable_gqa=True)


def test_memory_is_asked_of_the_device_that_is_named(cuda):
    assert free_bytes(find_device(GPU)) == (60 << 30) + (1 << 20)
    check_sums(plan_extraction(new_model("llama"), task(), ExtractOptions(device=GPU)))


@pytest.mark.parametrize("name", ["llama", "bert"])
def test_nothing_on_mps_is_in_float64_or_lacks_an_operation(name):
    points = points_of(name)
    two = points[0].startswith("decoder")
    with SimulatedDevices():
        model = new_model(name)
        how: dict[str, Any] = {"points": points, "position": ["last", "mean"]}
        acts = extract(model, task(two), device="mps", **how)
        wanted = extract(model, task(two), device="cpu", **how)
        assert {str(x.device) for x in acts.values()} == {"mps:0"}
        assert all(near(acts[place], wanted[place]) for place in wanted)
        last = extract(model, task(two), device="mps", points=points[0], layers=[1])
        train_probes(last, probe="mean-diff", quick=True)
        extract_statistics(model, task(two, 8), ExtractOptions(points=points, device="mps"))
