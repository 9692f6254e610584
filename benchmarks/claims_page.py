"""The page docs/what-each-number-is-worth.md, made from benchmarks/claims.json: a table for each claim.

Every cell is a measured value, the 95% interval of the simulation, and what `claims.verdict` says of it. The last
column quotes what the tool says in that setting; the sentences come from the functions that print them. The summary
before the tables is in claims_summary.py.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from claims import CHANCE, FOLDS, OF_P, SIGNAL, Entry, ends_of, kind_of, pooled, verdict
from claims_worlds import TRAIN, VALIDATION, D, World

from probekit.causal.results.view import LEAST_EFFECT, LEAST_FLIPS
from probekit.evaluation.results.report import FEW_FOLDED_ROWS
from probekit.evaluation.scores.bootstrap import class_note, groups_note
from probekit.scoring.threshold import FEW_VALIDATION_GROUPS

Records = Mapping[str, Any]
WORLDS = {str(world): world for world in [*SIGNAL, *FOLDS, *CHANCE]}
SHARES = ("share", "procedure")
LEAST_SHARE = 0.2  # of the worlds of a cell
VACUOUS = 0.8  # median width from which an interval of a share says nothing
BALANCED = [str(w) for w in SIGNAL if w.groups is None and w.share == 0.5 and w.strengths == "usual"]
TWO_CLASSES = [setting for setting in BALANCED if "2 classes" in setting]
RARE = [str(world) for world in SIGNAL if world.share != 0.5]
NAMED = [str(w) for w in SIGNAL if (w.groups or 0) >= 20 and w.named]  # 20 groups or more


def of(kind: str, settings: Sequence[str]) -> list[str]:
    return [f"{kind}: {setting}" for setting in settings]


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
        says: what the tool says, by the setting of the cell.
        pools: title of a last row -> names of the cells that it puts together.
    """

    title: str
    text: str
    cells: Sequence[str]
    columns: Sequence[Column]
    says: Callable[[str], str]
    pools: Mapping[str, Sequence[str]] = field(default_factory=dict)


def _of_groups(setting: str) -> str:
    world = WORLDS.get(setting, World())
    if not world.named:
        return "nothing: it cannot know"
    if world.share != 0.5 and (note := class_note("auroc", round(world.share * world.n))):
        return f'"{note}"'
    if world.folds:
        few = ", and with so few rows hold the truth less often than 95%" if world.n < FEW_FOLDED_ROWS else ""
        return f'"Intervals ignore that folds share training rows{few}; no p-values."'
    if "positives of" in setting and (note := class_note("auroc", int(setting.split()[-4]))):
        return f'"{note}"'
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
    few = f'"in {units} groups ...; with so few, they may be too sure on new groups"'
    return few if units < FEW_VALIDATION_GROUPS else ""


def _of_thresholds(setting: str) -> str:
    world = WORLDS.get(setting, World())
    if not world.groups or not world.named:
        return ""
    units = round(VALIDATION * world.groups / world.n / (1 if world.mixed else 2))  # of those of the first class
    return (
        f'"chosen on negatives from {units} groups; on new groups the rate may be higher"'
        if units < FEW_VALIDATION_GROUPS
        else ""
    )


def _of_chance(setting: str) -> str:
    if setting == "n = 200":
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
LIKE_PLACEBOS = [
    "placebos spread by 0.02",
    "placebos spread by 0.1",
    "placebos spread by 0.3",
    "placebos spread by 0.1, heavy tails",
    "placebos spread by 0.1, n = 50",
]
WITHOUT_GROUPS = "pooled: balanced or numbers, no groups"
WITH_GROUPS = "pooled: 20 groups or more, named"
CLAIMS = [
    Claim(
        "The quoted score and its interval",
        "A 95% interval should hold the true score of the probe that was fitted in 95% of worlds. The headline is "
        "accuracy, AUROC with 5% positive, and R2 with numbers; its median width follows. An accuracy of worlds with "
        "5% positive is held in nearly all, since these have the very same share in test. With folds no true score is "
        "known: the column says how often the interval holds the mean of what the procedure estimates, so that a bias "
        "of the procedure would not be seen. The rows of few positives are drawn as scores.",
        ("curve", "score"),
        [
            Column("headline", ("quoted interval",)),
            Column("median width", ("width of quoted interval",)),
            Column("accuracy", ("accuracy interval",)),
            Column("AUROC", ("auroc interval",)),
            Column("width of AUROC", ("width of auroc interval",)),
            Column("F1", ("f1 interval",)),
            Column("balanced accuracy", ("balanced_accuracy interval",)),
            Column("its width", ("width of balanced_accuracy interval",)),
            Column("folds: holds their mean", ("procedure interval",)),
        ],
        _of_groups,
        {WITHOUT_GROUPS: of("curve", BALANCED), WITH_GROUPS: of("curve", NAMED)},
    ),
    Claim(
        "Best minus the best baseline, and differences of runs",
        "The interval should hold the true difference in 95% of worlds. The first rows are leads of curves over their "
        "baseline. The others are two probes, one with an accuracy of 0.85, whose scores are drawn: either equal, or "
        "the other 0.02 ahead and wrong on nearly the same rows. Lead and `compare` use one function for them. Its "
        "p-values are those of equal probes. In the last row four equal runs are compared, and the smallest of the six "
        "p-values is corrected as `compare` does (Holm).",
        ("lead", "difference", "runs"),
        [
            Column("lead or difference", ("lead", "difference interval")),
            Column("median width", ("width of lead", "width of difference interval")),
            *(Column(f"p {at}", (f"p of a difference | {at}", f"p of four runs | {at}")) for at in OF_P),
        ],
        _of_groups,
        {WITHOUT_GROUPS: of("lead", BALANCED), WITH_GROUPS: of("lead", NAMED)},
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
        {WITHOUT_GROUPS: of("curve", BALANCED), WITH_GROUPS: of("curve", NAMED)},
    ),
    Claim(
        "p-values",
        "Of activations that know nothing, at most 5% of p-values should be 0.05 or less, and at most 1% 0.01 or less.",
        ("chance", "grid", "label sets"),
        [
            Column(f"{what}: {of}", tuple(f"{name} | {of}" for name in names))
            for what, names in P_VALUES.items()
            for of in OF_P
        ],
        _of_chance,
        {
            "pooled: curves without groups": of("chance", [str(w) for w in CHANCE if w.groups is None]),
            "pooled: curves with groups, named": of("chance", [str(w) for w in CHANCE if w.groups and w.named]),
            "pooled: grids": [f"grid: {metric}, n = {n}" for metric in ("accuracy", "auroc") for n in (50, 200)],
        },
    ),
    Claim(
        "Selection on validation is honest, selection on test is not",
        "The mean of the quoted test score minus the true score of the same probe should be 0, to within 0.005. The "
        "second column is what the mean would be if test chose the layer, of six.",
        ("curve",),
        [
            Column("selected on validation", ("optimism",)),
            Column("selected on test", ("optimism, selected on test",)),
        ],
        _of_selection,
        {
            "pooled: classes, balanced, no groups": of("curve", [each for each in BALANCED if "class" in each]),
            WITH_GROUPS: of("curve", [each for each in NAMED if "class" in each]),
        },
    ),
    Claim(
        '"Used" in causal runs: the level of the test',
        "Simulated effects of six layers; the label's direction is drawn like the placebos (20 random, 20 from the "
        "covariance, one of shuffled labels), whose effects spread by so much of the full exchange. At most 5% of such "
        "directions should be called used at any layer: for directions like the placebos that is nearly so by "
        "construction, and the tables check that it is. A variable that is correlated with the one that the model uses "
        'is not like a placebo, and is not simulated; nor are "read", "needed", "neither" and "carries '
        'it". [Models whose weights were set by hand](known-answers.md) try those. Directions that do something are '
        "called used at the share of layers in the third column. The last column is the coverage of the 95% interval "
        "of an effect.\n\n"
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
        {"pooled: directions like the placebos": of("used", LIKE_PLACEBOS)},
    ),
    Claim(
        "Calibrated probabilities",
        f"They are chosen on {VALIDATION} validation rows, so that rows of this table that differ in n alone repeat "
        "one setting, and are pooled below. A slope of 1 is right, to within 0.1: the true log odds rise by as much as "
        "those that are said; below 1 they are too sure (median over the worlds). The error is the mean distance of a "
        "probability from the true one, of calibrated probabilities and of the probe's own. The last column is the "
        "coverage of the 95% intervals of the reliability diagram.",
        ("curve",),
        [
            Column("slope, calibrated", ("calibration slope",)),
            Column("error, calibrated", ("calibration error",)),
            Column("error, own", ("own calibration error",)),
            Column("reliability intervals", ("reliability intervals",)),
        ],
        _of_probabilities,
        {
            "pooled: balanced, no groups": of("curve", TWO_CLASSES),
            "pooled: 5% positive, no groups": of("curve", RARE),
        },
    ),
    Claim(
        "Thresholds for a false-positive rate",
        f"A threshold is chosen on {VALIDATION} validation rows, so that rows that differ in n alone repeat one "
        "setting in the first two columns. These are the mean rate on new rows (of new groups), which should be at "
        "most the one asked for, and holds up to half more. The others are the coverage of the 95% intervals that test "
        "gives. Conversations are flagged by their highest running score.",
        ("curve", "conversations"),
        [
            *(Column(f"rate for {rate}", (f"realised FPR of {rate}",)) for rate in ("0.01", "0.05")),
            *(Column(f"FPR interval, {rate}", (f"FPR interval at {rate}",)) for rate in ("0.01", "0.05")),
            *(Column(f"TPR interval, {rate}", (f"TPR interval at {rate}",)) for rate in ("0.01", "0.05")),
        ],
        _of_thresholds,
        {
            "pooled: balanced, no groups": of("curve", TWO_CLASSES),
            "pooled: 5% positive, no groups": of("curve", RARE),
        },
    ),
]
LEAD = """# What each number is worth

Results make claims: a 95% interval, a p-value, "used", a probability. Here each is tried in simulations whose truth is
known: what is promised, how often it holds, and what the tool says where it may not.

**What was simulated.** Curves go through `train_probes` itself: six layers of made-up activations, {d} wide, with
{train} training rows, {validation} of validation, and as many of test as is said. Noise is normal with unit variance,
classes differ by their means along a line, and rows of a group share half of the variance. The true score of every
fitted probe is then known. Differences of probes, grids, effects and conversations are drawn as scores, without
activations.

**What was not.** Activations that are wider than there are training rows, as those of a language model are; noise that
is not normal, or classes that differ by more than their means; more or fewer rows of validation; causal runs of a
variable that is correlated with the one that the model uses. For the last, see
[models whose weights were set by hand](known-answers.md). An interval is that of the probe that was fitted, on rows
like those of test: another split gives another probe with another score, which no interval here counts.

`python benchmarks/claims.py` measures the tables again; this page, its summary and its figures are made from them.
"""
HOW_TO_READ = """**The tables.** After each value is the 95% interval of the simulation (Wilson's for a share), then a
verdict:

- *holds*: all of that interval is within the tolerance, which is half of the promised error: a coverage of 92.5% or
  more for 95%, up to 7.5% of p-values, "used" or a false-positive rate of 5%, and up to 1.5% for a false-positive rate
  of 1% (2% for p-values of 0.01);
- *cautious*: holds, and is further off than that on the safe side, such as an interval that is wider than it needs to
  be;
- *not shown*: the interval of the simulation has values within the tolerance and others beyond it. The worlds are too
  few to tell;
- *off*: none of it is within the tolerance;
- *says nothing*: the intervals have a median width of 0.8 or more, so that holding the truth is worth nothing.

n is the number of test rows. Groups share one label, unless their labels are mixed; "groups not named" means that the
task does not say which rows share a group. A number of worlds after a value is of those that have it, where not all
have. Pooled rows put the worlds of several settings together. A statement of the summary holds where all its worlds
together show it, no setting is off, and each setting of 500 worlds or more shows it by itself."""


PREFIXES = {
    "difference": "two probes: ",
    "runs": "four equal runs: ",
    "grid": "grid: ",
    "label sets": "4 label sets: ",
    "effect": "interval: ",
    "conversations": "conversations: ",
}


def shown(measure: str, entry: Entry, wide: Entry | None = None) -> str:
    """95.3% [94.1, 96.5] holds.

    Args:
        measure: its name.
        entry: what was measured.
        wide: the median width of the interval, if it is one.
    """
    if not entry["n"]:
        return "none"
    kind, (low, high) = kind_of(measure), ends_of(kind_of(measure), entry)
    if kind.of in SHARES:
        text = f"{100 * entry['value']:.1f}% [{100 * low:.1f}, {100 * high:.1f}]"
    elif measure.startswith("width"):
        return f"{entry['value']:.2f}"
    else:
        digits = 1 if measure == "tied layers" else 2 if "slope" in measure else 3
        text = f"{entry['value']:z.{digits}f} [{low:z.{digits}f}, {high:z.{digits}f}]"
    if kind.nominal is None:
        return text
    if wide and wide["n"] and wide["value"] >= VACUOUS:
        return f"{text} says nothing"
    return f"{text} {verdict(kind, entry)}"


def known(record: Mapping[str, Any], measures: Sequence[str]) -> str | None:
    """The first of the measures that many of the worlds of a cell have: a few may have another headline."""
    for each in measures:
        if record["measures"].get(each, {"n": -1})["n"] >= LEAST_SHARE * record["worlds"]:
            return each
    return None


def _cell(record: Mapping[str, Any], column: Column) -> str:
    measures: Any = record["measures"]
    if (name := known(record, column.measures)) is None:
        return ""
    few = measures[name]["n"] < 0.95 * record["worlds"]
    share = f" ({measures[name]['n']:,} worlds)" if few and measures[name]["n"] and "width" not in name else ""
    return shown(name, measures[name], measures.get(f"width of {name}")) + share


def together(records: Records, names: Sequence[str], measures: Sequence[str]) -> tuple[str, Entry] | None:
    """The name and the entry of a measure over several cells; None where none has it."""
    there = [records[name] for name in names if name in records]
    found = [(name, record["measures"][name]) for record in there if (name := known(record, measures))]
    return (found[0][0], pooled([entry for _, entry in found])) if found else None


def rows_of(claim: Claim, records: Records) -> list[list[str]]:
    """The rows of a claim's table."""
    found = []
    for name, record in records.items():
        what, _, setting = name.partition(": ")
        if what in claim.cells and any(values := [_cell(record, column) for column in claim.columns]):
            setting = PREFIXES.get(what, "") + setting
            found.append([setting, f"{record['worlds']:,}", *values, claim.says(name.partition(": ")[2])])
    for title, names in claim.pools.items():
        both = [together(records, names, each.measures) for each in claim.columns]
        values = [shown(*each) if each and not each[0].startswith(("width", "tied layers")) else "" for each in both]
        if any(values):
            n = max(each[1]["n"] for each in both if each)
            found.append([f"**{title}**", f"{n:,}", *values, ""])
    return found


def table(claim: Claim, records: Records) -> str:
    heads = ["setting", "worlds", *(column.title for column in claim.columns), "what the tool says"]
    rows = rows_of(claim, records)
    # a column that no cell has is left out
    kept = [i for i in range(len(heads)) if i == len(heads) - 1 or any(row[i] for row in rows)]
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cells[i] for i in kept)} |" for cells in lines)


def page(records: Records) -> str:
    """The page."""
    from claims_summary import in_short  # which asks for the tables' words

    parts = [LEAD.format(validation=VALIDATION, train=TRAIN, d=D).rstrip(), in_short(records), HOW_TO_READ]
    for claim in CLAIMS:
        parts.append(f"## {claim.title}\n\n{claim.text}\n\n{table(claim, records)}")
    return "\n\n".join(parts) + "\n"
