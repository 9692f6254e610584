"""The page of what each number is worth: that of its records, and able to find statistics that are wrong."""

import importlib
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import probekit as pk

REPO = Path(__file__).parents[1]
sys.path.insert(0, str(REPO / "benchmarks"))  # whose files import one another by name
claims, cells, pages, worlds = (
    importlib.import_module(name) for name in ("claims", "claims_cells", "claims_page", "claims_worlds")
)
sys.path.remove(str(REPO / "benchmarks"))
CLAIMS, World, Directions = pages.CLAIMS, worlds.World, cells.Directions


def verdict_of(cell: Any, measure: str, n: int) -> str:
    entry, kind = claims.measured(cell, n)[measure], claims.kind_of(measure)
    assert kind.nominal is not None
    return claims.verdict(entry["value"], kind.nominal, entry["error"], kind.unsafe, kind.tolerance)


def test_the_page_is_that_of_the_records() -> None:
    """`python benchmarks/claims.py --page > docs/what-each-number-is-worth.md` writes it again."""
    records = claims.read_records()
    assert [*records] == [cell.name for cell in claims.cells()]
    assert (REPO / "docs/what-each-number-is-worth.md").read_text(encoding="utf-8") == pages.page(records)


def test_each_kind_of_cell_is_measured_and_is_on_the_page() -> None:
    kinds = {cell.name.partition(": ")[0]: cell for cell in claims.cells()}
    folds = next(cell for cell in claims.cells() if "folds" in cell.name)
    records = {cell.name: {"worlds": 2, "measures": claims.measured(cell, 2)} for cell in [*kinds.values(), folds]}
    names = [row[0] for claim in CLAIMS for row in pages.rows_of(claim, records)]
    assert all(any(name in row for row in names) for name in (cell.partition(": ")[2] for cell in records))
    for record in records.values():
        assert record["measures"]
        assert all(("value" in entry) == (entry["n"] > 0) for entry in record["measures"].values())


@pytest.mark.parametrize(
    ("measured", "error", "unsafe", "found"),
    [(0.94, 0.01, -1, "holds"), (0.92, 0.005, -1, "approximate"), (0.85, 0.01, -1, "off"), (0.99, 0.01, -1, "cautious"),
     (0.99, 0.01, 0, "approximate"), (0.85, 0.05, -1, "holds")],
)  # fmt: skip
def test_the_verdict_weighs_the_distance_and_its_error(measured: float, error: float, unsafe: int, found: str) -> None:
    assert claims.verdict(measured, 0.95, error, unsafe, 0.05) == found


@pytest.mark.parametrize("world", [World(share=0.05), World(groups=10), World(folds=5), World()], ids=str)
def test_the_tool_says_what_the_page_quotes(world: Any) -> None:
    folds: Any = {"folds": world.folds} if world.folds else {}
    summary = pk.train_probes(worlds.draw(world, 0), C=1.0, quick=True, **folds).summary()
    quoted = CLAIMS[0].says(str(world)).strip('"')
    assert quoted in summary
    assert bool(quoted) == (world != World())
    assert quoted or "Intervals" not in summary


def test_a_layer_that_test_chose_is_found() -> None:
    cell = claims.Cell("", partial(cells.of_curve, World(n=50)))
    assert verdict_of(cell, "optimism", 20) == "holds"
    assert verdict_of(cell, "optimism, selected on test", 20) == "off"


def test_an_interval_that_ignores_groups_is_found() -> None:
    named, ignored = (
        claims.Cell("", partial(cells.of_curve, World(n=400, groups=20, named=named))) for named in (True, False)
    )
    assert verdict_of(named, "quoted interval", 30) in ("holds", "cautious")
    assert verdict_of(ignored, "quoted interval", 30) == "off"


def test_a_band_of_one_placebo_is_found() -> None:
    cases = Directions(0.1), Directions(0.1, rule=cells.above_one_placebo)
    honest, one = (claims.Cell("", partial(cells.of_directions, case)) for case in cases)
    assert verdict_of(honest, "used at any layer", 60) in ("holds", "cautious")
    assert verdict_of(one, "used at any layer", 60) == "off"
