"""The page of what each number is worth: that of its records, and able to find statistics that are wrong."""

import importlib
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.special import ndtri
from scipy.stats import binomtest

import probekit as pk
from probekit.causal.curve import statistics
from probekit.evaluation.by_position.chance import compare_with_chance
from probekit.evaluation.scores import bootstrap
from probekit.evaluation.scores.alarms import rises_of
from probekit.scoring.calibrate import calibration_of

REPO = Path(__file__).parents[1]
sys.path.insert(0, str(REPO / "benchmarks"))  # whose files import one another by name
claims, cells, pages, worlds, summary = (
    importlib.import_module(name)
    for name in ("claims", "claims_cells", "claims_page", "claims_worlds", "claims_summary")
)
sys.path.remove(str(REPO / "benchmarks"))
CLAIMS, World, Directions = pages.CLAIMS, worlds.World, cells.Directions


def verdict_of(measure: Callable[[int], Any], name: str, n: int) -> str:
    return claims.verdict(claims.kind_of(name), claims.measured(claims.Cell("", measure), range(n))[name])


def test_the_page_is_that_of_the_records() -> None:
    """`python benchmarks/claims.py --page > docs/what-each-number-is-worth.md` writes it again."""
    records = claims.read_records()
    assert [*records] == [cell.name for cell in claims.cells()]
    assert (REPO / "docs/what-each-number-is-worth.md").read_text(encoding="utf-8") == pages.page(records)


def test_each_kind_of_cell_is_measured_and_is_on_the_page() -> None:
    kinds = {cell.name.partition(": ")[0]: cell for cell in claims.cells()}
    folds = next(cell for cell in claims.cells() if "folds" in cell.name)
    records = {
        cell.name: {"worlds": 2, "measures": claims.measured(cell, range(2))} for cell in [*kinds.values(), folds]
    }
    names = [row[0] for claim in CLAIMS for row in pages.rows_of(claim, records)]
    assert all(any(name in row for row in names) for name in (cell.partition(": ")[2] for cell in records))
    for record in records.values():
        assert record["measures"]
        assert all(("value" in entry) == (entry["n"] > 0) for entry in record["measures"].values())


@pytest.mark.parametrize(
    ("value", "n", "found"),
    [(0.95, 2000, "holds"), (0.95, 200, "not shown"), (0.94, 4000, "holds"), (0.905, 200, "not shown"),
     (0.90, 1000, "off"), (0.81, 100, "off"), (1.0, 2000, "cautious"), (1.0, 30, "not shown")],
)  # fmt: skip
def test_a_coverage_holds_only_where_the_worlds_show_it(value: float, n: int, found: str) -> None:
    """The whole of Wilson's interval is at 92.5% or more where it holds, and below where it is off."""
    entry = {"n": n, "value": value}
    low, high = binomtest(round(value * n), n).proportion_ci(method="wilson")
    assert np.allclose(claims.ends_of(claims.COVERAGE, entry), (low, high), atol=1e-4)
    assert claims.verdict(claims.COVERAGE, entry) == found


@pytest.mark.parametrize(
    ("measure", "value", "error", "found"),
    [("p of a layer | <= 0.05", 0.05, 0, "holds"), ("p of a layer | <= 0.05", 0.09, 0, "off"),
     ("p of a layer | <= 0.01", 0.0185, 0, "not shown"), ("used at any layer", 0.001, 0, "cautious"),
     ("calibration slope", 1.08, 0.005, "holds"), ("calibration slope", 1.2, 0.005, "off"),
     ("calibration slope", 0.8, 0.005, "off"), ("calibration slope", 0.91, 0.02, "not shown"),
     ("optimism", -0.1, 0.001, "cautious"), ("realised FPR of 0.01", 0.016, 0.0001, "off")],
)  # fmt: skip
def test_the_verdict_knows_the_unsafe_side(measure: str, value: float, error: float, found: str) -> None:
    assert claims.verdict(claims.kind_of(measure), {"n": 2000, "value": value, "error": error}) == found


def test_worlds_that_are_measured_in_two_goes_are_as_in_one() -> None:
    cell = claims.Cell("", partial(cells.of_effect, 50, None))
    whole, part = claims.continued(cell, {}, 60), claims.continued(cell, {}, 25)
    both = claims.continued(cell, part, 60)
    assert both["worlds"] == whole["worlds"] == 60
    assert both["measures"]["effect interval"] == pytest.approx(whole["measures"]["effect interval"])
    rng = np.random.default_rng(0)
    values = rng.normal(size=900)
    whole = claims.summarised("optimism", values, {})["optimism"]
    parts = [claims.summarised("optimism", each, {})["optimism"] for each in np.split(values, [300])]
    assert claims.pooled(parts) == pytest.approx(whole, rel=0.02)


def test_each_statement_is_in_the_list_of_its_tables() -> None:
    """None is shown to hold where a cell that it rests on is off, or says nothing."""
    records, shown = claims.read_records(), {}
    for statement in summary.STATEMENTS:
        found = summary.judged(statement, records)
        assert found is not None, statement.text
        place, measure, (whole, *parts) = found
        verdicts = [claims.verdict(claims.kind_of(measure), each) for each in parts]
        assert (place == "off") >= ("off" in verdicts)
        assert (place == "says nothing") <= ("off" not in verdicts)
        assert place != "holds" or claims.verdict(claims.kind_of(measure), whole) in ("holds", "cautious")
        unsure = [each for each, of in zip(parts, verdicts, strict=True) if of == "not shown" and each["n"] >= 500]
        assert place != "holds" or not unsure
        shown[statement.text] = place
    assert len(shown) == len(summary.STATEMENTS)
    assert {*shown.values()} >= {"holds", "off"}


@pytest.mark.parametrize("world", [World(share=0.05), World(groups=10), World(folds=5), World()], ids=str)
def test_the_tool_says_what_the_page_quotes(world: Any) -> None:
    folds: Any = {"folds": world.folds} if world.folds else {}
    summary = pk.train_probes(worlds.draw(world, 0), C=1.0, quick=True, **folds).summary()
    quoted = CLAIMS[0].says(str(world)).strip('"')
    assert quoted in summary
    assert bool(quoted) == (world != World())
    assert quoted or "Intervals" not in summary


def test_a_layer_that_test_chose_is_found() -> None:
    found = claims.measured(claims.Cell("", partial(cells.of_curve, World(n=50))), range(15))
    verdicts = [
        claims.verdict(claims.kind_of(name), found[name]) for name in ("optimism", "optimism, selected on test")
    ]
    assert verdicts[0] != "off"
    assert verdicts[1] == "off"


def test_a_band_of_one_placebo_is_found() -> None:
    honest, one = (
        partial(cells.of_directions, Directions(0.1, rule=rule))
        for rule in (cells.by_the_rule, cells.above_one_placebo)
    )
    assert verdict_of(honest, "used at any layer", 80) != "off"
    assert verdict_of(one, "used at any layer", 80) == "off"


def _percentiles(self: Any, predictions: Any, level: float = 0.95, names: Any = (), exact: bool = False) -> Any:
    ends = [(1 - level) / 2, (1 + level) / 2]
    return {name: tuple(np.nanquantile(self.resampled(predictions, name), ends)) for name in names}


def _uncorrected(*about: Any) -> Any:
    found = compare_with_chance(*about)
    return replace(found, corrected=found.p_values)


def _too_sure(*about: Any) -> Any:
    once: Any = calibration_of(*about)
    return SimpleNamespace(slope=2 * once.slope, log_odds=lambda scores: 2 * once.log_odds(scores))


PLANTED = {  # a fault -> what is replaced, by what, the cell that finds it, in which measure, in how many worlds
    "the normal in place of Student's t": (
        (statistics, "stdtrit", lambda _, share: ndtri(share)),
        (partial(cells.of_effect, 200, 5), "effect interval", 2000),
    ),
    "groups are ignored": (
        (cells, "Bootstrap", lambda n, seed, _=None: bootstrap.Bootstrap(n, seed)),
        (partial(cells.of_effect, 200, 20), "effect interval", 500),
    ),
    "percentiles of the bootstrap": (
        (bootstrap.Bootstrap, "intervals", _percentiles),
        (partial(cells.of_score, 10, "auroc", 2.33, 200), "auroc interval", 400),
    ),
    "few of a class are not counted": (
        (bootstrap, "_with_few", lambda *about: about[-3:-1]),
        (partial(cells.of_score, 5, "auroc", 1.81, 200), "auroc interval", 400),
    ),
    "p-values of a grid are not corrected": (
        (cells, "compare_with_chance", _uncorrected),
        (partial(cells.of_grid, 50, "accuracy"), "p of the best cell, corrected | <= 0.05", 60),
    ),
    "log odds of twice the size": (
        (cells, "calibration_of", _too_sure),
        (partial(cells.of_curve, World(n=50)), "calibration slope", 12),
    ),
    "the threshold of the last token, for the highest score": (
        (cells, "rises_of", lambda running: rises_of([each[-1:] for each in running])),
        (partial(cells.of_conversations, 50), "realised FPR of 0.05", 60),
    ),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_off(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    replaced, found_by = PLANTED[fault]
    assert verdict_of(*found_by) != "off"
    monkeypatch.setattr(*replaced)
    assert verdict_of(*found_by) == "off"
