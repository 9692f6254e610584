"""The limits that keep the code readable, measured on its syntax tree: parameters and names."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

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


# what each family's and each world's file may call by the same name
SHARED_NAMES = {
    "models": {
        *("Attention", "MLP", "Block", "modules", "twin", "hf_parts", "hf_renamed", "shape"),
    },
    "worlds": {"examples", "model_config", "texts", "Block"},
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
            for node in cls.body if "Protocol" not in map(ast.unparse, cls.bases) else []:
                if isinstance(node, Function) and not node.name.startswith("__"):
                    decorators = {ast.unparse(each) for each in node.decorator_list}
                    assert decorators & {"property", "cached_property"}, f"{short(path)}: {cls.name}.{node.name}"
