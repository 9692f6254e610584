"""The hand-written BERT against `transformers`, and against itself."""

from itertools import product
from typing import Any

import pytest
import torch
from tiny_configs import SIZES
from torch import Tensor
from transformers import BertConfig as HfConfig
from transformers import BertForPreTraining

from probekit.errors import DataError, UsageError
from probekit.models.families.bert import Bert, BertConfig, hf_names
from probekit.points import POINTS

TINY = {
    "bert": BertConfig(**SIZES, init_std=0.3),
    "bert-untied": BertConfig(**SIZES, init_std=0.3, tie_embeddings=False, n_segments=3, pooler=False, seq_head=False),
    "bert-headless": BertConfig(**SIZES, init_std=0.3, mlm_head=False, seq_head=False),
}
SHAPES: list[dict[str, Any]] = [
    {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 3, "intermediate_size": 64, "vocab_size": 61,
     "max_position_embeddings": 24},
    {"hidden_size": 48, "num_attention_heads": 3, "num_hidden_layers": 2, "intermediate_size": 40, "vocab_size": 29,
     "max_position_embeddings": 16, "type_vocab_size": 3, "layer_norm_eps": 1e-5},
    {"hidden_size": 24, "num_attention_heads": 1, "num_hidden_layers": 1, "intermediate_size": 96, "vocab_size": 17,
     "max_position_embeddings": 12, "hidden_act": "gelu_new"},
    {"hidden_size": 16, "num_attention_heads": 8, "num_hidden_layers": 4, "intermediate_size": 16, "vocab_size": 33,
     "max_position_embeddings": 20, "hidden_act": "relu"},
]  # fmt: skip
HEAD_POINTS = ("head_ln_scale", "head_ln")


def from_hf(hf: dict, weights: dict[str, Tensor]) -> Bert:
    cfg = BertConfig.from_hf(hf)
    model = Bert(cfg)
    model.load_state_dict({ours: weights[theirs.name] for ours, theirs in hf_names(cfg).items()})
    return model.eval()


def twins(shape: dict, tied: bool = True, seed: int = 0) -> tuple[BertForPreTraining, Bert]:
    torch.manual_seed(seed)
    config = HfConfig(**shape, tie_word_embeddings=tied)
    config._attn_implementation = "eager"
    oracle = BertForPreTraining(config).eval()
    with torch.no_grad():  # larger than at initialisation, so that every term of the arithmetic shows
        for p in oracle.parameters():
            p.add_(torch.randn_like(p) * 0.2)
    assert sum(p.numel() for p in oracle.parameters()) < 100_000
    return oracle, from_hf(config.to_dict(), oracle.state_dict())


def tokens_for(model: Bert, batch: int = 3, length: int = 9, seed: int = 1) -> Tensor:
    return torch.randint(model.cfg.d_vocab, (batch, length), generator=torch.Generator().manual_seed(seed))


def segments_for(tokens: Tensor, first: int = 4) -> Tensor:
    """The tokens from `first` on are of segment 1."""
    return (torch.arange(tokens.shape[1]) >= first).long().expand_as(tokens)


def error(ours: Tensor, theirs: Tensor) -> float:
    """Largest difference, relative to the largest value of the reference."""
    return ((ours - theirs).abs().max() / theirs.abs().max()).item()


@pytest.fixture(scope="module")
def pair() -> tuple[BertForPreTraining, Bert]:
    return twins(SHAPES[0])


@pytest.fixture(scope="module")
def model(pair) -> Bert:
    return pair[1]


@pytest.mark.parametrize(("shape", "tied"), list(product(SHAPES, [True, False])))
def test_every_layer_equals_the_oracle_with_segments_and_padding(shape, tied):
    oracle, model = twins(shape, tied)
    tokens = tokens_for(model)
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


def test_inner_points_equal_the_oracle_modules(pair):
    oracle, model = pair
    tokens, i = tokens_for(model), 1
    layer = oracle.bert.encoder.layer[i]
    modules = {
        "embed": oracle.bert.embeddings.word_embeddings,
        "token_type_embed": oracle.bert.embeddings.token_type_embeddings,
        "ln_embed": oracle.bert.embeddings.LayerNorm,
        "q": layer.attention.self.query,
        "k": layer.attention.self.key,
        "v": layer.attention.self.value,
        "attn_out": layer.attention.output.dense,
        "ln1_normalized": layer.attention.output.LayerNorm,
        "mlp_pre": layer.intermediate.dense,
        "mlp_post": layer.intermediate,
        "mlp_out": layer.output.dense,
        "ln2_normalized": layer.output.LayerNorm,
        "head_ln": oracle.cls.predictions.transform,
    }
    seen: dict[str, Tensor] = {}

    def keep(name):
        return lambda _, __, out: seen.__setitem__(name, out)

    with torch.no_grad():
        handles = [module.register_forward_hook(keep(name)) for name, module in modules.items()]
        oracle(tokens, token_type_ids=segments_for(tokens))
        [handle.remove() for handle in handles]
        _, cache = model.run_with_cache(tokens, token_type_ids=segments_for(tokens))
    for name in modules:
        ours = cache[name, i] if "{layer}" in POINTS[name] else cache[name]
        assert error(ours.flatten(2), seen[name]) <= 1e-5, name


def test_identities_of_a_post_norm_model(model):
    tokens = tokens_for(model)
    with torch.no_grad():
        logits, c = model.run_with_cache(tokens, token_type_ids=segments_for(tokens))
        for i in range(model.cfg.n_layers):
            block = model.blocks[i]
            assert torch.equal(c["resid_pre", i] + c["attn_out", i], c["resid_mid", i])
            assert torch.equal(c["ln1_normalized", i] + c["mlp_out", i], c["resid_post", i])
            assert torch.allclose(c["attn_pattern", i].sum(-1), torch.ones(3, 4, 9), atol=1e-6)
            assert torch.allclose(c["attn_pattern", i], c["attn_scores", i].softmax(-1), atol=1e-6)
            assert torch.allclose(c["result", i].sum(2) + block.attn.out.bias, c["attn_out", i], atol=1e-6)
            z = torch.einsum("bhlm,bmhk->blhk", c["attn_pattern", i], c["v", i])
            assert torch.allclose(z, c["z", i], atol=1e-6)
            for ln, before, after in [("ln1", "resid_mid", "ln1"), ("ln2", "resid_post", "ln2")]:
                centred, norm = c[before, i] - c[before, i].mean(-1, keepdim=True), getattr(block, ln)
                expected = centred / c[f"{after}_scale", i] * norm.weight + norm.bias
                assert torch.allclose(expected, c[f"{after}_normalized", i], atol=1e-5)
            if i:
                assert torch.equal(c["resid_pre", i], c["ln2_normalized", i - 1])
                assert error(c["resid_pre", i], c["resid_post", i - 1]) > 0.01  # as of a pre-norm model it would be
        assert torch.equal(c["ln_embed"], c["resid_pre", 0])
        summed = c["embed"] + c["pos_embed"] + c["token_type_embed"]
        assert torch.allclose(model.ln_embed(summed), c["ln_embed"], atol=1e-6)
        last = c[model.output_point, model.n_layers - 1]
        assert error(model.logits(last), logits) <= 1e-6
        assert model.head is not None
        assert error(c["head_ln"] @ model.embed.weight.T + model.head.bias, logits) <= 1e-6


def test_left_padding_equals_the_oracle_given_the_same_positions(pair):
    oracle, model = pair
    tokens, mask = tokens_for(model), torch.ones(3, 9, dtype=torch.long)
    mask[0, :4], mask[1, :1] = 0, 0
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        theirs = oracle(tokens, attention_mask=mask, position_ids=positions).prediction_logits
        assert error(model(tokens, attention_mask=mask)[mask.bool()], theirs[mask.bool()]) <= 1e-5


def test_every_token_sees_those_after_it(model):
    tokens = tokens_for(model, 1)
    changed = tokens.clone()
    changed[0, -1] = (changed[0, -1] + 1) % model.cfg.d_vocab
    with torch.no_grad():
        a, b = (model.run_with_cache(t, points="resid_mid")[1]["resid_mid", 0] for t in (tokens, changed))
    assert ((a - b).abs().amax(-1) > 1e-4).all()


@pytest.mark.parametrize("given", [True, False])
def test_block_mask_packs_two_texts_in_one_row(model, given):
    """A mask [B, L, M]: two texts side by side do not see each other; positions follow from it if none are given."""
    a, b = tokens_for(model, 1, 5, seed=2), tokens_for(model, 1, 4, seed=3)
    mask = torch.block_diag(torch.ones(5, 5), torch.ones(4, 4))[None].bool()
    positions = torch.tensor([[*range(5), *range(4)]]) if given else None
    with torch.no_grad():
        packed = model(torch.cat([a, b], 1), attention_mask=mask, position_ids=positions)
        assert error(packed[:, :5], model(a)) <= 1e-5
        assert error(packed[:, 5:], model(b)) <= 1e-5


def test_a_row_that_sees_nothing_stays_finite(model):
    tokens, mask = tokens_for(model, 1), torch.ones(1, 9, 9, dtype=torch.bool)
    mask[0, 2] = False
    with torch.no_grad():
        fused = model(tokens, attention_mask=mask)
        explicit, cache = model.run_with_cache(tokens, attention_mask=mask)
    assert fused.isfinite().all()
    assert error(explicit, fused) <= 1e-6
    assert (cache["attn_pattern", 0][0, :, 2] == 0).all()


def test_the_heads_norm_is_reached_without_the_logits_where_someone_listens(model):
    tokens = tokens_for(model)
    with torch.no_grad():
        _, whole = model.run_with_cache(tokens)
        out, cache = model.run_with_cache(tokens, points=list(HEAD_POINTS), return_logits=False)
    assert error(cache["head_ln"], whole["head_ln"]) <= 1e-6
    assert error(out, whole["ln2_normalized", 2]) <= 1e-6


def test_a_hook_replaces_what_passes(model):
    """Without attention and MLP every block is two norms."""
    tokens = tokens_for(model)
    with torch.no_grad():
        expected = model(tokens, stop_at_layer=0)
        for block in model.blocks:
            expected = block.ln2(block.ln1(expected))
        nothing = [(["attn_out", "mlp_out"], lambda x, hook: torch.zeros_like(x))]
        assert torch.equal(model.run_with_hooks(tokens, fwd_hooks=nothing, return_logits=False), expected)
    assert not any(point.hooked for point in model.points.values())


@pytest.mark.parametrize(
    ("tokens", "match"),
    [
        ("the keys", "to_tokens"),
        (torch.zeros(3, dtype=torch.long), "int64"),
        (torch.zeros(1, 0, dtype=torch.long), "int64"),
        (torch.zeros(1, 25, dtype=torch.long), "25 tokens do not fit a context of 24"),
        (torch.full((1, 2), 61), r"0\.\.60"),
    ],
)
def test_impossible_tokens(model, tokens, match):
    with pytest.raises(UsageError, match=match):
        model(tokens)


@pytest.mark.parametrize(
    ("segments", "match"),
    [
        (torch.full((3, 9), 2), r"token_type_ids lie in 0\.\.1; got 2\.\.2"),
        (torch.full((3, 9), -1), r"got -1\.\.-1"),
        (torch.zeros(3, 8, dtype=torch.long), r"token_type_ids are int64 \[3, 9\], like the tokens; .*\[3, 8\]"),
        (torch.zeros(9, dtype=torch.long), r"got torch\.int64 \[9\]"),
        (torch.zeros(3, 9), r"got torch\.float32 \[3, 9\]"),
        ([[0] * 9] * 3, "got list"),
    ],
)
def test_impossible_segments(model, segments, match):
    with pytest.raises(UsageError, match=match):
        model(tokens_for(model), token_type_ids=segments)


@pytest.mark.parametrize("shape", [(3, 8), (2, 9), (9, 9), (3, 9, 8), (3, 4, 9, 9)])
def test_impossible_masks(model, shape):
    with pytest.raises(UsageError, match=r"attention_mask is \[3, 9\] or \[3, 9, 9\]; got"):
        model(tokens_for(model), attention_mask=torch.ones(shape))


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


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"num_hidden_layers": -1}, "num_hidden_layers"),
        ({"num_hidden_layers": None}, "num_hidden_layers"),
        ({"num_attention_heads": 5}, "a multiple of n_heads"),
        ({"vocab_size": True}, "vocab_size"),
        ({"max_position_embeddings": "8"}, "max_position_embeddings"),
        ({"intermediate_size": 0}, "intermediate_size"),
        ({"type_vocab_size": 0}, "type_vocab_size"),
        ({"hidden_act": "gleu"}, "gelu"),
        ({"hidden_act": ["gelu"]}, "hidden_act"),
        ({"hidden_size": 10**10}, "hidden_size"),
        ({"initializer_range": 0}, "initializer_range"),
        ({"layer_norm_eps": float("nan")}, "layer_norm_eps"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type = 'relative_key' is not implemented"),
        ({"is_decoder": True}, "is_decoder"),
        ({"add_cross_attention": True}, "add_cross_attention"),
        ({"pruned_heads": {"0": [1]}}, "pruned_heads"),
        ({"architectures": ["BertForSequenceClassification"]}, "BertForSequenceClassification.*BertForMaskedLM"),
        ({"architectures": "BertModel"}, "architectures = 'BertModel'"),
        ({"architectures": [["BertModel"]]}, "architectures"),
    ],
)
def test_impossible_config(change, field):
    with pytest.raises(DataError, match=field):
        BertConfig.from_hf(SHAPES[0] | change)


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("BertModel", (True, False, False)),
        ("BertForMaskedLM", (False, True, False)),
        ("BertForNextSentencePrediction", (True, False, True)),
        ("BertForPreTraining", (True, True, True)),
    ],
)
def test_config_round_trip(name, parts):
    cfg = BertConfig.from_hf({**SHAPES[1], "architectures": [name]})
    assert BertConfig.from_hf(cfg.to_hf()) == cfg
    assert (cfg.pooler, cfg.mlm_head, cfg.seq_head) == parts
    assert (cfg.d_mlp, cfg.d_head, cfg.n_segments, cfg.ln_eps) == (40, 16, 3, 1e-5)


def test_a_head_without_what_it_reads():
    with pytest.raises(DataError, match="reads the pooler"):
        BertConfig(pooler=False)


@pytest.mark.parametrize(
    ("cfg", "parameters"),
    [
        (BertConfig(mlm_head=False, seq_head=False), 109_482_240),
        (BertConfig(pooler=False, seq_head=False), 109_514_298),
        (BertConfig(), 110_106_428),
        (BertConfig(d_model=128, n_heads=2, d_mlp=512, n_layers=2, mlm_head=False, seq_head=False), 4_385_920),
    ],
)
def test_published_sizes(cfg, parameters):
    """BertModel, BertForMaskedLM and BertForPreTraining of the base size, and the tiny one of Turc et al. 2019."""
    with torch.device("meta"):
        assert sum(p.numel() for p in Bert(cfg).parameters()) == parameters
