"""Names of metrics and tokens for a reader, and sentences that tables and pictures share."""

from collections.abc import Mapping, Sequence
from typing import Any

from probekit.points import Place, spans_of
from probekit.selections import Selection
from probekit.text import listed, printable

_METRICS = {"auroc": "AUROC", "r2": "R2", "f1": "F1", "spearman": "Spearman correlation"}
_UNNAMED = ("label", "labels", "target")  # columns of tables
_POSITIONS = {
    "last": "last token",
    "first": "first token",
    "mean": "mean of all tokens",
    "all": "all tokens",
    "per example": "a token of each text's own",
}


def metric_name(metric: str) -> str:
    """The name of a metric for a reader: "auroc" -> "AUROC"."""
    return _METRICS.get(metric, metric.replace("_", " "))


def decoding(names: Mapping[str, str], metric: str = "score") -> str:
    """The title of probes: "Decoding number from gpt2 (agreement)", or "Decoding sst2 labels from gpt2".

    Args:
        names: of label, model and task, as far as they are to be named.
        metric: what the title begins with where no label is named: "Accuracy by layer: gpt2, sst2".
    """
    label, model, task = (names.get(key) for key in ("label", "model", "task"))
    if label is None:
        known = ", ".join(name for name in (model, task) if name)
        return f"{metric[:1].upper()}{metric[1:]} by layer{': ' if known else ''}{known}"
    what, where = probed(label, task)
    return f"Decoding {what}{f' from {model}' if model else ''}{where}"


def probed(label: str, task: str | None) -> tuple[str, str]:
    """What is probed, and the task in brackets; a label set without a name of its own has the task's."""
    if task is not None and label in _UNNAMED:
        return f"{task} labels", ""
    return label, "" if task is None else f" ({task})"


def point_name(meta: Mapping[str, Any]) -> str:
    """The point that was read: "resid_pre"; of latents also where, and by which autoencoders, they were read."""
    latents = latents_read(meta)
    if not latents:
        return printable(meta["point"])
    of = spans_of(Place.of(one["of"]) for one in latents.values())
    names = dict.fromkeys(printable(one["sae"].rstrip("/").rpartition("/")[2]) for one in latents.values())
    return f"{printable(meta['point'])} of {of} ({listed(names, most=2)})"


def latents_read(meta: Mapping[str, Any]) -> Mapping[str, Mapping[str, str]]:
    """The place of latents -> what they are of, and the name and the fingerprint of the autoencoder."""
    known = meta.get("activations") or {}
    return (known[0] if isinstance(known, list) else known).get("latents") or {}  # of a transfer, all have the same


def reconstruction_text(latents: Mapping[str, Any]) -> str:
    """What an autoencoder keeps: "explains 87% of the variance, and has 32 latents a row that are not 0"; or ""."""
    parts = []
    if (explained := latents.get("explained")) is not None:
        worse = f"explains nothing: its error is {1 - explained:.3g} times the variance"
        parts.append(f"explains {explained:.1%} of the variance" if explained >= 0 else worse)
    if (active := latents.get("active")) is not None:
        parts.append(f"has {active:.3g} latents a row that are not 0")
    if (added := latents.get("loss_added")) is not None:
        parts.append(f"adds {added:.3g} to a loss of {latents['loss']:.3g} nats a token when spliced in")
    if (model := latents.get("trained_on")) is not None:
        parts.append(f"is by its files of another model, {printable(model)}")
    return listed(parts)


def features_name(how: str) -> str:
    """Other features of the same rows, for a reader: "mean" -> "mean token", "activations" -> "activations"."""
    return f"{how} token" if how in ("mean", "last") else how


def position_name(position: object) -> str:
    """The token that is read: "last" -> "last token"."""
    name = str(position)
    words = printable(Selection.named(name).in_words) if "@" in name or ":" in name else f"token {printable(position)}"
    return _POSITIONS.get(name, words)


def interval_text(ends: Sequence[float] | None) -> str:
    """(0.5, 0.6) -> "[0.500, 0.600]"; empty for None."""
    return "" if ends is None else f"[{ends[0]:.3f}, {ends[1]:.3f}]"


def signed_interval_text(ends: Sequence[float] | None) -> str:
    """(-0.1, 0.2) -> "[-0.100, +0.200]", as of a difference; empty for None."""
    return "" if ends is None else f"[{ends[0]:+z.3f}, {ends[1]:+z.3f}]"


def interval_clause(ends: Sequence[float] | None) -> str:
    """(-0.1, 0.2) -> ", 95% interval [-0.100, +0.200]", after a difference; empty for None."""
    return "" if ends is None else f", 95% interval {signed_interval_text(ends)}"


def number_text(value: float | None) -> str:
    """0.5 -> "0.500", never "-0.000"; empty for None."""
    return "" if value is None else f"{value:z.3f}"


def selected(several_layers: bool, several_C: bool) -> str:
    """The settings that were selected: "layer and C", "layer", "C" or ""."""
    return " and ".join(["layer"] * several_layers + ["C"] * several_C)


def quick_text(meta: Mapping[str, Any]) -> str:
    """What a quick look left out: "quick look without control tasks and p-values"; empty for complete results."""
    *most, last = meta.get("left_out") or [""]  # results of older versions do not have it
    return f"quick look without {', '.join(most)}{' and ' if most else ''}{last}" if last else ""


def quick_note(meta: Mapping[str, Any]) -> list[str]:
    """The same as a sentence, in a list, with how to get the rest; no sentence for complete results."""
    text = quick_text(meta)
    return [f"{text[0].upper()}{text[1:]}: run again without --quick (quick=True) for them."] if text else []
