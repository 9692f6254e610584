"""A plan in words, for the terminal."""

from typing import TYPE_CHECKING

from probekit.activations.plan.read_positions import ALL
from probekit.points import PAIR_POINTS, spans_of
from probekit.tasks.base import SPLITS, Task
from probekit.text import printable

if TYPE_CHECKING:
    from probekit.activations.plan.plan import ExtractionPlan

CONTEXT = {  # by its tokens before a text and behind it
    (0, 0): "no BOS",
    (1, 0): "a BOS before each text",
    (1, 1): "[CLS] before each text and [SEP] behind it",
    (0, 1): "</s> behind each text",
}


def describe(plan: "ExtractionPlan") -> str:
    """The plan as short aligned lines."""
    lines = {
        "model": _model(plan),
        "task": f"{plan.task.name}: {_examples(plan)}",
        "tokens": _tokens(plan),
        "read": f"{spans_of(plan.places)}; {_read(plan)}",
        "work": f"{plan.nodes:,} nodes{_shared(plan)}",
        "padding": f"none; batches of 32 in this order would compute {plan.padded_tokens:,} tokens",
        "batches": f"{len(plan.batches):,} of up to {plan.batch_tokens:,} nodes in blocks of {plan.block_nodes:,}",
        "size": _size(plan),
        **_remarks(plan),
    }
    return "\n".join(f"{key:<9}{printable(value)}" for key, value in lines.items())


def _model(plan: "ExtractionPlan") -> str:
    cfg, compute = plan.model.cfg, str(plan.model.dtype).removeprefix("torch.")
    return f"{plan.model.name}: {cfg.n_layers} layers, d_model {cfg.d_model}, {compute} on {plan.device}"


def _examples(plan: "ExtractionPlan") -> str:
    task = plan.task
    splits = ", ".join(f"{(task.splits == split).sum():,} {split}" for split in SPLITS)
    texts = f"{plan.distinct_texts:,} texts"
    return f"{texts if task.spans is None else f'{plan.texts:,} words in {texts}'} ({splits})"


def _tokens(plan: "ExtractionPlan") -> str:
    """How many are read, and in which context; of pairs, those of the targets and those of the sources."""
    own, sources = plan.sequences, plan.sources
    if sources is None:
        return f"{plan.tokens:,}, {CONTEXT[own.n_bos, own.n_end]}"
    start = ", the start token before each" if own.n_bos else ""
    of_sources = f"{sources.lengths.sum():,} of sources, {CONTEXT[sources.n_bos, sources.n_end]}"
    return f"{plan.tokens:,} of targets{start}; {of_sources}"


def _read(plan: "ExtractionPlan") -> str:
    pairs = {point for point, _ in plan.places if point in PAIR_POINTS}
    if pairs == set(plan.points):
        return "every pair of tokens"
    read = ", ".join(map(_position, plan.reading.names)) + ("" if plan.task.spans is None else " of each word")
    return f"{read}, of attention every pair" if pairs else read


def _position(name: str) -> str:
    words = {"mean": "mean over the tokens", "per example": "a token of its own in each text", ALL: "all tokens"}
    return words.get(name, f"{name} token" if name in ("last", "first") else f"token {name}")


def _shared(plan: "ExtractionPlan") -> str:
    if not plan.share or plan.sources is not None:
        return ", nothing shared"
    if plan.task.spans is not None:
        return ": the words of a text in one block have it in common"
    shared = "prefixes" if plan.causal else "equal texts"
    return f": {plan.tokens / plan.nodes:.2f}x less than the tokens, {shared} being shared"


def _size(plan: "ExtractionPlan") -> str:
    widths = "/".join(str(width) for width in dict.fromkeys(plan.widths))
    rows = "/".join(f"{n:,}" for n in dict.fromkeys(int(plan.layout.counts(p).sum()) for p in plan.places))
    return f"{plan.bytes / 1e6:,.1f} MB: {rows} rows x {len(plan.places)} places x {widths}, {plan.dtype}"


def _remarks(plan: "ExtractionPlan") -> dict[str, str]:
    """What was done to the data, and what to know of it, where there is something."""
    task, lines = plan.task, {}
    if not task.n_classes():
        labels = task.labels[task.target]
        lines["labels"] = f"{task.target} is a number, {labels.min():g} to {labels.max():g}: a regression"
    if plan.cut:
        lines["cut"] = f"{plan.cut:,} texts to the first {plan.model.cfg.n_ctx:,} tokens, the model's context"
    if plan.dropped_blanks:
        lines["blanks"] = f"dropped at the end of {plan.dropped_blanks:,} texts of the data"
    if plan.skipped_rows:
        lines["skipped"] = f"{plan.skipped_rows:,} rows of the data, of no use"
    if unlabelled := task.info.get("unlabelled_words"):
        lines["without"] = f"{unlabelled:,} words of the data have no {task.target}, and are no examples"
    return lines | _leaks(task)


def _leaks(task: Task) -> dict[str, str]:
    leaks = {split: n for split, n in task.info.get("also_in_train", {}).items() if n}
    told = " and ".join(f"{n:,} of the {split} texts" for split, n in leaks.items())
    return {"leaks": f"{told} also stand in train"} if leaks else {}
