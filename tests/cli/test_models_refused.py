"""Models that cannot be had, through the command line: one line that names the field or the type, and the exit code."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_configs import tiny_configs, tiny_model

from probekit.models.weights import save_hf

CONFIGS: dict[str, dict[str, Any]] = {}  # model_type -> the config.json of its first tiny model
for _cfg in tiny_configs().values():
    CONFIGS.setdefault(_cfg.to_hf()["model_type"], _cfg.to_hf())

Refused = Callable[..., str]
BY_FIELD = [
    ("gpt2", {"n_layer": -1}, "n_layer"),
    ("gpt2", {"n_head": 3}, "n_head"),
    ("gpt2", {"activation_function": "geluu"}, "activation_function"),
    ("gpt2", {"n_embd": "16"}, "n_embd"),
    ("gpt2", {"vocab_size": None}, "vocab_size"),
    ("gpt2", {"add_cross_attention": True}, "add_cross_attention"),
    ("gpt2", {"scale_attn_weights": False}, "scale_attn_weights"),
    ("llama", {"rope_parameters": {"rope_type": "weird", "rope_theta": 1e4}}, "'weird'"),
    ("llama", {"rope_scaling": {"type": "weird", "factor": 2.0}, "rope_parameters": None}, "'weird'"),
    ("llama", {"hidden_act": "xielu"}, "hidden_act"),
    ("mistral", {"sliding_window": 0}, "sliding_window"),
    ("mistral", {"sliding_window": -4}, "sliding_window"),
    ("mistral", {"sliding_window": 2.5}, "sliding_window"),
    ("qwen3", {"num_key_value_heads": 3}, "num_key_value_heads"),
    ("qwen3", {"layer_types": ["full_attention", "linear_attention", "full_attention"]}, "layer_types"),
    ("phi3", {"rope_scaling": {"type": "longrope", "short_factor": [1.0]}, "rope_parameters": None}, "long_factor"),
    ("phi3", {"partial_rotary_factor": 3.0}, "partial_rotary_factor"),
    ("gpt_neox", {"rotary_pct": 0.0, "rope_parameters": None}, "rotary_pct"),
    ("gpt_neox", {"rotary_pct": 1.5, "rope_parameters": None}, "rotary_pct"),
    ("gpt_neox", {"use_parallel_residual": "yes"}, "use_parallel_residual"),
    ("gemma2", {"sliding_window": 0}, "sliding_window"),
    ("gemma2", {"attn_logit_softcapping": -1.0}, "attn_logit_softcapping"),
    ("gemma2", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar"),
    ("gemma2", {"layer_types": ["full_attention"]}, "layer_types"),
    ("gemma3_text", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
    ("olmo3", {"layer_types": ["sliding_attention", "chunked_attention", "full_attention"]}, "layer_types"),
    ("bert", {"position_embedding_type": "relative_key"}, "position_embedding_type"),
    ("bert", {"is_decoder": True}, "is_decoder"),
    ("roberta", {"position_embedding_type": "relative_key"}, "position_embedding_type"),
    ("distilbert", {"activation": "swiglu"}, "activation"),
    ("modernbert", {"local_attention": -2}, "local_attention"),
    ("mixtral", {"num_experts_per_tok": 0}, "num_experts_per_tok"),
    ("mixtral", {"num_experts_per_tok": 99}, "num_experts_per_tok"),
    ("mixtral", {"num_local_experts": 0}, "num_local_experts"),
    ("mixtral", {"num_local_experts": float("nan")}, "num_local_experts"),
    ("qwen3_moe", {"norm_topk_prob": "true"}, "norm_topk_prob"),
    ("qwen3_moe", {"mlp_only_layers": [17]}, "mlp_only_layers"),
    ("olmoe", {"clip_qkv": -1.0}, "clip_qkv"),
    ("olmoe", {"num_experts_per_tok": 2.5}, "num_experts_per_tok"),
    ("marian", {"activation_function": "swish2"}, "activation"),
    ("hooked_transformer", {"normalization_type": "RMS"}, "normalization_type 'RMS'"),
    ("hooked_transformer", {"positional_embedding_type": "rotary"}, "positional_embedding_type = 'rotary'"),
    ("hooked_transformer", {"d_vocab_out": 3}, "d_vocab_out = 3"),
    ("hooked_transformer", {"act_fn": "solu_ln"}, "act_fn"),
]
QUANTIZED = "quantization_config: weights quantized by 'newest' are not implemented here; leave out --via probekit"


@pytest.fixture
def folder(here: Path) -> Callable[..., Path]:
    """Makes a folder with this config.json."""

    def make(hf: dict[str, Any]) -> Path:
        (here / "model").mkdir()
        (here / "model/config.json").write_text(json.dumps(hf))
        return here / "model"

    return make


@pytest.mark.parametrize(("model_type", "fields", "named"), BY_FIELD, ids=lambda x: x if isinstance(x, str) else "")
def test_what_a_family_does_not_implement_is_refused_by_field(
    folder: Callable[..., Path], refused: Refused, model_type: str, fields: dict[str, Any], named: str
) -> None:
    line = refused(3, "points", "--via", "probekit", "--model", folder({**CONFIGS[model_type], **fields}))
    assert "model/config.json': " in line
    assert named in line


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"unembed.b_U": None}, "missing: unembed.b_U [50]"),
        ({"blocks.1.attn.W_Q": torch.ones(48, 32)}, "blocks.1.attn.W_Q (expected [4, 32, 12], found [48, 32])"),
        ({"blocks.0.mlp.W_gate": torch.ones(32, 80)}, "unexpected: blocks.0.mlp.W_gate"),
    ],
)
def test_weights_that_are_not_those_of_the_config(here: Path, refused: Refused, change: Any, says: str) -> None:
    """Of heads with an axis of their own; without `--via`, whose model_type transformers does not know."""
    save_hf(tiny_model("hooked"), here / "toy")
    tensors = {name: x for name, x in (load_file(here / "toy/model.safetensors") | change).items() if x is not None}
    save_file(tensors, here / "toy/model.safetensors")
    assert says in refused(3, "points", "--model", here / "toy")
    config = json.loads((here / "toy/config.json").read_text())
    (here / "toy/config.json").write_text(json.dumps(config | {"positional_embedding_type": "rotary"}))
    assert "positional_embedding_type = 'rotary' is not implemented" in refused(3, "points", "--model", here / "toy")


@pytest.mark.parametrize("model_type", ["gpt2", "llama", "bert"])
def test_quantized_weights_are_refused_with_the_way(
    folder: Callable[..., Path], refused: Refused, model_type: str
) -> None:
    hf = {**CONFIGS[model_type], "quantization_config": {"quant_method": "newest"}}
    assert QUANTIZED in refused(3, "points", "--model", folder(hf), "--via", "probekit")


@pytest.mark.parametrize("command", ["points", "extract"])
@pytest.mark.parametrize(
    ("hf", "says"),
    [
        ({"model_type": "gptj", "n_layer": 0}, "n_layer must be a whole number in 1..1000; got 0"),
        (
            {"model_type": "whisper"},
            "model_type 'whisper' is for sound, not text; take a decoder or an encoder",
        ),
        (
            {"model_type": "own", "auto_map": {"AutoModelForCausalLM": "modeling_own.OwnLM"}},
            "model_type 'own' needs code from its own repository ('modeling_own.OwnLM'), which is never run",
        ),
        ({"architectures": ["GPT2LMHeadModel"]}, "model_type None is not supported"),
    ],
)
def test_a_type_without_a_file(
    folder: Callable[..., Path], texts: Path, refused: Refused, command: str, hf: dict[str, Any], says: str
) -> None:
    more = ["--dataset", texts] if command == "extract" else []
    assert says in refused(3, command, "--model", folder(hf), *more)


@pytest.mark.parametrize(
    ("hf", "says"),
    [
        ({"model_type": "clip"}, "model_type 'clip' is for images, not text; take a decoder or an encoder of text"),
        ({"model_type": "t5"}, "model_type 't5' is an encoder-decoder"),
        ({"model_type": "own", "auto_map": {"AutoModel": "modeling_own.Own"}}, "which is never run"),
        ({"model_type": "newest"}, "model_type 'newest' is not supported, and transformers 5"),
        (
            {"model_type": "gptj", "n_layer": "three"},
            "config.json': n_layer must be a whole number in 1..1000; got 'three'",
        ),
        ({"model_type": "big_bird"}, "approximate"),
        ({"model_type": "xlnet", "n_layer": 2, "d_model": 16, "n_head": 2, "d_inner": 16, "vocab_size": 50}, "wrapped"),
    ],
)
def test_what_the_adapter_cannot_take(
    folder: Callable[..., Path], refused: Refused, hf: dict[str, Any], says: str
) -> None:
    line = refused(3, "selftest", "--model", folder(hf), "--via", "transformers", "--random-init")
    assert says in line


def test_a_model_that_fails_its_proof(
    folder: Callable[..., Path], refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers.models.phi.modeling_phi import PhiDecoderLayer

    right = PhiDecoderLayer.forward

    def wrong(self: Any, hidden_states: Any, **more: Any) -> Any:
        return right(self, hidden_states, **more)[:, :, :16]

    monkeypatch.setattr(PhiDecoderLayer, "forward", wrong)
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 48}
    hf = {"model_type": "phi", "vocab_size": 50, "max_position_embeddings": 32, **sizes}
    line = refused(3, "selftest", "--model", folder(hf), "--via", "transformers", "--random-init")
    assert "Phi" in line


@pytest.mark.parametrize(
    ("options", "package"),
    [(["--quantize", "4bit"], "bitsandbytes"), (["--device-map", "auto"], "accelerate")],
)
def test_packages_that_are_not_installed(
    gpt2_folder: Path, texts: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch, options: list[str], package: str
) -> None:
    from probekit.models import model_types

    found = model_types.importlib.util.find_spec
    monkeypatch.setattr(
        model_types.importlib.util, "find_spec", lambda name, *more: None if name == package else found(name, *more)
    )
    for command in (["extract", "--dataset", texts], ["selftest"]):
        line = refused(2, *command, "--model", gpt2_folder, "--via", "transformers", *options)
        assert (
            f"{' '.join(options)} of a model of transformers needs the package {package}, which is not installed"
            in line
        )
