"""The page docs/what-each-number-is-worth.md, made from benchmarks/claims.json: a table for each claim.

Every cell is a measured value, its Monte Carlo error, and what `claims.verdict` says of it. The last column quotes what
the tool says in that setting; the sentences come from the functions that print them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from claims import CHANCE, FOLDS, OF_P, SIGNAL, kind_of, verdict
from claims_worlds import VALIDATION, World

from probekit.evaluation.scores.bootstrap import class_note, groups_note
from probekit.scoring.threshold import FEW_GROUPS

Records = Mapping[str, Any]
WORLDS = {str(world): world for world in [*SIGNAL, *FOLDS, *CHANCE]}
SHARES = ("share", "procedure")
LEAST_SHARE = 0.2  # of the worlds of a cell


@dataclass(frozen=True)
class Column:
    """Measures of which a cell has one, and how the page calls them."""

    title: str
    measures: Sequence[str]


@dataclass(frozen=True)
class Claim:
    """A table.

    Attributes:
        title: of the section.
        text: what is promised, and what is seen.
        cells: the beginning of the names of its cells.
        columns: in each, one measure.
        says: what the tool says, by the name of the cell.
    """

    title: str
    text: str
    cells: Sequence[str]
    columns: Sequence[Column]
    says: Callable[[str], str]


def _of_groups(setting: str) -> str:
    world = WORLDS.get(setting, World())
    if not world.named:
        return "nothing: it cannot know"
    if world.share != 0.5 and (note := class_note("auroc", round(world.share * world.n))):
        return f'"{note}"'
    if world.folds:
        return '"Intervals ignore that folds share training rows; no p-values."'
    groups = world.groups or _number_of_groups(setting)
    return f'"{note}"' if (note := groups_note(groups)) else ""


def _number_of_groups(setting: str) -> int | None:
    return next((int(part.split()[0]) for part in setting.split(", ") if part.endswith(" groups")), None)


def _of_selection(setting: str) -> str:
    return '"Selecting the layer on test would have picked ... and claimed ..."' if setting == str(World()) else ""


def _of_probabilities(setting: str) -> str:
    world = WORLDS.get(setting, World())
    if not world.groups or not world.named:
        return ""
    units = round(VALIDATION * world.groups / world.n)
    few = f'"in {units} groups ...; with so few, they tend to be too sure on new groups"'
    return few if units < FEW_GROUPS else ""


def _of_thresholds(setting: str) -> str:
    world = WORLDS.get(setting, World())
    if not world.groups or not world.named:
        return ""
    units = round(VALIDATION * world.groups / world.n / 2)
    return (
        f'"the others there are of {units} groups: on new groups the rate may be higher"' if units < FEW_GROUPS else ""
    )


def _of_chance(setting: str) -> str:
    if setting.startswith("n = 200") and setting == "n = 200":
        return "nothing: each label set has p-values of its own"
    world = WORLDS.get(setting, World())
    if not world.named:
        return "nothing: it cannot know"
    return '"permuted within groups or by complete groups"' if world.groups else ""


def _of_use(setting: str) -> str:
    if "one placebo" in setting:
        return '"its corrected p is 0.5", so never used'
    effect = next((word for word in ("0.05,", "0.1,") if setting.startswith(f"an effect of {word}")), "")
    return '"it is below 0.1, and fewer than 10% of answers flip"' if effect == "0.05," else ""


P_VALUES = {
    "one layer or cell": ("p of a layer", "p of a cell"),
    "the best, corrected": ("p of the best layer", "p of the best cell, corrected", "smallest p of 4 label sets"),
}
CLAIMS = [
    Claim(
        "The quoted score and its interval",
        "A 95% interval should hold the true score in 95% of worlds. The first column is the headline: accuracy, AUROC "
        "with 5% positive, R2 with numbers; with folds it is that of the procedure, whose true score is the mean over "
        "the worlds.",
        ("curve",),
        [
            Column("headline", ("quoted interval", "procedure interval")),
            Column("accuracy", ("accuracy interval",)),
            Column("AUROC", ("auroc interval",)),
            Column("F1", ("f1 interval",)),
        ],
        _of_groups,
    ),
    Claim(
        "Best minus the best baseline",
        "The interval of the lead should hold the true difference in 95% of worlds. In the last rows two probes have "
        "the same true score, as in a comparison of runs.",
        ("curve", "equals"),
        [Column("lead or difference", ("lead", "difference interval"))],
        _of_groups,
    ),
    Claim(
        "The band, and the layers tied with the best",
        "The band should hold the true scores of all six layers at once in 95% of worlds, and the set of tied layers "
        "the truly best one. The last number is the mean size of that set.",
        ("curve",),
        [
            Column("band", ("band",)),
            Column("tied set holds the best", ("tied set",)),
            Column("layers in it", ("tied layers",)),
        ],
        _of_groups,
    ),
    Claim(
        "p-values",
        "Of activations that know nothing, at most 5% of p-values should be 0.05 or less, and at most 1% 0.01 or less. "
        "The excess is the largest height of their distribution above the uniform one (Kolmogorov and Smirnov), whose "
        "error is scaled so that three of them are as rare as elsewhere.",
        ("chance", "grid", "label sets"),
        [
            Column(f"{what}: {of}", tuple(f"{name} | {of}" for name in names))
            for what, names in P_VALUES.items()
            for of in OF_P
        ],
        _of_chance,
    ),
    Claim(
        "Selection on validation is honest, selection on test is not",
        "The mean of the quoted test score minus the true score of the same probe should be 0. The second column is "
        "what the mean would be if test chose the layer, of six.",
        ("curve",),
        [
            Column("selected on validation", ("optimism",)),
            Column("selected on test", ("optimism, selected on test",)),
        ],
        _of_selection,
    ),
    Claim(
        '"Used" in causal runs',
        "Simulated effects of six layers; the label's direction is drawn like the placebos (20 random, 20 from the "
        "covariance, one of shuffled labels), whose effects spread by so much of the full exchange. At most 5% of such "
        "directions should be called used at any layer. Effects of directions that do something are found in the share "
        "of layers that the third column gives. The last column is the coverage of the 95% interval of an effect.",
        ("used", "effect"),
        [
            Column("called used at any layer", ("used at any layer",)),
            Column("corrected p <= 0.05", ("p of the best layer, corrected | <= 0.05",)),
            Column("found used", ("found used",)),
            Column("effect interval", ("effect interval",)),
        ],
        lambda setting: _of_use(setting) or _of_groups(setting),
    ),
    Claim(
        "Calibrated probabilities",
        "A slope of 1 is right: the true log odds rise by as much as those that are said; below 1 they are too sure "
        "(median over the worlds). The error is the mean distance of a probability from the true one, of calibrated "
        "probabilities and of the probe's own. The last column is the coverage of the 95% intervals of the reliability "
        "diagram.",
        ("curve",),
        [
            Column("slope, calibrated", ("calibration slope",)),
            Column("error, calibrated", ("calibration error",)),
            Column("error, own", ("own calibration error",)),
            Column("reliability intervals", ("reliability intervals",)),
        ],
        _of_probabilities,
    ),
    Claim(
        "Thresholds for a false-positive rate",
        f"A threshold is chosen on {VALIDATION} validation rows; the first columns are the mean rate that it has on "
        "new rows (of new groups), which should be at most the one asked for. The others are the coverage of the 95% "
        "intervals that test gives. Conversations are flagged by their highest running score.",
        ("curve", "conversations"),
        [
            *(Column(f"rate for {rate}", (f"realised FPR of {rate}",)) for rate in ("0.01", "0.05")),
            *(Column(f"FPR interval, {rate}", (f"FPR interval at {rate}",)) for rate in ("0.01", "0.05")),
            *(Column(f"TPR interval, {rate}", (f"TPR interval at {rate}",)) for rate in ("0.01", "0.05")),
        ],
        _of_thresholds,
    ),
]
LEAD = """# What each number is worth

"""


def shown(measure: str, entry: Mapping[str, float]) -> str:
    """95.3 ± 1.5 holds."""
    if not entry["n"]:
        return "none"
    kind = kind_of(measure)
    value, error = entry["value"], entry["error"]
    if kind.of in SHARES:
        text = f"{100 * value:.1f}% ± {100 * error:.1f}"
    else:
        digits = 1 if measure == "tied layers" else 2 if "slope" in measure else 3
        text = f"{value:.{digits}f} ± {error:.{digits}f}"
    if kind.nominal is None:
        return text
    return f"{text} {verdict(value, kind.nominal, error, kind.unsafe, kind.tolerance)}"


def _is_known(record: Mapping[str, Any], measure: str) -> bool:
    """Whether many of the worlds of a cell have the measure: a few may have another headline."""
    return record["measures"].get(measure, {"n": -1})["n"] >= LEAST_SHARE * record["worlds"]


def rows_of(claim: Claim, records: Records) -> list[list[str]]:
    """The rows of a claim's table."""
    found = []
    for name, record in records.items():
        what, _, setting = name.partition(": ")
        if what not in claim.cells:
            continue
        measures: Any = record["measures"]
        values = [
            next((shown(each, measures[each]) for each in column.measures if _is_known(record, each)), "")
            for column in claim.columns
        ]
        if any(values):
            prefix = {"equals": "equal probes: ", "grid": "grid: ", "label sets": "4 label sets: "}.get(what, "")
            prefix = {"effect": "interval: ", "conversations": "conversations: "}.get(what, prefix)
            found.append([prefix + setting, *values, claim.says(setting)])
    return found


def table(claim: Claim, records: Records) -> str:
    heads = ["setting", *(column.title for column in claim.columns), "what the tool then says"]
    rows = rows_of(claim, records)
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cells)} |".replace("|  |", "| |") for cells in lines)


def page(records: Records) -> str:
    """The page."""
    parts = [LEAD.rstrip()]
    for claim in CLAIMS:
        parts.append(f"## {claim.title}\n\n{claim.text}\n\n{table(claim, records)}")
    return "\n\n".join(parts) + "\n"
