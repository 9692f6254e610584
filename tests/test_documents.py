"""The documents: short, current, and with links that lead somewhere (`make docs` checks those between pages)."""

import importlib.util
import re
from pathlib import Path

import pytest

from probekit.cli.model_pages import readme_models, will_it_load_page
from probekit.cli.reference import commands_page, python_page
from probekit.models.families import families

REPO = Path(__file__).parents[1]
DOCUMENTS = [REPO / name for name in ("README.md", "CONTRIBUTING.md", "experiments/README.md", "benchmarks/RESULTS.md")]


def test_the_readme_fits_on_a_few_screens():
    assert len((REPO / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_to_files(document):
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", document.read_text(encoding="utf-8"))
    missing = [link for link in links if "://" not in link and not (document.parent / link).exists()]
    assert missing == []


@pytest.mark.parametrize(("page", "made"), [("commands", commands_page), ("python", python_page)])
def test_the_reference_is_what_the_options_say(page, made):
    """`make docs` writes it again."""
    assert (REPO / f"docs/reference/{page}.md").read_text(encoding="utf-8") == made()


def test_the_pages_of_models_are_what_the_registry_says():
    """`make docs` writes the page again; README's list is that of `python -m probekit.cli.reference readme-models`."""
    page = (REPO / "docs/will-my-model-load.md").read_text(encoding="utf-8")
    assert page == will_it_load_page()
    assert readme_models() in (REPO / "README.md").read_text(encoding="utf-8")
    assert all(f"`{model_type}`" in page for model_type in families())


def test_every_family_says_what_it_loads_and_what_it_refuses():
    for model_type, family in families().items():
        assert all((family.loads, family.refused, family.hub_examples)), model_type


def test_the_figures_of_the_causal_page_have_a_maker_and_commands():
    """`python benchmarks/documented_figures.py` runs the commands and checks the figures themselves."""
    spec = importlib.util.spec_from_file_location("documented_figures", REPO / "benchmarks/documented_figures.py")
    assert spec is not None
    assert spec.loader is not None
    figures = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(figures)
    page = figures.PAGE.read_text(encoding="utf-8")
    assert {name for _, name, _, _ in figures.BLOCK.findall(page)} == set(figures.BLOCKS)
    groups = figures.COMMANDS.findall(page)
    assert sum("probekit extract" in group for group in groups) == 3
