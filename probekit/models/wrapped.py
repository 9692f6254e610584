"""Any PyTorch module over token ids, with this project's points: your own, nanoGPT's, TransformerLens's.

    model = pk.wrap(module, points={"resid_pre": "blocks.{layer}", "resid_post": "blocks.{layer}"})

A point is the output of the module at its path; `resid_pre` and `resid_mid` are its input. Before anything is offered,
random texts, short and long, show that every point is reached once and has a row for each token, that a text gives the
same numbers twice, in a batch, and without the tokens after it, and that the stream adds up: `resid_post.i =
resid_pre.{i + 1}`, `resid_pre + attn_out = resid_mid`, `resid_mid + mlp_out = resid_post`.

Axes: B batch, L query position, M key position, D d_model, H heads, G key/value heads, K d_head, F d_mlp, V vocab.
"""

import copy
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from inspect import signature
from pathlib import Path
from traceback import extract_tb
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from probekit.errors import DataError, ProbekitError, UsageError
from probekit.hooks import HookPoint
from probekit.models.adapter.config import NO_LIMIT, AdapterConfig
from probekit.models.adapter.model import RowReader
from probekit.models.adapter.proof import bound_of, first_of, random_ids, relative
from probekit.models.base import LanguageModel, check_mask
from probekit.models.layers import at_read
from probekit.models.tokenizer import Tokenizer
from probekit.options.check import is_whole
from probekit.points import POINTS, Place, base_name
from probekit.text import listed

Points = Mapping[str, str]
"""Point -> path of a module: {"resid_pre.0": "blocks.0"}; {layer} in the path, and none in the point, is each layer."""

STREAM = ("resid_pre", "attn_out", "mixer_out", "resid_mid", "mlp_out", "resid_post")  # as wide as one another
INPUTS = ("resid_pre", "resid_mid")  # points that are the input of their module
AXES = {
    **dict.fromkeys(("q", "rot_q", "q_norm", "z"), "B L H K"),
    **dict.fromkeys(("k", "rot_k", "k_norm", "v"), "B L G K"),
    **dict.fromkeys(("attn_scores", "attn_pattern"), "B H L M"),
    **dict.fromkeys(("mlp_pre", "mlp_pre_linear", "mlp_post"), "B L F"),
    "result": "B L H D",
}
LENGTHS = ((7, 5), (40, 23))  # tokens of the texts of the proof: windows and chunks show in long ones
TRIED_LENGTH = 1024
_VOCAB_FIELDS = ("d_vocab", "vocab_size", "n_vocab")
_CONTEXT_FIELDS = ("n_ctx", "block_size", "n_positions", "max_position_embeddings", "context_length", "max_seq_len")


def wrap(
    module: nn.Module,
    points: Points | Callable[[Any], Points] | None = None,
    *,
    tokenizer: Tokenizer | None = None,
    causal: bool = True,
    d_vocab: int | None = None,
    n_ctx: int | None = None,
    name: str | None = None,
) -> LanguageModel:
    """A module of your own with named points, for everything that takes a model: `extract`, edits, causal curves.

    Args:
        module: called with token ids, int64 [B, L]; returns logits [B, L, V], or a tuple or an object with them first.
            It is put into eval mode.
        points: point -> path of a module within it, or a function of the module that gives them. A point is the
            module's output; `resid_pre` and `resid_mid` are its input. `"resid_pre": "blocks.{layer}"` names every
            layer. None for modules whose points are known: TransformerLens's HookedTransformer and TransformerBridge,
            nanoGPT's GPT, a model of transformers, and nnsight.LanguageModel, whose model of transformers is taken.
        tokenizer: for texts; None takes tasks of token ids.
        causal: whether a token's activations depend only on it and the tokens before it; it is proved.
        d_vocab: how many token ids there are; None takes the module's config, or the rows of its token embedding.
        n_ctx: the longest text; None takes the module's config, the rows of its position embedding, or what it can run.
        name: for titles and manifests; None takes the class's.

    Raises:
        UsageError: not a module; points that are not known, or name no module.
        DataError: a point that the forward does not reach, or that is not what its name says; activations that depend
            on the batch, on chance, or on later tokens.
    """
    if not isinstance(module, nn.Module):
        raise UsageError(f"wrap takes a torch module; got {type(module).__name__}")
    if tokenizer is not None and not isinstance(tokenizer, Tokenizer):
        raise UsageError(
            f"tokenizer is one of probekit, such as that of load_model(...); got {type(tokenizer).__name__}"
        )
    inner = getattr(module, "_model", None)
    if points is None and type(module).__module__.startswith("nnsight.") and isinstance(inner, nn.Module):
        module = inner
    for given, least in ((d_vocab, "d_vocab"), (n_ctx, "n_ctx")):
        if given is not None and not (is_whole(given) and given > 0):
            raise UsageError(f"{least} is a whole number above 0; got {given!a:.40}")
    if points is None and any(base.__name__ == "PreTrainedModel" for base in type(module).__mro__):
        if not causal or d_vocab is not None or n_ctx is not None:
            raise UsageError("leave out causal, d_vocab and n_ctx: of a model of transformers its config says them")
        model: LanguageModel = _of_transformers(module)
        model.tokenizer, model.name = tokenizer, name or type(module).__name__
        return model
    if next(module.parameters(), None) is None:
        raise UsageError(f"{type(module).__name__} has no weights; wrap takes a model over token ids")
    module.eval()
    strict = points is not None
    if callable(points):
        with _running(module):
            points = points(module)
    asked = _known_points(module) if points is None else points
    where = _places(module, asked)
    size = _extent(module, d_vocab, n_ctx)
    model = WrappedModule(module, *_shaped(module, where, size, strict))
    model.causal, model.tokenizer, model.name = causal, tokenizer, name or type(module).__name__
    with _running(module):
        model.batching = _proved(model)
    model.cfg = replace(model.cfg, batching=model.batching)
    return model.eval()


class _At(NamedTuple):
    """Where a point is: a module, by its path, and whether it is the module's input."""

    path: str
    module: nn.Module
    is_input: bool


def model_of_file(path: Path, function: str, device: torch.device, dtype: torch.dtype) -> LanguageModel:
    """The model that a function in a Python file of the user's own makes; the file is run.

    Args:
        path: of the file, whose folder is put on sys.path.
        function: takes no arguments, and returns what `wrap` gives, or a module whose points are known.
        device: of the weights.
        dtype: of the weights.

    Raises:
        UsageError: the file has no such function.
        DataError: its code fails, or returns something else.
    """
    spec = importlib.util.spec_from_file_location(f"probekit_of_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    code = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = code  # where dataclasses look up their module
    if str(path.parent.resolve()) not in sys.path:
        sys.path.insert(0, str(path.parent.resolve()))
    running = "while it is read"
    try:
        spec.loader.exec_module(code)
        make, running = getattr(code, function, None), f"in {function}"
        make = make if callable(make) else None
        made = make() if make is not None else None
    except ProbekitError:
        raise
    except (Exception, SystemExit) as error:  # whatever the user's code raises
        why = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        lines = [frame.lineno for frame in extract_tb(error.__traceback__) if Path(frame.filename) == path]
        at = f", line {lines[-1]}" if lines else ""
        raise DataError(f"{str(path)!a}{at} fails {running}: {why!a}; correct the file") from None
    if make is None:
        known = [name for name, value in vars(code).items() if callable(value) and not name.startswith("_")]
        raise UsageError(f"{str(path)!a} has no function {function}; it has {listed(known)}")
    if isinstance(made, nn.Module) and not isinstance(made, LanguageModel):
        made = wrap(made)
    if not isinstance(made, LanguageModel):
        raise DataError(
            f"{function} of {str(path)!a} returned {type(made).__name__}; expected pk.wrap(module, points), or a "
            "module whose points are known"
        )
    made.name = f"{path.stem}.{function}"
    made.source = made.folder = made.revision = None  # the function may have changed what it loaded
    return made.to(device=device, dtype=dtype).eval()


class _Stopped(Exception):
    """Ends a forward early; the stream so far, [B, L, D]."""

    def __init__(self, resid_BLD: Tensor):
        super().__init__()
        self.resid_BLD = resid_BLD


class WrappedModule(LanguageModel):
    """The module with its points; `wrap` makes it.

    Attributes:
        module: the module.
    """

    is_ours = False
    starts = False
    batching = "one length"

    def __init__(self, module: nn.Module, cfg: AdapterConfig, where: Mapping[str, _At], axes: Mapping[str, str]):
        super().__init__()
        self.cfg = cfg
        self.module = module
        self._sizes: dict[str, int] = dict(cfg.fields["sizes"])
        self._stop: str | None = None
        self._head_is_last = True  # whether the logits depend on the output of the last point alone
        self._instead: tuple[str, Tensor] | None = None  # of the output of a point: where the head begins
        self._where, self._axes = dict(where), dict(axes)
        self._handles: list[Any] = []
        for full, at in where.items():
            point = HookPoint(axes[full])
            _put(self, full, point)
            hook = self._hook(full, point, at.is_input)
            self._handles.append(_registered(at, hook))

    def forward(
        self,
        tokens: Tensor,
        position_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        stop_at_layer: int | None = None,
        return_logits: bool = True,
    ) -> Tensor:
        """What the module returns first for tokens [B, L], its logits [B, L, V].

        Args:
            tokens: int ids [B, L].
            position_ids: the module counts positions itself.
            attention_mask: [B, L], true at real tokens, padded on the right.
            stop_at_layer: run the blocks before this one and return its input, [B, L, D]; n_layers gives the last
                block's output.
            return_logits: False returns the final norm's output, or that of the last block if it has no point.

        Raises:
            UsageError: an invalid shape, id, length or layer; positions, or padding that changes the activations.
        """
        tokens = self.check_tokens(tokens, position_ids, attention_mask)
        self._check_padding(tokens, position_ids, attention_mask)
        stop = self.check_stop(stop_at_layer, self.cfg.n_layers)
        stop_at = self._before_head() if stop_at_layer is None and not return_logits else None
        stop_at = stop_at if stop_at_layer is None else self._end(stop)
        before, self._stop = self._stop, stop_at
        try:
            output = _called(self.module, tokens)
        except _Stopped as stopped:
            return at_read(stopped.resid_BLD, self._read)
        finally:
            self._stop = before
        return output

    def _before_head(self) -> str:
        return "ln_final.hook_normalized" if "ln_final.hook_normalized" in self.points else self._end(self.cfg.n_layers)

    def _end(self, layer: int) -> str:
        """Where a forward stops before this block, or after the last."""
        n_layers = self.cfg.n_layers
        return f"blocks.{layer}.hook_resid_pre" if layer < n_layers else f"blocks.{n_layers - 1}.hook_resid_post"

    def _check_padding(self, tokens: Tensor, position_ids: Tensor | None, mask: Tensor | None) -> None:
        if mask is None and position_ids is None:
            return
        if mask is None or tuple(mask.shape) != tuple(tokens.shape):
            raise UsageError(
                f"{self.cfg.model_class} takes one text in a row, and counts positions itself; give a mask "
                f"{list(tokens.shape)}, true at real tokens"
            )
        mask = check_mask(mask)
        if (mask[:, 1:] & ~mask[:, :-1]).any() or not mask[:, 0].all():
            raise UsageError(f"{self.cfg.model_class} takes padding on the right alone; move the texts to the left")
        if self.batching == "one length" and not mask.all():
            raise UsageError(f"padding changes the activations of {self.cfg.model_class}; give texts of one length")

    def _hook(self, full: str, point: HookPoint, is_input: bool) -> Callable[..., Any]:
        def passed(x: Tensor) -> Tensor | None:
            """Another tensor for x, if a hook reads it; blocks may add to theirs in place, so hooks see a copy."""
            if self._instead is not None:
                return self._instead[1] if self._instead[0] == full else None
            changed = point(x.clone()).clone() if point.hooked else None
            if self._stop == full:
                raise _Stopped(x if changed is None else changed)
            return changed

        def before(_: nn.Module, args: tuple, kwargs: dict[str, Any]) -> Any:
            if args:
                changed = passed(args[0])
                return None if changed is None else ((changed, *args[1:]), kwargs)
            key = next(key for key, value in kwargs.items() if isinstance(value, Tensor))
            changed = passed(kwargs[key])
            return None if changed is None else (args, {**kwargs, key: changed})

        def after(_: nn.Module, args: tuple, output: Any) -> Any:
            changed = passed(first_of(output))
            if changed is None:
                return None
            if not isinstance(output, tuple | list):
                return changed
            rest = (changed, *output[1:])
            return type(output)(*rest) if hasattr(output, "_fields") else type(output)(rest)

        return before if is_input else after

    @torch.no_grad()
    def next_logits(self, ids: list[int], start: int, cache: Any) -> tuple[Tensor, dict[str, Any]]:
        """The logits [V] after the tokens; `cache` is not used."""
        return self(torch.tensor([ids]))[0, -1], {}

    def reader(self, prompts: list[list[int]], use_cache: bool, among: tuple[Sequence[int], int, Any]) -> RowReader:
        """What generation reads logits from: each prompt by itself, computed anew for every token."""
        return RowReader(self, prompts, False, among)

    @property
    def has_logits(self) -> bool:
        """Whether the module returns a number for each token id."""
        return self._sizes["output"] == self.cfg.d_vocab

    def logits(self, output_BLD: Tensor) -> Tensor:
        """Logits [B, L, V] of what the forward returns with return_logits=False, by the module's own code.

        The module runs once more, on any tokens, and its output there is replaced.

        Raises:
            UsageError: something else goes into the logits.
        """
        if not self._head_is_last:
            raise UsageError(
                f"the logits of {self.cfg.model_class} depend on more than the output of its last point, so its head "
                "cannot be run by itself"
            )
        self._instead = (self._before_head(), output_BLD)
        try:
            return _called(self.module, torch.zeros(output_BLD.shape[:2], dtype=torch.long, device=self.device))
        finally:
            self._instead = None

    def final_norm(self) -> Callable[[Tensor], Tensor]:
        """The module's own norm after the last block; without a point `ln_final` it is part of `logits`."""
        at = self._where.get("ln_final.hook_normalized")
        return nn.Identity() if at is None else at.module

    def made_anew(self) -> Self:
        """A copy of the module, wrapped as this one is."""
        for handle in self._handles:
            handle.remove()
        try:
            module = copy.deepcopy(self.module)
        finally:
            self._handles = [
                _registered(at, self._hook(full, self.points[full], at.is_input)) for full, at in self._where.items()
            ]
        where = {full: at._replace(module=module.get_submodule(at.path)) for full, at in self._where.items()}
        twin = type(self)(module, self.cfg, where, self._axes)
        twin.causal, twin.batching, twin.name = self.causal, self.batching, self.name
        twin.tokenizer, twin._head_is_last = self.tokenizer, self._head_is_last
        return twin

    def size_of(self, axis: str, short: str, layer: int | None = None) -> int | None:
        """The size of an axis of this point, as it was observed."""
        return int(axis) if axis.isdecimal() else self._sizes.get(axis)

    def init_weights(self, seed: int = 0) -> Self:
        """Refused: the module's own code draws its weights."""
        raise UsageError("the weights of a wrapped module are drawn by its own code; make it again with another seed")


def _put(root: nn.Module, full: str, point: HookPoint) -> None:
    """The point at its full name, within empty modules."""
    *stem, last = full.split(".")
    for part in stem:
        if part not in dict(root.named_children()):
            root.add_module(part, nn.Module())
        root = root.get_submodule(part)
    root.add_module(last, point)


def _registered(at: _At, hook: Callable[..., Any]) -> Any:
    """The handle of a hook at a point; those of TransformerLens may give their tensors an axis of heads."""
    conversion = getattr(at.module, "hook_conversion", None)
    if conversion is not None:

        def converted(module: nn.Module, args: tuple, output: Any) -> Any:
            changed = hook(module, args, conversion.convert(output))
            return None if changed is None else conversion.revert(changed)

        return at.module.register_forward_hook(converted)
    if at.is_input:
        return at.module.register_forward_pre_hook(hook, with_kwargs=True)
    return at.module.register_forward_hook(hook)


def _called(module: nn.Module, tokens: Tensor) -> Tensor:
    """What the module returns first; nanoGPT's returns the logits of every token only where it is given targets."""
    takes_targets = "targets" in signature(module.forward).parameters
    found = _first_tensor(module(tokens, targets=tokens)) if takes_targets else None
    if found is None or found.dim() != 3:
        found = _first_tensor(module(tokens))
    if found is None or found.dim() != 3 or found.shape[:2] != tokens.shape:
        got = "no tensor" if found is None else str(list(found.shape))
        raise DataError(
            f"{type(module).__name__} returns {got} for tokens {list(tokens.shape)}; expected logits [B, L, V], alone, "
            "first of several, or under the name logits"
        )
    return found


def _first_tensor(output: Any) -> Tensor | None:
    """The logits among what a module returns, or the first of several."""
    found = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    found = first_of(output) if found is None and not isinstance(output, Mapping) and output is not None else found
    return found if isinstance(found, Tensor) else None


def _of_transformers(module: Any) -> LanguageModel:
    from probekit.models.adapter.load import HfSource, prove_wrapped

    source = HfSource(type(module), module.config, None, 0, module.dtype, {}, made=module)
    return prove_wrapped(module.eval(), source)


def _known_points(module: Any) -> dict[str, str]:
    """The points of a class that is known by its parts: one of TransformerLens, or nanoGPT's GPT.

    Raises:
        UsageError: another class.
    """
    hooked = getattr(module, "hook_dict", None)
    if isinstance(hooked, Mapping):
        paths = {id(part): path for path, part in module.named_modules()}
        n_layers = int(module.cfg.n_layers)
        names = [name for short, name in POINTS.items() if short != "attn_scores"]  # infinite at pairs that are masked
        full = [name.format(layer=i) for name in names for i in range(n_layers if "{layer}" in name else 1)]
        return {name: paths[id(hooked[name])] for name in full if name in hooked and id(hooked[name]) in paths}
    parts = dict(module.named_modules())
    if {"transformer.wte", "transformer.h.0.ln_2", "transformer.h.0.attn", "transformer.ln_f"} <= parts.keys():
        block = "transformer.h.{layer}"
        return {
            "embed": "transformer.wte",
            **dict.fromkeys(("resid_pre", "resid_post"), block),
            "attn_out": f"{block}.attn",
            "resid_mid": f"{block}.ln_2",
            "mlp_out": f"{block}.mlp",
            "ln_final": "transformer.ln_f",
        }
    raise UsageError(
        f"the points of {type(module).__name__} are not known; give them: "
        'pk.wrap(module, points={"resid_pre": "blocks.{layer}", "resid_post": "blocks.{layer}"})'
    )


def _places(module: nn.Module, points: Any) -> dict[str, _At]:
    """Full name of each point -> where it is, in the order of `POINTS` and of the layers.

    Raises:
        UsageError: an unknown point, or a path without a module.
    """
    if not isinstance(points, Mapping) or not all(isinstance(x, str) for item in points.items() for x in item):
        raise UsageError(f'points are {{"resid_pre.0": "blocks.0"}}, names of points and paths; got {points!a:.100}')
    parts, found = dict(module.named_modules()), dict[str, _At]()
    for spec, path in points.items():
        place = Place.of(spec)
        template = POINTS[place.point]
        if "{layer}" in path and place.layer is None and "{layer}" in template:
            layers = [i for i in range(len(parts)) if path.replace("{layer}", str(i)) in parts]
        elif ("{layer}" in template) == (place.layer is not None):
            layers = [place.layer]
        else:
            how = f"give a layer ({place.point}.0), or {{layer}} in the path" if "{layer}" in template else "has none"
            raise UsageError(f"the layer of point {spec!a:.80}: {how}")
        paths = [path if layer is None else path.replace("{layer}", str(layer)) for layer in layers]
        if not paths or not all(one in parts for one in paths):
            near = [name for name in parts if name.count(".") < 2 and name][:8]
            raise UsageError(f"{spec}: no module at {path!a:.80} in {type(module).__name__}; it has {listed(near)}")
        is_input = base_name(place.point) in INPUTS
        for layer, one in zip(layers, paths, strict=True):
            found[template.format(layer=layer)] = _At(one, parts[one], is_input)
    order = list(POINTS.values())
    return dict(sorted(found.items(), key=lambda item: _order(item[0], order)))


def _order(full: str, order: list[str]) -> tuple[int, int, int]:
    """Points outside the blocks first or last, as in `POINTS`; those of a block by layer."""
    place = Place.of(full)
    at = order.index(POINTS[place.point])
    if place.layer is None:
        return (0 if at < order.index(POINTS["resid_pre"]) else 2, at, 0)
    return (1, place.layer, at)


class _Extent(NamedTuple):
    d_vocab: int
    n_ctx: int


@torch.no_grad()
def _extent(module: nn.Module, d_vocab: int | None, n_ctx: int | None) -> _Extent:
    """The vocabulary and the context: as given, as the module's config says, or as its embeddings have rows.

    Raises:
        UsageError: no vocabulary is found.
        DataError: the module cannot be run on token ids.
    """
    config = getattr(module, "cfg", None) or getattr(module, "config", None)
    d_vocab = d_vocab or _field(config, _VOCAB_FIELDS)
    n_ctx = n_ctx or _field(config, _CONTEXT_FIELDS)
    of_tokens: list[int] = []
    of_positions: list[int] = []
    ids = torch.tensor([[1, 0]], device=next(module.parameters()).device)  # unlike positions, and unlike zeros

    def keep(table: nn.Module, args: tuple, _: Any) -> None:
        assert isinstance(table, nn.Embedding)
        given = args[0].flatten().tolist() if args and isinstance(args[0], Tensor) else []
        if given == [1, 0]:
            of_tokens.append(table.num_embeddings)
        elif given == [0, 1]:
            of_positions.append(table.num_embeddings)

    handles = [part.register_forward_hook(keep) for part in module.modules() if isinstance(part, nn.Embedding)]
    try:
        with _running(module):
            _called(module, ids)
    finally:
        for handle in handles:
            handle.remove()
    d_vocab = d_vocab or next(iter(of_tokens), None)
    if d_vocab is None:
        raise UsageError(f"how many token ids {type(module).__name__} takes is not known; give d_vocab")
    return _Extent(d_vocab, n_ctx or min(of_positions, default=0) or _longest(module, ids))


def _longest(module: nn.Module, ids: Tensor) -> int:
    """The longest text that the module takes, where nothing says it; `NO_LIMIT` if `TRIED_LENGTH` tokens fit."""

    def fits(n: int) -> bool:
        try:
            with _running(module):
                _called(module, ids[:, :1].expand(1, n))
        except DataError:
            return False
        return True

    if fits(TRIED_LENGTH):
        return NO_LIMIT
    low, high = 2, TRIED_LENGTH  # the module takes `low`, and not `high`
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _field(config: Any, names: Sequence[str]) -> int | None:
    values = [getattr(config, name, None) for name in names]
    return next((value for value in values if isinstance(value, int) and value > 0), None)


@contextmanager
def _running(module: nn.Module) -> Iterator[None]:
    """Turn what the module raises into one line."""
    try:
        yield
    except ProbekitError:
        raise
    except (RuntimeError, ValueError, TypeError, KeyError, IndexError, AttributeError, AssertionError) as error:
        why = " ".join(str(error).split())[:200]
        raise DataError(f"{type(module).__name__} cannot be run on token ids [B, L]: {why!a}") from None


def _texts(cfg: Any) -> list[list[list[int]]]:
    """Pairs of random texts, the first of each pair the longer."""
    lengths = [[min(n, cfg.n_ctx) for n in pair] for pair in LENGTHS]
    return [[random_ids(cfg, n, 2 * i + j) for j, n in enumerate(pair)] for i, pair in enumerate(lengths)]


@torch.no_grad()
def _shaped(
    module: nn.Module, where: Mapping[str, _At], size: _Extent, strict: bool
) -> tuple[AdapterConfig, dict[str, _At], dict[str, str]]:
    """The config, the points that the forward reaches, and their axes.

    Args:
        module: the module.
        where: its points.
        size: its vocabulary and context.
        strict: whether every point must be reached; points of known classes depend on their options.

    Raises:
        DataError: a point that is not reached once, or without a row for each token; no `resid_pre` in every layer.
    """
    ids = _texts(size)[0][0]
    seen: dict[str, list[Any]] = {full: [] for full in where}
    order: list[str] = []

    def keeper(full: str, is_input: bool) -> Callable[..., None]:
        def keep(x: Any) -> None:
            order.append(full)
            seen[full].append(x)

        def before(_: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
            keep(args[0] if args else next((x for x in kwargs.values() if isinstance(x, Tensor)), None))

        return before if is_input else lambda _, args, output: keep(first_of(output))

    handles = []
    for full, at in where.items():
        handles.append(_registered(at, keeper(full, at.is_input)))
    try:
        with _running(module):
            output = _called(module, torch.tensor([ids], device=next(module.parameters()).device))
    finally:
        for handle in handles:
            handle.remove()
    axes: dict[str, str] = {}
    sizes: dict[str, int] = {"output": output.shape[-1]}
    stream = next((x[0] for full, x in seen.items() if full.endswith("hook_resid_pre") and x), None)
    if isinstance(stream, Tensor):
        sizes["D"] = stream.shape[-1]
    for full, given in seen.items():
        short = base_name(Place.of(full).point)
        wanted = AXES.get(short, "B L D")
        fits = len(given) == 1 and isinstance(given[0], Tensor) and _fits(given[0], wanted, len(ids))
        fits = fits and (short not in STREAM or given[0].shape[-1] == sizes.get("D", given[0].shape[-1]))
        if not fits and strict:
            what = f"{list(given[0].shape)}" if len(given) == 1 and isinstance(given[0], Tensor) else "no tensor"
            times = f"is reached {len(given)} times in a forward (blocks are called once each, as block(x))"
            how = times if len(given) != 1 else f"is {what}"
            raise DataError(
                f"{Place.of(full)} at {where[full].path!a:.80} {how}; expected one tensor [{wanted.replace(' ', ', ')}]"
                f" of {len(ids)} tokens; name another module"
            )
        if fits:
            axes[full] = _named(given[0], wanted, sizes)
    n_layers = len([full for full in axes if full.endswith("hook_resid_pre")])
    if not n_layers or any(f"blocks.{i}.hook_resid_pre" not in axes for i in range(n_layers)):
        raise DataError(
            f"{type(module).__name__} has no resid_pre in every layer from 0 on; give the input of each block: "
            '{"resid_pre": "blocks.{layer}"}'
        )
    if f"blocks.{n_layers - 1}.hook_resid_post" not in axes:
        raise DataError(
            f"{type(module).__name__} has no resid_post in layer {n_layers - 1}, where the stream ends; give the "
            'output of each block: {"resid_post": "blocks.{layer}"}'
        )
    _check_order([full for full in order if full in axes], n_layers)
    heads = sizes.get("H", 0)
    cfg = AdapterConfig(
        model_type=type(module).__name__,
        model_class=type(module).__name__,
        d_model=sizes["D"],
        n_layers=n_layers,
        n_heads=heads,
        d_head=sizes.get("K", sizes["D"] // heads if heads else 0),
        d_mlp=sizes.get("F", 4 * sizes["D"]),
        n_ctx=size.n_ctx,
        d_vocab=size.d_vocab,
        batching="one length",
        fields={"points": {full: where[full].path for full in axes}, "sizes": sizes},
    )
    return cfg, {full: where[full] for full in axes}, axes


def _check_order(order: list[str], n_layers: int) -> None:
    """Raise unless the layers run in their order, and the final norm after the last."""
    ends = [f"blocks.{i}.hook_resid_pre" for i in range(n_layers)] + [f"blocks.{n_layers - 1}.hook_resid_post"]
    ends += [name for name in ("ln_final.hook_normalized",) if name in order]
    ran = sorted(ends, key=order.index)
    if ran != ends:
        first = next(ours for ours, theirs in zip(ends, ran, strict=True) if ours != theirs)
        raise DataError(
            f"{Place.of(first)} is not reached in its turn; name the modules in the order in which they run"
        )


def _fits(x: Tensor, axes: str, n_tokens: int) -> bool:
    """Whether a tensor has these axes, or in place of heads their joint width."""
    names = axes.split()
    if names[1] == "L":
        return x.dim() in (3, len(names)) and x.shape[:2] == (1, n_tokens) and x.is_floating_point()
    if x.dim() != 4 or x.shape[0] != 1 or x.shape[2:] != (n_tokens, n_tokens):
        return False
    return bool((x >= 0).all()) and float(x.sum(-1).max()) <= 1 + 1e-3  # a pattern: sinks may take a part


def _named(x: Tensor, axes: str, sizes: dict[str, int]) -> str:
    """The axes of a tensor: letters for the sizes that all points share, numbers for others."""
    names = axes.split() if x.dim() == len(axes.split()) else ["B", "L", "D"]
    named = []
    for name, n in zip(names, x.shape, strict=True):
        if name not in ("B", "L", "M"):
            name = name if sizes.setdefault(name, n) == n else str(n)
        named.append(name)
    return " ".join(named)


def _streams(model: WrappedModule, ids: list[list[int]]) -> dict[str, Tensor]:
    """Every point that has a row for each token, of a batch of texts of one length: [B, L, ...]."""
    kept: dict[str, Tensor] = {}
    names = [name for name, point in model.points.items() if point.axes.split()[1] == "L"]
    with torch.no_grad(), model.hooks([(names, lambda x, hook: kept.__setitem__(hook.name, x))]):
        _called(model.module, torch.tensor(ids, device=model.device))
    return kept


def _worst(got: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> tuple[str, float]:
    """The point that differs most, and its relative difference."""
    errors = {name: relative(got[name], wanted[name]) for name in wanted}
    name = max(errors, key=lambda name: errors[name])
    return name, errors[name]


def _proved(model: WrappedModule) -> Any:
    """The batches that leave a text's activations unchanged; raise unless the points are what their names say.

    Raises:
        DataError: they are not, or differ from run to run.
    """
    name, bound = model.cfg.model_class, bound_of(model.dtype)
    texts = _texts(model.cfg)

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


def _prove_head(model: WrappedModule, ids: list[int], bound: float) -> None:
    """Note whether the logits follow from what the forward returns without its head."""
    tokens = torch.tensor([ids], device=model.device)
    with torch.no_grad():
        try:
            again = model.logits(model(tokens, return_logits=False))
            model._head_is_last = relative(again, model(tokens)) <= bound
        except (RuntimeError, ValueError):  # code that takes no replacement
            model._head_is_last = False


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
