"""The hand-written BERT against `transformers`, and against itself."""

from typing import Any

import pytest
import torch
from tiny_configs import SIZES
from torch import Tensor
from transformers_twins import error, tokens_for, twins

from probekit.errors import UsageError
from probekit.models.families.bert import Bert, BertConfig

TINY = {
    "bert": BertConfig(**SIZES, init_std=0.3),
    "bert-untied": BertConfig(**SIZES, init_std=0.3, tie_embeddings=False, n_segments=3, pooler=False, seq_head=False),
    "bert-headless": BertConfig(**SIZES, init_std=0.3, mlm_head=False, seq_head=False),
}
BASE = {
    "model_type": "bert", "hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 3, "intermediate_size": 64,
    "vocab_size": 61, "max_position_embeddings": 24,
}  # fmt: skip
OTHER = BASE | {
    "hidden_size": 48, "num_attention_heads": 3, "num_hidden_layers": 2, "intermediate_size": 40, "vocab_size": 29,
    "max_position_embeddings": 16, "type_vocab_size": 3, "layer_norm_eps": 1e-5,
}  # fmt: skip
VARIANTS = {
    "bert": BASE,
    "bert, untied": BASE | {"tie_word_embeddings": False},
    "bert of three segments": OTHER,
    "bert of one head": BASE | {"hidden_size": 24, "num_attention_heads": 1, "hidden_act": "gelu_new"},
    "bert of narrow heads": BASE | {"hidden_size": 16, "num_attention_heads": 8, "hidden_act": "relu"},
}
_REFUSED = [
    ({"num_attention_heads": 5}, "a multiple of n_heads"),
    ({"position_embedding_type": "relative_key"}, "position_embedding_type = 'relative_key' is not implemented"),
    ({"is_decoder": True}, "is_decoder"),
    ({"add_cross_attention": True}, "add_cross_attention"),
    ({"pruned_heads": {"0": [1]}}, "pruned_heads"),
    ({"architectures": ["BertForSequenceClassification"]}, "BertForSequenceClassification.*BertForMaskedLM"),
    ({"architectures": "BertModel"}, "architectures = 'BertModel'"),
    ({"architectures": [["BertModel"]]}, "architectures"),
]
IMPOSSIBLE = [(BASE | change, match) for change, match in _REFUSED]
PUBLISHED = {  # the base size, and the tiny one of Turc et al. 2019
    "BertModel": (BertConfig(mlm_head=False, seq_head=False), 109_482_240),
    "BertForMaskedLM": (BertConfig(pooler=False, seq_head=False), 109_514_298),
    "BertForPreTraining": (BertConfig(), 110_106_428),
    "BERT tiny": (BertConfig(d_model=128, n_heads=2, d_mlp=512, n_layers=2, mlm_head=False, seq_head=False), 4_385_920),
}
HEAD_POINTS = ("head_ln_scale", "head_ln")


@pytest.fixture(scope="module")
def pair() -> Any:
    return twins(BASE)


@pytest.fixture(scope="module")
def model(pair) -> Bert:
    return pair[1]


def segments_for(tokens: Tensor, first: int = 4) -> Tensor:
    """The tokens from `first` on are of segment 1."""
    return (torch.arange(tokens.shape[1]) >= first).long().expand_as(tokens)


@pytest.mark.parametrize("name", ["bert", "bert of three segments"])
def test_every_layer_equals_the_oracle_with_segments_and_padding(name):
    oracle, model = twins(VARIANTS[name])
    tokens = tokens_for(model, length=9)
    segments, mask = segments_for(tokens), torch.ones(3, 9, dtype=torch.long)
    mask[1, 6:], mask[2, 1:] = 0, 0
    real = mask.bool()
    mids: list[Any] = []
    layer: Any
    for layer in oracle.bert.encoder.layer:
        layer.attention.output.LayerNorm.register_forward_pre_hook(lambda _, args: mids.append(args[0]))
    with torch.no_grad():
        how: dict[str, Any] = {"attention_mask": mask, "token_type_ids": segments}
        theirs = oracle(tokens, output_hidden_states=True, output_attentions=True, **how)
        logits, cache = model.run_with_cache(tokens, **how)
        classes = model.classify(model(tokens, return_logits=False, **how))
    assert error(logits[real], theirs.prediction_logits[real]) <= 1e-5
    assert error(classes, theirs.seq_relationship_logits) <= 1e-5
    for i in range(model.cfg.n_layers):
        assert error(cache["resid_pre", i][real], theirs.hidden_states[i][real]) <= 1e-5
        assert error(cache["ln2_normalized", i][real], theirs.hidden_states[i + 1][real]) <= 1e-5
        assert error(cache["resid_mid", i][real], mids[i][real]) <= 1e-5
        for b in range(3):
            assert error(cache["attn_pattern", i][b][:, real[b]], theirs.attentions[i][b][:, real[b]]) <= 1e-5


def test_the_heads_norm_is_reached_without_the_logits_where_someone_listens(model):
    tokens = tokens_for(model)
    with torch.no_grad():
        _, whole = model.run_with_cache(tokens, points=[*HEAD_POINTS, "ln2_normalized"])
        out, cache = model.run_with_cache(tokens, points=list(HEAD_POINTS), return_logits=False)
    assert error(cache["head_ln"], whole["head_ln"]) <= 1e-6
    assert error(out, whole["ln2_normalized", 2]) <= 1e-6


@pytest.mark.parametrize(
    ("segments", "match"),
    [
        (torch.full((3, 9), 2), r"token_type_ids lie in 0\.\.1; got 2\.\.2"),
        (torch.zeros(3, 8, dtype=torch.long), r"token_type_ids are int64 \[3, 9\], like the tokens; .*\[3, 8\]"),
        (torch.zeros(3, 9), r"got torch\.float32 \[3, 9\]"),
        ([[0] * 9] * 3, "got list"),
    ],
)
def test_impossible_segments(model, segments, match):
    with pytest.raises(UsageError, match=match):
        model(tokens_for(model), token_type_ids=segments)


def test_what_a_checkpoint_lacks_is_not_made_up():
    tokens = torch.zeros(1, 4, dtype=torch.long)
    sizes: dict[str, Any] = {"d_model": 16, "n_heads": 2, "d_mlp": 32, "n_layers": 1, "n_ctx": 8, "d_vocab": 11}
    bare = Bert(BertConfig(**sizes, pooler=False, mlm_head=False, seq_head=False)).init_weights()
    with torch.no_grad():
        assert bare(tokens, return_logits=False).shape == (1, 4, 16)
        with pytest.raises(UsageError, match=r"no head for masked tokens.*return_logits=False"):
            bare(tokens)
        with pytest.raises(UsageError, match="no two-class head"):
            bare.classify(bare(tokens, return_logits=False))
    with pytest.raises(UsageError, match="no point"):
        bare.resolve("head_ln")
