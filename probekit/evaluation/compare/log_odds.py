"""The kept row scores of results as log odds that can be mixed with one another: of places, and of black boxes.

A place has a temperature alone, which changes none of its predicted classes and no ranking of two classes.

Axes: N rows, C classes.
"""

import numpy as np

from probekit.errors import DataError, UsageError, nearest
from probekit.evaluation.compare.black_boxes import BlackBoxScores, calibrated_scores, class_columns, judged_rows
from probekit.evaluation.results.data import NO_BEST, ProbeData
from probekit.evaluation.results.row_scores import RowScores
from probekit.evaluation.scores.bootstrap import Bootstrap
from probekit.evaluation.scores.metrics import Predictions
from probekit.probes.base import predicted_labels, probabilities
from probekit.probes.calibration import fit_scale
from probekit.text import printable


def rows_that_choose(results: ProbeData, what: str, of_numbers: bool = False) -> RowScores:
    """The rows of results with validation rows among them, and with classes, unless `of_numbers`; `what` needs them.

    Raises:
        UsageError: labels that are numbers, nested folds, or no validation rows.
        DataError: results of an older version, which kept no rows.
    """
    if not (results.meta["n_classes"] or of_numbers):
        raise UsageError(f"{what} is of classes, and {results.meta['label']!a:.40} holds numbers; name another label")
    if results.rows is None:
        raise DataError("the results have no scores of their rows, as an older version made them; train again")
    if not (results.rows.splits == "validation").any():
        kind = "nested folds have none" if results.procedure is not None else "the task has none"
        raise UsageError(f"{what} is chosen on validation rows, and {kind}; train on splits with validation")
    return results.rows


def scored_place_of(results: ProbeData, place: str | None) -> str:
    """A place of results, by default the selected one.

    Raises:
        UsageError: no such place, or none was selected.
    """
    known = [layer.place for layer in results.layers]
    if place is None:
        if results.selected is None:
            raise UsageError(NO_BEST)
        return results.selected.place
    if place not in known:
        raise UsageError(f"the results have no place {place!a:.60}; {nearest(str(place), known)}")
    return place


def place_log_odds(results: ProbeData, rows: RowScores, place: str) -> np.ndarray:
    """The scores of a place for the rows of results, scaled by one temperature that validation fits: [N] or [N, C].

    Of a regression they are its predictions, as they are. So are scores whose temperature would be infinite, as
    validation rows point the other way: with 0 in their place the probe would predict nothing.
    """
    if not results.meta["n_classes"]:
        return rows.scores[place].astype(np.float64)
    probe = next(layer.probe for layer in results.layers if layer.place == place)
    scores, chosen = rows.scores[place].astype(np.float64), rows.splits == "validation"
    columns = scores[:, None] if scores.ndim == 1 else scores
    scale = fit_scale(columns[chosen], rows.labels[chosen], getattr(probe, "log_odds", False), biased=False)
    return (scale.slope or 1.0) * scores


def box_log_odds(box: BlackBoxScores, rows: RowScores, classes: tuple[str, ...], label: str) -> np.ndarray:
    """The scores of a black box for the rows of results, calibrated on validation as a baseline is: [N] or [N, C].

    Raises:
        DataError: a row without a score; scores of other classes.
    """
    found = judged_rows(box, rows.ids)
    if len(missing := np.flatnonzero(found < 0)):
        raise DataError(
            f"{box.name}: no score for the row {printable(rows.ids[missing[0]])!a:.60} ({len(missing):,} of "
            f"{len(found):,} rows that choose or test have none); add them"
        )
    values = class_columns(box, classes, label)[found]
    return calibrated_scores(box, values, rows.labels, np.flatnonzero(rows.splits == "validation"), len(classes))


def same_rows(rows: RowScores, theirs: RowScores) -> np.ndarray | None:
    """Where each row is among others, int64 [N]; None unless both have the same ids, splits and labels."""
    at = {(split, one): i for i, (split, one) in enumerate(zip(theirs.splits, theirs.ids, strict=True))}
    order = np.array([at.get(key, -1) for key in zip(rows.splits, rows.ids, strict=True)])
    fits = len(rows.ids) == len(theirs.ids) and (order >= 0).all()
    return order if fits and np.array_equal(theirs.labels[order], rows.labels) else None


def resamples_of(results: ProbeData, rows: RowScores) -> Bootstrap:
    """The resamples of the test rows that the results drew."""
    groups = rows.groups[rows.splits == "test"]
    own = len(np.unique(groups)) == len(groups)
    return Bootstrap(len(groups), results.meta.get("seed") or 0, None if own else groups)


def predictions_from(log_odds: np.ndarray, labels: np.ndarray, n_classes: int) -> Predictions:
    """Log odds [N], or logits [N, C], as predictions of the labels."""
    return Predictions(labels, predicted_labels(log_odds), log_odds, n_classes, probabilities(log_odds))
