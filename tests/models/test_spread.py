"""A model over several devices and the host gives the same numbers, bit for bit; each tensor is where it should be.

There is no second device here: `SimulatedDevices` gives names of devices to tensors, and refuses to mix them.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from simulated_devices import SimulatedDevices
from tiny_configs import tiny_configs
from torch import Tensor

from probekit.errors import UsageError
from probekit.models import load_model, spread
from probekit.models.base import LanguageModel
from probekit.models.families import family_of
from probekit.models.placement import Placement
from probekit.models.spread import choose_placement, home_of, part_bytes
from probekit.tasks import load_task
from probekit.verbs.extract import extract

ONE_STACK = {
    name: tiny_configs()[name] for name in ("gpt2", "llama", "gptneox", "gemma3", "qwen3-moe", "bert", "modernbert")
}

TOKENS = torch.randint(50, (2, 9), generator=torch.Generator().manual_seed(0))
FIRST, SECOND = "xpu:0", "xpu:1"


def made(cfg: Any) -> LanguageModel:
    return family_of(cfg).model(cfg).init_weights(1).eval()


def over(model: LanguageModel, first: str, second: str, n_on_host: int = 1) -> Placement:
    """The embedding and a block first, the rest after; the last blocks on the host."""
    rest = model.cfg.n_layers - 1
    return Placement(first, (first, *[second] * rest), second, n_on_host)


def everything(model: LanguageModel) -> tuple[Tensor, dict[str, Tensor]]:
    with torch.inference_mode():
        out, cache = model.run_with_cache(TOKENS, return_logits=model.has_logits)
    return out, dict(cache)


@pytest.mark.parametrize("cfg", ONE_STACK.values(), ids=ONE_STACK)
def test_every_point_is_bit_identical_with_blocks_on_the_host(cfg):
    model = made(cfg)
    assert sum(part.numel() for part in model.parameters()) < 200_000
    out, cache = everything(model)
    fingerprint, n = model.fingerprint(), cfg.n_layers
    kept = [weight.data_ptr() for weight in model.parameters()]
    ran = [weight.data_ptr() for weight in _while_running(spread.spread_over(model, over(model, "cpu", "cpu", n - 1)))]
    assert torch.equal(everything(model)[0], out)
    assert all(torch.equal(x, cache[name]) for name, x in everything(model)[1].items())
    assert model.fingerprint() == fingerprint
    assert [weight.data_ptr() for weight in model.parameters()] == kept, "the host's weights are back"
    assert not set(ran) & set(kept), "the last block ran with copies"


def _while_running(model: Any) -> Iterator[Tensor]:
    """The weights of the last block as they are while it runs."""
    seen: list[Tensor] = []
    block = model.blocks[-1]
    with torch.inference_mode(), model.hooks((f"resid_pre.{len(model.blocks) - 1}", lambda x, hook: None)):
        handle = block.register_forward_pre_hook(
            lambda *_: seen.extend(w for part in block.modules() for w in part._parameters.values() if w is not None)
        )
        model(TOKENS, return_logits=False)
        handle.remove()
    assert len(seen) == len(list(block.parameters()))
    yield from seen


def test_gradients_pass_blocks_of_the_host():
    cfg = ONE_STACK["llama"]
    gradients = []
    for n_on_host in (0, 2):
        model = spread.spread_over(made(cfg), over(made(cfg), "cpu", "cpu", n_on_host))
        leaf = torch.zeros(2, 9, cfg.d_model, requires_grad=True)
        with model.hooks(("embed", lambda x, hook, leaf=leaf: x + leaf)):
            model(TOKENS).square().sum().backward()
        gradients.append(leaf.grad)
    assert torch.equal(*gradients)
    assert gradients[0].abs().max() > 0


@pytest.mark.parametrize("cfg", ONE_STACK.values(), ids=ONE_STACK)
def test_no_operation_mixes_devices(cfg):
    with SimulatedDevices():
        out, cache = everything(made(cfg).to(FIRST))  # the kernels of a GPU, whatever the CPU has
        model = made(cfg)
        placement = over(model, FIRST, SECOND)
        spread.spread_over(model, placement)
        got, there = everything(model)
        assert torch.equal(got.cpu(), out.cpu())
        for name, x in there.items():
            assert torch.equal(x.cpu(), cache[name].cpu())
            layer = int(name.split(".")[1]) if name.startswith("blocks.") else None
            if layer is not None:
                assert str(x.device) == (FIRST if layer == 0 else SECOND)
        homes = {name: str(weight.device) for name, weight in model.named_parameters()}
        assert {name: str(home_of(model, placement)(name)) for name in homes} == homes
        assert {home for name, home in homes.items() if name.startswith(f"blocks.{cfg.n_layers - 1}.")} == {"cpu"}
        assert homes["embed.weight"] == FIRST == str(model.device)


@pytest.mark.parametrize("cfg", ONE_STACK.values(), ids=ONE_STACK)
def test_generation_with_a_cache_mixes_no_devices(cfg):
    model = made(cfg)
    if not model.causal:
        return
    prompts = [[3, 4, 5], [7]]
    wanted = model.generate(prompts, max_new_tokens=5, stop_tokens=[])
    with SimulatedDevices():
        spread.spread_over(model, over(model, FIRST, SECOND))
        assert model.generate(prompts, max_new_tokens=5, stop_tokens=[]) == wanted


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Sets the free memory of two simulated GPUs."""

    def set_free(*sizes: int) -> None:
        free = {f"cuda:{i}": size for i, size in enumerate(sizes)} | {"cpu": 1 << 40}
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(sizes))
        monkeypatch.setattr(spread, "free_bytes", lambda device: free[str(device)])

    monkeypatch.setattr("probekit.activations.run.loop.free_bytes", lambda device: None)
    monkeypatch.setattr(spread, "BATCH_TOKENS", 0)
    monkeypatch.setattr(spread, "SPARE", 0.0)
    with SimulatedDevices():
        yield set_free


def test_weights_are_loaded_straight_to_their_devices(gpus):
    small, task = load_model("agreement-gpt2", device="cpu"), load_task("agreement", limit=12)
    before, blocks, after = vars(part_bytes(small, torch.float32)).values()
    gpus(before + blocks[0], 2 * after + max(blocks))
    model = load_model("agreement-gpt2", device_map="auto")
    assert model.placement == over(model, "cuda:0", "cuda:1", len(blocks) - 1)
    assert model.source is not None
    assert model.source["device_map"] == "auto"
    assert model.fingerprint() == small.fingerprint()
    small.to("cuda:0")
    options: list[dict[str, Any]] = [
        {"points": ["resid_pre", "q"], "position": ["last", "mean"]},
        {"points": "attn_pattern"},
    ]
    for how in options:
        got, wanted = (extract(one, task, progress=False, **how) for one in (model, small))
        for place in wanted:
            pairs = zip(got.per_text(place), wanted.per_text(place), strict=True)
            assert all(torch.equal(x.cpu(), y.cpu()) for x, y in pairs)
    random = load_model("agreement-gpt2", device_map="auto", random_init=True, seed=3)
    assert random.placement == model.placement
    assert random.fingerprint() == load_model("agreement-gpt2", device="cpu", random_init=True, seed=3).fingerprint()


def test_a_model_that_fits_one_device_is_as_usual(gpus):
    gpus(1 << 30, 1 << 30)
    model = load_model("agreement-gpt2", device_map="auto")
    assert model.placement is None
    assert str(model.device) == "cuda:0"
    gpus()
    assert str(load_model("agreement-gpt2", device_map="auto").to("cpu").device) == "cpu"


def test_what_cannot_be_spread_is_refused(gpus):
    gpus(1000, 2000)
    with pytest.raises(UsageError, match=r"1.00 kB on cuda:0, 2.00 kB on cuda:1, 1.10 TB on the host; it needs"):
        load_model("agreement-gpt2", device_map="auto")
    gpus(900_000, 900_000)
    model = load_model("agreement-gpt2", device_map="auto")
    assert model.placement is not None
    with pytest.raises(UsageError, match=r"and its weights stay as they are; load it again without"):
        model.to("cpu")
    with pytest.raises(UsageError, match=r"with device_map or quantize, and stays there; leave out cpu"):
        extract(model, load_task("agreement", limit=12), device="cpu")
    marian = tiny_configs()["marian"]
    with pytest.raises(UsageError, match=r"leave it out for an encoder-decoder"):
        choose_placement(made(marian), torch.float32)
