"""The hand-written GPT-NeoX against `transformers`, and what is true of parallel blocks alone."""

from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tiny_configs import SIZES
from transformers import GPTNeoXConfig as HfConfig
from transformers_twins import error, tokens_for, twins

from probekit.errors import DataError, UsageError
from probekit.models.families.gptneox import GPTNeoX, GPTNeoXConfig
from probekit.models.load import load_model
from probekit.models.weights import save_hf
from probekit.tasks.base import Task
from probekit.verbs.extract import extract

TINY = {
    "gptneox": GPTNeoXConfig(**SIZES, rotary_pct=0.5),
    "gptneox-sequential": GPTNeoXConfig(**SIZES, parallel_residual=False, rotary_pct=1.0),
    "gptneox-unbiased": GPTNeoXConfig(**SIZES, attention_bias=False, rotary_pct=0.8, tie_embeddings=True),
}
BASE = {
    "model_type": "gpt_neox", "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 3, "vocab_size": 61,
    "num_attention_heads": 2, "max_position_embeddings": 24, "rotary_pct": 0.25, "rotary_emb_base": 10000,
}  # fmt: skip
SILENT = {name: value for name, value in BASE.items() if not name.startswith("rotary")}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 16}  # fmt: skip
YARN = {"type": "yarn", "factor": 4.0, "beta_fast": 4, "beta_slow": 1, "original_max_position_embeddings": 16}
VARIANTS = {
    "parallel": BASE,
    "sequential": BASE | {"use_parallel_residual": False},
    "all coordinates": BASE | {"rotary_pct": 1.0, "num_hidden_layers": 1},
    "12 of 16, another base": BASE | {"rotary_pct": 0.8, "rotary_emb_base": 123},
    "no biases, tied": BASE | {"attention_bias": False, "tie_word_embeddings": True, "hidden_act": "gelu_fast"},
    "one head": BASE | {"num_attention_heads": 1, "layer_norm_eps": 1e-3, "hidden_act": "relu"},
    "linear gptneox": BASE | {"rope_scaling": {"type": "linear", "factor": 3.0}, "rotary_pct": 0.5},
    "yarn gptneox": BASE | {"rope_scaling": YARN, "rotary_pct": 0.8, "rotary_emb_base": 500},
    "llama3 gptneox": SILENT | {"rope_parameters": LLAMA3 | {"rope_theta": 5e5, "partial_rotary_factor": 0.5}},
}


@pytest.fixture(scope="module")
def pair() -> Any:
    return twins(BASE)


@pytest.fixture(scope="module")
def model(pair) -> GPTNeoX:
    return pair[1]


@pytest.fixture(scope="module", params=["parallel", "sequential"])
def each(request) -> GPTNeoX:
    return twins(VARIANTS[request.param])[1]


@pytest.mark.parametrize("spec", ["resid_mid", ("resid_mid", 0)])
def test_a_point_that_a_parallel_block_cannot_have_is_named_with_the_reason(model, spec):
    why = (
        r"^this model has no point resid_mid: its attention and MLP read the same stream, so that resid_pre \+ "
        r"attn_out \+ mlp_out = resid_post; take resid_pre, attn_out, mlp_out or resid_post$"
    )
    with pytest.raises(UsageError, match=why):
        model.resolve(spec)
    with pytest.raises(UsageError, match=why):
        model.run_with_cache(tokens_for(model), points=["embed", spec])
    with pytest.raises(UsageError, match=why):
        model.run_with_hooks(tokens_for(model), fwd_hooks=[(spec, lambda x, hook: None)])


def test_the_curve_of_a_parallel_model_ends_with_its_output(each):
    task = Task("ids", [[1, 2, 3], [4, 5, 6, 7], [4, 5]])
    acts = extract(each, task, points="resid_pre")
    assert acts.curve("resid_pre") == [*(("resid_pre", i) for i in range(3)), ("resid_post", 2)]
    with torch.no_grad():
        for row, ids in enumerate(task.inputs):
            last = each(torch.tensor([ids]), stop_at_layer=3)[0, -1]
            assert error(acts["resid_post", 2][row], last) <= 5e-6


_REFUSED = [
    ({"num_attention_heads": 5}, r"d_model \(hidden_size\) 32 must be a multiple of n_heads \(num_attention_heads\) 5"),
    ({"hidden_act": "quick_gelu"}, r"unknown activation \(hidden_act\) 'quick_gelu'"),
    ({"head_dim": 8}, "head_dim = 8 is not implemented for model_type gpt_neox; only 16 is"),
    ({"sliding_window": 4}, "sliding_window = 4 is not implemented"),
    (
        {"rotary_pct": -0.25, "rope_parameters": {"partial_rotary_factor": -0.25}, "partial_rotary_factor": 1.0},
        "rotary_pct must be a positive number .*; got -0.25",
    ),
    ({"rotary_pct": 0.05}, "rotary_pct 0.05 of the 16 coordinates of a head rotates 0; correct it, as .* from 2 to 16"),
    ({"rotary_emb_base": -1}, r"rope_theta \(rotary_emb_base\) must be a positive number"),
    ({"rotary_pct": None}, "rotary_pct must be a positive number .*; got None"),
    ({"rope_theta": 5e5}, "rope_theta is 500000.0, but rotary_emb_base is 10000; leave one out"),
    ({"partial_rotary_factor": 1.0}, "partial_rotary_factor is 1.0, but rotary_pct is 0.25; leave one out"),
    (
        {"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}},
        "rotary_emb_base is 10000, but rope_theta in rope_parameters is 500000.0; leave one out",
    ),
    ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "'dynamic' is not implemented"),
    ({"rope_parameters": {"rope_type": "longrope", "factor": 2.0}}, "'longrope' is not implemented"),
]


IMPOSSIBLE = [(BASE | change, match) for change, match in _REFUSED]
_SAME = [
    (
        {"rotary_emb_base": 500, "rotary_pct": 0.5},
        {"rope_parameters": {"rope_theta": 500, "partial_rotary_factor": 0.5, "rope_type": "default"}},
    ),
    ({}, {"rope_parameters": {"rope_type": "default"}}),
    ({"rotary_pct": 0.5}, {"rotary_pct": 0.5, "partial_rotary_factor": None}),
    ({}, {"rope_theta": 10000, "partial_rotary_factor": 0.25, "rope_scaling": None, "rope_parameters": None}),
    (
        {"rotary_pct": 1, "rope_scaling": {"type": "linear", "factor": 2}},
        {"rope_parameters": {"rope_type": "linear", "factor": 2, "partial_rotary_factor": 1.0}},
    ),
]
OLD_AND_NEW = [
    *((SILENT | old, SILENT | new) for old, new in _SAME),
    *((SILENT | old, HfConfig(**SILENT | new).to_dict()) for old, new in _SAME),
]
FEATURES = [
    ("parallel", {"rotary_pct": 0.5}),
    ("parallel", {"rope_theta": 100.0}),
    ("parallel", {"parallel_residual": False}),
    *((name, {"rope_scaling": None}) for name in ("linear gptneox", "yarn gptneox", "llama3 gptneox")),
]


def published(d_model: int, n_layers: int, n_heads: int, **other: Any) -> dict[str, Any]:
    """A config.json as it is on the Hub: Pythia's, but for what is given."""
    return {
        "architectures": ["GPTNeoXForCausalLM"], "bos_token_id": 0, "eos_token_id": 0, "hidden_act": "gelu",
        "hidden_size": d_model, "initializer_range": 0.02, "intermediate_size": 4 * d_model, "layer_norm_eps": 1e-05,
        "max_position_embeddings": 2048, "model_type": "gpt_neox", "num_attention_heads": n_heads,
        "num_hidden_layers": n_layers, "rotary_emb_base": 10000, "rotary_pct": 0.25, "tie_word_embeddings": False,
        "torch_dtype": "float16", "transformers_version": "4.24.0", "use_cache": True, "use_parallel_residual": True,
        "vocab_size": 50304,
    } | other  # fmt: skip


NEW_FIELDS = {"attention_bias": True, "attention_dropout": 0.0, "classifier_dropout": 0.1, "hidden_dropout": 0.0,
              "rope_scaling": None}  # fmt: skip
PUBLISHED = {  # and how many parameters they have
    "pythia-14m": (published(128, 6, 4, max_position_embeddings=512, **NEW_FIELDS), 14_067_712),
    "RedPajama-INCITE-Base-3B-v1": (
        published(2560, 32, 32, vocab_size=50432, rotary_pct=1.0, use_parallel_residual=False),
        2_775_864_320,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("prefix", "head"), [("gpt_neox.", "embed_out.weight"), ("", "lm_head.weight")])
def test_old_files_load_whatever_buffers_they_hold(tmp_path, pair, prefix, head):
    """Causal masks and frequencies are ignored by name, also in files of bare models, under either name of the head."""
    oracle, model = pair
    save_hf(model, tmp_path)
    weights = {prefix + name: x for name, x in oracle.gpt_neox.state_dict().items()} | {head: oracle.lm_head.weight}
    for i in range(3):
        at = f"{prefix}layers.{i}.attention."
        weights[at + "bias"] = torch.ones(1, 1, 24, 24, dtype=torch.bool)
        weights[at + "masked_bias"] = torch.tensor(-1e9)
        weights[at + "rotary_emb.inv_freq"] = torch.ones(1)
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert load_model(tmp_path, device="cpu").fingerprint() == model.fingerprint()
    save_file(weights | {"layers.0.attention.rotary.inv": torch.ones(1)}, tmp_path / "model.safetensors")
    with pytest.raises(DataError, match=r"unexpected: layers\.0\.attention\.rotary\.inv; "):
        load_model(tmp_path, device="cpu")
