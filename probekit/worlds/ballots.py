"""The world `ballots`: who has more votes, a or b, and on paper of which colour?

    grey a b b a b a b ? grey b <eos>

The first word is the paper's colour, grey or blue, 1/2 each. Then come 7, 9 or 11 votes, all lengths equally likely;
each vote is a or b, 1/2 each. All choices are independent. After the "?" the model says the colour, a copy of the first
word, and then the winner. So the colour is the very word that is read when the winner is said, and the winner does not
depend on it: a feature that is copied, can be read, and is of no use there.

Splits separate the *votes* by checksum: half for training, a quarter each for validation and test. Both colours of the
same votes are in one split.

The probed text ends with the second colour and is read there, before the winner is said. Label sets: `winner` (the
target: a, b) and `colour` (grey, blue). The task has each draw of votes in both colours, one after the other, so that
colour and winner are uncorrelated in every split, not only in expectation: else the difference of the two colours'
means has a part along the winner, by chance. The votes are the group.
"""

from itertools import product
from typing import NamedTuple

import numpy as np

from probekit.models.examples import Example
from probekit.options import TrainingSettings
from probekit.tasks.base import Task
from probekit.worlds.definition import World, gpt2_config, next_word_example
from probekit.worlds.grammar import EOS, Seed, choose, draw_splits, draws, group_numbers, make_task, split_by_checksum

LENGTHS = (7, 9, 11)
VOTES = ("a", "b")
COLOURS = ("grey", "blue")
VOCABULARY: list[str] = [EOS, *COLOURS, *VOTES, "?"]


class Ballot(NamedTuple):
    """A colour and the votes, without blanks."""

    colour: str
    votes: str

    @property
    def words(self) -> list[str]:
        """The probed text: all words before the winner."""
        return [self.colour, *self.votes, "?", self.colour]

    @property
    def winner(self) -> int:
        """The index of the vote that occurs more often."""
        return int(self.votes.count("b") > self.votes.count("a"))


def ballot(rng: np.random.Generator, split: str) -> Ballot:
    """A ballot of one split."""
    length, colour = choose(rng, LENGTHS), choose(rng, COLOURS)
    while split_by_checksum(votes := "".join(choose(rng, VOTES) for _ in range(length))) != split:
        pass
    return Ballot(colour, votes)


def all_ballots() -> list[Ballot]:
    """Every ballot of the world, in all splits."""
    votes = ["".join(some) for length in LENGTHS for some in product(VOTES, repeat=length)]
    return [Ballot(colour, one) for one in votes for colour in COLOURS]


def ballots(n: tuple[int, int, int] = (1000, 250, 500), seed: int = 0) -> Task:
    """The task with `n` texts for training, validation and test; the same arguments give the same task."""
    drawn = draw_splits(_in_both_colours, n, seed)
    return make_task(
        "ballots",
        n,
        seed,
        {
            "winner": ([one.winner for one in drawn], VOTES),
            "colour": ([COLOURS.index(one.colour) for one in drawn], COLOURS),
        },
        inputs=[" ".join(one.words) for one in drawn],
        groups=group_numbers([one.votes for one in drawn]),
    )


def _in_both_colours(n: int, seed: Seed, split: str) -> list[Ballot]:
    each = draws(ballot, (n + 1) // 2, seed, split)
    return [Ballot(colour, one.votes) for one in each for colour in COLOURS][:n]


def examples(split: str, n: int, seed: Seed) -> list[Example]:
    """`n` ballots of a split; the targets are the colour after the "?", the winner and <eos>."""
    drawn = draws(ballot, n, seed, split)
    # every input but "?" and what follows it is a free choice, which nothing can predict
    return [next_word_example(VOCABULARY, [*one.words, VOTES[one.winner], EOS], len(one.votes) + 1) for one in drawn]


WORLD = World(
    name="ballots-gpt",
    task="ballots",
    vocabulary=VOCABULARY,
    make_config=lambda: gpt2_config(VOCABULARY, d_model=32, n_heads=2, n_layers=2, n_ctx=16, init_std=0.1),
    settings=TrainingSettings(steps=600, batch_size=64, learning_rate=3e-3, warm_up_steps=50),
    examples=examples,
    prompt="grey a b b a b b a ?",
)
TASKS = {"ballots": ballots}
