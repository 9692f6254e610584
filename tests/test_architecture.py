"""The direction of the imports, read from the source (the table stands in CONTRIBUTING.md)."""

import ast
import graphlib
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "probekit"
FLOORS = (  # a room imports rooms of the floors below its own, whether at the top, in a function or for type checkers
    {"text"},
    {"errors", "registries"},
    {"tables", "points", "machine", "ragged"},
    {"selections", "files"},
    {"options", "hooks", "manifest", "results"},
    {"interventions", "probes", "tasks"},
    {"models"},
    {"worlds", "latents"},
    {"activations"},
    {"verification", "evaluation"},
    {"causal"},
    {"scoring", "black_box"},
    {"export", "side_by_side"},
    {"sweeps", "sharing"},
    {"charts"},
    {"plots", "report"},
    {"logging_to"},
    {"engines"},
    {"verbs"},
    {"battery"},
    {"cli", "inspect"},
    {"__main__", "methods"},
)
MAY_IMPORT = {room: set[str]().union(*FLOORS[:floor]) for floor, rooms in enumerate(FLOORS) for room in rooms}
ONLY_IN = {
    "datasets": {"tasks/tables/hub.py"},
    "transformers": {
        "verification/references.py",
        "verification/model_types_table.py",
        "verification/packaged_models.py",
        "models/adapter/model.py",
        "models/adapter/load.py",
    },
    "inspect_ai": {f"inspect/{name}.py" for name in ("__init__", "hook", "model", "scorer")},
    "pickle": set(),
    "joblib": set(),
}


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
    return found


SOURCES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_run_in_one_direction(path):
    part = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    used = {name.split(".")[1] for name in imports(path) if name.startswith("probekit.")} - {part}
    assert used <= MAY_IMPORT[part]


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_name(path): path for path in SOURCES}


def imported_modules(path: Path) -> set[str]:
    """The modules of the package that one imports, inside functions and for type checkers too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES else str(node.module) for name in names}  # a submodule, or a name in one
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found & set(MODULES)


def test_no_modules_import_one_another_in_a_circle():
    """Of the whole package. A lazy import saves start-up time; it does not break a circle."""
    graph = {name: imported_modules(path) - {name} for name, path in MODULES.items()}
    list(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError, which names the circle


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_heavy_and_unsafe_libraries_stay_in_their_place(path):
    tops = {name.split(".")[0] for name in imports(path)}
    for library, places in ONLY_IN.items():
        assert library not in tops or str(path.relative_to(PACKAGE)) in places


def test_importing_the_package_costs_nothing():
    heavy = {"torch", "numpy", "sklearn", "transformers", "datasets", "pandas", "matplotlib", "huggingface_hub"}
    heavy |= {"fsspec", "s3fs"}
    code = "import sys, probekit, probekit.__main__, probekit.cli.main; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert heavy.isdisjoint(modules)


@pytest.mark.parametrize("room", ["models", "tasks", "worlds", "activations"])
def test_an_extraction_imports_no_statistics(room):
    """scipy.stats and scikit-learn take over a second to import, a third of the start of `extract`."""
    used = set().union(*(imports(path) for path in (PACKAGE / room).rglob("*.py")))
    assert not [name for name in used if name.split(".")[0] == "sklearn" or name.startswith("scipy.stats")]
