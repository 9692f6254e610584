"""Checkpoints packaged as multimodal: their text model alone equals the complete class of transformers on text."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlavaConfig

import probekit as pk
from probekit.errors import DataError
from probekit.files.durable import seal, unseal
from probekit.models import load_model
from probekit.models.adapter.load import default_fields
from probekit.models.adapter.model import AdaptedModel
from probekit.models.adapter.proof import relative
from probekit.models.families.llama import LlamaConfig
from probekit.models.packaging import FURTHER_HEAD, PACKAGED, parts_left_out, text_fields, text_tensors, without
from probekit.tasks.base import Task
from probekit.verification.packaged_models import NAMES, complete_model, save_packaged, weights_in_file
from probekit.verification.packaged_table import on_text, text_ids

IDS = text_ids()
FAMILIES = {  # model type, or it and that of the text model -> the family that computes the text model
    "gemma3": "Gemma",
    "gemma4": "Gemma4",
    "mistral3": "Llama",
    "mistral3 ministral3": AdaptedModel.__name__,
    "llava": "Llama",
    "llama4": AdaptedModel.__name__,
    "qwen2_vl": "Llama",
    "qwen2_5_vl": "Llama",
    "qwen3_vl": "Llama",
    "qwen3_vl_moe": "Moe",
    "qwen3_5": "Qwen3Next",
    "qwen3_5_moe": "Qwen3Next",
    "glm4v_moe": "Glm",
    "glm4v": AdaptedModel.__name__,
    "aya_vision": AdaptedModel.__name__,
    "granite_speech": AdaptedModel.__name__,
}


@cache
def complete(kind: str) -> Any:
    return complete_model(*kind.split())


def saved(kind: str, folder: Path, names: str = "of the Hub") -> Path:
    return save_packaged(complete(kind), folder, names)


def loaded(folder: Path) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("warnings.warn", lambda *_, **__: None)  # of a class of transformers that is taken
        return load_model(folder, device="cpu")


def assert_equal(model: Any, kind: str) -> None:
    wanted = on_text(complete(kind), IDS)
    with torch.no_grad():
        logits, stream = model.run_with_cache(IDS, points="resid_pre")
    assert len(wanted.streams) == model.n_layers == 4
    for layer, resid in enumerate(wanted.streams):
        assert relative(stream["resid_pre", layer], resid) < 1e-5, layer
    assert relative(logits, wanted.logits) < 1e-5


@pytest.mark.parametrize("names", NAMES)
@pytest.mark.parametrize("kind", FAMILIES)
def test_the_text_model_equals_the_complete_class_on_text(kind: str, names: str, tmp_path: Path) -> None:
    model = loaded(saved(kind, tmp_path, names))
    assert type(model).__name__ == FAMILIES[kind]
    assert model.left_out == (("encoder_config", "projector_config") if "speech" in kind else ("vision_config",))
    assert_equal(model, kind)
    sizes = {name: x.numel() for name, x in weights_in_file(complete(kind)).items()}
    towers = ("vision", "visual", "encoder.", "projector.")
    of_towers = sum(size for name, size in sizes.items() if any(part in name for part in towers))
    assert of_towers
    ours = sum(x.numel() for x in model.parameters())
    assert ours <= sum(sizes.values()) - of_towers  # nothing of the tower is in memory


def test_a_class_without_a_head_generates_with_that_of_the_complete_one(tmp_path: Path) -> None:
    """With its cache and without, token by token as the complete class."""
    model, wanted = loaded(saved("glm4v", tmp_path)), IDS[:, :4]
    for _ in range(6):
        with torch.no_grad():
            wanted = torch.cat([wanted, complete("glm4v")(input_ids=wanted).logits[:, -1:].argmax(-1)], 1)
    for use_cache in (True, False):
        found = model.generate(IDS[:, :4].tolist(), max_new_tokens=6, use_cache=use_cache)
        assert found == wanted[:, 4:].tolist()
    weights = load_file(tmp_path / "model.safetensors")
    save_file({name: x for name, x in weights.items() if "lm_head" not in name}, tmp_path / "model.safetensors")
    assert not loaded(tmp_path).has_logits


def test_fields_that_the_complete_class_ignores_are_ignored(tmp_path: Path) -> None:
    """Its logits are those of the complete class, whatever the text class would make of them."""
    saved("gemma3", tmp_path)
    hf = json.loads((tmp_path / "config.json").read_text())
    hf["text_config"]["final_logit_softcapping"] = 0.5
    (tmp_path / "config.json").write_text(json.dumps(hf))
    assert_equal(loaded(tmp_path), "gemma3")


@pytest.mark.parametrize("tied", [True, False])
def test_the_outer_config_decides_whether_the_head_is_tied(tied: bool, tmp_path: Path) -> None:
    saved("mistral3", tmp_path)
    hf = json.loads((tmp_path / "config.json").read_text())
    hf["text_config"]["tie_word_embeddings"], hf["tie_word_embeddings"] = not tied, tied
    (tmp_path / "config.json").write_text(json.dumps(hf))
    if tied:  # as the file is, which holds no head
        assert_equal(loaded(tmp_path), "mistral3")
    else:
        with pytest.raises(DataError, match=r"missing: lm_head\.weight"):
            loaded(tmp_path)


def test_a_config_without_text_config_keeps_the_text_models_fields_among_its_own(tmp_path: Path) -> None:
    """As in the published files of Qwen2-VL."""
    saved("qwen2_vl", tmp_path)
    hf = json.loads((tmp_path / "config.json").read_text())
    text = hf.pop("text_config")
    rope = {"rope_scaling": {"type": "mrope", "mrope_section": [2, 1, 1]}, "rope_theta": 10_000.0}
    text = {name: value for name, value in text.items() if name not in ("model_type", "rope_parameters", "dtype")}
    (tmp_path / "config.json").write_text(json.dumps({**text, **rope, **hf}))
    assert_equal(loaded(tmp_path), "qwen2_vl")


@pytest.mark.parametrize("kind", ["qwen3_vl", "glm4v"])
def test_selftest_reads_the_same_text_model(kind: str, tmp_path: Path) -> None:
    found = pk.selftest(loaded(saved(kind, tmp_path)))
    assert found.passed
    assert found.oracle.endswith("read from the model's folder; without vision_config")


FURTHER = {  # names that published files give their multi-token prediction heads
    "qwen3_5": "mtp.layers.0.mlp.up_proj.weight",
    "glm4v_moe": "model.language_model.layers.4.eh_proj.weight",
    "glm_ocr": "model.language_model.layers.4.eh_proj.weight",
}


@pytest.mark.parametrize("kind", FURTHER)
def test_a_multi_token_prediction_head_beside_a_tower_is_named(kind: str, tmp_path: Path) -> None:
    weights = load_file(saved(kind, tmp_path) / "model.safetensors")
    save_file(weights | {FURTHER[kind]: torch.ones(2, 2)}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    hf = json.loads((tmp_path / "config.json").read_text())
    hf["text_config"]["num_nextn_predict_layers"] = 1
    (tmp_path / "config.json").write_text(json.dumps(hf))
    model = loaded(tmp_path)
    assert model.left_out == ("vision_config", "a multi-token prediction head")
    assert_equal(model, kind)


def test_the_manifest_says_what_was_left_out_and_loads_the_model_again(tmp_path: Path) -> None:
    model = loaded(saved("mistral3", tmp_path / "model"))
    labels: Any = {"labels": [0, 1, 0], "label_names": ["a", "b"], "splits": ["train"] * 3}
    task = Task(name="ids", inputs=[[5, 6], [7, 8], [9]], **labels)
    store = pk.extract(model, task, points="resid_pre", out=tmp_path / "store")
    assert pk.load_activations(tmp_path / "store").meta["left_out"] == store.meta["left_out"] == ["vision_config"]
    assert load_model(model.source["name_or_path"]).fingerprint() == model.fingerprint()
    manifest = tmp_path / "store" / "manifest.json"
    manifest.write_bytes(seal(unseal(manifest)[0] | {"left_out": "vision_config"})[0])
    assert pk.load_activations(tmp_path / "store").meta["left_out"] == "vision_config"  # as older stores have it


TEXT = {"model_type": "mistral", "hidden_size": 8, "num_hidden_layers": 2}


@pytest.mark.parametrize(
    ("hf", "says"),
    [
        ({"model_type": "mistral3", "text_config": TEXT, "hidden_size": 9}, "hidden_size' is 9, but 8 in text_config"),
        ({"model_type": "mistral3", "text_config": [1]}, "text_config must be the text model's fields"),
        ({"model_type": "mistral3"}, "text_config must be the text model's fields in a config of mistral3; got None"),
        ({"model_type": "paligemma", "text_config": TEXT}, "paligemma is not implemented: each token of a"),
        ({"model_type": "mistral3", "text_config": {"model_type": ["x"]}}, "model_type in text_config must be a name"),
        ({"model_type": ["x"], "text_config": TEXT}, r"model_type \"\['x'\]\" reads more than text"),
        ({"model_type": "git", "text_config": TEXT}, r"known are aria, .* and \d+ more: docs/model-types.md"),
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


def test_what_is_left_out_is_said_once() -> None:
    """Fuyu's config.json names no tower."""
    assert parts_left_out({"model_type": "fuyu", "text_config": TEXT}) == ("what is not text",)
    assert without(("what is not text",)) == "; without what is not text"
    assert without(("vision_config", FURTHER_HEAD)) == "; without vision_config, a multi-token prediction head"
    assert without(()) == ""


def test_missing_tensors_of_the_text_model_are_named(tmp_path: Path) -> None:
    saved("mistral3", tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    kept = {name: x for name, x in weights.items() if not name.endswith("layers.1.mlp.up_proj.weight")}
    assert len(kept) == len(weights) - 1
    save_file(kept, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(DataError, match=r"missing: model.layers.1.mlp.up_proj.weight \[48, 32\]; "):
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
