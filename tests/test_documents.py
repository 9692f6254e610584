"""The documents: short, current, and with links that lead somewhere (`make docs` checks those between pages)."""

import re
from pathlib import Path

import pytest

from probekit.cli.reference import commands_page, python_page

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
