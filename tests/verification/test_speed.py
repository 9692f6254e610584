"""`selftest --speed`: both sides read the same texts and give the same activations; the figures follow from the rounds.

Nothing here asserts a time.
"""

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from models.adapter.wrapped import wrapped
from simulated_cuda import simulated_cuda
from tiny_configs import new_model, tiny_model

from probekit import extract
from probekit.errors import UsageError
from probekit.models.accounting import forward_flops
from probekit.models.families import shape_of
from probekit.verification import measure_speed, speed
from probekit.verification.inputs import made_up_model, published_config
from probekit.verification.references import Unavailable
from probekit.verification.speed import (
    SortedBatches,
    describe_speed,
    drawn_texts,
    ratio_of,
    speed_as_dict,
    speed_verdict,
)

QUICK: dict[str, Any] = {"rounds": 2, "seconds": 1e-6}


@pytest.fixture(autouse=True)
def small_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "SQUARES", {"cpu": (16,)})
    monkeypatch.setattr(speed, "SQUARES_ELSEWHERE", (16,))
    monkeypatch.setattr(speed, "SECONDS_OF_PRODUCTS", 0.001)
    monkeypatch.setattr(speed, "FEWEST", 6)
    monkeypatch.setattr(speed, "COPIED_BYTES", 20_000)


@pytest.mark.parametrize("name", ["gpt2", "llama-grouped", "bert", "roberta", "gemma2", "mixtral", "modernbert"])
def test_transformers_gives_the_same_activations_in_sorted_batches(name):
    model = tiny_model(name)
    texts = drawn_texts(6, 20, 50)
    texts.insert(4, [7])
    wanted = extract(model, texts, points="resid_post")
    peer = SortedBatches(model, 24)
    for peer.batch_tokens in (24, 4000):  # a batch holds one or two texts, and all
        for got, x in zip(peer.run(texts), wanted.values(), strict=True):
            assert float((got - x).abs().max() / x.abs().max()) < 1e-5


def test_the_ratio_is_that_of_paired_rounds():
    found = ratio_of([2.0, 4.0, 8.0], [1.0, 2.0, 4.0])
    assert found.value == pytest.approx(2)
    assert found.low == pytest.approx(2)
    found = ratio_of([1.0, 4.0], [1.0, 1.0])
    assert found.value == pytest.approx(2)
    wide = 12.7062047 * math.log(2)  # Student's t with one degree of freedom, times the standard error
    assert math.log(found.high / found.value) == pytest.approx(wide)
    assert math.log(found.value / found.low) == pytest.approx(wide)


def test_texts_are_the_same_whatever_their_number():
    assert drawn_texts(40, 256, 1000)[:7] == drawn_texts(7, 256, 1000)
    lengths = np.array([len(text) for text in drawn_texts(2000, 256, 1000)])
    assert lengths.min() == 16
    assert lengths.max() == 256
    assert abs(np.median(lengths) - 64) < 8, "even on a log scale"


def test_figures_on_a_cpu_follow_from_the_rounds():
    model = new_model("gpt2")
    found = measure_speed(model, **QUICK)
    assert found.theirs is not None
    assert found.ratio is not None
    assert found.difference is not None
    assert found.difference < 1e-5
    assert found.ours.tokens_per_second == pytest.approx(found.tokens / np.median(found.ours.seconds))
    assert found.shares["float32"] == pytest.approx(found.flops_per_second / found.peaks["float32"])
    assert (found.overlap, found.ours.peak_bytes) == (None, None)
    shown = describe_speed(found)
    assert "not measured here: peak memory, the overlap of copies" in shown
    assert shown.splitlines()[-1] == speed_verdict(found)
    body = json.loads(json.dumps(speed_as_dict(found)))
    assert body["ratio"]["value"] == found.ratio.value
    assert body["verdict"] == speed_verdict(found)
    shape = shape_of(model.cfg)
    longest = sum(sum(forward_flops(shape, len(text)).values()) for text in drawn_texts(found.texts, 24, 50))
    assert 0 < found.flops < 40 * longest, "padding of blocks and attention across texts are counted, too"


@pytest.mark.parametrize(
    ("name", "why"), [("marian", "two stacks"), ("opt", "transformers' own")], ids=["two-stacks", "via-transformers"]
)
def test_models_without_a_peer_are_timed_alone(name, why):
    model = new_model(name) if name == "marian" else wrapped(name)
    found = measure_speed(model, **QUICK)
    assert (found.theirs, found.ratio) == (None, None)
    assert why in found.missing
    assert "not timed" in describe_speed(found)
    with pytest.raises(Unavailable):
        SortedBatches(model, 100)


def test_on_a_gpu_memory_overlap_and_bf16_are_measured_too(monkeypatch):
    model = new_model("gpt2")
    with simulated_cuda(monkeypatch) as cuda:
        found = measure_speed(model.to("cuda:1"), **QUICK)
        assert "cuda:0" not in cuda.used
        assert cuda.order.count("copy") == cuda.order.count("arrived") > 0
    assert found.device == "a simulated cuda:1 (cuda:1)"
    assert found.peaks.keys() == {"float32", "bfloat16"}
    assert found.ours.peak_bytes == 2 << 20
    assert found.unsaid == ()
    assert found.overlap is not None
    assert 0 <= found.overlap.hidden <= 1
    assert "of the copy to the host hidden" in speed_verdict(found)
    assert "of the bf16 peak" in speed_verdict(found)


@pytest.mark.parametrize("name", ["gpt2", "llama-3.1-8b"])
def test_published_shapes_are_made_without_a_file(name):
    cfg = published_config(name)
    assert cfg.n_layers == {"gpt2": 12, "llama-3.1-8b": 32}[name]


def test_a_made_up_model_is_its_seed():
    cfg = tiny_model("llama").cfg
    first, second, other = (made_up_model(torch.device("cpu"), torch.float32, seed, cfg) for seed in (0, 0, 1))
    assert first.fingerprint() == second.fingerprint() != other.fingerprint()
    assert not any(weight.is_meta for weight in first.parameters())
    half = made_up_model(torch.device("cpu"), torch.bfloat16, 0, cfg)
    assert {weight.dtype for weight in half.parameters()} == {torch.bfloat16}


def test_a_round_takes_some_time():
    with pytest.raises(UsageError, match="more than 0 seconds"):
        measure_speed(tiny_model("gpt2"), seconds=0)
