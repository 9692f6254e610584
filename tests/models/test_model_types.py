"""A model type without a file here: what the error offers or refuses, and that the answer costs no import."""

import json
import subprocess
import sys
from typing import Any

import pytest
from transformers.models.auto import modeling_auto

from probekit.errors import DataError, UsageError
from probekit.models import model_types
from probekit.models.model_types import check_adaptable, check_packages, transformers_types

OWN = ["gpt2", "llama"]
IMAGES = modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
SOUND = modeling_auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES
TWO_STACKS = modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES
CAUSAL = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
MASKED = modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES


def refused(hf: dict[str, Any]) -> str:
    with pytest.raises(DataError) as error:
        check_adaptable(hf, own=OWN)
    return str(error.value)


def test_the_types_are_those_of_transformers_tables():
    kinds = transformers_types()
    assert set(modeling_auto.MODEL_MAPPING_NAMES) <= set(kinds)
    text = {name for name, kind in kinds.items() if not kind}
    assert {name for name in text if not name.endswith("_text")} <= {*CAUSAL, *MASKED}
    assert text.isdisjoint({*IMAGES, *SOUND, *TWO_STACKS})
    assert {"gptj", "bloom", "opt", "falcon", "mpt", "starcoder2", "cohere", "mamba", "electra", "bert"} <= text
    assert {*CAUSAL, *MASKED} - text <= {name for name, kind in kinds.items() if "images" in kind} | {
        *SOUND,
        *TWO_STACKS,
        *modeling_auto.MODEL_FOR_TEXT_TO_WAVEFORM_MAPPING_NAMES,
    }


@pytest.mark.parametrize(
    ("config", "options", "code", "says"),
    [
        (
            {"model_type": "gptj"},
            ["--via", "probekit"],
            2,
            "config.json': model_type 'gptj' has no file here; leave out --via probekit",
        ),
        (
            {"model_type": "bloom", "n_layer": 10**8},
            ["--via", "transformers"],
            3,
            "config.json': n_layer must be a whole number in 1..1000; got 100000000",
        ),
    ],
)
def test_what_cannot_be_loaded_is_refused_without_torch(tmp_path, config, options, code, says):
    (tmp_path / "config.json").write_text(json.dumps(config))
    program = (
        "import sys\n"
        "from probekit.cli.main import run\n"
        "commands = ['points', '--model'], ['params'], ['selftest', '--model']\n"
        f"assert [run([*command, *sys.argv[1:]]) for command in commands] == [{code}] * 3\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    command = [sys.executable, "-c", program, tmp_path, *options]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr.count(says) == 3


@pytest.mark.parametrize("model_type", ["gptj", "bloom", "mamba", "electra"])
def test_a_type_that_transformers_has_is_offered(model_type):
    check_adaptable({"model_type": model_type, "auto_map": {"AutoModel": "modeling.Own"}})  # never needed


@pytest.mark.parametrize(
    ("hf", "says"),
    [
        ({"model_type": "llava"}, "model_type 'llava' is for images, not text"),
        ({"model_type": "qwen2_5_vl"}, "model_type 'qwen2_5_vl' is for images, not text"),
        ({"model_type": "whisper"}, "model_type 'whisper' is for sound, not text"),
        ({"model_type": "t5"}, "model_type 't5' is an encoder-decoder"),
        ({"model_type": "autoformer"}, "model_type 'autoformer' is not a language model"),
        ({"model_type": "newest"}, "model_type 'newest' is not supported, and transformers 5"),
        ({"model_type": None}, "model_type None is not supported"),
        ({"model_type": ["gpt2"]}, "model_type ['gpt2'] is not supported"),
        ({}, "model_type None is not supported"),
        (
            {"model_type": "own", "auto_map": {"AutoConfig": "conf.C", "AutoModelForCausalLM": "modeling_own.Own"}},
            "model_type 'own' needs code from its own repository ('modeling_own.Own'), which is never run",
        ),
        ({"model_type": "own", "auto_map": {"AutoConfig": "conf.C"}}, "('conf.C'), which is never run"),
        ({"model_type": "own", "auto_map": "\x1b[31m"}, r"('\x1b[31m'), which is never run"),
    ],
)
def test_what_cannot_be_probed_is_refused_by_name(hf, says):
    assert says in refused(hf)
    assert refused(hf).endswith("; take a decoder or an encoder of text, such as gpt2 or bert-base-uncased")


@pytest.mark.parametrize(("model_type", "why"), [("longformer", "attention approximates"), ("funnel", "shortens")])
def test_types_that_no_point_can_be_read_of_are_refused_before_anything_is_loaded(model_type, why):
    assert why in refused({"model_type": model_type})


def test_a_family_of_our_own_is_offered_without_transformers():
    with pytest.raises(DataError, match=r"is an encoder-decoder.*; leave out --via transformers$"):
        check_adaptable({"model_type": "marian"}, own=["marian"])


def test_without_transformers_nothing_is_offered(monkeypatch):
    monkeypatch.setattr(model_types, "transformers_types", dict)
    assert "'gptj' is not supported" in refused({"model_type": "gptj"})


@pytest.mark.parametrize(
    ("quantize", "device_map", "missing", "says"),
    [
        ("8bit", None, "bitsandbytes", "--quantize 8bit of a model of transformers needs the package bitsandbytes"),
        ("4bit", None, "accelerate", "--quantize 4bit of a model of transformers needs the package accelerate"),
        (None, "auto", "accelerate", "--device-map auto of a model of transformers needs the package accelerate"),
    ],
)
def test_packages_that_transformers_needs(monkeypatch, quantize, device_map, missing, says):
    monkeypatch.setattr(model_types.importlib.util, "find_spec", lambda name: None if name == missing else object())
    check_packages(None, None)
    with pytest.raises(UsageError) as error:
        check_packages(quantize, device_map)
    assert str(error.value) == f"{says}, which is not installed; install it, or leave the option out"
