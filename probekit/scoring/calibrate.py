"""Probabilities from a probe's scores: its own, or calibrated on validation rows, whichever predict better.

A calibration is a temperature, or a temperature and a bias for each class (`probekit.probes.calibration`). It is taken
only where held-out folds of the validation rows are evidence for it, so that few rows do not make the probabilities
worse than none: their log loss, summed over rows, falls by more than `EVIDENCE`.

Axes: N rows, C classes.
"""

from dataclasses import dataclass, field, replace

import numpy as np

from probekit.evaluation.fits.predict import log_probabilities
from probekit.evaluation.results.row_scores import RowScores
from probekit.probes.base import probabilities
from probekit.probes.calibration import fit_scale
from probekit.scoring.threshold import FEW_VALIDATION_GROUPS

OWN, TEMPERATURE, BIASED = "none", "temperature", "temperature and a bias for each class"
FOLDS = 5
# In nats: odds of 20 to 1, strong evidence (Kass and Raftery 1995). In simulations of probes whose own probabilities
# are right, none of 12 draws of 24 rows of two classes, and none of 12 of 100 imbalanced rows, took a calibration; with
# 2 nats, or with a rule of one standard error, some did and lost up to 0.1 nats a row.
EVIDENCE = 3.0
SEED = 0  # of the folds


@dataclass(frozen=True, eq=False)
class Calibration:
    """What turns scores into log odds.

    Attributes:
        slope: of the scores; 1 where they stay as they are, 0 where they rank the validation rows no better than
            chance.
        shift: float64 [1] for two classes, [C] for more.
        rows: validation rows that it was chosen and fitted on.
        kind: "none" where the probe's own probabilities are kept, "temperature", or "temperature and a bias for each
            class".
        held_out: kind -> mean log loss on held-out folds, in nats; empty where the rows cannot be divided.
        groups: how many groups these rows are in; None where each is its own.
    """

    slope: float
    shift: np.ndarray
    rows: int
    kind: str = TEMPERATURE
    held_out: dict[str, float] = field(default_factory=dict)
    groups: int | None = None

    def log_odds(self, scores: np.ndarray) -> np.ndarray:
        """The log odds of scores [N], or the logits of scores [N, C]."""
        return self.slope * scores + (self.shift[0] if scores.ndim == 1 else self.shift)

    @property
    def method(self) -> str:
        """One line for tables and files, which follows on "the probabilities are"."""
        rows = f"{self.rows:,} validation {'row' if self.rows == 1 else 'rows'}"
        losses = "; ".join(f"{_shown(kind)} {loss:.3f}" for kind, loss in self.held_out.items())
        few = ""
        if self.groups is not None and losses:
            rows += f" in {self.groups:,} groups"
            few = "; with so few, they may be too sure on new groups" if self.groups < FEW_VALIDATION_GROUPS else ""
        if self.kind != OWN:
            held_out = f" (log loss on held-out folds: {losses})" if losses else ""
            return f"calibrated by {self.kind}, fitted on {rows}{held_out}{few}"
        if not self.held_out:
            return f"the probe's own, as {rows} cannot be divided into folds that compare calibrations"
        clearly = f"no calibration has a clearly lower log loss on held-out folds of {rows} ({losses})"
        return f"the probe's own, as {clearly}{few}"


def _shown(kind: str) -> str:
    return "the probe's own" if kind == OWN else kind


def fit_calibration(
    scores: np.ndarray, labels: np.ndarray, log_odds: bool, groups: np.ndarray | None = None
) -> Calibration | None:
    """Choose and fit a calibration; None where fewer than two classes occur.

    Args:
        scores: [N] for two classes, [N, C] for more.
        labels: [N], 0..C-1.
        log_odds: whether the scores are log odds, so that the probe has probabilities of its own.
        groups: [N]; rows with equal numbers share a fold. None where each row is its own.
    """
    labels = labels.astype(np.int64)
    if len(np.unique(labels)) < 2:
        return None
    columns = (scores[:, None] if scores.ndim == 1 else scores).astype(np.float64)
    groups = np.unique(np.arange(len(labels)) if groups is None else groups, return_inverse=True)[1].ravel()
    kinds = [*([OWN] if log_odds else []), TEMPERATURE, BIASED]
    losses = _held_out(columns, labels, groups, log_odds, kinds)
    best = kinds[0]
    for kind in kinds[1:] if losses else []:
        gain = float((losses[best] - losses[kind]).mean()) * (groups.max() + 1)  # a group counts as one row
        best = kind if gain > EVIDENCE else best
    means = {kind: float(loss.mean()) for kind, loss in losses.items()}
    units = int(groups.max()) + 1
    about = {"groups": None if units == len(labels) else units}
    return replace(_fitted(columns, labels, log_odds, best), held_out=means, **about)


def calibration_of(rows: RowScores | None, place: str, log_odds: bool) -> Calibration | None:
    """The calibration of a place's probe on the validation rows of results.

    None for a regression, for nested folds, and where the results hold no validation rows or not this place.

    Args:
        rows: of the results.
        place: such as "resid_pre.5".
        log_odds: whether its scores are log odds.
    """
    if rows is None or place not in rows.predicted:
        return None
    chosen = rows.splits == "validation"
    if not chosen.any():
        return None
    return fit_calibration(rows.scores[place][chosen], rows.labels[chosen], log_odds, rows.groups[chosen])


def calibrated(calibration: Calibration, scores: np.ndarray) -> np.ndarray:
    """Probabilities [N, C] of scores [N] or [N, C]."""
    return probabilities(calibration.log_odds(scores))


def _fitted(columns: np.ndarray, labels: np.ndarray, log_odds: bool, kind: str) -> Calibration:
    if kind == OWN:
        return Calibration(1.0, np.zeros(columns.shape[1]), len(labels), kind)
    scale = fit_scale(columns, labels, log_odds, biased=kind == BIASED)
    return Calibration(scale.slope, scale.shift, len(labels), kind)


def _held_out(
    columns: np.ndarray, labels: np.ndarray, groups: np.ndarray, log_odds: bool, kinds: list[str]
) -> dict[str, np.ndarray]:
    """The log loss of each row [N] under each kind, fitted without the row's fold; empty where there are no folds."""
    units = int(groups.max()) + 1
    folds = min(FOLDS, units)
    # At random: folds stratified by class would tell the biases how often each class occurs in the rows held out.
    fold = (np.random.default_rng(SEED).permutation(units) % folds)[groups]
    losses = {kind: np.empty(len(labels)) for kind in kinds} if folds > 1 else {}
    for number in range(folds if losses else 0):
        part, others = np.flatnonzero(fold == number), np.flatnonzero(fold != number)
        for kind in kinds:
            own = _fitted(columns[others], labels[others], log_odds, kind)
            scores = columns[part, 0] if columns.shape[1] == 1 else columns[part]
            logs = log_probabilities(own.log_odds(scores))
            losses[kind][part] = -logs[np.arange(len(part)), labels[part]]
    return losses
