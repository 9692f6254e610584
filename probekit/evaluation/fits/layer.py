"""A curve: every place fitted and judged alike, then the places compared with one another on the same resamples.

Axes: N examples, D width of a place, L places, S resamples.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy.stats import t
from torch import Tensor

from probekit.activations.activations import Activations
from probekit.errors import DataError
from probekit.evaluation.compare.codelength import OnlineCode
from probekit.evaluation.fits.choose import (
    Bench,
    Verdict,
    certificate,
    decide,
    intervals_of,
    log_probabilities,
    measured,
    pooled,
    read_by,
    value_of,
)
from probekit.evaluation.fits.fit_grid import Columns
from probekit.evaluation.fits.protocol import Protocol
from probekit.evaluation.results.results import BaselineResult, LayerResult
from probekit.evaluation.scores.band import curve_band
from probekit.evaluation.scores.best_set import best_set
from probekit.evaluation.scores.bootstrap import LEVEL, Bootstrap
from probekit.evaluation.scores.metrics import Predictions, measure
from probekit.evaluation.scores.permutation import PERMUTATIONS, permutation_test
from probekit.points import Place, place_name
from probekit.probes.problem import joined


@dataclass(frozen=True, eq=False)
class Question:
    """What is asked at every place.

    Attributes:
        probe: the class of the probes.
        columns: the fits of each place; the control tasks are its label sets after the first.
        headline: the metric that chooses.
        bootstrap: resamples of the test rows.
        code: the online code of the training labels, or None.
        seed: of what is permuted.
        is_fair: whether the control tasks can be learnt for the test rows, so that selectivity means something.
        metric: the headline where it was asked for by name; None where the labels decided.
    """

    probe: Any
    columns: Columns
    headline: str
    bootstrap: Bootstrap
    code: OnlineCode | None
    seed: int
    is_fair: bool = True
    metric: str | None = None

    def alone(self) -> "Question":
        """The question without control tasks and code."""
        return replace(self, columns=self.columns.alone(), code=None)

    @property
    def protocol(self) -> Protocol:
        """The rows that teach, choose and judge."""
        return self.columns.protocol


@dataclass(frozen=True, eq=False)
class Answer:
    """A place's result, and what comparing places needs beside it: the verdict on the target."""

    result: LayerResult
    verdict: Verdict


def answers_of(
    acts: Activations, places: Sequence[Place], question: Question, done: Callable[[], None]
) -> list[Answer]:
    """The answer of each place, one place's activations in memory at a time; calls `done` after each."""
    answers = []
    for place in places:
        answers.append(_answer(place, features_of(acts, place), question))
        done()
    return answers


def features_of(acts: Activations, place: Place) -> Tensor:
    """The activations of a place, [N, D], in float32 or more.

    Raises:
        DataError: NaN or infinity, with the first row and its example.
    """
    X = acts[place]
    bad = ~torch.isfinite(X).all(dim=1)
    if bad.any():
        row = int(bad.nonzero()[0])
        what = "NaN" if bool(X[row].isnan().any()) else "infinity"
        raise DataError(
            f"activations of {place_name(place)} hold {what}, first in row {row} (example {acts.ids[row]!a}; "
            f"{int(bad.sum())} rows in all); extract again, in float32 if they were kept in less"
        )
    return X.to(torch.promote_types(X.dtype, torch.float32))


def compared(answers: Sequence[Answer], question: Question) -> tuple[list[LayerResult], dict[str, Any]]:
    """The results with bands, best set and p-values, and what is to say of the curve as a whole."""
    predictions = [read_by(answer.verdict.test, question.headline) for answer in answers]
    values = np.array([value_of(each, question.headline) for each in predictions])
    resampled = np.stack([question.bootstrap.resampled(each, question.headline) for each in predictions])
    bands = curve_band(question.bootstrap, predictions, question.headline, resampled, LEVEL)
    jackknifed = np.stack([question.bootstrap.jackknifed(each, question.headline) for each in predictions])
    in_best = best_set(values, resampled, LEVEL, jackknifed)
    p_values, chance = _chance(predictions, question)
    results = [
        replace(answer.result, band=_ends(band), in_best_set=bool(best), p_value=p)
        for answer, band, best, p in zip(answers, bands, in_best, p_values, strict=True)
    ]
    return results, chance


def _chance(predictions: list[Predictions], question: Question) -> tuple[list[float | None], dict[str, Any]]:
    """The p-value of each place, and of the best of them.

    None with folds: what is predicted of one fold was fitted on the labels of the others, so that predictions do not
    stay as they are when labels are permuted.
    """
    if question.protocol.folds is not None:
        return [None] * len(predictions), {"p_max": None, "null_high": None, "permutations": None}
    null = permutation_test(predictions, question.headline, question.seed, question.bootstrap.groups)
    null_high = float(null.null_high) if np.isfinite(null.null_high) else None
    told = {"p_max": float(null.p_max), "null_high": null_high, "permutations": PERMUTATIONS}
    return null.p_values.tolist(), told


def _ends(band: np.ndarray) -> tuple[float, float] | None:
    return (float(band[0]), float(band[1])) if np.isfinite(band).all() else None


def optimism(results: Sequence[LayerResult], best: LayerResult, headline: str, judged: float) -> dict[str, Any]:
    """What picking the layer on test would have claimed, and how much more that is than `judged`, the honest number.

    Of equals it is the chosen place, or else the first.
    """
    top = max(results, key=lambda layer: (layer.metrics["test"][headline], layer is best))
    value = top.metrics["test"][headline]
    return {"layer": top.place, "value": value, "over": value - judged}


def procedure(whole: Predictions, layers: list[str], question: Question) -> dict[str, Any]:
    """How well the whole way of choosing does: its metrics and intervals, and the layer of each fold."""
    intervals = {name: list(ends) for name, ends in intervals_of(question.bootstrap, whole).items()}
    return {"metrics": measured(whole), "intervals": intervals, "layers": layers}


def lead(
    best: Predictions, baselines: Sequence[tuple[BaselineResult, Predictions]], question: Question
) -> dict[str, Any] | None:
    """How far the headline of what is quoted is ahead of the best baseline's on test, with its 95% interval.

    The difference is taken within each resample, so that what both get right or wrong alike cancels; Student's t times
    its standard error.
    """
    values = [(value_of(said, question.headline), result.name, said) for result, said in baselines]
    values = [each for each in values if np.isfinite(each[0])]
    if not values:
        return None
    value, name, said = max(values, key=lambda each: each[0])
    ahead = value_of(best, question.headline) - value
    both = (read_by(each, question.headline) for each in (best, said))
    one, other = (question.bootstrap.resampled(each, question.headline) for each in both)
    apart = (one - other)[np.isfinite(one - other)]
    n = question.bootstrap.n_units
    if n < 2 or not len(apart):
        return {"baseline": name, "over": ahead, "interval": None}
    half = float(t.ppf((1 + LEVEL) / 2, n - 1) * apart.std() * np.sqrt(n / (n - 1)))
    return {"baseline": name, "over": ahead, "interval": [ahead - half, ahead + half]}


def chosen_inside(answers: Sequence[Answer], question: Question) -> tuple[Predictions, list[str]]:
    """The test predictions of the layer that each fold's other rows choose, and which layers those are."""
    ends = np.cumsum([len(each.test) for each in question.protocol.rounds])
    parts, layers = [], []
    for number, (end, each) in enumerate(zip(ends, question.protocol.rounds, strict=True)):
        best = max(answers, key=lambda answer: answer.verdict.chosen[number])
        parts.append(_part(best.verdict.test, slice(end - len(each.test), end)))
        layers.append(best.result.place)
    return pooled(parts), layers


def _part(predictions: Predictions, rows: slice) -> Predictions:
    likely = predictions.probabilities
    return replace(
        predictions,
        truth=predictions.truth[rows],
        predicted=predictions.predicted[rows],
        scores=predictions.scores[rows],
        probabilities=None if likely is None else likely[rows],
    )


def _answer(place: Place, X: Tensor, question: Question) -> Answer:
    columns, code = question.columns, question.code
    problems = joined([columns.problems] if code is None else [columns.problems, code.problems()])
    probes = question.probe().fit_many(_rows_of(X, question.protocol.used), problems)
    own = len(columns.problems.problems)
    bench = Bench(columns, probes[:own], X, question.headline)
    verdict, *controls = [bench.verdict(number) for number in range(len(columns.label_sets))]
    coders = probes[own:]
    fits = {"probe": (verdict.converged, verdict.gap)}
    fits |= {"control": _certified([(each.converged, each.gap) for each in controls])} if controls else {}
    fits |= {"code": _certified([(bool(fit.converged_), certificate(fit)) for fit in coders])} if coders else {}
    converged, gap = _certified(list(fits.values()))
    result = LayerResult(
        point=place[0],
        layer=place[1],
        C=verdict.C,
        converged=converged,
        metrics=_metrics(bench, verdict),
        intervals=intervals_of(question.bootstrap, verdict.test),
        tried=verdict.tried,
        probe=verdict.probe,
        gap=gap,
        late=[name for name, (is_done, _) in fits.items() if not is_done],
        **_control(bench, verdict, controls, question.is_fair),
        codelength=None if code is None else _codelength(code, coders, X, question.protocol.used),
    )
    return Answer(result, verdict)


def _certified(fits: Sequence[tuple[bool, float | None]]) -> tuple[bool, float | None]:
    """Whether all of them converged, and the worst certificate; None where one of them has none."""
    gaps = [gap for _, gap in fits if gap is not None]
    return all(converged for converged, _ in fits), max(gaps) if len(gaps) == len(fits) else None


def _metrics(bench: Bench, verdict: Verdict) -> dict[str, dict[str, float]]:
    rows, test = bench.columns.protocol.rows, measured(verdict.test)
    if bench.columns.protocol.folds is not None:
        return {"validation": {bench.headline: dict(verdict.tried)[verdict.C]}, "test": test}
    others = {split: measure(bench.predictions(verdict.probe, rows[split])) for split in ("train", "validation")}
    return {**others, "test": test}


def _control(bench: Bench, verdict: Verdict, controls: Sequence[Verdict], is_fair: bool) -> dict[str, Any]:
    """The mean headline of the control tasks, and the selectivity where that can be told."""
    known = [value for each in controls if np.isfinite(value := value_of(each.test, bench.headline))]
    if not known:
        return {}
    mean = float(np.mean(known))
    value = selectivity(value_of(verdict.test, bench.headline), mean, bench.headline)
    return {"control": mean, "selectivity": value if is_fair else None}


def selectivity(value: float, control: float, headline: str) -> float | None:
    """How much better the headline is than the control's; no R2 below 0, which is no skill, counts.

    A control with an R2 below 0 learnt nothing that could be taken off, and how far below is no merit of the probe.
    """
    if headline != "r2":
        return value - control
    return max(value, 0.0) - control if control >= 0 else None


def _rows_of(X: Tensor, rows: np.ndarray) -> Tensor:
    """X [N, D] at rising rows, without a copy where they follow one another."""
    if len(rows) == rows[-1] - rows[0] + 1:
        return X[int(rows[0]) : int(rows[-1]) + 1]
    return X[torch.from_numpy(rows).to(X.device)]


def _codelength(code: OnlineCode, probes: Sequence[Any], X: Tensor, used: np.ndarray) -> dict[str, float]:
    """What the training labels cost by the probes of the code's problems, which number the `used` rows of X alone."""
    step = len(code.grid)
    said: list[np.ndarray] = []

    def logs(i: int, rows: np.ndarray) -> np.ndarray:
        nonlocal said
        if i % step == 0:  # all strengths of a prefix are asked of the same rows, one after another
            said = decide(probes[i : i + step], X, used[rows])
        return log_probabilities(said[i % step])

    told = code.codelength(logs)
    names = ("bits", "uniform_bits", "prior_bits", "compression", "gain")
    return {name: getattr(told, name) for name in names}
