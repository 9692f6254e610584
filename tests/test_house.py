"""The limits that keep the code readable, measured on its syntax tree: parameters, circles of imports, names."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "probekit"
PATHS = sorted(PACKAGE.rglob("*.py"))
Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def trees() -> dict[Path, ast.Module]:
    """Parsed when a test asks for it, not by each process that collects the tests."""
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in PATHS}


def short(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def functions(tree: ast.Module) -> Iterator[Function]:
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def parameters(node: Function) -> list[str]:
    names = [each.arg for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    return [name for name in names if name not in ("self", "cls")]


def test_lists_of_options_are_objects():
    """No function takes more than 8 parameters: a longer list is a dataclass in `probekit.options`."""
    many = {
        f"{short(path)}:{node.name}": len(names)
        for path, tree in trees().items()
        for node in functions(tree)
        if len(names := parameters(node)) > 8
    }
    assert many == {}


def module_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in PATHS}


def imported(tree: ast.Module) -> set[str]:
    """Modules of the package that are imported anywhere in a module: at the top, in a function, for type checkers."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inside = f"{node.module}.{alias.name}"
                found.add(inside if inside in MODULES else node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found & MODULES.keys()


@pytest.mark.parametrize("part", sorted({module.split(".")[1] for module in MODULES if "." in module} - {"__main__"}))
def test_no_circle_of_imports(part):
    """Lazy imports and those for type checkers included."""
    inside = [name for name in MODULES if name == f"probekit.{part}" or name.startswith(f"probekit.{part}.")]
    graph = {name: (imported(trees()[MODULES[name]]) & set(inside)) - {name} for name in inside}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


# what each family's and each world's file may call by the same name
SHARED_NAMES = {
    "models": {
        *("Attention", "MLP", "Block", "hf_names", "hf_ties", "hf_model", "hf_parts", "hf_renamed"),
        *("fields_from_hf", "fields_to_hf", "shape"),
    },
    "worlds": {"examples", "model_config"},
}


def test_no_two_public_classes_or_functions_share_a_name():
    """But for the parts of a family or a world, and commands, which have the name of what they call."""
    homes = defaultdict(list)
    for path, tree in trees().items():
        room = short(path).split("/")[0]
        if room in ("cli", "__main__.py"):
            continue
        for node in tree.body:
            if isinstance(node, Function | ast.ClassDef) and not node.name.startswith("_"):
                if any(ast.unparse(one) == "overload" for one in node.decorator_list):
                    continue
                homes[node.name] += [] if node.name in SHARED_NAMES.get(room, ()) else [short(path)]
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}


def test_importing_a_data_class_brings_no_verbs():
    """Plans, options and requests are data: their methods are checks, special methods and derived values."""
    for path, tree in trees().items():
        if not re.search(r"(options/|plan/plan\.py|imports/plan\.py|evaluation/request\.py)", short(path)):
            continue
        for cls in (node for node in tree.body if isinstance(node, ast.ClassDef)):
            for node in cls.body:
                if isinstance(node, Function) and not node.name.startswith("__"):
                    decorators = {ast.unparse(each) for each in node.decorator_list}
                    assert decorators & {"property", "cached_property"}, f"{short(path)}: {cls.name}.{node.name}"
