"""The token by layer view as a section of the report, and as a page of its own.

The page makes no request: its policy allows the one script and the one style sheet whose hashes it names.
"""

import base64
import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from probekit.report.section import Section
from probekit.report.tokens.data import TokenScores
from probekit.report.tokens.pack import LABEL, _cut, packed
from probekit.selections import in_words
from probekit.text import counted, printable

HERE = Path(__file__).parent
TITLE = "Tokens by layer"


def token_section(view: TokenScores, name: str = "tokens") -> Section:
    """The view as a section of a page; `script` and `styles` are what it needs there."""
    block = f"{name}-view"
    known = [one for one in view.texts if one.predicted is not None]
    html = _environment().get_template("tokens.html").render(
        block=block,
        about=about(view),
        notes=_notes(view),
        places=len(view.places),
        outputs=[printable(_cut(one, LABEL)) for one in view.outputs],
        classes=bool(view.meta["classes"]),
        scored=bool(known),
        judged=any(one.is_mistake is not None for one in known),
        labelled=bool(view.meta["classes"]) and any(one.label is not None for one in view.texts),
        lens=view.lens is not None,
        attention=view.attention is not None,
        **_legend(view),
    )
    return Section(name, TITLE, Markup(html), {"view": packed(view)})  # noqa: S704  (from a template that escapes)


def script() -> str:
    """The script of the view, without the indentation and comments of its file."""
    lines = (line.strip() for line in (HERE / "tokens.js").read_text(encoding="utf-8").splitlines())
    return "\n".join(line for line in lines if line and not line.startswith(("//", "/**")))


def styles() -> str:
    """The style sheet of the view."""
    return (HERE / "tokens.css").read_text(encoding="utf-8")


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
        return {"low": "below the mean", "middle": f"mean {view.centre:.4g}", "high": "above"}
    if len(classes) == 2:
        low, high = (printable(_cut(one, 40)) for one in classes)
        return {"low": low, "middle": f"threshold {view.centre:.3g}", "high": high}
    return {"low": "another class", "middle": "even odds" if kind == "log odds" else "tie", "high": "the class"}


def token_page(view: TokenScores, title: str = TITLE) -> str:
    """The view as a complete, self-contained HTML page."""
    part = token_section(view)
    style = PAGE_STYLE + styles()
    policy = f"default-src 'none'; script-src '{_hash(script())}'; style-src '{_hash(style)}'; base-uri 'none'"
    return _environment().get_template("token_page.html").render(
        title=printable(title),
        policy=policy,
        style=Markup(style),
        script=Markup(script()),
        body=part.html,
        blocks={f"{part.name}-{key}": json_block(value) for key, value in part.data.items()},
    )


PAGE_STYLE = """:root{color-scheme:light dark}body{font:16px/1.5 system-ui,sans-serif;margin:1rem auto;max-width:80rem;
padding:0 1rem;background:Canvas;color:CanvasText}h1{font-size:1.3rem;overflow-wrap:anywhere}
"""


def json_block(value: Any) -> Markup:
    """JSON for a script element, in which no text can end it or begin a comment."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for letter in "<>&":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return Markup(text)  # noqa: S704


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@cache
def _environment() -> Environment:
    return Environment(loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined)
