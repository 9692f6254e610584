"""The hand-written GPT-NeoX against `transformers`, and what is true of parallel blocks alone."""

from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tiny_configs import SIZES
from transformers import GPTNeoXConfig as HfConfig
from transformers import GPTNeoXModel
from transformers_twins import error, tokens_for, twins

from probekit.errors import DataError, UsageError
from probekit.models.families.gptneox import HF_PREFIX, GPTNeoX, GPTNeoXConfig
from probekit.models.load import load_model
from probekit.models.positional import RopeScaling
from probekit.models.weights import save_hf
from probekit.points import POINTS
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


def test_it_has_every_point_of_a_pre_norm_decoder_but_learned_positions(each):
    elsewhere = ("pos_embed", "token_type_embed", "ln_embed", "head_ln", "encoder", "decoder", "mlp_pre_linear")
    others = ("q_norm", "k_norm", "ln1_post", "ln2_post", "router_logits", "expert_weights", *each.absent)
    mine = [full for short, full in POINTS.items() if not short.startswith((*elsewhere, *others))]
    assert set(each.points) == {full.format(layer=i) for full in mine for i in range(each.cfg.n_layers)}
    assert list(each.absent) == (["resid_mid"] if each.cfg.parallel_residual else [])


@pytest.mark.parametrize("spec", ["resid_mid", "resid_mid.1", "blocks.1.hook_resid_mid", ("resid_mid", 0)])
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


@pytest.mark.parametrize("layers", ["all", "1", [0, 2]])
def test_extraction_says_the_same(model, layers):
    task = Task("ids", [[1, 2, 3], [4, 5]])
    with pytest.raises(UsageError, match="no point resid_mid: its attention and MLP read the same stream"):
        extract(model, task, points=["resid_pre", "resid_mid"], layers=layers)


def test_the_curve_of_a_parallel_model_ends_with_its_output(each):
    task = Task("ids", [[1, 2, 3], [4, 5, 6, 7], [4, 5]])
    acts = extract(each, task, points="resid_pre")
    assert acts.curve("resid_pre") == [*(("resid_pre", i) for i in range(3)), ("resid_post", 2)]
    with torch.no_grad():
        for row, ids in enumerate(task.inputs):
            last = each(torch.tensor([ids]), stop_at_layer=3)[0, -1]
            assert error(acts["resid_post", 2][row], last) <= 5e-6


def test_initial_weights():
    cfg = GPTNeoXConfig(64, 4, 128, 2, 8, 50, init_std=0.05)
    one, two, other = (GPTNeoX(cfg).init_weights(seed) for seed in (3, 3, 4))
    assert one.fingerprint() == two.fingerprint() != other.fingerprint()
    for name in ("embed.weight", "unembed.weight", "blocks.0.attn.qkv.weight", "blocks.1.mlp.down.weight"):
        assert one.get_parameter(name).std().item() == pytest.approx(0.05, rel=0.1), name
    assert torch.equal(one.get_parameter("blocks.0.attn.qkv.bias"), torch.zeros(192))
    assert torch.equal(one.state_dict()["ln_final.weight"], torch.ones(64))


_REFUSED = [
    ({"num_attention_heads": 5}, r"d_model \(hidden_size\) 32 must be a multiple of n_heads \(num_attention_heads\) 5"),
    ({"hidden_act": "quick_gelu"}, r"unknown activation \(hidden_act\) 'quick_gelu'"),
    ({"quantization_config": {"bits": 4}}, "quantization_config"),
    ({"head_dim": 8}, "head_dim = 8 is not implemented for model_type gpt_neox; only 16 is"),
    ({"sliding_window": 4}, "sliding_window = 4 is not implemented"),
    ({"layer_types": ["sliding_attention"] * 3}, "layer_types = .* is not implemented"),
    (
        {"rotary_pct": -0.25, "rope_parameters": {"partial_rotary_factor": -0.25}, "partial_rotary_factor": 1.0},
        "rotary_pct must be a positive number .*; got -0.25",
    ),
    ({"rotary_pct": 0.05}, "rotary_pct 0.05 of the 16 coordinates of a head rotates 0; correct it, as .* from 2 to 16"),
    ({"rotary_pct": 0.2}, "rotates 3; correct it"),
    ({"rotary_pct": 1.5}, "rotates 24; correct it"),
    ({"rope_theta": 5e5}, "rope_theta is 500000.0, but rotary_emb_base is 10000; leave one out"),
    ({"partial_rotary_factor": 1.0}, "partial_rotary_factor is 1.0, but rotary_pct is 0.25; leave one out"),
    (
        {"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}},
        "rotary_emb_base is 10000, but rope_theta in rope_parameters is 500000.0; leave one out",
    ),
    ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "rotary_pct is 0.25, but partial_rotary_factor in rope_para"),
    ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "'dynamic' is not implemented"),
    ({"rope_parameters": {"rope_type": "longrope", "factor": 2.0}}, "'longrope' is not implemented"),
    ({"rope_scaling": {"type": "yarn", "factor": 0}}, "rope scaling yarn: factor must be a positive number"),
    ({"rope_scaling": {"type": "linear"}}, "factor must be a positive number"),
    ({"rope_scaling": ["linear"]}, "rope_parameters and rope_scaling must be objects"),
    ({"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": LLAMA3}, "they differ"),
]


IMPOSSIBLE = [(BASE | change, match) for change, match in _REFUSED]
_SAME = [
    (
        {"rotary_emb_base": 500, "rotary_pct": 0.5},
        {"rope_parameters": {"rope_theta": 500, "partial_rotary_factor": 0.5, "rope_type": "default"}},
    ),
    ({}, {"rope_parameters": {"rope_type": "default"}}),
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


def test_defaults_are_those_of_transformers():
    silent = GPTNeoXConfig.from_hf(SILENT)
    assert silent == GPTNeoXConfig.from_hf(HfConfig(**SILENT).to_dict())
    assert (silent.parallel_residual, silent.rotary_pct, silent.eos_token_id) == (True, 0.25, 2)


def test_several_ids_may_end_a_text():
    cfg = GPTNeoXConfig.from_hf(BASE | {"eos_token_id": [3, 5]})
    assert cfg.eos_token_id == (3, 5)
    assert cfg.to_hf()["eos_token_id"] == [3, 5]
    assert GPTNeoXConfig.from_hf(BASE | {"eos_token_id": []}).eos_token_id is None


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
    "pythia-31m": (published(256, 6, 8, max_position_embeddings=1024, **NEW_FIELDS), 30_494_720),
    "pythia-70m": (published(512, 6, 8), 70_426_624),
    "pythia-160m": (published(768, 12, 12), 162_322_944),
    "pythia-410m": (published(1024, 24, 16), 405_334_016),
    "pythia-1b": (published(2048, 16, 8), 1_011_781_632),
    "pythia-1.4b": (published(2048, 24, 16), 1_414_647_808),
    "pythia-2.8b": (published(2560, 32, 32), 2_775_208_960),
    "pythia-6.9b": (published(4096, 32, 32, vocab_size=50432), 6_857_302_016),
    "pythia-12b": (published(5120, 36, 40, vocab_size=50688), 11_846_072_320),
    "gpt-neox-20b": (
        published(6144, 44, 64, vocab_size=50432, hidden_act="gelu_fast", attention_probs_dropout_prob=0,
                  hidden_dropout_prob=0),
        20_554_567_680,
    ),
    "RedPajama-INCITE-Base-3B-v1": (
        published(2560, 32, 32, vocab_size=50432, rotary_pct=1.0, use_parallel_residual=False),
        2_775_864_320,
    ),
}  # fmt: skip


@pytest.mark.parametrize("prefix", [HF_PREFIX, ""])
@pytest.mark.parametrize("head", ["embed_out.weight", "lm_head.weight"])
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
    with pytest.raises(DataError, match=r"unexpected: layers\.0\.attention\.rotary\.inv$"):
        load_model(tmp_path, device="cpu")


def test_a_tied_bare_model_loads_and_an_untied_one_lacks_its_head(tmp_path):
    for name in ("no biases, tied", "parallel"):
        oracle, model = twins(VARIANTS[name])
        bare = GPTNeoXModel(oracle.config)
        bare.load_state_dict(oracle.gpt_neox.state_dict())
        bare.save_pretrained(tmp_path / name)
        if model.cfg.tie_embeddings:
            assert load_model(tmp_path / name, device="cpu").fingerprint() == model.fingerprint()
        else:
            with pytest.raises(DataError, match=r"missing: embed_out\.weight \[61, 32\]$"):
                load_model(tmp_path / name, device="cpu")


def test_scaling_of_a_file():
    cfg = GPTNeoXConfig.from_hf(VARIANTS["llama3 gptneox"] | {"rotary_pct": 0.5, "rotary_emb_base": 5e5})
    assert cfg.rope_scaling == RopeScaling("llama3", 8.0, 1.0, 4.0, 16)
