"""What a self-test compares with: `transformers`' own implementation, and this project's model, both in float64.

float64 is 1e9 times as exact as float32, so what differs is the error of the model under test alone. It knows no TF32
and no bfloat16 shortcut, so a setting of torch that allows these is seen as the error that it makes.

Axes: L tokens of one text, D width of a point, H heads, M key position.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from logging import CRITICAL
from typing import Any

import torch
from torch import Tensor, nn

from probekit.hooks import HookPoint
from probekit.models.base import LanguageModel
from probekit.models.load import family_of
from probekit.points import split_point
from probekit.text import printable
from probekit.verification.theirs import LOGITS, Known, Shown, known

Given = tuple[list[int], ...]  # the token ids of a text; of an encoder-decoder, those of a source and of a target
Run = Callable[[Given, Sequence[str]], dict[str, Tensor]]

BARE = "bert."  # before the names of a BERT with a head, not of one without


@dataclass(frozen=True)
class Reference:
    """Someone who computes activations in float64.

    Attributes:
        name: what the table calls it.
        shows: short names of the points that it can show.
        run: (what is given, full names of points) -> name -> [L, D], or [H, L, M] of attention.
    """

    name: str
    shows: frozenset[str]
    run: Run


class Unavailable(Exception):
    """`transformers` cannot run this model; says why."""


def alone(model: LanguageModel, given: Given, names: Sequence[str]) -> dict[str, Tensor]:
    """What one text, or one pair, gives at the named points: name -> [L, D], or [H, L, M] of attention."""
    points = [name for name in names if name != LOGITS]
    tokens = [torch.tensor([ids], device=model.device) for ids in given]
    logits, cache = model.run_with_cache(*tokens, points=points, return_logits=LOGITS in names)
    found = {name: of_text(cache[name], model.points[name]) for name in points}
    return found | ({LOGITS: logits[0]} if LOGITS in names else {})


def of_text(x: Tensor, point: HookPoint, text: int = 0, spans: Sequence[slice] = (slice(None),)) -> Tensor:
    """The real tokens of one text of a batch: [L, D] of [B, L, ...], or [H, L, M] of [B, H, L, M].

    Args:
        x: what passed the point.
        point: which says the axes, and by its name the side that L and M count; S counts the source in any case.
        text: its place in the batch.
        spans: where its real tokens are; of an encoder-decoder, those of the source and those of the target.
    """
    side = spans[-1] if point.name.startswith("decoder.") else spans[0]
    where = {"B": text, "L": side, "M": side, "S": spans[0]}
    axes = point.axes.split()
    x = x[tuple(where.get(axis, slice(None)) for axis in axes)]
    return x if axes[1] == "H" else x.flatten(1)


def own_float64(model: LanguageModel) -> Reference:
    """This project's model, made anew of the same config and weights, without the hooks of the one under test."""
    with torch.device("meta"):
        twin: Any = type(model)(model.cfg)
    twin.load_state_dict(model.state_dict(), assign=True)
    _in_float64(twin.eval(), model.device)
    shows = frozenset(split_point(name)[0] for name in model.points) | {LOGITS}
    return Reference("float64", shows, lambda given, names: alone(twin, given, names))


def _in_float64(model: nn.Module, device: torch.device) -> nn.Module:
    """The model computing in float64; of the blocks one at a time is widened, so that memory holds little more."""
    model.to("cpu" if device.type == "mps" else device)  # mps has no float64
    blocks = [block for stack in model.modules() if isinstance(stack, nn.ModuleList) for block in stack]
    within = {id(weight) for block in blocks for weight in block.parameters()}
    for weight in model.parameters():
        if id(weight) not in within:
            weight.data = weight.data.double()
    for block in blocks:
        _widen_while_it_runs(block)
    return model


def _widen_while_it_runs(block: nn.Module) -> None:
    narrow = [(weight, weight.data) for weight in block.parameters()]

    def widen(*_: Any) -> None:
        for weight, data in narrow:
            weight.data = data.double()

    def back(*_: Any) -> None:
        for weight, data in narrow:
            weight.data = data

    block.register_forward_pre_hook(widen)
    block.register_forward_hook(back, always_call=True)


def of_transformers(model: LanguageModel) -> tuple[Reference, str]:
    """Transformers' implementation with the same weights, and a line that says where these are from.

    Where the model was read from a folder, transformers reads that folder itself, so that reading is tested too.
    Otherwise it gets the model's own weights.

    Raises:
        Unavailable: it does not know the family, or cannot load the model.
    """
    known = _known(model)
    with _hushed():
        try:
            theirs = _read(model, known) if model.folder else _copied(model, known)
            theirs = _in_float64(theirs.eval(), model.device)
            from transformers import __version__
        except Exception as error:  # whatever it raises is the reason
            reason = " ".join(str(error).split()) or type(error).__name__
            raise Unavailable(f"not available: {printable(reason)[:200]}") from error
    source = "read from the model's folder" if model.folder else "with this model's weights"
    run = _runner(theirs, known.shows, model)
    return Reference("transformers", frozenset(known.shows), run), f"{known.model} of {__version__}, {source}"


def _known(model: LanguageModel) -> Known:
    found = known(model)
    if found is None:
        raise Unavailable(f"not available: no class of transformers is entered for {type(model).__name__}")
    return found


def _read(model: LanguageModel, known: Known) -> Any:
    import transformers

    return getattr(transformers, known.model).from_pretrained(
        model.folder, use_safetensors=True, local_files_only=True, dtype=model.dtype, attn_implementation="eager"
    )


def _copied(model: LanguageModel, known: Known) -> Any:
    import transformers

    cfg = model.cfg
    config = getattr(transformers, known.config)(**cfg.to_hf(), attn_implementation="eager")
    with torch.random.fork_rng(devices=[]):
        theirs = getattr(transformers, known.model)(config).to(model.dtype)
    weights, names = model.state_dict(), family_of(model).hf_names(cfg)
    bare = {there.name.removeprefix(BARE): (ours, there.transposed) for ours, there in names.items()}
    slots = {name.removeprefix(BARE): slot for name, slot in theirs.state_dict().items()}
    for name, (ours, transposed) in bare.items():
        if name in slots:  # a head that BertModel does not have
            slots[name].copy_(weights[ours].T if transposed else weights[ours])
    return theirs


def _runner(theirs: nn.Module, shows: Mapping[str, Shown], model: LanguageModel) -> Run:
    device = next(theirs.parameters()).device

    def run(given: Given, names: Sequence[str]) -> dict[str, Tensor]:
        seen: dict[str, Tensor] = {}
        handles = [_listen(theirs, name, shows, seen) for name in names]
        tokens = [torch.tensor([ids], device=device) for ids in given]
        try:
            with _hushed():
                theirs(**dict(zip(("input_ids", "decoder_input_ids"), tokens, strict=False)))
        finally:
            for handle in handles:
                handle.remove()
        return {name: x[0] if name == LOGITS else _as_ours(x, model.points[name]) for name, x in seen.items()}

    return run


def _as_ours(x: Tensor, point: HookPoint) -> Tensor:
    return x[0] if point.axes.split()[1] == "H" else x[0].flatten(1)


def _listen(theirs: nn.Module, name: str, shows: Mapping[str, Shown], seen: dict[str, Tensor]) -> Any:
    point, layer = (LOGITS, None) if name == LOGITS else split_point(name)
    path, take = shows[point]

    def keep(_: nn.Module, args: tuple, output: Any) -> None:
        seen[name] = take(args, output)

    return theirs.get_submodule(path.format(layer=layer)).register_forward_hook(keep)


@contextmanager
def _hushed() -> Iterator[None]:
    """No warnings, logs or bars of transformers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers.utils import logging

        level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
        logging.set_verbosity(CRITICAL)
        logging.disable_progress_bar()
        try:
            yield
        finally:
            logging.set_verbosity(level)
            if bars:
                logging.enable_progress_bar()
