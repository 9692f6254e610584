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
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from probekit.hooks import split_point
from probekit.models.base import LanguageModel
from probekit.models.load import Family, families
from probekit.text import printable

LOGITS = "logits"  # among the names of points: the output of the model
Run = Callable[[Sequence[int], Sequence[str]], dict[str, Tensor]]


@dataclass(frozen=True)
class Reference:
    """Someone who computes activations in float64.

    Attributes:
        name: what the table calls it.
        shows: short names of the points that it can show.
        run: (token ids of a text, full names of points) -> name -> [L, D], or [H, L, M] of attention.
    """

    name: str
    shows: frozenset[str]
    run: Run


class Unavailable(Exception):
    """`transformers` cannot run this model; says why."""


def alone(model: LanguageModel, ids: Sequence[int], names: Sequence[str]) -> dict[str, Tensor]:
    """What one text gives at the named points: name -> [L, D], or [H, L, M] of attention."""
    points = [name for name in names if name != LOGITS]
    tokens = torch.tensor([list(ids)], device=model.device)
    logits, cache = model.run_with_cache(tokens, points=points, return_logits=LOGITS in names)
    found = {name: of_text(cache[name], model.points[name].axes) for name in points}
    return found | ({LOGITS: logits[0]} if LOGITS in names else {})


def of_text(x: Tensor, axes: str, text: int = 0, span: slice = slice(None)) -> Tensor:
    """The real tokens of one text of a batch: [L, D] of [B, L, ...], or [H, L, M] of [B, H, L, M]."""
    return x[text, :, span, span] if "M" in axes.split() else x[text, span].flatten(1)


def own_float64(model: LanguageModel) -> Reference:
    """This project's model, made anew of the same config and weights, without the hooks of the one under test."""
    with torch.device("meta"):
        twin: Any = type(model)(model.cfg)
    twin.load_state_dict(model.state_dict(), assign=True)
    _in_float64(twin.eval(), model.device)
    shows = frozenset(split_point(name)[0] for name in model.points) | {LOGITS}
    return Reference("float64", shows, lambda ids, names: alone(twin, ids, names))


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


class Shown(NamedTuple):
    """Where a module of transformers shows one of our points.

    Attributes:
        module: path of the module; {layer} stands for the layer.
        take: (arguments of its forward, what it returned) -> the tensor [1, ...].
    """

    module: str
    take: Callable[[tuple, Any], Tensor]


class Known(NamedTuple):
    """How transformers knows a family: the names of its two classes, and where our points are."""

    config: str
    model: str
    shows: Mapping[str, Shown]


def _input(args: tuple, _: Any) -> Tensor:
    return args[0]


def _output(_: tuple, output: Any) -> Tensor:
    return output[0] if isinstance(output, tuple) else output


def _third(i: int) -> Callable[[tuple, Any], Tensor]:
    return lambda _, output: output.chunk(3, -1)[i]


_BLOCK = "transformer.h.{layer}"
GPT2 = {
    "embed": Shown("transformer.wte", _output),
    "pos_embed": Shown("transformer.wpe", _output),
    "resid_pre": Shown(f"{_BLOCK}.ln_1", _input),
    "ln1_normalized": Shown(f"{_BLOCK}.ln_1", _output),
    "q": Shown(f"{_BLOCK}.attn.c_attn", _third(0)),
    "k": Shown(f"{_BLOCK}.attn.c_attn", _third(1)),
    "v": Shown(f"{_BLOCK}.attn.c_attn", _third(2)),
    "attn_pattern": Shown(f"{_BLOCK}.attn", lambda _, output: output[1]),
    "z": Shown(f"{_BLOCK}.attn.c_proj", _input),
    "attn_out": Shown(f"{_BLOCK}.attn", _output),
    "resid_mid": Shown(f"{_BLOCK}.ln_2", _input),
    "ln2_normalized": Shown(f"{_BLOCK}.ln_2", _output),
    "mlp_pre": Shown(f"{_BLOCK}.mlp.c_fc", _output),
    "mlp_post": Shown(f"{_BLOCK}.mlp.c_proj", _input),
    "mlp_out": Shown(f"{_BLOCK}.mlp", _output),
    "resid_post": Shown(_BLOCK, _output),
    "ln_final": Shown("transformer.ln_f", _output),
    LOGITS: Shown("lm_head", _output),
}
KNOWN = {"gpt2": Known("GPT2Config", "GPT2LMHeadModel", GPT2)}  # by model_type; named, so never remote code


def of_transformers(model: LanguageModel) -> tuple[Reference, str]:
    """Transformers' implementation with the same weights, and a line that says where these are from.

    Where the model was read from a folder, transformers reads that folder itself, so that reading is tested too.
    Otherwise it gets the model's own weights.

    Raises:
        Unavailable: it does not know the family, or cannot load the model.
    """
    known, family = _known(model)
    with _hushed():
        try:
            theirs = _read(model, known) if model.folder else _copied(model, known, family)
            theirs = _in_float64(theirs.eval(), model.device)
            from transformers import __version__
        except Exception as error:  # whatever it raises is the reason
            reason = " ".join(str(error).split()) or type(error).__name__
            raise Unavailable(f"not available: {printable(reason)[:200]}") from error
    source = "read from the model's folder" if model.folder else "with this model's weights"
    run = _runner(theirs, known.shows)
    return Reference("transformers", frozenset(known.shows), run), f"{known.model} of {__version__}, {source}"


def _known(model: LanguageModel) -> tuple[Known, Family]:
    for model_type, family in families().items():
        if isinstance(model, family.model) and model_type in KNOWN:
            return KNOWN[model_type], family
    raise Unavailable(f"not available: no class of transformers is entered for {type(model).__name__}")


def _read(model: LanguageModel, known: Known) -> Any:
    import transformers

    return getattr(transformers, known.model).from_pretrained(
        model.folder, use_safetensors=True, local_files_only=True, dtype=model.dtype, attn_implementation="eager"
    )


def _copied(model: LanguageModel, known: Known, family: Family) -> Any:
    import transformers

    cfg = model.cfg
    config = getattr(transformers, known.config)(**cfg.to_hf(), attn_implementation="eager")
    with torch.random.fork_rng(devices=[]):
        theirs = getattr(transformers, known.model)(config).to(model.dtype)
    slots = dict(theirs.named_parameters())
    weights = model.state_dict()
    for ours, there in family.hf_names(cfg).items():
        slots[there.name].data.copy_(weights[ours].T if there.transposed else weights[ours])
    return theirs


def _runner(theirs: nn.Module, shows: Mapping[str, Shown]) -> Run:
    device = next(theirs.parameters()).device

    def run(ids: Sequence[int], names: Sequence[str]) -> dict[str, Tensor]:
        seen: dict[str, Tensor] = {}
        handles = [_listen(theirs, name, shows, seen) for name in names]
        try:
            with _hushed():
                theirs(torch.tensor([list(ids)], device=device))
        finally:
            for handle in handles:
                handle.remove()
        return {name: seen[name] for name in names}

    return run


def _listen(theirs: nn.Module, name: str, shows: Mapping[str, Shown], seen: dict[str, Tensor]) -> Any:
    point, layer = (LOGITS, None) if name == LOGITS else split_point(name)
    path, take = shows[point]

    def keep(_: nn.Module, args: tuple, output: Any) -> None:
        seen[name] = take(args, output)[0]

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
