"""Generate text token by token: the likeliest next token, or one drawn at random.

Tokens are drawn from softmax(logits / temperature). `top_k` keeps the k likeliest tokens, `top_p` the smallest set of
likeliest tokens with that much probability (the nucleus of Holtzman et al. 2020). It is computed in float64, so that a
cache, a batch or its padding change no choice. Row i of a batch draws with seed + i.

Prompts of different lengths are padded on the left, with positions counted from their first token. A row ends at a stop
token, after `max_new_tokens`, or when the context is full: its last token may be the first that does not fit. It then
leaves the batch.
An encoder-decoder reads the prompt with its encoder and generates with its decoder. Models here are those of `base.py`,
which imports this file.

Axes: B batch, L query position, M key position, S source position, D d_model, V vocab.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from probekit.errors import UsageError
from probekit.interventions import TextTokens, Writing
from probekit.models.layers import causal_mask
from probekit.options import GenerateOptions, Sampling
from probekit.options.check import is_whole
from probekit.options.option import keywords

ROWS_DRAWN = 32  # whose probabilities are in memory at once: several float64 tensors [B, V]

Prompt = str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]] | Tensor


@dataclass(frozen=True)
class Continuation:
    """New token ids, the stop token included, and why generation ended; "stopped" by a hook, as a `Monitor` does."""

    tokens: list[int]
    ended: Literal["stop token", "max_new_tokens", "context", "stopped"]


class Among(NamedTuple):
    """Which of `n` prompts in all those of a batch are: they choose the rows of edits, and the seeds of draws.

    `writing` is what the forwards of this call share; the caller leaves it out.
    """

    numbers: Sequence[int]
    n: int
    writing: Writing | None = None


@keywords(GenerateOptions)
def generate(model: Any, prompt: Prompt, options: GenerateOptions) -> Any:
    """Continue one prompt, or several at once.

    Args:
        model: a decoder, or an encoder-decoder, for which the prompt is the source.
        prompt: a text, several, token ids or several lists of them; lengths may differ.
        options: as keyword arguments.

    Returns:
        For a text, the text that follows it, without the stop token; for ids, the new ids, the stop token included.
        Several prompts give a list.

    Raises:
        UsageError: a model that cannot generate, an impossible setting, an empty prompt, a prompt longer than the
            context, ids that the model does not know, or a text for a model without a tokenizer.
        DataError: a text that the tokenizer cannot read.
    """
    prompts, is_text, is_single = to_ids(model, prompt, options.bos)
    stops = stop_ids(model, options.stop_tokens)
    made = continuations(model, prompts, options.max_new_tokens, options, stops, options.use_cache)
    results = [continuation_text(model, *row) if is_text else row[1].tokens for row in zip(prompts, made, strict=True)]
    return results[0] if is_single else results


def to_ids(model: Any, prompt: Prompt, bos: bool | None = None) -> tuple[list[list[int]], bool, bool]:
    """The prompts as lists of ids; whether they were texts; whether there was just one. Errors as in `generate`."""
    given: Any = prompt.tolist() if isinstance(prompt, Tensor) else prompt
    has_end = model.tokenizer is not None and model.tokenizer.sep_token_id is not None  # as Marian's sources
    around = has_end if bos is None else bos
    if isinstance(given, str):
        return [model.need_tokenizer().encode(given, around)], True, True
    rows = list(given) if isinstance(given, Sequence) else None
    if not rows:
        raise UsageError(f"expected a prompt, got {prompt!a:.60}; give a text, token ids, or a list of either")
    if all(isinstance(row, str) for row in rows):
        return model.need_tokenizer().encode_batch(rows, around), True, False
    if bos:
        raise UsageError("bos is for texts; put the BOS id before the prompt's ids")
    if all(map(is_whole, rows)):
        return [list(map(int, rows))], False, True
    if all(isinstance(row, Sequence) and not isinstance(row, str) and all(map(is_whole, row)) for row in rows):
        return [list(map(int, row)) for row in rows], False, False
    raise UsageError(f"expected texts, or lists of token ids, got {rows!a:.60}; give prompts of one of these kinds")


def stop_ids(model: Any, stop_tokens: Sequence[int | str] | None) -> frozenset[int]:
    """The ids that end a continuation; None gives the model's own: of generation_config.json, else of config.json.

    Raises:
        UsageError: an id that the model does not know, or a text that is not one token.
        DataError: a text that the tokenizer cannot read.
    """
    if stop_tokens is None:
        end = model.end_ids or getattr(model.cfg, "eos_token_id", None)
        return frozenset(end if isinstance(end, Sequence) else () if end is None else (end,))
    if isinstance(stop_tokens, str) or not isinstance(stop_tokens, Iterable):
        raise UsageError(f"stop_tokens is a list of tokens; got {stop_tokens!a:.60}")
    return frozenset(_stop_id(model, token) for token in stop_tokens)


def _stop_id(model: Any, token: int | str) -> int:
    if isinstance(token, str) and model.tokenizer is None and token.strip().isdecimal():
        token = int(token)  # as typed on a command line
    if isinstance(token, str):
        return model.need_tokenizer().token_id(token)
    if not is_whole(token) or not 0 <= token < model.cfg.d_vocab:
        raise UsageError(f"a stop token is a token's text, or an id in 0..{model.cfg.d_vocab - 1}; got {token!a:.60}")
    return int(token)


def continuation_text(model: Any, prompt: list[int], made: Continuation) -> str:
    """The continuation as text to append to the prompt's text, without the stop token that ended it.

    Many tokenizers drop the blank before a text's first token, so the new tokens are decoded after the prompt's.
    """
    ids = made.tokens[:-1] if made.ended == "stop token" else made.tokens
    tokenizer = model.need_tokenizer()
    if hasattr(model, "decode"):  # the prompt is a different text, the source
        return tokenizer.decode(ids)
    before, both = tokenizer.decode(prompt), tokenizer.decode(prompt + ids)
    return both.removeprefix(before) if both.startswith(before) else tokenizer.decode(ids)


@torch.no_grad()
def continuations(
    model: Any,
    prompts: Sequence[list[int]],
    max_new_tokens: int = 50,
    sampling: Sampling | None = None,
    stops: frozenset[int] = frozenset(),
    use_cache: bool = True,
    among: Among | None = None,
    advance: Callable[[int, int], None] | None = None,
) -> list[Continuation]:
    """Continue prompts of token ids; see `generate`.

    Args:
        model: as there, and so are the next five.
        prompts: at least one, of at least one token each.
        max_new_tokens: of each.
        sampling: None takes the likeliest token.
        stops: ids that end a continuation.
        use_cache: keep the keys and values of earlier tokens.
        among: which of how many prompts these are; None: they are all.
        advance: called after each step with (tokens written, rows ended).
    """
    if not is_whole(max_new_tokens) or max_new_tokens < 1:
        raise UsageError(f"max_new_tokens is a whole number of at least 1; got {max_new_tokens!a}")
    _check_prompts(model, prompts)
    numbers, n, _ = among or Among(range(len(prompts)), len(prompts))
    start = [model.cfg.decoder_start_token_id] if hasattr(model, "decode") else None  # what is read before new tokens
    writing = Writing({number: list(start or ids) for number, ids in zip(numbers, prompts, strict=True)})
    among = Among(numbers, n, writing)
    choose = _chooser(sampling or Sampling(), numbers)
    reader = _reader(model, prompts, use_cache, among)
    room = [model.cfg.n_ctx + 1 - used for used in reader.used]
    made: list[list[int]] = [[] for _ in prompts]
    ended: list[Any] = [None] * len(prompts)
    active, next_B = list(range(len(prompts))), None
    while active:
        next_B = choose(reader.logits(next_B), active)
        for row, token in zip(active, next_B.tolist(), strict=True):
            if numbers[row] in writing.stopped:
                ended[row] = "stopped"
                continue
            made[row].append(token)
            writing.tokens[numbers[row]].append(token)
            ended[row] = _end(token, len(made[row]), stops, max_new_tokens, room[row])
        stay = _filled([ended[row] is None for row in active])
        if advance:
            advance(sum(ended[row] != "stopped" for row in active), len(active) - len(stay))
        if stay and len(stay) < len(active):
            reader.keep(stay)
            next_B = next_B[stay]
        active = [active[i] for i in stay]
    return [Continuation(tokens, why) for tokens, why in zip(made, ended, strict=True)]


def _filled(stays: list[bool]) -> list[int]:
    """The rows that stay, those at the end moved to where a row leaves: [1, 0, 1, 1] gives [0, 3, 2]."""
    n = sum(stays)
    behind = (i for i in range(n, len(stays)) if stays[i])
    return [i if stays[i] else next(behind) for i in range(n)]


def _end(token: int, n: int, stops: frozenset[int], most: int, room: int) -> str | None:
    """Why a row with n new tokens ends here; None if it continues."""
    if token in stops:
        return "stop token"
    if n >= most:
        return "max_new_tokens"
    return "context" if n >= room else None


def _check_prompts(model: Any, prompts: Sequence[list[int]]) -> None:
    if not prompts or not all(prompts):
        raise UsageError("the prompt is empty; give it a token to continue, such as BOS")
    longest, n_ctx, last = max(map(len, prompts)), model.cfg.n_ctx, model.cfg.d_vocab - 1
    if longest > n_ctx:
        raise UsageError(f"a prompt of {longest} tokens does not fit a context of {n_ctx}; shorten it")
    for i in (i for ids in prompts for i in ids):
        if not 0 <= i <= last:
            raise UsageError(f"token ids lie in 0..{last}; got {i}")


def next_distribution(logits_BV: Tensor, sampling: Sampling) -> Tensor:
    """The probabilities that the next token is drawn with, float64 [B, V], of a temperature above 0."""
    scaled_BV = logits_BV.double() / sampling.temperature
    if sampling.top_k is not None and sampling.top_k < scaled_BV.shape[-1]:
        least_B1 = scaled_BV.topk(sampling.top_k).values[:, -1:]
        scaled_BV = scaled_BV.masked_fill(scaled_BV < least_B1, -math.inf)
    probabilities_BV = scaled_BV.softmax(-1)
    if sampling.top_p is not None and sampling.top_p < 1:
        sorted_BV, order_BV = probabilities_BV.sort(descending=True, stable=True)
        likelier_BV = F.pad(sorted_BV.cumsum(-1)[:, :-1], (1, 0))  # the total probability of all likelier tokens
        outside_BV = torch.zeros_like(order_BV, dtype=torch.bool).scatter(1, order_BV, likelier_BV >= sampling.top_p)
        probabilities_BV = probabilities_BV.masked_fill(outside_BV, 0)
    return probabilities_BV / probabilities_BV.sum(-1, keepdim=True)


def _chooser(sampling: Sampling, numbers: Iterable[int]) -> Callable[[Tensor, Iterable[int]], Tensor]:
    """A function from logits [B, V], and the prompt of each row, to the next tokens [B], on the CPU."""
    if sampling.temperature == 0:
        return lambda logits_BV, _: logits_BV.argmax(-1).cpu()
    generators = [torch.Generator().manual_seed(sampling.seed + i) for i in numbers]

    def draw(logits_BV: Tensor, rows: Iterable[int]) -> Tensor:
        uniform_B1 = torch.stack([torch.rand(1, dtype=torch.float64, generator=generators[row]) for row in rows])
        parts = zip(logits_BV.cpu().split(ROWS_DRAWN), uniform_B1.split(ROWS_DRAWN), strict=True)
        return torch.cat([_drawn(next_distribution(part, sampling), uniform) for part, uniform in parts])

    return draw


def _drawn(probabilities_BV: Tensor, uniform_B1: Tensor) -> Tensor:
    """The token [B] of each row at which the cumulated probability exceeds the row's number in [0, 1)."""
    cumulated_BV = probabilities_BV.cumsum(-1)
    return torch.searchsorted(cumulated_BV, uniform_B1 * cumulated_BV[:, -1:], right=True).squeeze(1)


def _reader(model: Any, prompts: Sequence[list[int]], use_cache: bool, among: Among) -> Any:
    if hasattr(model, "decode"):
        return _TargetReader(model, prompts, use_cache, among)
    if not model.causal:
        raise UsageError(
            f"{model.name} reads texts in both directions and cannot continue them; take a decoder, such as gpt2"
        )
    if model.reader is not None:
        return model.reader(prompts, use_cache, among)
    return _Reader(model, prompts, use_cache, among)


def prompt_tokens(index_BL: Tensor, lengths: Sequence[int], among: Among | None = None) -> TextTokens:
    """The tokens of a forward as those of prompts of these lengths, of which they may be the continuation."""
    numbers, n, writing = among or Among(range(len(lengths)), len(lengths))
    return TextTokens(index_BL, torch.tensor(lengths), torch.tensor(numbers), n, index_BL, writing)


class _Reader:
    """The rows so far, and the model's logits for them; `used` is the context that each row's prompt takes."""

    def __init__(self, model: Any, prompts: Sequence[list[int]], use_cache: bool, among: Among):
        self.model: Any = model
        self.among = among
        self.used = [len(ids) for ids in prompts]
        width = max(self.used)
        self.tokens_BM = torch.tensor([[0] * (width - len(ids)) + ids for ids in prompts])
        self.mask_BM = torch.arange(width) >= width - torch.tensor(self.used)[:, None]
        self.cache = model.empty_cache() if use_cache else None

    def logits(self, next_B: Tensor | None) -> Tensor:
        """Append `next_B` [B] to the rows, and return the logits [B, V] of the next token."""
        if next_B is not None:
            self.tokens_BM = torch.cat([self.tokens_BM, next_B[:, None]], 1)
            self.mask_BM = torch.cat([self.mask_BM, torch.ones_like(next_B, dtype=torch.bool)[:, None]], 1)
        new = slice(0 if self.cache is None else self.cache.length, None)
        is_one = self.cache is not None and next_B is not None
        positions_BM = (self.mask_BM.long().cumsum(1) - 1).clamp(min=0)
        mask_BLM = self.mask_BM[:, None] if is_one else causal_mask(self.mask_BM)
        index_BL = torch.where(self.mask_BM, self.mask_BM.long().cumsum(1) - 1, -1)[:, new]
        with self.model.telling(prompt_tokens(index_BL, self.used, self.among)):
            hidden_BLD = self.hidden(self.tokens_BM[:, new], positions_BM[:, new], mask_BLM)
        return self.model.head(hidden_BLD[:, -1:])[:, 0]

    def keep(self, rows: list[int]) -> None:
        """Go on with these rows alone."""
        self.used = [self.used[row] for row in rows]
        self.among = self.among._replace(numbers=[self.among.numbers[row] for row in rows])
        self.tokens_BM, self.mask_BM = self.tokens_BM[rows], self.mask_BM[rows]
        if self.cache is not None:
            self.cache.keep(rows)

    def hidden(self, tokens_BL: Tensor, positions_BL: Tensor, mask_BLM: Tensor) -> Tensor:
        """The input of the head, [B, L, D]."""
        return self.model(tokens_BL, positions_BL, mask_BLM, return_logits=False, cache=self.cache)


class _TargetReader(_Reader):
    """For an encoder-decoder: the prompts are sources, and the rows begin with the decoder's start token."""

    def __init__(self, model: Any, prompts: Sequence[list[int]], use_cache: bool, among: Among):
        start = model.cfg.decoder_start_token_id
        if start is None:
            raise UsageError(f"{model.name} has no decoder_start_token_id to begin a text with; set it in config.json")
        super().__init__(model, [[start]] * len(prompts), use_cache, among)
        width = max(map(len, prompts))
        sources_BS = torch.tensor([ids + [0] * (width - len(ids)) for ids in prompts])
        self.cross_mask_BS = torch.arange(width) < torch.tensor([len(ids) for ids in prompts])[:, None]
        self.memory_BSD = self.model.encode(sources_BS, attention_mask=self.cross_mask_BS)

    def keep(self, rows: list[int]) -> None:
        super().keep(rows)
        self.cross_mask_BS, self.memory_BSD = self.cross_mask_BS[rows], self.memory_BSD[rows]

    def hidden(self, tokens_BL: Tensor, positions_BL: Tensor, mask_BLM: Tensor) -> Tensor:
        return self.model.decode(
            tokens_BL,
            self.memory_BSD,
            positions_BL,
            mask_BLM,
            self.cross_mask_BS,
            return_logits=False,
            cache=self.cache,
        )
