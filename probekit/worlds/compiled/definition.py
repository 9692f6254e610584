"""What a file of a compiled model holds: its program, its texts, and what is true of each variable by place."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from probekit.tasks.base import Task
from probekit.worlds.compiled.program import Compare, Head, Program, Weights, move
from probekit.worlds.grammar import Seed, choose, draw_splits, group_numbers, make_task, split_by_checksum

READ_AND_USED, READ, USED, NEITHER = "read and used", "read, not shown to be used", "used, not read", "neither"
IS_READ, NOT_READ = "read", "not read"  # where only reading is asked

FILLERS: tuple[str, ...] = (
    "amber",
    "birch",
    "cedar",
    "delta",
    "ember",
    "fjord",
    "glade",
    "heath",
    "islet",
    "juniper",
    "knoll",
    "lagoon",
)
LOUD = 3.0  # length of a filler along its axis, where variables are +-1: near half of the variance is theirs or more


@dataclass(frozen=True)
class Text:
    """A text and its labels.

    Attributes:
        words: before the answer.
        labels: label set -> class, number, or vector of numbers.
        answer: the word that the program answers.
    """

    words: Sequence[str]
    labels: Mapping[str, Any]
    answer: str


@dataclass(frozen=True)
class Truth:
    """What is true of a variable at the token that is read, as it follows from the program.

    Attributes:
        label: the label set.
        verdicts: at each place of the curve: the input of each block, then the output of the last.
        answers: the model's answer for each class of the label set that decides the answers, in order; for a label of
            numbers, the words of numbers that the model may answer; () where only reading is asked, of vectors.
        why: the verdicts, in words.
        answers_label: the label set that decides the answers, if it is another.
        needed: at each place, whether its linear erasure changes the answers; () where it is not asked.
        heads: "layer.head" of the heads that carry it: patching one moves the answer all the way, patching another not
            at all. None where it is not asked.
        in_part: with `heads`, those that carry a part of it alone, such as one of two words; what patching them does
            depends on the pairs, so that it is not asked.
        cue: another label set; None without.
        beyond: whether anything of it can be read that the cue does not explain.
    """

    label: str
    verdicts: Sequence[str]
    answers: Sequence[str]
    why: str
    answers_label: str | None = None
    needed: Sequence[bool] = ()
    heads: Sequence[str] | None = None
    in_part: Sequence[str] = ()
    cue: str | None = None
    beyond: str = NOT_READ


@dataclass(frozen=True)
class Compiled:
    """A compiled model with its texts.

    Attributes:
        program: the model.
        classes: label set -> names of its classes; () for numbers and vectors. The first is the task's target.
        texts: (generator, split) -> some texts with the same fillers, a group of the task where they are several.
        truths: of each variable.
    """

    program: Program
    classes: Mapping[str, Sequence[str]]
    texts: Callable[[np.random.Generator, str], list[Text]]
    truths: Sequence[Truth]

    def task(self, n: tuple[int, int, int] = (1000, 400, 400), seed: int = 0) -> Task:
        """The task with `n` texts for training, validation and test; the same arguments give the same task."""
        groups: list[int] = []

        def several(size: int, seed: Seed, split: str) -> list[Text]:
            rng, drawn = np.random.default_rng(seed), []
            while len(drawn) < size:
                drawn += (some := self.texts(rng, split))
                groups.extend([len(groups)] * len(some))
            del groups[len(groups) - len(drawn) + size :]
            return drawn[:size]

        texts = draw_splits(several, n, seed)
        labels = {name: ([text.labels[name] for text in texts], names) for name, names in self.classes.items()}
        grouped = {} if len(set(groups)) == len(groups) else {"groups": group_numbers(groups)}
        return make_task(self.program.name, n, seed, labels, inputs=[" ".join(x.words) for x in texts], **grouped)


def filler_words() -> dict[str, Weights]:
    """The fillers as words of a program; they mean nothing, and make activations vary in more than what is asked."""
    return {word: {f"filler:{word}": LOUD, "filler": 1.0} for word in FILLERS}


def read_fillers() -> Head:
    """A head that takes the mean of the fillers, so that they are in the stream of every token."""
    return Head(move("filler", "seen", FILLERS), [Compare(None, "filler")])


def draw_fillers(rng: np.random.Generator, n: int, split: str) -> list[str]:
    """Some fillers of a split: no two splits have the same in the same order."""
    while split_by_checksum(drawn := " ".join(choose(rng, FILLERS) for _ in range(n))) != split:
        pass
    return drawn.split()
