"""Measure the code's structure on its syntax tree: sizes, long parameter lists, circles of imports.

    python benchmarks/house.py [CHECKOUT ...]

Lines of a function include its docstring. A circle is a strongly connected set of modules inside one room, counting
lazy imports and those for type checkers. `tests/test_house.py` holds the limits.
"""

import ast
import statistics
import sys
from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components

Function = ast.FunctionDef | ast.AsyncFunctionDef


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


def circles(trees: dict[str, ast.Module]) -> list[list[str]]:
    """Modules that import one another in a circle, each circle within one room."""
    names = sorted(trees)
    index = {name: i for i, name in enumerate(names)}
    edges = [
        (index[name], index[other])
        for name, tree in trees.items()
        for other in imported(tree, trees)
        if other != name and name.split(".")[:2] == other.split(".")[:2]
    ]
    rows, columns = (np.array(side, dtype=int) for side in zip(*edges, strict=True))
    graph = csr_matrix((np.ones(len(edges)), (rows, columns)), shape=(len(names), len(names)))
    n, member = connected_components(graph, connection="strong")
    groups = [[names[i] for i in np.flatnonzero(member == group)] for group in range(n)]
    return [group for group in groups if len(group) > 1]


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
    return "\n".join(
        (
            (
                f"{checkout}: {len(paths)} files, {sum(lengths):,} lines, longest file {max(lengths)}, "
                f"{sum(length > 400 for length in lengths)} over 400"
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
