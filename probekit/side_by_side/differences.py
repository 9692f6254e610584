"""The difference of two runs: on the same test rows where there are any, else of their two estimates.

On the same rows the difference is paired, as the lead over a baseline is (`lead.tested_difference`).

Without common rows the two intervals are combined as those of independent estimates (Newcombe 1998, Zou and Donner
2008). P-values are corrected over all differences of a comparison by Holm's method (1979).

Runs that differ in their seeds alone are one: the mean of their estimates. The interval of a difference between two
sets of seeds is Welch's (1947): seeds are the sample, since training with another seed gives another model or another
split, whatever the number of test rows.

Axes: N rows, S resamples.
"""

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy.special import stdtrit

from probekit.evaluation.compare.lead import independent_difference, tested_difference
from probekit.evaluation.scores.bootstrap import LEVEL, Bootstrap, class_note, groups_note
from probekit.evaluation.scores.metrics import Predictions
from probekit.evaluation.scores.score import value_of
from probekit.side_by_side.data import (
    BOOTSTRAP,
    INDEPENDENT,
    MCNEMAR,
    PAIRED,
    UNPAIRED,
    ComparedRun,
    RunDifference,
    SeedGroup,
)
from probekit.side_by_side.rows import RunRows, in_common, joint_groups, rows_digest, some_rows

# "pythia-160m-seed3", "multiberts-seed_3", "tiny-random7": models of one recipe and other random numbers; the 7B of
# "Seed-7B" is a size
_SEED = re.compile(r"(?:[-_]?seed[-_]?|(?<=random))\d+(?![a-z0-9.])", re.IGNORECASE)
_OF_SEEDS = ("seed", "model", "weights", "rows")  # the facts that another seed changes
_UNNAMED = ("weights", "examples")  # facts that no reader knows by their value


def without_seed(model: str) -> str:
    """The name of a model without the number of its seed."""
    return _SEED.sub("", model) or model


def seed_groups(runs: Sequence[ComparedRun]) -> list[SeedGroup]:
    """The sets of runs with equal settings; none where every run has settings of its own.

    Runs without an estimate are in no set.
    """
    members = _members(runs)
    if all(len(numbers) == 1 for numbers in members):
        return []
    settings = [dict(_settings(runs[numbers[0]])) for numbers in members]
    names = _names(settings, [runs[numbers[0]].name if len(numbers) == 1 else "" for numbers in members])
    groups: list[SeedGroup] = []
    for numbers, name in zip(members, names, strict=True):
        values = [_estimate(runs[number]) for number in numbers]
        mean, spread = float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else None
        if not groups:
            groups.append(SeedGroup(name, numbers, mean, spread))
            continue
        first = [_estimate(runs[number]) for number in groups[0].runs]
        groups.append(SeedGroup(name, numbers, mean, spread, mean - groups[0].mean, _welch(values, first)))
    return groups


def _members(runs: Sequence[ComparedRun]) -> list[list[int]]:
    """The numbers of the runs in each set, in the order of the first of each.

    Two runs with equal settings and equal seeds differ in something that the results do not record, so a set that has
    them is no set of seeds: each of its runs is a set of its own.
    """
    found: dict[tuple[tuple[str, str], ...], list[int]] = {}
    for number, run in enumerate(runs):
        if run.estimate is not None:
            found.setdefault(_settings(run), []).append(number)
    seeds = [tuple(run.facts.get(key, "") for key in _OF_SEEDS) for run in runs]
    sets = [[each] if len({seeds[i] for i in each}) == len(each) else [[i] for i in each] for each in found.values()]
    return sorted(itertools.chain(*sets))


def _estimate(run: ComparedRun) -> float:
    assert run.estimate is not None  # runs without one are in no group
    return run.estimate


def _settings(run: ComparedRun) -> tuple[tuple[str, str], ...]:
    """Everything but the seeds."""
    facts = {key: value for key, value in run.facts.items() if key not in _OF_SEEDS}
    facts["model"] = without_seed(run.facts["model"])
    if facts["model"] == run.facts["model"]:  # two models of one name are not two seeds of one recipe
        facts["weights"] = run.facts.get("weights", "")
    return tuple(sorted(facts.items()))


def _names(settings: Sequence[dict[str, str]], given: Sequence[str]) -> list[str]:
    """The name of a run of its own; of several seeds, the settings that not all share, or their number."""
    names: list[str] = []
    for number, own in enumerate(settings):
        shown = [key for key in own if key not in _UNNAMED]
        differs = [own[key] for key in shown if any(other.get(key) != own[key] for other in settings)]
        name = given[number] or ", ".join(differs) or f"seeds {number + 1}"
        names.append(f"{name} ({number + 1})" if name in names else name)
    return names


def _welch(values: Sequence[float], others: Sequence[float]) -> tuple[float, float] | None:
    """The 95% interval of the difference of two means; None where the seeds do not vary, or there is only one."""
    if len(values) < 2 or len(others) < 2:
        return None
    parts = [float(np.var(each, ddof=1)) / len(each) for each in (values, others)]
    difference, variance = float(np.mean(values) - np.mean(others)), sum(parts)
    if variance <= 0:
        return None
    freedom = variance**2 / sum(part**2 / (len(each) - 1) for part, each in zip(parts, (values, others), strict=True))
    half = float(stdtrit(freedom, (1 + LEVEL) / 2)) * math.sqrt(variance)
    return difference - half, difference + half


# Pairing needs this share of the smaller test split. On a share s of the rows, with a correlation r of the two runs'
# errors, the variance is (1 - r) / s of that of two independent complete splits: for less than a half, pairing is worse
# up to r = 0.5.
LEAST_SHARED = 0.5


class Differences:
    """Differences of runs; the resamples of equal rows are drawn once.

    Args:
        runs: what is compared.
        rows: of each run, its test rows, or None and why there are none.
        seed: of the resamples.
    """

    def __init__(self, runs: Sequence[ComparedRun], rows: Sequence[tuple[RunRows | None, str]], seed: int):
        self._runs, self._rows, self._seed = runs, rows, seed
        self._bootstraps: dict[str, Bootstrap] = {}

    def of(self, run: int, minus: int) -> RunDifference | None:
        """The estimate of one run minus that of another; None where one of them has none."""
        one, other = self._runs[run], self._runs[minus]
        if one.estimate is None or other.estimate is None:
            return None
        shared, why = self._shared(run, minus)
        if shared is None:
            ends, p = independent_difference((one.estimate, one.interval), (other.estimate, other.interval))
            return RunDifference(run, minus, one.estimate - other.estimate, ends, p, p, UNPAIRED, INDEPENDENT, 0, why)
        mine, theirs, bootstrap = shared
        difference, ends, p = tested_difference(mine, theirs, one.headline, bootstrap)
        test = MCNEMAR if one.headline == "accuracy" and bootstrap.groups is None else BOOTSTRAP
        grouped = bootstrap.groups is not None
        few = groups_note(bootstrap.n_groups) or class_note(one.headline, bootstrap.rarest_of(mine), grouped)
        return RunDifference(run, minus, difference, ends, p, p, PAIRED, test, len(mine.truth), why, few)

    def _shared(self, run: int, minus: int) -> tuple[tuple[Predictions, Predictions, Bootstrap] | None, str]:
        """The predictions of both runs for the rows in common, with the resamples of these; or None, and why."""
        (own, why), (other, why_not) = self._rows[run], self._rows[minus]
        if own is None or other is None:
            return None, why or why_not
        mine, theirs = in_common(own, other)
        least = min(len(own.keys), len(other.keys))
        if len(mine) < max(2, LEAST_SHARED * least):
            return None, f"{len(mine):,} of {least:,} test rows in common"
        predictions = some_rows(own.predictions, mine), some_rows(other.predictions, theirs)
        if not np.isfinite([value_of(each, self._runs[run].headline) for each in predictions]).all():
            return None, "the rows in common have one class"
        groups = joint_groups(own.groups[mine], other.groups[theirs])
        part = "" if len(mine) == len(own.keys) == len(other.keys) else f"on the {len(mine):,} test rows in common"
        return (*predictions, self._bootstrap(groups, mine)), part

    def _bootstrap(self, groups: np.ndarray | None, which: np.ndarray) -> Bootstrap:
        key = rows_digest(groups, which)
        if key not in self._bootstraps:
            self._bootstraps[key] = Bootstrap(len(which), self._seed, groups)
        return self._bootstraps[key]


def corrected(found: Sequence[RunDifference]) -> list[RunDifference]:
    """The differences with p-values corrected over all of them (Holm 1979)."""
    known = sorted((each.p_value, i) for i, each in enumerate(found) if each.p_value is not None)
    adjusted: dict[int, float] = {}
    largest = 0.0
    for rank, (p, i) in enumerate(known):
        largest = max(largest, min(1.0, (len(known) - rank) * p))
        adjusted[i] = largest
    return [replace(each, corrected=adjusted.get(i)) for i, each in enumerate(found)]
