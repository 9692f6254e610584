"""The token by layer view as a section of the report, and as a page of its own."""

from typing import Any

from markupsafe import Markup

from probekit.report.page import policy_of
from probekit.report.render import asset, json_block, rendered
from probekit.report.section import Section
from probekit.report.tokens.data import TokenScores
from probekit.report.tokens.pack import LABEL, cut, packed
from probekit.selections import in_words
from probekit.text import counted, printable

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
    try:
        return f"the {in_words(meta['position'])}"
    except Exception:  # a position that the language does not name
        return "the tokens marked"


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
