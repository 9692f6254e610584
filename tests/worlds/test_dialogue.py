"""The world `dialogue`: what stands in its docstring holds."""

import ast

import numpy as np
import pytest
from chances import independent, uniform

from probekit.errors import UsageError
from probekit.tasks.base import SPLITS
from probekit.worlds.dialogue import SEP, VOCABULARY, dialogue, dialogues, prompt, questions
from probekit.worlds.grammar import split_by_checksum


def oracle(question: str) -> int:
    """The sum, by Python's own parser."""

    def value(node: ast.expr) -> int:
        if isinstance(node, ast.BinOp):
            sign = 1 if isinstance(node.op, ast.Add) else -1
            return value(node.left) + sign * value(node.right)
        assert isinstance(node, ast.Constant)
        return int(str(node.value))

    return value(ast.parse(question, mode="eval").body)


def test_every_question_stands_in_one_split_under_its_result():
    found = [(split, result, q) for split in SPLITS for result, qs in questions(split).items() for q in qs]
    assert len({question for *_, question in found}) == len(found)
    assert all(split == split_by_checksum(question) and result == oracle(question) for split, result, question in found)
    signs = [(1, 1), (1, -1), (-1, 1), (-1, -1)]
    values = [a + s * b + t * c for a in range(10) for b in range(10) for c in range(10) for s, t in signs]
    assert len(found) == sum(0 <= value <= 12 for value in values)


def test_probabilities_are_those_of_the_docstring():
    drawn = dialogues(6000, seed=1)
    assert uniform(map(len, drawn), (1, 2, 3))
    assert uniform([result for turns in drawn for _, result in turns], range(13))
    assert uniform([q for turns in drawn for q, result in turns if result == 3], questions("train")[3])
    several = [turns for turns in drawn if len(turns) > 1]
    assert independent([turns[0][1] for turns in several], [turns[1][1] for turns in several])
    assert dialogues(5, seed=1) == drawn[:5]


def test_labels_are_the_truth_and_the_text_ends_before_the_answer():
    task = dialogue((600, 300, 300), seed=2)
    task.check()
    for text, result in zip(task.inputs, task.labels["result"], strict=True):
        *said, end = [part.strip() for part in str(text).split(SEP)]
        assert end == ""
        assert set(str(text).split()) <= set(VOCABULARY)
        assert [str(oracle(question)) for question in said[:-1:2]] == said[1::2]
        assert result == oracle(said[-1])
    assert prompt([("3 + 4 - 2", 5), ("9 - 9 + 1", 1)]) == "3 + 4 - 2 <sep> 5 <sep> 9 - 9 + 1 <sep>"


def test_no_question_stands_in_two_splits():
    task = dialogue((600, 300, 300), seed=2)
    for split in SPLITS:
        texts = np.array(task.inputs)[task.splits == split]
        asked = {part.strip() for text in texts for part in text.split(SEP)[:-1:2]}
        assert {split_by_checksum(question) for question in asked} == {split}
    assert task.groups is not None
    last = [str(text).split(SEP)[-2].strip() for text in task.inputs]
    assert len(set(zip(last, task.groups.tolist(), strict=True))) == len(set(last)) == len(set(task.groups.tolist()))
    assert task.fingerprint() == dialogue((600, 300, 300), seed=2).fingerprint()
    with pytest.raises(UsageError, match="did you mean validation"):
        questions("valid")
