"""The page docs/what-each-number-is-worth.md, made from benchmarks/claims.json: a table for each claim.

Every cell is a measured value, its Monte Carlo error, and what `claims.verdict` says of it. The last column quotes what
the tool says in that setting; the sentences come from the functions that print them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from claims import CHANCE, FOLDS, OF_P, SIGNAL, kind_of, verdict
from claims_worlds import VALIDATION, World

from probekit.causal.results.view import LEAST_EFFECT, LEAST_FLIPS
from probekit.evaluation.results.report import FEW_FOLDED_ROWS
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
        few = ", and with so few rows hold the truth less often than 95%" if world.n < FEW_FOLDED_ROWS else ""
        return f'"Intervals ignore that folds share training rows{few}; no p-values."'
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
    units = round(VALIDATION * world.groups / world.n / (1 if world.mixed else 2))  # of those of the first class
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
    if "no least size" in setting:
        return "nothing: this is not the tool's rule"
    small = setting.startswith("an effect of 0.05,")
    return f'"it is below {LEAST_EFFECT:g}, and fewer than {LEAST_FLIPS:.0%} of answers flip"' if small else ""


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
        "directions should be called used at any layer. Directions that do something are called used at the share of "
        "layers in the third column. The last column is the coverage of the 95% interval of an effect.\n\n"
        "The least size (an effect of 0.1, or 10% of answers) is a choice of what matters, no guard against chance: "
        "without it, as few directions that do nothing are called used, since an effect must exceed every placebo and "
        "its corrected p be 0.05 or less. It matters where placebos hardly move the answer at all: there a variable "
        "that leaks a little would be called used (in the worlds whose truth is known such leaks reached 0.09). So "
        '"not shown to be used" does not say that an effect is 0.',
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

Results make claims: a 95% interval, a p-value, "used", a probability. Here each is tried in simulations whose truth is
known: what is promised, how often it holds, and what the tool says where it may not. Most worlds go through
`train_probes` itself, with six layers of made-up activations (400 training rows, {validation} of validation, as many of
test as is said), whose probes have a known true score. `python benchmarks/claims.py` measures the tables again; this
page is made from them.
"""
IN_SHORT = """**Quote as they are**, from 50 test rows on, for balanced classes and for numbers, where rows are
independent, or in 10 groups or more that the task names:

- the test score of the layer that validation selected (it is not optimistic), its interval, the band and the tied
  layers;
- the lead over the best baseline, and differences of runs;
- p-values, also those corrected over layers, positions and heads;
- "used": directions that do nothing are called so in 2% of runs of six layers;
- without groups, calibrated probabilities, and the rate of a threshold that validation chose.

**Approximate; the tool says so:**

- AUROC with few test rows of a class: with 10 of 200 its interval holds the truth in 90% of worlds, not 95%. With 2
  or 3 of 50 it holds it, but is so wide that it says little, and the interval of the lead does in 92%;
- 5 groups of test rows: 90% for accuracy and 92% for an effect of a causal run. The interval of an AUROC is too wide
  there;
- nested folds: their intervals are too narrow for small data, 81% with 50 rows in all, about 90% with 200, 95% with
  1,000;
- probabilities and thresholds that few groups of validation chose, on new groups: the probabilities are too sure, and
  a rate of 5% is 7% with 15 groups of negatives, 9% with 8 and 13% with 4. The interval that test gives for the rate
  holds; that of the true-positive rate holds in 89% of worlds with 20 groups of very unequal sizes.

**Do not quote:**

- the score of a layer that was picked on test: 0.02 too high with 200 rows and 0.05 with 50, for six layers;
- anything where rows depend on one another and the task does not name the groups: the interval of a score held the
  truth in 70% of worlds with 20 such groups, and 38% of best layers that know nothing had p <= 0.05;
- the smallest p-value of several label sets: each has its own, and nothing corrects them for one another. Multiply it
  by the number of label sets.

R2 leans the other way: with few test rows or groups it is too low on average, by 0.02 with 50 rows and by 0.07 with
20 groups, since they show too little of the spread of the targets."""
HOW_TO_READ = """**The tables.** After each value is its Monte Carlo error, then a verdict:

- *holds*: within three of these errors of what is promised;
- *cautious*: further off, on the safe side, such as an interval that is wider than it needs to be;
- *approximate*: further off on the unsafe side, by no more than half of the nominal error (5 points of a coverage of
  95% or, for p-values, 2.5 points of 5%);
- *off*: further than that.

n is the number of test rows. Groups share one label and half of the variance of the activations, unless their labels
are mixed; "groups not named" means that the task does not say which rows share a group. The headline is accuracy, AUROC
where 5% are positive, and R2 for numbers."""


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
        text = f"{value:z.{digits}f} ± {error:.{digits}f}"
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
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def page(records: Records) -> str:
    """The page."""
    parts = [LEAD.format(validation=VALIDATION).rstrip(), IN_SHORT, HOW_TO_READ]
    for claim in CLAIMS:
        parts.append(f"## {claim.title}\n\n{claim.text}\n\n{table(claim, records)}")
    return "\n\n".join(parts) + "\n"
