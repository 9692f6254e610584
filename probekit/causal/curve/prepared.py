"""A question with all that is the same for every place, computed once: what the model does before any edit.

Axes: N rows or texts, L position, V runs.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from probekit.activations.activations import ActivationSet
from probekit.causal.behaviour.measure import Behaviour, logit_differences, loss_per_token
from probekit.causal.behaviour.neutral import load_neutral
from probekit.causal.behaviour.numbers import NumberBehaviour, readings
from probekit.causal.branches.run import Trunk, run_trunk
from probekit.causal.curve.question import MEASURED, CausalQuestion, answers_at, tokens_of
from probekit.causal.curve.statistics import Gap, find_gap
from probekit.causal.erasure.completeness import FreshReading, read_afresh
from probekit.causal.interchange.counterparts import choose_counterparts, with_counterparts
from probekit.errors import DataError, UsageError
from probekit.evaluation.rows import resampling_units
from probekit.evaluation.scores.bootstrap import Bootstrap
from probekit.models.base import LanguageModel
from probekit.points import Place
from probekit.tasks.base import Task

MOST_FITTED, MOST_CHOOSING = 256, 64  # texts that the search is fitted to, and those that choose the restart
MOST_FRESH = 1000  # rows of validation, and of test, that fresh probes are trained and scored on
NEUTRAL = 64  # texts of the loss
LEAST_CLASS = 2  # train rows of each class of another label set


@dataclass(frozen=True, eq=False)
class NumberDifferences:
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
class AnsweredRows:
    """The rows of one split, their counterparts, and what the unedited model answers.

    Attributes:
        split: "validation" or "test".
        index: the rows' numbers in the task, int64 [N]; those without a counterpart are left out.
        left_out: how many these are.
        labels: class of each, int64 [N].
        counterpart: of each, among these rows, int64 [N].
        other: the counterpart's class, int64 [N].
        same: another text of each row's class, among these rows, int64 [N]; the row itself where there is none.
        behaviour: the tokens of the own class's answer and of the other class's.
        numbers: what is measured in place of their logit difference, where labels are numbers.
        trunk: the unedited runs.
        at_NL: the tokens that are edited, bool.
        difference: logit difference of each row, float64 [N].
        wholes: method -> what a row's effect is a share of, float64 [N].
        gaps: method -> the mean of these, and its interval.
        groups: rows with equal numbers are resampled together, [N]; None where each row is a unit.
        bootstrap: resamples of the rows, by group.
    """

    split: str
    index: np.ndarray
    left_out: int
    labels: np.ndarray
    counterpart: np.ndarray
    other: np.ndarray
    same: np.ndarray
    behaviour: Behaviour
    numbers: NumberDifferences | None
    trunk: Trunk
    at_NL: Tensor
    difference: np.ndarray
    wholes: dict[str, np.ndarray]
    gaps: dict[str, Gap]
    groups: np.ndarray | None
    bootstrap: Bootstrap

    def whole(self, method: str) -> np.ndarray | None:
        """What a row's effect is a share of, float64 [N]; None where its mean does not differ from 0."""
        return self.wholes[method] if self.gaps[method].is_clear else None


@dataclass(frozen=True, eq=False)
class SearchTexts:
    """Texts of the search, the same for every place.

    Attributes:
        index: their numbers in the task, int64 [N].
        is_train: which are train rows, [N].
        counterpart_N: of each, among these texts.
        token_N: the token that is edited.
        behaviour: what they are asked.
        trunk: the unedited runs.
    """

    index: np.ndarray
    is_train: np.ndarray
    counterpart_N: Tensor
    token_N: Tensor
    behaviour: Behaviour
    trunk: Trunk


@dataclass(frozen=True, eq=False)
class BeforeEdits:
    """What can be read before any edit, and the loss, to compare with what an edit leaves.

    Attributes:
        task: rows of validation and test.
        reading: what fresh probes read there; None if fresh probes were not asked for, or cannot be trained.
        neutral: texts of the loss.
        loss: on them, in nats a token; None where no text has a second token to predict.
    """

    task: Task
    reading: FreshReading | None
    neutral: list[list[int]]
    loss: float | None


@dataclass(frozen=True, eq=False)
class PreparedQuestion:
    """What every place needs.

    Attributes:
        question: what is asked.
        rows: "validation" and "test" -> the rows that effects are measured on.
        train: the rows that directions are fitted to.
        placebo_labels: label sets whose directions are placebos: all but that of the probes and that of the answers.
        search: texts of the search for the best direction; None where none is asked for or possible.
        before: to compare with what edits leave; None if nothing is edited.
    """

    question: CausalQuestion
    rows: dict[str, AnsweredRows]
    train: Task
    placebo_labels: list[str]
    search: SearchTexts | None = None
    before: BeforeEdits | None = None

    @property
    def sizes(self) -> dict[str, int]:
        """The rows of each split."""
        return {split: len(rows.index) for split, rows in self.rows.items()}


def answer_question(question: CausalQuestion) -> PreparedQuestion:
    """Run the model on the rows that effects are measured on: what patching needs, and no more."""
    train = question.acts.task.subset(question.train)
    placebos = [name for name in _other_label_sets(train, question.label) if name != question.answers_label]
    return PreparedQuestion(question, {split: answer_rows(question, split) for split in MEASURED}, train, placebos)


def prepare_edits(answered: PreparedQuestion) -> PreparedQuestion:
    """The same with what edits need: run the model on the texts of the search, and read what is there before edits.

    Raises:
        DataError: a file of neutral texts that cannot be read.
    """
    question = answered.question
    searches = question.options.das and "interchange" in question.edit_methods and question.behaviour is None
    try:
        search = search_texts(question) if searches else None
    except DataError:  # too few of the rows that were drawn for it have a counterpart: the rest needs no search
        search = None
    before = read_before_edits(question) if question.edit_methods else None
    return replace(answered, search=search, before=before)


def _other_label_sets(task: Task, label: str) -> list[str]:
    """The names of other label sets of classes, all of which have rows; one that is the label renamed is left out."""
    found = []
    for name, classes in task.label_names.items():
        values = np.asarray(task.labels[name]) if name in task.labels else None
        if name == label or len(classes) < 2 or values is None or values.ndim != 1 or values.dtype.kind not in "iu":
            continue
        counts = np.bincount(values[values >= 0], minlength=len(classes))
        if (values < 0).any() or counts.min() < LEAST_CLASS:
            continue
        pairs = len({*zip(values.tolist(), np.asarray(task.labels[label]).tolist(), strict=True)})
        if pairs > max(len(classes), len(task.label_names[label])):
            found.append(name)
    return found


def answer_rows(question: CausalQuestion, split: str) -> AnsweredRows:
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
    answer_N = answers_at(question, rows.index[some], texts)
    behaviour = _behaviour(question, rows.answers[some], counterpart, answer_N)
    _check_order(question, some, answer_N)
    trunk = run_trunk(model, texts, answer_N)
    hidden = trunk.hidden_ND
    with torch.no_grad():
        numbers = _numbers(question, rows.index[some], hidden, counterpart)
        every_N = torch.arange(len(some))
        own, crossed = (
            answer_differences(model, behaviour, numbers, x_ND, every_N).double().cpu().numpy()
            for x_ND in (hidden, hidden[torch.from_numpy(counterpart)])
        )
    # the gap between the classes, of which steering has its share, is twice the own logit difference
    wholes: dict[str, np.ndarray] = {"interchange": own - crossed, "erase": own, "steer": 2 * own}
    bootstrap = Bootstrap(len(some), options.seed, groups)
    size = float(max(np.abs(own).max(), np.abs(crossed).max()))
    return AnsweredRows(
        split=split,
        index=rows.index[some],
        left_out=len(every) - len(some),
        labels=labels,
        counterpart=counterpart,
        other=labels[counterpart],
        same=_of_the_same_class(labels, rows.answers[some], options.seed),
        behaviour=behaviour,
        numbers=numbers,
        trunk=trunk,
        at_NL=_edited(texts, rows.read[some], rows.n_bos, options.at),
        difference=own,
        wholes=wholes,
        gaps={method: find_gap(whole_N, size, bootstrap) for method, whole_N in wholes.items()},
        groups=groups,
        bootstrap=bootstrap,
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
    model: LanguageModel, behaviour: Behaviour, numbers: NumberDifferences | None, hidden_VD: Tensor, text_V: Tensor
) -> Tensor:
    """What is measured of each run, [V]: the logit difference of its text's answers, or that of its numbers."""
    if numbers is None:
        return logit_differences(model, hidden_VD, behaviour.own_N[text_V], behaviour.other_N[text_V])
    found_V = readings(model, numbers.behaviour, hidden_VD)
    return (found_V - numbers.middle_N[text_V].to(found_V)) * numbers.sign_N[text_V].to(found_V)


def _numbers(
    question: CausalQuestion, index: np.ndarray, hidden_ND: Tensor, counterpart: np.ndarray
) -> NumberDifferences | None:
    if question.behaviour is None or question.numbers is None:
        return None
    found_N = readings(question.model, question.behaviour, hidden_ND)
    label_N = torch.from_numpy(question.numbers[index])
    other = torch.from_numpy(counterpart)
    return NumberDifferences(question.behaviour, (found_N + found_N[other]) / 2, torch.sign(label_N - label_N[other]))


def _behaviour(question: CausalQuestion, classes: np.ndarray, counterpart: np.ndarray, answer_N: Tensor) -> Behaviour:
    """The tokens of each row's own answer, and of its counterpart's; of no meaning where labels are numbers.

    Args:
        question: with the token of each class.
        classes: of the answers, int64 [N].
        counterpart: number of each row's counterpart, int64 [N].
        answer_N: the token after which the model answers.
    """
    if question.behaviour is not None:  # no class has an answer of its own
        none_N = torch.zeros(len(classes)).long()
        return Behaviour(none_N, none_N, answer_N)
    tokens = torch.from_numpy(question.answer_C)
    return Behaviour(tokens[torch.from_numpy(classes)], tokens[torch.from_numpy(classes[counterpart])], answer_N)


def _of_the_same_class(labels: np.ndarray, answers: np.ndarray, seed: int) -> np.ndarray:
    """Another row of each row's class with the same answer, in random order; the row itself without one: int64 [N]."""
    rng, same = np.random.default_rng([seed, 4]), np.empty(len(labels), dtype=np.int64)
    _, kind = np.unique(np.stack([labels, answers]), axis=1, return_inverse=True)
    for one in np.unique(kind):
        rows = rng.permutation(np.flatnonzero(kind.ravel() == one))
        same[rows] = np.roll(rows, 1)
    return same


def _edited(texts: list[list[int]], read: np.ndarray, n_bos: int, at: str) -> Tensor:
    """The tokens that are edited: the one that is read, or all of the text's own."""
    position = torch.arange(max(map(len, texts)))
    if at == "read":
        return position == torch.from_numpy(np.asarray(read))[:, None]
    lengths = torch.tensor([len(text) for text in texts])[:, None]
    return (position >= n_bos) & (position < lengths)


def search_texts(question: CausalQuestion) -> SearchTexts:
    """Draw train rows for the search, and take validation rows of the run to choose the restart.

    Raises:
        DataError: no text of a split has a counterpart.
    """
    rng = np.random.default_rng([question.options.seed, 2])
    choosing = question.rows.index[question.rows.of("validation")]
    index = np.concatenate(
        [
            np.sort(rng.permutation(question.train)[:MOST_FITTED]),
            np.sort(rng.permutation(choosing)[:MOST_CHOOSING]),
        ]
    )
    task = question.acts.task
    answers = np.asarray(task.labels[question.answers_label])
    index = index[answers[index] >= 0]
    units = resampling_units(task)
    ids, positions, _ = tokens_of(question.model, question.acts, index)
    found = choose_counterparts(
        np.asarray(task.labels[question.label])[index],
        [len(text) for text in ids],
        None if units is None else np.asarray(units)[index],
        question.options.seed,
        ids,
        task.splits[index],
        answers[index],
    )
    kept, counterpart = with_counterparts(found)
    index, texts, read = index[kept], [ids[i] for i in kept], np.asarray(positions)[kept]
    trunk = run_trunk(question.model, texts, answers_at(question, index, texts))
    behaviour = _behaviour(question, answers[index], counterpart, trunk.answer_N)
    tokens, is_train = torch.from_numpy(read), task.splits[index] == "train"
    return SearchTexts(index, is_train, torch.from_numpy(counterpart), tokens, behaviour, trunk)


def read_before_edits(question: CausalQuestion) -> BeforeEdits:
    """Read the unedited activations afresh, and measure the loss of the unedited model.

    Raises:
        DataError: a file of neutral texts that cannot be read.
    """
    rng, splits = np.random.default_rng([question.options.seed, 3]), question.acts.task.splits
    rows = np.concatenate(
        [np.sort(rng.permutation(np.flatnonzero(splits == split))[:MOST_FRESH]) for split in MEASURED]
    )
    task, reading = question.acts.task.subset(rows), None
    if question.options.completeness:
        index = torch.from_numpy(rows)
        places = [Place(layer.point, layer.layer) for layer in question.layers]
        own = ActivationSet({place: question.acts[place][index] for place in places}, task)
        try:
            reading = read_afresh(own, seed=question.options.seed)
        except DataError:  # too few rows of a class: the rest of the run needs no fresh probes
            reading = None
    neutral = _neutral(question, rng)
    has_mask = question.model.fills_masks and question.model.tokenizer is not None  # which the loss of an encoder needs
    predicts = question.model.causal or has_mask
    loss = loss_per_token(question.model, neutral) if predicts and any(len(text) > 1 for text in neutral) else None
    return BeforeEdits(task, reading, neutral, loss)


def _neutral(question: CausalQuestion, rng: np.random.Generator) -> list[list[int]]:
    """Texts of a file, or texts of the task that no effect is measured on."""
    if question.options.neutral is None:
        rows = np.sort(rng.permutation(question.train)[:NEUTRAL])
        return [ids for ids in tokens_of(question.model, question.acts, rows)[0] if len(ids) > 1]
    return load_neutral(question.options.neutral, question.model, question.acts.meta.get("bos"))
