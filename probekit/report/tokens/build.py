"""Make the token by layer view of texts: pieces, marks, scores, a placebo, and what the texts' labels are.

Axes: N texts, R tokens without context tokens, T tokens with them, P places, O outputs,
D width, C classes.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.special import logsumexp
from torch import Tensor

from probekit.activations.activations import Activations
from probekit.errors import UsageError
from probekit.evaluation.results.data import LayerResult, ProbeData
from probekit.models.tokenizer import Tokenizer
from probekit.points import Place
from probekit.probes.base import as_numpy, predicted_labels
from probekit.probes.sequence.base import text_scores
from probekit.probes.sequence.ragged import in_memory
from probekit.ragged import ranges, starts_of
from probekit.report.tokens.data import CONTEXT, SPECIAL, TRAINED, ScoredText, TokenScores
from probekit.report.tokens.read import TokenRows
from probekit.scoring.calibrate import Calibration, calibration_of
from probekit.scoring.threshold import choose_threshold


def token_decisions(probe: Any, rows: Tensor) -> np.ndarray:
    """The decision at each row by itself: [R] for two classes or one number, [R, C] for more.

    A probe over a sequence scores each token as a text of this token alone.
    """
    if probe.of_sequences:
        return text_scores([probe], in_memory(rows, np.ones(len(rows), dtype=np.int64)))[0]
    return probe.predict(rows) if probe.predicts == "numbers" else probe.decision_function(rows)


def text_decisions(probe: Any, rows: Tensor, counts: np.ndarray) -> np.ndarray:
    """The decision for each text from its tokens: of all of them at once, or of their mean."""
    if probe.of_sequences:
        return text_scores([probe], in_memory(rows, counts))[0]
    x = as_numpy(rows).astype(np.float64)
    ends = np.cumsum(counts)
    means = np.add.reduceat(x, ends - counts) / counts[:, None]
    return token_decisions(probe, means)  # pyright: ignore[reportArgumentType]


def by_output(decision: np.ndarray, kind: str) -> np.ndarray:
    """Scores [O, R]: of the second of two classes, of each class against all others together, or of each number.

    Class k of several has its log odds, s_k minus the log of the summed exponentials of the others; where `kind` is
    "score" and not "log odds", s_k minus the largest of the others.
    """
    if decision.ndim == 1:
        return decision[None]
    if kind == "value":
        return decision.T
    against: Any = logsumexp if kind == "log odds" else np.max
    others = [against(np.delete(decision, k, axis=1), axis=1) for k in range(decision.shape[1])]
    return decision.T - np.stack(others)


def random_weights(rows: int, seed: int) -> np.ndarray:
    """Standard normal numbers [rows], of which `placebo_scores` makes the same placebo at every place."""
    return np.random.default_rng(seed).standard_normal(rows)


def placebo_scores(x: Tensor, own: np.ndarray, trained: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Scores of a random direction that varies as the probe's own scores do, [O, R].

    The direction is a sum of the centred activations of the trained tokens with random weights: a draw from the normal
    distribution with their covariance. Its scores are shifted and scaled so that over the trained tokens they have the
    mean and the standard deviation of the probe's own.

    Args:
        x: activations [R, D].
        own: the probe's scores [O, R].
        trained: which rows are trained tokens; where fewer than three are, all rows count.
        weights: one for each row.
    """
    which = trained if trained.sum() > 2 else np.ones_like(trained)
    rows = as_numpy(x).astype(np.float64)
    centred = rows - rows[which].mean(axis=0)
    score = centred @ (weights[which] @ centred[which])
    spread = score[which].std()
    score = score / spread if spread > 0 else np.zeros_like(score)
    mean, sd = own[:, which].mean(axis=1, keepdims=True), own[:, which].std(axis=1, keepdims=True)
    return mean + sd * (score - score[which].mean())


SEED = 0  # of the placebo
MOST_CLASSES = 8  # whose scores are kept; the most frequent ones


def token_scores(
    data: ProbeData,
    rows: TokenRows,
    why: list[str] | None = None,
    fpr: float | None = None,
    tokenizer: Tokenizer | None = None,
) -> TokenScores:
    """The scores of the fitted probes at every token of some texts.

    Those of classes are calibrated on the validation rows of the results where these have them, so that they are log
    odds at every place and for every kind of probe.

    Args:
        data: the curve.
        rows: the tokens of the texts.
        why: why each text was chosen.
        fpr: false-positive rate on validation whose threshold is the centre of two classes; None centres on even odds.
        tokenizer: of the model, which spells tokens where the characters of each are unknown.

    Raises:
        UsageError: no place has both a fitted probe and activations; a rate that validation cannot hold.
        DataError: a rate without validation rows.
    """
    acts, layout = rows.acts, rows.acts.layout
    fitted = [one for one in data.layers if one.probe is not None and (one.point, one.layer) in acts]
    if not fitted:
        raise UsageError("no fitted probe was saved for the places of these activations, so no token can be scored")
    kept, best = _outputs(data, fitted[0].probe), _best(data, fitted)
    meaning = [_meaning(data, one, fpr) for one in fitted]
    if any(one.calibration is None for one in meaning):  # one kind of score for all places
        meaning = [one._replace(calibration=None) for one in meaning]
    kind, weights = _kind(fitted[0].probe, meaning), random_weights(len(rows.read), SEED)
    each = [
        _of_place(one.probe, acts._rows(Place(one.point, one.layer)), rows, kept, weights, kind, how.calibration)
        for one, how in zip(fitted, meaning, strict=True)
    ]
    scores, placebo, of_texts = (np.stack(some, axis=1) for some in list(zip(*each, strict=True))[:3])
    own_T, n_all = _own_tokens(acts), int(layout.lengths.sum())
    predicted = _predicted(data, each[best].decided, each[best].has, len(acts.task), meaning[best].threshold)
    return TokenScores(
        texts=_texts(data, acts, predicted, why),
        offsets=np.concatenate([[0], np.cumsum(layout.lengths)]),
        pieces=_with_context(pieces_of(acts, tokenizer), rows, own_T),
        marks=_marks(rows, own_T, n_all),
        places=[one.place for one in fitted],
        layers=[one.layer for one in fitted],
        best=best,
        outputs=_names(data, kept),
        scores=_spread(scores, own_T, n_all),
        placebo=_spread(placebo, own_T, n_all),
        text_scores=of_texts,
        centres=_centres(meaning, scores, rows.read, kind),
        units=_units(kind, scores, rows.read),
        meta={**_meta(data, fitted[0].probe, rows, kind), "fpr": fpr, "calibrated_on": _calibrated_on(meaning)},
    )


class _PlaceScores(NamedTuple):
    """The scores of one place: [O, R], [O, R] and [O, N]; the decision for each text that has one, and which have."""

    scores: np.ndarray
    placebo: np.ndarray
    of_texts: np.ndarray
    decided: np.ndarray
    has: np.ndarray


class _Meaning(NamedTuple):
    """What a place's scores mean: their calibration, and the score at and above which the second class is predicted."""

    calibration: Calibration | None
    threshold: float | None


def _meaning(data: ProbeData, layer: LayerResult, fpr: float | None) -> _Meaning:
    # the calibration of a probe over a sequence is that of complete texts
    calibration = None if layer.probe.of_sequences else calibration_of(data.rows, layer.place, layer.probe.log_odds)
    return _Meaning(
        calibration, None if fpr is None else choose_threshold(data.rows, layer.place, fpr, fpr_of="score").value
    )


def _kind(probe: Any, meaning: list[_Meaning]) -> str:
    """What the scores are: "value" of a regression, "log odds", or "score" without a unit."""
    if probe.predicts == "numbers":
        return "value"
    return "log odds" if probe.log_odds or meaning[0].calibration is not None else "score"


def _calibrated_on(meaning: list[_Meaning]) -> int | None:
    return None if meaning[0].calibration is None else meaning[0].calibration.rows


def _of_place(
    probe: Any,
    x: Tensor,
    rows: TokenRows,
    kept: np.ndarray,
    weights: np.ndarray,
    kind: str,
    calibration: Calibration | None,
) -> _PlaceScores:
    own = by_output(_log_odds(token_decisions(probe, x), calibration), kind)[kept]
    decided, has = _of_texts(probe, x, rows)
    of_texts = np.full((len(kept), len(rows.acts.task)), np.nan)
    if len(has):
        of_texts[:, has] = by_output(_log_odds(decided, calibration), kind)[kept]
    return _PlaceScores(own, placebo_scores(x, own, rows.read, weights), of_texts, decided, has)


def _log_odds(decision: np.ndarray, calibration: Calibration | None) -> np.ndarray:
    """The decision, or its calibrated log odds; of several classes up to a constant."""
    if calibration is None:
        return decision
    return calibration.log_odds(decision)


def _best(data: ProbeData, fitted: list[LayerResult]) -> int:
    chosen = data.selected
    places = [one.place for one in fitted]
    return places.index(chosen.place) if chosen is not None and chosen.place in places else len(fitted) - 1


def _outputs(data: ProbeData, probe: Any) -> np.ndarray:
    """Which outputs are kept: the most frequent classes of train, in their order."""
    classes = data.meta.get("classes") or []
    if len(classes) <= 2:
        n = probe.predicts == "numbers" and getattr(getattr(probe, "coef_", None), "ndim", 1) == 2
        return np.arange(len(probe.coef_) if n else 1)
    counts = data.meta.get("counts", {}).get("train", {})
    often = np.argsort([-counts.get(name, 0) for name in classes], kind="stable")[:MOST_CLASSES]
    return np.sort(often)


def _names(data: ProbeData, kept: np.ndarray) -> list[str]:
    classes = data.meta.get("classes") or []
    if len(classes) == 2:
        return [str(classes[1])]
    if classes:
        return [str(classes[k]) for k in kept]
    label = str(data.meta["label"])
    return [label] if len(kept) == 1 else [f"{label} {k}" for k in kept]


def _of_texts(probe: Any, x: Tensor, rows: TokenRows) -> tuple[np.ndarray, np.ndarray]:
    """The decision for each text that has trained tokens, and which texts these are."""
    lengths = rows.acts.layout.own_lengths
    of = np.repeat(np.arange(len(lengths)), lengths)[rows.read]
    counts = np.bincount(of, minlength=len(lengths))
    has = np.flatnonzero(counts)
    if not len(has):
        return np.zeros(0), has
    return text_decisions(probe, x[torch.from_numpy(np.flatnonzero(rows.read)).to(x.device)], counts[has]), has


def _predicted(
    data: ProbeData, decided: np.ndarray, has: np.ndarray, n: int, threshold: float | None
) -> list[str | None]:
    classes = data.meta.get("classes") or []
    found: list[str | None] = [None] * n
    values = decided
    if classes:
        values = predicted_labels(decided) if threshold is None else decided >= threshold
    for i, value in zip(has.tolist(), values, strict=True):
        found[i] = str(classes[int(value)]) if classes else _number(value)
    return found


def _number(value: Any) -> str:
    return ", ".join(f"{one:.4g}" for one in np.atleast_1d(value))


def _texts(data: ProbeData, acts: Activations, predicted: list[str | None], why: list[str] | None) -> list[ScoredText]:
    classes, labels = data.meta.get("classes") or [], acts.task.labels.get(data.meta["label"])
    found = []
    for i, name in enumerate(acts.task.ids):
        label = None
        if labels is not None:
            known = labels[i] >= 0 if classes else np.isfinite(labels[i]).all()
            label = (str(classes[int(labels[i])]) if classes else _number(labels[i])) if known else None
        guess = predicted[i]
        is_mistake = label != guess if classes and label is not None and guess is not None else None
        found.append(ScoredText(str(name), label, guess, is_mistake, why[i] if why else "given"))
    return found


def pieces_of(acts: Activations, tokenizer: Tokenizer | None = None) -> list[str]:
    """The characters of each own token, with the blanks before it.

    Joined, those of a text are the text up to its last token. Of the tokens that are bytes of one character the first
    has it and the others have none. Where the characters are unknown, the tokens as the vocabulary spells them, or ids.
    """
    layout, task = acts.layout, acts.task
    texts: Any = task.targets if acts.points[0].startswith("decoder.") else task.inputs
    if layout.characters is None or not isinstance(texts[0], str):
        ids = [] if layout.tokens is None else layout.tokens.tolist()
        return tokenizer.tokens(ids) if tokenizer is not None else [str(i) for i in ids]
    found, offsets = [], layout.offsets().tolist()
    for text, first, last in zip(texts, offsets, offsets[1:], strict=False):
        end = 0
        for start, stop in layout.characters[first:last].tolist():
            found.append(text[end:stop] if stop > end else "")
            end = max(end, start, stop)
    return found


def _own_tokens(acts: Activations) -> np.ndarray:
    """Where own tokens are among all tokens, int64 [R]."""
    layout = acts.layout
    return ranges(starts_of(layout.lengths) + layout.n_bos, layout.own_lengths)


def _with_context(own: list[str], rows: TokenRows, where: np.ndarray) -> list[str]:
    layout = rows.acts.layout
    found = [""] * int(layout.lengths.sum())
    for piece, at in zip(own, where.tolist(), strict=True):
        found[at] = piece
    ends = np.cumsum(layout.lengths).tolist()
    for start, end in zip([0, *ends], ends, strict=False):
        for i, name in enumerate(rows.context[0]):
            found[start + i] = name
        for i, name in enumerate(rows.context[1]):
            found[end - layout.n_end + i] = name
    return found


def _marks(rows: TokenRows, own: np.ndarray, n: int) -> np.ndarray:
    marks = np.full(n, CONTEXT | SPECIAL, dtype=np.uint8)
    marks[own] = np.where(rows.read, TRAINED, 0)
    if rows.special is not None:
        marks[own] |= np.where(rows.special, SPECIAL, 0).astype(np.uint8)
    return marks


def _spread(scores: np.ndarray, own: np.ndarray, n: int) -> np.ndarray:
    found = np.full((*scores.shape[:2], n), np.nan)
    found[:, :, own] = scores
    return found


def _centres(meaning: list[_Meaning], scores: np.ndarray, read: np.ndarray, kind: str) -> np.ndarray:
    """Even odds, or the threshold [P]; of a regression the mean of the tokens like those that it was trained on."""
    if kind == "value":
        return np.full(scores.shape[1], scores[..., read if read.any() else slice(None)].mean())
    lines = [
        (np.zeros(1) if one.threshold is None else _log_odds(np.array([one.threshold]), one.calibration))
        for one in meaning
    ]
    return np.concatenate(lines)


def _units(kind: str, scores: np.ndarray, read: np.ndarray) -> np.ndarray:
    """1 for log odds; otherwise standard deviations of the trained tokens' scores.

    Values of a regression have one unit at all places, and scores that are no log odds one at each place.
    """
    if kind == "log odds":
        return np.ones(scores.shape[1])
    some = scores[..., read if read.sum() > 1 else slice(None)]
    spread = np.full(scores.shape[1], some.std()) if kind == "value" else some.std(axis=(0, 2))
    return np.where(spread > 0, spread, 1.0)


def _meta(data: ProbeData, probe: Any, rows: TokenRows, kind: str) -> dict[str, Any]:
    names = ("model", "task", "label", "probe", "point", "position")
    return {
        **{name: str(data.meta.get(name)) for name in names},
        "kind": kind,
        "classes": [str(one) for one in data.meta.get("classes") or []],
        "of_sequences": bool(probe.of_sequences),
        "has_best": data.selected is not None,
        "notes": list(rows.notes),
    }
