r"""A curve as a LaTeX table with the rules of booktabs, which compiles whatever the names hold.

The preamble needs `\usepackage{booktabs}` and nothing else, with any engine. Names come from data, so every character
that TeX gives a meaning is escaped, accented Latin letters are commands, and other characters outside ASCII are
written as their code point, [U+4E2D]: the standard fonts of pdflatex have no letter for them, and stop at them.
"""

import re
import unicodedata
from collections.abc import Sequence

from probekit.evaluation.results.data import ProbeData, is_output
from probekit.evaluation.results.quote import quote_of_curve, quote_of_curves
from probekit.evaluation.results.report import title
from probekit.evaluation.results.wording import interval_text, metric_name, number_text
from probekit.tables import without_empty_columns
from probekit.text import printable

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "[": "{[}",  # after \\ and \toprule it would begin an optional argument, and a star is part of \\*
    "]": "{]}",
    "*": "{*}",
    "`": "{`}",
    "ß": r"\ss{}",
    "æ": r"\ae{}",
    "Æ": r"\AE{}",
    "ø": r"\o{}",
    "Ø": r"\O{}",
    "œ": r"\oe{}",
    "Œ": r"\OE{}",
    "ł": r"\l{}",
    "Ł": r"\L{}",
    "\u0131": r"\i{}",
    "…": r"\ldots{}",
    "\u2013": r"\textendash{}",
    "\u2014": r"\textemdash{}",
    "\u2212": "$-$",
    "·": r"$\cdot$",
    "\u00d7": r"$\times$",
    "±": r"$\pm$",
    "→": r"$\rightarrow$",
}
_MINUS = re.compile(r"(?<![\w.-])-(?=[\d.])|(?<=\de)-(?=\d)")  # of a number, 1e-05 included; not the hyphen of gpt-2
_ACCENTS = {0x300: "`", 0x301: "'", 0x302: "^", 0x303: "~", 0x308: '"', 0x304: "=", 0x307: "."}
_ACCENTS |= {0x30A: "r", 0x327: "c", 0x30C: "v", 0x306: "u", 0x30B: "H", 0x323: "d"}


def latex_text(text: object) -> str:
    """`text` as LaTeX prints it."""
    shown = "".join(map(_latex, printable(text)))
    return re.sub(r"([-',])(?=\1)", r"\1{}", shown)  # no ligatures: two hyphens are two hyphens


def _latex(letter: str) -> str:
    if letter in _SPECIAL:
        return _SPECIAL[letter]
    if letter.isascii():
        return letter
    base, *marks = unicodedata.normalize("NFD", letter)
    if len(marks) == 1 and base.isascii() and base.isalpha() and ord(marks[0]) in _ACCENTS:
        return rf"\{_ACCENTS[ord(marks[0])]}{{{base}}}"
    return f"{{[}}U+{ord(letter):04X}{{]}}"


def latex_curve(data: ProbeData) -> str:
    """The table of one curve: a row for each place, then the baselines; the selected place is bold."""
    header, *rows = without_empty_columns([_header(data), *_rows(data)])
    best = None if data.quoted is None else data.quoted.layer
    bold = {i for i, layer in enumerate(data.layers) if layer is best}
    body = [_line(row, i in bold) for i, row in enumerate(rows)]
    places, baselines = body[: len(data.layers)], body[len(data.layers) :]
    name = " ".join(str(data.meta[key]) for key in ("label", "point", "model"))
    caption = f"{title(data)}. {_caption(data)} {'Bold' if bold else 'To quote'}: {quote_of_curve(data)}."
    return _table([_line(header)], [places, baselines], len(header), 1, caption, name)


def latex_curves(curves: Sequence[ProbeData]) -> str:
    """The table of several curves, one row for each."""
    within = next((curve.meta["within"]["column"] for curve in curves if curve.meta.get("within")), "")
    header = ["label", "point", within, "probe", "best place", "metric", "test", "95% interval", "over best baseline"]
    header, *rows = without_empty_columns([header, *map(_curve_row, curves)])
    lines = [_line(row) for row in rows]
    meta = curves[0].meta
    caption = f"Probes of {printable(meta['model'])} ({printable(meta['task'])}). {_caption(*curves)}"
    caption += f" To quote: {quote_of_curves(curves)}."
    name, left = f"probes {meta['task']} {meta['model']}", header.index("probe") + 1
    return _table([_line(header)], [lines], len(header), left, caption, name)


def _curve_row(curve: ProbeData) -> list[str]:
    """The score to quote of one curve; without a selected layer there is none."""
    meta, lead = curve.meta, curve.meta.get("lead")
    quoted = curve.quoted
    return [
        str(meta["label"]),
        str(meta["point"]),
        (meta.get("within") or {"value": ""})["value"],
        str(meta["probe"]),
        "" if quoted is None else quoted.place,
        metric_name(curve.headline),
        "" if quoted is None else number_text(quoted.value),
        "" if quoted is None else interval_text(quoted.interval),
        "" if lead is None else f"{lead['over']:+z.3f}",
    ]


def _header(data: ProbeData) -> list[str]:
    header = ["layer", "C", "validation", f"test {metric_name(data.headline)}", "95% interval"]
    return [*header, "control", "selectivity", "compression", "random init"]


def _rows(data: ProbeData) -> list[list[str]]:
    random = {layer.place: layer.metrics["test"].get(data.headline) for layer in data.random_init}
    rows = []
    for layer in data.layers:
        code = layer.codelength or {}
        rows.append(
            [
                f"{layer.place} (output)" if is_output(data, layer) else layer.place,
                "" if layer.C is None else f"{layer.C:g}",
                number_text(layer.metrics.get("validation", {}).get(data.headline)),
                number_text(layer.metrics["test"].get(data.headline)),
                interval_text(layer.intervals.get(data.headline)),
                number_text(layer.control),
                number_text(layer.selectivity),
                f"{code['compression']:.2f}" if code else "",
                number_text(random.get(layer.place)),
            ]
        )
    for one in data.baselines:
        found = one.metrics["test"].get(data.headline), one.intervals.get(data.headline)
        rows.append([one.name, "", "", number_text(found[0]), interval_text(found[1]), "", "", "", ""])
    return rows


def _caption(data: ProbeData, *others: ProbeData) -> str:
    every = [each.meta["n"] for each in (data, *others)]
    probes = list(dict.fromkeys(str(each.meta["probe"]) for each in (data, *others)))
    sizes = ", ".join(f"{_range([n[split] for n in every if split in n])} {split}" for split in every[0])
    return f"{'Probe' if len(probes) == 1 else 'Probes'}: {', '.join(probes)}; examples: {sizes}."


def _range(counts: Sequence[int]) -> str:
    """98, or 86 to 98."""
    return " to ".join(f"{n:,}" for n in dict.fromkeys((min(counts), max(counts))))


def _written(text: str) -> str:
    """`text` as LaTeX prints it, with the minus signs of its numbers."""
    return _MINUS.sub("$-$", latex_text(text))


def _line(cells: Sequence[str], bold: bool = False) -> str:
    written = [_written(cell) for cell in cells]
    written = [rf"\textbf{{{cell}}}" if bold and cell else cell for cell in written]
    return "    " + " & ".join(written) + r" \\"


def _table(header: list[str], parts: list[list[str]], columns: int, left: int, caption: str, name: str) -> str:
    """The environment with the label `tab:name`; a rule between parts, the first `left` columns flush left."""
    body: list[str] = []
    for part in parts:
        body += [r"    \midrule", *part] if part else []
    label = re.sub("[^a-z0-9]+", "-", name.lower())[:60].strip("-")
    lines = [
        r"% the preamble needs \usepackage{booktabs}",
        r"\begin{table}",
        r"  \centering",
        rf"  \caption{{{_written(caption)}}}",
        rf"  \label{{tab:{label}}}",
        rf"  \begin{{tabular}}{{{'l' * left}{'r' * (columns - left)}}}",
        r"    \toprule",
        *header,
        *body,
        r"    \bottomrule",
        r"  \end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"
