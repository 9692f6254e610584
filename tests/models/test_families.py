"""Adding a family touches its own file, its test and one line of the registry; nothing else names a family."""

import ast
from pathlib import Path

import pytest

from probekit.errors import UsageError
from probekit.models.families import FILES, families, family_of
from probekit.models.family import Family
from probekit.models.gpt2 import GPT2Config

PACKAGE = Path(__file__).parents[2] / "probekit"
TRANSLATIONS = {"bert_hf.py", "llama_hf.py", "marian.py"}  # the second half of a family whose file would be too long
OWN = {*(f"{file}.py" for file in FILES), *TRANSLATIONS, "families.py"}
HUB = {"hub.py"}  # short names of models on the Hub, one of which is also the name of a family


def names_of_families() -> set[str]:
    """Modules, classes and model types that only a family's own file and the registry may name."""
    found = set(families().values())
    classes = {cls.__name__ for family in found for cls in (family.config, family.model)}
    return {*FILES, *(name.removesuffix(".py") for name in TRANSLATIONS), *classes, *families()}


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
        is_own = path.parent.name == "models" and path.name in OWN
        if not is_own and place not in HUB and not place.startswith("worlds/"):
            assert not names_in(path) & named, place


def test_the_registry_has_one_entry_for_each_file_with_a_family():
    with_family = {
        path.stem for path in (PACKAGE / "models").glob("*.py") if "\nFAMILY = Family(" in path.read_text("utf-8")
    }
    assert with_family == set(FILES)
    assert len(FILES) == len(set(FILES))


def test_families_are_found_by_type_and_by_config():
    assert list(families()) == ["gpt2", "llama", "mistral", "qwen2", "bert", "marian"]
    assert all(isinstance(family, Family) for family in families().values())
    assert family_of(GPT2Config()) is families()["gpt2"]
    with pytest.raises(
        UsageError, match=r"object belongs to no family; enter its file in probekit/models/families\.py"
    ):
        family_of(object())
