"""The references of a self-test: `transformers`' implementation, and this project's own model, both in float64.

The reference of a wrapped model is the same class of transformers, made again without points: the stream is read from
its `hidden_states` where it gives them for every block, sublayers from the modules that the layout names; one unbatched
text at a time through the eager attention, with token ids alone, and positions where the class would count them from
the ids (`AdaptedModel.first_positions`).

float64 is 1e9 times as precise as float32, so a difference is the error of the model under test. It has no TF32 or
bfloat16 shortcut, so the error of a torch setting that allows these shows as well.

Axes: L tokens of one text, D width of a point, H heads, M key position.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from probekit.errors import DataError
from probekit.hooks import HookPoint
from probekit.models.adapter.config import active_stream
from probekit.models.adapter.load import default_fields, error_line, made_again
from probekit.models.adapter.model import AdaptedModel, quiet
from probekit.models.adapter.proof import accepted, first_of, look, stream_argument
from probekit.models.base import LanguageModel
from probekit.models.families import families
from probekit.models.family import LOGITS, Family, HfModel, HfPoint
from probekit.models.files import read_json
from probekit.models.packaging import RENAMED, is_packaged, text_fields, without
from probekit.models.spread import widen
from probekit.models.weights import as_stored
from probekit.models.wrapped.model import WrappedModule
from probekit.points import Place

TextIds = tuple[list[int], ...]  # the token ids of a text; for an encoder-decoder, of a source and of a target
Run = Callable[[TextIds, Sequence[str]], dict[str, Tensor]]
MASKED = 9e3  # in size: classes mask with -10,000, or with the smallest number of a type
NO_CACHE = {"use_cache": False}  # Jamba's fails where no layer is attention


@dataclass(frozen=True)
class Reference:
    """An implementation that computes activations in float64.

    Attributes:
        name: its name in the table.
        points: short names of the points that it computes.
        run: (token ids, full names of points) -> name -> [L, D], or [H, L, M] for scores and patterns.
        largest_score: the largest attention score so far, of a model that has no point for scores.
    """

    name: str
    points: frozenset[str]
    run: Run
    largest_score: Callable[[], float] = lambda: 0.0


class Unavailable(Exception):
    """The installed `transformers` has no class for this model, or none for float64; the text says which."""


class NotRun(Exception):
    """The class of `transformers` for this model raised an error; the text says which."""


def run_single(model: LanguageModel, text: TextIds, names: Sequence[str]) -> dict[str, Tensor]:
    """The activations of one unbatched text or pair: name -> [L, D], or [H, L, M] for scores and patterns."""
    points = [name for name in names if name != LOGITS]
    tokens = [torch.tensor([ids], device=model.device) for ids in text]
    logits, cache = model.run_with_cache(*tokens, points=points, return_logits=LOGITS in names)
    activations = {name: rows_of_text(cache[name], model.points[name]) for name in points}
    return activations | ({LOGITS: logits[0]} if LOGITS in names else {})


def rows_of_text(x: Tensor, point: HookPoint, text: int = 0, spans: Sequence[slice] = (slice(None),)) -> Tensor:
    """One text's real tokens in a batch: [L, D] from [B, L, ...], or [H, L, M] from [B, H, L, M].

    Args:
        x: the activation at the point.
        point: gives the axes. Its name tells whether L and M count source or target; S always counts the source.
        text: index in the batch.
        spans: the slice of its real tokens; for an encoder-decoder, of the source and of the target.
    """
    side = spans[-1] if point.name.startswith("decoder.") else spans[0]
    where = {"B": text, "L": side, "M": side, "S": spans[0]}
    axes = point.axes.split()
    x = x[tuple(where.get(axis, slice(None)) for axis in axes)]
    return x if axes[1] == "H" else x.flatten(1)


def float64_reference(model: LanguageModel, text: TextIds) -> Reference:
    """The model made anew with the same config and weights, without the hooks of the one under test.

    A module of the user's own that computes in one type alone is run in that type.

    Args:
        model: any.
        text: which such a module runs once.
    """
    twin: Any = in_float64(model.made_anew().eval(), room_for(model))
    name = "float64"
    if isinstance(model, WrappedModule):
        try:
            run_single(twin, text, [LOGITS] if model.has_logits else [])
        except RuntimeError:
            twin, name = model.made_anew().eval(), str(model.dtype).removeprefix("torch.")
    points = frozenset(Place.of(point)[0] for point in model.points) | {LOGITS}
    return Reference(name, points, lambda text, names: run_single(twin, text, names))


def room_for(model: LanguageModel) -> torch.device:
    """Where a second model fits: one on several devices has left no room there."""
    return torch.device("cpu") if model.stays else model.device


def in_float64(model: nn.Module, device: torch.device) -> nn.Module:
    """The model computing in float64."""
    model.to("cpu" if device.type == "mps" else device)  # mps has no float64
    widen(model, torch.float64)
    return model


def transformers_reference(model: LanguageModel, text: TextIds) -> tuple[Reference, str]:
    """Transformers' implementation with the same weights, and a line that says where these come from.

    If the model was loaded from a folder, transformers loads that folder itself, so that loading is tested too.
    Otherwise it gets the model's own weights.

    Args:
        model: of one of the families.
        text: which such a module runs once.

    Raises:
        Unavailable: transformers has no class for the model, or the class cannot compute in float64.
        NotRun: it has one, which cannot load the weights or run the text.
    """
    family, hf_model, version = _hf_model(model)
    with quiet():
        try:
            hf = _with_weights(model, family, hf_model)
            run = _runner(in_float64(hf.eval(), room_for(model)), hf_model, model)
            run(text, ())
        except Exception as error:  # whatever it raises is the reason
            reason = error_line(error)
            if "not implemented for 'Double'" in reason:
                raise Unavailable(f"not available: {hf_model.model} of {version}: {reason}") from None
            raise NotRun(f"{hf_model.model} of {version} cannot be run: {reason}") from None
    source = "read from the model's folder" if model.folder else "with this model's weights"
    source += without(model.left_out)
    return Reference("transformers", frozenset(hf_model.points), run), f"{hf_model.model} of {version}, {source}"


def _hf_model(model: LanguageModel) -> tuple[Family, HfModel, str]:
    """The family, its classes of transformers, and the version of transformers.

    Raises:
        Unavailable: transformers is not installed, or has no such classes.
    """
    family = next((family for family in families().values() if family.config is type(model.cfg)), None)
    hf_model = family and family.hf_model(model.cfg)
    if family is None or hf_model is None:
        raise Unavailable(f"not available: no class of transformers is known for {type(model).__name__}")
    try:
        import transformers
    except ImportError:
        raise Unavailable("not available: transformers is not installed") from None
    for name in (hf_model.config, hf_model.model):
        if not hasattr(transformers, name):
            raise Unavailable(f"not available: transformers {transformers.__version__} has no {name}")
    return family, hf_model, transformers.__version__


def transformers_model(model: LanguageModel) -> tuple[Any, HfModel, str]:
    """The class of `transformers` with the weights of a model, in its type and on its device, for timing.

    Its attention is torch's fused one (sdpa) where it has it, and step by step (eager) where not, as in Gemma 2.

    Args:
        model: of one of the families.

    Returns:
        The model, its points, and the version of transformers.

    Raises:
        Unavailable: transformers has no class for the model.
        NotRun: it has one, which cannot load the weights.
    """
    family, hf_model, version = _hf_model(model)

    with quiet():
        try:
            try:
                hf = _with_weights(model, family, hf_model, "sdpa")
            except ValueError:  # the class has no such attention
                hf = _with_weights(model, family, hf_model)
            hf = hf.eval().to(room_for(model))
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # whatever it raises is the reason
            raise NotRun(error_line(error)) from None
    return hf, hf_model, version


def _with_weights(model: LanguageModel, family: Family, hf_model: HfModel, attention: str = "eager") -> Any:
    """The class of transformers with the weights of the model's folder.

    Without a folder it gets the model's own, matched by name without the prefix that bare models lack.
    """
    import transformers

    options = {"attn_implementation": attention, **hf_model.options}
    if model.folder:
        options |= {"use_safetensors": True, "local_files_only": True}
        hf = read_json(model.folder / "config.json")
        if is_packaged(hf):
            config = getattr(transformers, hf_model.config).from_dict(text_fields(hf, default_fields))
            options |= {"config": config, "key_mapping": RENAMED}
        return getattr(transformers, hf_model.model).from_pretrained(model.folder, dtype=model.dtype, **options)
    config = getattr(transformers, hf_model.config)(**model.cfg.to_hf(), **options)
    with torch.random.fork_rng(devices=[]):
        hf = getattr(transformers, hf_model.model)(config).to(model.dtype)
    slots = {family.hf_renamed(name).removeprefix(family.hf_prefix): slot for name, slot in hf.state_dict().items()}
    for name, tensor in as_stored(model.state_dict(), family.hf_names(model.cfg, slots)):
        if (slot := slots.get(name.removeprefix(family.hf_prefix))) is not None:  # a bare class lacks the heads
            slot.copy_(tensor)
    return hf


def _runner(hf: nn.Module, hf_model: HfModel, model: LanguageModel) -> Run:
    device, first = next(hf.parameters()).device, hf_model.first_position

    def run(text: TextIds, names: Sequence[str]) -> dict[str, Tensor]:
        kept: dict[str, Tensor] = {}
        handles = [_hook(hf, name, hf_model.points, kept) for name in names]
        tokens = [torch.tensor([ids], device=device) for ids in text]
        given: dict[str, Tensor] = dict(zip(("input_ids", "decoder_input_ids"), tokens, strict=False))
        if first:  # else the model would count them from the ids, where a padding token has no position
            given["position_ids"] = torch.arange(first, first + len(text[0]), device=device)[None]
        try:
            with quiet():
                hf(**given)
        finally:
            for handle in handles:
                handle.remove()
        return {name: x[0] if name == LOGITS else _rows(x, model.points[name]) for name, x in kept.items()}

    return run


def _rows(x: Tensor, point: HookPoint) -> Tensor:
    """A batch of one as `rows_of_text` gives it."""
    return x[0] if point.axes.split()[1] == "H" else x[0].flatten(1)


def _hook(hf: nn.Module, name: str, points: Mapping[str, HfPoint], kept: dict[str, Tensor]) -> Any:
    """Keep the tensor at a point of the transformers model under `name`; the handle removes the hook."""
    point, layer = (LOGITS, None) if name == LOGITS else Place.of(name)
    found = points[point]

    def keep(_: nn.Module, args: tuple, output: Any) -> None:
        kept[name] = found.take(args, output)

    return hf.get_submodule(found.path(layer)).register_forward_hook(keep)


class ScoreSizes(TorchFunctionMode):
    """Within the context, the largest attention score that enters a softmax is kept in `largest`.

    Scores are the arguments with 4 axes [B, H, L, M]; those of routers have 2 or 3. Masked ones, which are infinite or
    about the type's smallest number, do not count.
    """

    largest = 0.0

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        """Call the function, and look at what a softmax is given."""
        if getattr(func, "__name__", "") == "softmax":
            x = args[0] if args else (kwargs or {})["input"]
            if x.dim() == 4:
                size = x.abs()
                self.largest = max(self.largest, float(size.masked_fill(size > MASKED, 0).max()))
        return func(*args, **(kwargs or {}))


def adapter_reference(model: AdaptedModel) -> tuple[Reference, str]:
    """The class of transformers in float64, and a line that says where its weights come from.

    A class that does not run in float64, such as XGLM, runs in float32.

    Raises:
        DataError: quantised weights cannot be widened to float64.
    """
    from transformers import __version__

    source, scores = model.hf_source, ScoreSizes()
    hf, precision = _exact(model)
    device = next(hf.parameters()).device

    def run(text: TextIds, names: Sequence[str]) -> dict[str, Tensor]:
        with quiet(), scores:
            return _activations(hf, model, text[0], names, device)

    points = frozenset(Place.of(name)[0] for name in model.points) | ({LOGITS} if model.has_logits else set())
    bits = f" ({model.cfg.quantize})" if model.cfg.quantize else ""
    weights = "with random weights of the same seed" if source.folder is None else f"read from the model's folder{bits}"
    oracle = f"{model.cfg.model_class} of {__version__}{precision}, {weights}{without(model.left_out)}"
    return Reference("transformers", points, run, lambda: scores.largest), oracle


def _exact(model: AdaptedModel) -> tuple[Any, str]:
    """The class of transformers in float64, or else in float32, which the words then say; errors as above."""
    room = room_for(model)
    try:
        hf: Any = in_float64(made_again(model.hf_source), room)
        with quiet():
            hf.base_model(torch.tensor([[0, 0]], device=next(hf.parameters()).device))
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        if not model.cfg.quantize:
            return made_again(model.hf_source).float().to(room), " in float32, as it does not run in float64"
        reason = error_line(error)  # GPTQ cannot be widened
        raise DataError(f"{model.cfg.model_class} cannot be run in float64, so nothing is compared: {reason}") from None
    return hf, ""


def _activations(
    hf: Any, model: AdaptedModel, ids: list[int], names: Sequence[str], device: torch.device
) -> dict[str, Tensor]:
    base, layout = hf.base_model, model.layout
    added: dict[str, list[Tensor]] = {}
    watched = {f"{path}.{one.mixer}" for path, one in zip(layout.blocks, layout.sublayers, strict=True)}
    watched |= {f"{path}.{one.mlp}" for path, one in zip(layout.blocks, layout.sublayers, strict=True)}
    watched |= set(layout.blocks) if active_stream(base.config) is not None else set()
    handles = [_keep(base, path, added) for path in (*watched, layout.embed) if not path.endswith(".None")]
    positions = model.first_positions(len(ids))
    try:
        seen = look(base, layout.blocks, ids, device, positions)
    finally:
        for handle in handles:
            handle.remove()
    shape = seen.resid_pre[0].shape
    pre, hidden = seen.resid_pre, list(seen.hidden_states or [])
    if len(hidden) == len(pre) + 1 and torch.equal(hidden[0], pre[0]):  # Mamba's list begins after the first block
        pre = hidden[:-1]
    found: dict[str, Tensor] = {}
    for name in names:
        point, of_layer = (LOGITS, None) if name == LOGITS else Place.of(name)
        layer = of_layer or 0  # only points of a layer use it
        found[name] = {
            LOGITS: lambda: hf(torch.tensor([ids], device=device), **positions, **accepted(hf, NO_CACHE)).logits,
            "embed": lambda: added[layout.embed][0],
            "ln_final": lambda: seen.last,
            "resid_pre": lambda layer=layer: pre[layer],
            "resid_post": lambda layer=layer: seen.resid_post[layer],
            "resid_pre_streams": lambda layer=layer: stream_argument(*seen.calls[layer]).permute(1, 2, 0, 3).flatten(2),
            "resid_post_streams": lambda layer=layer: added[layout.blocks[layer]][0].permute(1, 2, 0, 3).flatten(2),
            "attn_out": lambda layer=layer: _sublayer(model, added, layer, "mixer").reshape(shape),
            "mixer_out": lambda layer=layer: _sublayer(model, added, layer, "mixer").reshape(shape),
            "mlp_out": lambda layer=layer: _sublayer(model, added, layer, "mlp").reshape(shape),
            "resid_mid": lambda layer=layer: pre[layer] + _sublayer(model, added, layer, "mixer").reshape(shape),
        }[point]()[0]
    return found


def _keep(base: nn.Module, path: str, kept: dict[str, list[Tensor]]) -> Any:
    """Keep what a module returns in each of its calls; the handle removes the hook."""

    def hook(_: nn.Module, args: tuple, output: Any) -> None:
        kept.setdefault(path, []).append(first_of(output).clone())

    return base.get_submodule(path).register_forward_hook(hook)


def _sublayer(model: AdaptedModel, added: dict[str, list[Tensor]], layer: int, which: str) -> Tensor:
    """What a sublayer adds to the stream in a layer: a module that several layers share ran once for each."""
    block, proved = model.layout.blocks[layer], model.layout.sublayers[layer]
    call = model.layout.blocks[:layer].count(block)
    return added[f"{block}.{getattr(proved, which)}"][call] * getattr(proved, f"{which}_scale")
