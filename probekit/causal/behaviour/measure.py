"""What a model answers, in numbers: the logit difference of two next tokens, and what else an edit does to them.

The *answer token* of a text is the token after which the model's answer is read: the last one, or the [MASK] of a
masked language model. Its *own answer* and *other answer* are tokens; the *logit difference* is
logit(own) - logit(other) there (Zhang and Nanda 2023).

Axes: N texts, V runs (edited or not) of some of them, D d_model, K answers.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from probekit.causal.behaviour.answers import answer_ids as answer_ids
from probekit.causal.behaviour.answers import mask_token
from probekit.causal.behaviour.pairs import MinimalPairs
from probekit.causal.behaviour.unembedding import check_head, chosen_logits, logits_of, rows_at_once
from probekit.errors import DataError, UsageError
from probekit.interventions import Edits, editing, through
from probekit.latents import Sae
from probekit.machine.devices import where_float64
from probekit.models.base import LanguageModel
from probekit.points import Place

TOKENS = 4096  # of a batch, padding included
MASKED = 7  # every 7th token is masked in turn: 14%, near the 15% of BERT's training
MEASURED_TOKENS = 10_000  # of texts on which a reconstruction's loss is measured


@dataclass(frozen=True, eq=False)
class Behaviour:
    """What is asked of each text.

    Attributes:
        own_N: token id of each text's own answer, int64 [N].
        other_N: of the answer that it is compared with.
        answer_N: index of the answer token among the text's ids.
    """

    own_N: Tensor
    other_N: Tensor
    answer_N: Tensor


@dataclass(frozen=True, eq=False)
class CustomBehaviour:
    """A behaviour in Python, in place of the logit difference.

    Attributes:
        function: (logits [V, vocab] at the answer token, the text of each run int64 [V]) -> numbers [V].
        answer_N: index of the answer token among each text's ids.
        name: for tables and plots.
    """

    function: Callable[[Tensor, Tensor], Tensor]
    answer_N: Tensor
    name: str = "custom"


@dataclass(frozen=True, eq=False)
class Measures:
    """What V runs answer, [V] each.

    Attributes:
        logit_difference: of the own answer.
        probability: of the own answer among all next tokens.
        kl: KL divergence of the next-token distribution from the unedited one, KL(unedited || edited), in nats.
        flipped: bool, whether the preferred one of the two answers is not the unedited run's.
    """

    logit_difference: Tensor
    probability: Tensor
    kl: Tensor
    flipped: Tensor


def by_label(
    labels: np.ndarray, answers: Sequence[int], answer_N: Tensor, others: np.ndarray | None = None
) -> Behaviour:
    """Each text's own answer is that of its label.

    Args:
        labels: class of each text, int [N].
        answers: token id of each class.
        answer_N: index of the answer token among each text's ids.
        others: the class whose answer is the other one, int [N]; by default the next class that occurs.

    Raises:
        DataError: the texts have one class.
        UsageError: a class that has no answer.
    """
    occurring = np.unique(labels)
    if others is None:
        if len(occurring) < 2:
            raise DataError("all texts have one label, so there is no other answer; give texts of two labels or more")
        others = np.roll(occurring, -1)[np.searchsorted(occurring, labels)]
    if not 0 <= int(min(occurring)) <= int(max(occurring)) < len(answers):
        raise UsageError(
            f"classes are 0..{len(answers) - 1}, one for each answer; got {int(min(occurring))}..{int(max(occurring))}"
        )
    ids = torch.tensor(answers)
    return Behaviour(ids[torch.as_tensor(labels).long()], ids[torch.as_tensor(others).long()], answer_N)


def of_pairs(pairs: MinimalPairs) -> tuple[Behaviour, Behaviour]:
    """What is asked of the clean texts, and the same of the corrupted ones: own is the clean text's answer in both."""
    return (
        Behaviour(pairs.own_N, pairs.other_N, pairs.clean_answer_N),
        Behaviour(pairs.own_N, pairs.other_N, pairs.corrupted_answer_N),
    )


def logit_differences(model: LanguageModel, hidden_VD: Tensor, own_V: Tensor, other_V: Tensor) -> Tensor:
    """logit(own) - logit(other) of each run, [V]; differentiable.

    Args:
        model: the model whose head gives the logits, soft cap included.
        hidden_VD: the final norm's output at the answer token.
        own_V: token ids, int64 [V].
        other_V: token ids, int64 [V].
    """
    logits_V2 = chosen_logits(model, hidden_VD, torch.stack([own_V, other_V], 1))
    return logits_V2[:, 0] - logits_V2[:, 1]


@torch.no_grad()
def measure(model: LanguageModel, hidden_VD: Tensor, base_VD: Tensor, own_V: Tensor, other_V: Tensor) -> Measures:
    """All measures of edited runs.

    Args:
        model: the model whose head gives the logits.
        hidden_VD: the final norm's output at the answer token of each edited run.
        base_VD: the same of the unedited run of its text.
        own_V: token ids, int64 [V].
        other_V: token ids, int64 [V].
    """
    parts = [
        _measured(model, *part)
        for part in zip(
            *(x.to(hidden_VD.device).split(rows_at_once(model)) for x in (hidden_VD, base_VD, own_V, other_V)),
            strict=True,
        )
    ]
    return Measures(*(torch.cat(each) for each in zip(*parts, strict=True)))


def _measured(
    model: LanguageModel, hidden_VD: Tensor, base_VD: Tensor, own_V: Tensor, other_V: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    distinct, of_run = torch.unique(base_VD, dim=0, return_inverse=True)  # many runs of few texts
    before, after_VV = logits_of(model, distinct), logits_of(model, hidden_VD)
    # in float32 the rounding of 50,000 terms is 6e-7, a hundred times the KL of logits that differ by 1e-4
    base_VV, logp_VV = (where_float64(x).double().log_softmax(-1) for x in (before, after_VV))
    base_VV = base_VV[of_run.to(base_VV.device)]
    kl_V = (base_VV.exp() * (base_VV - logp_VV)).sum(-1).clamp(min=0)
    own, other = own_V[:, None], other_V[:, None]
    before_V, after_V = ((x.gather(1, own) - x.gather(1, other))[:, 0] for x in (before[of_run], after_VV))
    return after_V, logp_VV.gather(1, own.to(logp_VV.device))[:, 0].exp(), kl_V, (after_V > 0) != (before_V > 0)


def headline(model: LanguageModel, behaviour: Behaviour | CustomBehaviour, hidden_VD: Tensor, text_V: Tensor) -> Tensor:
    """The behaviour of each run as one number, [V]: the logit difference, or what the custom function returns.

    Args:
        model: the model whose head gives the logits.
        behaviour: what is asked.
        hidden_VD: the final norm's output at the answer token.
        text_V: the text of each run, int64 [V].

    Raises:
        UsageError: the custom function does not return one finite number for each run.
    """
    if isinstance(behaviour, Behaviour):
        text_V = text_V.to(behaviour.own_N.device)
        return logit_differences(model, hidden_VD, behaviour.own_N[text_V], behaviour.other_N[text_V])
    runs = zip(hidden_VD.split(rows_at_once(model)), text_V.split(rows_at_once(model)), strict=True)
    return torch.cat([_custom(behaviour, logits_of(model, x_VD), rows_V) for x_VD, rows_V in runs])


def _custom(behaviour: CustomBehaviour, logits_VV: Tensor, text_V: Tensor) -> Tensor:
    got = behaviour.function(logits_VV, text_V)
    if not isinstance(got, Tensor) or tuple(got.shape) != (len(logits_VV),):
        kind = list(got.shape) if isinstance(got, Tensor) else type(got).__name__
        raise UsageError(
            f"behaviour {behaviour.name!a} must return a tensor [{len(logits_VV)}], a number for each run; got {kind}"
        )
    if not got.isfinite().all():
        raise UsageError(f"behaviour {behaviour.name!a} returned a number that is not finite; check it on these texts")
    return got


def loss_per_token(model: LanguageModel, texts: Sequence[Sequence[int]], edits: Edits | None = None) -> float:
    """The mean loss of predicting the texts' tokens, in nats per token; see `token_losses`.

    Raises:
        UsageError: an encoder-decoder, or a model without a head.
        DataError: no text has a token to predict.
    """
    losses = token_losses(model, texts, edits)
    if not sum(map(len, losses)):
        raise DataError("no text has a token to predict; give texts of two tokens or more")
    return float(torch.cat(losses).mean())


def reconstruction_loss(
    model: LanguageModel, sae: Sae, reads: Place, texts: Sequence[Sequence[int]], n_context: int = 0
) -> dict[str, Any]:
    """The loss on texts, and what is added to it where the reconstruction is spliced in; nothing without a token.

    Each token is predicted from those before it. Context tokens keep their activations: autoencoders are rarely trained
    on a BOS, whose activations are far from all others.

    Args:
        model: with a head, not an encoder-decoder.
        sae: the autoencoder.
        reads: the place that it reads.
        texts: token ids, context tokens included; the first `MEASURED_TOKENS` tokens are run.
        n_context: context tokens before each text.

    Returns:
        `loss` and `loss_added`, nats a token, and `tokens`, how many were predicted.
    """
    some, n = list[Sequence[int]](), 0
    for text in texts:
        if n >= MEASURED_TOKENS:
            break
        some.append(text[:MEASURED_TOKENS])
        n += len(some[-1])
    edited = [range(n_context, len(text)) for text in some]
    plain = torch.cat([torch.empty(0), *token_losses(model, some)])
    spliced = torch.cat([torch.empty(0), *token_losses(model, some, {reads: through(sae)}, edited)])
    if not len(plain):
        return {}
    return {"loss": float(plain.mean()), "loss_added": float((spliced - plain).mean()), "tokens": len(plain)}


@torch.no_grad()
def token_losses(
    model: LanguageModel,
    texts: Sequence[Sequence[int]],
    edits: Edits | None = None,
    edited: Sequence[Sequence[int]] | None = None,
) -> list[Tensor]:
    """The loss of each predicted token of each text, in nats, float64 on the CPU: a behaviour that needs no answers.

    Each token is predicted from those before it; the first of a text is not predicted. A masked language model predicts
    every 7th token, all of them masked at once. What exceeds the context is cut.

    Args:
        model: the model, with a head.
        texts: token ids, context tokens included.
        edits: point -> edit, of all texts alike or with a row for each; None runs the model as it is.
        edited: indices of the tokens that are edited, of each text; None edits all.

    Raises:
        UsageError: an encoder-decoder, a model without a head or without a loss, or `edited` of other texts.
    """
    if hasattr(model, "decode"):
        raise UsageError(
            f"the loss on texts is for models that read one text; {model.name} reads a source and a target"
        )
    check_head(model)
    if not (model.causal or model.fills_masks):
        raise UsageError(
            f"{model.name} predicts neither next tokens nor masked ones, so texts have no loss; take another"
        )
    if edited is not None and len(edited) != len(texts):
        raise UsageError(f"edited gives the tokens of {len(edited)} texts, got {len(texts)} texts; give those of each")
    found = [torch.empty(0, dtype=torch.float64) for _ in texts]
    for rows in _batches(model, texts):
        batch = [[int(i) for i in texts[row][: model.cfg.n_ctx]] for row in rows]
        at = None if edited is None else [edited[row] for row in rows]
        for row, losses in zip(rows, _losses(model, batch, edits or {}, torch.tensor(rows), at), strict=True):
            found[row] = losses
    return found


def _batches(model: LanguageModel, texts: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """The numbers of the texts that are not empty, shortest first, in batches of up to TOKENS tokens."""
    lengths = [min(len(text), model.cfg.n_ctx) for text in texts]
    batch: list[int] = []
    for row in sorted((row for row, length in enumerate(lengths) if length), key=lengths.__getitem__):
        full = (len(batch) + 1) * lengths[row] > TOKENS
        if batch and (full or (model.batching == "one length" and lengths[row] > lengths[batch[0]])):
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def _losses(
    model: LanguageModel, batch: list[list[int]], edits: Edits, rows: Tensor, edited: list[Sequence[int]] | None
) -> list[Tensor]:
    """The losses of the predicted tokens of each text of a batch, float64 on the CPU."""
    width = len(batch[-1])
    tokens = torch.tensor([row + [0] * (width - len(row)) for row in batch])
    real = torch.arange(width) < torch.tensor([len(row) for row in batch])[:, None]
    seen, at, from_ = tokens, real[:, 1:], slice(0, -1)
    targets = tokens[:, 1:]
    if not model.causal:
        seen, at = _masked(model, tokens, real)
        targets, from_ = tokens, slice(None)
    edited_BL = None if edited is None else torch.tensor([[i in one for i in range(width)] for one in map(set, edited)])
    with editing(model, edits, edited_BL, rows[:, None].expand(tokens.shape)):
        hidden_BLD = model(seen, attention_mask=None if real.all() else real, return_logits=False)
    n_predicted, at = at.sum(1).tolist(), at.to(hidden_BLD.device)
    hidden_TD, targets_T = hidden_BLD[:, from_][at], targets.to(hidden_BLD.device)[at]
    parts = zip(hidden_TD.split(rows_at_once(model)), targets_T.split(rows_at_once(model)), strict=True)
    # float32 has no number between 1 and 1 + 1.2e-7, so that its losses below 1e-6 have a digit at most
    logits = ((where_float64(logits_of(model, x_TD)).double(), y_T) for x_TD, y_T in parts)
    losses = [cross_entropy(x_TV, y_T.to(x_TV.device), reduction="none").cpu() for x_TV, y_T in logits]
    return list(torch.cat(losses).split(n_predicted)) if losses else [torch.empty(0).double() for _ in batch]


def _masked(model: LanguageModel, tokens: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
    """The tokens with every 7th of their own masked, and which these are, bool [B, L]."""
    _, mask = mask_token(model)
    tokenizer = model.need_tokenizer()
    not_words = [i for i in (tokenizer.bos_token_id, tokenizer.sep_token_id, mask) if i is not None]
    own = real & ~torch.isin(tokens, torch.tensor(not_words))
    at = own & (own.cumsum(1) % MASKED == MASKED // 2)  # the 3rd, the 10th, ...
    return tokens.masked_fill(at, mask), at
