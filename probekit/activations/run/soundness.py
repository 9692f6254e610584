"""Check that every value can be kept: no NaN, no infinity, no overflow of the kept type.

Axes: R rows of a place, D their width.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from probekit.activations.plan.packing import PackedBatch, pack
from probekit.activations.plan.plan import ExtractionPlan
from probekit.activations.run.forward import compute_batch
from probekit.activations.run.gather import masked_pairs
from probekit.errors import DataError
from probekit.machine.devices import DTYPES
from probekit.models.base import LanguageModel
from probekit.points import Place, base_name


def sound_rows(
    model: LanguageModel, batch: PackedBatch, causal: bool, kept: Mapping[Place, Tensor]
) -> dict[Place, Tensor]:
    """For each row of each place, True if all of its values are finite, bool [R].

    Attention scores that the mask hides are -inf and count as sound.
    """
    sound = {place: x.isfinite().all(1) for place, x in kept.items()}
    for place, x in kept.items():
        if base_name(place.point) == "attn_scores" and place.layer is not None:
            masked = masked_pairs(batch, causal, model.window_of(place.layer), x.device)
            sound[place] |= masked & (x == -torch.inf).all(1)
    return sound


def unsound_error(plan: ExtractionPlan, rows: np.ndarray) -> DataError:
    """The error that names the first example of the task among `rows` that cannot be kept.

    The examples are computed again in the order of the task, because an earlier one may be in a shard that did not run
    yet. Each is a block by itself: within a block NaN and infinity spread, because 0 times infinity is NaN.
    """
    rows = np.sort(rows)
    size = max(1, plan.batch_tokens // int(plan.sequences.lengths.max()))
    for i in range(0, len(rows), size):
        some = rows[i : i + size]
        sources = None if plan.sources is None else plan.sources.subset(some)
        packing = pack(plan.packing.sequences.subset(some), 1, share=False, causal=plan.packing.causal, sources=sources)
        batch = packing.batch(np.arange(len(some)))
        batch = replace(batch, rows=some[batch.rows])
        if error := _first_error(plan, batch):
            return error
    return DataError("NaN or infinity in the activations; check the model's weights, or compute in float32")


def _first_error(plan: ExtractionPlan, batch: PackedBatch) -> DataError | None:
    """The error for the first example of a batch with values that cannot be kept, at its first such place."""
    values = compute_batch(plan, batch)
    kept = {place: x.to(DTYPES[plan.dtype]) for place, x in values.items()}
    sound = sound_rows(plan.model, batch, plan.packing.causal, kept)
    rows_of_text = {}
    for place, x in values.items():
        counts = plan.layout.counts(place)[batch.rows].tolist()
        rows_of_text[place] = list(zip(x.split(counts), sound[place].split(counts), strict=True))
    for i in np.argsort(batch.rows):
        for place, texts in rows_of_text.items():
            x, is_sound = texts[i]
            if not is_sound.all():
                return _error(place, plan.task.ids[batch.rows[i]], x[~is_sound], plan)
    return None


def _error(place: Place, example: str, bad: Tensor, plan: ExtractionPlan) -> DataError:
    """The error for an example at a place; `bad` are its unsound rows there, [R, D]."""
    name, dtype = str(place), plan.dtype
    if bad.isfinite().all():
        return DataError(
            f"{name} of example {example!a} is {bad.abs().max():.3g}, more than {dtype} holds "
            f"({torch.finfo(DTYPES[dtype]).max:.3g}); keep float32 or bfloat16"
        )
    kind = "NaN" if bad.isnan().any() else "infinity"
    suspect = "the model's weights" if plan.edits is None else "the edits"
    return DataError(
        f"{kind} in the activations at {name}, first in example {example!a}; check {suspect}, or compute in float32"
    )
