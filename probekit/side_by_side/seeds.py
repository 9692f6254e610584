"""Runs that differ in their seeds alone: the mean of their estimates, and how far it varies over seeds.

The interval of a difference between two sets of seeds is Welch's (1947): seeds are the sample, since training with
another seed gives another model or another split, whatever the number of test rows.
"""

import itertools
import math
import re
from collections.abc import Sequence

import numpy as np
from scipy.stats import t

from probekit.evaluation.scores.bootstrap import LEVEL
from probekit.side_by_side.data import ComparedRun, SeedGroup

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
    half = float(t.ppf((1 + LEVEL) / 2, freedom)) * math.sqrt(variance)
    return difference - half, difference + half
