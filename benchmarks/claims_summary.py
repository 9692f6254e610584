"""What the page says in short: each statement is in the list of its verdict, with the figures of the records."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from claims import FEW_OF_A_CLASS, Entry, ends_of, few_of_a_class, kind_of, verdict
from claims_page import BALANCED, LIKE_PLACEBOS, NAMED, SHARES, TWO_CLASSES, VACUOUS, WORLDS, known, of, together

Records = Mapping[str, Any]
ENOUGH = 500  # worlds of a cell that should show it by itself
HOLDS, UNSHOWN, OFF, EMPTY = "holds", "not shown", "off", "says nothing"
TITLES = {
    HOLDS: "**Shown to hold.** Quote as they are, where rows are independent or their groups are named:",
    UNSHOWN: "**Not shown.** Too few worlds, or too near the tolerance, to say that it holds or that it does not:",
    EMPTY: f"**Says nothing.** In one of the settings the intervals have a median width of {VACUOUS:g} or more:",
    OFF: "**Off.** Do not quote as they are; beyond the tolerance in all settings together, or in one of them:",
}


@dataclass(frozen=True)
class Statement:
    """A sentence of the summary.

    Attributes:
        text: what is claimed.
        cells: names of the cells that it rests on.
        measures: of which each cell has one. The verdict is that of all worlds together, save where a cell is off or
            says nothing, or has `ENOUGH` worlds and does not show it.
        then: what to do, or what the tool says, where it does not hold.
    """

    text: str
    cells: Sequence[str]
    measures: Sequence[str]
    then: str = ""


QUOTED, TIED, BAND, LEAD = ("quoted interval",), ("tied set",), ("band",), ("lead",)
DIFFERENCE = ("difference interval",)
ONE_P, BEST_P = ("p of a layer", "p of a cell"), ("p of the best layer", "p of the best cell, corrected")
N = "n = 200, 2 classes"
RARE = {n: f"n = {n}, 2 classes, 5% positive" for n in ("50", "200", "1,000")}
UNNAMED = f"{N}, 20 groups, groups not named"
EVEN = [each for each in NAMED if "numbers" not in each]
CLASSES = [each for each in BALANCED if "class" in each]
GRIDS = [f"grid: {metric}, n = {n}" for metric in ("accuracy", "auroc") for n in (50, 200)]
ROWS = ("n = 50", "n = 200", *(f"n = 200, {groups} groups" for groups in (5, 10, 20, 100)))
PROBES = [f"difference: {metric}, {rows}" for metric in ("accuracy", "auroc") for rows in ROWS if " 5 g" not in rows]
MANY, TEN = [each for each in ROWS if " 5 g" not in each and " 10 g" not in each], ["n = 200, 10 groups"]
NO_SIGNAL = [str(world) for world in WORLDS.values() if world.strengths == "none"]


def _at(measures: Sequence[str], share: str) -> list[str]:
    return [f"{measure} | <= {share}" for measure in measures]


FEW_SAID = "The tool says how many there are."
STATEMENTS = [
    Statement(
        "the interval of the quoted score, balanced classes or numbers, no groups", of("curve", BALANCED), QUOTED
    ),
    Statement("the interval of the quoted score, 20 named groups or more", of("curve", NAMED), QUOTED),
    Statement("the interval of the quoted score, 10 named groups", of("curve", [f"{N}, 10 groups"]), QUOTED, FEW_SAID),
    Statement("the interval of the quoted score, 5 named groups", of("curve", [f"{N}, 5 groups"]), QUOTED, FEW_SAID),
    *(
        Statement(f"the interval of an AUROC with 5% positive of {n} test rows", of("curve", [world]), QUOTED, FEW_SAID)
        for n, world in RARE.items()
    ),
    *(
        Statement(
            f"the interval of {'an AUROC of 0.9 to 0.97' if metric == 'auroc' else 'a balanced accuracy of 0.87'}, "
            f"{positives} positives of 200",
            [few_of_a_class(name, apart, positives) for name, apart in FEW_OF_A_CLASS if name == metric],
            (f"{metric} interval",),
            FEW_SAID if positives < 20 else "",
        )
        for metric in ("auroc", "balanced_accuracy")
        for positives in (3, 5, 10, 20, 50)
    ),
    Statement("the band, balanced classes or numbers, no groups", of("curve", BALANCED), BAND),
    Statement("the band, 20 named groups or more", of("curve", NAMED), BAND),
    Statement("the band of AUROCs with 5% positive", of("curve", [*RARE.values()]), BAND),
    Statement("the tied set has the best layer, no groups", of("curve", BALANCED), TIED),
    Statement("the tied set has the best layer, 20 named groups or more", of("curve", NAMED), TIED),
    Statement("the lead over the best baseline, balanced classes or numbers, no groups", of("lead", BALANCED), LEAD),
    Statement("the lead over the best baseline, classes, 20 named groups or more", of("lead", EVEN), LEAD),
    Statement(
        "the lead of an R2 over the best baseline, 20 named groups", of("lead", sorted({*NAMED} - {*EVEN})), LEAD
    ),
    Statement("the lead in AUROC, 5% positive", of("lead", [*RARE.values()]), LEAD, FEW_SAID),
    Statement("the lead over the best baseline, 5 named groups", of("lead", [f"{N}, 5 groups"]), LEAD, FEW_SAID),
    Statement("the difference of two equal probes or runs", [f"{each}, equal" for each in PROBES], DIFFERENCE),
    *(
        Statement(
            f"the difference in {called} of two probes that are wrong on nearly the same rows, {groups}",
            [f"difference: {metric}, {each}, nearly the same, 0.02 ahead" for each in rows],
            DIFFERENCE,
            FEW_SAID if rows == TEN else "",
        )
        for metric, called in (("accuracy", "accuracy"), ("auroc", "AUROC"))
        for groups, rows in (("no groups or 20 and more", MANY), ("10 groups", TEN))
    ),
    Statement(
        "the smallest corrected p-value of four equal runs is 0.05 or less",
        [f"runs: {metric}, n = {n}" for metric in ("accuracy", "auroc") for n in (50, 200)],
        _at(["p of four runs"], "0.05"),
    ),
    *(
        Statement(f"p-values {what} are {at} or less", names, _at(measures, at))
        for what, names, measures in (
            (
                "of one layer (rows independent, or groups named)",
                of("chance", [e for e in NO_SIGNAL if "not named" not in e]),
                ONE_P,
            ),
            (
                "of the best of six layers, corrected (rows independent, or groups named),",
                of("chance", [e for e in NO_SIGNAL if "not named" not in e]),
                BEST_P,
            ),
            ("of one cell of a grid", GRIDS, ONE_P),
            ("of the best of 48 cells of a grid, corrected,", GRIDS, BEST_P),
        )
        for at in ("0.05", "0.01")
    ),
    Statement(
        '"used", of directions that are like the placebos, at any of six layers',
        of("used", LIKE_PLACEBOS),
        ("used at any layer",),
    ),
    Statement(
        "the interval of an effect, rows or 10 groups or more",
        [f"effect: {e}" for e in ROWS if " 5 g" not in e],
        ("effect interval",),
    ),
    Statement("the interval of an effect, 5 groups", ["effect: n = 200, 5 groups"], ("effect interval",), FEW_SAID),
    Statement(
        "the test score of the layer that validation selected, minus the truth", of("curve", CLASSES), ("optimism",)
    ),
    Statement(
        "the test R2 of the layer that validation selected, minus the truth",
        of("curve", [e for e in BALANCED if "numbers" in e]),
        ("optimism",),
    ),
    Statement(
        "the score of a layer that was picked on test, minus the truth, no groups",
        of("curve", CLASSES),
        ("optimism, selected on test",),
        "Quote the layer that validation selected.",
    ),
    Statement(
        "the slope of calibrated log odds, balanced, no groups", of("curve", TWO_CLASSES), ("calibration slope",)
    ),
    Statement(
        "the slope of calibrated log odds, 5% positive, no groups",
        of("curve", [*RARE.values()]),
        ("calibration slope",),
    ),
    *(
        Statement(
            f"the slope of calibrated log odds on new groups, with {round(1.5 * groups)} groups of validation",
            of("curve", [f"{N}, {groups} groups"]),
            ("calibration slope",),
            "The tool says that with few groups probabilities may be too sure." if groups < 100 else "",
        )
        for groups in (5, 10, 20, 100)
    ),
    *(
        Statement(
            f"the false-positive rate on new rows of a threshold for {rate}, no groups",
            of("curve", [*TWO_CLASSES, *RARE.values()]),
            (f"realised FPR of {rate}",),
        )
        for rate in ("0.01", "0.05")
    ),
    *(
        Statement(
            f"the false-positive rate on new groups for {rate}, with {round(1.5 * groups)} groups of validation",
            of("curve", [f"{N}, {groups} groups"]),
            (f"realised FPR of {rate}",),
            "The tool says how many groups of negatives chose it." if groups < 100 else "",
        )
        for groups in (5, 10, 20, 100)
        for rate in ("0.01", "0.05")
    ),
    Statement(
        "the test interval of the false-positive rate, threshold for 0.05, 20 named groups or more or none",
        of("curve", [*TWO_CLASSES, *RARE.values(), *EVEN]),
        ("FPR interval at 0.05",),
    ),
    Statement(
        "the test interval of the true-positive rate at that threshold",
        of("curve", [*TWO_CLASSES, *RARE.values(), *EVEN]),
        ("TPR interval at 0.05",),
    ),
    *(
        Statement(
            f"the interval of nested folds, {n} rows in all, holds the procedure's mean estimate",
            of("curve", [f"n = {n}, 2 classes, 5 nested folds"]),
            ("procedure interval",),
            "" if n == "1,000" else "The tool says that it is too narrow.",
        )
        for n in ("50", "200", "1,000")
    ),
    Statement(
        "the interval of the quoted score, 20 groups that the task does not name",
        of("curve", [UNNAMED]),
        QUOTED,
        "Name the groups.",
    ),
    Statement(
        "p-values of the best layer, 20 groups that the task does not name, are 0.05 or less",
        of("chance", [UNNAMED]),
        _at(BEST_P, "0.05"),
        "Name the groups.",
    ),
    Statement(
        "the smallest p-value of four label sets is 0.05 or less",
        ["label sets: n = 200"],
        ["smallest p of 4 label sets | <= 0.05"],
        "Multiply it by the number of label sets.",
    ),
]


def judged(statement: Statement, records: Records) -> tuple[str, str, list[Entry]] | None:
    """The list of a statement, its measure, and the entries of all worlds together and of each cell."""
    cells = [name for name in statement.cells if name in records]
    whole = together(records, cells, statement.measures)
    if whole is None or not whole[1]["n"]:
        return None
    name, entry = whole
    parts, widths = [], []
    for cell in cells:
        if (own := known(records[cell], statement.measures)) is not None:
            measures = records[cell]["measures"]
            parts.append(measures[own])
            widths.append(measures.get(f"width of {own}", {"n": 0}))
    found = [verdict(kind_of(name), each) for each in (entry, *parts)]
    vacuous = any(each["n"] and each["value"] >= VACUOUS for each in widths)
    unsure = [each["n"] >= ENOUGH and says == "not shown" for each, says in zip((entry, *parts), found, strict=True)]
    is_unshown = found[0] == "not shown" or any(unsure)
    place = OFF if "off" in found else EMPTY if vacuous else UNSHOWN if is_unshown else HOLDS
    return place, name, [entry, *parts]


def sentence(statement: Statement, measure: str, entries: Sequence[Entry]) -> str:
    kind = kind_of(measure)
    digits = 1 if kind.of in SHARES else 2 if "slope" in measure else 3

    def text(value: float) -> str:
        return f"{100 * value:.{digits}f}%" if kind.of in SHARES else f"{value:z.{digits}f}"

    whole, parts = entries[0], entries[1:]
    low, high = ends_of(kind, whole)
    assert kind.nominal is not None
    values = [each["value"] for each in parts if each["n"]]
    said = f"promised {text(kind.nominal)}, measured {text(whole['value'])} [{text(low)}, {text(high)}]"
    said += f" in {whole['n']:,} worlds"
    if len(values) > 1:
        said += f" ({text(min(values))} to {text(max(values))} over {len(values)} settings)"
    return f"- {statement.text}: {said}.{f' {statement.then}' if statement.then else ''}"


def in_short(records: Records) -> str:
    """The three lists."""
    lists: dict[str, list[str]] = {title: [] for title in TITLES}
    for statement in STATEMENTS:
        if (found := judged(statement, records)) is not None:
            place, measure, entries = found
            advised = statement if place != HOLDS else Statement(statement.text, (), ())
            lists[place].append(sentence(advised, measure, entries))
    parts = [f"{TITLES[place]}\n\n" + "\n".join(lines) for place, lines in lists.items() if lines]
    return "\n\n".join(parts)
