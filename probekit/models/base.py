"""What every model that reads tokens has besides its forward: a name, a tokenizer, a fingerprint."""

import hashlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from probekit.errors import UsageError
from probekit.hooks import HookedModule

if TYPE_CHECKING:
    from pathlib import Path

    from probekit.models.tokenizer import Tokenizer


class LanguageModel(HookedModule):
    """A hooked module over token ids; `load_model` gives it `name`, `tokenizer` (or None) and `source`.

    The source is what `load_model` takes to load it again: name_or_path, revision, random_init, seed, dtype.
    """

    cfg: Any  # the family's own; what families share is named alike: d_model, n_layers, n_ctx, d_vocab, ...
    name: str = "unnamed"
    causal: bool = True  # whether a token's activations depend on the tokens before it alone
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

    def fingerprint(self) -> str:
        """Hex sha256 of every weight: its name, type, shape and bytes."""
        weights = sorted(self.state_dict().items())
        with ThreadPoolExecutor() as pool:  # hashing lets other threads run
            digests = pool.map(lambda item: _sha256(item[1]), weights)
            lines = [f"{name} {x.dtype} {list(x.shape)} {d}\n" for (name, x), d in zip(weights, digests, strict=True)]
        return hashlib.sha256("".join(lines).encode()).hexdigest()


def _sha256(x: Any) -> str:
    digest = hashlib.sha256()
    digest.update(memoryview(x.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()))
    return digest.hexdigest()
