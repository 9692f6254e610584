"""What every model that reads tokens has besides its forward: a name, a tokenizer, a fingerprint."""

import hashlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from probekit.errors import UsageError
from probekit.hooks import HookedModule
from probekit.models.layers import causal_mask, padding_mask, positions_from_mask
from probekit.options import GenerateOptions
from probekit.options.option import keywords

if TYPE_CHECKING:
    from pathlib import Path

    from probekit.models.cache import Cache
    from probekit.models.generation import Prompt
    from probekit.models.tokenizer import Tokenizer


class LanguageModel(HookedModule):
    """A hooked module over token ids; `load_model` gives it `name`, `tokenizer` (or None) and `source`.

    The source is what `load_model` takes to load it again: name_or_path, revision, random_init, seed, dtype.
    """

    cfg: Any  # the family's own; what families share is named alike: d_model, n_layers, n_ctx, d_vocab, ...
    name: str = "unnamed"
    causal: bool = True  # whether a token's activations depend on the tokens before it alone
    output_point: str = "resid_post"  # where the last block's output stands; post-norm families end with a norm
    tokenizer: "Tokenizer | None" = None
    folder: "Path | None" = None  # that the weights were read from
    source: dict[str, Any] | None = None

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """The type that the forward computes in."""
        return next(self.parameters()).dtype

    def to_tokens(self, text: str, bos: bool = False) -> Tensor:
        """Token ids of one text, int64 [1, L] on the model's device; a BOS comes first only when asked for.

        Raises:
            UsageError: the model has no tokenizer.
        """
        return torch.tensor([self._need_tokenizer().encode(text, bos=bos)], dtype=torch.long, device=self.device)

    def to_str_tokens(self, text: str, bos: bool = False) -> list[str]:
        """The tokens of one text as strings."""
        tokenizer = self._need_tokenizer()
        return tokenizer.tokens(tokenizer.encode(text, bos=bos))

    def _need_tokenizer(self) -> "Tokenizer":
        if self.tokenizer is None:
            raise UsageError(f"{self.name} has no tokenizer: pass token ids, or put a tokenizer.json into its folder")
        return self.tokenizer

    def check_tokens(
        self, tokens: Tensor, position_ids: Tensor | None = None, attention_mask: Tensor | None = None
    ) -> Tensor:
        """The tokens [B, L] on the model's device.

        Given positions and a mask [B, L, M], rows may be longer than the context: they are several texts in a row.

        Raises:
            UsageError: a type, shape, id or length that cannot be.
        """
        packed = position_ids is not None and attention_mask is not None and attention_mask.dim() == 3
        if not isinstance(tokens, Tensor):
            kind = type(tokens).__name__
            raise UsageError(f"tokens are int64 [batch, position]; got {kind}: model.to_tokens(text) makes them")
        if tokens.dim() != 2 or tokens.dtype not in (torch.int64, torch.int32) or not tokens.numel():
            raise UsageError(f"tokens are int64 [batch, position]; got {tokens.dtype} {list(tokens.shape)}")
        if tokens.shape[1] > self.cfg.n_ctx and not packed:
            raise UsageError(f"{tokens.shape[1]} tokens do not fit a context of {self.cfg.n_ctx}")
        if tokens.device.type == "cpu" and not (int(tokens.min()) >= 0 and int(tokens.max()) < self.cfg.d_vocab):
            raise UsageError(
                f"token ids lie in 0..{self.cfg.d_vocab - 1}; got {int(tokens.min())}..{int(tokens.max())}"
            )
        return tokens.to(self.device)

    def mask_and_positions(
        self, tokens: Tensor, mask: Tensor | None, position_ids: Tensor | None, cache: "Cache | None" = None
    ) -> tuple[Tensor | None, Tensor]:
        """Who may attend to whom, [B, L, M], and the position of each token, [B, L].

        Without a mask the first is None: a causal model's tokens see all before them, another's see all.

        Raises:
            UsageError: a shape that does not fit the tokens, or a position that is not in the context.
        """
        length = tokens.shape[1]
        if cache is not None and (position_ids is None or mask is None or mask.dim() != 3):
            raise UsageError(
                "with a cache, give position_ids [B, L] and attention_mask [B, L, M] over all tokens so far"
            )
        seen = length + (cache.length if cache is not None else 0)
        if position_ids is not None:
            self._check_positions(tokens, position_ids)
        if mask is None:
            arange = torch.arange(length, device=tokens.device).expand_as(tokens)
            return None, arange if position_ids is None else position_ids.to(tokens.device)
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
        """How many of the blocks are to run; None is all.

        Raises:
            UsageError: there is no such block.
        """
        stop = n_layers if stop_at_layer is None else stop_at_layer
        if not 0 <= stop <= n_layers:
            raise UsageError(f"stop_at_layer {stop} is not in 0..{n_layers}")
        return stop

    def _check_positions(self, tokens: Tensor, position_ids: Tensor) -> None:
        if tuple(position_ids.shape) not in {tuple(tokens.shape), (1, tokens.shape[1])}:
            raise UsageError(f"position_ids are {list(tokens.shape)}, as the tokens; got {list(position_ids.shape)}")
        if position_ids.device.type == "cpu" and not (
            int(position_ids.min()) >= 0 and int(position_ids.max()) < self.cfg.n_ctx
        ):
            wrong = int(position_ids.max()) if int(position_ids.max()) >= self.cfg.n_ctx else int(position_ids.min())
            raise UsageError(f"position {wrong} is not in a context of {self.cfg.n_ctx}")

    def window_of(self, layer: int) -> int | None:
        """How many tokens, itself among them, a token of this layer sees at most; None: no such window."""
        return None

    def output_of(self, short: str) -> str:
        """Where the last block's output stands, in the stack of this point: a short name."""
        stack = self.in_stack(short).rpartition(".")[0]
        return f"{stack}.{self.output_point}" if stack else self.output_point

    def size_of(self, axis: str, short: str) -> int | None:
        """How many entries an axis of this point has; None for those of batch and positions."""
        cfg = self.cfg
        sizes = {"D": cfg.d_model, "H": cfg.n_heads, "G": getattr(cfg, "n_kv_heads", cfg.n_heads), "K": cfg.d_head}
        sizes |= {"F": cfg.d_mlp, "V": cfg.d_vocab}
        return int(axis) if axis.isdecimal() else sizes.get(axis)

    @keywords(GenerateOptions)
    def generate(self, prompt: "Prompt", options: GenerateOptions) -> Any:
        """Continue a text, token ids, or several of either; see `probekit.models.generation.generate`.

        Args:
            prompt: as there.
            options: as keyword arguments.
        """
        from probekit.models.generation import generate

        return generate(self, prompt, **vars(options))

    def init_weights(self, seed: int = 0) -> Self:
        """Fill the weights as before training; the seed alone decides them."""
        raise NotImplementedError

    def fingerprint(self) -> str:
        """Hex sha256 of every weight: its name, type, shape and bytes."""
        weights = sorted(self.state_dict().items())
        with ThreadPoolExecutor() as pool:  # hashing lets other threads run
            digests = pool.map(lambda item: _sha256(item[1]), weights)
            lines = [f"{name} {x.dtype} {list(x.shape)} {d}\n" for (name, x), d in zip(weights, digests, strict=True)]
        return hashlib.sha256("".join(lines).encode()).hexdigest()


def stopped(blocks: Any, resid_BLD: Tensor, stop: int) -> Tensor:
    """What blocks give that stop before one of them: its input, or the output of the last, [B, L, D]."""
    return blocks[stop].hook_resid_pre(resid_BLD) if stop < len(blocks) else resid_BLD


def check_mask(mask: Tensor) -> Tensor:
    """A mask as bools; numbers are 1 and 0, and not what is added to scores.

    Raises:
        UsageError: other numbers.
    """
    if mask.dtype == torch.bool:
        return mask
    if ((mask != 0) & (mask != 1)).any():
        wrong = mask[(mask != 0) & (mask != 1)][0].item()
        raise UsageError(f"a mask is true (1) where tokens are seen and false (0) elsewhere; got {wrong}")
    return mask.bool()


def _sha256(x: Any) -> str:
    digest = hashlib.sha256()
    digest.update(memoryview(x.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()))
    return digest.hexdigest()
