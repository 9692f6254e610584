"""The documents: short, current, with code that runs, and with links that lead somewhere.

`make docs` checks the links between pages.
"""

import importlib.util
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pages
import pytest
from hub_server import WRITE_TOKEN, HubServer

from probekit.cli.reference import capabilities_page, commands_page, python_page, readme_models, will_it_load_page
from probekit.models.families import families

REPO = Path(__file__).parents[1]
DOCUMENTS = [REPO / name for name in ("README.md", "CONTRIBUTING.md", "experiments/README.md", "benchmarks/RESULTS.md")]
PAGES = [REPO / "README.md", *sorted((REPO / "docs").glob("*.md")), *sorted((REPO / "docs/how-to").glob("*.md"))]
IN_A_KERNEL = "own_model_and_data.ipynb"  # `make test` runs it in Jupyter, which has the same to do for the others
NOTEBOOKS = [path for path in sorted((REPO / "experiments").glob("*.ipynb")) if path.name != IN_A_KERNEL]
CHECKS = {  # page -> what holds after its last block
    "add-a-family.md": "import probekit as pk; assert pk.selftest(model).passed",
    "erase-a-concept.md": "assert eraser.rank == 1 and len(found.places) == 5",
    "toy-models.md": "assert [layer.quadrant for layer in edits.layers] == ['neither', 'read and used']; "
    "assert [round(layer.score, 2) for layer in edits.layers] == [0.52, 1.0]; "
    "exchanged = [e for e in edits.effects if e.method == 'interchange' and e.split == 'test']; "
    "own = {e.point: round(e.effect, 2) for e in exchanged if e.direction == 'probe'}; "
    "assert own == {'resid_pre': 0, 'resid_post': 0.99}, own; "
    "of_no_use = [e.effect for e in exchanged if e.direction in ('random', 'covariance', 'shuffled labels')]; "
    "assert round(max(of_no_use), 2) == 0.15, max(of_no_use)",
    "steer.md": "assert found.recovery > found.control_recovery + 0.1",
}
# What can't run here: reason -> blocks. Their commands are parsed, and their Python has no undefined name.
NOT_RUN = {
    "makes the environment": 3,
    "needs GPUs, other machines and an account": 1,
    "needs Inspect": 4,
    "needs Tracr": 1,
    "needs TransformerLens": 3,
    "needs a GPU": 1,
    "needs a Ray cluster": 3,
    "needs a Slurm cluster": 4,
    "needs a model of a real size": 1,
    "needs a tracker": 1,
    "needs an object store": 3,
    "needs data and a model from elsewhere": 4,
    "needs the file": 5,
    "needs several GPUs": 2,
    "needs several machines": 2,
    "needs the download": 1,
    "needs vLLM": 4,
    "needs vllm-lens": 1,
    "takes a minute": 17,
    "takes a minute or two": 1,
}


def test_the_readme_fits_on_a_few_screens():
    assert len((REPO / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_to_files(document):
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", document.read_text(encoding="utf-8"))
    missing = [link for link in links if "://" not in link and not (document.parent / link).exists()]
    assert missing == []


@pytest.mark.parametrize(
    ("page", "made"), [("commands", commands_page), ("python", python_page), ("capabilities", capabilities_page)]
)
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
        assert all((family.loads, family.refused, family.hub_examples or family.how_to)), model_type


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, str]]]:
    """The program that runs a page, and its environment: a Hub on loopback, no network."""
    folder = tmp_path_factory.mktemp("pages")
    hub = HubServer(pages.hub_repos(), tmp_path_factory.mktemp("hf_home"))
    settings = {"HF_TOKEN": WRITE_TOKEN, "HF_HUB_DISABLE_XET": "1", "MPLBACKEND": "agg", "OMP_NUM_THREADS": "1"}
    env = hub.env | settings | {"PYTHONPATH": f"{REPO}:{REPO / 'tests'}", "PROBEKIT_CACHE": str(folder / "cache")}
    log = (folder / "log").open("w+")
    with subprocess.Popen(
        [sys.executable, pages.__file__, str(folder)], env=env, stdin=subprocess.PIPE, stdout=log, stderr=log, text=True
    ) as server:
        while not (folder / "ready").exists() and server.poll() is None:
            time.sleep(0.1)
        assert server.poll() is None, (folder / "log").read_text()
        yield folder / "page", env | {"PAGES_FILES": str(folder / "files")}
        assert server.stdin
        server.stdin.close()
    log.close()
    hub.close()


@pytest.mark.parametrize("page", [*PAGES, *NOTEBOOKS], ids=lambda page: page.name)
def test_the_code_of_each_page_runs_from_top_to_bottom(page, served, tmp_path):
    program, env = served
    done = subprocess.run(
        [program, page, tmp_path / "here", CHECKS.get(page.name, "")], env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ("```python\nimport probekit as pk\n```\n\n```python\nundefined\n```\n", 'page.md", line 6'),
        ("    probekit ls --nonsense\n", "No such option"),
        ("<!-- not run: a reason -->\n\n    srun probekit extract ... --nonsense\n", "No such option"),
        ("<!-- not run: a reason -->\n```sh\nfor i in 1; do probekit extract --limit none; done\n```\n", "--limit"),
    ],
    ids=["a name", "an option", "an option of what is not run", "a value of what is not run"],
)
def test_a_page_with_a_fault_is_found(page, said, served, tmp_path):
    program, env = served
    (tmp_path / "page.md").write_text(page)
    done = subprocess.run(
        [program, tmp_path / "page.md", tmp_path / "here", ""], env=env, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert said in done.stderr


def test_one_notebook_runs_in_a_kernel():
    assert (REPO / "experiments" / IN_A_KERNEL).is_file()
    assert (REPO / "Makefile").read_text().count(f"--nbmake experiments/{IN_A_KERNEL} tests") == 2


def test_what_is_not_run_is_known():
    found = Counter(block.not_run for page in PAGES for block in pages.blocks(page) if block.not_run)
    assert found == NOT_RUN


def test_python_that_is_not_run_has_no_undefined_name(tmp_path):
    for page in PAGES:
        code = [block for block in pages.blocks(page) if block.language == "python" and not block.file]
        if any(block.not_run for block in code):
            (tmp_path / f"{page.stem}.py").write_text("\n".join(block.code for block in code))
    rules = ["--isolated", "--no-cache", "--select", "F821,E9"]
    done = subprocess.run([sys.executable, "-m", "ruff", "check", *rules, tmp_path], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert any(tmp_path.iterdir())


def test_every_command_at_the_beginning_of_a_line_is_in_a_block_of_commands():
    """Else it would be neither run nor parsed."""
    for page in PAGES:
        known = {
            line.strip() for block in pages.blocks(page) if block.language == "sh" for line in block.code.splitlines()
        }
        lines = page.read_text(encoding="utf-8").splitlines()
        assert {line.strip() for line in lines if re.match(r"    +probekit [a-z-]+ ", line)} <= known, page.name


def test_the_figures_of_the_pages_have_a_maker_and_commands():
    """`python benchmarks/documented_figures.py` runs the commands and checks the figures themselves."""
    spec = importlib.util.spec_from_file_location("documented_figures", REPO / "benchmarks/documented_figures.py")
    assert spec is not None
    assert spec.loader is not None
    figures = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = figures  # dataclasses look their module up
    spec.loader.exec_module(figures)
    texts = [page.read_text(encoding="utf-8") for page in figures.PAGES]
    assert {name for text in texts for _, name, _, _ in figures.BLOCK.findall(text)} == set(figures.BLOCKS)
    groups = figures.COMMANDS.findall(texts[0])
    assert sum("probekit extract" in group for group in groups) == 3
