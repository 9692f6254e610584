"""The hand-written GPT-NeoX against `transformers`, and what is true of parallel blocks alone."""

from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_configs import SIZES
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import GPTNeoXConfig as HfConfig
from transformers import GPTNeoXForCausalLM, GPTNeoXModel

from probekit.errors import DataError, UsageError
from probekit.models.families.gptneox import GPTNeoX, GPTNeoXConfig
from probekit.models.families.gptneox_hf import HF_PREFIX, hf_model, hf_names, hf_renamed
from probekit.models.family import LOGITS
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
    "linear": BASE | {"rope_scaling": {"type": "linear", "factor": 3.0}, "rotary_pct": 0.5},
    "yarn": BASE | {"rope_scaling": YARN, "rotary_pct": 0.8, "rotary_emb_base": 500},
    "llama3": SILENT | {"rope_parameters": LLAMA3 | {"rope_theta": 5e5, "partial_rotary_factor": 0.5}},
}


def from_hf(hf: dict, weights: dict[str, Tensor]) -> GPTNeoX:
    model = GPTNeoX(GPTNeoXConfig.from_hf(hf))
    weights = {hf_renamed(name): x for name, x in weights.items()}
    model.load_state_dict({ours: weights[theirs.name] for ours, theirs in hf_names(model.cfg).items()})
    return model.eval()


def twins(hf: dict, seed: int = 0) -> tuple[Any, GPTNeoX]:
    torch.manual_seed(seed)
    config = HfConfig(**{key: value for key, value in hf.items() if key != "model_type"})
    config._attn_implementation = "eager"
    oracle = GPTNeoXForCausalLM(config).eval()
    with torch.no_grad():  # larger than at initialisation, so that every term of the arithmetic shows
        for p in oracle.parameters():
            p.add_(torch.randn_like(p) * 0.2)
    assert sum(p.numel() for p in oracle.parameters()) < 100_000
    return oracle, from_hf(config.to_dict(), oracle.state_dict())


def tokens_for(model: GPTNeoX, batch: int = 3, length: int = 9, seed: int = 1) -> Tensor:
    return torch.randint(model.cfg.d_vocab, (batch, length), generator=torch.Generator().manual_seed(seed))


def error(ours: Tensor, theirs: Tensor) -> float:
    """Largest difference, relative to the largest value of the reference."""
    return ((ours - theirs).abs().max() / theirs.abs().max()).item()


@pytest.fixture(scope="module")
def pair() -> tuple[Any, GPTNeoX]:
    return twins(BASE)


@pytest.fixture(scope="module")
def model(pair) -> GPTNeoX:
    return pair[1]


@pytest.fixture(scope="module", params=["parallel", "sequential"])
def each(request) -> GPTNeoX:
    return twins(VARIANTS[request.param])[1]


@pytest.mark.parametrize("hf", VARIANTS.values(), ids=VARIANTS)
def test_every_point_of_every_layer_equals_the_oracle(hf):
    oracle, model = twins(hf)
    tokens, theirs = tokens_for(model, length=11), {}

    def keep(name, take):
        return lambda _, args, out: theirs.update({name: take(args, out)})

    for short, (path, take) in hf_model(model.cfg).points.items():
        in_layer = "{layer}" in path
        for i in range(model.cfg.n_layers) if in_layer else [None]:
            name = LOGITS if short == LOGITS else model.resolve((short, i))[0]
            oracle.get_submodule(path.format(layer=i)).register_forward_hook(keep(name, take))
    with torch.no_grad():
        out = oracle(tokens, output_attentions=True, output_hidden_states=True)
        logits, cache = model.run_with_cache(tokens)
    assert len(theirs) == 3 + (13 if model.cfg.parallel_residual else 14) * model.cfg.n_layers
    theirs |= {f"blocks.{i}.attn.hook_pattern": pattern for i, pattern in enumerate(out.attentions)}
    theirs |= {f"blocks.{i}.hook_resid_pre": x for i, x in enumerate(out.hidden_states[:-1])}
    assert torch.equal(theirs.pop(LOGITS), out.logits)
    for name, x in theirs.items():
        assert error(cache[name].flatten(2), x.flatten(2)) <= 1e-5, name
    assert error(logits, out.logits) <= 1e-5
    with torch.no_grad():
        assert error(model(tokens), out.logits) <= 1e-5  # and through the fused kernels


OPTIONS = [
    {"rotary_pct": 0.5},
    {"rope_theta": 100.0},
    {"parallel_residual": False},
    *({"rope_scaling": GPTNeoXConfig.from_hf(VARIANTS[name]).rope_scaling} for name in ("linear", "yarn", "llama3")),
]


@pytest.mark.parametrize("change", OPTIONS)
def test_each_option_changes_the_output(model, change):
    """So that a test with the option would not pass without it."""
    other = GPTNeoX(GPTNeoXConfig(**vars(model.cfg) | change))
    other.load_state_dict(model.state_dict())
    with torch.no_grad():
        assert error(other.eval()(tokens_for(model)), model(tokens_for(model))) > 1e-3


@pytest.mark.parametrize("side", ["left", "right"])
def test_padded_batches_equal_the_oracle(pair, side):
    oracle, model = pair
    tokens, mask = tokens_for(model, 3, 12), torch.ones(3, 12, dtype=torch.long)
    for row, n in enumerate([0, 5, 2]):
        mask[row, :n] = 0
    mask = mask if side == "left" else mask.flip(1)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        theirs = oracle(tokens, attention_mask=mask, position_ids=positions).logits
        assert error(model(tokens, attention_mask=mask)[mask.bool()], theirs[mask.bool()]) <= 1e-5


def test_long_contexts_equal_the_oracle():
    """At position 2,000 the angles of float32 have an error of their own; it is the same error."""
    oracle, model = twins(BASE | {"max_position_embeddings": 2048, "num_hidden_layers": 2, "rotary_pct": 1.0})
    tokens, position_ids = tokens_for(model, 1, 40), torch.arange(2000, 2040)[None]
    mask = torch.ones(40, 40, dtype=torch.bool).tril()[None]
    added = torch.zeros(1, 1, 40, 40).masked_fill(~mask, -torch.inf)
    with torch.no_grad():
        theirs = oracle(tokens, position_ids=position_ids, attention_mask=added).logits
        assert error(model(tokens, position_ids=position_ids, attention_mask=mask), theirs) <= 1e-5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_as_near_to_the_truth_as_transformers(pair, dtype):
    oracle, model = pair
    tokens = tokens_for(model)
    with torch.no_grad():
        truth = model(tokens)
        ours = from_hf(oracle.config.to_dict(), oracle.state_dict()).to(dtype)(tokens)
        theirs = twins(BASE)[0].to(dtype)(tokens).logits
    assert ours.dtype == dtype
    assert error(ours.float(), truth) <= 2 * error(theirs.float(), truth) <= 0.2


def test_gradients_equal_the_oracles(pair):
    oracle, model = pair
    tokens = tokens_for(model)
    oracle.zero_grad()
    cross_entropy(oracle(tokens).logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()).backward()
    ours = cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    weights = dict(model.named_parameters())
    grads = dict(zip(weights, torch.autograd.grad(ours, list(weights.values())), strict=True))
    slots = {hf_renamed(name): p for name, p in oracle.named_parameters()}
    for name, there in hf_names(model.cfg).items():
        assert error(grads[name], slots[there.name].grad) <= 1e-4, name


def test_identities(each):
    model, cfg = each, each.cfg
    with torch.no_grad():
        logits, c = model.run_with_cache(tokens_for(model))
        for i in range(cfg.n_layers):
            if cfg.parallel_residual:
                assert torch.equal(c["resid_pre", i] + (c["attn_out", i] + c["mlp_out", i]), c["resid_post", i])
                read_by_mlp = c["resid_pre", i]
            else:
                assert torch.equal(c["resid_pre", i] + c["attn_out", i], c["resid_mid", i])
                assert torch.equal(c["resid_mid", i] + c["mlp_out", i], c["resid_post", i])
                read_by_mlp = c["resid_mid", i]
            assert torch.allclose(model.blocks[i].ln2(read_by_mlp), c["ln2_normalized", i], atol=1e-5)
            assert torch.allclose(c["attn_pattern", i].sum(-1), torch.ones(3, 2, 9), atol=1e-6)
            out_bias = model.blocks[i].attn.out.bias
            assert torch.allclose(c["result", i].sum(2) + out_bias, c["attn_out", i], atol=1e-5)
            for point in "qk":  # the first coordinates turn, by nothing at position 0; the others stay
                before, after, n = c[point, i], c[f"rot_{point}", i], cfg.n_rotated
                assert torch.equal(before[..., n:], after[..., n:])
                assert torch.equal(before[:, 0], after[:, 0])
                assert torch.allclose(before[..., :n].norm(dim=-1), after[..., :n].norm(dim=-1), rtol=1e-5)
                assert ((before - after)[:, 1:, :, :n].abs() > 1e-4).any()
            if i:
                assert torch.equal(c["resid_pre", i], c["resid_post", i - 1])
        assert torch.equal(c["embed"], c["resid_pre", 0])
        assert torch.equal(model.head(c["ln_final"]), logits)


def test_it_has_every_point_of_a_pre_norm_decoder_but_learned_positions(each):
    elsewhere = ("pos_embed", "token_type_embed", "ln_embed", "head_ln", "encoder", "decoder", "mlp_pre_linear")
    others = ("q_norm", "k_norm", "ln1_post", "ln2_post", "router_logits", "expert_weights", *each.absent)
    mine = [full for short, full in POINTS.items() if not short.startswith((*elsewhere, *others))]
    assert set(each.points) == {full.format(layer=i) for full in mine for i in range(each.cfg.n_layers)}
    assert list(each.absent) == (["resid_mid"] if each.cfg.parallel_residual else [])


def test_a_hook_changes_what_follows(each):
    tokens = tokens_for(each)
    with torch.no_grad():
        plain = each(tokens)
        for name in each.points:
            if not name.endswith("hook_attn_scores"):  # softmax does not see a shift
                changed = each.run_with_hooks(tokens, fwd_hooks=[(name, lambda x, hook: x + 1 + x.cos())])
                assert error(changed, plain) > 1e-4, name


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
    assert torch.equal(one.ln_final.weight, torch.ones(64))


IMPOSSIBLE = [
    ({"num_hidden_layers": 0}, "num_hidden_layers"),
    ({"hidden_size": None}, "hidden_size"),
    ({"intermediate_size": 10**10}, "intermediate_size"),
    ({"num_attention_heads": 5}, r"d_model \(hidden_size\) 32 must be a multiple of n_heads \(num_attention_heads\) 5"),
    ({"hidden_act": "quick_gelu"}, r"unknown activation \(hidden_act\) 'quick_gelu'"),
    ({"layer_norm_eps": 0}, "layer_norm_eps"),
    ({"initializer_range": "a"}, "initializer_range"),
    ({"use_parallel_residual": "yes"}, r"parallel_residual \(use_parallel_residual\) must be true or false; got 'yes'"),
    ({"use_parallel_residual": None}, "use_parallel_residual"),
    ({"attention_bias": 1}, "attention_bias"),
    ({"tie_word_embeddings": "no"}, "tie_word_embeddings"),
    ({"bos_token_id": "<s>"}, "bos_token_id"),
    ({"eos_token_id": [2, "a"]}, "eos_token_id"),
    ({"quantization_config": {"bits": 4}}, "quantization_config"),
    ({"head_dim": 8}, "head_dim = 8 is not implemented for model_type gpt_neox; only 16 is"),
    ({"sliding_window": 4}, "sliding_window = 4 is not implemented"),
    ({"layer_types": ["sliding_attention"] * 3}, "layer_types = .* is not implemented"),
    ({"rotary_emb_base": -1}, r"rope_theta \(rotary_emb_base\) must be a positive number"),
    ({"rotary_pct": "all"}, "rotary_pct must be a positive number"),
    ({"rotary_pct": None}, "rotary_pct must be a positive number"),
    ({"rotary_pct": 0.0}, "rotary_pct must be a positive number"),
    (
        {"rotary_pct": -0.25, "rope_parameters": {"partial_rotary_factor": -0.25}, "partial_rotary_factor": 1.0},
        "rotary_pct must be a positive number .*; got -0.25",
    ),
    ({"rotary_pct": float("nan")}, "rotary_pct must be a positive number .*; got nan"),
    ({"rotary_emb_base": float("nan")}, r"rope_theta \(rotary_emb_base\) must be a positive number"),
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


@pytest.mark.parametrize(("change", "match"), IMPOSSIBLE)
def test_impossible_config(change, match):
    with pytest.raises(DataError, match=match):
        GPTNeoXConfig.from_hf(BASE | change)


@pytest.mark.parametrize(
    ("old", "new"),
    [
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
    ],
)
def test_old_and_new_files_say_the_same(old, new):
    assert GPTNeoXConfig.from_hf(SILENT | old) == GPTNeoXConfig.from_hf(SILENT | new)
    assert GPTNeoXConfig.from_hf(SILENT | old) == GPTNeoXConfig.from_hf(HfConfig(**SILENT | new).to_dict())


@pytest.mark.parametrize("hf", VARIANTS.values(), ids=VARIANTS)
def test_config_round_trip(hf):
    config = HfConfig(**{key: value for key, value in hf.items() if key != "model_type"})
    cfg = GPTNeoXConfig.from_hf(config.to_dict())
    assert GPTNeoXConfig.from_hf(cfg.to_hf()) == cfg
    assert GPTNeoXConfig.from_hf(HfConfig(**cfg.to_hf()).to_dict()) == cfg


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
PUBLISHED = {  # and how many parameters they have, and how many coordinates of a head are rotated
    "pythia-14m": (published(128, 6, 4, max_position_embeddings=512, **NEW_FIELDS), 14_067_712, 8),
    "pythia-31m": (published(256, 6, 8, max_position_embeddings=1024, **NEW_FIELDS), 30_494_720, 8),
    "pythia-70m": (published(512, 6, 8), 70_426_624, 16),
    "pythia-160m": (published(768, 12, 12), 162_322_944, 16),
    "pythia-410m": (published(1024, 24, 16), 405_334_016, 16),
    "pythia-1b": (published(2048, 16, 8), 1_011_781_632, 64),
    "pythia-1.4b": (published(2048, 24, 16), 1_414_647_808, 32),
    "pythia-2.8b": (published(2560, 32, 32), 2_775_208_960, 20),
    "pythia-6.9b": (published(4096, 32, 32, vocab_size=50432), 6_857_302_016, 32),
    "pythia-12b": (published(5120, 36, 40, vocab_size=50688), 11_846_072_320, 32),
    "gpt-neox-20b": (
        published(6144, 44, 64, vocab_size=50432, hidden_act="gelu_fast", attention_probs_dropout_prob=0,
                  hidden_dropout_prob=0),
        20_554_567_680,
        24,
    ),
    "RedPajama-INCITE-Base-3B-v1": (
        published(2560, 32, 32, vocab_size=50432, rotary_pct=1.0, use_parallel_residual=False),
        2_775_864_320,
        80,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("hf", "parameters", "n_rotated"), PUBLISHED.values(), ids=PUBLISHED)
def test_published_sizes(hf, parameters, n_rotated):
    cfg = GPTNeoXConfig.from_hf(hf)
    assert cfg.n_rotated == n_rotated
    assert cfg.parallel_residual == hf["use_parallel_residual"]
    assert GPTNeoXConfig.from_hf(cfg.to_hf()) == cfg
    assert GPTNeoXConfig.from_hf(HfConfig(**hf).to_dict()) == cfg
    with torch.device("meta"):
        assert sum(p.numel() for p in GPTNeoX(cfg).parameters()) == parameters


@pytest.mark.parametrize("name", ["parallel", "sequential", "no biases, tied", "llama3"])
def test_folders_of_transformers_load(tmp_path, name):
    """Written by transformers, read by us; written by us, read by transformers and by us."""
    oracle, model = twins(VARIANTS[name])
    oracle.save_pretrained(tmp_path / "theirs")
    loaded = load_model(tmp_path / "theirs", device="cpu")
    assert isinstance(loaded, GPTNeoX)
    assert loaded.fingerprint() == model.fingerprint()
    save_hf(loaded, tmp_path / "ours")
    assert load_model(tmp_path / "ours", device="cpu").fingerprint() == model.fingerprint()
    same = ("embed_out.weight" in load_file(tmp_path / folder / "model.safetensors") for folder in ("theirs", "ours"))
    assert {*same} == {not model.cfg.tie_embeddings}  # the Hub's name of the head
    again = GPTNeoXForCausalLM.from_pretrained(tmp_path / "ours").eval()
    with torch.no_grad():
        assert error(loaded(tokens_for(model)), oracle(tokens_for(model)).logits) <= 1e-5
        assert error(again(tokens_for(model)).logits, oracle(tokens_for(model)).logits) <= 1e-5


def test_files_in_several_shards_load(tmp_path, pair):
    oracle, model = pair
    oracle.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    assert load_model(tmp_path, device="cpu").fingerprint() == model.fingerprint()


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
    cfg = GPTNeoXConfig.from_hf(VARIANTS["llama3"] | {"rotary_pct": 0.5, "rotary_emb_base": 5e5})
    assert cfg.rope_scaling == RopeScaling("llama3", 8.0, 1.0, 4.0, 16)
