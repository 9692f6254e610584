"""Reads without an edit: the logit lens, and direct logit attribution.

- Logit lens (nostalgebraist 2020): the residual stream of each layer through the final norm and the head.
- Direct logit attribution (Elhage et al. 2021): with the final norm's scale held fixed, logits are linear in the
  stream, which is a sum of what embeddings, heads and MLPs write; so each has its share of a logit.

Axes: P places, L position, K tokens that are listed, A answers, D d_model, H heads, V vocab.
"""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from probekit.causal.behaviour.answers import answer_id
from probekit.causal.behaviour.unembedding import check_head, logits_of, rows_at_once, uncapped, unembedding
from probekit.errors import UsageError
from probekit.models.adapter.proof import bound_of, relative
from probekit.models.base import LanguageModel
from probekit.models.masked_lm import MaskedLM
from probekit.options.check import check_whole, is_whole
from probekit.points import POINTS, Place
from probekit.tables import html_table, text_table

if TYPE_CHECKING:
    import pandas as pd

Text = str | Sequence[int]
_Share = tuple[str, int | None, int | None, float]  # component, layer, head, share


@dataclass(frozen=True, eq=False)
class LogitLens:
    """What each layer would predict after each token (of a masked language model: at each token).

    Attributes:
        places: "resid_pre.0", ..., and the last block's output.
        tokens: of the text, as strings.
        top: the tokens of the largest logits as ids, largest first, int64 [P, L, K].
        probability: of these, float64 [P, L, K].
        spelled: id -> the token as a string.
        kl: KL divergence of the layer's distribution from the model's own, KL(model || layer), in nats, [P, L].
        answers: as they were given.
        answer_rank: place of each answer among all tokens, 1 the most probable, int64 [P, L, A].
        answer_probability: float64 [P, L, A].
    """

    places: list[str]
    tokens: list[str]
    top: np.ndarray
    probability: np.ndarray
    spelled: dict[int, str]
    kl: np.ndarray
    answers: list[str]
    answer_rank: np.ndarray
    answer_probability: np.ndarray

    def to_frame(self) -> "pd.DataFrame":
        """One row for each place and position: the most probable token, and each answer's rank and probability."""
        import pandas as pd

        rows = [
            (place, at, token, self.spelled[self.top[p, at, 0]], self.probability[p, at, 0], self.kl[p, at])
            for p, place in enumerate(self.places)
            for at, token in enumerate(self.tokens)
        ]
        frame = pd.DataFrame(rows, columns=["place", "position", "token", "top", "probability", "kl"])
        for i, answer in enumerate(self.answers):
            frame[f"rank of {answer}"] = self.answer_rank[:, :, i].ravel()
            frame[f"probability of {answer}"] = self.answer_probability[:, :, i].ravel()
        return frame

    def _rows(self) -> list[list[str]]:
        body = [
            [place, *(self.spelled[i] for i in line[:, 0])] for place, line in zip(self.places, self.top, strict=True)
        ]
        return [["most probable after", *self.tokens], *body]

    def __str__(self) -> str:
        return text_table(self._rows())

    def _repr_html_(self) -> str:
        return html_table(self._rows())


@torch.no_grad()
def logit_lens(
    model: LanguageModel,
    text: Text,
    answers: Sequence[str | int] = (),
    k: int = 5,
    bos: bool | None = None,
    target: Text | None = None,
) -> LogitLens:
    """The logit lens of one text at every layer.

    Args:
        model: any model with a head.
        text: a text, or token ids with their context tokens.
        answers: next words (or tokens in place of the [MASK]), or token ids, whose rank and probability are given.
        k: how many tokens to list.
        bos: whether the text gets context tokens; None: only for models that were never trained without.
        target: what an encoder-decoder's decoder reads, whose layers are taken; `text` is then the source.

    Raises:
        UsageError: no head, a text or answer that is none or not in the vocabulary, a text longer than the context,
            `target` for a model of one text or its absence for one of two, or a class that computes more than a norm
            between its last block and its head.
    """
    check_head(model)
    check_whole("k", k)
    _check_list(answers)
    ids = ids_with_context(model, text, bos)
    found, hidden_PLD, output_LD = _hidden(model, ids, target)
    chosen = [_answer(model, one, text) for one in answers]
    _check_different(answers, chosen)
    parts = [
        _lens(model, hidden_PLD[:, start : start + step], output_LD[start : start + step], chosen, k)
        for step in [rows_at_once(model)]
        for start in range(0, len(output_LD), step)
    ]
    top, probability, kl, rank, of_answer = (np.concatenate(each, 1) for each in zip(*parts, strict=True))
    read = ids if target is None else _target_ids(model, target)
    listed = np.unique(top).tolist()
    return LogitLens(
        places=found,
        tokens=spelled(model, read),
        top=top,
        probability=probability,
        spelled=dict(zip(listed, spelled(model, listed), strict=True)),
        kl=kl,
        answers=[str(answer) for answer in answers],
        answer_rank=rank,
        answer_probability=of_answer,
    )


@torch.no_grad()
def top_of_layers(
    model: LanguageModel,
    texts: Sequence[Sequence[int]],
    k: int = 5,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[list[str], np.ndarray, np.ndarray]:
    """The most probable tokens of several texts at every layer, as `logit_lens` has them of one.

    The head is applied to many tokens at once: its matrix, 154 MB of GPT-2's, is what one short text mostly reads.

    Args:
        model: any model with a head that reads one text.
        texts: token ids of each, with their context tokens.
        k: how many tokens to list.
        progress: called with (texts done, texts).

    Returns:
        The places; ids, int64 [P, T, k], and probabilities, float64 [P, T, k], of the T tokens of all texts in order.

    Raises:
        UsageError: as `logit_lens`.
    """
    check_head(model)
    places: list[str] = []
    tops, likely, waiting = [], [], []
    step = rows_at_once(model)
    for i, ids in enumerate(texts):
        places, hidden_PLD, _ = _hidden(model, ids_with_context(model, list(ids)), None)
        waiting.append(hidden_PLD)
        if i + 1 < len(texts) and sum(x.shape[1] for x in waiting) < step:
            continue
        hidden_PTD, waiting = torch.cat(waiting, dim=1), []
        for part_PTD in hidden_PTD.split(step, dim=1):
            best = [_top(logits_of(model, hidden_TD), k) for hidden_TD in part_PTD]
            tops.append(torch.stack([ids_TK for ids_TK, _ in best]).cpu().numpy())
            likely.append(torch.stack([p_TK for _, p_TK in best]).cpu().numpy())
        if progress is not None:
            progress(i + 1, len(texts))
    return places, np.concatenate(tops, axis=1), np.concatenate(likely, axis=1)


def _top(logits_TV: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The tokens of the largest logits, and their probabilities."""
    best = logits_TV.log_softmax(-1).topk(min(k, logits_TV.shape[-1]))  # logsumexp takes three times as long on a CPU
    return best.indices, best.values.exp().double()


def _hidden(model: LanguageModel, ids: list[int], target: Text | None) -> tuple[list[str], Tensor, Tensor]:
    """The places, what the final norm makes of the stream there [P, L, D], and the model's output [L, D].

    Raises:
        UsageError: a class that computes more than a norm between its last block and its head.
    """
    found, resid_PLD, output_LD = _streams(model, ids, target)
    hidden_PLD = model.final_norm()(resid_PLD)
    if (error := relative(hidden_PLD[-1], output_LD)) > 10 * bound_of(model.dtype):
        raise UsageError(
            f"the output of {model.name} is not the final norm of its last block (relative difference {error:.0e}); "
            "its layers have no logit lens"
        )
    return found, hidden_PLD, output_LD


def _lens(
    model: LanguageModel, hidden_PLD: Tensor, output_LD: Tensor, chosen: list[int], k: int
) -> tuple[np.ndarray, ...]:
    """Top tokens, their probabilities, KL, and ranks and probabilities of the chosen tokens, at some positions."""
    own_LV = logits_of(model, output_LD).log_softmax(-1)
    found: list[list[Tensor]] = [[], [], [], [], []]
    for hidden_LD in hidden_PLD:
        logp_LV = logits_of(model, hidden_LD).log_softmax(-1)
        best = logp_LV.topk(min(k, logp_LV.shape[-1]))
        of_answers = logp_LV[:, chosen]
        rank_LA = (logp_LV[:, None] > of_answers[:, :, None]).sum(-1) + 1
        kl_L = (own_LV.exp() * (own_LV - logp_LV)).sum(-1).clamp(min=0)
        each = best.indices, best.values.exp().double(), kl_L.double(), rank_LA, of_answers.exp().double()
        for into, x in zip(found, each, strict=True):
            into.append(x.cpu())
    return tuple(torch.stack(each).numpy() for each in found)


def _streams(model: LanguageModel, ids: list[int], target: Text | None) -> tuple[list[str], Tensor, Tensor]:
    """The names of the places, the stream there [P, L, D], and the model's output [L, D]."""
    two = hasattr(model, "decode")
    if two == (target is None):
        needs = "a source and a target; give target=..." if two else "one text; leave out target"
        raise UsageError(f"{model.name} reads {needs}")
    first = "decoder.resid_pre" if two else "resid_pre"
    places = [Place(first, layer) for layer in model.layers_of(first)]
    places.append(Place(model.output_of(first), places[-1].layer))
    inputs = [torch.tensor([ids], device=model.device)]
    if target is not None:
        inputs.append(torch.tensor([_target_ids(model, target)], device=model.device))
    output_BLD, cache = model.run_with_cache(*inputs, points=places, return_logits=False)
    output_LD = output_BLD[0]
    return [str(place) for place in places], torch.stack([cache[x][0].to(output_LD) for x in places]), output_LD


def ids_with_context(model: LanguageModel, text: Text, bos: bool | None = None) -> list[int]:
    """The ids of a text with its context tokens; ids stay as they are.

    Raises:
        UsageError: neither a text nor ids, or none.
    """
    if isinstance(text, str):
        tokenizer = model.need_tokenizer()
        trained_with = tokenizer.sep_token_id is not None and not model.causal
        ids = tokenizer.encode(text, bos=trained_with if bos is None else bos)
    else:
        ids = text.tolist() if isinstance(text, Tensor | np.ndarray) else text
    if not isinstance(ids, list | tuple) or not all(is_whole(i) for i in ids):
        raise UsageError(f"expected one text or a list of token ids, got {text!a:.60}")
    if not ids:
        raise UsageError(f"expected a text or token ids, got {text!a:.60} without a token")
    return [int(i) for i in ids]


def _target_ids(model: LanguageModel, target: Text) -> list[int]:
    start = [] if model.cfg.decoder_start_token_id is None else [model.cfg.decoder_start_token_id]
    own = ids_with_context(model, target, bos=False)
    return own if own[:1] == start else start + own


def _answer(model: LanguageModel, answer: str | int, text: Text) -> int:
    """The id of an answer: the next word of a text, or in place of its [MASK]; a token by itself otherwise."""
    if not isinstance(answer, str) and not is_whole(answer):
        raise UsageError(f"an answer is a word or a token id, got {answer!a:.60}")
    return answer_id(model, answer, [text] if isinstance(text, str) and not hasattr(model, "decode") else [[]])


def _check_list(answers: Any) -> None:
    if isinstance(answers, str) or not isinstance(answers, Sequence | np.ndarray):
        raise UsageError(f'answers are a list of words or token ids, got {answers!a:.60}; write ["is", "are"]')


def _check_different(answers: Sequence[Any], tokens: list[int]) -> None:
    for i, token in enumerate(tokens):
        if token in tokens[:i]:
            first = answers[tokens.index(token)]
            raise UsageError(
                f"answers {first!a:.60} and {answers[i]!a:.60} are the same token {token}; give different ones"
            )


def spelled(model: LanguageModel, ids: Sequence[int]) -> list[str]:
    """The tokens as strings; their ids if the model has no tokenizer."""
    return [str(i) for i in ids] if model.tokenizer is None else model.tokenizer.tokens(ids)


@dataclass(frozen=True, eq=False)
class LogitAttribution:
    """The shares of a logit, or of a difference of two; they sum to it, before a soft cap.

    Attributes:
        components: "embed", "pos_embed", "attn.3.head.7", "attn.3.bias", "mlp.3", "ln_final.bias" and "head.bias"; of a
            layer without attention "mixer.3", of one with an embedding of its own "per_layer.3".
        layers: of each component; None for those outside the blocks.
        heads: of each component; None for all but heads.
        share: of each component, float64.
        total: the model's own logit or difference, before a soft cap.
        own: the token whose logit it is, as a string.
        other: the token that it is compared with; None for the logit itself.
        position: index of the token after which the logits are read.
    """

    components: list[str]
    layers: list[int | None]
    heads: list[int | None]
    share: np.ndarray
    total: float
    own: str
    other: str | None
    position: int

    def to_frame(self) -> "pd.DataFrame":
        """One row for each component."""
        import pandas as pd

        columns = {"component": self.components, "layer": self.layers, "head": self.heads, "share": self.share}
        return pd.DataFrame(columns).astype({"layer": "Int64", "head": "Int64"})

    def _rows(self) -> list[list[str]]:
        largest = np.argsort(-np.abs(self.share))[:15]
        what = f"logit of {self.own}" + ("" if self.other is None else f" minus {self.other}")
        rest = self.share.sum() - self.share[largest].sum()
        rows = [[self.components[i], f"{self.share[i]:+.3f}"] for i in largest]
        return [["component", what], *rows, ["all others", f"{rest:+.3f}"], ["sum", f"{self.share.sum():+.3f}"]]

    def __str__(self) -> str:
        return text_table(self._rows())

    def _repr_html_(self) -> str:
        return html_table(self._rows())


def direct_logit_attribution(
    model: LanguageModel,
    text: Text,
    own: str | int,
    other: str | int | None = None,
    position: int | None = None,
    bos: bool | None = None,
) -> LogitAttribution:
    """Each embedding's, head's and MLP's share of logit(own) - logit(other) after one token of a text.

    The scale of the final norm, and those of norms after sublayers (Gemma 2, OLMo 2), are held at their values. So the
    shares say what the components write towards the answer, and not what would happen without them.

    Args:
        model: a decoder of probekit's own families.
        text: a text, or token ids with their context tokens.
        own: the next word, or its token id.
        other: what it is compared with. None takes the logit itself, of which a part common to all tokens has no effect
            on probabilities.
        position: index of the token after which the logits are read; by default the last.
        bos: whether the text gets context tokens.

    Raises:
        UsageError: an adapted model, an encoder or encoder-decoder (between their blocks and logits is more than a norm
            and a product), or a position outside the text.
    """
    check_head(model)
    if hasattr(model, "decode") or not model.is_ours or isinstance(model, MaskedLM):
        raise UsageError(
            f"direct logit attribution is for decoders of probekit's own families, whose blocks add to one stream; "
            f"{model.name} is none; take logit_lens"
        )
    ids = ids_with_context(model, text, bos)
    at = len(ids) - 1 if position is None else position
    if not is_whole(at) or not -len(ids) <= at < len(ids):
        raise UsageError(f"the text has {len(ids)} tokens, positions 0..{len(ids) - 1}; got position {position!a:.40}")
    tokens = [_answer(model, one, text) for one in ([own] if other is None else [own, other])]
    _check_different([own, other], tokens)
    written, output_D = _written(model, ids, at % len(ids))
    slope_D, biases, total = _linear_logit(model, [*written.values()][-1], output_D, tokens)
    outside = [name for name in written if "." not in name]
    blocks: Any = model.blocks
    scales = [
        float(block.scale.detach()) if hasattr(block, "scale") else 1.0 for block in blocks
    ]  # of the sum in a block
    shares: list[_Share] = [
        (name, None, None, math.prod(scales) * float(written[name] @ slope_D.to(written[name].device)))
        for name in outside
    ]
    for layer, block in enumerate(blocks):
        shares += _of_block(block, layer, written, math.prod(scales[layer:]) * slope_D)
    components, layers, heads, share = zip(*shares, *biases, strict=True)
    strings = spelled(model, tokens)
    against = strings[1] if len(strings) > 1 else None
    share = np.array(share)
    return LogitAttribution([*components], [*layers], [*heads], share, total, strings[0], against, at % len(ids))


def _written(model: LanguageModel, ids: list[int], at: int) -> tuple[dict[str, Tensor], Tensor]:
    """What each component writes to the stream at one token, float64, by short name; and the model's output there."""
    places = [Place(short, None) for short in ("embed", "pos_embed") if POINTS[short] in model.points]
    last = model.n_layers - 1
    added = ("mlp_out", "result", "mixer_out", "per_layer_out")
    places += [Place(short, layer) for short in added for layer in model.layers_of(short)]
    places.append(Place("resid_post", last))
    tokens = torch.tensor([ids[: at + 1] if model.causal else ids], device=model.device)
    with torch.no_grad():
        output_BLD, cache = model.run_with_cache(tokens, points=places, positions=at, return_logits=False)
    return {str(place): cache[place][0].double() for place in places}, output_BLD[0, at]


def _linear_logit(
    model: LanguageModel, resid_D: Tensor, output_D: Tensor, tokens: list[int]
) -> tuple[Tensor, list[_Share], float]:
    """The slope [D] of the logit (or difference) in the stream, the shares of the biases, and the model's own value."""
    head = unembedding(model)
    assert head is not None, "the families refused above"
    sign = torch.tensor([1.0, -1.0], dtype=torch.float64, device=output_D.device)[: len(tokens)]
    norm: Any = model.ln_final
    slope_D, constant = _held(norm, resid_D.to(output_D.device), sign @ head.weight_VD[tokens].detach().double())
    biases: list[_Share] = [("ln_final.bias", None, None, constant)] if getattr(norm, "bias", None) is not None else []
    if head.bias_V is not None:
        biases.append(("head.bias", None, None, float(sign @ head.bias_V[tokens].detach().double())))
    logits_K = uncapped(head, output_D[None], torch.tensor([tokens], device=output_D.device))[0]
    return slope_D, biases, float(sign @ logits_K.detach().double())


@torch.enable_grad()
def _held(norm: nn.Module, x_D: Tensor, slope_D: Tensor) -> tuple[Tensor, float]:
    """The slope [D] in x of slope . norm(x), with the norm's scale held at its value, and the constant added."""
    if isinstance(norm, nn.Identity):
        return slope_D, 0.0
    exact: Any = copy.deepcopy(norm).double()
    exact.hook_scale.add(lambda scale, hook: scale.detach())
    x_BLD = x_D[None, None].detach().requires_grad_()
    value = exact(x_BLD)[0, 0] @ slope_D.detach()
    (inner_BLD,) = torch.autograd.grad(value, x_BLD)
    return inner_BLD[0, 0], float(value.detach() - inner_BLD[0, 0] @ x_D)


def _of_block(block: Any, layer: int, written: dict[str, Tensor], slope_D: Tensor) -> list[_Share]:
    """The shares of a block's heads and its attention's bias, or of what it has in place of them; and of its MLP."""
    rest: list[_Share] = []
    if (mlp_D := written.get(f"mlp_out.{layer}")) is not None:
        rest.append((f"mlp.{layer}", layer, None, float(mlp_D @ slope_D.to(mlp_D.device))))
    if (own_D := written.get(f"per_layer_out.{layer}")) is not None:
        rest.append((f"per_layer.{layer}", layer, None, float(own_D @ slope_D)))
    result_HD = written.get(f"result.{layer}")
    if result_HD is None:
        return [(f"mixer.{layer}", layer, None, float(written[f"mixer_out.{layer}"] @ slope_D)), *rest]
    bias_D = None if block.attn.out.bias is None else block.attn.out.bias.detach().double()
    attn_D = result_HD.sum(0) if bias_D is None else result_HD.sum(0) + bias_D
    inner_D, constant = _held(getattr(block, "ln1_post", nn.Identity()), attn_D, slope_D)
    shares: list[_Share] = [
        (f"attn.{layer}.head.{head}", layer, head, share) for head, share in enumerate((result_HD @ inner_D).tolist())
    ]
    if bias_D is not None:
        shares.append((f"attn.{layer}.bias", layer, None, float(bias_D @ inner_D) + constant))
    return [*shares, *rest]
