"""A model of transformers with this project's points, which are hooks on its modules.

`resid_pre.i` is what block i reads and `resid_post.i` what it returns (in post-norm blocks after their last norm), so
`resid_post.i = resid_pre.{i+1}` always holds. With pre-norm blocks `resid_pre + attn_out + mlp_out = resid_post`.
`resid_mid` is computed as `resid_pre + attn_out`, and a replacement of it goes through `attn_out`. Where some layer has
no attention, every layer has `mixer_out`, which is `attn_out` in those that have.

Axes: B batch, L query position, M key position, D d_model, V vocab.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from logging import CRITICAL, getLogger
from typing import Any, Self, cast

import torch
from torch import Tensor, nn

from probekit.errors import UsageError
from probekit.hooks import HookPoint
from probekit.interventions import TextTokens
from probekit.models.adapter.config import AdapterConfig, active_stream, n_streams
from probekit.models.adapter.layouts import ModuleLayout, Sublayers
from probekit.models.adapter.proof import accepted, first_of, residual_stream, stream_argument, with_stream
from probekit.models.base import LanguageModel, check_evaluating, check_mask
from probekit.models.layers import causal_mask, in_window

CACHES = ("past_key_values", "cache_params")  # fields of the output; and arguments, "cache" since transformers 5.24
WHY_NO_SUBLAYER = "no module of this class was proved to add it to the stream; take resid_pre or resid_post"
NO_MIDDLE = (
    "no module reads a stream between its sublayers, so that resid_pre + attn_out + mlp_out = resid_post; "
    "take resid_pre, attn_out, mlp_out or resid_post"
)
NO_ATTENTION = "no layer has attention; take mixer_out"
ONE_SUBLAYER = "a block has one sublayer, so that resid_pre + its output = resid_post; take resid_pre or resid_post"
FROM_SEVERAL = (
    "its sublayers add to a prediction from several streams, and resid_pre and resid_post are the one that they read; "
    "take these, or all of them (resid_pre_streams, resid_post_streams)"
)
ONE_STREAM = "its blocks pass on one stream; take resid_pre or resid_post"
WHY_NOT_HERE = "the adapter has the residual stream's points alone; take resid_pre or resid_post"


@dataclass(frozen=True)
class MaskForm:
    """How a class takes packed texts.

    Attributes:
        kind: "plain": one mask for all layers; "windowed": one mask, narrowed to the window; "by type": a mask for each
            of the config's layer types.
        offset: what is added to position ids.
        sliding: the window in tokens, itself included; None without one.
    """

    kind: str = "plain"
    offset: int = 0
    sliding: int | None = None


class _Stopped(Exception):
    """Ends a forward early; the stream so far, [B, L, D]."""

    def __init__(self, resid_BLD: Tensor):
        super().__init__()
        self.resid_BLD = resid_BLD


class BlockPoints(nn.Module):
    """The points of one block, of a model in which all blocks have attention or not, and pass on one stream or more."""

    def __init__(self, proved: Sublayers, all_attend: bool, streams: int):
        super().__init__()
        self.hook_resid_pre_streams = HookPoint(f"B L {streams} D") if streams > 1 else None
        self.hook_resid_pre = HookPoint("B L D")
        self.hook_attn_out = HookPoint("B L D") if proved.mixer and proved.attention else None
        self.hook_mixer_out = HookPoint("B L D") if proved.mixer and not all_attend else None
        self.hook_resid_mid = HookPoint("B L D") if proved.has_mid else None
        self.hook_mlp_out = HookPoint("B L D") if proved.mlp else None
        self.hook_resid_post_streams = HookPoint(f"B L {streams} D") if streams > 1 else None
        self.hook_resid_post = HookPoint("B L D")


class NormPoint(nn.Module):
    """The point of the final norm."""

    def __init__(self) -> None:
        super().__init__()
        self.hook_normalized = HookPoint("B L D")


class AdaptedModel(LanguageModel):
    """The model; `load_adapted` makes it.

    Attributes:
        hf: the model of transformers.
        layout: where its points are.
        hf_source: what makes `hf` again.
        form: how it takes packed texts; None if it cannot.
    """

    is_ours = False
    packages = ("transformers",)
    starts = False

    def __init__(self, hf: Any, cfg: AdapterConfig, layout: ModuleLayout):
        super().__init__()
        self.cfg = cfg
        self.layout = layout
        self.form: MaskForm | None = None
        self.hf_source: Any = None
        base = hf.base_model
        width = getattr(base.get_submodule(layout.embed), "embedding_dim", cfg.d_model)
        self.hook_embed = HookPoint("B L D" if width == cfg.d_model else f"B L {width}")
        self.blocks = nn.ModuleList(
            BlockPoints(proved, layout.all_attend, n_streams(hf.config)) for proved in layout.sublayers
        )
        self.ln_final = NormPoint() if layout.ln_final else None
        self.hf = hf
        self.absent = _absent(layout, active_stream(hf.config) is not None)
        self._layers_at = {path: [i for i, at in enumerate(layout.blocks) if at == path] for path in layout.blocks}
        self._active = active_stream(hf.config)
        self._calls: dict[str, int] = {}
        self._resid: Tensor | None = None
        self._stop: int | None = None
        self._shape: tuple[int, ...] = ()
        self._attach(base)

    @property
    def device(self) -> torch.device:
        """Where the inputs go."""
        return device_of(self.hf)

    @property
    def has_logits(self) -> bool:
        """Whether the class has a head."""
        return self.hf is not self.hf.base_model

    def forward(
        self,
        tokens: Tensor,
        position_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        stop_at_layer: int | None = None,
        return_logits: bool = True,
    ) -> Tensor:
        """Logits [B, L, V] of tokens [B, L]; without a head, or with `return_logits=False`, the base model's output.

        Args:
            tokens: int ids [B, L].
            position_ids: [B, L]; only for classes that take packed texts (`cfg.packs`).
            attention_mask: [B, L], true at real tokens, padded on the right unless `cfg.packs`; or, with `cfg.packs`,
                [B, L, M].
            stop_at_layer: run the blocks before this one and return its input, [B, L, D]; n_layers gives the last
                block's output, before the final norm.
            return_logits: False skips the head.

        Raises:
            UsageError: an invalid shape, id, length or layer; positions or a mask that the class cannot take.
        """
        tokens = self.check_tokens(tokens, position_ids, attention_mask)
        stop = self.check_stop(stop_at_layer, self.cfg.n_layers)
        module = self.hf if return_logits and stop_at_layer is None else self.hf.base_model
        inputs = self._inputs(tokens, position_ids, attention_mask)
        try:
            out = self._run(module, inputs, None if stop_at_layer is None else stop)
        except _Stopped as stopped:
            return self._at_read(stopped.resid_BLD)
        is_head = module is self.hf and self.has_logits
        return out.logits if is_head else self._at_read(out[0])

    def logits(self, output_BLD: Tensor) -> Tensor:
        """Logits [B, L, V] of outputs of the base model, by the class's own code, scales and soft caps included.

        The class runs on one token, and the output of its base model is replaced on its way to the head. A class that
        calls parts of its base model, such as OPT's, gets the replacement as the input of its last product.

        Raises:
            UsageError: the class does something else between its base model and that product.
        """
        token = torch.zeros(1, 1, dtype=torch.long)
        base, last = self.hf.base_model, self.hf.get_output_embeddings()
        seen: dict[str, Tensor] = {}

        def after_base(_: Any, args: Any, output: Any) -> Any:
            seen["base"] = output_BLD
            if isinstance(output, tuple):
                return (output_BLD, *output[1:])
            output[next(iter(output))] = output_BLD
            return output

        def before_last(_: Any, args: Any) -> Any:
            seen["last"] = args[0]
            return None if "base" in seen else (output_BLD, *args[1:])

        hooks = [base.register_forward_hook(after_base)]
        hooks += [] if last is None else [last.register_forward_pre_hook(before_last)]
        try:
            logits_BLV = self(token)
        finally:
            for hook in hooks:
                hook.remove()
        if "base" not in seen and not ("last" in seen and torch.equal(seen["last"], self(token, return_logits=False))):
            raise UsageError(
                f"the head of {self.cfg.model_class} cannot be run by itself; take a model of another class"
            )
        return logits_BLV

    def final_norm(self) -> Callable[[Tensor], Tensor]:
        """The class's own norm after the last block."""
        path = self.layout.ln_final
        return self.hf.base_model.get_submodule(path) if path else nn.Identity()

    def run_hf(self, inputs: Mapping[str, Any]) -> Any:
        """The base model's output for transformers' own arguments; the points fire."""
        return self._run(self.hf.base_model, inputs)

    def _run(self, module: Any, inputs: Mapping[str, Any], stop: int | None = None) -> Any:
        """One forward; its state says which call of a shared block belongs to which layer, and where it stops.

        Raises:
            UsageError: the class is in training mode.
        """
        check_evaluating(module, self.name)
        before = self._calls, self._resid, self._stop, self._shape
        self._calls, self._resid, self._stop, self._shape = {}, None, stop, tuple(inputs["input_ids"].shape)
        try:
            return module(**{"return_dict": True, **accepted(module, {"use_cache": False}), **inputs})
        finally:
            self._calls, self._resid, self._stop, self._shape = before

    def _at_read(self, x_BLD: Tensor) -> Tensor:
        """The positions of `reading`; every point has all of them, because transformers' blocks compute all."""
        if self._read is None:
            return x_BLD
        return x_BLD.gather(1, self._read.to(x_BLD.device)[:, :, None].expand(-1, -1, x_BLD.shape[-1]))

    @torch.no_grad()
    def next_logits(self, ids: list[int], start: int, cache: Mapping[str, Any] | None) -> tuple[Tensor, dict[str, Any]]:
        """The logits [V] after the tokens from `start` on, and the cache over all so far; None computes without one."""
        tokens = self.check_tokens(torch.tensor([ids]))
        given = {"use_cache": cache is not None, "logits_to_keep": 1, **(cache or {})}
        if cache:
            given["cache"] = next(iter(cache.values()))
        given |= self.first_positions(len(ids), start)
        out = self._run(self.hf, {"input_ids": tokens, **accepted(self.hf, given)})
        kept = {name: out[name] for name in CACHES if getattr(out, name, None) is not None}
        return out.logits[0, -1], kept if cache is not None else {}

    def reader(self, prompts: list[list[int]], use_cache: bool, among: tuple[Sequence[int], int, Any]) -> "RowReader":
        """What generation reads logits from: each prompt by itself, with transformers' own cache.

        Raises:
            UsageError: the class has no head.
        """
        if not self.has_logits:
            raise UsageError(
                f"{self.name} has no head (its weights are those of {self.cfg.model_class}), so it cannot generate; "
                "take a folder that holds the head's weights"
            )
        return RowReader(self, prompts, use_cache, among)

    def window_of(self, layer: int) -> int | None:
        """The sliding window of packed texts."""
        types = self.cfg.fields.get("layer_types")
        sliding = self.form.sliding if self.form else None
        return sliding if not types or types[layer] == "sliding_attention" else None

    def init_weights(self, seed: int = 0) -> Self:
        """Refused: transformers initialises its own classes."""
        raise UsageError("weights of a wrapped model are drawn by transformers; load it with random_init=True and seed")

    def stored_weights(self) -> dict[str, Tensor]:
        """Every weight by name; accelerate leaves those that it keeps on the host without data."""
        found = self.state_dict()
        away = [name for name, weight in found.items() if weight.device.type == "meta"]
        if away:  # their modules have them only while they run
            from transformers.integrations.accelerate import load_offloaded_parameter

            found |= {name: load_offloaded_parameter(self.hf, name.removeprefix("hf.")) for name in away}
        return found

    def _inputs(self, tokens: Tensor, position_ids: Tensor | None, mask: Tensor | None) -> dict[str, Any]:
        """The arguments of transformers' forward."""
        if position_ids is None and mask is None:
            return {"input_ids": tokens, **self.first_positions(tokens.shape[1])}
        if self.form is None:
            return {"input_ids": tokens} | self._right_padding(tokens, position_ids, mask)
        seen, position_ids = self.mask_and_positions(tokens, mask, position_ids)
        if not isinstance(seen, Tensor):
            ones = torch.ones_like(tokens, dtype=torch.bool)
            seen = causal_mask(ones) if self.causal else ones[:, None].expand(-1, tokens.shape[1], -1)
        return {"input_ids": tokens, **self.packed_inputs(self.form, seen, position_ids)}

    def first_positions(self, n: int, start: int = 0) -> dict[str, Any]:
        """The positions [1, L] of n tokens from `start` on, for a class that counts them from the ids.

        RoBERTa's kind gives padding ids no position, and packed blocks do; so that a text by itself has the same ones,
        every forward of such a class is given them.
        """
        if self.form is None or not self.form.offset:
            return {}
        return {"position_ids": torch.arange(start, start + n, device=self.device)[None] + self.form.offset}

    def packed_inputs(self, form: MaskForm, mask_BLM: Tensor, position_ids: Tensor) -> dict[str, Any]:
        """The mask [B, L, M] and the positions as a class takes them: masks are added to the scores."""
        windowed = cast(Tensor, in_window(mask_BLM, form.sliding, position_ids, None))
        full, sliding = (_added(mask, self.dtype) for mask in (mask_BLM, windowed))
        types = {"full_attention": full, "sliding_attention": sliding}
        masks = {"plain": full, "windowed": sliding, "by type": types}
        return {"attention_mask": masks[form.kind], "position_ids": position_ids + form.offset}

    def _right_padding(self, tokens: Tensor, position_ids: Tensor | None, mask: Tensor | None) -> dict[str, Any]:
        """The mask for texts padded on the right; none for a causal class, which padding after a text cannot reach."""
        if position_ids is not None or (mask is not None and mask.dim() != 2):
            raise UsageError(
                f"{self.cfg.model_class} takes one text in a row, and counts positions itself; leave out position_ids, "
                "and give a mask [batch, position]"
            )
        if mask is None or tuple(mask.shape) != tuple(tokens.shape):
            raise UsageError(
                f"attention_mask is {list(tokens.shape)}; got {None if mask is None else list(mask.shape)}"
            )
        mask = check_mask(mask).to(tokens.device)
        if (mask[:, 1:] & ~mask[:, :-1]).any() or not mask[:, 0].all():
            raise UsageError(f"{self.cfg.model_class} takes padding on the right alone; move the texts to the left")
        return {} if self.causal else {"attention_mask": mask.long()}

    def _attach(self, base: nn.Module) -> None:
        base.get_submodule(self.layout.embed).register_forward_hook(self._at(lambda: self.hook_embed))
        if self.layout.ln_final and self.ln_final is not None:
            base.get_submodule(self.layout.ln_final).register_forward_hook(self._after_norm(self.ln_final))
        for path, layers in self._layers_at.items():
            block = base.get_submodule(path)
            block.register_forward_pre_hook(self._before(path), with_kwargs=True)
            block.register_forward_hook(self._after(path))
            proved = self.layout.sublayers[layers[0]]
            if proved.mixer:
                block.get_submodule(proved.mixer).register_forward_hook(self._mixer(path, proved.mixer_scale))
            if proved.mlp:
                at = self._at(lambda path=path: self._block(path).hook_mlp_out, proved.mlp_scale)
                block.get_submodule(proved.mlp).register_forward_hook(at)

    def _layer(self, path: str) -> int:
        return self._layers_at[path][self._calls.get(path, 0) % len(self._layers_at[path])]

    def _block(self, path: str) -> BlockPoints:
        return cast(BlockPoints, self.blocks[self._layer(path)])

    def _at(self, point: Any, scale: float = 1.0) -> Any:
        """A hook that passes a module's output through a point, times `scale`."""

        def hook(_: nn.Module, args: tuple, output: Any) -> Any:
            here, x = point(), first_of(output)
            return _returned(output, self._sublayer(here, x, scale)) if here.hooked else None

        return hook

    def _after_norm(self, norm: NormPoint) -> Any:
        at_end = self._at(lambda: norm.hook_normalized)

        def hook(module: nn.Module, args: tuple, output: Any) -> Any:
            is_last = sum(self._calls.values()) == self.cfg.n_layers  # NanoChat's norm is that of its embedding too
            return at_end(module, args, output) if is_last else None

        return hook

    def _before(self, path: str) -> Any:
        def hook(_: nn.Module, args: tuple, kwargs: dict[str, Any]) -> Any:
            layer, block = self._layer(path), self._block(path)
            given = stream_argument(args, kwargs)
            x, resid = self._streams(given, block.hook_resid_pre_streams, block.hook_resid_pre)
            if self._stop == layer:
                raise _Stopped(resid)
            self._resid = resid.clone() if self._needs_resid(path) else None
            if x is given:
                return None
            return ((x, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": x})

        return hook

    def _streams(self, x: Tensor, every: HookPoint | None, active: HookPoint) -> tuple[Tensor, Tensor]:
        """What blocks pass on, behind its points, and the residual stream [B, L, D] in it; x itself without hooks."""
        if every is not None and every.hooked:
            x = _passed(every, x.permute(1, 2, 0, 3)).permute(2, 0, 1, 3)
        resid = residual_stream(x, self._active)
        if active.hooked:
            resid = _passed(active, resid)
            x = with_stream(x, self._active, resid)
        return x, resid

    def _needs_resid(self, path: str) -> bool:
        middle = self._block(path).hook_resid_mid
        return middle is not None and middle.hooked

    def _after(self, path: str) -> Any:
        def hook(_: nn.Module, args: tuple, output: Any) -> Any:
            layer, block = self._layer(path), self._block(path)
            self._calls[path] = self._calls.get(path, 0) + 1
            given = first_of(output)
            x, resid = self._streams(given, block.hook_resid_post_streams, block.hook_resid_post)
            if self._stop == layer + 1 == self.cfg.n_layers:
                raise _Stopped(resid)
            return None if x is given else _returned(output, x)

        return hook

    def _sublayer(self, point: HookPoint, x: Tensor, scale: float) -> Tensor:
        """A sublayer's output behind a point, which shows it as it is added to the stream, [B, L, D]."""
        shown = x.reshape(*self._shape, x.shape[-1])  # OPT flattens batch and length
        shown = _passed(point, shown) if scale == 1 else point(shown * scale) / scale  # the product is a copy
        return shown.reshape(x.shape)

    def _mixer(self, path: str, scale: float) -> Any:
        def hook(_: nn.Module, args: tuple, output: Any) -> Any:
            block = self._block(path)
            points = [one for one in (block.hook_attn_out, block.hook_mixer_out) if one is not None and one.hooked]
            if not points and not self._needs_resid(path):
                return None
            added, middle = first_of(output), block.hook_resid_mid
            for point in points:
                added = self._sublayer(point, added, scale)
            if middle is not None and middle.hooked:
                resid = cast(Tensor, self._resid)
                mid = resid + added.reshape(resid.shape) * scale
                if not torch.equal(changed := middle(mid.clone()), mid):
                    added = ((changed - resid) / scale).reshape(added.shape)
            return _returned(output, added)

        return hook


class RowReader:
    """The rows so far, and the logits after them; `used` is the context that each row's prompt takes.

    A row by itself needs no padding, so every class can generate. With the cache a token costs a forward of one token.
    """

    def __init__(self, model: Any, prompts: list[list[int]], use_cache: bool, among: tuple[Sequence[int], int, Any]):
        self.model = model
        self.numbers, self.n, self.writing = among  # which of how many prompts these are, and their generation
        self.rows = [list(ids) for ids in prompts]
        self.used = [len(ids) for ids in prompts]
        self.new = [list(ids) for ids in prompts]
        self.caches: list[dict[str, Any]] = [{} for _ in prompts]
        self.use_cache = use_cache

    def logits(self, next_B: Tensor | None) -> Tensor:
        """Append `next_B` [B] to the rows, and return the logits [B, V] of the next token."""
        if next_B is not None:
            for row, token in enumerate(next_B.tolist()):
                self.rows[row].append(token)
                self.new[row] = [token]
        with quiet():  # a class says once which kernels it falls back to
            return torch.stack([self._row(row) for row in range(len(self.rows))])

    def keep(self, rows: list[int]) -> None:
        """Go on with these rows alone."""
        for name in ("numbers", "rows", "used", "new", "caches"):
            setattr(self, name, [getattr(self, name)[row] for row in rows])

    def _row(self, row: int) -> Tensor:
        ids = self.new[row] if self.use_cache and self.caches[row] else self.rows[row]
        start = len(self.rows[row]) - len(ids)
        try:
            cache = self.caches[row] if self.use_cache else None
            with self.model.telling(self._tokens(row, start)):
                logits_V, self.caches[row] = self.model.next_logits(ids, start, cache)
        except (RuntimeError, ValueError, TypeError, KeyError, AttributeError, IndexError):
            if not self.use_cache:
                raise
            self.use_cache = False  # some classes' caches do not work for every config; a token then costs more
            return self._row(row)
        return logits_V.cpu()

    def _tokens(self, row: int, start: int) -> TextTokens:
        """The tokens of a row from `start` on, as those of its prompt."""
        index_1L = torch.arange(start, len(self.rows[row]))[None]
        number = torch.tensor([self.numbers[row]])
        return TextTokens(index_1L, torch.tensor([self.used[row]]), number, self.n, index_1L, self.writing)


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the warnings, logs and progress bars of transformers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers.utils import logging

        placing = getLogger("accelerate")
        placing_level = placing.level
        placing.setLevel(CRITICAL)
        level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
        logging.set_verbosity(CRITICAL)
        logging.disable_progress_bar()
        try:
            yield
        finally:
            placing.setLevel(placing_level)
            logging.set_verbosity(level)
            if bars:
                logging.enable_progress_bar()


def device_of(hf: Any) -> torch.device:
    """Where the inputs of a model of transformers go; weights that accelerate keeps on the host are on no device."""
    placed = getattr(hf, "hf_device_map", None)
    return torch.device(next(iter(placed.values()))) if placed else next(hf.parameters()).device


def _passed(point: HookPoint, x: Tensor) -> Tensor:
    """The tensor behind a point. Some blocks add to theirs in place later, so that hooks see a copy of their own."""
    return point(x.clone()).clone()


def _returned(output: Any, first: Tensor) -> Any:
    """What a module returns, with another first tensor."""
    if isinstance(output, tuple):
        return (first, *output[1:])
    return [first, *output[1:]] if isinstance(output, list) else first


def _added(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask [B, L, M] of bools as numbers that are added to scores, [B, 1, L, M]."""
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, torch.finfo(dtype).min)[:, None]


def _absent(layout: ModuleLayout, several: bool) -> Mapping[str, str]:
    """Why points are absent, for those that people ask for."""
    inner: tuple[str, ...] = (
        "q",
        "k",
        "v",
        "z",
        "attn_scores",
        "attn_pattern",
        "result",
        "mlp_pre",
        "mlp_post",
        "pos_embed",
    )
    absent: dict[str, str] = dict.fromkeys(inner, WHY_NOT_HERE)
    blocks = layout.sublayers
    sublayers = ("attn_out", "mlp_out", "resid_mid", *(() if layout.all_attend else ("mixer_out",)))
    absent |= dict.fromkeys(sublayers, FROM_SEVERAL if several else WHY_NO_SUBLAYER)
    if all((one.mixer is None) != (one.mlp is None) and one.mid is None for one in blocks):
        absent |= dict.fromkeys(("mixer_out", "mlp_out", "resid_mid"), ONE_SUBLAYER)
    elif all(one.mixer and one.mlp and one.mid is None for one in blocks):
        absent["resid_mid"] = NO_MIDDLE
    if not any(one.attention for one in blocks):
        absent["attn_out"] = NO_ATTENTION
    if not several:
        absent |= dict.fromkeys(("resid_pre_streams", "resid_post_streams"), ONE_STREAM)
    if layout.ln_final is None:
        absent["ln_final"] = "no norm after the last block was found; take resid_post"
    return absent


def parameters_by_part(model: AdaptedModel) -> dict[str, int]:
    """How many parameters each part has; a tied weight, or a block that layers share, counts once."""
    base: Any = model.hf.base_model
    sizes = {id(weight): weight.numel() for weight in model.hf.parameters()}
    embedding = {id(weight) for weight in base.get_submodule(model.layout.embed).parameters()}
    blocks = {id(weight) for path in model.layout.blocks for weight in base.get_submodule(path).parameters()}
    groups = {"token embedding": embedding, "blocks": blocks, "other": sizes.keys() - embedding - blocks}
    return {part: sum(sizes[key] for key in keys) for part, keys in groups.items()}
