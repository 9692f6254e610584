"""The hand-written Gemma 1, 2 and 3 against `transformers`, and against themselves."""

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny_configs import SIZES
from tokenizers import Tokenizer as Backend
from tokenizers.models import WordLevel
from tokenizers.processors import TemplateProcessing
from transformers import (
    Gemma3Config,
)
from transformers_twins import error, make_twins, tokens_for, twins

from probekit.errors import DataError
from probekit.models.families import gemma
from probekit.models.families.gemma import FULL, SLIDING, Gemma, GemmaConfig
from probekit.models.load import load_model
from probekit.models.packaging import text_fields
from probekit.models.positional import RopeScaling
from probekit.models.weights import save_hf

OWN: dict[str, Any] = SIZES | {"n_kv_heads": 2, "d_head": 8, "init_std": 0.3}
NO_CAPS: dict[str, Any] = {"attn_scores_soft_cap": None, "output_logits_soft_cap": None}
TINY = {
    "gemma": GemmaConfig(
        **OWN, **NO_CAPS, query_pre_attn_scalar=8, sliding_window=None, layer_types=3 * (FULL,), model_type="gemma"
    ),
    "gemma2": GemmaConfig(
        **OWN, query_pre_attn_scalar=5, attn_scores_soft_cap=1.5, output_logits_soft_cap=2.5, sliding_window=4,
        layer_types=(SLIDING, FULL, SLIDING),
    ),
    "gemma3": GemmaConfig(
        **OWN, **NO_CAPS, rope_theta=100.0, rope_scaling=RopeScaling("linear", 8.0), local_rope_theta=10.0,
        query_pre_attn_scalar=3, sliding_window=5, layer_types=(SLIDING, SLIDING, FULL), model_type="gemma3_text",
    ),
}  # fmt: skip
BASE = {
    "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 12, "vocab_size": 61, "max_position_embeddings": 24,
}  # fmt: skip
GEMMA1 = BASE | {"model_type": "gemma"}
GEMMA2 = BASE | {
    "model_type": "gemma2", "sliding_window": 4, "attn_logit_softcapping": 1.5, "final_logit_softcapping": 4.0,
    "query_pre_attn_scalar": 5,
}  # fmt: skip
GEMMA3 = BASE | {
    "model_type": "gemma3_text", "sliding_window": 4, "sliding_window_pattern": 2, "query_pre_attn_scalar": 2,
    "rope_theta": 100.0, "rope_local_base_freq": 10.0, "rope_scaling": {"rope_type": "linear", "factor": 8.0},
}  # fmt: skip
VARIANTS = {
    "gemma": GEMMA1,
    "gemma, one kv head": GEMMA1 | {"num_key_value_heads": 1, "head_dim": 10, "num_hidden_layers": 1},
    "gemma2": GEMMA2,
    "gemma2, untied": GEMMA2 | {"tie_word_embeddings": False, "hidden_activation": "silu", "num_hidden_layers": 2},
    "gemma2 without caps": GEMMA2 | {"attn_logit_softcapping": None, "final_logit_softcapping": None},
    "gemma2, every layer full": GEMMA2 | {"layer_types": 3 * [FULL], "num_key_value_heads": 4, "rms_norm_eps": 1e-3},
    "gemma2, stretched": GEMMA2 | {"rope_scaling": {"rope_type": "linear", "factor": 3.0}, "rope_theta": 50.0},
    "gemma3": GEMMA3,
    "gemma3, yarn": GEMMA3
    | {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 6}},
    "gemma3 by layer types": GEMMA3 | {"layer_types": [FULL, SLIDING, FULL], "num_key_value_heads": 1},
    "gemma3 of six layers": GEMMA3 | {"sliding_window_pattern": 6, "num_hidden_layers": 6, "head_dim": 4},
    "gemma3, capped logits": GEMMA3 | {"final_logit_softcapping": 3.0, "rope_scaling": None, "sliding_window": 1},
}
# What each generation has, and the fields of our config without it.
FEATURES = [
    ("gemma2", {"attn_scores_soft_cap": None}),
    ("gemma2", {"output_logits_soft_cap": None}),
    ("gemma2", {"query_pre_attn_scalar": 12}),
    ("gemma3", {"query_pre_attn_scalar": 12}),
    ("gemma2", {"sliding_window": 24}),
    ("gemma3", {"sliding_window": 24}),
    ("gemma3", {"local_rope_theta": 100.0}),
    ("gemma3", {"rope_scaling": None}),
    ("gemma3", {"layer_types": (FULL, SLIDING, SLIDING)}),
]


def disturbed(oracle: Any) -> Any:
    """With weights larger than at initialisation, so that every term of the arithmetic shows."""
    with torch.no_grad():
        for i, p in enumerate(oracle.parameters()):
            p.add_(torch.randn(p.shape, generator=torch.Generator().manual_seed(i)) * 0.2)
    assert sum(p.numel() for p in oracle.parameters()) < 100_000
    return oracle.eval()


@pytest.mark.parametrize("name", ["gemma", "gemma2", "gemma3"])
def test_bfloat16_is_that_of_transformers(name):
    """Embeddings to the bit, so the factor is rounded first; the rest as near to the truth as theirs."""
    theirs, ours = (model.to(torch.bfloat16) for model in make_twins(VARIANTS[name]))
    exact = Gemma(ours.cfg)
    exact.load_state_dict({key: x.float() for key, x in ours.state_dict().items()})
    tokens, eps = tokens_for(ours), torch.finfo(torch.bfloat16).eps
    with torch.no_grad():
        out = theirs(tokens, output_hidden_states=True)
        logits, cache = ours.run_with_cache(tokens)
        truth, true = exact.run_with_cache(tokens)
    assert logits.dtype == torch.bfloat16
    assert torch.equal(cache["embed"], out.hidden_states[0])
    pairs = [(cache["resid_post", i], out.hidden_states[i + 1], true["resid_post", i]) for i in range(2)]
    for mine, other, right in [*pairs, (logits, out.logits, truth)]:
        assert error(mine.float(), right) <= max(2 * error(other.float(), right), 2 * eps)
        assert error(mine.float(), other.float()) <= 16 * eps


def test_the_embeddings_factor_is_rounded_to_the_weights_type():
    model = Gemma(replace(TINY["gemma"], d_model=3072, n_layers=1, layer_types=(FULL,), d_mlp=1, d_vocab=1))
    with torch.no_grad():
        model.embed.weight.fill_(1)
        assert model(torch.tensor([[0]]), stop_at_layer=0).unique().item() == torch.tensor(3072**0.5).item()
        assert model.bfloat16()(torch.tensor([[0]]), stop_at_layer=0).unique().item() == 55.5


def test_capped_attention_does_not_depend_on_how_many_queries_it_takes_at_once(monkeypatch):
    model = twins(VARIANTS["gemma2"])[1]
    with torch.no_grad():
        whole = model(tokens_for(model))
        monkeypatch.setattr(gemma, "SCORES", 3 * 4 * 12 * 5)  # 5 queries, of 12
        assert error(model(tokens_for(model)), whole) <= 1e-6


def test_the_bos_of_a_folder_with_a_vision_tower_is_in_the_text_models_fields_or_the_tokenizers_template(tmp_path):
    save_hf(twins(VARIANTS["gemma3"])[1], tmp_path)
    backend = Backend(WordLevel({"<bos>": 0, "a": 1, "b": 2}))
    backend.post_processor = TemplateProcessing("<bos> $A", None, [("<bos>", 0)])
    backend.save(str(tmp_path / "tokenizer.json"))
    text = {name: x for name, x in twins(VARIANTS["gemma3"])[1].cfg.to_hf().items() if name != "bos_token_id"}
    for fields, bos in (({}, 0), ({"bos_token_id": 2}, 2)):
        hf = {"model_type": "gemma3", "text_config": text | fields}
        (tmp_path / "config.json").write_text(json.dumps(hf))
        assert load_model(tmp_path, device="cpu").to_tokens("a", bos=True).tolist() == [[bos, 1]]


def test_fields_that_a_released_text_config_leaves_out():
    hf = {
        "model_type": "gemma3",
        "eos_token_id": [1, 106],
        "text_config": {
            "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024,
        },
        "vision_config": {"hidden_size": 1152},
    }  # fmt: skip
    cfg = GemmaConfig.from_hf(text_fields(hf))
    theirs: Any = Gemma3Config(**hf).text_config
    assert GemmaConfig.from_hf(theirs.to_dict() | {"eos_token_id": [1, 106]}) == cfg
    assert (cfg.n_heads, cfg.n_kv_heads, cfg.d_head, cfg.d_vocab, cfg.n_ctx) == (8, 4, 256, 262_208, 131_072)
    assert (cfg.rope_theta, cfg.rope_scaling, cfg.local_rope_theta) == (1e6, RopeScaling("linear", 8.0), 1e4)
    assert (cfg.bos_token_id, cfg.eos_token_id, cfg.query_pre_attn_scalar) == (2, (1, 106), 256)
    assert [i for i, kind in enumerate(cfg.layer_types) if kind == FULL] == [5, 11, 17, 23, 29]


def nested(full: Any, sliding: Any) -> dict[str, Any]:
    plain = {key: value for key, value in GEMMA3.items() if not key.startswith("rope_")}
    return plain | {"rope_parameters": {FULL: full, SLIDING: sliding}}


_SAME = [
    ({}, nested({"rope_type": "linear", "factor": 8.0, "rope_theta": 100.0}, {"rope_theta": 10.0})),
    ({"rope_scaling": None}, nested({"rope_theta": 100.0}, {"rope_type": "default", "rope_theta": 10.0})),
    ({"rope_scaling": None}, nested(None, {"rope_theta": 10.0}) | {"rope_theta": 100.0}),
    ({"rope_theta": 1e6, "rope_scaling": None, "rope_local_base_freq": 1e4}, nested({}, None)),
    ({}, {"use_bidirectional_attention": None}),
    ({"sliding_window_pattern": 2}, {"_sliding_window_pattern": 6, "layer_types": [SLIDING, FULL, SLIDING]}),
    ({"sliding_window_pattern": 2}, {"sliding_window_pattern": 0, "layer_types": [SLIDING, FULL, SLIDING]}),
]
OLD_AND_NEW = [(GEMMA3 | old, new if "rope_parameters" in new else GEMMA3 | new) for old, new in _SAME]
_REFUSED = [
    (GEMMA3, {"use_bidirectional_attention": True}, "use_bidirectional_attention = True is not implemented"),
    (GEMMA2, {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
    (GEMMA2, {"attention_bias": True}, "attention_bias = True is not implemented for model_type gemma2"),
    (GEMMA3, {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping = 50.0 is not implemented"),
    (GEMMA1, {"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
    (GEMMA1, {"layer_types": 3 * [SLIDING]}, "layer_types"),
    (GEMMA2, {"quantization_config": {"bits": 4}}, "quantization_config"),
    (GEMMA2, {"num_key_value_heads": 3}, r"n_heads \(num_attention_heads\) 4 must be a multiple"),
    (GEMMA2, {"head_dim": 7}, r"d_head \(head_dim\) must be even"),
    (GEMMA2, {"hidden_activation": "swish"}, "unknown activation"),
    (GEMMA2, {"sliding_window": None}, "sliding_window must be a whole number"),
    (GEMMA2, {"sliding_window": 0}, "sliding_window must be a whole number"),
    (GEMMA2, {"layer_types": [FULL, SLIDING]}, "for each of 3 layers .*; got a list of 2"),
    (GEMMA2, {"layer_types": [FULL, SLIDING, "chunked_attention"]}, "must be full_attention or sliding_attention for"),
    (GEMMA2, {"layer_types": "full_attention"}, "layer_types"),
    (GEMMA2, {"layer_types": [[FULL], FULL, FULL]}, "layer_types"),
    (GEMMA2, {"rope_parameters": {FULL: {"rope_type": "default"}}}, "full_attention"),
    (GEMMA2, {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "dynamic.* is not implemented"),
    (GEMMA3, {"sliding_window_pattern": 0}, "sliding_window_pattern must be a whole number"),
    (GEMMA3, {"sliding_window_pattern": True}, "sliding_window_pattern must be a whole number"),
    (GEMMA3, {"rope_local_base_freq": -1.0}, r"local_rope_theta \(rope_local_base_freq\)"),
    (GEMMA3, {"rope_parameters": {"rope_type": "linear", "factor": 8.0}}, "an object with full_attention and"),
    (GEMMA3, {"rope_parameters": [1]}, "an object with full_attention and"),
    (GEMMA3, {"rope_scaling": {"type": "linear", "factor": 8.0}}, "name it rope_type"),
    (GEMMA3, {"rope_parameters": {FULL: {"rope_theta": 5.0}}}, "leave one out"),
    (GEMMA3, {"rope_parameters": {FULL: {"rope_type": "linear", "factor": 2.0}}}, "leave one out"),
    (GEMMA3, {"rope_parameters": {SLIDING: {"rope_type": "linear", "factor": 2.0}}}, "'linear' is not implemented"),
    (GEMMA3, {"rope_parameters": {SLIDING: {"rope_theta": 11.0}}}, "rope_local_base_freq is 10.0"),
    (GEMMA3, {"rope_local_base_freq": float("nan")}, r"rope_local_base_freq\) must be a positive number .*; got nan"),
    (GEMMA3, {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    (GEMMA3, {"rope_parameters": {SLIDING: 3}}, "must be objects"),
]  # fmt: skip
IMPOSSIBLE = [(base | change, match) for base, change, match in _REFUSED]


@pytest.mark.parametrize(
    ("name", "change", "match"),
    [
        ("gemma2", {"local_rope_theta": 1e4}, "full_attention"),
        ("gemma3", {"attn_scores_soft_cap": 1.0}, "attn_logit_softcapping"),
        ("gemma", {"query_pre_attn_scalar": 16}, "query_pre_attn_scalar of gemma can only be 8; got 16"),
        ("gemma", {"activation": "gelu"}, r"activation \(hidden_activation\) of gemma can only be"),
    ],
)
def test_a_generation_has_no_more_than_its_file_can_say(name, change, match):
    with pytest.raises(DataError, match=match):
        replace(TINY[name], **change)


def config_of(model_type: str, sizes: tuple[int, ...], **more: Any) -> dict[str, Any]:
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    return {"model_type": model_type, **dict(zip((*names, "head_dim"), sizes, strict=True)), **more}


PUBLISHED = {  # the sizes in their config.json, and how many parameters they have
    "Gemma 2B": (config_of("gemma", (2048, 16384, 18, 8, 1, 256), hidden_act="gelu"), 2_506_172_416),
    "Gemma 7B": (config_of("gemma", (3072, 24576, 28, 16, 16, 256), hidden_act="gelu"), 8_537_680_896),
    "Gemma 2 2B": (config_of("gemma2", (2304, 9216, 26, 8, 4, 256), cache_implementation="hybrid"), 2_614_341_888),
    "Gemma 2 9B": (config_of("gemma2", (3584, 14336, 42, 16, 8, 256)), 9_241_705_984),
    "Gemma 2 27B": (config_of("gemma2", (4608, 36864, 46, 32, 16, 128), query_pre_attn_scalar=144), 27_227_128_320),
    "Gemma 3 270M": (
        config_of("gemma3_text", (640, 2048, 18, 4, 1, 256), vocab_size=262_144, _sliding_window_pattern=6,
                  layer_types=3 * [*5 * [SLIDING], FULL], sliding_window=512, rope_scaling=None),
        268_098_176,
    ),
    "Gemma 3 1B": (
        config_of("gemma3_text", (1152, 6912, 26, 4, 1, 256), vocab_size=262_144, sliding_window_pattern=6,
                  sliding_window=512, rope_theta=1_000_000, rope_local_base_freq=10_000, rope_scaling=None),
        999_885_952,
    ),
}  # fmt: skip
