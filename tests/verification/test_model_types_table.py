"""The table of model types: what its rows measure, and that the committed one has every type."""

import re
from pathlib import Path
from typing import Any

import pytest
import transformers
from transformers.models.auto import configuration_auto

from probekit.verification.model_types_table import listed_types, model_types_page, type_rows
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


def test_each_row_is_measured():
    for row in type_rows(EXPECTED):
        assert (row.by, row.status, row.batches) == tuple(EXPECTED[row.model_type][i] for i in (0, 1, 3))
        assert re.fullmatch(EXPECTED[row.model_type][2], row.points)


def test_the_page_has_its_versions_and_a_row_for_each_type_that_is_asked_for():
    page = model_types_page(["gpt2"])
    assert f"transformers {transformers.__version__} and torch " in page
    assert page.endswith("| `gpt2` | hand | exact | attn_out, resid_mid, mlp_out, ln_final | packed |\n")


def test_the_committed_table_has_every_type_of_this_version():
    page = PAGE.read_text(encoding="utf-8")
    if f"transformers {transformers.__version__} " not in page:
        pytest.skip(f"the table was made with another version than {transformers.__version__}")
    assert re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)[1:] == listed_types()


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
