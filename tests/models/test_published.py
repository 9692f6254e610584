"""Published sizes by name: the numbers of parameters of transformers' own models."""

import subprocess
import sys
from typing import Any

import pytest
import torch
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_MASKED_LM_MAPPING

from probekit.files.hub import REPO_ID
from probekit.files.published import PUBLISHED
from probekit.models.accounting import parameters
from probekit.models.families import named_shape

LISTED = {name: dict(model.fields) for name, model in PUBLISHED.items()}
DEPTHS = ("num_hidden_layers", "n_layers", "n_layer")


def counted(name: str) -> int:
    shape = named_shape(name)
    assert shape
    return parameters(shape)


def in_transformers(fields: dict[str, Any], n_layers: int) -> int:
    """Parameters of transformers' model with so many layers."""
    depth = next(name for name in DEPTHS if name in fields)
    config_class: Any = CONFIG_MAPPING[fields["model_type"]]
    config = config_class(**fields | {depth: n_layers})
    masked = "architectures" in fields
    model_class: Any = (MODEL_FOR_MASKED_LM_MAPPING if masked else MODEL_FOR_CAUSAL_LM_MAPPING)[type(config)]
    with torch.device("meta"):
        model = model_class(config)
        buffers = [x for name, x in model.named_buffers() if name.endswith("layer_scalar")]  # weights all the same
        return sum(x.numel() for x in (*model.parameters(), *buffers))


@pytest.mark.parametrize("name", LISTED)
def test_parameters_are_those_of_transformers(name: str) -> None:
    """Layers after the fourth are alike, or in groups of four, so models of few layers give the total of any depth."""
    fields = LISTED[name]
    n_layers = next(fields[name] for name in DEPTHS if name in fields)
    if fields["model_type"] == "gemma4_text":  # its last layers differ
        assert counted(name) == in_transformers(fields, n_layers)
        return
    period = 4 if n_layers % 4 == 0 else 1
    few, more = in_transformers(fields, 4), in_transformers(fields, 4 + period)
    assert counted(name) == few + (n_layers - 4) // period * (more - few)


def test_names_of_the_hub_mean_the_same() -> None:
    assert all(REPO_ID.fullmatch(model.hub_id) for model in PUBLISHED.values())
    assert len({model.hub_id for model in PUBLISHED.values()}) == len(PUBLISHED)
    assert named_shape("Qwen/Qwen2.5-7B") == named_shape("qwen2.5-7b")
    assert named_shape("Qwen/Qwen2.5-7B-Instruct-1M") is None


def test_a_published_size_takes_no_network() -> None:
    code = (
        "import socket, sys\n"
        "from probekit.cli.main import run\n"
        "socket.socket.connect = None\n"
        "assert run(['params', '--json', 'qwen2.5-7b']) == 0\n"
        "assert not {'transformers', 'huggingface_hub'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert '"total": 7615616512' in done.stdout
