"""Checkpoints packaged as multimodal: their text model alone equals the complete class of transformers on text."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from packaged_models import PACKAGINGS, complete, in_file, text_stack
from safetensors.torch import load_file, save_file
from transformers import LlavaConfig

import probekit as pk
from probekit.errors import DataError
from probekit.models import load_model
from probekit.models.adapter.load import default_fields
from probekit.models.adapter.model import AdaptedModel
from probekit.models.families.llama import LlamaConfig
from probekit.models.packaging import PACKAGED, text_fields, text_tensors
from probekit.tasks.base import Task

IDS = torch.tensor([[5, 3, 8, 1, 4, 59, 7, 7, 21, 90, 13, 6]])


def saved(kind: str, folder: Path, names: str = "of the Hub") -> Path:
    complete(kind).save_pretrained(folder, **({} if names == "of the Hub" else {"save_original_format": False}))
    return folder


def loaded(folder: Path) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("warnings.warn", lambda *_, **__: None)  # of a class of transformers that is taken
        return load_model(folder, device="cpu")


def assert_equal(model: Any, kind: str) -> None:
    with torch.no_grad():
        theirs = text_stack(kind)(input_ids=IDS, output_hidden_states=True)
        output, cache = model.run_with_cache(IDS, points="resid_pre")
    for layer in range(model.n_layers):
        torch.testing.assert_close(cache["resid_pre", layer], theirs.hidden_states[layer], rtol=1e-5, atol=1e-5)
    wanted = theirs.logits if model.has_logits and "logits" in theirs else theirs.hidden_states[-1]
    if wanted.shape != output.shape:  # transformers 5.24 cannot run the head of the complete Llama 4 without images
        output = model(IDS, return_logits=False).detach()
    torch.testing.assert_close(output, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("names", ["of the Hub", "in memory"])
@pytest.mark.parametrize("kind", PACKAGINGS)
def test_the_text_model_equals_the_complete_class_on_text(kind: str, names: str, tmp_path: Path) -> None:
    model = loaded(saved(kind, tmp_path, names))
    assert type(model).__name__ == (PACKAGINGS[kind].ours or AdaptedModel.__name__)
    assert model.left_out == "vision_config"
    assert_equal(model, kind)
    sizes = {name: x.numel() for name, x in in_file(complete(kind)).items()}
    of_towers = sum(size for name, size in sizes.items() if "vision" in name or "visual" in name)
    assert of_towers
    ours = sum(x.numel() for x in model.parameters())
    assert ours <= sum(sizes.values()) - of_towers  # nothing of the tower is in memory


def test_a_config_without_text_config_keeps_the_text_models_fields_among_its_own(tmp_path: Path) -> None:
    """As in the published files of Qwen2-VL."""
    saved("qwen2_vl", tmp_path)
    hf = json.loads((tmp_path / "config.json").read_text())
    text = hf.pop("text_config")
    rope = {"rope_scaling": {"type": "mrope", "mrope_section": [2, 1, 1]}, "rope_theta": 10_000.0}
    text = {name: value for name, value in text.items() if name not in ("model_type", "rope_parameters", "dtype")}
    (tmp_path / "config.json").write_text(json.dumps({**text, **rope, **hf}))
    assert_equal(loaded(tmp_path), "qwen2_vl")


def test_selftest_reads_the_same_text_model(tmp_path: Path) -> None:
    found = pk.selftest(loaded(saved("qwen3_vl", tmp_path)))
    assert found.passed
    assert found.oracle.endswith("read from the model's folder; the text model alone, without vision_config")


def test_the_manifest_says_what_was_left_out_and_loads_the_model_again(tmp_path: Path) -> None:
    model = loaded(saved("mistral3", tmp_path / "model"))
    labels: Any = {"labels": [0, 1, 0], "label_names": ["a", "b"], "splits": ["train"] * 3}
    task = Task(name="ids", inputs=[[5, 6], [7, 8], [9]], **labels)
    store = pk.extract(model, task, points="resid_pre", out=tmp_path / "store")
    assert pk.load_activations(tmp_path / "store").meta["left_out"] == store.meta["left_out"] == "vision_config"
    assert load_model(model.source["name_or_path"]).fingerprint() == model.fingerprint()


TEXT = {"model_type": "mistral", "hidden_size": 8, "num_hidden_layers": 2}


@pytest.mark.parametrize(
    ("hf", "says"),
    [
        ({"model_type": "mistral3", "text_config": TEXT, "hidden_size": 9}, "hidden_size' is 9, but 8 in text_config"),
        ({"model_type": "mistral3", "text_config": [1]}, "text_config must be the text model's fields"),
        ({"model_type": "mistral3"}, "text_config must be the text model's fields in a config of mistral3; got None"),
        ({"model_type": "paligemma", "text_config": TEXT}, "'paligemma' reads more than text, and its text model by"),
        ({"model_type": "mistral3", "text_config": {"model_type": ["x"]}}, "model_type in text_config must be a name"),
        ({"model_type": ["x"], "text_config": TEXT}, r"model_type \"\['x'\]\" reads more than text"),
        ({"model_type": "gemma3", "text_config": {"final_logit_softcapping": 30.0}}, "final_logit_softcapping = 30.0"),
    ],
)
def test_what_cannot_be_read_is_refused_by_field(hf: dict[str, Any], says: str) -> None:
    with pytest.raises(DataError, match=says):
        text_fields(hf)


def test_the_outer_fields_decide_the_head_and_the_special_ids() -> None:
    outer = {"tie_word_embeddings": True, "eos_token_id": [1, 2], "quantization_config": {"quant_method": "fp8"}}
    text = TEXT | {"tie_word_embeddings": False, "eos_token_id": 5, "bos_token_id": 7}
    found = text_fields({"model_type": "mistral3", "text_config": text, **outer})
    assert {name: found[name] for name in outer} == outer
    assert (found["bos_token_id"], found["model_type"]) == (7, "mistral")
    assert text_fields({"model_type": "llama4", "text_config": {}})["model_type"] == "llama4_text"


def test_missing_tensors_of_the_text_model_are_named(tmp_path: Path) -> None:
    saved("mistral3", tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    kept = {name: x for name, x in weights.items() if not name.endswith("layers.1.mlp.up_proj.weight")}
    assert len(kept) == len(weights) - 1
    save_file(kept, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(DataError, match=r"missing: model.layers.1.mlp.up_proj.weight \[48, 32\]$"):
        load_model(tmp_path)


@pytest.mark.parametrize(
    ("inner", "says"),
    [
        ({}, r"text_config\.model_type = None \(read as 'mistral3_text'\) is not supported, "),
        ({"model_type": "nonesuch"}, r"text_config\.model_type = 'nonesuch' is not supported, "),
        ({"model_type": "t5"}, r"text_config\.model_type = 't5' is an encoder-decoder, "),
    ],
)
def test_a_text_model_that_nobody_knows_is_refused_by_the_field_that_names_it(
    inner: dict[str, Any], says: str, tmp_path: Path
) -> None:
    hf = {"model_type": "mistral3", "text_config": TEXT | {"model_type": None} | inner, "vision_config": {}}
    (tmp_path / "config.json").write_text(json.dumps(hf))
    for via in (None, "probekit", "transformers"):
        with pytest.raises(DataError, match=f"config.json': {says}.*; correct that field, or take a decoder"):
            load_model(tmp_path, via=via)


def test_names_of_tensors_in_every_packaging() -> None:
    for stem, head in {
        "language_model.model.": "language_model.lm_head.",
        "model.language_model.": "lm_head.",
        "model.text_model.": "lm_head.",
        "model.": "lm_head.",
    }.items():
        tower = ["vision_tower.layers.0.w", "visual.blocks.0.w", "audio_tower.w", "mtp.layers.0.w"]
        names = {f"{stem}layers.0.w": 0, f"{stem}embed_tokens.weight": 1, f"{head}weight": 2, **dict.fromkeys(tower, 3)}
        wanted = {"model.layers.0.w": 0, "model.embed_tokens.weight": 1, "lm_head.weight": 2}
        assert text_tensors(names) == wanted
    assert len(set(PACKAGED)) == len(PACKAGED)


def test_sizes_that_a_published_text_config_leaves_out_are_those_of_transformers() -> None:
    """As in LLaVA 1.5, whose text_config gives the vocabulary, the context and an epsilon."""
    text = {"model_type": "llama", "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "vocab_size": 32_064}
    hf = {"model_type": "llava", "text_config": text, "vision_config": {}}
    fields = text_fields(hf, default_fields)
    theirs: Any = LlavaConfig(**hf).text_config
    for name in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size"):
        assert fields[name] == getattr(theirs, name), name
    assert LlamaConfig.from_hf(fields).n_kv_heads == theirs.num_key_value_heads
