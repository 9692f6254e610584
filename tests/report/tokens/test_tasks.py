"""Words of texts, labels of tokens, several tokens of a text, and runs without what the view needs."""

import itertools

import numpy as np
import pytest

from probekit.activations import extract
from probekit.errors import UsageError
from probekit.evaluation import train_probes
from probekit.options.tokens import TokenOptions
from probekit.report.tokens.data import TRAINED, TokenScores
from probekit.report.tokens.find import Shown, view_of_results
from probekit.report.tokens.run import tokens_of_run
from probekit.tasks.base import Task

NOUNS = ["doctor", "doctors", "key", "keys", "girl", "girls", "boat", "boats"]
QUICK = {"quick": True, "baselines": False}


def texts(n: int = 80) -> list[str]:
    rng = np.random.default_rng(0)
    return [f"the {rng.choice(NOUNS)} near the {rng.choice(NOUNS)}" for _ in range(n)]


def marked(view: TokenScores) -> list[list[str]]:
    """The trained tokens of each text."""
    each = [range(first, last) for first, last in itertools.pairwise(view.offsets.tolist())]
    return [[view.pieces[t].strip() for t in one if view.marks[t] & TRAINED] for one in each]


def test_words_are_marked_in_their_texts(agreement):
    _, model, _ = agreement
    inputs = texts()
    spans = [(4, 4 + len(text.split()[1])) for text in inputs]
    labels = ["many" if text.split()[1].endswith("s") else "one" for text in inputs]
    task = Task("words", inputs, labels, spans=spans)  # pyright: ignore[reportArgumentType]
    acts = extract(model, task)
    view = view_of_results(train_probes(acts, **QUICK), acts, model, Shown(8))
    words = {one: text.split()[1] for one, text in zip(task.ids, inputs, strict=True)}
    assert marked(view) == [[words[one.id]] for one in view.texts]


@pytest.mark.parametrize(("position", "count"), [("all", 5), ("-2:", 2), ("mean", 5)])
def test_several_tokens_of_a_text_are_marked(agreement, position, count):
    _, model, _ = agreement
    inputs = texts()
    task = Task("texts", inputs, [text.split()[1].endswith("s") for text in inputs])  # pyright: ignore[reportArgumentType]
    acts = extract(model, task, position=position)
    results = train_probes(acts, position=position, **QUICK)
    view = view_of_results(results, acts, model, Shown(8))
    assert [len(one) for one in marked(view)] == [count] * len(view.texts)


def test_a_run_without_its_store_says_so(agreement):
    results, _, task = agreement
    section = tokens_of_run(results, None, TokenOptions())
    assert section is not None
    assert "store that the probes were trained on was not found" in section.html
    assert tokens_of_run(results, None, TokenOptions(tokens=False)) is None
    acts = extract(agreement[1], task)
    hinted = tokens_of_run(results, acts, TokenOptions())
    assert hinted is not None
    assert "give --model" in hinted.html
    with pytest.raises(UsageError, match="texts"):
        TokenOptions(texts=0)
