"""Wrapped models on several devices, and with weights in 8 or 4 bits, are computed from the weights that they have.

accelerate and bitsandbytes are no dependencies: the tests that run them skip where they are not installed.
"""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from models.adapter.wrapped import wrapped
from torch import nn

import probekit as pk
from probekit.errors import ProbekitError, UsageError
from probekit.models import model_types
from probekit.models.adapter import load as adapter_load
from probekit.models.adapter.load import widen_for_products
from probekit.models.adapter.model import quiet

KIND = "stablelm"
TASK = pk.Task("t", [[3, 4, 5], [6, 7], [3, 4, 8, 9]])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    at = tmp_path_factory.mktemp("placed") / KIND
    with quiet():
        wrapped(KIND).hf.save_pretrained(at)
    return at


def loaded(folder, **options):
    return pk.load_model(folder, via="transformers", **options)


def refused(*given: Any, **options: Any) -> str:
    with pytest.raises(ProbekitError) as error:
        loaded(*given, **options)
    return str(error.value)


def test_layers_on_the_disk_are_refused():
    hf = SimpleNamespace(hf_device_map={"embed": 0, "layers.0": "cpu", "layers.1": "disk"})
    with pytest.raises(UsageError, match="does not fit the memory of the devices and the host"):
        adapter_load._check_placed(hf)


def test_a_model_that_fits_one_device_is_as_any_other():
    hf = SimpleNamespace(hf_device_map={"": "cpu"})
    adapter_load._check_placed(hf)
    assert not hasattr(hf, "hf_device_map")
    spread = SimpleNamespace(hf_device_map={"embed": 0, "layers.0": 1})
    adapter_load._check_placed(spread)
    assert spread.hf_device_map == {"embed": 0, "layers.0": 1}


def test_weights_that_are_quantized_already_are_not_quantized_again(tmp_path, monkeypatch):
    monkeypatch.setattr(model_types.importlib.util, "find_spec", lambda name: object())
    hf = {"model_type": "gptj", "quantization_config": {"quant_method": "gptq"}}
    with pytest.raises(UsageError, match=r"quantized already \(quantization_config"):
        adapter_load.load_adapted(tmp_path, hf, device=torch.device("cpu"), dtype=torch.float32, quantize="8bit")


def test_a_model_without_quantized_weights_keeps_its_products():
    model = nn.Sequential(nn.Linear(2, 2))
    assert not widen_for_products(model)
    assert "forward" not in vars(model[0])


def test_one_device_by_accelerate_changes_nothing(folder):
    pytest.importorskip("accelerate")
    model = loaded(folder, device_map="auto")
    assert not model.stays or torch.cuda.device_count() > 1
    assert model.fingerprint() == wrapped(KIND).fingerprint()
    assert (model.source or {})["device_map"] == "auto"
    assert pk.selftest(model).passed


def test_weights_on_the_host_are_brought_when_their_block_runs(folder, tmp_path, monkeypatch):
    accelerate = pytest.importorskip("accelerate")
    load_as_usual = adapter_load._loaded

    def kept_on_the_host(source, classes):
        monkeypatch.undo()  # the reference of the self-test is on one device
        hf = load_as_usual(source, classes)
        for layer in hf.model.layers[1:]:
            accelerate.cpu_offload(layer, execution_device=torch.device("cpu"))
        hf.hf_device_map = {"model.embed_tokens": "cpu", "model.layers.1": "cpu:0"}
        return hf

    monkeypatch.setattr(adapter_load, "_loaded", kept_on_the_host)
    model = loaded(folder, device_map="auto")
    assert any(weight.device.type == "meta" for weight in model.parameters())
    assert model.fingerprint() == wrapped(KIND).fingerprint()
    assert model.batching == "packed"
    assert pk.selftest(model).passed
    got, wanted = (pk.extract(each, TASK, progress=False)["resid_post", 2] for each in (model, wrapped(KIND)))
    torch.testing.assert_close(got, wanted)
    with pytest.raises(UsageError, match="its weights stay as they are"):
        model.to(torch.bfloat16)


@pytest.mark.parametrize("bits", ["8bit", "4bit"])
def test_quantized_weights(folder, tmp_path, bits):
    pytest.importorskip("bitsandbytes")
    pytest.importorskip("accelerate")
    model = loaded(folder, quantize=bits)
    assert model.fingerprint() != wrapped(KIND).fingerprint()
    found = pk.selftest(model)
    assert found.passed
    assert found.oracle.endswith(f"({bits})")
    store = pk.extract(model, TASK, out=tmp_path / "store", progress=False)
    assert store.meta["quantize"] == store.meta["config"]["quantize"] == bits
    for other in (None, {"8bit": "4bit", "4bit": "8bit"}[bits]):
        with pytest.raises(ProbekitError, match=r"made with other settings .*quantize"):
            pk.extract(loaded(folder, quantize=other), TASK, out=tmp_path / "store", progress=False)
    full = pk.extract(wrapped(KIND), TASK, progress=False)["resid_post", 2]
    error = (store["resid_post", 2] - full).norm() / full.norm()
    assert 1e-3 < error < 0.5


@pytest.mark.parametrize("bits", ["8bit", "4bit"])
def test_an_outlier_changes_no_other_token(folder, bits):
    """bitsandbytes' own 8-bit product fails this: columns with an outlier are computed differently for all tokens."""
    pytest.importorskip("bitsandbytes")
    pytest.importorskip("accelerate")
    model: Any = loaded(folder, quantize=bits)
    module = model.hf.model.layers[0].mlp.up_proj
    x = torch.randn(5, 32, generator=torch.Generator().manual_seed(0))
    x[0, 0] = 50.0
    torch.testing.assert_close(module(x)[1:], module(x[1:]), rtol=0, atol=1e-6)


def test_a_class_with_products_of_its_own_is_refused(tmp_path):
    pytest.importorskip("bitsandbytes")
    pytest.importorskip("accelerate")
    with quiet():
        wrapped("mamba").hf.save_pretrained(tmp_path)
    assert "MambaForCausalLM cannot be run with weights in 8bit" in refused(tmp_path, quantize="8bit")
