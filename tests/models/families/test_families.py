"""Adding a family touches its own file, its test and one line of the registry; nothing else names a family."""

import ast
import importlib
import json
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tiny_configs import new_model, tiny_configs
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import probekit as pk
from probekit.errors import DataError, UsageError
from probekit.models.accounting import parameters
from probekit.models.config_fields import hf_name
from probekit.models.families import FILES, families, family_of, model_types
from probekit.models.families.gpt2 import GPT2Config
from probekit.models.family import Family
from probekit.models.weights import as_stored, save_hf

REPO = Path(__file__).parents[3]
PACKAGE = REPO / "probekit"
FAMILIES = PACKAGE / "models/families"
# published models by type and short name; transformers' module layouts and packagings, by its types
OTHER_TABLES = {"files/published.py", "models/adapter/layouts.py", "models/tokenizer_files.py", "models/packaging.py"}
OTHER_TABLES |= {"verification/tiny_configs.py"}


def names_of_families() -> set[str]:
    """Modules, classes and model types that only a family's own file and the registry may name."""
    classes = {cls.__name__ for family in families().values() for cls in (family.config, family.model)}
    return {*FILES, *classes, *families()}


def names_in(path: Path) -> set[str]:
    """Every identifier, part of an import, and string of a module."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.alias(name=name):
                found |= set(name.split("."))
            case ast.ImportFrom(module=str(module)):
                found |= set(module.split("."))
            case ast.Constant(value=str(text)):
                found.add(text)
    return found


def test_only_its_own_file_and_the_registry_name_a_family():
    named = names_of_families()
    assert {"gpt2", "GPT2Config", "Llama", "mistral", "qwen2", "bert", "marian", "Transformer"} <= named
    for path in PACKAGE.rglob("*.py"):
        place = str(path.relative_to(PACKAGE))
        if path.parent != FAMILIES and place not in OTHER_TABLES and not place.startswith("worlds/"):
            assert not names_in(path) & named, place


def test_the_registry_has_one_entry_for_each_file_with_a_family():
    with_family = {path.stem for path in FAMILIES.glob("*.py") if "\nFAMILY = Family(" in path.read_text("utf-8")}
    assert with_family == set(FILES)
    assert len(model_types()) == len(set(model_types()))


def test_families_are_found_by_type_and_by_config():
    registered = [importlib.import_module(f"probekit.models.families.{file}").FAMILY for file in FILES]
    assert all(isinstance(family, Family) for family in registered)
    assert {file: family.model_types for file, family in zip(FILES, registered, strict=True)} == FILES
    assert list(families()) == model_types()
    assert list(families().items()) == [(name, family) for family in registered for name in family.model_types]
    assert {"gpt2", "llama", "mistral", "qwen2", "bert", "marian"} <= families().keys()
    assert family_of(GPT2Config()) is families()["gpt2"]
    with pytest.raises(
        UsageError, match=r"object belongs to no family; enter its file in models/families/__init__\.py"
    ):
        family_of(object())


@pytest.mark.parametrize(("name", "cfg"), tiny_configs().items(), ids=tiny_configs())
def test_a_config_is_the_same_after_config_json_and_names_of_weights(name, cfg):
    family = family_of(cfg)
    hf = json.loads(json.dumps(cfg.to_hf()))
    assert families()[hf["model_type"]] is family
    assert family.hf_parts(family.config.from_hf(hf), {tensor.name for tensor in family.hf_names(cfg).values()}) == cfg


BAD: dict[Any, list[Any]] = {  # by the annotation of a field of a config
    int: [0, -1, True, "8", 2.5, None, [1], 10**12],
    float: [0, -1.0, float("nan"), "a", True, None, 1e30],
    bool: [1, "yes", None],
    str: ["gleu", ["gelu"], None],
    str | None: ["gleu", ["gelu"], 3],
    int | None: [True, "x", 2.5, 10**12],
    float | None: [0, -1.0, float("nan"), "a", True],
    int | tuple[int, ...] | None: [True, "a", 2.5, (2, "a"), 10**12],
}
OWN_CHECKS = {"n_full_layers", "sliding_window", "rope_scaling", "layer_types", "dense_layers", "n_dense_layers"}
OWN_CHECKS |= {"n_borrowing_layers"}


@pytest.mark.parametrize(("name", "cfg"), tiny_configs().items(), ids=tiny_configs())
def test_a_value_out_of_range_is_refused_by_the_names_of_its_field(name, cfg):
    """In a config made in Python, by our name and config.json's; and in a config.json that has the field."""
    written = cfg.to_hf()
    for field in fields(cfg):
        if field.name in OWN_CHECKS:
            continue
        theirs = hf_name(field, getattr(cfg, "model_type", None))
        for bad in BAD[field.type]:
            with pytest.raises(DataError, match=re.escape(field.name)) as refused:
                replace(cfg, **{field.name: bad})
            assert theirs is None or theirs in str(refused.value)
            assert "\n" not in str(refused.value)
            if theirs in written and bad not in (None, 0, True):  # these may mean the default, or equal 1.0
                with pytest.raises(DataError, match=f"{field.name}|{theirs}"):
                    type(cfg).from_hf(written | {theirs: list(bad) if isinstance(bad, tuple) else bad})


@pytest.mark.parametrize(("name", "cfg"), tiny_configs().items(), ids=tiny_configs())
def test_fields_that_transformers_reads_in_the_config_of_any_model_are_refused(name, cfg):
    family = family_of(cfg)
    fields: dict[str, Any] = {"quantization_config": {"bits": 4}, "per_layer_config": {"0": {"intermediate_size": 8}}}
    if family.model.causal:
        fields["is_causal"] = False
    for field, value in fields.items():
        with pytest.raises(DataError, match=f"^{field} = .* is not implemented for .*; only (None|True) is$"):
            family.config.from_hf(cfg.to_hf() | {field: value})


ONE_OF_EACH_TYPE = {cfg.to_hf()["model_type"]: cfg for cfg in tiny_configs().values()}


@pytest.mark.parametrize(
    "model_type",
    # marian has no default vocabulary, and transformers no class for Kimi K2 and for TransformerLens's models
    [each for each in ONE_OF_EACH_TYPE if each not in ("marian", "kimi_k2", "hooked_transformer")],
)
def test_a_field_that_a_file_leaves_out_means_what_transformers_takes_for_it(model_type):
    cfg = ONE_OF_EACH_TYPE[model_type]
    from_hf, fields, compared = family_of(cfg).config.from_hf, cfg.to_hf(), 0
    for left_out in fields.keys() - {"model_type", "initializer_range"}:
        silent = {name: value for name, value in fields.items() if name != left_out}
        try:
            ours = from_hf(silent)
            theirs = from_hf(CONFIG_MAPPING[model_type].from_dict(json.loads(json.dumps(silent))).to_dict())
        except DataError:  # a size that must be given, or their default of one does not fit the others
            continue
        compared += 1
        assert vars(ours) | {"init_std": 0} == vars(theirs) | {"init_std": 0}, left_out
    assert compared >= 5


@pytest.mark.parametrize(("name", "cfg"), tiny_configs().items(), ids=tiny_configs())
def test_every_weight_has_its_place_in_a_file(name, cfg):
    """A tensor is one weight, or several that fill it: every row of every entry is of one weight."""
    family = family_of(cfg)
    with torch.device("meta"):
        weights = family.model(cfg).state_dict()
    places = family.hf_names(cfg)
    assert places.keys() == weights.keys()
    assert not {place.name for place in places.values()} & family.hf_ties(cfg).keys()
    stored = {name: tensor.shape for name, tensor in as_stored(weights, places)}
    taken: dict[tuple[str, int | None], list[int]] = {}
    n_rows: dict[tuple[str, int | None], int] = {}
    for ours, place in places.items():
        at = (place.name, place.entry)
        n_rows[at] = stored[place.name][place.entry is not None :].numel() // max(1, weights[ours][0].numel())
        own = range(n_rows[at]) if place.rows is None else range(n_rows[at])[place.rows]
        assert len(own) == len(weights[ours])
        taken.setdefault(at, []).extend(own)
    assert {at: sorted(rows) for at, rows in taken.items()} == {at: [*range(n)] for at, n in n_rows.items()}
    for name, shape in stored.items():
        entries = [entry for each, entry in n_rows if each == name]
        assert entries in ([None], [*range(shape[0])])


WIDE = [name for name in tiny_configs() if re.match("(xlm-ro|ro|camem|distil|modern)?bert", name)]
HEADED = torch.randint(5, 50, (2, 9), generator=torch.Generator().manual_seed(0))


@torch.no_grad()
@pytest.mark.parametrize("name", WIDE)
def test_heads_of_an_encoder_may_be_wider_than_their_share(name, tmp_path):
    """Zeros behind the halves of each head, queries larger by the root of 2, and rotations as fast change nothing."""
    narrow = new_model(name)
    K = narrow.cfg.d_head
    thetas = {
        field: getattr(narrow.cfg, field) ** 2 for field in vars(narrow.cfg) if field.endswith("rope_theta")
    }  # a head of width K turns pair i by theta ** (-2i / K) a token
    cfg = replace(narrow.cfg, head_dim=2 * K, **thetas)
    wide = family_of(cfg).model(cfg).eval()

    def padded(weight: torch.Tensor) -> torch.Tensor:
        """[... * K, D] with zeros after each half of the K rows of a head."""
        halves = weight.unflatten(0, (-1, K // 2))
        return torch.cat([halves, torch.zeros_like(halves)], 1).flatten(0, 1)

    state = narrow.state_dict()
    for key in list(state):
        if re.search(r"attn\.(qkv|q|k|v)\.", key):
            state[key] = padded(state[key])
            n_queries = len(state[key]) // 3 if ".qkv." in key else len(state[key]) * (".q." in key)
            state[key][:n_queries] *= 2**0.5
        if key.endswith("attn.out.weight"):
            state[key] = padded(state[key].T).T
    wide.load_state_dict(state)
    logits, before = (model(HEADED, return_logits=model.has_logits) for model in (wide, narrow))
    torch.testing.assert_close(logits, before, rtol=1e-4, atol=1e-5)
    save_hf(wide, tmp_path)
    again = pk.load_model(tmp_path, device="cpu")
    assert (again.cfg, again.cfg.d_head) == (cfg, 2 * K)
    assert torch.equal(again(HEADED, return_logits=again.has_logits), logits)
    assert parameters(family_of(cfg).shape(cfg)) == sum(p.numel() for p in wide.parameters())
    assert replace(cfg, head_dim=K).head_dim is None
    assert "head_dim" not in narrow.cfg.to_hf()
    assert family_of(cfg).hf_model(cfg) is None  # transformers has no such heads


@torch.no_grad()
@pytest.mark.parametrize("name", sorted(tiny_configs().keys() - set(WIDE)))
def test_head_dim_of_config_json_is_followed_or_refused(name, tmp_path):
    """Heads x head_dim other than d_model, against transformers where its class has such heads."""
    cfg = tiny_configs()[name]
    family, fields = family_of(cfg), cfg.to_hf() | {"head_dim": 12}
    if fields["model_type"] in (
        "gpt_neox",
        "olmoe",
        "marian",
        "deepseek_v3",
        "deepseek_v2",
        "kimi_k2",
        "hooked_transformer",
    ):
        with pytest.raises(DataError, match="head_dim = 12 is not implemented for model_type"):
            type(cfg).from_hf(fields)
        return
    if name == "phi3-long":  # one factor for each rotated pair of a head
        rope = fields["rope_parameters"]
        fields["rope_parameters"] = rope | {key: [2.0] * 6 for key in ("short_factor", "long_factor")}
    cfg = type(cfg).from_hf(fields)
    assert cfg.d_head == 12
    assert cfg.d_head * cfg.n_heads != cfg.d_model
    model = family.model(cfg).init_weights(0).eval()
    save_hf(model, tmp_path)
    again = pk.load_model(tmp_path, device="cpu")
    assert torch.equal(again(HEADED), model(HEADED))
    twin = family.hf_model(cfg)
    assert (twin is None) == (fields["model_type"] == "gpt2")
    if twin is not None and name != "phi3-long":  # whose factors transformers counts by d_model / n_heads
        theirs = getattr(transformers, twin.model).from_pretrained(tmp_path, attn_implementation="eager").eval()
        torch.testing.assert_close(model(HEADED), theirs(HEADED).logits, rtol=1e-4, atol=1e-5)
