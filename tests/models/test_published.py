"""Published sizes: the numbers of parameters that the models' authors give, and those of transformers' own models."""

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
PARAMETERS = {  # from model cards, papers and the totals that the Hub shows of safetensors files
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "distilgpt2": 81_912_576,
    "pythia-14m": 14_067_712,
    "pythia-31m": 30_494_720,
    "pythia-70m": 70_426_624,
    "pythia-160m": 162_322_944,
    "pythia-410m": 405_334_016,
    "pythia-1b": 1_011_781_632,
    "pythia-1.4b": 1_414_647_808,
    "pythia-2.8b": 2_775_208_960,
    "pythia-6.9b": 6_857_302_016,
    "pythia-12b": 11_846_072_320,
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_620_634_112,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "gemma-2-2b": 2_614_341_888,
    "gemma-2-9b": 9_241_705_984,
    "gemma-2-27b": 27_227_128_320,
    "gemma-3-270m": 268_098_176,
    "gemma-3-1b": 999_885_952,
    "olmo-2-1b": 1_484_916_736,
    "olmo-2-7b": 7_298_617_344,
    "olmo-2-13b": 13_716_198_400,
    "olmo-2-32b": 32_234_279_936,
    "olmo-3-7b": 7_298_011_136,
    "olmoe-1b-7b": 6_919_161_856,
    "phi-3-mini-4k": 3_821_079_552,
    "phi-3-medium-4k": 13_960_238_080,
    "phi-4": 14_659_507_200,
    "bert-base-uncased": 109_514_298,
    "bert-large-uncased": 335_174_458,
    "roberta-base": 124_697_433,
    "roberta-large": 355_412_057,
    "distilbert-base-uncased": 66_985_530,
    "modernbert-base": 149_655_232,
}


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
        return sum(p.numel() for p in model_class(config).parameters())


@pytest.mark.parametrize("name", LISTED)
def test_parameters_are_those_of_transformers(name: str) -> None:
    """Layers after the second are alike, so models of two and of three layers give the total of any depth."""
    fields = LISTED[name]
    two, three = in_transformers(fields, 2), in_transformers(fields, 3)
    n_layers = next(fields[name] for name in DEPTHS if name in fields)
    assert counted(name) == two + (n_layers - 2) * (three - two)


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_are_the_published_ones(name: str) -> None:
    assert counted(name) == PARAMETERS[name]


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
