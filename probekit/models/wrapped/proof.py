"""Prove on random texts, short and long, that points are what their names say, and which batches may hold a text.

`resid_post.i = resid_pre.{i + 1}`, `resid_pre + attn_out = resid_mid` and `resid_mid + mlp_out = resid_post`, as far as
the points are there; and a text gives the same numbers twice, in a batch, and without the tokens after it.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from probekit.errors import DataError
from probekit.models.adapter.proof import bound_of, random_ids, relative
from probekit.models.wrapped.model import WrappedModule
from probekit.models.wrapped.outside import called
from probekit.models.wrapped.shape import random_texts
from probekit.points import Place


def prove_points(model: WrappedModule) -> Any:
    """The batches that leave a text's activations unchanged; raise unless the points are what their names say.

    Raises:
        DataError: they are not, or differ from run to run.
    """
    name, bound = model.cfg.model_class, bound_of(model.dtype)
    texts = random_texts(model.cfg)

    def check(got: Mapping[str, Tensor], wanted: Mapping[str, Tensor], why: str) -> None:
        point, error = _worst(got, wanted)
        if not error <= bound:
            raise DataError(f"{name} fails its proof: {Place.of(point)} {why} (by {error:.1e}, bound {bound:.1e})")

    pads = model.causal
    for text, other in texts:
        alone, alone_too = _streams(model, [text]), _streams(model, [other])
        if unsound := [point for point, x in alone.items() if not x.isfinite().all()]:
            raise DataError(f"{name} has NaN or infinity at {Place.of(unsound[0])}; check its weights")
        check(_streams(model, [text]), alone, "differs when the same text is run again; take out what is random")
        before, after = (random_ids(model.cfg, len(text), seed) for seed in (8, 9))
        second = {point: x[1:2] for point, x in _streams(model, [before, text, after]).items()}
        check(second, alone, "of a text depends on the other texts of its batch; take out what mixes them")
        for seen in (alone, alone_too):
            _prove_sums(model, seen, bound)
        if not model.causal:
            continue
        for n in {max(1, len(text) // 2), max(1, len(text) - 1)}:
            cut = {point: x[:, :n] for point, x in alone.items()}
            check(_streams(model, [text[:n]]), cut, "of a token depends on the tokens after it; give causal=False")
        padded = _streams(model, [text, other + [text[0]] * (len(text) - len(other))])
        got = {point: x[1:, : len(other)] for point, x in padded.items()}
        pads &= _worst(got, alone_too)[1] <= bound
    _prove_head(model, texts[0][0], bound)
    return "padded" if pads else "one length"


def _streams(model: WrappedModule, ids: list[list[int]]) -> dict[str, Tensor]:
    """Every point that has a row for each token, of a batch of texts of one length: [B, L, ...]."""
    kept: dict[str, Tensor] = {}
    names = [name for name, point in model.points.items() if point.axes.split()[1] == "L"]
    with torch.no_grad(), model.hooks([(names, lambda x, hook: kept.__setitem__(hook.name, x))]):
        called(model.module, torch.tensor(ids, device=model.device))
    return kept


def _worst(got: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> tuple[str, float]:
    """The point that differs most, and its relative difference."""
    errors = {name: relative(got[name], wanted[name]) for name in wanted}
    name = max(errors, key=lambda name: errors[name])
    return name, errors[name]


def _prove_head(model: WrappedModule, ids: list[int], bound: float) -> None:
    """Note whether the logits follow from what the forward returns without its head."""
    tokens = torch.tensor([ids], device=model.device)
    with torch.no_grad():
        try:
            again = model.logits(model(tokens, return_logits=False))
            model.head_is_last = relative(again, model(tokens)) <= bound
        except (RuntimeError, ValueError):  # code that takes no replacement
            model.head_is_last = False


def _prove_sums(model: WrappedModule, seen: Mapping[str, Tensor], bound: float) -> None:
    """Raise unless the points of the stream are what their names say, as far as they are there."""
    for layer in range(model.cfg.n_layers):
        x = {short: seen.get(f"blocks.{layer}.hook_{short}") for short in ("resid_pre", "resid_mid", "resid_post")}
        attn, mlp = (seen.get(f"blocks.{layer}.hook_{short}") for short in ("attn_out", "mlp_out"))
        sums = [
            ("resid_pre + attn_out = resid_mid", (x["resid_pre"], attn), x["resid_mid"]),
            ("resid_mid + mlp_out = resid_post", (x["resid_mid"], mlp), x["resid_post"]),
            ("resid_post = resid_pre of the next layer", (x["resid_post"],), seen.get(_next(layer))),
        ]
        if x["resid_mid"] is None:
            sums.append(("resid_pre + attn_out + mlp_out = resid_post", (x["resid_pre"], attn, mlp), x["resid_post"]))
        for says, parts, whole in sums:
            there = [part for part in parts if part is not None]
            if whole is None or len(there) < len(parts):
                continue
            if not (error := relative(torch.stack(there).sum(0), whole)) <= bound:
                raise DataError(
                    f"{model.cfg.model_class} fails its proof: {says} does not hold in layer {layer} (by {error:.1e}, "
                    f"bound {bound:.1e}); leave out the point that is not what is added, or name another module"
                )


def _next(layer: int) -> str:
    return f"blocks.{layer + 1}.hook_resid_pre"
