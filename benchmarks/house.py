"""Measure the code's structure on its syntax tree: sizes, long parameter lists, circles of imports.

    python benchmarks/house.py [CHECKOUT ...]

Lines of a function include its docstring. A circle is a strongly connected set of modules. A file has one importer if
one other module imports it. Both count lazy imports and those for type checkers, over the whole package.
The lower half is every room below `evaluation`. `tests/test_house.py` and `tests/test_architecture.py` hold the limits.
"""

import ast
import statistics
import sys
from collections import Counter
from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components

Function = ast.FunctionDef | ast.AsyncFunctionDef
UPPER = {
    "evaluation",
    "causal",
    "scoring",
    "export",
    "side_by_side",
    "sweeps",
    "charts",
    "plots",
    "logging_to",
    "report",
    "cli",
}
SHORT = 60  # lines; a shorter file needs a reason


def parameters(node: Function) -> int:
    """Parameters without self, cls, *args and **kwargs."""
    names = [each.arg for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    return len([name for name in names if name not in ("self", "cls")])


def lines(node: Function) -> int:
    """Lines of a function, its docstring included."""
    return (node.end_lineno or 0) - node.lineno + 1


def module_of(path: Path, root: Path) -> str:
    """The dotted name of a file."""
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


def edges_of(trees: dict[str, ast.Module]) -> list[tuple[str, str]]:
    """(importing, imported) for each pair of different modules."""
    return [(name, other) for name, tree in trees.items() for other in imported(tree, trees) if other != name]


def circles(trees: dict[str, ast.Module]) -> list[list[str]]:
    """Modules that import one another in a circle."""
    names = sorted(trees)
    index = {name: i for i, name in enumerate(names)}
    rows, columns = np.array([(index[a], index[b]) for a, b in edges_of(trees)], dtype=int).reshape(-1, 2).T
    graph = csr_matrix((np.ones(len(rows)), (rows, columns)), shape=(len(names), len(names)))
    n, member = connected_components(graph, connection="strong")
    groups = [[names[i] for i in np.flatnonzero(member == group)] for group in range(n)]
    return [group for group in groups if len(group) > 1]


def with_one_importer(trees: dict[str, ast.Module], packages: set[str]) -> list[str]:
    """Modules that one other module imports; a package's own `__init__` counts as an importer, and is not counted."""
    importers = Counter(other for _, other in edges_of(trees))
    return sorted(name for name, n in importers.items() if n == 1 and name not in packages)


def imported(tree: ast.Module, trees: dict[str, ast.Module]) -> set[str]:
    """Modules of the package that a module imports, lazily or not."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            inside = {f"{node.module}.{alias.name}" for alias in node.names} & trees.keys()
            found |= inside or {node.module}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found & trees.keys()


def report(checkout: Path) -> str:
    """The figures of one checkout."""
    paths = sorted((checkout / "probekit").rglob("*.py"))
    trees = {module_of(path, checkout): ast.parse(path.read_text(encoding="utf-8")) for path in paths}
    functions = [node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, Function)]
    sizes = sorted(lines(node) for node in functions)
    lengths = [len(path.read_text(encoding="utf-8").splitlines()) for path in paths]
    long_lists = [node.name for node in functions if parameters(node) > 8]
    found = circles(trees)
    packages = {module_of(path, checkout) for path in paths if path.name == "__init__.py"}
    alone = with_one_importer(trees, packages)
    room = {path: path.relative_to(checkout / "probekit").parts[0] for path in paths}
    lower = sum(length for path, length in zip(paths, lengths, strict=True) if room[path] not in UPPER)
    short = sum(length < SHORT for path, length in zip(paths, lengths, strict=True) if path.name != "__init__.py")
    tests: Counter[str] = Counter()
    for path in (checkout / "tests").rglob("*.py"):
        tests[path.relative_to(checkout / "tests").parts[0]] += len(path.read_text(encoding="utf-8").splitlines())
    return "\n".join(
        (
            (
                f"{checkout}: {len(paths)} files, {sum(lengths):,} lines, longest file {max(lengths)}, "
                f"{sum(length > 400 for length in lengths)} over 400"
            ),
            (
                f"  lower half {lower:,} lines; {len(alone)} files with one importer, {short} under {SHORT} lines; "
                f"tests {sum(tests.values()):,} lines, {sum(tests[room] for room in UPPER):,} of the upper half"
            ),
            (
                f"  {len(functions):,} functions; median {statistics.median(sizes):g}, 90th percentile "
                f"{sizes[int(0.9 * len(sizes))]}, longest {sizes[-1]} lines"
            ),
            f"  {len(long_lists)} functions with more than 8 parameters: {', '.join(long_lists) or 'none'}",
            f"  {len(found)} circles of imports"
            + "".join(f"\n    {len(group)}: {', '.join(group)}" for group in found),
        )
    )


if __name__ == "__main__":
    for folder in sys.argv[1:] or ["."]:
        print(report(Path(folder)))
