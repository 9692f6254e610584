"""The view as JSON: numbers as base64 of bytes, each distinct piece of text once.

A score is stored as one signed byte q and is `sinh(q * step) * unit + centre`, with the unit and the centre of its
place and one step for all. So the error is at most about half a step near the centre and half a step of the distance
from it far away: log odds of 0.3 and of 300 both keep their digits, which equal steps would not give them.

Axes: T tokens, P places, O outputs, H heads, L tokens of one text.
"""

import base64
from typing import Any

import numpy as np

from probekit.report.tokens.data import Attention, Lens, TokenScores

LEVELS = 127  # of a signed byte; -128 is "no score"
NONE = -128
PIECE = 48  # characters of a token that are shown; longer ones are cut in the middle
LABEL = 200  # of a label or a text's name


def packed(view: TokenScores) -> dict[str, Any]:
    """What the script reads."""
    unit, centre = view.units[None, :, None], view.centres[None, :, None]
    scores, placebo, texts = ((x - centre) / unit for x in (view.scores, view.placebo, view.text_scores))
    step = common_step(scores, placebo, texts)
    distinct = list(dict.fromkeys(cut(piece, PIECE) for piece in view.pieces))
    number = {piece: i for i, piece in enumerate(distinct)}
    return {
        "places": view.places,
        "layers": view.layers,
        "best": view.best,
        "outputs": [cut(name, LABEL) for name in view.outputs],
        "texts": [
            [
                None if one.id == str(i) else cut(one.id, LABEL),
                *(_or_none(one.label), _or_none(one.predicted), _as_int(one.is_mistake), one.why),
            ]
            for i, one in enumerate(view.texts)
        ],
        "offsets": view.offsets.tolist(),
        "pieces": distinct,
        "tokens": _base64(np.array([number[cut(piece, PIECE)] for piece in view.pieces], dtype="<u4")),
        "marks": _base64(view.marks),
        "scores": _base64(levels(scores, step)),
        "placebo": _base64(levels(placebo, step)),
        "of_texts": _base64(levels(texts, step)),
        "step": step,
        "units": [float(f"{value:.6g}") for value in view.units],
        "centres": [float(f"{value:.6g}") for value in view.centres],
        **{key: view.meta[key] for key in ("kind", "classes", "has_best")},
        "lens": None if view.lens is None else _lens(view.lens),
        "attention": None if view.attention is None else _attention(view.attention),
    }


def common_step(*scores: np.ndarray) -> float:
    """The step of the stored scores, so that the largest is the last level."""
    finite = [np.abs(x[np.isfinite(x)]).max(initial=0.0) for x in scores]
    return float(np.arcsinh(max(*finite, 1e-3)) / LEVELS)


def levels(scores: np.ndarray, step: float) -> np.ndarray:
    """Scores as signed bytes; what is not finite is `NONE`."""
    is_known = np.isfinite(scores)
    found = np.rint(np.arcsinh(np.where(is_known, scores, 0.0)) / step)
    return np.where(is_known, np.clip(found, -LEVELS, LEVELS), NONE).astype(np.int8)


def restored(stored: np.ndarray, step: float) -> np.ndarray:
    """The scores that the bytes mean; nan for `NONE`."""
    return np.where(stored == NONE, np.nan, np.sinh(stored.astype(np.float64) * step))


def _lens(lens: Lens) -> dict[str, Any]:
    listed = sorted(lens.spelled)
    number = np.zeros(max(listed, default=0) + 1, dtype=np.int64)
    number[listed] = np.arange(len(listed))
    return {
        "texts": lens.texts,
        "places": lens.places,
        "k": int(lens.top.shape[2]),
        "pieces": [cut(lens.spelled[i], PIECE) for i in listed],
        "top": _base64(number[lens.top].astype("<u4" if len(listed) > 65_535 else "<u2")),
        "wide": len(listed) > 65_535,
        "probability": _base64(np.rint(lens.probability * 255).astype(np.uint8)),
    }


def _attention(found: Attention) -> dict[str, Any]:
    parts = [np.rint(np.clip(one, 0, 1) * 255).astype(np.uint8) for one in found.patterns]
    return {
        "layers": found.layers,
        "texts": found.texts,
        "heads": int(parts[0].shape[1]) if parts else 0,
        "patterns": [_base64(one) for one in parts],
    }


def _base64(values: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode()


def cut(text: str, most: int) -> str:
    """A text of at most `most` characters and an ellipsis."""
    half = most // 2
    return text if len(text) <= most else f"{text[:half]}…{text[-half:]}"


def _or_none(text: str | None) -> str | None:
    return None if text is None else cut(text, LABEL)


def _as_int(value: bool | None) -> int | None:
    return None if value is None else int(value)
