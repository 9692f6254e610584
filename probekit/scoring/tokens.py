"""The tokens of texts that are scored one by one: where they are, how they are written, which the probe was trained on.

Axes: N texts, R tokens of all texts.
"""

from collections.abc import Iterator

import numpy as np

from probekit.activations.plan.plan import ExtractionPlan
from probekit.activations.plan.reading.read_positions import layout_of, read_positions
from probekit.activations.plan.token_ids import has_texts, targets_task
from probekit.points import Place
from probekit.scoring.probe import ScoringProbe

_ROWS: Place = ("", None)  # any place but attention has the same rows


def token_columns(plan: ExtractionPlan, probe: ScoringProbe, every: bool) -> dict[str, np.ndarray]:
    """Index and text of each token that is a row, and whether the probe was trained on such tokens: [R] each.

    Without `every`, the rows are the tokens that the probe was trained on.
    """
    layout = plan.layout
    counts = layout.counts(_ROWS)
    index = layout.token_index
    if index is None:
        index = np.concatenate([np.arange(n) for n in counts])
    trained = np.ones(len(index), dtype=bool)
    if every:
        ends = np.cumsum(counts)
        for start, end, own in zip(ends - counts, ends, _trained_tokens(plan, probe), strict=True):
            trained[start:end] = np.isin(index[start:end], own)
    return {"token_index": index.astype(np.int64), "tokens": _pieces(plan, counts), "trained": trained}


def _trained_tokens(plan: ExtractionPlan, probe: ScoringProbe) -> Iterator[np.ndarray]:
    """The indices of the tokens of each text that the probe's selection reads; none where it reads their mean."""
    task = targets_task(plan.task) if plan.stack == "decoder" else plan.task
    sequences, skip = plan.sequences, bool(probe.reading.get("skip_special"))
    good = np.arange(len(task))
    reading, bad = read_positions(plan.model, task, sequences, probe.selection, skip)
    if bad:  # texts without the token that is read
        good = np.array([row for row in good if row not in bad], dtype=np.int64)
        task, sequences = task.subset(good), sequences.subset(good)
    found = {}
    if len(good):
        reading, _ = read_positions(plan.model, task, sequences, probe.selection, skip) if bad else (reading, bad)
        layout = layout_of(reading, sequences)
        counts = layout.counts(_ROWS)
        index = layout.token_index
        parts = [np.arange(n) for n in counts] if index is None else np.split(index, np.cumsum(counts)[:-1])
        found = dict(zip(good.tolist(), parts, strict=True))
    return (found.get(row, np.empty(0, dtype=np.int64)) for row in range(len(plan.task)))


def _pieces(plan: ExtractionPlan, counts: np.ndarray) -> np.ndarray:
    """The text of each token; of tokens without characters of their own what the tokenizer calls them, or their id."""
    layout, tokenizer = plan.layout, plan.model.tokenizer
    ids = np.zeros(int(counts.sum()), dtype=np.int64) if layout.tokens is None else layout.tokens
    names = [str(one) for one in ids.tolist()] if tokenizer is None else tokenizer.tokens(ids.tolist())
    texts = plan.task.inputs if plan.stack != "decoder" else plan.task.targets
    if layout.characters is None or not has_texts(plan.task) or texts is None:
        return np.array([str(name) for name in names], dtype=object)
    of = np.repeat(np.arange(len(counts)), counts).tolist()
    rows = zip(of, layout.characters.tolist(), names, strict=True)
    return np.array([str(texts[row][start:end]) or str(name) for row, (start, end), name in rows], dtype=object)
