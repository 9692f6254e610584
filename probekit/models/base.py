"""The base of every family's model: tokenizer, checks of inputs, generation, fingerprint."""

import hashlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from probekit.errors import UsageError
from probekit.hooks import HookedModule
from probekit.interventions import Edits, Positions, TextTokens, editing_texts, texts_in
from probekit.models import generation
from probekit.models.cache import KeyValueCache
from probekit.models.layers import Mask, causal_mask, padding_mask, positions_from_mask
from probekit.models.placement import Placement
from probekit.models.tokenizer import Tokenizer
from probekit.options import GenerateOptions
from probekit.options.option import keywords

Batching = Literal["packed", "padded", "one length"]


class LanguageModel(HookedModule):
    """A hooked module over token ids; `load_model` sets `name`, `tokenizer` (or None), `folder` and `source`.

    Attributes:
        cfg: the family's config; shared fields have one name: d_model, n_layers, n_ctx, d_vocab, ...
        batching: which batches leave a text's activations unchanged: packed blocks with shared prefixes, texts that are
            padded on the right, or texts of one length alone.
        longest_row: the most tokens that one row may hold, of one or several texts; None without a limit.
        causal: whether a token's activations depend only on it and the tokens before it.
        output_point: the point of the last block's output; post-norm blocks end with a norm.
        end_ids: the ids that end a text, of generation_config.json; None: those of the config.
        folder: the folder of the weights.
        reader: (prompts, use_cache, among) -> what generation reads logits from, where that is not the model itself.
        is_ours: whether this project's code computes it; of a wrapped model only the points are known.
        packages: other packages whose code computes, for a store's record.
        source: arguments of `load_model` that load the model again: name_or_path, revision, random_init, seed, dtype;
            via, device_map and quantize where they are not the default.
        left_out: the parts of its files that were not loaded: of a model packaged as multimodal, such as vision_config;
            a multi-token prediction head.
        revision: that was asked for, such as the name of a checkpoint; None for the only or the main one.
        placement: the devices of its parts, if it is spread over several.
        stays: whether the weights stay on the devices and in the type in which they were loaded.
        starts: whether a forward can start at a later block (`starting`).
        forks: whether texts in a row may share a prefix and go on differently; a recurrent state follows one text only.
        initial_gain: of norms, before training.
        in_float32: how the names of weights end that are float32 whatever the type of the others.
    """

    cfg: Any
    batching: Batching = "packed"
    longest_row: int | None = None
    name: str = "unnamed"
    causal: bool = True
    output_point: str = "resid_post"
    tokenizer: Tokenizer | None = None
    end_ids: tuple[int, ...] | None = None
    folder: Path | None = None
    source: dict[str, Any] | None = None
    left_out: tuple[str, ...] = ()
    revision: str | None = None
    reader: Callable[..., Any] | None = None
    is_ours: bool = True
    packages: tuple[str, ...] = ()
    placement: Placement | None = None
    stays: bool = False
    starts: bool = True
    forks: bool = True
    initial_gain: float = 1.0
    in_float32: tuple[str, ...] = ()
    _read: Tensor | None = None
    _start: tuple[int, Tensor] | None = None
    _n_followed: int = 0
    _told: tuple[TextTokens | None] | None = None
    _texts: TextTokens | None = None

    @property
    def fills_masks(self) -> bool:
        """Whether it answers at the [MASK] of a text, as encoders do; others answer after a token."""
        return not self.causal

    @property
    def device(self) -> torch.device:
        """Where the weights are; of a model on several devices, where its inputs go."""
        return next(self.parameters()).device if self.placement is None else torch.device(self.placement.before)

    @property
    def dtype(self) -> torch.dtype:
        """The number type of the forward."""
        return next(self.parameters()).dtype

    def to_tokens(self, text: str, bos: bool = False) -> Tensor:
        """Token ids of one text, int64 [1, L] on the model's device, with a leading BOS if `bos`.

        Raises:
            UsageError: the model has no tokenizer.
        """
        return torch.tensor([self.need_tokenizer().encode(text, bos=bos)], dtype=torch.long, device=self.device)

    def to_str_tokens(self, text: str, bos: bool = False) -> list[str]:
        """The tokens of one text as strings."""
        tokenizer = self.need_tokenizer()
        return tokenizer.tokens(tokenizer.encode(text, bos=bos))

    def need_tokenizer(self) -> Tokenizer:
        """The tokenizer, or a UsageError that says what to do without one."""
        if self.tokenizer is None:
            raise UsageError(f"{self.name} has no tokenizer; give token ids, or put a tokenizer.json into its folder")
        return self.tokenizer

    def check_tokens(
        self, tokens: Tensor, position_ids: Tensor | None = None, attention_mask: Tensor | None = None
    ) -> Tensor:
        """The tokens [B, L] on the model's device.

        With positions and a mask [B, L, M], a row may exceed the context: it holds several texts.

        Raises:
            UsageError: an invalid type, shape, id or length.
        """
        packed = position_ids is not None and attention_mask is not None and attention_mask.dim() == 3
        if not isinstance(tokens, Tensor):
            kind = type(tokens).__name__
            raise UsageError(
                f"tokens must be int64 [batch, position], got {kind}; make them with model.to_tokens(text)"
            )
        if tokens.dim() != 2 or tokens.dtype not in (torch.int64, torch.int32) or not tokens.numel():
            raise UsageError(f"tokens are int64 [batch, position]; got {tokens.dtype} {list(tokens.shape)}")
        if tokens.shape[1] > self.cfg.n_ctx and not packed:
            raise UsageError(f"{tokens.shape[1]:,} tokens do not fit a context of {self.cfg.n_ctx:,}; shorten the text")
        if tokens.device.type == "cpu" and not (int(tokens.min()) >= 0 and int(tokens.max()) < self.cfg.d_vocab):
            raise UsageError(
                f"token ids lie in 0..{self.cfg.d_vocab - 1}; got {int(tokens.min())}..{int(tokens.max())}"
            )
        if self._n_followed:
            self._texts = texts_in(tokens, attention_mask) if self._told is None else self._told[0]
        return tokens.to(self.device)

    def mask_and_positions(
        self, tokens: Tensor, mask: Tensor | None, position_ids: Tensor | None, cache: KeyValueCache | None = None
    ) -> tuple[Mask, Tensor]:
        """The attention mask, [B, L, M] if a mask is given, and the position of each token, [B, L].

        Raises:
            UsageError: a shape that does not match the tokens, or a position outside the context.
        """
        length = tokens.shape[1]
        if cache is not None and (position_ids is None or mask is None or mask.dim() != 3):
            raise UsageError(
                "with a cache, give position_ids [B, L] and attention_mask [B, L, M] over all tokens so far"
            )
        seen = length + (cache.length if cache is not None else 0)
        n_ctx = self.cfg.n_ctx
        if position_ids is not None:
            if tuple(position_ids.shape) not in {tuple(tokens.shape), (1, length)}:
                got = list(position_ids.shape)
                raise UsageError(f"position_ids are {list(tokens.shape)}, like the tokens; got {got}")
            outside = [x for x in position_ids.aminmax() if not 0 <= int(x) < n_ctx] if position_ids.is_cpu else []
            if outside:
                raise UsageError(
                    f"position {int(outside[-1])} is outside the context, 0..{n_ctx - 1}; correct position_ids"
                )
        if mask is None:
            arange = torch.arange(length, device=tokens.device).expand_as(tokens)
            return "causal" if self.causal else None, (
                arange if position_ids is None else position_ids.to(tokens.device)
            )
        if not isinstance(mask, Tensor) or tuple(mask.shape) not in {tuple(tokens.shape), (*tokens.shape, seen)}:
            got = list(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
            raise UsageError(f"attention_mask is {list(tokens.shape)} or {[*tokens.shape, seen]}; got {got}")
        mask = check_mask(mask).to(tokens.device)
        if position_ids is None:
            position_ids = positions_from_mask(mask)
        if mask.dim() == 3:
            return mask, position_ids.to(tokens.device)
        return (causal_mask if self.causal else padding_mask)(mask), position_ids.to(tokens.device)

    def check_stop(self, stop_at_layer: int | None, n_layers: int) -> int:
        """How many blocks to run; None means all.

        Raises:
            UsageError: there is no such block.
        """
        stop = n_layers if stop_at_layer is None else stop_at_layer
        if not 0 <= stop <= n_layers:
            raise UsageError(f"stop_at_layer {stop} is not in 0..{n_layers}")
        return stop

    @contextmanager
    def _holding(self, attribute: str, value: Any) -> Iterator[None]:
        before = getattr(self, attribute)
        setattr(self, attribute, value)
        try:
            yield
        finally:
            setattr(self, attribute, before)

    def reading(self, read_BR: Tensor | None) -> AbstractContextManager[None]:
        """Within the context, forwards return these positions alone, [B, R, D]; None means all.

        The last block that runs computes keys and values of all positions, and everything else of these. Its points
        after the keys and values are [B, R, ...]. The forward must be given position_ids [B, L] and a mask [B, L, M];
        a decoder needs neither where each row holds one text, filled up on the right.
        Like hooks, it holds for every thread.
        """
        return self._holding("_read", read_BR)

    @contextmanager
    def edited(self, edits: Edits, positions: Positions = "all") -> Iterator[Self]:
        """Within the context, the model runs with edits: in forwards, generation and extraction into memory.

        Edits at one point are done in the order given, those of different points in the order of the forward. Contexts
        nest: the edits of the outer one come first. Like hooks, edits hold for every thread, and are gone after an
        exception.

        An edit with rows [R, ...] has one for each text of the batch; in extraction, for each example of the task.
        Edits at several tokens, each with its own direction: `{place: [add(a, positions=4), add(b, positions=6)]}`.

        Args:
            edits: point -> edit, or several edits: `{("resid_pre", 5): add(direction, scale=2)}`; see
                `probekit.interventions`. A point without a layer means every layer.
            positions: the tokens to edit, of edits without positions of their own; the same under any padding:
                - "all", generated ones included;
                - "last": the last token of each text; in generation, of each prompt;
                - an index or a slice of each text or prompt, a BOS counted; negative ones count from its end;
                - a list of one index for each text, or an int tensor [B];
                - a mask: bools for the tokens as they are given, [L] or [B, L]; in generation, for each prompt's tokens
                  from its first on;
                - "generated": the tokens after the prompt, in generation.

        Raises:
            UsageError: an unknown point, one that has no row for each token, an edit of another width or for another
                number of texts, or a position outside a text.
        """
        with self.following() as texts, editing_texts(self, edits, positions, texts):
            yield self

    @contextmanager
    def following(self) -> Iterator[Callable[[], TextTokens | None]]:
        """Within the context, the function it gives says of which texts the tokens of the running forward are.

        None where they are unknown, as in a packed block of extraction. Hooks may call it.
        """
        self._n_followed += 1
        try:
            yield lambda: self._texts
        finally:
            self._n_followed -= 1
            self._texts = None

    def telling(self, texts: TextTokens | None) -> AbstractContextManager[None]:
        """Within the context, edits at positions take the tokens of forwards as those of these texts; None: unknown."""
        return self._holding("_told", (texts,))

    def reads(self, tokens: Tensor, position_ids: Tensor, mask: Mask, stop: int) -> list[Tensor | None]:
        """The positions that each of the `stop` blocks reads: those of `reading` in the last, None (all) in the others.

        Raises:
            UsageError: within `reading`, a forward that it does not allow.
        """
        if self._read is None or not stop:
            return [None] * stop
        fits = len(tokens) == len(position_ids) == len(self._read) and isinstance(mask, Tensor | str)
        if isinstance(mask, Tensor):
            fits &= len(mask) == len(tokens)
        elif fits:  # the rows begin with their texts, and reach the positions
            fits = not bool(position_ids[:, 0].any()) and int(self._read.max()) < tokens.shape[1]
        if not fits:
            raise UsageError(
                f"within reading(...), give position_ids {list(tokens.shape)} and attention_mask [B, L, M]; "
                "or run the forward outside of it"
            )
        return [*[None] * (stop - 1), self._read.to(tokens.device)]

    def starting(self, layer: int, resid_BLD: Tensor) -> AbstractContextManager[None]:
        """Within the context, forwards start at this block with this input; their tokens only give the shape.

        The blocks before it do not run, and their points do not fire; those of the embedding do.
        """
        return self._holding("_start", (layer, resid_BLD))

    def started(self, embedded_BLD: Tensor) -> tuple[int, Tensor]:
        """The first block that runs, and its input: 0 and the embedding, or those of `starting`."""
        return (0, embedded_BLD) if self._start is None else self._start

    def window_of(self, layer: int) -> int | None:
        """How many tokens a token of this layer sees, itself included; None without a sliding window.

        In a bidirectional model as many on either side.
        """
        return None

    def empty_cache(self) -> KeyValueCache:
        """A cache for the tokens of a forward and of those that continue it."""
        return KeyValueCache(self.cfg.n_layers)

    @property
    def has_logits(self) -> bool:
        """Whether the model has a head that gives logits over the vocabulary."""
        return True

    def logits(self, output_BLD: Tensor) -> Tensor:
        """The head's logits [B, L, V] of what the forward returns with return_logits=False."""
        family: Any = self
        return family.head(output_BLD)

    def final_norm(self) -> Callable[[Tensor], Tensor]:
        """What is between the last block and the head; nothing in models whose blocks end with a norm."""
        return getattr(self, "ln_final", None) or nn.Identity()

    def output_of(self, short: str) -> str:
        """The short name of the point of the last block's output, in the stack of the point `short`."""
        stack = self.in_stack(short).rpartition(".")[0]
        return f"{stack}.{self.output_point}" if stack else self.output_point

    def size_of(self, axis: str, short: str, layer: int | None = None) -> int | None:
        """The size of an axis of this point in a layer, or in all alike; None for batch and position axes."""
        cfg = self.cfg
        sizes = {"D": cfg.d_model, "H": cfg.n_heads, "G": getattr(cfg, "n_kv_heads", cfg.n_heads), "K": cfg.d_head}
        sizes |= {"HK": sizes["H"] * sizes["K"], "GK": sizes["G"] * sizes["K"]}
        sizes |= {"F": cfg.d_mlp, "V": cfg.d_vocab, "E": getattr(cfg, "n_experts", None)}
        return int(axis) if axis.isdecimal() else sizes.get(axis)

    @keywords(GenerateOptions)
    def generate(self, prompt: generation.Prompt, options: GenerateOptions) -> Any:
        """Continue a text, token ids, or several of either; see `probekit.models.generation.generate`.

        Args:
            prompt: a text, several, token ids or several lists of them; lengths may differ.
            options: as keyword arguments.
        """
        return generation.generate(self, prompt, **vars(options))

    @torch.no_grad()
    def init_weights(self, seed: int = 0) -> Self:
        """Fill the weights as before training: matrices as `drawn`, biases 0, gains `initial_gain`."""
        generator = torch.Generator().manual_seed(seed)
        for name, weight in self.state_dict().items():
            if name.endswith("bias"):
                weight.zero_()
            elif weight.dim() == 1:
                weight.fill_(self.initial_gain)
            else:
                weight.copy_(self.drawn(name, weight.shape, generator))
        return self

    def drawn(self, name: str, shape: torch.Size, generator: torch.Generator) -> Tensor:
        """An initial matrix: normal of `init_std`, as `transformers` has it by default."""
        return torch.randn(shape, generator=generator) * self.cfg.init_std

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        if self.stays:
            raise UsageError(
                f"{self.name} was loaded with device_map or quantize, and its weights stay as they are; load it again "
                "without"
            )
        return super()._apply(fn, recurse)

    def stored_weights(self) -> dict[str, Tensor]:
        """Every weight by name, wherever it is while the model does not run."""
        return self.state_dict()

    def made_anew(self) -> Self:
        """This model again, with the same config and weights and none of its hooks."""
        with torch.device("meta"):
            twin = type(self)(self.cfg)
        twin.load_state_dict(self.state_dict(), assign=True)
        return twin

    def fingerprint(self) -> str:
        """Hex sha256 over every weight's name, type, shape and bytes."""
        weights = sorted(self.stored_weights().items())
        with ThreadPoolExecutor() as pool:  # hashing releases the GIL
            digests = pool.map(lambda item: hashlib.sha256(_bytes_of(item[1])).hexdigest(), weights)
            lines = [f"{name} {x.dtype} {list(x.shape)} {d}\n" for (name, x), d in zip(weights, digests, strict=True)]
        return hashlib.sha256("".join(lines).encode()).hexdigest()


def stopped(blocks: Any, resid_BLD: Tensor, stop: int) -> Tensor:
    """The input of block `stop`, with its hooks run; the output of the last block if there is none, [B, L, D]."""
    return blocks[stop].hook_resid_pre(resid_BLD) if stop < len(blocks) else resid_BLD


def check_evaluating(module: nn.Module, name: str) -> None:
    """Raise if a module that somebody else wrote is in training mode.

    Raises:
        UsageError: dropout would draw other activations in every forward.
    """
    if module.training:
        raise UsageError(f"{name} is in training mode, where dropout draws other activations each time; call .eval()")


def check_mask(mask: Tensor) -> Tensor:
    """A mask of bools, or of ones and zeros, as bools.

    Raises:
        UsageError: other numbers, such as those of additive masks.
    """
    if mask.dtype == torch.bool:
        return mask
    if ((mask != 0) & (mask != 1)).any():
        wrong = mask[(mask != 0) & (mask != 1)][0].item()
        raise UsageError(f"a mask is true (1) where tokens are seen and false (0) elsewhere; got {wrong}")
    return mask.bool()


def _bytes_of(x: Any) -> memoryview:
    return memoryview(x.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
