"""OLMo 2 and 3, written by hand, against `transformers` and against themselves."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tiny_configs import SIZES
from torch import Tensor
from transformers import Olmo2Config, Olmo2ForCausalLM, Olmo3Config, Olmo3ForCausalLM

from probekit.errors import DataError
from probekit.models.families import olmo
from probekit.models.families.olmo import FAMILY, FULL, SLIDING, Olmo, OlmoConfig
from probekit.models.family import LOGITS
from probekit.models.load import load_model
from probekit.models.positional import RopeScaling
from probekit.models.weights import our_part, save_hf
from probekit.verification.references import run_single, transformers_reference

YARN = RopeScaling("yarn", 4.0, 1.0, 32.0, 6, 1.2)
TINY = {
    "olmo2": OlmoConfig(**SIZES, n_kv_heads=2, d_head=8, attention_bias=True),
    "olmo3": OlmoConfig(
        **SIZES, n_kv_heads=2, d_head=8, rope_theta=300.0, rope_scaling=YARN, local_rope_theta=100.0, sliding_window=4,
        layer_types=(SLIDING, FULL, SLIDING), model_type="olmo3",
    ),
}  # fmt: skip
CLASSES: dict[str, tuple[Any, Any]] = {
    "olmo2": (Olmo2Config, Olmo2ForCausalLM),
    "olmo3": (Olmo3Config, Olmo3ForCausalLM),
}
OLMO2 = {
    "model_type": "olmo2", "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 61, "max_position_embeddings": 24,
}  # fmt: skip
OLMO3 = OLMO2 | {"model_type": "olmo3", "sliding_window": 4, "layer_types": [SLIDING, FULL, SLIDING]}
HF_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 6, "attention_factor": 1.2,
           "beta_fast": 32.0, "beta_slow": 1.0}  # fmt: skip
VARIANTS = {
    "olmo2": OLMO2,
    "olmo2, tied, all heads": OLMO2 | {"tie_word_embeddings": True, "num_key_value_heads": 4, "rms_norm_eps": 1e-2},
    "olmo2, one kv head": OLMO2 | {"num_key_value_heads": 1, "attention_bias": True},
    "olmo2 with llama3": OLMO2 | {
        "rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0,
                            "high_freq_factor": 4.0, "original_max_position_embeddings": 16}},
    "olmo3": OLMO3,
    "olmo3 with yarn": OLMO3 | {"rope_theta": 300.0, "rope_scaling": HF_YARN},
    "olmo3 with two thetas": OLMO3 | {
        "rope_parameters": {FULL: {"rope_type": "default", "rope_theta": 50.0},
                            SLIDING: {"rope_type": "default", "rope_theta": 700.0}}},
    "olmo3, every fourth layer full": OLMO2 | {"model_type": "olmo3", "sliding_window": 3, "num_hidden_layers": 4},
    "olmo3 without a window": OLMO2 | {"model_type": "olmo3", "layer_types": [FULL] * 3},
}  # fmt: skip


def twins(hf: dict[str, Any], seed: int = 0) -> tuple[Any, Olmo]:
    """A random model of transformers, and ours with its config and weights."""
    config_class, model_class = CLASSES[hf["model_type"]]
    torch.manual_seed(seed)
    config = config_class(**{key: value for key, value in hf.items() if key != "model_type"})
    config._attn_implementation = "eager"
    oracle = model_class(config).eval()
    with torch.no_grad():  # larger than at initialisation, so that every term of the arithmetic shows
        for p in oracle.parameters():
            p.add_(torch.randn_like(p) * 0.2)
    assert sum(p.numel() for p in oracle.parameters()) < 100_000
    model = Olmo(OlmoConfig.from_hf(config.to_dict()))
    assert model.cfg == OlmoConfig.from_hf(hf)  # what a file says, and what transformers 5 makes of it
    weights, places = oracle.state_dict(), FAMILY.hf_names(model.cfg)
    model.load_state_dict({ours: our_part(weights[place.name], place) for ours, place in places.items()})
    return oracle, model.eval()


def tokens_for(model: Olmo, batch: int = 3, length: int = 9) -> Tensor:
    return torch.randint(model.cfg.d_vocab, (batch, length), generator=torch.Generator().manual_seed(1))


def error(ours: Tensor, theirs: Tensor) -> float:
    """Largest difference, relative to the largest value of the reference."""
    return ((ours - theirs).abs().max() / theirs.abs().max()).item()


@pytest.fixture(scope="module")
def pairs() -> dict[str, tuple[Any, Olmo]]:
    return {name: twins(hf) for name, hf in VARIANTS.items()}


def seen_in(oracle: Any, model: Olmo, tokens: Tensor) -> dict[str, Tensor]:
    """What transformers computes of our points, by short name and layer; and the logits."""
    kept: dict[str, Tensor] = {}

    def keep(name: str, take: Any) -> Any:
        return lambda module, args, output: kept.__setitem__(name, take(args, output))

    handles = []
    for point, (path, take) in olmo.hf_model(model.cfg).points.items():
        for layer in range(model.cfg.n_layers) if "{layer}" in path else [None]:
            name = point if layer is None else f"{point}.{layer}"
            handles.append(oracle.get_submodule(path.format(layer=layer)).register_forward_hook(keep(name, take)))
    with torch.no_grad():
        out = oracle(tokens, output_hidden_states=True, output_attentions=True)
    for handle in handles:
        handle.remove()
    for i, (state, pattern) in enumerate(zip(out.hidden_states, out.attentions, strict=False)):
        assert torch.equal(kept[f"resid_pre.{i}"], state)
        assert torch.equal(kept[f"attn_pattern.{i}"], pattern)
    return kept


@pytest.mark.parametrize("name", VARIANTS)
def test_every_point_that_transformers_computes_equals_it(pairs, name):
    oracle, model = pairs[name]
    tokens = tokens_for(model, length=11)
    theirs = seen_in(oracle, model, tokens)
    with torch.no_grad():
        logits, cache = model.run_with_cache(tokens)
        fused = model(tokens)
    assert len(theirs) == 3 + 17 * model.cfg.n_layers
    for ours in (logits, fused):
        assert error(ours, theirs[LOGITS]) <= 1e-5
    for point in theirs.keys() - {LOGITS}:
        assert error(cache[point].reshape(theirs[point].shape), theirs[point]) <= 1e-5, point


@pytest.mark.parametrize(
    ("name", "off"),
    [
        ("olmo3", {"sliding_window": 3}),
        ("olmo3", {"layer_types": (FULL, SLIDING, SLIDING)}),
        ("olmo3 with yarn", {"rope_scaling": None}),
        ("olmo3 with yarn", {"rope_theta": 500000.0}),
        ("olmo3 with two thetas", {"local_rope_theta": 50.0}),
    ],
)
def test_windows_and_rotations_are_active_in_these_tests(pairs, name, off):
    _, model = pairs[name]
    other = Olmo(replace(model.cfg, **off)).eval()
    other.load_state_dict(model.state_dict())
    tokens = tokens_for(model, length=11)
    with torch.no_grad():
        assert error(other(tokens), model(tokens)) > 1e-2


@pytest.mark.parametrize("name", ["olmo2, one kv head", "olmo3 with yarn"])
def test_identities(pairs, name):
    _, model = pairs[name]
    _, c = model.run_with_cache(tokens_for(model))
    for i, block in enumerate(model.blocks):
        assert torch.equal(c["resid_pre", i] + c["attn_out", i], c["resid_mid", i])
        assert torch.equal(c["resid_mid", i] + c["mlp_out", i], c["resid_post", i])
        assert torch.equal(c["resid_pre", i], c["resid_post", i - 1] if i else c["embed"])
        assert torch.equal(c["attn_out", i], c["ln1_post_normalized", i])
        assert torch.equal(c["mlp_out", i], c["ln2_post_normalized", i])
        bias = 0 if block.attn.out.bias is None else block.attn.out.bias
        attended = c["result", i].sum(2) + bias
        assert error(attended / c["ln1_post_scale", i] * block.ln1_post.weight, c["attn_out", i]) <= 1e-5
        for x in "qk":
            flat, norm = c[x, i].flatten(2), getattr(block.attn, f"{x}_norm")
            root = (flat.square().mean(-1, keepdim=True) + norm.eps).sqrt()  # of all heads together
            assert error(c[f"{x}_norm_scale", i], root) <= 1e-6
            assert error(c[f"{x}_norm", i], flat / root * norm.weight) <= 1e-6
            stretched = model.cfg.rope_scaling if model.window_of(i) is None else None
            factor = stretched.attention_factor if stretched else 1  # at position 0 nothing turns
            assert error(c[f"rot_{x}", i][:, 0].flatten(1), factor * c[f"{x}_norm", i][:, 0]) <= 1e-6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_as_near_to_the_truth_as_transformers(dtype):
    oracle, model = twins(VARIANTS["olmo3 with yarn"])
    tokens = tokens_for(model)
    with torch.no_grad():
        truth = model(tokens)
        ours, theirs = model.to(dtype)(tokens), oracle.to(dtype)(tokens).logits
    assert ours.dtype == dtype
    assert error(ours.float(), truth) <= 2 * error(theirs.float(), truth) <= 0.2


@pytest.mark.parametrize("name", ["olmo2, tied, all heads", "olmo3 with yarn", "olmo3, every fourth layer full"])
def test_folders_load_here_and_in_transformers(pairs, tmp_path, name):
    oracle, model = pairs[name]
    oracle.save_pretrained(tmp_path / "theirs", max_shard_size="20KB")
    assert len(list((tmp_path / "theirs").glob("model-*.safetensors"))) > 1
    loaded = load_model(tmp_path / "theirs", device="cpu")
    assert (loaded.cfg, loaded.fingerprint()) == (model.cfg, model.fingerprint())
    save_hf(loaded, tmp_path / "ours")
    assert load_model(tmp_path / "ours", device="cpu").fingerprint() == model.fingerprint()
    again = type(oracle).from_pretrained(tmp_path / "ours").eval()
    with torch.no_grad():
        assert error(again(tokens_for(model)).logits, loaded(tokens_for(model))) <= 1e-5


def test_the_file_of_a_bare_model_loads(pairs, tmp_path):
    oracle, model = pairs["olmo2, tied, all heads"]
    save_hf(model, tmp_path)
    save_file(oracle.model.state_dict(), tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert load_model(tmp_path, device="cpu").fingerprint() == model.fingerprint()


@pytest.mark.parametrize("hf", VARIANTS.values(), ids=VARIANTS)
def test_config_round_trip(hf):
    cfg = OlmoConfig.from_hf(hf)
    assert OlmoConfig.from_hf(cfg.to_hf()) == cfg
    assert OlmoConfig.from_hf(CLASSES[cfg.model_type][0](**cfg.to_hf()).to_dict()) == cfg


PUBLISHED = {  # what their config.json says, and how many parameters they have
    "OLMo 2 1B": (
        {"model_type": "olmo2", "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
         "num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": 100352, "rms_norm_eps": 1e-6,
         "max_position_embeddings": 4096, "rope_theta": 500000, "rope_scaling": None, "eos_token_id": 100257,
         "tie_word_embeddings": False, "attention_bias": False, "hidden_act": "silu", "pad_token_id": 100277},
        1_484_916_736,
    ),
    "OLMo 2 7B": (
        {"model_type": "olmo2", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
         "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 100352, "rms_norm_eps": 1e-6,
         "max_position_embeddings": 4096, "rope_theta": 500000, "rope_scaling": None},
        7_298_617_344,
    ),
    "Olmo 3 7B": (
        {"model_type": "olmo3", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
         "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 100278, "rms_norm_eps": 1e-6,
         "max_position_embeddings": 65536, "rope_theta": 500000, "sliding_window": 4096,
         "layer_types": [*[SLIDING] * 3, FULL] * 8, "rope_scaling": {
             "attention_factor": 1.2079441541679836, "beta_fast": 32.0, "beta_slow": 1.0, "factor": 8.0,
             "original_max_position_embeddings": 8192, "rope_type": "yarn"}},
        7_298_011_136,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("hf", "parameters"), PUBLISHED.values(), ids=PUBLISHED)
def test_published_sizes(hf, parameters):
    cfg = OlmoConfig.from_hf(hf)
    assert (cfg.d_head, cfg.rope_theta, cfg.local_rope_theta) == (128, 500000, 500000)
    assert (cfg.rope_scaling is not None) == (cfg.model_type == "olmo3")
    with torch.device("meta"):
        assert sum(p.numel() for p in Olmo(cfg).parameters()) == parameters


IMPOSSIBLE = [
    (OLMO2, {"num_hidden_layers": 0}, "num_hidden_layers"),
    (OLMO2, {"num_key_value_heads": 3}, "must be a multiple of n_kv_heads"),
    (OLMO2, {"head_dim": 7}, r"d_head \(head_dim\) must be even"),
    (OLMO2, {"hidden_act": "swish"}, "silu"),
    (OLMO2, {"attention_bias": None}, "attention_bias must be true or false"),
    (OLMO2, {"sliding_window": 4}, "sliding_window = 4 is not implemented for model_type olmo2"),
    (OLMO2, {"layer_types": [SLIDING] * 3}, "layer_types .* are not implemented for model_type olmo2"),
    (OLMO2, {"quantization_config": {"bits": 4}}, "quantization_config"),
    (
        OLMO2,
        {"rope_scaling": {"type": "longrope"}},
        "'longrope' is not implemented; only default, linear, ",
    ),
    (OLMO2, {"model_type": "olmo"}, "unknown model_type 'olmo'"),
    (OLMO3, {"sliding_window": None}, "sliding_window must be a whole number"),
    (OLMO3, {"sliding_window": 0}, "sliding_window must be a whole number"),
    (OLMO3, {"layer_types": [FULL] * 2}, "layer_types must name 3 layers; got 2"),
    (OLMO3, {"layer_types": []}, "layer_types must be a list of 3 types"),
    (OLMO3, {"rope_parameters": {SLIDING: {"rope_theta": float("nan")}}}, "local_rope_theta must be a positive number"),
    (OLMO3, {"layer_types": "full"}, "layer_types must be a list of 3 types"),
    (OLMO3, {"layer_types": [FULL, SLIDING, "chunked"]}, "unknown layer_types 'chunked'"),
    (OLMO3, {"layer_types": [FULL, SLIDING, ["x"]]}, "unknown layer_types"),
    (OLMO3, {"rope_parameters": HF_YARN | {"rope_theta": 1e4}}, "must be an object with full_attention and sliding_"),
    (OLMO3, {"rope_scaling": {"type": "linear", "factor": 2}}, "name it rope_type"),
    (OLMO3, {"rope_parameters": {SLIDING: HF_YARN}}, "'yarn' is not implemented; only default is"),
    (OLMO3, {"rope_parameters": {FULL: HF_YARN}, "rope_scaling": {"rope_type": "linear", "factor": 2}}, "they differ"),
    (OLMO3, {"rope_parameters": {FULL: [1]}}, "must be objects or null"),
    (OLMO3, {"rope_theta": "5"}, "rope_theta must be a positive number"),
    (OLMO3, {"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5 is not implemented"),
]


@pytest.mark.parametrize(("hf", "change", "match"), IMPOSSIBLE)
def test_impossible_config(hf, change, match):
    with pytest.raises(DataError, match=match) as caught:
        OlmoConfig.from_hf(hf | change)
    assert "\n" not in str(caught.value)


def test_a_folder_of_transformers_is_its_own_reference(pairs, tmp_path):
    _, model = pairs["olmo3 with yarn"]
    save_hf(model, tmp_path)
    loaded = load_model(tmp_path, device="cpu")
    reference, _ = transformers_reference(loaded, ([1, 2],))
    text = ([3, 1, 4, 1, 5, 9, 2, 6],)
    names = [name for name in loaded.points if name.endswith(("resid_post", "q_norm.hook_normalized"))]
    ours, theirs = run_single(loaded, text, names), reference.run(text, names)
    assert all(error(ours[name].double(), theirs[name]) <= 1e-5 for name in names)
