"""The rows of one split as the unedited model answers them.

Axes: N rows of the split, L position, D width of a place.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from probekit.causal.behaviour.measure import logit_differences
from probekit.causal.behaviour.numbers import NumberBehaviour, readings
from probekit.causal.branches.run import Trunk, run_trunk
from probekit.causal.curve.question import CausalQuestion, answers_at
from probekit.causal.curve.statistics import Gap, find_gap
from probekit.causal.interchange.counterparts import choose_counterparts, with_counterparts
from probekit.errors import UsageError
from probekit.evaluation.scores.bootstrap import Bootstrap
from probekit.models.base import LanguageModel


@dataclass(frozen=True, eq=False)
class Numbers:
    """The numbers that a model answers, as differences that are positive on the text's own side.

    A row's difference is its number minus the middle between its own and its counterpart's without edits, times the
    sign of the difference of their labels. So the counterpart's difference is minus the row's own, and a row flips
    where its number comes nearer to the counterpart's.

    Attributes:
        behaviour: the number.
        middle_N: [N].
        sign_N: 1 where the row's label is larger than the counterpart's, else -1.
    """

    behaviour: NumberBehaviour
    middle_N: Tensor
    sign_N: Tensor


@dataclass(frozen=True, eq=False)
class Side:
    """One split.

    Attributes:
        split: "validation" or "test".
        index: the rows' numbers in the task, int64 [N]; those without a counterpart are left out.
        left_out: how many these are.
        labels: class of each, int64 [N].
        counterpart: of each, among these rows, int64 [N].
        other: the counterpart's class, int64 [N].
        same: another text of each row's class, among these rows, int64 [N]; the row itself where there is none.
        own_N: token of the own class's answer.
        other_N: token of the other class's answer.
        numbers: what is measured in place of their logit difference, where labels are numbers.
        trunk: the unedited runs.
        at_NL: the tokens that are edited, bool.
        difference: logit difference of each row, float64 [N].
        wholes: method -> what a row's effect is a share of, float64 [N].
        gaps: method -> the mean of these, and its interval.
        groups: rows with equal numbers are resampled together, [N]; None where each row is a unit.
        bootstrap: resamples of the rows, by group.
        x_ND: activations at the place in question; empty where none is.
    """

    split: str
    index: np.ndarray
    left_out: int
    labels: np.ndarray
    counterpart: np.ndarray
    other: np.ndarray
    same: np.ndarray
    own_N: Tensor
    other_N: Tensor
    numbers: Numbers | None
    trunk: Trunk
    at_NL: Tensor
    difference: np.ndarray
    wholes: dict[str, np.ndarray]
    gaps: dict[str, Gap]
    groups: np.ndarray | None
    bootstrap: Bootstrap
    x_ND: Tensor

    def whole(self, method: str) -> np.ndarray | None:
        """What a row's effect is a share of, float64 [N]; None where its mean does not differ from 0."""
        return self.wholes[method] if self.gaps[method].is_clear else None


def find_side(question: CausalQuestion, split: str) -> Side:
    """Choose counterparts, and run the model on the rows of a split."""
    rows, model, options = question.rows, question.model, question.options
    every = rows.of(split)
    found = choose_counterparts(
        rows.labels[every],
        [len(rows.texts[i]) for i in every],
        None if rows.groups is None else rows.groups[every],
        options.seed,
        [rows.texts[i] for i in every],
        answers=rows.answers[every],
    )
    kept, counterpart = with_counterparts(found)
    some = every[kept]
    texts = [rows.texts[i] for i in some]
    labels, groups = rows.labels[some], None if rows.groups is None else rows.groups[some]
    own_N, other_N = own_and_other(question, rows.answers[some], counterpart)
    answer_N = answers_at(question, rows.index[some], texts)
    _check_order(question, some, answer_N)
    trunk = run_trunk(model, texts, answer_N)
    hidden = trunk.hidden_ND
    with torch.no_grad():
        numbers = _numbers(question, rows.index[some], hidden, counterpart)
        every_N = torch.arange(len(some))
        own, crossed = (
            answer_differences(model, own_N, other_N, numbers, x_ND, every_N).double().cpu().numpy()
            for x_ND in (hidden, hidden[torch.from_numpy(counterpart)])
        )
    # the gap between the classes, of which steering has its share, is twice the own logit difference
    wholes: dict[str, np.ndarray] = {"interchange": own - crossed, "erase": own, "steer": 2 * own}
    bootstrap = Bootstrap(len(some), options.seed, groups)
    size = float(max(np.abs(own).max(), np.abs(crossed).max()))
    return Side(
        split=split,
        index=rows.index[some],
        left_out=len(every) - len(some),
        labels=labels,
        counterpart=counterpart,
        other=labels[counterpart],
        same=_of_the_same_class(labels, options.seed),
        own_N=own_N,
        other_N=other_N,
        numbers=numbers,
        trunk=trunk,
        at_NL=_edited(texts, rows.read[some], rows.n_bos, options.at),
        difference=own,
        wholes=wholes,
        gaps={method: find_gap(whole_N, size, bootstrap) for method, whole_N in wholes.items()},
        groups=groups,
        bootstrap=bootstrap,
        x_ND=torch.empty(0),
    )


def _check_order(question: CausalQuestion, some: np.ndarray, answer_N: Tensor) -> None:
    """Raise a UsageError if a causal model answers before the token that is edited."""
    rows = question.rows
    late = np.flatnonzero(rows.read[some] > answer_N.numpy()) if question.model.causal else []
    if len(late) and question.options.at == "read":
        first = int(late[0])
        name = question.acts.task.ids[rows.index[some[first]]]
        raise UsageError(
            f"example {name!a}: the answer is read after token {int(answer_N[first])}, before the edited token "
            f"{int(rows.read[some][first])}, which cannot change it; name a later --answer-at, or probe an "
            "earlier token"
        )


def answer_differences(
    model: LanguageModel, own_N: Tensor, other_N: Tensor, numbers: Numbers | None, hidden_VD: Tensor, text_V: Tensor
) -> Tensor:
    """What is measured of each run, [V]: the logit difference of its text's answers, or that of its numbers."""
    if numbers is None:
        return logit_differences(model, hidden_VD, own_N[text_V], other_N[text_V])
    found_V = readings(model, numbers.behaviour, hidden_VD)
    return (found_V - numbers.middle_N[text_V].to(found_V)) * numbers.sign_N[text_V].to(found_V)


def _numbers(question: CausalQuestion, index: np.ndarray, hidden_ND: Tensor, counterpart: np.ndarray) -> Numbers | None:
    if question.behaviour is None or question.numbers is None:
        return None
    found_N = readings(question.model, question.behaviour, hidden_ND)
    label_N = torch.from_numpy(question.numbers[index])
    other = torch.from_numpy(counterpart)
    return Numbers(question.behaviour, (found_N + found_N[other]) / 2, torch.sign(label_N - label_N[other]))


def own_and_other(question: CausalQuestion, classes: np.ndarray, counterpart: np.ndarray) -> tuple[Tensor, Tensor]:
    """The tokens of each row's own answer, and of its counterpart's; of no meaning where labels are numbers.

    Args:
        question: with the token of each class.
        classes: of the answers, int64 [N].
        counterpart: number of each row's counterpart, int64 [N].
    """
    if question.behaviour is not None:  # no class has an answer of its own
        return torch.zeros(len(classes)).long(), torch.zeros(len(classes)).long()
    tokens = torch.from_numpy(question.answer_C)
    return tokens[torch.from_numpy(classes)], tokens[torch.from_numpy(classes[counterpart])]


def _of_the_same_class(labels: np.ndarray, seed: int) -> np.ndarray:
    """Another row of each row's class, in random order: int64 [N]."""
    rng, same = np.random.default_rng([seed, 4]), np.empty(len(labels), dtype=np.int64)
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        same[rows] = np.roll(rows, 1)
    return same


def _edited(texts: list[list[int]], read: np.ndarray, n_bos: int, at: str) -> Tensor:
    """The tokens that are edited: the one that is read, or all of the text's own."""
    position = torch.arange(max(map(len, texts)))
    if at == "read":
        return position == torch.from_numpy(np.asarray(read))[:, None]
    lengths = torch.tensor([len(text) for text in texts])[:, None]
    return (position >= n_bos) & (position < lengths)
