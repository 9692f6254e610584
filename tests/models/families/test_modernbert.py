"""ModernBERT against `transformers` on the same folders, with windows that bite; its two kinds of layers."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from encoder_folders import assert_equal_to, hf_folder, load, read_by, rewrite
from tiny_configs import SIZES
from transformers import ModernBertConfig as HfConfig
from transformers import ModernBertForMaskedLM, ModernBertModel
from transformers_twins import error

from probekit.errors import UsageError
from probekit.models.families.modernbert import ModernBert, ModernBertConfig

MIXED: dict[str, Any] = {
    "layer_types": ("full_attention", "sliding_attention", "sliding_attention"),
    "sliding_window": 3,
}
SMALL: dict[str, Any] = {**SIZES, "init_std": 0.3, "pad_token_id": 0, "rope_theta": 1000.0, "local_rope_theta": 10.0}
BIASES: dict[str, Any] = {"attn_bias": True, "mlp_bias": True, "norm_bias": True, "head_bias": True}
TINY = {
    "modernbert": ModernBertConfig(**SMALL, **MIXED),
    "modernbert-biased": ModernBertConfig(
        **SMALL, **MIXED, **BIASES, unembed_bias=False, tie_embeddings=False, head_activation="relu", activation="silu"
    ),
    "modernbert-headless": ModernBertConfig(
        **SMALL, layer_types=("sliding_attention", "full_attention", "full_attention"), sliding_window=2, mlm_head=False
    ),
}
SHAPE: dict[str, Any] = {
    "hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 4, "intermediate_size": 24, "vocab_size": 61,
    "max_position_embeddings": 24, "pad_token_id": 0, "local_attention": 6,
}  # fmt: skip
SHAPES: list[dict[str, Any]] = [
    SHAPE,
    SHAPE | {"global_attn_every_n_layers": 2, "norm_bias": True, "attention_bias": True, "tie_word_embeddings": False},
    SHAPE | {"hidden_size": 48, "num_attention_heads": 3, "num_hidden_layers": 2, "mlp_bias": True, "norm_eps": 1e-3,
             "layer_types": ["sliding_attention", "full_attention"], "local_attention": 3, "decoder_bias": False},
    SHAPE | {"classifier_bias": True, "classifier_activation": "relu", "hidden_activation": "silu",
             "global_rope_theta": 50.0, "local_rope_theta": 3.0},
]  # fmt: skip
FOLDERS = {f"modernbert {i}": (ModernBertForMaskedLM, HfConfig(**shape)) for i, shape in enumerate(SHAPES)}
BARE_FOLDERS = {"modernbert": (ModernBertModel, HfConfig(**SHAPE))}
OLD = {  # the fields of the files on the Hub
    "layer_types": None,
    "rope_parameters": None,
    "global_attn_every_n_layers": 3,
    "global_rope_theta": 160000.0,
    "local_rope_theta": 10000.0,
    "layer_norm_eps": 1e-05,
    "position_embedding_type": "absolute",
    "reference_compile": False,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return hf_folder(tmp_path_factory.mktemp("folders") / "modernbert", ModernBertForMaskedLM, HfConfig(**SHAPE))


@pytest.fixture(scope="module")
def model():
    return ModernBert(TINY["modernbert"]).init_weights().eval()


def cached(model: ModernBert, tokens: torch.Tensor, **how: Any) -> Any:
    with torch.no_grad():
        return model.run_with_cache(tokens, **how)


def test_fields_and_names_of_the_files_on_the_hub(folder, tmp_path):
    """The decoder written out, old fields, and a head or none whatever config.json says."""
    hf_folder(tmp_path, ModernBertForMaskedLM, HfConfig(**SHAPE), OLD)
    words = "model.embeddings.tok_embeddings.weight"
    rewrite(tmp_path, lambda w: w | {"decoder.weight": w[words]}, architectures=["ModernBertModel"])
    oracle = read_by(ModernBertForMaskedLM, folder)
    assert load(tmp_path).cfg == load(folder).cfg
    assert_equal_to(oracle, load(tmp_path))
    rewrite(tmp_path, lambda w: {n.removeprefix("model."): x for n, x in w.items() if n.startswith("model.")})
    assert not load(tmp_path).has_logits
    assert_equal_to(oracle, load(tmp_path))


@pytest.mark.parametrize(
    "change", [{"sliding_window": 9}, {"local_rope_theta": 1000.0}, {"rope_theta": 10.0}, {"norm_eps": 1e-2}]
)
def test_windows_and_both_thetas_are_active(folder, change):
    """So that equality with transformers says something about them."""
    model = load(folder)
    other = ModernBert(replace(model.cfg, **change))
    other.load_state_dict(model.state_dict())
    tokens = torch.arange(5, 17)[None]
    with torch.no_grad():
        assert error(other(tokens), model(tokens)) > 1e-3


def test_layer_types_may_be_a_list():
    listed: Any = list(MIXED["layer_types"])
    assert replace(TINY["modernbert"], layer_types=listed) == TINY["modernbert"]


def test_the_first_block_has_no_attention_norm(model):
    _, c = cached(model, torch.arange(5, 12)[None])
    assert [i for i in range(3) if f"blocks.{i}.ln1.hook_normalized" in c] == [1, 2]
    assert torch.equal(c["ln_embed"], c["resid_pre", 0])
    with pytest.raises(UsageError, match=r"no point ln1_normalized\.0: its input is the embedding norm's output"):
        model.resolve("ln1_normalized.0")


def test_initial_weights_are_those_of_transformers():
    """The same deviation and cut for every matrix; transformers draws other numbers."""
    cfg = ModernBertConfig(**SIZES, pad_token_id=0, layer_types=("full_attention",) * 3, init_cutoff=1.5)
    torch.manual_seed(0)
    theirs: Any = ModernBertForMaskedLM(HfConfig(**cfg.to_hf())).model
    ours: Any = ModernBert(cfg).init_weights()
    for a, b in [
        (ours.blocks[1].attn.qkv, theirs.layers[1].attn.Wqkv),
        (ours.blocks[1].attn.out, theirs.layers[1].attn.Wo),
        (ours.blocks[1].mlp.gate_up, theirs.layers[1].mlp.Wi),
        (ours.blocks[1].mlp.down, theirs.layers[1].mlp.Wo),
    ]:
        assert a.weight.std().item() == pytest.approx(b.weight.std().item(), rel=0.1)
        assert a.weight.abs().max().item() == pytest.approx(b.weight.abs().max().item(), rel=0.02)


# outside of rope_parameters, transformers reads neither
OLD_AND_NEW = [
    ({"model_type": "modernbert", **SHAPE}, {"model_type": "modernbert", **SHAPE, name: value})
    for name, value in {"rope_theta": 5.0, "partial_rotary_factor": 0.5}.items()
]
_REFUSED = [
    ({"hidden_size": 30}, "must be a multiple of n_heads"),
    ({"hidden_size": 36}, "d_head must be even"),
    ({"local_attention": -1}, "local_attention must be a whole number from 0; got -1"),
    ({"local_attention": "128"}, "local_attention"),
    ({"global_attn_every_n_layers": 0}, "global_attn_every_n_layers"),
    ({"layer_types": ["full_attention"]}, "for each of 4 layers .*; got a list of 1"),
    ({"layer_types": ["full_attention"] * 3 + ["linear"]}, "layer_types"),
    ({"layer_types": "full_attention"}, "layer_types must be a list"),
    ({"layer_types": ["full_attention"] * 4, "global_attn_every_n_layers": 3}, "global_attn_every_n_layers 3"),
    ({"rope_scaling": {"rope_type": "linear", "factor": 2}}, "rope_scaling"),
    ({"rope_parameters": {"rope_theta": 1e4}}, "rope_parameters must be an object with full_attention and"),
    ({"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, "'yarn' is not implemented"),
    ({"rope_parameters": {"full_attention": {"rope_type": None}}}, "rope_type = None is not implemented"),
    ({"rope_parameters": {"full_attention": {"factor": 2}}}, "rope scaling with 'factor' and no rope_type"),
    ({"rope_parameters": {"full_attention": {"rope_theta": 5.0}}, "global_rope_theta": 6.0}, "leave one out"),
    ({"local_rope_theta": float("nan")}, "local_rope_theta must be a positive number .*; got nan"),
    ({"local_rope_theta": None}, "local_rope_theta must be a positive number"),
    ({"layer_norm_eps": 1e-12}, "layer_norm_eps is 1e-12, but norm_eps 1e-05; leave one out"),
    (
        {"architectures": ["ModernBertForSequenceClassification"]},
        r"ModernBertModel \(model\.model\.save_pretrained",
    ),
]
IMPOSSIBLE = [({"model_type": "modernbert", **SHAPE} | change, match) for change, match in _REFUSED]
PUBLISHED = {
    "ModernBERT base": (ModernBertConfig(), 149_655_232),
    "ModernBERT large": (
        ModernBertConfig(
            d_model=1024,
            n_heads=16,
            d_mlp=2624,
            n_layers=28,
            layer_types=tuple(("full_attention", *["sliding_attention"] * 2)[i % 3] for i in range(28)),
        ),
        395_881_664,
    ),
}
