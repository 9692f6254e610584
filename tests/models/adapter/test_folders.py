"""Folders that transformers wrote load through the adapter; damaged and pickled ones are refused in one line."""

import json
import math
import re
from typing import Any

import pytest
import torch
from models.adapter.wrapped import config_of, wrapped
from safetensors.torch import load_file, save_file

import probekit as pk
from probekit.cli.main import run
from probekit.errors import DataError, UsageError
from probekit.models.adapter.model import quiet
from probekit.models.families.gpt2 import GPT2, GPT2Config
from probekit.models.weights import save_hf


def saved(kind, folder, bare=False, **options):
    model = wrapped(kind).hf
    with quiet():
        (model.base_model if bare else model).save_pretrained(folder, **options)
    return folder


def loaded(folder, **options):
    return pk.load_model(folder, via="transformers", device="cpu", **options)


def changed(folder, change):
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.mark.parametrize("kind", ["bloom", "electra", "jamba"])
def test_a_folder_gives_the_same_weights(kind, tmp_path):
    model = loaded(saved(kind, tmp_path / "model", max_shard_size="40KB"))
    assert model.fingerprint() == wrapped(kind).fingerprint()
    assert model.batching == wrapped(kind).batching
    assert (model.source or {})["via"] == "transformers"


def test_a_folder_without_a_head_loads_the_bare_class(tmp_path):
    model = loaded(saved("gptj", tmp_path / "model", bare=True))
    assert model.cfg.model_class == "GPTJModel"
    assert not model.has_logits
    found = pk.selftest(model)
    assert found.passed
    assert "read from the model's folder" in found.oracle
    with pytest.raises(UsageError, match=r"has no head .*GPTJModel.*cannot generate"):
        model.generate([3, 4, 5], max_new_tokens=2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda weights: weights.pop("transformer.h.1.attn.q_proj.weight"),
            r"not those of GPTJForCausalLM; missing: transformer\.h\.1\.attn\.q_proj\.weight \[32, 32\]; correct the",
        ),
        (
            lambda weights: weights.update({"transformer.h.1.attn.q_proj.weight": torch.zeros(3, 5)}),
            r"; misshapen: transformer\.h\.1\.attn\.q_proj\.weight \(expected \[32, 32\], found \[3, 5\]\); correct",
        ),
        (lambda weights: weights.update({"transformer.h.1.attn.more.weight": torch.zeros(3)}), "does not use"),
    ],
)
def test_weights_of_another_model_are_named(change, message, tmp_path):
    with pytest.raises(DataError, match=message):
        loaded(changed(saved("gptj", tmp_path / "model"), change))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"quantization_config": {"quant_method": "newest"}},
            "transformers does not know weights quantized by 'newest'",
        ),
        ({"quantization_config": "gptq"}, "quantization_config must be an object; got 'gptq'"),
        ({}, r"holds numbers of a type that is not F32, F16, BF16: transformer.h.1.attn.q_proj.weight \(I8\)"),
    ],
)
def test_numbers_that_stand_for_others_are_never_taken_as_they_are(fields, message, tmp_path):
    def narrow(weights):
        weights["transformer.h.1.attn.q_proj.weight"] = weights["transformer.h.1.attn.q_proj.weight"].to(torch.int8)

    folder = changed(saved("gptj", tmp_path / "model"), narrow)
    hf = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(hf | fields))
    with pytest.raises(DataError, match=message):
        loaded(folder)


@pytest.mark.parametrize(
    ("n_layers", "message"),
    [
        (12, r"missing: transformer\.h\.3\.[^,]*, .* and \d+ more; correct the sizes in config\.json"),
        (2, r"does not use: transformer\.h\.2\..*with 2 layers, describes another model"),
    ],
)
def test_another_number_of_layers_is_refused_with_the_names_in_order(n_layers, message, tmp_path):
    folder = saved("gptj", tmp_path / "model")
    fields = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(fields | {"n_layer": n_layers}))
    with pytest.raises(DataError, match=message) as error:
        loaded(folder)
    assert ".h.10." not in str(error.value)


def test_pickles_and_damaged_files_are_refused(tmp_path):
    folder = saved("gptj", tmp_path / "model")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    for via in ("transformers", None):
        with pytest.raises(DataError, match=r"^'[^']*' is damaged .*the file has 1,000; download it again$"):
            pk.load_model(folder, via=via, device="cpu")
    weights.rename(folder / "pytorch_model.bin")
    with pytest.raises(DataError, match="a pickle, which is never read"):
        loaded(folder)


def test_remote_code_is_never_asked_for_where_transformers_has_the_class(tmp_path):
    folder = saved("gptj", tmp_path / "model")
    fields = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(fields | {"auto_map": {"AutoModelForCausalLM": "other.Other"}}))
    (folder / "other.py").write_text("raise SystemExit('remote code ran')")
    assert loaded(folder).cfg.model_class == "GPTJForCausalLM"


def test_infinity_as_transformers_writes_it_is_read_back(tmp_path):
    from transformers import Mamba2Config

    sizes: dict[str, Any] = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_heads": 2,
        "head_dim": 16,
        "state_size": 4,
        "n_groups": 1,
    }
    Mamba2Config(**sizes, vocab_size=60, chunk_size=8).save_pretrained(tmp_path)
    assert "__float__" in (tmp_path / "config.json").read_text()
    model: Any = loaded(tmp_path, random_init=True)
    assert model.hf.config.time_step_limit == [0.0, math.inf]
    assert pk.extract(model, pk.Task("t", [[3, 4, 5]]), out=tmp_path / "store", progress=False).meta["via"]


def test_a_store_says_whose_code_computed_it_and_is_resumed_by_the_same(tmp_path):
    folder = saved("stablelm", tmp_path / "model")
    task = pk.Task("t", [[3, 4, 5], [6, 7], [3, 4, 8, 9]])
    store = pk.extract(loaded(folder), task, out=tmp_path / "store", progress=False)
    assert store.meta["via"] == "transformers"
    assert store.meta["config"]["model_class"] == "StableLmForCausalLM"
    assert store.meta["config"]["batching"] == "packed"
    assert "transformers" in store.meta["versions"]
    assert store.meta["config"]["fields"]["intermediate_size"] == 48
    again = pk.extract(loaded(folder), task, out=tmp_path / "store", progress=False)
    assert torch.equal(again["resid_pre", 2], store["resid_pre", 2])


def test_the_scores_that_widen_a_bound_are_those_of_our_own_model(tmp_path):
    """No point of a wrapped model shows scores; those in the reference's softmax are GPT-2's own."""
    cfg = GPT2Config(d_model=32, n_layers=2, n_heads=4, d_mlp=64, n_ctx=40, d_vocab=60, init_std=0.7)
    save_hf(GPT2(cfg).init_weights(0), tmp_path)
    own, wrapped_one = pk.selftest(pk.load_model(tmp_path, device="cpu")), pk.selftest(loaded(tmp_path))
    assert own.passed
    assert wrapped_one.passed
    assert own.softmax > 10
    assert abs(wrapped_one.softmax / own.softmax - 1) < 1e-5


@pytest.mark.parametrize("name", ["dtype", "torch_dtype"])
@pytest.mark.parametrize("value", ["float3", 3, ["bfloat16"]])
def test_a_type_of_numbers_that_is_none_is_refused_with_the_field(name, value, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(config_of("gptj") | {name: value}))
    says = re.escape(f"config.json': {name} must be one of float32, ") + f".*; got {re.escape(repr(value))}; correct or"
    with pytest.raises(DataError, match=says):
        loaded(tmp_path, random_init=True)


def test_points_are_listed_with_a_line_that_says_what_is_proved_only_at_load(tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps(config_of("mpt")))
    assert run(["points", "--model", str(tmp_path), "--via", "transformers"]) == 0
    shown = capsys.readouterr()
    assert "hook_attn_out" in shown.out
    assert "proved when the weights are loaded" in shown.err
    assert run(["points", "--model", str(tmp_path), "--via", "transformers", "--json"]) == 0
    assert "proved" not in capsys.readouterr().err
