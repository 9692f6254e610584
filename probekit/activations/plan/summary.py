"""A plan in numbers (`plan_as_dict`) and in words for the terminal (`describe_plan`)."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from probekit.activations.layout import row_bytes
from probekit.activations.plan.plan import ExtractionPlan
from probekit.activations.plan.reading.show import formatting_note
from probekit.activations.plan.token_ids import Sequences
from probekit.activations.plan.token_labels import token_label_lines
from probekit.activations.sums.statistics import statistics_bytes
from probekit.files.scratch import IN_MEMORY, give_back_memory
from probekit.interventions import edits_in_words, record_of_edits
from probekit.models.packaging import without
from probekit.models.placement import describe_placement
from probekit.options.engine import Sums
from probekit.points import PAIR_POINTS, spans_of
from probekit.tasks.base import SPLITS, Task
from probekit.tasks.fields import CHAT, GENERATE, READ_AS, origin_of_splits
from probekit.tasks.quality.audit import audit, audit_findings
from probekit.tasks.splitting.classes import rare_words
from probekit.tasks.token_labels import no_label
from probekit.text import counted, listed, printable

CONTEXT = {  # by the number of tokens before a text and after it
    (0, 0): "no BOS",
    (1, 0): "a BOS before each text",
    (1, 1): "[CLS] before and [SEP] after each text",
    (0, 1): "</s> after each text",
}
PADDING = {
    "packed": "none",
    "padded": "on the right, in batches of similar lengths, as this class takes no packed texts",
    "one length": "none, in batches of one length, as this class takes neither packed nor padded texts",
}
_WITH_SUMS = {"also": "beside", "only": "only"}  # the values that scripts know from `--json`
PADDED_BATCH = 32  # texts in a batch of the usual padded run


def plan_as_dict(plan: ExtractionPlan, sums: Sums = None) -> dict[str, Any]:
    """The plan as JSON-able numbers and names, with the size of its sums.

    `tokens` are those of all texts, cut, with their context tokens. `nodes` are the tokens that are computed: a shared
    prefix once per block, and nothing after the last token that is read. `padded_tokens` are what padded batches of 32
    in the task's order would compute. A text that several words share counts once per split.
    """
    task, lengths = plan.task, plan.sequences.lengths[plan.task.texts()[0]]
    tokens, nodes = int(lengths.sum()), plan.packing.nodes
    starts = np.arange(0, len(lengths), PADDED_BATCH)
    inputs = plan.sequences if plan.sources is None else plan.sources
    return {
        "model": plan.model.name,
        "task": task.name,
        "texts": len(lengths),
        "words": None if task.spans is None else len(task),
        "splits": {split: int((task.splits == split).sum()) for split in SPLITS},
        "tokens": tokens,
        "nodes": nodes,
        "sharing": tokens / nodes,
        "padded_tokens": int(
            (np.maximum.reduceat(lengths, starts) * np.minimum(PADDED_BATCH, len(lengths) - starts)).sum()
        ),
        "points": plan.points,
        "layers": sorted({layer for point, layer in plan.places if point in plan.points and layer is not None}),
        "places": [list(place) for place in plan.places],
        "widths": plan.widths,
        "position": "+".join(plan.reading.positions),
        "dtype": plan.dtype,
        "device": str(plan.device),
        "bytes": int(row_bytes(plan.layout, plan.places, plan.widths, plan.dtype).sum()),
        "batches": len(plan.batches),
        "batch_tokens": plan.batch_tokens,
        "block_nodes": plan.block_nodes,
        "batching": plan.model.batching,
        "blocks": len(plan.packing.sizes),
        "shards": len(plan.shards),
        "bos": bool(inputs.n_bos + inputs.n_end),
        "on_long": plan.on_long,
        "cut": plan.sequences.n_cut + (0 if plan.sources is None else plan.sources.n_cut),
        "dropped_blanks": int(task.info.get("dropped_blanks", 0)),
        "skipped_rows": int(task.info.get("skipped_rows", 0)),
        **({CHAT: dict(task.info[CHAT])} if CHAT in task.info else {}),
        **(
            {}
            if plan.edits is None
            else {"edits": edits_in_words(record_of_edits(plan.model, plan.edits), plan.edit_positions)}
        ),
        **({} if task.generated is None else {GENERATE: task.info.get(GENERATE)}),
        "rare_classes": dict(task.info.get("rare_classes", {})),
        "splits_from": origin_of_splits(task.info),
        **({} if sums is None else {"statistics": _WITH_SUMS[sums]}),
        **({} if sums is None else {"statistics_bytes": statistics_bytes(task, plan.widths)}),
        **({"bytes": 0} if sums == "only" else {}),
    }


def describe_plan(plan: ExtractionPlan, sums: Sums = None) -> str:
    """The plan as short aligned lines for the terminal; of sums without activations, only the size of the sums."""
    n, cfg, task = plan_as_dict(plan), plan.model.cfg, plan.task
    compute, spread = str(plan.model.dtype).removeprefix("torch."), plan.model.placement
    where = str(plan.device) if spread is None else describe_placement(spread)
    words = "" if n["words"] is None else f"{counted(n['words'], 'word')} in "
    splits = ", ".join(f"{size:,} {split}" for split, size in n["splits"].items())
    blocks = f" in blocks of {n['block_nodes']:,}" if n["batching"] == "packed" else ""  # others are of one text
    rows = _distinct(f"{int(plan.layout.counts(place).sum()):,}" for place in plan.places)
    lines = {
        "model": f"{n['model']}: {counted(cfg.n_layers, 'layer')}, d_model {cfg.d_model}, {compute} on {where}"
        f"{without(plan.model.left_out)}",
        "task": f"{n['task']}: {words}{counted(n['texts'], 'text')} ({splits})",
        "tokens": _tokens(n["tokens"], plan.sequences, plan.sources),
        "read": f"{spans_of(plan.places)}; {_tokens_read(plan)}",
        "work": f"{n['nodes']:,} nodes{_sharing(n, plan.share and plan.sources is None, plan.packing.causal)}",
        "padding": f"{PADDING[plan.model.batching]}; padded batches of {PADDED_BATCH} in this order would compute "
        f"{n['padded_tokens']:,} tokens",
        "batches": f"{n['batches']:,} of up to {n['batch_tokens']:,} nodes{blocks}",
        "size": f"{n['bytes'] / 1e6:,.1f} MB: {rows} rows x {counted(len(n['places']), 'place')} "
        f"x {_distinct(n['widths'])}, {n['dtype']}",
        **({} if plan.edits is None else {"edits": n["edits"]}),
        **({"note": note} if (note := formatting_note(plan)) else {}),
        **token_label_lines(plan.model, task, plan.sequences),
        **_remarks(n, task, plan.reading.positions, cfg.n_ctx),
    }
    if sums == "only":
        del lines["size"]
    if sums is not None:
        size = f"{statistics_bytes(task, plan.widths) / 1e6:,.1f} MB in all: sums for each place and split"
        lines["stats"] = size if sums == "also" else f"{size}; no activations"
    return "\n".join(f"{key:<9}{printable(value)}" for key, value in lines.items())


def _distinct(given: Iterable[Any]) -> str:
    return "/".join(map(str, dict.fromkeys(given)))


def _tokens(n_tokens: int, sequences: Sequences, sources: Sequences | None) -> str:
    """The number of tokens and their context; for a decoder, of the targets and of the sources."""
    if sources is None:
        return f"{n_tokens:,}, {CONTEXT[sequences.n_bos, sequences.n_end]}"
    start = ", the start token before each" if sequences.n_bos else ""
    of_sources = f"{sources.lengths.sum():,} of sources, {CONTEXT[sources.n_bos, sources.n_end]}"
    return f"{n_tokens:,} of targets{start}; {of_sources}"


def _tokens_read(plan: ExtractionPlan) -> str:
    positions, pairs = plan.reading.positions, {point for point, _ in plan.places if point in PAIR_POINTS}
    if pairs == set(plan.points):
        return "every pair of tokens"
    of_words = plan.task.spans is not None and not any(one.part for one in positions)
    tokens = ", ".join(one.in_words for one in positions) + (" of each word" if of_words else "")
    return f"{tokens}; attention of every pair" if pairs else tokens


def _sharing(n: dict[str, Any], share: bool, causal: bool) -> str:
    if not share:
        return ", nothing shared"
    if n["words"] is not None:
        return ": the words of a text share it within a block"
    fewer, what = f"{n['sharing']:.2f}", "prefixes" if causal else "equal texts"
    if fewer == "1.00":
        return f": {'no' if n['nodes'] == n['tokens'] else 'hardly any'} {what} are shared"
    return f": {fewer}x fewer than tokens, because {what} are shared"


def _regression_line(task: Task) -> str:
    """The target of a regression and its range, in words."""
    labels = task.labels.get(task.target)
    labels = np.concatenate(task.token_labels[task.target]) if labels is None else labels
    labels = labels[~no_label(labels)]
    each = "a number for each token" if task.target in task.token_labels else "a number"
    each = f"{labels.shape[1]} numbers{each.removeprefix('a number')}" if labels.ndim == 2 else each
    if not len(labels):
        return f"{task.target} is {each}, and all are missing"
    return f"{task.target} is {each}, {labels.min():g} to {labels.max():g}: a regression"


def _label_set_words(task: Task, name: str) -> str:
    """A label set and what it holds: "source (3 classes, 12 texts without)"."""
    missing = int(no_label(task.labels[name]).sum())
    kind = counted(task.n_classes(name), "class", "classes") if task.n_classes(name) else "numbers"
    without = f", {counted(missing, 'text')} without" if missing else ""
    return f"{name} ({kind}{without})"


def _template(chat: dict[str, Any]) -> str:
    """How chats became texts."""
    prompt = f"{'with' if chat['add_generation_prompt'] else 'without'} generation prompt"
    if chat.get("has_no_generation_prompt"):
        prompt = "without generation prompt, as the template has none"
    date = f", dated {chat['date']}" if "date" in chat else ""
    return f"by the template of {chat['from']} (sha256 {chat['template'][:12]}), {prompt}{date}"


def _remarks(n: dict[str, Any], task: Task, names: Sequence[str], n_ctx: int) -> dict[str, str]:
    """What was changed in the data or left out of it, where there is something to say."""
    lines = {"chats": _template(n[CHAT])} if CHAT in n else {}
    if wrote := _written_in_words(task):
        lines["wrote"] = wrote
    if n["splits_from"]:
        lines["splits"] = n["splits_from"]
    if read_as := task.info.get(READ_AS):
        lines["file"] = read_as
    if task.info.get("classes_from_files"):
        lines["classes"] = "the names of the text files"
    if limit := task.info.get("limit"):
        lines["limit"] = f"at most {counted(limit, 'text')} of each split"
    if rare := rare_words(task.info):
        lines["rare"] = rare
    if not (task.labels or task.token_labels):
        ids = listed([ascii(one) for one in task.ids], most=2)
        lines["labels"] = f"none; join them later by id ({ids}): probekit label STORE labels.csv"
    else:
        sets = [listed([_label_set_words(task, name) for name in task.labels])] if len(task.labels) > 1 else []
        told = sets if task.n_classes() else [_regression_line(task), *sets]
        lines |= {"labels": "; ".join(told)} if told else {}
    if n["cut"]:
        at_cut = task.spans is None and any(one == "last" or one.startswith("-") for one in names)
        lines["cut"] = f"{counted(n['cut'], 'text')} to the first {n_ctx:,} tokens, the model's context"
        lines["cut"] += ", and read there" if at_cut else ""
    if n["dropped_blanks"]:
        lines["blanks"] = f"dropped at the end of {counted(n['dropped_blanks'], 'text')} of the data"
    if n["skipped_rows"]:
        lines["skipped"] = f"{counted(n['skipped_rows'], 'row')} of the data could not be used"
    if unlabelled := task.info.get("unlabelled_words"):
        have = "has" if unlabelled == 1 else "have"
        lines["without"] = f"{counted(unlabelled, 'word')} of the data {have} no {task.target}: left out"
    if (task.labels or task.token_labels) and (findings := audit_findings(audit(task, near=False))):
        lines["audit"] = "; ".join(findings)
    if len(task) > IN_MEMORY:
        give_back_memory()  # what the audit freed
    return lines


def how_in_words(n: Mapping[str, Any]) -> str:
    """How the next token was chosen."""
    if not n.get("temperature"):
        return "greedily"
    of = "".join(f", {name} {n[name]}" for name in ("top_k", "top_p") if n.get(name) is not None)
    return f"drawn at temperature {n['temperature']:g}{of}, seed {n.get('generate_seed')}"


def _written_in_words(task: Task) -> str:
    """What the model wrote, and where it ended; "" where it wrote nothing."""
    done = task.info.get(GENERATE)
    if task.generated is None or not isinstance(done, dict):
        return ""
    why = {"stop token": "at a stop token", "context": "where the context was full", "stopped": "by a monitor"}
    why["max_new_tokens"] = f"after {done.get('generate')} tokens"
    ends = [f"{n:,} {why.get(name, name)}" for name, n in done.get("ended", {}).items() if n]
    return f"{counted(int(task.generated.sum()), 'token')}, {how_in_words(done)}; ended {', '.join(ends)}"
