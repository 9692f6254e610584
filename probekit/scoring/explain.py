"""What the columns of scores mean, in a few lines that go with every table and file."""

from typing import Any

from probekit.evaluation.results.data import ProbeData
from probekit.evaluation.results.spread import TrainingSpread, usual_line
from probekit.evaluation.results.wording import position_name
from probekit.scoring.encoded import EncodedClassifier, EncodedRegressor
from probekit.scoring.probe import ScoringProbe
from probekit.scoring.threshold import ChosenThreshold, threshold_text
from probekit.text import counted, printable


def about_scores(results: ProbeData, probe: ScoringProbe, tokens: bool, notes: list[str]) -> dict[str, Any]:
    """The `meta` of scores, JSON-able: the probe, its place, what the columns mean, and notes."""
    calibration, threshold = probe.calibration, probe.threshold
    parts = ("tpr", "test_fpr", "precision", "lead", "final")
    rates = {name: _plain(getattr(threshold, name, None)) for name in parts}
    line = None if probe.spread is None else usual_line(probe.spread)
    lines = [_probability_line(probe, tokens)] if probe.classes else []
    lines += [] if threshold is None else [_threshold_line(probe, threshold, tokens)]
    lines += [_distance_line(probe, tokens)]
    lines += [_tokens_line(probe)] if tokens else []
    return {
        **{name: results.meta.get(name) for name in ("model", "task", "label", "probe")},
        "place": probe.place,
        "read": position_name(probe.selection),
        "classes": probe.classes,
        "calibration": None if calibration is None else {**vars(calibration), "shift": calibration.shift.tolist()},
        "threshold": None if threshold is None else {**vars(threshold), **rates},
        "unusual_above": None if line is None else {"distance": line[0], "expected_share": line[1]},
        "without_distance": probe.spread is None or (tokens and bool(probe.probe.of_sequences)),
        "notes": [*lines, *notes],
    }


def _plain(rate: Any) -> dict[str, Any] | None:
    return None if rate is None else vars(rate)


def _probability_line(probe: ScoringProbe, tokens: bool) -> str:
    if probe.calibration is None:
        return "no calibrated probabilities: these results hold no scores of validation rows to fit them on"
    if tokens and probe.probe.of_sequences:
        return "no probabilities of single tokens: those of the probe are of complete texts"
    of = f"of {printable(probe.classes[1])}" if len(probe.classes) == 2 else "of the predicted class"
    flat = "; the scores rank the validation rows no better than chance" if probe.calibration.slope == 0 else ""
    return f"probability: {of}, {probe.calibration.method}{flat}"


def _threshold_line(probe: ScoringProbe, threshold: ChosenThreshold, tokens: bool) -> str:
    if tokens and probe.probe.of_sequences:
        return "no flags: the threshold of this probe is of complete texts"
    line = threshold_text(threshold, printable(probe.classes[1]))
    of_final = threshold.of != "conversation" and probe.probe.of_sequences  # as asked, or in results of older versions
    return f"{line}; the rate is of final scores, not of alarms at any token" if of_final else line


def _distance_line(probe: ScoringProbe, tokens: bool) -> str:
    spread = probe.spread
    if tokens and probe.probe.of_sequences:
        return "no distances: those of this probe are of complete texts"
    if spread is None and isinstance(probe.probe, EncodedClassifier | EncodedRegressor):
        return "no distances: results of latents have no covariance of activations"
    if spread is None:
        return "no distances: the results hold the covariance of activations for the selected place only"
    what = " of the mean token" if probe.probe.of_sequences else ""
    from_rows = f"Mahalanobis{what} from {spread.rows:,} training rows"
    line = usual_line(spread)
    if line is None:
        return f"distance: {from_rows}; no held-out rows say which are unusual"
    return (
        f"distance: {from_rows}; unusual: above {line[0]:.4g}, expected of {_share(line[1])} of rows like those of "
        "validation"
    )


def _tokens_line(probe: ScoringProbe) -> str:
    if probe.probe.of_sequences:
        return "score: of each token as a text of its own; the probe was trained on complete texts"
    return (
        f"trained: whether the probe was trained on such tokens ({position_name(probe.selection)}); others extrapolate"
    )


def unusual_note(rows: int, unusual: int, spread: TrainingSpread, unit: str) -> str:
    """The share of unusual rows, and the share that is expected of rows like the training ones.

    Args:
        rows: that were scored; of tokens, only those of the kind that the probe was trained on.
        unusual: how many of them are.
        spread: of the training activations.
        unit: what a row is: "text", "token" or "trained token".
    """
    line = usual_line(spread)
    expected = 0.0 if line is None else line[1]
    share = f"{unusual:,} of {counted(rows, unit)} ({unusual / max(1, rows):.1%})"
    return f"unusual: {share}; {_share(expected)} are expected of {unit}s like those of the training"


def _share(value: float) -> str:
    return f"{100 * value:.2g}%"
