"""The table of model types: what its rows measure, and that the committed one has every type."""

import re
from pathlib import Path
from typing import Any

import pytest
import transformers
from safetensors.torch import load_file, save_file
from transformers.models.auto import configuration_auto

from probekit.models.packaging import PACKAGED
from probekit.verification import packaged_table
from probekit.verification.model_types_table import listed_types, model_types_page, type_rows
from probekit.verification.packaged_models import multimodal_types, save_packaged
from probekit.verification.packaged_table import VERDICTS, packaged_rows
from probekit.verification.tiny_configs import tiny_config

PAGE = Path(__file__).parents[2] / "docs/model-types.md"
EXPECTED = {
    "bloom": ("transformers", "exact", "attn_out, resid_mid, mlp_out, ln_final", "padded"),
    # its learned scales of the stream, which are 1 before training, are not
    "zaya": ("transformers", "residual stream only", "ln_final", "padded"),
    # a projection of the whole block is added to the stream, and not attention's output
    "mobilebert": ("transformers", "residual stream only", "", "one length"),
    # padding changes which tokens its attention keeps, in texts longer than those of the proof
    "doge": ("transformers", "residual stream only", "ln_final", "one length"),
    "nanochat": ("transformers", "exact", "attn_out, resid_mid, mlp_out, ln_final", "packed"),  # its norm runs twice
    "xlnet": ("transformers", "refused", r"XLNetModel fails its proof: .*", ""),
    "longformer": ("transformers", "refused", "model_type longformer: its attention approximates .*", ""),
}
EXPECTED_PACKAGED = {
    "qwen3_asr": ("hand", "qwen3", "exact", "without audio_config"),
    "lfm2_vl": ("transformers", "lfm2", "exact", "without vision_config"),
    "muse_glimmer": (
        "transformers",
        "muse_glimmer_text",
        "exact",
        "without vision_config; no logits",
    ),  # it scales them
    "perception_lm": ("hand", "llama", "exact", "without vision_config; compared without the tower, which needs timm"),
    "llama4": ("transformers", "llama4_text", "exact against the text class", ".*; the complete class fails on .*"),
    "paligemma": ("", "gemma", "refused", "model_type paligemma is not .*: each token of a prompt sees those after .*"),
    "blip": ("", "blip_text_model", "refused", "the complete class cannot be run on text alone: .*'pixel_values'"),
    "whisper": ("", "", "refused", "an encoder-decoder"),
    "molmo2": (
        "",
        "molmo2_text",
        "refused",
        r"tensors .* not those of Molmo2TextModel; missing: embed_tokens\.weight .*",
    ),
    "qwen4_exp": ("", "qwen4_exp_text", "not tried", "its class could not be made small: .*"),
}


def committed() -> str:
    """The page, if it was made with this version of transformers; "" otherwise."""
    page = PAGE.read_text(encoding="utf-8")
    return page if f"transformers {transformers.__version__} " in page else ""


def test_each_row_is_measured_and_is_in_the_page():
    page = committed()
    for row in type_rows(EXPECTED):
        assert not page or f"\n| {' | '.join(row.cells)} |\n" in page
        assert (row.by, row.status, row.batches) == tuple(EXPECTED[row.model_type][i] for i in (0, 1, 3))
        assert re.fullmatch(EXPECTED[row.model_type][2], row.points)


def test_each_packaging_is_measured_and_is_in_the_page():
    page = committed()
    for row in packaged_rows(EXPECTED_PACKAGED):
        assert not page or f"\n| {' | '.join(row.cells)} |\n" in page
        by, text_type, verdict, note = EXPECTED_PACKAGED[row.model_type]
        assert (row.by, row.text_type, row.verdict) == (by, text_type, verdict)
        assert re.fullmatch(note, row.note)


@pytest.mark.parametrize("changed", ["layers.0", "layers.3", "lm_head"])
def test_another_text_model_or_head_is_not_called_exact(changed, monkeypatch):
    def save_changed(complete: Any, folder: Path, names: str) -> Path:
        weights = load_file(save_packaged(complete, folder, names) / "model.safetensors")
        name = next(name for name in weights if changed in name and "vision" not in name)
        weights[name] += 0.01 * weights[name].abs().max()
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        return folder

    monkeypatch.setattr(packaged_table, "save_packaged", save_changed)
    [row] = packaged_rows(["aria"])
    assert row.verdict == "refused"
    assert row.note.startswith("its text model alone differs from the complete class")


def test_the_page_has_its_versions_and_a_row_for_each_type_that_is_asked_for():
    page = model_types_page(["gpt2", "git"])
    assert f"transformers {transformers.__version__} and torch " in page
    assert "\n| `gpt2` | hand | exact | attn_out, resid_mid, mlp_out, ln_final | packed |\n\n## Packaged" in page
    assert page.endswith("| `git` |  |  | refused | its config.json has no text_config |\n")


def test_the_committed_tables_have_every_type_of_this_version():
    if not (page := committed()):
        pytest.skip(f"the table was made with another version than {transformers.__version__}")
    alone, packaged = page.split("## Packaged as multimodal")
    assert re.findall(r"^\| `([^`]+)` \|", alone, re.MULTILINE)[1:] == listed_types()
    rows = dict(re.findall(rf"^\| `([^`]+)` \|.*\| ({'|'.join(VERDICTS)}) \|", packaged, re.MULTILINE))
    assert list(rows) == list(multimodal_types())
    assert {name for name, verdict in rows.items() if verdict.startswith("exact")} == set(PACKAGED)


@pytest.mark.parametrize(
    ("model_type", "kinds"),
    [("qwen3_next", "layer_types"), ("nemotron_h", "layers_block_type"), ("cohere2", "layer_types")],
)
def test_a_tiny_config_keeps_every_kind_of_layer(model_type, kinds):
    classes: Any = configuration_auto
    config_class = getattr(transformers, classes.CONFIG_MAPPING_NAMES[model_type])
    small = tiny_config(config_class)
    assert set(getattr(small, kinds)) == set(getattr(config_class(), kinds))
    assert small.hidden_size == 32
