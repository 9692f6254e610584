"""Behaviours that are numbers: the expected value of answers that are numbers, or a linear readout of the output.

Axes: V runs, K answers, D d_model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from probekit.causal.behaviour.answers import answer_ids
from probekit.causal.behaviour.unembedding import chosen_logits
from probekit.errors import UsageError
from probekit.models.base import LanguageModel


@dataclass(frozen=True, eq=False)
class NumberBehaviour:
    """What a model answers where labels are numbers.

    Attributes:
        token_K: token id of each answer, int64; none where there is a readout.
        value_K: the number that each stands for, float64.
        readout_D: of the final norm's output at the answer token, float64; None for the expected value.
    """

    token_K: Tensor
    value_K: Tensor
    readout_D: Tensor | None = None

    @property
    def name(self) -> str:
        """For tables and sentences."""
        return "expected answer" if self.readout_D is None else "linear readout"


def number_behaviour(model: LanguageModel, answers: Any, readout: Any, texts: Sequence[Any]) -> NumberBehaviour:
    """The behaviour that some answers, or a readout, define.

    Args:
        model: the model that will answer.
        answers: words that are numbers, or word (or token id) -> number; None with a readout.
        readout: [D], or None.
        texts: as for `answer_ids`.

    Raises:
        UsageError: neither or both, answers that are no numbers, or a readout of another width.
    """
    if (answers is None) == (readout is None):
        raise UsageError(
            "a label of numbers needs answers that are numbers, such as --answers 0,1,2,3, or in Python readout=[...], "
            "one of the two"
        )
    if readout is not None:
        readout_D = torch.as_tensor(readout, dtype=torch.float64)
        if len(readout_D) != model.cfg.d_model:
            raise UsageError(f"readout is [{model.cfg.d_model}], the width of {model.name}; got [{len(readout_D)}]")
        return NumberBehaviour(torch.empty(0).long(), torch.empty(0).double(), readout_D)
    try:
        values = [float(one) for one in (answers.values() if isinstance(answers, Mapping) else answers)]
    except (TypeError, ValueError):
        raise UsageError(
            f"answers to a label of numbers are numbers, such as 0,1,2,3, or in Python a dict word -> number; got "
            f"{answers!a:.60}"
        ) from None
    return NumberBehaviour(torch.tensor(answer_ids(model, list(answers), texts)), torch.tensor(values).double())


def readings(model: LanguageModel, behaviour: NumberBehaviour, hidden_VD: Tensor) -> Tensor:
    """The number that each run answers, [V]: sum over k of p(k) value(k), p among the answers alone, or the readout."""
    if behaviour.readout_D is not None:
        return hidden_VD @ behaviour.readout_D.to(hidden_VD)
    token_VK = behaviour.token_K.expand(len(hidden_VD), -1)
    shares_VK = chosen_logits(model, hidden_VD, token_VK).softmax(-1)
    return shares_VK @ behaviour.value_K.to(shares_VK)
