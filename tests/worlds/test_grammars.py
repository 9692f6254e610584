"""The worlds' grammars: labels, examples and splits are those of an oracle, and draws have the stated probabilities.

The oracles read finished texts and share no code with the grammars. That all splits and seeds are disjoint, and that
every label set can be probed, is in `tests/tasks/test_task_base.py`.
"""

import ast
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pytest
from chances import fits, independent, uniform

import probekit as pk
from probekit.errors import UsageError
from probekit.models.examples import IGNORE
from probekit.tasks.base import SPLITS
from probekit.worlds import ballots, brackets, built_in_task, counting, dialogue, honesty, ranking, spans, world
from probekit.worlds.grammar import QUARTERS, draws, split_by_checksum

# oracles ------------------------------------------------------------------------------------------------------------


def balanced(word: str) -> bool:
    """Balanced is what vanishes when neighbours that fit are taken out again and again."""
    while "()" in word:
        word = word.replace("()", "")
    return not word


def ranks(items: list[int]) -> list[int]:
    """Ranks from all pairs at once."""
    x = np.array(items)
    return np.tril(x[None, :] <= x[:, None], -1).sum(1).tolist()


def result(question: str) -> int:
    """The sum, by Python's own parser."""

    def value(node: ast.expr) -> int:
        if isinstance(node, ast.BinOp):
            return value(node.left) + (1 if isinstance(node.op, ast.Add) else -1) * value(node.right)
        assert isinstance(node, ast.Constant)
        return int(str(node.value))

    return value(ast.parse(question, mode="eval").body)


def numbers(words: list[str]) -> list[int]:
    """The numbers of a span, from one that is visible."""
    at = next(i for i, word in enumerate(words) if word != "[MASK]")
    first = int(words[at]) - at
    assert words == [word if word == "[MASK]" else str(first + i) for i, word in enumerate(words)]
    return [*range(first, first + len(words))]


def questions(words: list[str]) -> list[str]:
    """Those of a dialogue that ends with a separator; the answers to all but the last are right."""
    *parts, end = [part.strip() for part in " ".join(words).split("<sep>")]
    assert end == ""
    assert [str(result(question)) for question in parts[: len(parts) // 2 * 2 : 2]] == parts[1::2]
    return parts[::2]


def ballot_labels(words: list[str], _: Any) -> dict[str, int]:
    colour, *votes, question, last = words
    assert (question, last) == ("?", colour)
    return {"winner": "ab".index(sorted(votes)[len(votes) // 2]), "colour": ["grey", "blue"].index(colour)}


def bracket_labels(words: list[str], _: Any) -> dict[str, int]:
    assert words[-1] == "?"
    return {"balanced": balanced("".join(words[:-1]))}


def depth_labels(words: list[str], place: Any) -> dict[str, int]:
    assert words[place] in "()"
    before = words[: place + 1]
    return {"depth": before.count("(") - before.count(")")}


def counting_labels(words: list[str], _: Any) -> dict[str, int]:
    read = [int(word) for word in words]
    assert read == [*range(read[0], read[-1] + 1)]
    return {"stops": read[-1] >= 42, "number": read[-1]}


def span_labels(words: list[str], place: Any) -> dict[str, int]:
    assert words[place] == "[MASK]"
    return {"hidden": numbers(words)[place], "mean": bool(np.mean(numbers(words)) > 15.5)}


@dataclass(frozen=True)
class Oracle:
    """What a finished text says.

    Attributes:
        labels: (words, place that is read) -> label of each label set.
        keys: words -> what the splits separate.
        group: words -> what the group is; None without groups.
    """

    labels: Callable[[list[str], Any], dict[str, int]]
    keys: Callable[[list[str]], list[str]]
    group: Callable[[list[str]], str] | None = None


ORACLES = {
    "ballots": Oracle(ballot_labels, lambda w: ["".join(w[1:-2])], lambda w: "".join(w[1:-2])),
    "brackets": Oracle(bracket_labels, lambda w: ["".join(w[:-1])]),
    "brackets-depth": Oracle(depth_labels, lambda w: ["".join(w[:-1])]),
    "dialogue": Oracle(lambda w, _: {"result": result(questions(w)[-1])}, questions, lambda w: questions(w)[-1]),
    "ranking": Oracle(lambda w, place: {"rank": ranks([*map(int, w)])[place]}, lambda w: [" ".join(w)]),
    "spans": Oracle(span_labels, lambda w: [" ".join(w)]),
    "counting": Oracle(counting_labels, lambda w: [], lambda w: w[0]),
}


@pytest.mark.parametrize("name", ORACLES)
def test_labels_splits_and_groups_are_those_of_the_texts(name):
    sizes = {} if name == "counting" else {"n": (600, 300, 301)}
    task, oracle = built_in_task(name, seed=2, **sizes), ORACLES[name]
    places = task.position if isinstance(task.position, np.ndarray) else [None] * len(task)
    words = [str(text).split() for text in task.inputs]
    assert {word for one in words for word in one} <= set(world(name).vocabulary)
    for i, (one, place) in enumerate(zip(words, places, strict=True)):
        assert oracle.labels(one, place) == {label_set: labels[i] for label_set, labels in task.labels.items()}
        assert {split_by_checksum(key) for key in oracle.keys(one)} <= {task.splits[i]}
    assert (task.groups is None) == (oracle.group is None)
    if task.groups is not None and oracle.group is not None:
        keys = [oracle.group(one) for one in words]
        assert len(set(keys)) == len(set(task.groups.tolist())) == len({*zip(keys, task.groups.tolist(), strict=True)})


# examples -----------------------------------------------------------------------------------------------------------
# (words read, source) -> the words to be said, one for each that is read; None: not learned


def counting_says(read: list[str], _: Any) -> list[str | None]:
    return ["<eos>" if int(word) >= 42 else str(int(word) + 1) for word in read]


def ranking_says(read: list[str], source: list[str]) -> list[str | None]:
    said = [*map(str, ranks([int(word) for word in source])), "<eos>"]
    assert read == ["<bos>", *said[:-1]]
    return [*said]


def spans_says(read: list[str], _: Any) -> list[str | None]:
    assert (read[0], read[-1]) == ("[CLS]", "[SEP]")
    hidden = [str(n) if w == "[MASK]" else None for n, w in zip(numbers(read[1:-1]), read[1:-1], strict=True)]
    return [None, *hidden, None]


def dialogue_says(read: list[str], _: Any) -> list[str | None]:
    questions(read)
    said: list[str | None] = []
    for asked in " ".join(read).split(" <sep>")[:-1:2]:
        said += [None] * len(asked.split()) + [str(result(asked.strip())), "<sep>", None]
    return [*said[:-1], "<eos>"]


def brackets_says(read: list[str], _: Any) -> list[str | None]:
    assert read[-2:] == ["?", "yes" if balanced("".join(read[:-2])) else "no"]
    return [*read[1:], "<eos>"]


def ballots_says(read: list[str], _: Any) -> list[str | None]:
    winner = "ab"[ballot_labels(read[:-1], None)["winner"]]
    assert read[-1] == winner
    return [None] * (len(read) - 3) + [read[0], winner, "<eos>"]


SAYS: dict[str, Callable[[list[str], Any], list[str | None]]] = {
    "counting": counting_says,
    "ranking": ranking_says,
    "spans": spans_says,
    "dialogue": dialogue_says,
    "brackets": brackets_says,
    "ballots": ballots_says,
}
KEYS: dict[str, Callable[[list[str]], list[str]]] = {  # what no example for the exam shares with those to learn from
    "counting": lambda read: [read[0]],
    "spans": lambda read: [" ".join(read)],
    "dialogue": questions,
    "brackets": lambda read: ["".join(read[:-2])],
    "ballots": lambda read: ["".join(read[1:-3])],
}


@pytest.mark.parametrize("name", SAYS)
def test_examples_say_the_truth_and_the_exam_was_never_learned(name):
    one = world(name)

    def text(ids: list[int] | None) -> list[str]:
        return [one.vocabulary[i] for i in ids or []]

    learned, asked = one.examples("train", 300, 1), one.examples("test", 300, 2)
    for example in learned + asked:
        read, source = text(example.tokens), text(example.source)
        said = [None if target == IGNORE else one.vocabulary[target] for target in example.targets]
        wanted = SAYS[name](read, source)
        if name == "brackets" and example in asked:  # brackets cannot be predicted
            wanted = [None] * (len(read) - 2) + wanted[-2:]
        assert said == wanted
        assert example.label == (np.mean(numbers(read[1:-1])) > 15.5 if name == "spans" else None)
    keys = KEYS.get(name, lambda read: [" ".join(read)])
    of = [{key for e in part for key in keys(text(e.source or e.tokens))} for part in (learned, asked)]
    assert of[0].isdisjoint(of[1])
    assert len(asked) == (21 if name == "counting" else 300)


# draws --------------------------------------------------------------------------------------------------------------

GRAMMARS = {
    "ballots": ballots.ballot,
    "brackets": brackets.bracket_word,
    "dialogue": dialogue.turns,
    "honesty": honesty.chat,
    "ranking": ranking.item_list,
    "spans": spans.masked_span,
}


@pytest.mark.parametrize("name", GRAMMARS)
def test_a_seed_decides_every_draw_and_a_split_is_one_of_three(name):
    assert draws(GRAMMARS[name], 3, seed=1) == draws(GRAMMARS[name], 9, seed=1)[:3]
    with pytest.raises(UsageError, match="did you mean train"):
        draws(GRAMMARS[name], 1, split="trian")


def test_ballots():
    drawn = draws(ballots.ballot, 4000, seed=1)
    assert uniform([len(one.votes) for one in drawn], (7, 9, 11))
    assert uniform([one.colour for one in drawn], ("grey", "blue"))
    assert uniform([one.votes[4] for one in drawn], "ab")
    assert independent([one.colour for one in drawn], [one.winner for one in drawn])
    assert independent([one.colour for one in drawn], [len(one.votes) for one in drawn])
    every = ballots.all_ballots()
    assert len(every) == len(set(every)) == 2 * sum(2**length for length in (7, 9, 11))
    assert {one for split in SPLITS for one in draws(ballots.ballot, 300, 0, split)} <= set(every)


def test_both_colours_of_the_same_votes_follow_each_other():
    task = ballots.ballots((200, 50, 51))
    texts = [str(text).split() for text in task.inputs]
    for one, other in zip(texts[0:300:2], texts[1:300:2], strict=True):
        assert (one[0], other[0], one[1:-1]) == ("grey", "blue", other[1:-1])
    assert len(texts) == 301


def test_brackets_of_each_kind_are_uniform():
    words = ["".join(word) for word in product("()", repeat=8)]  # of four pairs
    right, rng = [word for word in words if balanced(word)], np.random.default_rng(0)
    assert len(right) == 14  # Catalan
    assert uniform([brackets._balanced(rng, 4) for _ in range(3000)], right)
    wrong = [word for word in words if word.count("(") == 4 and not balanced(word)]
    assert uniform([brackets._shuffled(rng, 4) for _ in range(3000)], wrong)
    turned = Counter(word[:i] + ")("[word[i] == ")"] + word[i + 1 :] for word in right for i in range(8))
    found = Counter(brackets._with_one_reversed(rng, 4) for _ in range(3000))
    assert set(found) <= set(turned)
    assert fits([found[word] for word in turned], [n / turned.total() for n in turned.values()])


@pytest.mark.parametrize("split", SPLITS)
def test_brackets(split):
    drawn = draws(brackets.bracket_word, 4000, 1, split)
    assert uniform([len(word) for word in drawn], (8, 10, 12, 14, 16))
    assert uniform(map(balanced, drawn), (False, True))
    assert uniform([word.count("(") == word.count(")") for word in drawn if not balanced(word)], (False, True))
    depths = brackets.brackets_depth(tuple(2000 * (one == split) for one in SPLITS), seed=3).labels["depth"]  # pyright: ignore[reportArgumentType]
    assert uniform(depths.tolist(), range(5))


def test_counting():
    drawn = counting.counts(8000, seed=1)
    first = [int(count[0]) for count in drawn]
    assert all(
        count == [*map(str, range(start, max(43, start + 1))), "<eos>"]
        for count, start in zip(drawn, first, strict=True)
    )
    low, high = [start for start in first if start <= 42], [start for start in first if start > 42]
    assert fits([len(low), len(high)], [3 / 4, 1 / 4])
    assert uniform(low, [start for start in range(43) if start % 4 in (0, 1)])
    assert uniform(high, range(43, 100))
    assert {start for start in range(43) if start % 4 > 1} <= {int(w) for count in drawn for w in count[1:-1]} | {2, 3}
    with pytest.raises(UsageError, match="did you mean train"):
        counting.starts("tain")


def test_half_of_each_split_of_counting_stops_and_there_are_no_more_texts():
    """Half of them stop, so that twice the rarer kind is the most: the 50 starts of the training split stop once."""
    task = counting.counting()
    assert len(set(map(str, task.inputs))) == len(task)
    for split in SPLITS:
        here = task.splits == split
        assert task.labels["stops"][here].mean() == 0.5
        assert {QUARTERS[int(str(text).split()[0]) % 4] for text in np.array(task.inputs)[here]} == {split}
    most = 2 * sum(start % 4 in (0, 1) for start in range(100))
    assert (counting.counting((most, 2, 2)).splits == "train").sum() == most
    for n in (most + 2, most - 1, -2):
        with pytest.raises(UsageError, match=rf"an even number of texts, at most {most} for train; got {n}"):
            counting.counting((n, 2, 2))


def test_dialogue():
    found = [(split, of, q) for split in SPLITS for of, qs in dialogue.questions(split).items() for q in qs]
    assert len({question for *_, question in found}) == len(found)
    assert all(split == split_by_checksum(question) and of == result(question) for split, of, question in found)
    signs = [(1, 1), (1, -1), (-1, 1), (-1, -1)]
    values = [a + s * b + t * c for a in range(10) for b in range(10) for c in range(10) for s, t in signs]
    assert len(found) == sum(0 <= value <= 12 for value in values)
    drawn = draws(dialogue.turns, 6000, seed=1)
    assert uniform(map(len, drawn), (1, 2, 3))
    assert uniform([of for turns in drawn for _, of in turns], range(13))
    assert uniform([q for turns in drawn for q, of in turns if of == 3], dialogue.questions("train")[3])
    several = [turns for turns in drawn if len(turns) > 1]
    assert independent([turns[0][1] for turns in several], [turns[1][1] for turns in several])


def test_ranking():
    drawn = draws(ranking.item_list, 6000, seed=1)
    assert uniform(map(len, drawn), range(5, 9))
    assert uniform([item for items in drawn for item in items], range(16))
    assert independent([items[0] for items in drawn], [items[1] for items in drawn])


def test_the_place_that_ranking_reads_says_nothing_of_the_rank():
    task = ranking.ranking((4000, 400, 400), seed=1)
    assert isinstance(task.position, np.ndarray)
    for text, target in zip(task.inputs, task.targets or [], strict=True):
        items = [int(word) for word in str(text).split()]
        assert str(target).split() == ["<bos>", *map(str, ranks(items)[:-1])]  # the same place in both
    length = np.array([len(str(text).split()) for text in task.inputs])
    assert uniform(length.tolist(), range(5, 9))
    assert uniform(task.labels["rank"].tolist(), range(5))
    assert independent(task.labels["rank"], task.position)
    assert all(uniform(task.position[length == k].tolist(), range(4, k)) for k in range(6, 9))
    assert set(task.position[length == 5].tolist()) == {4}


SPANS = [(first, n) for n in range(4, 9) for first in range(33 - n) if np.mean(range(first, first + n)) != 15.5]


@pytest.fixture(scope="module")
def drawn_spans():
    return draws(spans.masked_span, 12_000, seed=1)


def share_of_split(number: int, first: int, length: int) -> float:
    """The probability that coins for the span's other numbers make a text of the training split, counted out."""
    share = 0.0
    for hidden in product((False, True), repeat=length):
        words = ["[MASK]" if h else str(first + k) for k, h in enumerate(hidden)]
        if hidden[number - first] and not all(hidden) and split_by_checksum(" ".join(words)) == "train":
            share += 0.25 ** (sum(hidden) - 1) * 0.75 ** (length - sum(hidden))
    return share


@pytest.mark.parametrize("number", [0, 13, 31])
def test_spans_that_contain_a_number(drawn_spans, number):
    held = [(a, n) for a, n in SPANS if a <= number < a + n]
    shares = [share_of_split(number, *span) for span in held]
    counts = Counter((s.first, s.length) for s in drawn_spans if s.first + s.place == number)
    assert set(counts) <= set(held)
    assert fits([counts[span] for span in held], [share / sum(shares) for share in shares])


def test_coins_of_spans(drawn_spans):
    """In long spans, where the draws that leave nothing to see hardly matter."""
    long = [span for span in drawn_spans if span.length == 8]
    assert all(span.hidden[span.place] for span in drawn_spans)
    assert not any(all(span.hidden) for span in drawn_spans)
    hidden = sum(sum(span.hidden) - 1 for span in long)
    assert abs(hidden / (7 * len(long)) - 0.25) < 4 * np.sqrt(0.25 * 0.75 / (7 * len(long)))


@pytest.mark.parametrize("split", SPLITS)
def test_spans_of_a_split(split):
    mine = draws(spans.masked_span, 4000, 5, split)
    assert uniform([span.first + span.place for span in mine], range(32))
    assert abs(np.mean([span.above for span in mine]) - 0.5) < 0.05
    assert {(span.first, span.length) for span in mine} <= set(SPANS)


def test_a_task_reads_its_own_places_unless_another_position_is_asked_for():
    task = pk.load_task("spans", limit=64)
    assert isinstance(task.position, np.ndarray)
    assert pk.load_task("spans", limit=64, position="first").position == "first"
