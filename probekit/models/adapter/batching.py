"""Which batches leave a text's activations what they are when the text runs by itself: proved on random texts.

Packed blocks need a class that takes a mask of pairs and positions. The texts share a prefix, and are packed side by
side, and as a forest in which the prefix is computed once. The check is sound for small weights too: with a mask that
lets the texts see one another, and with other positions, the result must change, or packing is not used. So a class
that counts positions by place in the row (ALiBi) is never packed.

A sliding window is narrowed to a few tokens during the proof, so that short texts show whether masks carry it.

Axes: B batch, L tokens of a row, M tokens that may be seen.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from probekit.errors import DataError
from probekit.models.adapter.config import config_value
from probekit.models.adapter.identities import identities
from probekit.models.adapter.layouts import has_recurrence
from probekit.models.adapter.model import AdaptedModel, MaskForm
from probekit.models.adapter.proof import (
    N_TOKENS,
    NARROW,
    bound_of,
    narrowed,
    random_ids,
    relative,
    special_ids,
)
from probekit.models.base import Batching

FLOAT32_BOUND = 5e-6
WIDE = 10_000  # tokens of a sliding window that the proof's texts do not reach
POWER = 10  # times the bound: what a wrong mask must change
# Fields of configs that may make attention local by place in the row, farther than the proof's texts reach: a model
# with one is not packed. Of those understood, sliding windows are masks, and the last computes the same in pieces.
LOCAL = re.compile("window|chunk|local_attention|block_size|stride|conv_kernel")
UNDERSTOOD = ("sliding_window", "use_sliding_window", "max_window_layers", "sliding_window_pattern")
UNDERSTOOD += ("_sliding_window_pattern", "chunk_size_feed_forward")
# Attention that keeps a number of tokens (DeepSeek Sparse Attention, Doge): padding changes what a row with more tokens
# than that number keeps, and the proof's texts have fewer.
KEEPING = re.compile("index_topk|keep_window_size|indexer_budget")
CHANGING_ROTATIONS = ("dynamic", "longrope")  # depend on the longest text of the batch


def bound_of_batches(dtype: torch.dtype) -> float:
    """The largest relative difference that counts as equal."""
    return FLOAT32_BOUND if dtype in (torch.float32, torch.float64) else NARROW * torch.finfo(dtype).eps


def is_causal(model: AdaptedModel) -> bool:
    """Whether a token's activations are the same without the tokens after it, in a text longer than windows.

    Raises:
        DataError: what the points show does not add up to the stream.
    """
    ids = random_ids(model.cfg, min(N_TOKENS[-1], model.cfg.n_ctx), 7, special_ids(model.hf.config))
    with narrowed(model.hf.config):
        whole, half = _streams(model, ids), _streams(model, ids[: (len(ids) + 1) // 2])
    return relative(whole[:, : half.shape[1]], half) <= bound_of_batches(model.dtype)


def prove_batching(model: AdaptedModel) -> tuple[Batching, MaskForm | None]:
    """The best kind of batches that is proved for this model, and how it takes packed texts.

    Raises:
        DataError: a text's activations depend on the other rows of a batch, even where all are as long.
    """
    config = model.hf.config
    _prove_rows(model)
    if _rotations_change(config) or any(KEEPING.match(name) and value for name, value in config.to_dict().items()):
        return "one length", None
    for form in _forms(model):
        try:
            if _proved_packing(model, form):
                return "packed", form
        except (RuntimeError, ValueError, TypeError, KeyError, IndexError, AttributeError, DataError):
            continue  # the class takes no such mask, or computes otherwise with it
    return "padded" if _proved_padding(model) else "one length", None


@torch.no_grad()
def _prove_rows(model: AdaptedModel) -> None:
    """Raise unless a text between two others of its length has the streams that it has by itself."""
    n, special = min(N_TOKENS[0], model.cfg.n_ctx), special_ids(model.hf.config)
    texts = [random_ids(model.cfg, n, seed, special) for seed in (8, 9, 10)]
    got = _run(model, {"input_ids": torch.tensor(texts, device=model.device)})[:, 1]
    if (error := relative(got, _streams(model, texts[1]))) > (bound := bound_of_batches(model.dtype)):
        raise DataError(
            f"{model.cfg.model_class} fails its proof: the activations of a text depend on the other texts of its "
            f"batch (by {error:.1e}, bound {bound:.1e})"
        )


def _rotations_change(config: Any) -> bool:
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    each = [rope, *(one for one in rope.values() if isinstance(one, dict))] if isinstance(rope, dict) else []
    return any((one.get("rope_type") or one.get("type")) in CHANGING_ROTATIONS for one in each)


def _forms(model: AdaptedModel) -> Iterator[MaskForm]:
    """Ways to take packed texts that this class may know."""
    config = model.hf.config
    types = set(getattr(config, "layer_types", None) or ())
    local = [name for name, value in config.to_dict().items() if LOCAL.search(name) and value]
    if has_recurrence(model.hf) or set(local) - set(UNDERSTOOD):
        return
    if not types <= {"full_attention", "sliding_attention"}:
        return
    sliding = config_value(config, "sliding_window")
    if isinstance(sliding, list):
        return
    if getattr(config, "use_sliding_window", True) is False or types == {"full_attention"}:
        sliding = None
    kinds = ("plain",) if sliding is None else ("windowed", "by type")
    padding = getattr(config, "pad_token_id", None)
    for offset in (0, padding + 1) if isinstance(padding, int) and padding >= 0 else (0,):
        yield from (MaskForm(kind, offset, sliding) for kind in kinds)


def _texts(model: AdaptedModel) -> list[list[int]]:
    """Three texts; the first two share a prefix."""
    most = min(8, model.cfg.n_ctx)
    ids = random_ids(model.cfg, 3 * most, 7, special_ids(model.hf.config))
    prefix = ids[: most // 2]
    return [ids[:most], prefix + ids[most : 2 * most - most // 2 - 1], ids[2 * most : 3 * most - 2]]


@torch.no_grad()
def _streams(model: AdaptedModel, ids: list[int]) -> Tensor:
    """The stream before every block and after the last, of one text by itself: [n_layers + 1, L, D]."""
    return _run(model, {"input_ids": torch.tensor([ids], device=model.device)})[:, 0]


def _run(model: AdaptedModel, inputs: dict[str, Any]) -> Tensor:
    """The same of a batch, straight through transformers: [n_layers + 1, B, L, D].

    Raises:
        DataError: what the points show does not add up to the stream in some layer.
    """
    kept: list[Tensor] = []
    last = model.cfg.n_layers - 1
    points = ["resid_pre", f"resid_post.{last}"]
    with model.hooks([(points, lambda x, hook: kept.append(x))]):
        found = identities(model, lambda: model.run_hf(inputs))
    for one in found:
        if one.error > bound_of(model.dtype):
            raise DataError(
                f"{model.cfg.model_class} fails its proof: in layer {one.layer}, {one.name} does not hold: the two "
                f"differ by {one.error:.1e} (bound {bound_of(model.dtype):.1e})"
            )
    return torch.stack([x.to(kept[0].device) for x in kept])


@torch.no_grad()
def _proved_packing(model: AdaptedModel, form: MaskForm) -> bool:
    """Whether packed texts equal the texts by themselves: side by side, and of a causal class as a forest."""
    config, texts, bound = model.hf.config, _texts(model), bound_of_batches(model.dtype)
    with narrowed(config) as window:
        form = form if form.sliding is None else replace(form, sliding=window)
        wanted = [_streams(model, ids) for ids in texts]
        if form.sliding is not None:  # a class may keep its window elsewhere
            config.sliding_window = WIDE
            if relative(_streams(model, texts[0]), wanted[0]) <= bound:
                return False
            config.sliding_window = window
        return all(_equal(model, form, texts, wanted, share) for share in ((False, True) if model.causal else (False,)))


def _equal(model: AdaptedModel, form: MaskForm, texts: list[list[int]], wanted: list[Tensor], share: bool) -> bool:
    """Whether texts in one row have the streams that are wanted, and others with a wrong mask or wrong positions."""
    tokens, positions, mask, paths = _packed(texts, model.causal, share)
    tokens, positions, mask = (x.to(model.device) for x in (tokens, positions, mask))
    bound = bound_of_batches(model.dtype)

    def packed(seen: Tensor, at: Tensor) -> Tensor:
        return _run(model, {"input_ids": tokens, **model.packed_inputs(form, seen, at)})[:, 0]

    got = packed(mask, positions)
    if any(relative(got[:, path], one) > bound for path, one in zip(paths, wanted, strict=True)):
        return False
    everything = torch.ones_like(mask)
    leaking = packed(everything.tril() if model.causal else everything, positions)
    misplaced = packed(mask, positions.flip(1))
    return min(relative(wrong[:, paths[-1]], wanted[-1]) for wrong in (leaking, misplaced)) > POWER * bound


def _packed(texts: Sequence[list[int]], causal: bool, share: bool) -> tuple[Tensor, Tensor, Tensor, list[list[int]]]:
    """Tokens [1, L], positions [1, L], mask [1, L, M] and the nodes of each text, which share prefixes with `share`."""
    tokens: list[int] = []
    positions: list[int] = []
    known: dict[tuple, int] = {}
    paths = []
    for number, ids in enumerate(texts):
        path: list[int] = []
        for depth, token in enumerate(ids):
            key = tuple(ids[: depth + 1]) if share else (number, depth)
            if key not in known:
                known[key] = len(tokens)
                tokens.append(token)
                positions.append(depth)
            path.append(known[key])
        paths.append(path)
    mask = torch.zeros(1, len(tokens), len(tokens), dtype=torch.bool)
    for path in paths:
        for depth, node in enumerate(path):
            mask[0, node, path[: depth + 1] if causal else path] = True
    return torch.tensor([tokens]), torch.tensor([positions]), mask, paths


@torch.no_grad()
def _proved_padding(model: AdaptedModel) -> bool:
    """Whether texts that are padded on the right equal the texts by themselves."""
    texts, bound = _texts(model), bound_of_batches(model.dtype)
    width = max(map(len, texts))
    tokens = torch.tensor([ids + ids[:1] * (width - len(ids)) for ids in texts], device=model.device)
    mask = torch.arange(width, device=model.device) < torch.tensor([[len(ids)] for ids in texts], device=model.device)
    try:
        got = _run(model, {"input_ids": tokens} | ({} if model.causal else {"attention_mask": mask.long()}))
    except (RuntimeError, ValueError, TypeError, DataError):
        return False
    return all(relative(got[:, row, : len(ids)], _streams(model, ids)) <= bound for row, ids in enumerate(texts))
