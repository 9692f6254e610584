"""The answer in words: the best layer, what it is ahead of, what speaks against it, and what was not checked."""

from collections.abc import Sequence

from probekit.causal.data import CausalData
from probekit.causal.results.report import causal_conclusion
from probekit.evaluation.results.cautions import cautions
from probekit.evaluation.results.data import ProbeData
from probekit.evaluation.results.quote import quote_line, quote_of_curve
from probekit.evaluation.results.verdict import standing_of, verdict
from probekit.evaluation.results.wording import point_name, position_name
from probekit.report.parts import Facts, Heading, Items, Lines, Part
from probekit.report.render import html_of
from probekit.report.section import Section
from probekit.report.sections.names import notes_of
from probekit.text import counted, listed

CLASSES = 8  # class names in one line
LONGEST = 60  # characters of a name in a sentence


def summary_section(data: ProbeData, causal: Sequence[tuple[str, CausalData]]) -> Section:
    """The summary of a curve; `causal` are named results that tell whether the model uses what is read."""
    poor, warned = verdict(data), cautions(data)
    parts: list[Part] = [Lines([poor], "verdict")] if poor else []
    parts.append(Lines([_answer(data)], "lead"))
    parts += [Lines([f"Caution: {phrase}."], "caution") for phrase in warned]
    parts.append(Lines(notes_of(data, "summary")))
    parts += [Lines(_used(name, one)) for name, one in causal if one.layers]
    parts.append(Facts(_facts(data)))
    if missing := missing_checks(data, [one for _, one in causal]):
        parts += [Heading("Not checked"), Items(missing)]
    return Section("summary", "Summary", html_of(parts))


def _answer(data: ProbeData) -> str:
    """The score to quote, of what, and what it is ahead of or tied with."""
    line = quote_line(quote_of_curve(data))
    if data.quoted is None:
        return f"{line} The curve below shows all layers on test."
    label, model = _name(data.meta["label"]), _name(data.meta["model"])
    tied = [layer.place for layer in data.layers if layer.in_best_set and layer is not data.selected]
    is_ahead = standing_of(data) == "ahead"
    ahead = f" It is ahead of the best baseline, {data.meta['lead']['baseline']}." if is_ahead else ""
    others = f" Statistically tied with the best on test: {listed(tied, most=6)}." if tied and data.quoted.layer else ""
    return f"{line} The probe predicts {label} from {model}.{ahead}{others}"


def _name(name: object) -> str:
    """A name from data, no longer than a sentence bears."""
    text = str(name)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _used(name: str, data: CausalData) -> list[str]:
    """What the edits say, then what limits it: that another direction than the probe's is used, for one."""
    found, *limits = causal_conclusion(data)
    return [f"Edits of the model{f' ({name})' if name else ''}, compared with placebos: {found}.", *limits]


def _facts(data: ProbeData) -> list[tuple[str, str]]:
    meta, n = data.meta, data.meta["n"]
    classes = [str(name) for name in meta.get("classes") or []]
    labels = f"{meta['label']} ({counted(len(classes), 'class', 'classes')}: {listed(classes, most=CLASSES)})"
    rows = ", ".join(f"{n[split]:,} {split}" for split in n)
    folds = meta.get("folds")
    texts = meta.get("n_texts")
    rows += f", tokens of {', '.join(f'{count:,}' for count in texts.values())} texts" if texts else ""
    return [
        ("Model", str(meta["model"])),
        ("Task", str(meta["task"])),
        ("Label", labels if classes else f"{meta['label']} (a number)"),
        ("Read at", f"{point_name(meta)}, {position_name(meta['position'])}"),
        ("Probe", str(meta["probe"])),
        ("Rows", f"{rows}; {folds} nested folds" if folds else rows),
    ]


def missing_checks(data: ProbeData, causal: Sequence[CausalData]) -> list[str]:
    """What a reviewer would ask for that these results do not hold, with the command that gives it."""
    meta = data.meta
    left_out = [str(one) for one in meta.get("left_out") or []]
    missing = [f"A quick look left out: {', '.join(left_out)}. Run train-probe without --quick."] if left_out else []
    if not data.random_init:
        missing.append(
            "Untrained weights of the same architecture: train-probe --baseline random-init; for a model made in code, "
            "train_probes(random_init=...)."
        )
    if not causal:
        missing.append("Whether the model uses what the probe reads: probekit causal.")
    if meta.get("interval") is None:
        missing.append("Intervals and ties: train-probe without --no-intervals.")
    if not left_out and not (meta.get("control") or {}).get("draws"):
        missing.append("A control task, and so selectivity: there was none for this task or probe.")
    if meta.get("no_texts"):
        missing.append("Leaks and duplicates: the activations came without texts.")
    elif (meta.get("audit") or {}).get("near", 0) is None and not left_out:
        missing.append("Near-duplicates: only exact duplicates were looked for.")
    return [*missing, "Other data than this task: probekit transfer."]
