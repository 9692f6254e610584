"""Every difference of two records, sorted by what it means.

Bits (activations, tasks, what a model writes) and exit codes must be equal. Other numbers are equal within a tolerance:
`--tolerance` for fitted figures, `--exactly` for metrics. Texts that differ are listed as changed words.
"""

import argparse
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from record import read

# fields that a solver's certificate bounds, and sums of fitted weights
FITTED = re.compile(
    r"loss|gap|code|bits_per|log|nll|ece|brier|coef|intercept|figures|calibrat|temperature|threshold|distance|score|"
    r"probab|decision|direction|effect|norm|std|variance|low|high|interval|p_value|corrected|error|relative|pixel|nats",
    re.IGNORECASE,
)
# what a row of scores says of the curve, the place and the metric that its other columns name
CELLS = (
    *("value", "low", "high", "band_low", "band_high", "chance", "p_value", "p_corrected", "n", "C", "converged"),
    *("selected", "in_best_set", "at_edge"),
)
KINDS = ("bits", "exit codes", "missing", "new", "numbers", "words", "pictures")


def walk(a: Any, b: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    """(path, before, after) of every leaf that differs; `...` stands for what one side lacks."""
    if is_scores(a) and is_scores(b):
        names = [name for name in a if name in b and isinstance(a[name], list)]
        yield from walk(rows_by_name(a, names), rows_by_name(b, names), path)
        a, b = ({name: column for name, column in each.items() if name not in names} for each in (a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        for key in [*a, *(key for key in b if key not in a)]:
            yield from walk(a.get(key, ...), b.get(key, ...), (*path, key))
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for at, (x, y) in enumerate(zip(a, b, strict=True)):
            yield from walk(x, y, (*path, str(at)))
    elif a != b or type(a) is not type(b):
        yield path, a, b


def is_scores(value: Any) -> bool:
    """Whether it is a table of scores, a list for each column."""
    return isinstance(value, dict) and all(isinstance(value.get(name), list) for name in ("metric", "value"))


def rows_by_name(table: dict[str, list[Any]], names: list[str]) -> dict[str, dict[str, Any]]:
    """The rows by what they are of, so that two tables may list them in another order."""
    rows = dict[str, dict[str, Any]]()
    for cells in zip(*(table[name] for name in names), strict=True):
        row = dict(zip(names, cells, strict=True))
        key = " ".join(str(row[name]) for name in names if name not in CELLS and row[name] not in ("", None, "nan"))
        while key in rows:
            key += " again"
        rows[key] = {name: row[name] for name in names if name in CELLS}
    return rows


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def kind_of(path: tuple[str, ...], a: Any, b: Any, tolerance: float, exactly: float) -> str:
    """What a difference means; "" for numbers within their tolerance."""
    if a is ... or b is ...:
        return "new" if a is ... else "missing"
    if path[-1] in ("code", "one line"):
        return "exit codes"
    if path[-1] in ("failed", "error") or "activations" in path[1:] or "points" in path[1:]:
        return "bits"
    if path[-1] == "bits" and not (is_number(a) and is_number(b)):  # the bits of a code length are a number
        return "bits"
    if is_number(a) and is_number(b):
        allowed = tolerance if FITTED.search("/".join(path)) else exactly
        return "" if abs(a - b) <= allowed * max(abs(a), abs(b), 1.0 if allowed == tolerance else 0.0) else "numbers"
    if "texts" in path[-2:] or "labels" in path[-2:] or path[-1] == "picture" or "picture" in path[-2:]:
        return "pictures"
    return "words"


def shown(value: Any, width: int = 220) -> str:
    text = "(absent)" if value is ... else repr(value)
    return text if len(text) <= width else f"{text[: width - 20]}... {len(text)} characters"


def compare(arguments: list[str]) -> int:
    """Print the differences; 1 if bits, exit codes, figures or steps differ."""
    parser = argparse.ArgumentParser(prog="witness compare", description=__doc__)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--tolerance", type=float, default=1e-5, help="of fitted figures, relative above 1")
    parser.add_argument("--exactly", type=float, default=1e-9, help="of other numbers, relative")
    parser.add_argument("--kinds", default=",".join(KINDS), help="kinds to print: " + ", ".join(KINDS))
    parser.add_argument("--most", type=int, default=40, help="differences printed of each step and kind")
    asked = parser.parse_args(arguments)
    before, after = read(asked.before), read(asked.after)
    print(f"{before['tree']} -> {after['tree']}")
    there = [name for name in before["scenes"] if name in after["scenes"]]
    for name in sorted({*before["scenes"], *after["scenes"]} - {*there}):
        print(f"scene {name} is in one record only")
    counts, within = defaultdict[str, int](int), 0
    for scene in there:
        for step in {**before["scenes"][scene], **after["scenes"][scene]}:
            found = defaultdict[str, list[str]](list)
            old, new = (one["scenes"][scene].get(step, ...) for one in (before, after))
            for path, a, b in walk(old, new, ()):
                kind = kind_of((step, *path), a, b, asked.tolerance, asked.exactly)
                within += not kind
                if kind:
                    found[kind].append(f"    {'/'.join(path)}\n      - {shown(a)}\n      + {shown(b)}")
            for kind, lines in found.items():
                counts[kind] += len(lines)
                if kind in asked.kinds.split(","):
                    print(f"{kind}: {scene}: {step}", *lines[: asked.most], sep="\n")
                    if len(lines) > asked.most:
                        print(f"    ... and {len(lines) - asked.most} more")
    said = ", ".join(f"{counts[kind]} {kind}" for kind in KINDS if counts[kind])
    print(f"differences: {said or 'none'}; {within} numbers differ within their tolerance")
    return int(any(counts[kind] for kind in ("bits", "exit codes", "missing", "numbers")))
