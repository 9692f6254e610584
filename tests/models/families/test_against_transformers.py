"""Every family against `transformers`: one suite over the variants that the families' own tests offer.

A family's test module offers
    VARIANTS: name -> the fields of a config.json whose arithmetic transformers has too;
    FEATURES: (variant, fields of our config without what the variant adds), so that equality says something about it;
    IMPOSSIBLE: (fields of a config.json, what the error must match);
    PUBLISHED: name -> (fields of a config.json, or our config; how many parameters the published model has);
    FOLDERS, BARE_FOLDERS: name -> (a class of transformers with a head for masked tokens, or without; its config);
    OLD_AND_NEW: pairs of fields of a config.json that mean the same.
"""

import importlib
from dataclasses import replace
from typing import Any

import encoder_folders
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import cross_entropy
from transformers_twins import error, hf_config, logits_of, make_twins, our_weights, tokens_for, twins

from probekit.errors import DataError, UsageError
from probekit.models.accounting import parameters
from probekit.models.families import FILES, families, family_of, shape_of
from probekit.models.family import LOGITS
from probekit.models.load import load_model
from probekit.models.weights import save_hf
from probekit.points import Place


def offered(what: str) -> list[Any]:
    modules = [importlib.import_module(f"models.families.test_{file}") for file in FILES]
    found = [getattr(module, what, []) for module in modules]
    return [each for part in found for each in (part.items() if isinstance(part, dict) else part)]


VARIANTS: dict[str, dict[str, Any]] = dict(offered("VARIANTS"))
assert len(VARIANTS) == len(offered("VARIANTS")), "two families offer a variant of the same name"
ONE_OF_EACH_TYPE = list({hf["model_type"]: name for name, hf in reversed(VARIANTS.items())}.values())


@pytest.mark.parametrize("name", VARIANTS)
def test_every_point_that_transformers_computes_equals_it(name):
    oracle, model = twins(VARIANTS[name])
    tokens, kept = tokens_for(model, 1, 11), {}
    places = {full: Place.of(full) for full in model.points}
    found: Any = family_of(model.cfg).hf_model(model.cfg)
    points = found.points
    handles = []
    for full, (short, layer) in places.items():
        if short in points:
            at = points[short]
            keep = lambda _, args, out, full=full, at=at: kept.update({full: at.take(args, out).clone()})  # noqa: E731
            handles.append(oracle.get_submodule(at.path(layer)).register_forward_hook(keep))
    with torch.no_grad():
        out = oracle(tokens, output_hidden_states=True, output_attentions=True)
        for handle in handles:
            handle.remove()
        logits, ours = model.run_with_cache(tokens)
        several = tokens_for(model, 3, 11)
        again, theirs = model(several), logits_of(oracle(several))  # and without hooks, by the fused kernels
    assert LOGITS in points
    assert error(logits, logits_of(out)) <= 1e-5
    for i, state in enumerate(out.hidden_states[:-1]):
        assert error(ours["resid_pre", i], state) <= 1e-5
    for i, pattern in zip(model.layers_of("attn_pattern"), out.attentions, strict=True):
        assert error(ours["attn_pattern", i], pattern) <= 1e-5
    assert len(kept) >= 8 * model.cfg.n_layers
    for full, x in kept.items():
        assert error(ours[full].reshape(x.shape), x) <= 1e-5, full
    if error(again, theirs) > 1e-5:  # where rounding grows, as it does otherwise on each processor: no more than theirs
        with torch.no_grad():
            exact = logits_of(oracle.double()(several))
        assert error(again.double(), exact) <= 2 * error(theirs.double(), exact) <= 1e-4


@pytest.mark.parametrize(("name", "off"), offered("FEATURES"))
def test_every_feature_is_active_in_these_tests(name, off):
    _, model = twins(VARIANTS[name])
    other = type(model)(replace(model.cfg, **off)).eval()
    other.load_state_dict(model.state_dict(), strict="model_type" not in off)
    tokens = tokens_for(model, 3, 11)
    with torch.no_grad():
        assert error(other(tokens), model(tokens)) > 1e-3


@pytest.mark.parametrize("name", ONE_OF_EACH_TYPE)
def test_gradients_equal_those_of_transformers(name):
    oracle, model = twins(VARIANTS[name])
    tokens, family = tokens_for(model), family_of(model.cfg)
    tokens[tokens == oracle.config.pad_token_id] = 2  # whose row gets no gradient there
    oracle.zero_grad()
    cross_entropy(logits_of(oracle(tokens))[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()).backward()
    loss = cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    mine = dict(model.named_parameters())
    grads = dict(zip(mine, torch.autograd.grad(loss, list(mine.values()), allow_unused=True), strict=True))
    theirs = {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in oracle.named_parameters()}
    theirs = our_weights(family, model.cfg, theirs)
    assert all(ours.endswith(".scale") for ours in mine.keys() - theirs.keys())  # buffers there
    for ours, wanted in theirs.items():
        if grads[ours] is None:  # an expert without a token, or a head that gives no logits
            assert not wanted.any(), ours
        elif not (ours == "token_type_embed.weight" or wanted.abs().max() < 1e-7):  # keys' biases move no pattern
            assert error(grads[ours], wanted) <= 1e-4, ours


@pytest.mark.parametrize(
    "name",
    ["grouped", "parallel", "olmo3 with yarn", "mixtral, all experts", "gpt_oss without biases", "tied gpt2"],
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_as_near_to_the_truth_as_transformers(name, dtype):
    """Of a mixture with all experts at work, as a choice between near ties may differ."""
    oracle, model = make_twins(VARIANTS[name])
    tokens = tokens_for(model)
    with torch.no_grad():
        truth = model(tokens)
        ours, theirs = model.to(dtype)(tokens), oracle.to(dtype)(tokens).logits
    assert ours.dtype == dtype
    assert error(ours.float(), truth) <= 2 * error(theirs.float(), truth) <= 0.2


@pytest.mark.parametrize("name", ["grouped", "all coordinates"])
def test_long_contexts_equal_transformers(name):
    """At position 2,000 the angles of float32 have an error of their own; it is the same error."""
    oracle, model = make_twins(VARIANTS[name] | {"max_position_embeddings": 2048, "num_hidden_layers": 2})
    tokens, position_ids = tokens_for(model, 1, 40), torch.arange(2000, 2040)[None]
    mask = torch.ones(40, 40, dtype=torch.bool).tril()[None]
    added = torch.zeros(1, 1, 40, 40).masked_fill(~mask, -torch.inf)
    with torch.no_grad():
        theirs = oracle(tokens, position_ids=position_ids, attention_mask=added).logits
        assert error(model(tokens, position_ids=position_ids, attention_mask=mask), theirs) <= 1e-5


@pytest.mark.parametrize("name", ONE_OF_EACH_TYPE)
def test_folders_of_transformers_load(tmp_path, name):
    """Written by transformers, in shards, read by us; written by us, read by us."""
    oracle, model = twins(VARIANTS[name])
    oracle.save_pretrained(tmp_path / "theirs", max_shard_size="20KB")
    assert len(list((tmp_path / "theirs").glob("model-*.safetensors"))) > 1
    loaded = load_model(tmp_path / "theirs", device="cpu")
    assert (loaded.cfg, loaded.fingerprint()) == (model.cfg, model.fingerprint())
    save_hf(loaded, tmp_path / "ours")
    again = load_model(tmp_path / "ours", device="cpu")
    assert (again.cfg, again.fingerprint()) == (model.cfg, model.fingerprint())


TIED = [name for name, hf in VARIANTS.items() if hf.get("tie_word_embeddings")]


@pytest.mark.parametrize("name", ["tied gpt2", "gemma", *TIED])
def test_the_file_of_a_bare_model_loads(tmp_path, name):
    """By names without a prefix, as of a class without a head; with the frequencies that older programs kept."""
    model = twins(VARIANTS[name])[1]
    prefix = family_of(model.cfg).hf_prefix
    save_hf(model, tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    bare = {key.removeprefix(prefix): x for key, x in weights.items() if key.startswith(prefix)}
    old = {"layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)} if "self_attn" in " ".join(bare) else {}
    save_file(bare | old, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert load_model(tmp_path, device="cpu").fingerprint() == model.fingerprint()
    save_file(bare | {"surprise": torch.ones(1)}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(DataError, match="unexpected: surprise"):
        load_model(tmp_path, device="cpu")


@pytest.mark.parametrize(("kind", "config"), dict(offered("FOLDERS")).values(), ids=dict(offered("FOLDERS")))
def test_folders_of_encoders_are_read_by_both(kind, config, tmp_path):
    """Every layer, pattern and logit under padding: of what transformers wrote, and of what we wrote."""
    model = encoder_folders.load(encoder_folders.hf_folder(tmp_path / "theirs", kind, config))
    save_hf(model, tmp_path / "ours")
    for folder in ("theirs", "ours"):
        encoder_folders.assert_equal_to(encoder_folders.read_by(kind, tmp_path / folder), model)
    again = encoder_folders.load(tmp_path / "ours")
    assert (again.fingerprint(), again.cfg) == (model.fingerprint(), model.cfg)


@pytest.mark.parametrize(("kind", "config"), dict(offered("BARE_FOLDERS")).values(), ids=dict(offered("BARE_FOLDERS")))
def test_an_encoder_without_a_head(kind, config, tmp_path):
    model = encoder_folders.load(encoder_folders.hf_folder(tmp_path, kind, config))
    encoder_folders.assert_equal_to(encoder_folders.read_by(kind, tmp_path), model)
    with pytest.raises(UsageError, match="no head for masked tokens"):
        model(torch.tensor([[7]]))


@pytest.mark.parametrize("name", VARIANTS)
def test_a_config_is_the_same_in_transformers_and_back(name):
    hf = VARIANTS[name]
    config, from_hf = hf_config(hf), families()[hf["model_type"]].config.from_hf
    cfg = from_hf(config.to_dict())
    assert from_hf(cfg.to_hf()) == cfg
    assert from_hf(type(config)(**cfg.to_hf()).to_dict()) == cfg


@pytest.mark.parametrize(("old", "new"), offered("OLD_AND_NEW"))
def test_old_and_new_files_say_the_same(old, new):
    from_hf = families()[old["model_type"]].config.from_hf
    assert from_hf(old) == from_hf(new)


@pytest.mark.parametrize(("hf", "match"), offered("IMPOSSIBLE"))
def test_a_config_that_cannot_be_is_refused_in_one_line(hf, match):
    with pytest.raises(DataError, match=match) as caught:
        families()[hf["model_type"]].config.from_hf(hf)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("hf", "expected"), [each for _, each in offered("PUBLISHED")], ids=dict(offered("PUBLISHED")))
def test_published_sizes(hf, expected):
    cfg = families()[hf["model_type"]].config.from_hf(hf) if isinstance(hf, dict) else hf
    assert type(cfg).from_hf(cfg.to_hf()) == cfg
    assert parameters(shape_of(cfg)) == expected
    if (getattr(cfg, "n_experts", 0) or 0) < 60:  # tens of thousands of modules take seconds
        with torch.device("meta"):
            assert sum(p.numel() for p in family_of(cfg).model(cfg).parameters()) == expected
