"""The world `ballots`: what stands in its docstring holds."""

from collections import Counter
from itertools import groupby

import numpy as np
from chances import independent, uniform

from probekit.tasks.base import SPLITS
from probekit.worlds.ballots import COLOURS, LENGTHS, all_ballots, ballots, drawn_ballots, examples


def test_the_colour_is_copied_and_the_winner_is_the_more_frequent_vote():
    task = ballots((200, 50, 50))
    task.check()
    for text, winner, colour in zip(task.inputs, task.labels["winner"], task.labels["colour"], strict=True):
        first, *votes, question, last = str(text).split()
        assert (question, first, last) == ("?", COLOURS[colour], COLOURS[colour])
        [(most, n), *rest] = Counter(votes).most_common()
        assert "ab"[winner] == most
        assert not rest or rest[0][1] < n


def test_probabilities_are_those_of_the_docstring():
    drawn = drawn_ballots(4000, seed=1)
    assert uniform([len(one.votes) for one in drawn], LENGTHS)
    assert uniform([one.colour for one in drawn], COLOURS)
    assert uniform([one.votes[4] for one in drawn], "ab")
    assert independent([one.colour for one in drawn], [one.winner for one in drawn])
    assert independent([one.colour for one in drawn], [len(one.votes) for one in drawn])
    assert drawn_ballots(5, seed=1) == drawn[:5]


def test_both_colours_of_the_same_votes_follow_each_other():
    task = ballots((200, 50, 51))
    texts = [str(text).split() for text in task.inputs]
    for one, other in zip(texts[0:300:2], texts[1:300:2], strict=True):
        assert (one[0], other[0], one[1:-1]) == (*COLOURS, other[1:-1])
    balanced = task.subset(np.arange(300))
    winner, colour = balanced.labels["winner"], balanced.labels["colour"]
    assert winner[colour == 0].sum() == winner[colour == 1].sum()


def test_splits_separate_votes_and_these_are_the_group():
    task = ballots()
    votes = [str(text).split()[1:-2] for text in task.inputs]
    seen = [{tuple(votes[i]) for i in np.flatnonzero(task.splits == split)} for split in SPLITS]
    assert sum(map(len, seen)) == len(set.union(*seen))
    assert task.groups is not None
    by_group = sorted(zip(task.groups.tolist(), votes, strict=True))
    assert all(len({tuple(v) for _, v in rows}) == 1 for _, rows in groupby(by_group, lambda row: row[0]))
    assert len(set(task.groups.tolist())) == len(set(map(tuple, votes)))


def test_every_ballot_is_there_once_in_both_colours():
    every = all_ballots()
    assert len(every) == len(set(every)) == 2 * sum(2**length for length in LENGTHS)
    assert {one for split in SPLITS for one in drawn_ballots(300, 0, split)} <= set(every)


def test_only_what_can_be_known_is_learned():
    for example in examples("test", 20, 0):
        said = [k for k, target in enumerate(example.targets) if target >= 0]
        assert said == list(range(len(example.tokens) - 3, len(example.tokens)))
        assert example.targets[said[0]] == example.tokens[0] == example.tokens[-2]
