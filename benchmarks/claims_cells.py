"""What one simulated world measures, for each claim of a result: {measure: value}; nan where the tool gives none.

A share is 1 where an interval, band or set holds the truth; a p-value is itself; anything else is a mean.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
from claims_worlds import World, calibration_error, draw, guess, normal_scores, truth
from scipy.special import expit, ndtr
from scipy.stats import norm

import probekit as pk
from probekit.causal.curve.causal_curve import with_placebos
from probekit.causal.curve.places import PlaceRecord
from probekit.causal.curve.statistics import ratio_interval
from probekit.causal.data import Effect
from probekit.causal.results.view import doubt_of_use, largest_placebo
from probekit.errors import UsageError
from probekit.evaluation.by_position.chance import compare_with_chance
from probekit.evaluation.compare.lead import tested_difference
from probekit.evaluation.results.row_scores import RowScores
from probekit.evaluation.scores.alarms import rises_of
from probekit.evaluation.scores.bootstrap import Bootstrap
from probekit.evaluation.scores.metrics import Predictions
from probekit.report.sections.scores import BINS, reliability
from probekit.scoring.calibrate import calibration_of
from probekit.scoring.threshold import choose_threshold
from probekit.side_by_side.data import RunDifference
from probekit.side_by_side.differences import corrected

Measured = dict[str, float]
Ends = Any
RATES = (0.01, 0.05)
RANDOM_PLACEBOS = 20  # of each kind, as `causal --placebos` has
OFFSET = 0.14
METRICS = ("accuracy", "auroc")
LAYERS, POSITIONS, LABEL_SETS, RUNS = 6, 8, 4, 4


def holds(ends: Ends, value: float) -> float:
    return float("nan") if ends is None else float(ends[0] <= value <= ends[1])


def width(ends: Ends) -> float:
    return float("nan") if ends is None else float(ends[1] - ends[0])


def of_curve(world: World, seed: int) -> Measured:
    """Quoted score, band, tied set, selection, probabilities and thresholds of one run of `train_probes`."""
    acts = draw(world, seed)
    options: Any = {"folds": world.folds} if world.folds else {}
    results: Any = pk.train_probes(acts, quick=True, seed=seed, **options)
    metric = results.headline
    if world.folds:  # what it is held against is the procedure's mean estimate over all worlds
        value, ends = results.estimate
        return {"procedure": value, "low": np.nan, "high": np.nan} | dict(
            zip(("low", "high"), ends or (), strict=False)
        )
    true = [truth(world, i, layer.probe) for i, layer in enumerate(results.layers)]
    of_metric = np.array([each[metric] for each in true])
    best = next(i for i, layer in enumerate(results.layers) if layer.place == results.best.place)
    found: Measured = {}
    for name, value in true[best].items():
        ends = results.best.intervals.get(name)
        called = "quoted interval" if name == metric else f"{name} interval"
        found |= {called: holds(ends, value), f"width of {called}": width(ends)}
    bands = [layer.band for layer in results.layers]
    inside = [holds(*pair) for pair in zip(bands, of_metric, strict=True)]
    found["band"] = float(np.min(inside)) if np.isfinite(inside).all() else float("nan")
    tied = [layer.in_best_set for layer in results.layers]
    found["tied set"] = float("nan") if None in tied else float(tied[int(of_metric.argmax())] or False)
    found["tied layers"] = float("nan") if None in tied else float(sum(bool(each) for each in tied))
    found["optimism"] = results.estimate[0] - of_metric[best]
    peeked = results.meta["optimism"]
    found["optimism, selected on test"] = peeked["value"] - of_metric[int(peeked["layer"].split(".")[1])]
    return found | (_of_scores(world, results, best) if world.classes == 2 else {})


def of_lead(world: World, seed: int) -> Measured:
    """The lead of the quoted score over the best baseline, of a run with one C."""
    results: Any = pk.train_probes(draw(world, seed), C=1.0, quick=True, seed=seed)
    metric, lead = results.headline, results.meta["lead"]
    best = next(i for i, layer in enumerate(results.layers) if layer.place == results.best.place)
    of_best, of_embedding = (truth(world, i, results.layers[i].probe)[metric] for i in (best, 0))
    baseline = of_embedding if lead["baseline"] == "embedding" else guess(world, metric)
    ends = lead["interval"]
    return {"lead": holds(ends, of_best - baseline), "width of lead": width(ends)}


def _of_scores(world: World, results: Any, best: int) -> Measured:
    """Probabilities and thresholds of the selected probe, against the true distribution of its scores."""
    layer, rows = results.layers[best], results.rows
    scores = normal_scores(world, best, layer.probe)
    calibration: Any = calibration_of(rows, layer.place, True)
    slope = (scores.high - scores.low) / scores.spread**2  # of the true log odds
    found = {
        "calibration slope": slope / calibration.slope if world.strengths == "usual" else float("nan"),
        "calibration error": calibration_error(scores, lambda values: expit(calibration.log_odds(values))),
        "own slope": slope,
        "own calibration error": calibration_error(scores, expit),
    }
    test = rows.splits == "test"
    values, labels = rows.scores[layer.place][test], rows.labels[test]
    if world.groups is None and world.share == 0.5:  # labels are independent, given the scores
        likely = expit(calibration.log_odds(values))
        diagram = reliability(np.stack([1 - likely, likely], axis=1), labels, rows.groups[test], ["no", "yes"])
        of_bin = np.minimum((likely * BINS).astype(int), BINS - 1)
        expected = [expit(scores.log_odds(values[of_bin == i])).mean() for i in np.unique(of_bin)]
        found["reliability intervals"] = float(np.mean([*map(holds, diagram.ends, expected)]))
    for rate in RATES:
        try:
            chosen: Any = choose_threshold(rows, layer.place, rate)
        except UsageError:
            continue
        tpr, fpr = scores.rates(chosen.value)
        found[f"realised FPR of {rate:g}"] = fpr
        found[f"FPR interval at {rate:g}"] = holds((chosen.test_fpr.low, chosen.test_fpr.high), fpr)
        found[f"TPR interval at {rate:g}"] = holds((chosen.tpr.low, chosen.tpr.high), tpr)
    return found


def of_chance(world: World, seed: int) -> Measured:
    """p-values of a curve whose activations know nothing of the label."""
    acts = draw(world, seed)
    results: Any = pk.train_probes(acts, C=1.0, codelength=False, controls=0, baselines=False, seed=seed)
    return {"p of a layer": results.layers[2].p_value, "p of the best layer": results.meta["p_max"]}


def _know_nothing(rng: np.random.Generator, truth_N: np.ndarray, layers: int) -> list[Predictions]:
    error, found = rng.normal(size=len(truth_N)), []
    for _ in range(layers):
        found.append(Predictions(truth_N, (error > 0).astype(int), error, 2))
        error = 0.7 * error + np.sqrt(1 - 0.7**2) * rng.normal(size=len(truth_N))
    return found


def of_grid(n: int, metric: str, seed: int) -> Measured:
    """The p-values of a grid of layers and positions, or heads, that know nothing."""
    rng = np.random.default_rng([seed, n, METRICS.index(metric)])
    labels = rng.integers(2, size=n)
    found = compare_with_chance(
        [_know_nothing(rng, labels, LAYERS) for _ in range(POSITIONS)], metric, seed, [None] * POSITIONS
    )
    return {"p of a cell": float(found.p_values[0, 0]), "p of the best cell, corrected": float(found.corrected.min())}


def of_label_sets(n: int, seed: int) -> Measured:
    """The smallest p-value of the best layer over label sets, which nothing corrects, and over one of them."""
    from probekit.evaluation.scores.permutation import permutation_test

    rng = np.random.default_rng([seed, n])
    p = [
        permutation_test(_know_nothing(rng, rng.integers(2, size=n), LAYERS), "accuracy", seed).p_max
        for _ in range(LABEL_SETS)
    ]
    return {f"smallest p of {LABEL_SETS} label sets": min(p)}


def of_score(positives: int, metric: str, apart: float, n: int, seed: int) -> Measured:
    """The interval of a score with few examples of a class, of scores whose classes are so many deviations apart.

    The threshold is `OFFSET` nearer to the first class than the middle, so that its recall is the lower one.
    """
    rng = np.random.default_rng([seed, n, positives, int(100 * apart)])
    labels = (np.arange(n) < positives).astype(int)
    scores = apart * (labels - 0.5) + rng.normal(size=n) + OFFSET
    predictions = Predictions(labels, (scores > 0).astype(int), scores, 2)
    recalls = ndtr(apart / 2 + OFFSET), ndtr(apart / 2 - OFFSET)
    true = float(ndtr(apart / np.sqrt(2))) if metric == "auroc" else float(np.mean(recalls))
    ends = Bootstrap(n, seed).intervals(predictions, names=[metric]).get(metric)
    return {f"{metric} interval": holds(ends, true), f"width of {metric} interval": width(ends)}


@dataclass(frozen=True)
class Pair:
    """Two probes on the same rows, of which the second has an accuracy of 0.85.

    Attributes:
        ahead: by how much the accuracy of the first is higher.
        alike: correlation of the noise of their scores.
    """

    ahead: float
    alike: float


PAIRS = {"equal": Pair(0.0, 0.5), "nearly the same, 0.02 ahead": Pair(0.02, 0.99)}


def of_difference(n: int, groups: int | None, metric: str, pair: Pair, seed: int) -> Measured:
    """The difference of two probes: its interval, and its p-value if they are equal, as the lead and `compare` do."""
    apart = [2 * float(norm.ppf(0.85 + ahead)) for ahead in (pair.ahead, 0)]
    rng = np.random.default_rng([seed, n, groups or 0, METRICS.index(metric), int(100 * pair.alike)])
    if (drawn := _probes(rng, n, groups, apart, pair.alike)) is None:
        return {"difference interval": float("nan")}
    probes, bootstrap = drawn[0], Bootstrap(n, seed, drawn[1])
    _, ends, p = tested_difference(probes[0], probes[1], metric, bootstrap)
    true = pair.ahead if metric == "accuracy" else float(np.diff([-ndtr(each / np.sqrt(2)) for each in apart])[0])
    found = {"difference interval": holds(ends, true), "width of difference interval": width(ends)}
    return found if pair.ahead else found | {"p of a difference": float("nan") if p is None else p}


def of_runs(n: int, metric: str, seed: int) -> Measured:
    """The smallest corrected p-value of the differences of four equal runs."""
    rng = np.random.default_rng([seed, n, METRICS.index(metric)])
    drawn = _probes(rng, n, None, [2 * float(norm.ppf(0.85))] * RUNS, 0.5)
    assert drawn is not None
    bootstrap, differences = Bootstrap(n, seed), []
    for i, j in combinations(range(RUNS), 2):
        ahead, ends, p = tested_difference(drawn[0][i], drawn[0][j], metric, bootstrap)
        differences.append(RunDifference(i, j, ahead, ends, p, p, "paired", "bootstrap", n))
    return {"p of four runs": min(p for each in corrected(differences) if (p := each.corrected) is not None)}


def _probes(
    rng: np.random.Generator, n: int, groups: int | None, apart: list[float], alike: float
) -> tuple[list[Predictions], np.ndarray | None] | None:
    """Predictions of probes whose classes are so far apart, and the groups; None where a class does not occur."""
    group = np.arange(n) * (groups or n) // n
    labels = rng.integers(2, size=group[-1] + 1)[group]
    if len(np.unique(labels)) < 2:
        return None
    probes, shared = [], _grouped(rng, group)
    for strength in apart:
        error = np.sqrt(alike) * shared + np.sqrt(1 - alike) * _grouped(rng, group)
        scores = strength * (labels - 0.5) + error
        probes.append(Predictions(labels, (scores > 0).astype(int), scores, 2))
    return probes, None if groups is None else group


def _grouped(rng: np.random.Generator, group: np.ndarray) -> np.ndarray:
    own = rng.normal(size=len(group))
    return own if group[-1] == len(group) - 1 else np.sqrt(0.5) * (own + rng.normal(size=group[-1] + 1)[group])


def by_the_rule(effect: Effect, placebos: list[float]) -> bool:
    """Whether the tool says that the direction is used."""
    low = None if effect.interval is None else effect.interval[0]
    return not doubt_of_use(
        effect.effect, low, effect.flip_rate, largest_placebo(effect), effect.full_vector, effect.p_adjusted
    )


def of_any_size(effect: Effect, placebos: list[float]) -> bool:
    """The same without a least size."""
    return by_the_rule(replace(effect, flip_rate=1.0), placebos)


def above_one_placebo(effect: Effect, placebos: list[float]) -> bool:
    """The control: a band of one placebo, and no correction."""
    return effect.interval is not None and effect.interval[0] > abs(placebos[0])


@dataclass(frozen=True)
class Directions:
    """Effects of a label's direction and of placebos, at several places.

    Attributes:
        spread: standard deviation of the effects of directions that know nothing; 1 is the full exchange.
        effect: of the label's direction, on top.
        heavy: whether they have the tails of Student's t with 3 degrees of freedom.
        n: rows.
        rule: what says "used".
    """

    spread: float
    effect: float = 0.0
    heavy: bool = False
    n: int = 200
    rule: Callable[[Effect, list[float]], bool] = by_the_rule


def of_directions(case: Directions, seed: int) -> Measured:
    """Whether any of the places is said to be used, and the corrected p-value of the best."""
    rng = np.random.default_rng([seed, int(1000 * case.spread), int(1000 * case.effect), case.n])
    names = ["probe", *["random"] * RANDOM_PLACEBOS, *["covariance"] * RANDOM_PLACEBOS, "shuffled labels"]
    bootstrap, records = Bootstrap(case.n, seed), []
    whole_N = 1 + 0.5 * rng.normal(size=case.n)
    for i in range(LAYERS):
        drawn = rng.standard_t(3, size=len(names)) / np.sqrt(3) if case.heavy else rng.normal(size=len(names))
        own, effects = case.spread * drawn, []
        own[0] += case.effect
        for name, size in zip(names, own, strict=True):
            part_N = size * whole_N + 0.3 * rng.normal(size=case.n)
            ends = ratio_interval(part_N, whole_N, bootstrap) if name == "probe" else None
            about: Any = {
                "method": "interchange",
                "point": "resid_pre",
                "layer": i,
                "scale": None,
                "split": "test",
                "n": case.n,
            }
            about |= {"logit_difference": 0.0, "flip_rate": 0.0, "probability": None, "kl": None, "size": 0.0}
            share = float(part_N.mean() / whole_N.mean())
            effects.append(Effect(direction=name, effect=share, interval=ends, **about))
        chosen: Any = {"interchange": effects[0]}
        records.append(PlaceRecord(effects, chosen, {}, {}, {}, True))
    tested = with_placebos(records)
    own = [each for each in tested if each.direction == "probe"]
    placebos = [[e.effect for e in record.effects[1:]] for record in records]
    used = [case.rule(each, others) for each, others in zip(own, placebos, strict=True)]
    smallest = min(each.p_adjusted for each in own if each.p_adjusted is not None)
    if case.effect:
        return {"found used": float(np.mean(used))}
    return {"used at any layer": float(any(used)), "p of the best layer, corrected": smallest}


def of_effect(n: int, groups: int | None, seed: int) -> Measured:
    """The interval of one effect."""
    rng = np.random.default_rng([seed, n, groups or 0])
    group = np.arange(n) * (groups or n) // n
    whole_N = 1 + 0.5 * _grouped(rng, group)
    part_N = 0.3 * whole_N + 0.4 * _grouped(rng, group)
    ends = ratio_interval(part_N, whole_N, Bootstrap(n, seed, None if groups is None else group))
    return {"effect interval": holds(ends, 0.3)}


def of_conversations(n: int, seed: int) -> Measured:
    """The rate of conversations at a threshold on their highest running score; 300 of validation."""
    rng = np.random.default_rng([seed, n])
    total, tokens = 300 + n, 20
    labels = rng.integers(2, size=total)
    running = rng.normal(size=(total, 1)) + rng.normal(size=(total, tokens)) + labels[:, None]
    rows = RowScores(
        ids=np.arange(total).astype(object),
        digests=np.array([""] * total, dtype=object),
        splits=np.repeat(["validation", "test"], [300, n]),
        labels=labels,
        groups=np.arange(total),
        scores={"resid_pre.0": running[:, -1]},
        predicted={"resid_pre.0": (running[:, -1] > 0.5).astype(int)},
        rises={"resid_pre.0": rises_of(list(running))},
    )
    offsets, weight = np.polynomial.hermite_e.hermegauss(80)  # of the part that a conversation's tokens share
    found: Measured = {}
    for rate in RATES:
        chosen = choose_threshold(rows, "resid_pre.0", rate)
        true = 1 - float(weight @ ndtr(chosen.value - offsets) ** tokens / weight.sum())
        assert chosen.test_fpr is not None
        found[f"realised FPR of {rate:g}"] = true
        found[f"FPR interval at {rate:g}"] = holds((chosen.test_fpr.low, chosen.test_fpr.high), true)
    return found
