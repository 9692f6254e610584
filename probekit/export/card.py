"""A card for a probe that is published: what was trained on what, the figures, what was checked, and how to load it.

Names come from data. They are shown as code, where Markdown gives no character a meaning; sentences of the audit, which
quote data, have every ASCII punctuation mark escaped.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from probekit.evaluation.results.cautions import cautions
from probekit.evaluation.results.data import BaselineResult, LayerResult, ProbeData
from probekit.evaluation.results.report import rates_note, short_text
from probekit.evaluation.results.wording import interval_text, metric_name, number_text, position_name, quick_text
from probekit.evaluation.scores.permutation import permuted_texts
from probekit.export.front_matter import front_matter
from probekit.tables import markdown_table
from probekit.text import printable

TAGS = ("probe", "interpretability")
MOST_CLASSES = 20
FINGERPRINTS = ("model_fingerprint", "tokenizer_fingerprint", "task_fingerprint")
_ESCAPED = str.maketrans({mark: f"\\{mark}" for mark in "\\`*_{}[]<>#|~$&!@:+="})


def code(text: object, in_table: bool = False) -> str:
    """`text` as a code span, whatever it holds."""
    shown = printable(text)
    if not shown.strip():
        return "(blank)"
    fence = "`" * (max((len(run) for run in re.findall("`+", shown)), default=0) + 1)
    padded = f" {shown} " if shown[0] in "` " or shown[-1] in "` " else shown
    return f"{fence}{padded.replace('|', chr(92) + '|') if in_table else padded}{fence}"


def as_sentence(text: object) -> str:
    """`text` as plain words of a paragraph, of an item of a list or of a cell."""
    shown = printable(text).translate(_ESCAPED)
    if shown.startswith("-"):
        shown = f"\\{shown}"
    return re.sub(r"^(\d+)(?=[.)])|(?<=www)(?=\.)", lambda match: f"{match[0]}\\", shown)


def card(
    data: ProbeData,
    layer: LayerResult,
    file: str | None,
    fields: Mapping[str, str | Sequence[str] | None] | None = None,
    address: str | None = None,
) -> str:
    """The card as Markdown with a YAML header.

    Args:
        data: the curve.
        layer: the place whose probe is published.
        file: name of the saved probe in the card's folder, without a suffix; None if it cannot be saved.
        fields: more fields of the header, such as license and base_model.
        address: of the results on the Hub, hf://owner/name, if they are there.
    """
    meta = data.meta
    head = front_matter({"library_name": "probekit", "tags": TAGS, **(fields or {})})
    title = f"# Probe of {code(meta['label'])} at {code(layer.place)} of {code(meta['model'])}"
    parts = {
        "What was trained on what": [_training(data, layer)],
        "Figures": _figures(data, layer),
        "Controls": _bullets(_controls(data, layer)),
        "Audit of the data": _bullets(_audit(data)),
        "Limits": _bullets(_limits(data, layer)),
        "How to load it": _loading(data, layer, file, address),
    }
    body = [line for name, lines in parts.items() for line in (f"## {name}", "", *lines, "")]
    return "\n".join([*head, title, "", _lead(data, layer), "", *body])


def _lead(data: ProbeData, layer: LayerResult) -> str:
    reads = as_sentence(position_name(data.meta["position"]))
    probe, what = code(data.meta["probe"]), code(data.meta["task"])
    return f"A {probe} probe, fitted by probekit to activations of the {reads} on {what}."


def _training(data: ProbeData, layer: LayerResult) -> str:
    meta = data.meta
    activations, n = meta.get("activations", {}), meta["n"]
    estimator = meta.get("estimator") or {}
    rows: list[tuple[str, Any]] = [
        ("model", meta["model"]),
        *((name.replace("_", " "), activations.get(name)) for name in FINGERPRINTS),
        ("dataset", meta["task"]),
        ("label", meta["label"]),
        *_classes(data),
        ("examples", ", ".join(f"{n[split]:,} {split}" for split in n)),
        ("place", layer.place),
        ("token that is read", position_name(meta["position"])),
        ("BOS before each text", activations.get("bos")),
        *_reading(data),
        ("model computed in", activations.get("compute_dtype")),
        ("activations stored in", activations.get("dtype")),
        ("edits of the model", activations.get("edited")),
        ("class of the probe", estimator.get("class")),
        ("C", None if layer.C is None else f"{layer.C:g}"),
        ("chosen on", meta.get("chosen_on")),
        ("seed", meta.get("seed")),
        ("versions", ", ".join(f"{name} {number}" for name, number in meta.get("versions", {}).items())),
    ]
    return markdown_table(("", ""), [(name, code(value, True)) for name, value in rows if value is not None])


def _reading(data: ProbeData) -> list[tuple[str, Any]]:
    """A row for each thing about how texts were read that is not the default."""
    reading = data.meta.get("reading") or {}
    chat = reading.get("chat") or {}
    return [
        ("chat template", ", ".join(f"{key}: {value}" for key, value in chat.items()) or None),
        ("special tokens", "left out" if reading.get("skip_special") else None),
        ("rows", "words" if reading.get("words") else "every token" if reading.get("each_token") else None),
        ("texts", "continued by the model" if reading.get("generated") else None),
    ]


def _classes(data: ProbeData) -> list[tuple[str, Any]]:
    """A row for each class, with its examples by split; one for numbers."""
    counts, names = data.meta.get("counts", {}), list(data.meta["classes"])
    if not names:
        return [("target", "a number for each example")]
    rows = [
        (f"class {k}", f"{name}: " + ", ".join(f"{counts[split][name]:,} {split}" for split in counts))
        for k, name in enumerate(names[:MOST_CLASSES])
    ]
    return rows + [("more classes", f"{len(names) - MOST_CLASSES:,}")] * (len(names) > MOST_CLASSES)


def _figures(data: ProbeData, layer: LayerResult) -> list[str]:
    """The test scores of this place with intervals, and the headline of the baselines."""
    metrics = [(metric_name(name), *_pair(layer, name)) for name in layer.metrics["test"]]
    lines = [markdown_table(("metric on test", "value", "95% interval"), metrics), ""]
    if note := rates_note(layer):
        lines += [as_sentence(note), ""]
    name = metric_name(data.headline)
    rows = [("this probe", *_pair(layer, data.headline))]
    rows += [(as_sentence(one.name), *_pair(one, data.headline)) for one in data.baselines]
    noise = [one for one in data.random_init if one.place == layer.place]
    rows += [("same place, random weights", *_pair(one, data.headline)) for one in noise]
    if len(rows) > 1:
        lines += [markdown_table((f"compared by {name}", "test", "95% interval"), rows), ""]
    if (lead := data.meta.get("lead")) is not None and layer is data.selected:
        ends = "" if lead["interval"] is None else " (95% interval [{:+.3f}, {:+.3f}])".format(*lead["interval"])
        lines += [
            f"Over the best baseline, {as_sentence(lead['baseline'])}: {lead['over']:+.3f}{ends}, paired on test.",
            "",
        ]
    return [*lines, f"The complete curve: {as_sentence(short_text(data))}."]


def _pair(result: LayerResult | BaselineResult, metric: str) -> tuple[str, str]:
    return number_text(result.metrics["test"].get(metric)), interval_text(result.intervals.get(metric))


def _controls(data: ProbeData, layer: LayerResult) -> list[str]:
    found = []
    if layer.control is not None:
        line = f"Control task (Hewitt and Liang 2019), random labels by type: {layer.control:.3f}"
        found.append(line + ("" if layer.selectivity is None else f"; selectivity {layer.selectivity:+.3f}"))
    if layer.codelength:
        found.append(f"Online code length (Voita and Titov 2020): compression {layer.codelength['compression']:.2f}")
    if layer.p_value is not None:
        how, beyond = permuted_texts(data.meta.get("test_groups"))
        line = f"Permutation test of association with the test labels{how}: p = {layer.p_value:.2g}"
        found.append(f"{line}.{beyond}" if beyond else line)
    if layer.gap is not None:
        found.append(f"Certificate: the objective is at most {layer.gap:.1e} above the optimum, relative to it")
    return found or ["None was run."]


def _audit(data: ProbeData) -> list[str]:
    audit = data.meta.get("audit")
    if audit is None:
        return ["The results hold none."]
    found = [as_sentence(line) for line in audit.get("findings", audit.get("lines", []))] or ["Nothing was found."]
    searched = audit.get("near", 0) is not None  # a record of an older version has no such entry
    return found if searched else [*found, "Near-duplicates across splits were not searched for."]


def _limits(data: ProbeData, layer: LayerResult) -> list[str]:
    """What the figures do not say, from the record of the results."""
    meta = data.meta
    reads = as_sentence(position_name(meta["position"]))
    limits = [as_sentence(phrase) for phrase in cautions(data)]
    if not layer.converged:
        limits.append("A fit that the figures depend on did not converge.")
    if left_out := quick_text(meta):
        limits.append(f"{left_out[0].upper()}{left_out[1:]}.")
    if data.procedure is not None:
        limits.append("Layer and C were selected in nested folds, so the figures of this place are not an estimate.")
    elif data.selected is None:
        limits.append("No layer was selected on validation: this place was named.")
    elif layer is not data.selected:
        limits.append(f"Validation selected {code(data.selected.place)}; this place was named.")
    limits += [
        f"The figures are for texts like those of the dataset, at the {reads}. Elsewhere the scores are extrapolation.",
        "The probe shows that the label can be read from the activations, not that the model uses it.",
        "It fits these weights of the model alone; compare the fingerprints before you use it.",
    ]
    return limits


def _loading(data: ProbeData, layer: LayerResult, file: str | None, address: str | None) -> list[str]:
    if file is None:
        return ["The fitted estimator is of another package and was not saved; train it again."]
    width = f"{layer.probe.n_features_in_:,} features"
    given = f"a list of [tokens, {width}], one for each text" if layer.probe.of_sequences else f"[rows, {width}]"
    predict = "predict" if layer.probe.predicts == "numbers" else "predict_labels"
    load = f"pk.load_probe({file!a})  # {file}.json and {file}.safetensors, no pickle"
    if address is not None:
        load = f"pk.load_probe({f'{address}:{layer.place}'!a})  # no pickle"
    return [
        "```python",
        "import probekit as pk",
        "",
        f"probe = {load}",
        f"probe.{predict}(X)  # activations {given}, at {layer.place}",
        "```",
        "",
        "`pk.extract` gives the activations of new texts, and `pk.Monitor` scores the tokens that a model generates.",
    ]


def _bullets(lines: Iterable[str]) -> Sequence[str]:
    return [f"- {line}" for line in lines]
