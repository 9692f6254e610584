"""Adding a family touches its own file, its test and one line of the registry; nothing else names a family."""

import ast
import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_configs import tiny_configs
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from probekit.errors import DataError, UsageError
from probekit.models.families import FILES, families, family_of
from probekit.models.families.gpt2 import GPT2Config
from probekit.models.family import Family

REPO = Path(__file__).parents[3]
PACKAGE = REPO / "probekit"
FAMILIES = PACKAGE / "models/families"
TRANSLATIONS = {f"{file}_hf" for file in FILES if (FAMILIES / f"{file}_hf.py").exists()}  # FILE.py would be too long
# published models by type and short name; transformers' module layouts, by its types
OTHER_TABLES = {"published.py", "models/adapter/layouts.py", "models/default_tokens.py"}


def names_of_families() -> set[str]:
    """Modules, classes and model types that only a family's own file and the registry may name."""
    classes = {cls.__name__ for family in families().values() for cls in (family.config, family.model)}
    return {*FILES, *TRANSLATIONS, *classes, *families()}


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
    assert {"gpt2", "GPT2Config", "Llama", "mistral", "qwen2", "bert_hf", "marian", "Transformer"} <= named
    for path in PACKAGE.rglob("*.py"):
        place = str(path.relative_to(PACKAGE))
        if path.parent != FAMILIES and place not in OTHER_TABLES and not place.startswith("worlds/"):
            assert not names_in(path) & named, place


def test_the_registry_has_one_entry_for_each_file_with_a_family():
    with_family = {path.stem for path in FAMILIES.glob("*.py") if "\nFAMILY = Family(" in path.read_text("utf-8")}
    assert with_family == set(FILES)
    assert len(families()) == sum(map(len, FILES.values()))


def test_families_are_found_by_type_and_by_config():
    registered = [importlib.import_module(f"probekit.models.families.{file}").FAMILY for file in FILES]
    assert all(isinstance(family, Family) for family in registered)
    assert {file: family.model_types for file, family in zip(FILES, registered, strict=True)} == FILES
    assert list(families()) == [each for types in FILES.values() for each in types]
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
    [model_type for model_type in ONE_OF_EACH_TYPE if model_type != "marian"],  # it has no default vocabulary
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
    """A tensor is one weight, or several that fill it from the first row to the last."""
    family = family_of(cfg)
    with torch.device("meta"):
        weights = family.model(cfg).state_dict()
    places = family.hf_names(cfg)
    assert places.keys() == weights.keys()
    assert not {place.name for place in places.values()} & family.hf_ties(cfg).keys()
    rows: dict[str, list[tuple[int, int]]] = {}
    for ours, place in places.items():
        rows.setdefault(place.name, []).append(place.rows or (0, len(weights[ours])))
        assert rows[place.name][-1][1] - rows[place.name][-1][0] == len(weights[ours])
    for parts in map(sorted, rows.values()):
        assert [start for start, _ in parts] == [0, *(end for _, end in parts[:-1])]
