"""Confidence intervals of every metric on one test set, by example or by group, from resamples that all layers share.

Accuracy has Wilson's score interval (1927); with groups, its n is the number of independent examples that would have
the same variance (Korn and Graubard 1998). Every other metric has a studentised interval on the scale where it is
closest to normal (log odds for a share, Fisher's z for a correlation, the logarithm for an error). Its standard error
comes from the bootstrap over examples, or over complete groups (Efron 1979). With groups, the degrees of freedom of
Student's t follow from the fourth moment of the groups' influences (Satterthwaite 1946): a few large or erring groups
make few. So does a class of few examples, or of few groups, in the metrics that rank or average over classes: its part
of the variance has as many degrees of freedom as it has units, less one, as in DeLong's variance of an AUROC (1988),
and the parts are put together as Welch (1947) does. The part of a recall is at least that with one right and one wrong
unit added. The interval of R2 ends at the highest R2 that predictions of so little variance can have
(`regression.r2_ceiling`): 0 for a constant.

`benchmarks/claims.py` measures how often the intervals hold the truth (docs/what-each-number-is-worth.md). In earlier
simulations, percentiles of the same bootstrap, plain or widened by Student's t, covered 83-92% of the time at an
accuracy or AUROC of 0.95 with 20 to 60 groups; and without the parts by class, intervals of an AUROC of 0.9 covered
81-90% with 5 to 10 examples of a class, and 84-90% with 5 to 10 groups.
"""

import itertools
from collections.abc import Iterable, Iterator
from threading import Lock

import numpy as np
from scipy.special import betaincinv, expit, logit, ndtri, stdtrit

from probekit.evaluation.scores.metrics import Predictions, metric_names, weighing
from probekit.evaluation.scores.regression import r2_ceiling
from probekit.evaluation.scores.roc import ROC_RATES
from probekit.text import counted

RESAMPLES = 1000
LEVEL = 0.95
# Errors (or right answers) below which the exact interval replaces Wilson's at the high levels of a band: there
# Wilson's tails are too light, and bands of nearly perfect curves held 90% instead of 95% of the time
# (tests/evaluation/scores/test_band.py simulates it).
FEW_ERRORS = 10
MOST_KEPT = 1 << 27  # counts of all resamples that are drawn once and kept, of a byte each
# With 2 to 4 groups, 95% intervals of AUROC held the truth 17% to 99% of the time while they did not count the groups
# by class, and those of a difference of accuracies are 0.4 to 2 wide; with 5 to 20 groups they are 0.1 to 0.6 wide.
LEAST_GROUPS = 5  # with fewer, there are no intervals
FEW_GROUPS = 20  # with fewer, the number of groups is said beside them
# With 2 units of a class, Student's t has about one degree of freedom, and intervals of an AUROC are [0, 1] in effect.
LEAST_OF_A_CLASS = 3  # with fewer, metrics that rank or average over classes have no interval
FEW_OF_A_CLASS = 20  # test rows, or groups, of the rarest class; with fewer, a note says how many
_CHUNK = 125_000  # weights held at once: 1 MB, which stay in the cache; twice or half as many are no faster
_LEAST_CHUNK = 32  # resamples held at once, however many examples; fewer make every sum slow
# The ceiling of R2 is worked out below this value only. It is 0.75 where the predictions have half of the truth's
# standard deviation, and then limits no interval.
_HIGH_CEILING = 0.75
_SHARES = ("balanced_accuracy", "auroc", "average_precision", "f1", *ROC_RATES)
SHARES = ("accuracy", *_SHARES)  # metrics from 0 to 1
# Given the classes, the examples of each count by themselves.
_BY_CLASS = ("balanced_accuracy", "auroc", "average_precision")
# Units of a class from which its own degrees of freedom no longer matter: Student's t is then 2.5% above the normal's.
MANY_OF_A_CLASS = 50
_NO_INTERVAL = ("ece",)  # its estimate is biased upwards, and in a resample more so


class Bootstrap:
    """Resamples of N examples, the same ones at each use, so that layers are compared on equal terms.

    Args:
        n: number of examples.
        seed: of the resamples.
        groups: [N] or None; if given, complete groups are drawn, since their members are not independent.
        resamples: number of resamples, S.
    """

    def __init__(self, n: int, seed: int = 0, groups: np.ndarray | None = None, resamples: int = RESAMPLES):
        self.n, self.seed, self.groups, self.resamples = n, seed, groups, resamples
        self._unit, self._n_units = _units(n, groups)
        self._kept: list[np.ndarray] = []  # the counts, where they are few
        self._drawing = Lock()
        self._known: dict[int, tuple[Predictions, dict[tuple[str, str], np.ndarray]]] = {}  # what was worked out

    def intervals(
        self,
        predictions: Predictions,
        level: float = LEVEL,
        names: Iterable[str] | None = None,
        exact: bool = False,
    ) -> dict[str, tuple[float, float]]:
        """The `level` confidence interval of each defined metric, or of those in `names`: name -> (low, high).

        A share of exactly 0 or 1 has the exact interval of as many independent examples (Clopper and Pearson 1934): all
        of them for accuracy, those of the rarest class for the others. Another metric that varies in no resample has
        zero width. The calibration error has no interval, as its estimate is biased. With fewer than `LEAST_GROUPS`
        groups no metric has one; with a single row only accuracy has, 0 to 1. With fewer than `LEAST_OF_A_CLASS` units
        of a class, none of the metrics that rank or average over classes has one.

        Args:
            predictions: of N examples.
            level: confidence level.
            names: metrics; None for all.
            exact: widen the interval of an accuracy with fewer than `FEW_ERRORS` errors or right answers to the exact
                one. Wilson's holds on average over accuracies, and is too narrow near 0 and 1 at levels far above 95%.
        """
        wanted = [name for name in names or metric_names(predictions) if name not in _NO_INTERVAL]
        if not self.has_intervals:
            return {}
        if self.n_units < 2:
            return {"accuracy": (0.0, 1.0)} if "accuracy" in wanted else {}
        if self.rarest_of(predictions) < LEAST_OF_A_CLASS:
            wanted = [name for name in wanted if name not in _BY_CLASS]
        grouped = self.groups is not None and self.n_units <= self.resamples
        kinds = ("once", "resampled", *(("jackknifed",) if grouped else ()))
        once = self._estimates(predictions, wanted, kinds)[0]  # all metrics at once
        if (ranked := [name for name in wanted if name in _BY_CLASS]) and self._few_of_a_class(predictions):
            self._estimates(predictions, ranked, ("rare",))
        values = {name: float(value[0]) for name, value in once.items() if np.isfinite(value[0])}
        intervals = {}
        for name, value in values.items():
            if name in _SHARES and value in (0, 1):
                intervals[name] = _exact(value, self.rarest_of(predictions), level)
                continue
            error, freedom = self.error_of(name, predictions)
            if np.isnan(error):
                continue
            if name == "accuracy":
                intervals[name] = self._wilson(value, error, freedom, level, exact)
            else:
                half = float(stdtrit(freedom, (1 + level) / 2)) * error
                intervals[name] = _studentised(name, value, half)
        if "r2" in intervals:
            low, high = intervals["r2"]
            intervals["r2"] = low, min(high, max(values["r2"], self._r2_limit(predictions, level)))
        return intervals

    def resampled(self, predictions: Predictions, metric: str) -> np.ndarray:
        """One metric in each resample, nan where it is undefined: [S]."""
        return self._estimates(predictions, [metric], ["resampled"])[0][metric]

    def jackknifed(self, predictions: Predictions, metric: str) -> np.ndarray:
        """One metric without each unit in turn: [G]; all nan if there are more units than resamples."""
        if self.n_units < 2 or self.n_units > self.resamples:
            return np.full(self.n_units, np.nan)
        return self._estimates(predictions, [metric], ["jackknifed"])[0][metric]

    def error_of(self, metric: str, predictions: Predictions, minus: Predictions | None = None) -> tuple[float, float]:
        """The standard error of a metric, or of its lead over that of other predictions, and its degrees of freedom.

        (nan, nan) with fewer than two units, for a metric that is undefined in all resamples, and for one that ranks or
        averages over classes with fewer than `LEAST_OF_A_CLASS` units of one.
        """
        n = self.n_units

        def of(kind: str) -> np.ndarray:
            found = self._estimates(predictions, [metric], [kind])[0][metric]
            return found if minus is None else found - self._estimates(minus, [metric], [kind])[0][metric]

        too_few = metric in _BY_CLASS and self.rarest_of(predictions) < LEAST_OF_A_CLASS
        drawn = of("resampled") if n > 1 and not too_few else np.empty(0)
        drawn = drawn[np.isfinite(drawn)]
        if not len(drawn):
            return np.nan, np.nan
        freedom, variance = n - 1.0, float(drawn.var()) * n / (n - 1)
        # Simply G - 1 with more units than resamples, and for a quantile such as a rate of the ROC curve, where what
        # one group does says nothing of its variance.
        if n <= self.resamples and metric not in ROC_RATES and (self.groups is not None or minus is not None):
            left = of("jackknifed")
            freedom = satterthwaite(left[np.isfinite(left)], n)
        few = self._few_of_a_class(predictions) if metric in _BY_CLASS else []
        if few:
            influence = np.nan_to_num(of("rare") - of("once"))
            parts = np.split(influence, np.cumsum([len(units) for units in few])[:-1])
            least = [0.0] * len(parts)
            if metric == "balanced_accuracy":
                C, right = len(np.unique(predictions.truth)), _right(predictions, minus)
                recalls = [right[np.isin(self._unit, units)].mean() for units in few]
                lowest = 0.0 if minus is None else -1.0
                least = [_least_of_recall(part * C, r, lowest) / C**2 for part, r in zip(parts, recalls, strict=True)]
            variance, freedom = _with_few(parts, least, float(drawn.var()), variance, freedom, n)
        return float(np.sqrt(variance)), freedom

    def _few_of_a_class(self, predictions: Predictions) -> list[np.ndarray]:
        """The units of each class of fewer than `MANY_OF_A_CLASS`; none of a class that shares any group with another.

        Of such a class, units of its own are few by chance: a pair that lost its other half is no class of one unit.
        """
        if predictions.n_classes == 0:
            return []
        truth, of_unit = predictions.truth, np.full(self.n_units, -1)
        of_unit[self._unit] = truth
        mixed = np.bincount(self._unit, weights=of_unit[self._unit] != truth, minlength=self.n_units) > 0
        pure = np.setdiff1d(truth, truth[mixed[self._unit]])
        few = [units for c in pure if len(units := np.flatnonzero(of_unit == c)) < MANY_OF_A_CLASS]
        return few if sum(map(len, few)) <= self.resamples else []

    @property
    def n_units(self) -> int:
        """Number of units that are drawn, G: examples or groups."""
        return self._n_units

    @property
    def n_groups(self) -> int | None:
        """The number of groups; None where each example is its own."""
        return None if self.groups is None else self._n_units

    @property
    def has_intervals(self) -> bool:
        """Whether there are groups enough for intervals, or each example is its own."""
        return not too_few_groups(self.n_groups)

    def forget(self, counts: bool) -> None:
        """Free what was worked out for predictions and, with `counts`, the resamples, which can be drawn again."""
        self._known = {}
        if counts:
            self._kept = []

    def draws_as(self, other: "Bootstrap") -> bool:
        """Whether the other one draws the same resamples."""
        same = (self.n, self.seed, self.resamples) == (other.n, other.seed, other.resamples)
        if self.groups is None or other.groups is None:
            return same and self.groups is other.groups
        return same and np.array_equal(self.groups, other.groups)

    def weights(self) -> Iterator[np.ndarray]:
        """How often each example occurs in each resample, a few resamples at a time: float [S, N]."""
        if self._n_units * self.resamples > MOST_KEPT:
            counts = self._draw()
        else:
            with self._drawing:  # layers may be scored in several threads
                self._kept = self._kept or list(self._draw())
            counts = self._kept
        for each in counts:
            yield (each if self.groups is None else each[self._unit]).astype(np.float64).T

    def _draw(self) -> Iterator[np.ndarray]:
        """How often each unit occurs in each resample, a few resamples at a time: whole numbers [G, S]."""
        rng, n_units = np.random.default_rng(self.seed), self._n_units
        for size in self._chunks(self.resamples):
            drawn = rng.integers(n_units, size=(size, n_units)) + n_units * np.arange(size)[:, None]
            counts = np.bincount(drawn.ravel(), minlength=size * n_units).reshape(size, n_units)
            yield np.ascontiguousarray(counts.T, dtype=np.min_scalar_type(counts.max()))

    def _chunks(self, total: int) -> list[int]:
        """How many of all sets of weights to take at a time."""
        step = max(_LEAST_CHUNK, _CHUNK // self.n)
        return [min(step, total - start) for start in range(0, total, step)]

    def _weights_without(self, units: np.ndarray) -> Iterator[np.ndarray]:
        """Weights that leave out one of these units each, a few units at a time: float [S, N]."""
        start = 0
        for size in self._chunks(len(units)):
            some = units[start : (start := start + size)]
            yield (self._unit[:, None] != some).astype(np.float64).T

    def _estimates(
        self, predictions: Predictions, names: list[str], kinds: Iterable[str]
    ) -> tuple[dict[str, np.ndarray], ...]:
        """Metrics under each set of weights of some kinds; remembered, as intervals, bands and comparisons need them.

        The kinds are "once" (each example), "resampled", "jackknifed", and "rare": jackknifed by the units of classes
        of few.
        """
        # the predictions are kept, so that no others get their id
        known = self._known.setdefault(id(predictions), (predictions, {}))[1]
        missing = {kind: [name for name in names if (kind, name) not in known] for kind in kinds}
        if new := list(dict.fromkeys(itertools.chain(*missing.values()))):
            metrics = weighing(predictions, new)
            for kind, some in missing.items():
                if some:
                    chunks = [metrics(W) for W in self._weights_of(kind, predictions)]
                    known |= {(kind, name): np.concatenate([chunk[name] for chunk in chunks]) for name in new}
        return tuple({name: known[kind, name] for name in names} for kind in missing)

    def _weights_of(self, kind: str, predictions: Predictions) -> Iterator[np.ndarray]:
        if kind == "once":
            return iter([np.ones((1, self.n))])
        if kind == "resampled":
            return self.weights()
        few = self._few_of_a_class(predictions) if kind == "rare" else [np.arange(self._n_units)]
        return self._weights_without(np.concatenate(few))

    def _r2_limit(self, predictions: Predictions, level: float) -> float:
        """The upper end of the highest R2 that predictions of this variance can have."""
        if r2_ceiling(predictions, np.ones((self.n, 1)))[0] > _HIGH_CEILING:
            return 1.0
        known = self._known.setdefault(id(predictions), (predictions, {}))[1]
        if ("ceiling", "r2") not in known:
            known["ceiling", "r2"] = np.concatenate([r2_ceiling(predictions, W.T) for W in self.weights()])
        return float(np.nanquantile(known["ceiling", "r2"], (1 + level) / 2))

    def _wilson(self, value: float, error: float, freedom: float, level: float, exact: bool) -> tuple[float, float]:
        if value in (0, 1):
            return _exact(value, self.n_units, level)
        ungrouped = self.groups is None
        quantile = ndtri((1 + level) / 2) if ungrouped else stdtrit(freedom, (1 + level) / 2)
        n = self.n if ungrouped or error == 0 else value * (1 - value) / error**2
        k = quantile**2 / n
        middle, half = (value + k / 2) / (1 + k), np.sqrt(k * (value * (1 - value) + k / 4)) / (1 + k)
        low, high = float(middle - half), float(middle + half)
        if exact and n * min(value, 1 - value) < FEW_ERRORS:
            low, high = _widened(low, high, value, float(ndtri((1 + level) / 2) ** 2 / k), level)
        return low, high

    def rarest_of(self, predictions: Predictions) -> int:
        """The number of units, examples or groups, that hold the rarest class; all of them in a regression."""
        if predictions.n_classes == 0:
            return self.n_units
        truth = predictions.truth
        return min(len(np.unique(self._unit[truth == c])) for c in np.unique(truth))


def fewest_groups(drawn: Iterable[Bootstrap | None]) -> int | None:
    """The smallest number of groups of several test splits; None where each example of all is its own."""
    return min((n for each in drawn if each is not None and (n := each.n_groups) is not None), default=None)


def too_few_groups(n_groups: int | None) -> bool:
    """Whether there are fewer groups than intervals need; None is where each example is its own."""
    return n_groups is not None and n_groups < LEAST_GROUPS


def groups_note(n_groups: int | None) -> str:
    """The sentence beside intervals that rest on few groups, or that too few groups lack; "" where they are enough."""
    if n_groups is None or n_groups >= FEW_GROUPS:
        return ""
    if too_few_groups(n_groups):
        return f"Too few groups: {n_groups}; intervals need {LEAST_GROUPS}."
    return f"Intervals rest on {n_groups} groups; below {FEW_GROUPS} they may hold the truth less often than 95%."


def class_note(metric: str, rarest: int | None, grouped: bool = False) -> str:
    """The note on intervals that rest on few units of the rarest class, or that are missing for want of them, or "".

    Args:
        metric: the headline; an accuracy does not depend on the classes.
        rarest: test rows of that class, or groups that have it; None where it is not known, or there are none.
        grouped: whether they are groups.
    """
    if metric not in _SHARES or rarest is None or rarest >= FEW_OF_A_CLASS:
        return ""
    units = counted(rarest, "test group" if grouped else "test row")
    if metric in _BY_CLASS and rarest < LEAST_OF_A_CLASS:
        return f"Too few of the rarest class: {units}; intervals need {LEAST_OF_A_CLASS}."
    below = f"below {FEW_OF_A_CLASS} they may hold the truth less often than 95%"
    return f"Intervals rest on {units} of the rarest class; {below}."


def _units(n: int, groups: np.ndarray | None) -> tuple[np.ndarray, int]:
    """The number of each example's unit [N], and how many units there are."""
    if groups is None:
        return np.arange(n), n
    names, unit = np.unique(groups, return_inverse=True)
    return unit.ravel(), len(names)


def satterthwaite(jackknifed: np.ndarray, n_units: int) -> float:
    """Degrees of freedom of a standard error over G units, from the values without each of them [G].

    The relative variance of a variance is (k - 1) / G for G units of kurtosis k, and 2 / f for a chi-squared with f
    degrees of freedom; equating the two gives f.
    """
    if len(jackknifed) < 2:
        return 1.0
    influence = jackknifed - jackknifed.mean()
    square = (influence**2).mean() ** 2
    excess = (influence**4).mean() / square - 1 if square > 1e-40 else 0.0  # below it, the influences are rounding
    return max(1.0, min(n_units - 1, 2 * n_units / excess)) if excess > 0 else n_units - 1


def _with_few(
    parts: list[np.ndarray], least: list[float], drawn: float, variance: float, freedom: float, n: int
) -> tuple[float, float]:
    """The variance of a metric and its degrees of freedom, where some classes have few units.

    The part of a class of m units is the sum of squares of what leaving out each of them changes, with m - 1 degrees of
    freedom: for an AUROC that is m / (m - 1) times DeLong's variance, which is too small for few units (this jackknife
    is the HC3 of MacKinnon and White 1985). Resamples show about (m - 1) / m of it, so 1 / m of it is added. The
    variance is a sum of parts, each an estimate with its own degrees of freedom (Welch 1947).

    Args:
        parts: of each such class, the influences of its units.
        least: of each, the least that its part can be.
        drawn: variance over resamples.
        variance: the same, corrected for the number of all units.
        freedom: of it.
        n: number of all units.
    """
    sizes = [len(part) for part in parts]
    seen = [float(((part - part.mean()) ** 2).sum()) for part in parts]
    own = [max(each, bound) for each, bound in zip(seen, least, strict=True)]
    variance = max(variance, drawn + sum(each / m for each, m in zip(seen, sizes, strict=True)))
    variance += sum(own) - sum(seen)
    rest = max(0.0, variance - sum(own))
    below = sum(each**2 / (m - 1) for each, m in zip(own, sizes, strict=True))
    below += rest**2 / max(1, n - sum(sizes) - 1)
    return variance, min(freedom, max(1.0, variance**2 / below)) if below > 0 else freedom


def _right(predictions: Predictions, minus: Predictions | None) -> np.ndarray:
    """Whether each row is right, less whether the other predictions are: [N]."""
    right = (predictions.predicted == predictions.truth).astype(float)
    return right if minus is None else right - (minus.predicted == minus.truth)


def _least_of_recall(influence: np.ndarray, recall: float, lowest: float) -> float:
    """The variance of one class's recall, or of a difference of two, with a best and a worst unit added to its m units.

    Where all units are right, their influences are 0, which says nothing of the next one (Agresti and Caffo 2000; for a
    difference Bonett and Price 2012).

    Args:
        influence: what leaving out each unit changes, [m].
        recall: of the class.
        lowest: of one unit; the highest is 1.
    """
    m = len(influence)
    middle = (m * recall + 1 + lowest) / (m + 2)
    squares = float(((influence - influence.mean()) ** 2).sum()) * (m - 1) ** 2 + m * (recall - middle) ** 2
    return (squares + (1 - middle) ** 2 + (lowest - middle) ** 2) / (m + 2) ** 2


def _widened(low: float, high: float, value: float, n: float, level: float) -> tuple[float, float]:
    """Widened to the exact interval of n independent examples, n not always an integer (Korn and Graubard 1998)."""
    right, tail = value * n, (1 - level) / 2
    ends = betaincinv(right, n - right + 1, tail), betaincinv(right + 1, n - right, 1 - tail)
    return min(low, float(ends[0])), max(high, float(ends[1]))


def _exact(value: float, n: int, level: float) -> tuple[float, float]:
    worst = ((1 - level) / 2) ** (1 / n)
    return (worst, 1.0) if value == 1 else (0.0, 1 - worst)


def _studentised(name: str, value: float, half: float) -> tuple[float, float]:
    """The value plus and minus `half` on the scale where the metric is closest to normal, mapped back."""
    if half == 0 or not np.isfinite(half):
        return value, value
    step = np.array([-half, half])
    if name in _SHARES:
        low, high = expit(logit(value) + step / (value * (1 - value)))
    elif name == "spearman":
        low, high = np.tanh(np.arctanh(value) + step / (1 - value**2)) if abs(value) < 1 else (value, value)
    elif name == "r2":  # the unexplained share is treated as an error
        low, high = 1 - (1 - value) * _factor(-step / (1 - value)) if value < 1 else (value, value)
    else:
        low, high = value * _factor(step / value)
    return float(low), float(high)


def _factor(step: np.ndarray) -> np.ndarray:
    return np.exp(np.clip(step, -30, 30))  # so wide an interval needs no digits; clipping avoids overflow
