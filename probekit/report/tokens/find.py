"""The view of a folder of results: which texts it shows, and where their tokens' activations come from.

Texts are those of the test split: mistakes, the least and the most confident predictions, and others at random. The
store has all tokens of them, or a model is run over them. Only a model gives their logit lens and attention patterns.

Axes: N rows, C classes, L tokens of one text, P places, K tokens that are listed, H heads.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from probekit.activations.activations import Activations
from probekit.activations.plan.token_ids import tokenise_inputs
from probekit.activations.store.format import read_plan
from probekit.activations.store.reader import Store
from probekit.causal.readouts import spelled, top_of_layers
from probekit.errors import DataError, ProbekitError, ResumeMismatch, UsageError
from probekit.evaluation.results.data import ProbeData
from probekit.machine.progress import SILENT, Steps
from probekit.models.base import LanguageModel
from probekit.report.tokens.build import token_scores
from probekit.report.tokens.data import Attention, Lens, TokenScores
from probekit.report.tokens.read import TokenRows, rows_from_model, rows_from_store, selection_of
from probekit.scoring.probe import differences
from probekit.scoring.threshold import choose_threshold
from probekit.selections import ALL
from probekit.tasks.base import Task
from probekit.text import listed, printable

LENS_TOKENS = 2_000  # of the texts that get a logit lens: 3 tokens at 13 places are then 250 kB in the page
# Of the head for all of them: GPT-2's is 1 GFLOP a token for its 13 places, 150 to 350 GFLOP/s on a core, and 2,000
# tokens of it took most of the time of a report.
LENS_FLOPS = {"cpu": 5e11}
LENS_FLOPS_ELSEWHERE = 1e13
LISTED = 3
PATTERN_BYTES = 600_000  # of all patterns, a byte a weight; 12 x 12 heads of 40 tokens are 230 kB
MOST_PATTERNS = 8


def with_model_views(
    view: TokenScores, model: LanguageModel, token_ids: Sequence[Sequence[int]], parts: Steps = SILENT
) -> TokenScores:
    """The view with a logit lens and attention patterns of its first texts, where the model has them.

    Args:
        view: the view.
        model: that reads the texts.
        token_ids: of each text, context tokens included.
        parts: says what is being done.
    """
    parts.begin("logit lens")
    lens = lens_of(model, token_ids, progress=parts.advance)
    parts.begin("attention patterns")
    attention = patterns_of(model, token_ids)
    said = [why for why in (lens, attention) if isinstance(why, str)]
    return replace(
        view,
        lens=lens if isinstance(lens, Lens) else None,
        attention=attention if isinstance(attention, Attention) else None,
        meta={**view.meta, "notes": [*view.meta["notes"], *said]},
    )


def lens_of(
    model: LanguageModel,
    token_ids: Sequence[Sequence[int]],
    most: int = LENS_TOKENS,
    progress: Callable[[int, int], None] | None = None,
) -> Lens | str:
    """The logit lens of as many of the first texts as have `most` tokens in all; a sentence where there is none."""
    if not model.causal or hasattr(model, "decode"):
        return "No logit lens: the model does not predict the next token of these texts."
    if not token_ids:
        return "No logit lens: there are no texts."
    flops = LENS_FLOPS.get(model.device.type, LENS_FLOPS_ELSEWHERE)
    of_token = 2 * model.cfg.d_model * model.cfg.d_vocab * (model.n_layers + 1)
    lengths = np.cumsum([len(ids) for ids in token_ids])
    n = max(1, int((lengths <= min(most, flops / of_token)).sum()))
    try:
        places, top, probability = top_of_layers(model, token_ids[:n], LISTED, progress)
    except ProbekitError as error:
        return f"No logit lens: {error}."
    listed = np.unique(top).tolist()
    return Lens(
        texts=n,
        places=places,
        top=top,
        probability=probability,
        spelled=dict(zip(listed, spelled(model, listed), strict=True)),
    )


@torch.no_grad()
def patterns_of(model: LanguageModel, token_ids: Sequence[Sequence[int]], most: int = PATTERN_BYTES) -> Attention | str:
    """The attention patterns of the first texts that fit into `most` bytes; a sentence where there are none."""
    try:
        layers = model.layers_of("attn_pattern")
    except KeyError:
        layers = []
    if not layers or hasattr(model, "decode"):
        return "No attention patterns: this model does not give them."
    texts, patterns, size = [], [], 0
    for i, ids in enumerate(token_ids):
        n_bytes = len(layers) * model.cfg.n_heads * len(ids) ** 2
        if size + n_bytes > most or len(texts) == MOST_PATTERNS:
            continue
        tokens = torch.tensor([[int(t) for t in ids]], device=model.device)
        _, cache = model.run_with_cache(tokens, points="attn_pattern", return_logits=False)
        patterns.append(np.stack([cache["attn_pattern", layer][0].float().cpu().numpy() for layer in layers]))
        texts.append(i)
        size += n_bytes
    return Attention(layers, texts, patterns) if texts else "No attention patterns: the texts are too long."


SHARES = (("mistake", 0.3), ("least confident", 0.2), ("most confident", 0.2))  # of the texts; the rest are random


def choose_texts(
    n: int, seed: int, candidates: np.ndarray, confidence: np.ndarray | None, mistaken: np.ndarray | None
) -> tuple[np.ndarray, list[str]]:
    """Rows and why each was chosen, mistakes first; each row once.

    Among mistakes the most confident come first. Where there are fewer of a kind, random rows take their places.

    Args:
        n: how many, at most.
        seed: of the random ones.
        candidates: rows to choose from, int64.
        confidence: of the prediction of each candidate, larger is more confident; None chooses all at random.
        mistaken: whether each candidate's prediction is wrong; None: unknown.
    """
    left = np.ones(len(candidates), dtype=bool)
    chosen: list[int] = []
    why: list[str] = []

    def take(order: np.ndarray, most: int, reason: str) -> None:
        found = [int(i) for i in order if left[i]][: min(most, n - len(chosen))]
        left[found] = False
        chosen.extend(found)
        why.extend([reason] * len(found))

    if confidence is not None:
        rising = np.argsort(confidence, kind="stable")
        orders = {"least confident": rising, "most confident": rising[::-1]}
        if mistaken is not None:
            orders["mistake"] = rising[::-1][mistaken[rising[::-1]]]
        for reason, share in SHARES:
            take(orders.get(reason, rising[:0]), round(n * share), reason)
    take(np.random.default_rng(seed).permutation(len(candidates)), n, "random")
    return candidates[np.array(chosen, dtype=np.int64)], why


def confidence_of(scores: np.ndarray, centre: float = 0.0) -> np.ndarray:
    """How far each prediction is from the threshold, [N], or the largest score above the second, of [N, C]."""
    if scores.ndim == 1:
        return np.abs(scores - centre)
    top = np.sort(scores, axis=1)
    return top[:, -1] - top[:, -2]


TEXTS = 100
EDITED = "No logit lens and no attention patterns: the scores are of a model that ran under edits."
NO_MODEL = "No logit lens and no attention patterns: the scores are from the store; they need the model (--model)."


@dataclass(frozen=True)
class Shown:
    """Which texts are shown, and where their colours are centred.

    Attributes:
        texts: how many, at most.
        seed: of those taken at random.
        fpr: false-positive rate on validation whose threshold is the centre; None centres on even odds.
    """

    texts: int = TEXTS
    seed: int = 0
    fpr: float | None = None


def view_of_results(
    data: ProbeData,
    acts: Activations,
    model: LanguageModel | None = None,
    shown: Shown | None = None,
    parts: Steps = SILENT,
) -> TokenScores:
    """The view of the test texts of the activations that probes were trained on.

    Args:
        data: the curve, with fitted probes.
        acts: the activations that it was trained on.
        model: runs over the texts, unless the activations are of all tokens; None loads the one that made the store.
        shown: which texts.
        parts: says what is being done.

    Raises:
        UsageError: a model is needed, and none can be had without a network; probes that were not saved.
        DataError: no texts; the model ran under edits, which only Python has.
        ResumeMismatch: another model than the probes'.
    """
    shown = shown or Shown()
    if not acts.task.has_texts:
        raise DataError("these activations were imported without texts, so there is nothing to show")
    rows, why = chosen_rows(data, acts.task, shown)
    has_all = acts.layout.positions == [ALL] and all((one.point, one.layer) in acts for one in data.layers)
    if edited := data.meta.get("activations", {}).get("edited"):
        if not has_all:
            raise DataError(
                f"the model ran under edits ({edited!a:.80}), which this page cannot repeat; extract with position "
                "all, or use results.tokens(model, texts, edits=...) in Python"
            )
        found = rows_from_store(acts, rows, selection_of(data))
        return _with_notes(token_scores(data, found, why, shown.fpr), [EDITED])
    if model is None and not has_all:
        parts.begin("loading the model")
        model = model_of_store(acts)
    parts.begin("scoring tokens")
    if model is None:
        found = rows_from_store(acts, rows, selection_of(data))
        return _with_notes(token_scores(data, found, why, shown.fpr), [NO_MODEL])
    check_same_model(data, model)
    task = acts.task.subset(rows)
    if has_all:
        found = rows_from_store(acts, rows, selection_of(data))
    else:
        found = rows_from_model(model, task, data, _recorded(acts))
    return _with_views(data, found, dict(zip(task.ids, why, strict=True)), model, shown.fpr, parts)


def view_of_texts(
    data: ProbeData,
    model: LanguageModel,
    task: Task,
    *,
    fpr: float | None = None,
    edits: Mapping[Any, Any] | None = None,
    chat_template: str | Path | None = None,
) -> TokenScores:
    """The view of all texts of a task, which the model reads as it read those of the probes' training.

    Raises:
        UsageError: probes that were not saved; a rate that validation cannot hold.
        DataError: texts that the model cannot take.
        ResumeMismatch: another model, other edits or another chat template than the probes'.
    """
    check_same_model(data, model, edits)
    found = rows_from_model(model, task, data, {"edits": edits, "chat_template": chat_template})
    if edits is not None:
        view = token_scores(data, found, fpr=fpr, tokenizer=model.tokenizer)
        return _with_notes(view, [EDITED])
    return _with_views(data, found, {}, model, fpr)


def chosen_rows(data: ProbeData, task: Task, shown: Shown) -> tuple[np.ndarray, list[str]]:
    """The rows of the task that are shown, and why each was chosen."""
    first = task.texts()[0] if task.text_of is not None else np.arange(len(task))
    candidates = first[task.splits[first] == "test"] if (task.splits[first] == "test").any() else first
    rows, place = data.rows, data.selected.place if data.selected is not None else data.layers[-1].place
    if rows is None or place not in rows.scores:
        return choose_texts(shown.texts, shown.seed, candidates, None, None)
    at = {name: i for i, name in enumerate(rows.ids.tolist()) if rows.splits[i] == "test"}
    index = np.array([at.get(task.ids[i], -1) for i in candidates.tolist()], dtype=np.int64)
    if not (index >= 0).any():  # the rows are tokens or words of these texts
        return choose_texts(shown.texts, shown.seed, candidates, None, None)
    candidates, index = candidates[index >= 0], index[index >= 0]
    scores = rows.scores[place][index]
    if place in rows.predicted:
        line = None if shown.fpr is None else choose_threshold(rows, place, shown.fpr, fpr_of="score").value
        predicted = rows.predicted[place][index] if line is None else scores >= line
        sure = confidence_of(scores, line or 0.0)
        return choose_texts(shown.texts, shown.seed, candidates, sure, predicted != rows.labels[index])
    error = np.abs(scores - rows.labels[index]).reshape(len(index), -1).mean(axis=1)
    order, why = choose_texts(shown.texts, shown.seed, candidates, error, None)
    names = {"least confident": "smallest error", "most confident": "largest error"}
    return order, [names.get(one, one) for one in why]


def model_of_store(acts: Activations) -> LanguageModel:
    """The model that made a store, loaded again without a network.

    Raises:
        UsageError: activations of no store, or a model that is not on this machine.
    """
    source = read_plan(acts.path).source if isinstance(acts, Store) else None
    if source is None:
        raise UsageError("the tokens' scores need the model, and nothing records where it is; give --model (model=)")
    from probekit.models.load import load_model, source_here

    how = source_here(source)
    if how is None:
        raise UsageError(
            f"the tokens' scores need the model {source['name_or_path']!a:.80}, which is neither a folder here nor in "
            "the local cache of the Hub; give --model to load it"
        )
    return load_model(how.pop("name_or_path"), **how, progress=False)


def check_same_model(data: ProbeData, model: LanguageModel, edits: Mapping[Any, Any] | None = None) -> None:
    """Raise a ResumeMismatch if weights, type, tokenizer or edits are others than those of the probes' training."""
    different, _ = differences(data.meta.get("activations", {}), model, edits, model.tokenizer is not None)
    if different:
        raise ResumeMismatch(
            f"{printable(model.name)} is not the model that the probes were trained on: different {listed(different)}; "
            f"give {data.meta.get('model')!a:.80}"
        )


def _recorded(acts: Activations) -> dict[str, Any]:
    """What a store records of its extraction and older results do not."""
    return {"skip_special": bool(acts.meta.get("skip_special"))}


def _with_views(
    data: ProbeData,
    found: TokenRows,
    why: dict[str, str],
    model: LanguageModel,
    fpr: float | None,
    parts: Steps = SILENT,
) -> TokenScores:
    reasons = [why.get(name, "given") for name in found.acts.task.ids]
    view = token_scores(data, found, reasons, fpr, model.tokenizer)
    return with_model_views(view, model, _ids_of(found, model), parts)


def _with_notes(view: TokenScores, notes: list[str]) -> TokenScores:
    return replace(view, meta={**view.meta, "notes": [*view.meta["notes"], *notes]})


def _ids_of(found: TokenRows, model: LanguageModel) -> Sequence[Sequence[int]]:
    """The token ids of each text, with the context tokens that it ran with."""
    layout, task = found.acts.layout, found.acts.task
    try:
        sequences = tokenise_inputs(model, task, bool(layout.n_bos or layout.n_end), "cut")
    except ProbekitError:
        return []
    return [sequences[i].tolist() for i in range(len(task))]
