"""The token by layer view as a section of the report, and as a page of its own.

Its numbers are base64 of bytes, and each distinct piece of text is written once. A score is stored as one signed byte q
and is `sinh(q * step) * unit + centre`, with the unit and the centre of its place and one step for all. So the error is
at most about half a step near the centre and half a step of the distance from it far away: log odds of 0.3 and of 300
both keep their digits, which equal steps would not give them.

Axes: T tokens, P places, O outputs, H heads, L tokens of one text.
"""

import base64
from typing import Any

import numpy as np
from markupsafe import Markup

from probekit.report.page import policy_of
from probekit.report.render import asset, json_block, rendered
from probekit.report.section import Section
from probekit.report.tokens.data import Attention, Lens, TokenScores
from probekit.selections import PER_EXAMPLE, Selection
from probekit.text import counted, printable

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


TITLE = "Tokens by layer"
STYLES, SCRIPTS = ("tokens/tokens.css",), ("tokens/tokens.js",)  # what a page with the section needs


def token_section(view: TokenScores, name: str = "tokens") -> Section:
    """The view as a section of a page; it also needs `STYLES` and `SCRIPTS` there."""
    known = [one for one in view.texts if one.predicted is not None]
    values = {
        "about": about(view),
        "notes": _notes(view),
        "places": len(view.places),
        "outputs": [cut(one, LABEL) for one in view.outputs],
        "classes": bool(view.meta["classes"]),
        "scored": bool(known),
        "judged": any(one.is_mistake is not None for one in known),
        "labelled": bool(view.meta["classes"]) and any(one.label is not None for one in view.texts),
        "lens": view.lens is not None,
        "attention": view.attention is not None,
        **_legend(view),
    }
    return Section(name, TITLE, rendered("tokens.html", values), {"view": packed(view)})


def about(view: TokenScores) -> str:
    """What the colours mean, in a few sentences."""
    meta, n = view.meta, len(view.texts)
    what = {"log odds": "log odds", "score": "score", "value": "predicted value"}[meta["kind"]]
    target = printable(meta["label"]) if meta["kind"] == "value" else f"class {printable(view.outputs[0])}"
    said = [f"{counted(n, 'text')}, each token coloured by the probe's {what}"]
    said[0] += f" of {target}." if len(view.outputs) == 1 else ", class by class." if meta["classes"] else "."
    said.append(f"The probe was trained on {_read(meta)}; these tokens are underlined. Hatched tokens extrapolate.")
    if meta["of_sequences"]:
        said.append("A token's score is that of a text of this token alone.")
    if meta["kind"] == "log odds":
        said.append("One scale for all texts and layers: full colour from log odds of about 4.")
        said.append(_calibrated(meta))
    elif meta["kind"] == "score":
        said.append(
            "These scores are no log odds, so each layer's are divided by their standard deviation: depth of colour "
            "does not compare layers."
        )
    else:
        said.append("Centred on the mean; full colour from about four standard deviations.")
    said.append(
        "Placebo: one random direction with the covariance of the trained tokens, scaled to the mean and spread of the "
        "probe's scores."
    )
    return " ".join(said)


def _calibrated(meta: dict[str, Any]) -> str:
    rows = meta["calibrated_on"]
    if rows is None:
        return "They are the probe's own and not calibrated, so they may be too sure."
    return (
        f"They are calibrated on {counted(rows, 'validation row')} where that clearly lowers the log loss on held-out "
        "folds of them, so layers at chance are pale."
    )


def _read(meta: dict[str, Any]) -> str:
    read = Selection.named(meta["position"])
    is_known = read.pick is not None or read == PER_EXAMPLE
    return f"the {read.in_words}" if is_known else "the tokens marked"


def _notes(view: TokenScores) -> list[str]:
    notes = list(view.meta["notes"])
    if classes := view.meta["classes"]:
        left = len(classes) - len(view.outputs)
        if len(classes) > 2 and left:
            notes.append(f"The {len(view.outputs)} most frequent of {len(classes)} classes are shown.")
    if view.lens is not None and view.lens.texts < len(view.texts):
        notes.append(f"The logit lens is that of the first {view.lens.texts} texts.")
    return notes


def _legend(view: TokenScores) -> dict[str, str]:
    classes, kind = view.meta["classes"], view.meta["kind"]
    if kind == "value":
        return {"low": "below the mean", "middle": f"mean {view.centres[0]:.4g}", "high": "above"}
    if len(classes) == 2:
        low, high = (printable(cut(one, 40)) for one in classes)
        fpr = view.meta["fpr"]
        middle = "even odds" if fpr is None else f"threshold for {100 * fpr:.3g}% false positives on validation"
        return {"low": low, "middle": middle, "high": high}
    return {"low": "another class", "middle": "even odds" if kind == "log odds" else "tie", "high": "the class"}


def token_page(view: TokenScores, title: str = TITLE) -> str:
    """The view as a complete HTML page, one file."""
    part = token_section(view)
    sheets, programs = (
        [asset(name) for name in ("page.css", *STYLES, "tokens/alone.css")],
        [asset(name) for name in SCRIPTS],
    )
    values = {
        "title": title,
        "policy": policy_of(sheets, programs),
        "styles": [Markup(sheet) for sheet in sheets],
        "scripts": [Markup(program) for program in programs],
        "body": part.html,
        "blocks": [(f"{part.name}-{key}", json_block(value)) for key, value in part.data.items()],
    }
    return f"{rendered('token_page.html', values)}\n"
