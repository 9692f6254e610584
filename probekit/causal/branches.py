"""Run a model from a layer on, for many edits of the same texts.

A *trunk* is the unedited run of some texts; a *branch* is one edited run of one of them.

Axes: N texts, V branches, L position, D d_model.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from probekit.interventions import Edits, editing
from probekit.models.base import LanguageModel


@dataclass(frozen=True, eq=False)
class Trunk:
    """The unedited run of some texts.

    Attributes:
        texts: token ids of each text, context tokens included.
        answer_N: the token of each text after which the model's answer is read, by default the last; int64 [N].
        hidden_ND: the final norm's output there.
    """

    texts: list[list[int]]
    answer_N: Tensor
    hidden_ND: Tensor


@dataclass(frozen=True, eq=False)
class Branches:
    """Edited runs.

    Attributes:
        layer: the layer of all edited points.
        text_V: the text of each branch, int64 [V].
        at_VL: the tokens that are edited, bool [V, L], L the longest text's length.
        edits: point -> edit; row v of an edit's tensors belongs to branch v.
    """

    layer: int
    text_V: Tensor
    at_VL: Tensor
    edits: Edits


@torch.no_grad()
def run_trunk(model: LanguageModel, texts: Sequence[Sequence[int]], answer_N: Tensor | None = None) -> Trunk:
    """Run the texts without edits."""
    rows = [list(text) for text in texts]
    answers = torch.tensor([len(row) - 1 for row in rows]) if answer_N is None else answer_N
    tokens, mask = _padded(rows)
    return Trunk(rows, answers, _hidden(model, tokens, mask, answers))


def run_branches(model: LanguageModel, trunk: Trunk, branches: Branches) -> Tensor:
    """The final norm's output at the answer token of each branch, [V, D]; gradients flow to the edits' tensors."""
    tokens, mask = _padded([trunk.texts[i] for i in branches.text_V.tolist()])
    at_VL = branches.at_VL[:, : tokens.shape[1]]
    rows_VL = torch.arange(len(tokens))[:, None].expand_as(tokens)
    with editing(model, branches.edits, at_VL, rows_VL):
        return _hidden(model, tokens, mask, trunk.answer_N[branches.text_V])


def _padded(texts: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Texts padded on the right, and which tokens are real: [V, L] each."""
    width = max(map(len, texts))
    tokens = torch.tensor([text + [0] * (width - len(text)) for text in texts])
    return tokens, torch.arange(width) < torch.tensor([len(text) for text in texts])[:, None]


def _hidden(model: LanguageModel, tokens: Tensor, mask: Tensor, answers: Tensor) -> Tensor:
    hidden_VLD = model(tokens, attention_mask=mask, return_logits=False)
    return hidden_VLD[torch.arange(len(tokens)), answers.to(hidden_VLD.device)]
