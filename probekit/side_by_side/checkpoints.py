"""Checkpoints of one model over training: in the order of their steps, and which layers are above chance when."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from probekit.errors import UsageError
from probekit.evaluation.by_position.chance import ABOVE_CHANCE, compare_with_chance
from probekit.evaluation.results.data import ProbeData
from probekit.evaluation.scores.metrics import Predictions
from probekit.side_by_side.data import ComparedRun
from probekit.side_by_side.describe import facts_of
from probekit.side_by_side.rows import joint_groups, run_rows
from probekit.side_by_side.runs import NamedRun
from probekit.side_by_side.steps import series_of, training_step

NO_TEST = "no test of chance: {}"


def by_step(runs: Sequence[NamedRun]) -> list[NamedRun]:
    """The runs in the order of their steps.

    Raises:
        UsageError: a run without a step, two with the same, or other models, tasks or points.
    """
    facts = [facts_of(run) for run in runs]
    steps = []
    for run, own in zip(runs, facts, strict=True):
        step = training_step(own.get("revision"))
        if step is None:
            what = ascii(str(run.path or own["model"]))
            raise UsageError(
                f"{what} is not of a checkpoint with a step in its name, such as step1000 (extract --revision); "
                "leave it out, or leave --by step out"
            )
        steps.append(step)
    settings = dict.fromkeys(key for own in facts for key in own if key.startswith("--"))
    for key in ("model", "task", "point", "position", "probe", *settings):
        values = list(dict.fromkeys(own.get(key, f"no {key}") for own in facts))
        if len(values) > 1:
            raise UsageError(f"--by step takes checkpoints with one {key}; got {values[0]!a:.60} and {values[1]!a:.60}")
    series = list(dict.fromkeys(series_of(own["revision"]) for own in facts))
    if len(series) > 1:
        raise UsageError(
            f"--by step takes revisions that differ in the step alone; got {series[0]!a:.60} and {series[1]!a:.60} "
            "before the number; compare one series at a time"
        )
    places = [[layer.place for layer in run.data.layers] for run in runs]
    if any(own != places[0] for own in places):
        raise UsageError("--by step takes checkpoints with the same layers; train all of them with one --layer")
    twice = next((step for step in steps if steps.count(step) > 1), None)
    if twice is not None:
        raise UsageError(f"two runs are of step {twice}; give one for each step")
    return [run for _, run in sorted(zip(steps, runs, strict=True), key=lambda pair: pair[0])]


def onset_of(runs: list[ComparedRun], found: Sequence[NamedRun], seed: int) -> tuple[list[ComparedRun], list[str]]:
    """The runs with p-values against chance, corrected for all layers and steps; and notes."""
    predictions, units = [], []
    for run in found:
        own, group, why = _grid(run.data, found[0].data.meta["classes"])
        if own is None:
            return runs, [NO_TEST.format(why)]
        predictions.append(own)
        units.append(group)
    test = compare_with_chance(predictions, runs[0].headline, seed, units)
    tested = [
        replace(run, places=[replace(place, above_chance=float(p)) for place, p in zip(run.places, own, strict=True)])
        for run, own in zip(runs, test.corrected, strict=True)
    ]
    return tested, [_onset_note(tested)]


def _grid(data: ProbeData, classes: Sequence[str]) -> tuple[list[Predictions] | None, np.ndarray | None, str]:
    """The test predictions of every place, and the groups of the rows; or None, and why."""
    own, groups = [], None
    if data.procedure is not None:
        return None, None, "with nested folds, predictions depend on the labels that a permutation would shuffle"
    for layer in data.layers:
        rows, why = run_rows(data, layer, classes)
        if rows is None:
            return None, None, why
        own.append(rows.predictions)
        groups = joint_groups(rows.groups, rows.groups)
    return own, groups, ""


def is_above(p_value: float | None) -> bool | None:
    """Whether a corrected p-value is at most 0.05; None where there is none."""
    return None if p_value is None else p_value <= ABOVE_CHANCE


def _onset_note(runs: Sequence[ComparedRun]) -> str:
    """The first step at which any place is above chance."""
    for run in runs:
        places = [place.place for place in run.places if is_above(place.above_chance)]
        if places:
            more = f" and {len(places) - 1} more" if len(places) > 1 else ""
            return f"First above chance at step {run.step:,}: {places[0]}{more} (corrected for all cells)."
    return "No cell is above chance (corrected for all cells)."
