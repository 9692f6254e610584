"""Words of texts, labels of tokens, several tokens of a text, and runs without what the view needs."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from probekit.errors import DataError, ResumeMismatch, UsageError
from probekit.interventions import add
from probekit.models import load
from probekit.models.load import source_here
from probekit.options.tokens import TokenOptions
from probekit.report.build import tokens_of_run
from probekit.report.tokens.data import TRAINED, TokenScores
from probekit.report.tokens.find import EDITED, Shown, view_of_results, view_of_texts
from probekit.report.tokens.read import OTHER_KIND, UNKNOWN_READ
from probekit.tasks.base import Task
from probekit.tasks.tables.objects import task_of
from probekit.verbs.extract import extract
from probekit.verbs.train_probes import train_probes

NOUNS = ["doctor", "doctors", "key", "keys", "girl", "girls", "boat", "boats"]
QUICK: dict[str, Any] = {"quick": True, "baselines": False}


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
    assert "name it with --store" in section.html
    assert tokens_of_run(results, None, TokenOptions(tokens=False)) is None
    acts = extract(agreement[1], task)
    hinted = tokens_of_run(results, acts, TokenOptions())
    assert hinted is not None
    assert "give --model" in hinted.html
    with pytest.raises(UsageError, match="texts"):
        TokenOptions(texts=0)


def test_chats_are_read_as_the_probe_read_them(agreement):
    _, model, _ = agreement
    template = "{% for m in messages %}{{ m['content'] }} near {% endfor %}"
    pairs = [*itertools.product(NOUNS, NOUNS)]
    first = [user for user, _ in pairs]
    chats = [
        [{"role": "user", "content": f"the {user}"}, {"role": "assistant", "content": f"the old {answer}"}]
        for user, answer in pairs
    ]
    given = task_of(chats)
    task = Task("chats", given.inputs, [n.endswith("s") for n in first], chats=given.chats)  # pyright: ignore[reportArgumentType]
    acts = extract(model, task, position="last@user", chat_template=template)
    results = train_probes(acts, **QUICK)
    assert {words[0] for words in marked(view_of_results(results, acts, model, Shown(6)))} <= set(NOUNS)
    given = view_of_texts(results, model, task_of(chats[::8][:2]), chat_template=template)
    assert marked(given) == [["doctor"], ["doctors"]]
    with pytest.raises(ResumeMismatch, match="chat template"):
        view_of_texts(results, model, task_of(chats[:2]), chat_template=template + "the")
    plain = view_of_texts(results, model, task_of(["the doctors near"]))
    assert plain.meta["notes"][:2] == [OTHER_KIND, UNKNOWN_READ]


def test_probes_of_an_edited_model_have_a_view_under_the_same_edits(agreement):
    _, model, _ = agreement
    inputs, edits = texts(), {("resid_pre", 1): add(torch.ones(model.cfg.d_model))}
    task = Task("texts", inputs, [text.split()[1].endswith("s") for text in inputs])  # pyright: ignore[reportArgumentType]
    results = train_probes(extract(model, task, edits=edits), **QUICK)
    view = view_of_texts(results, model, task_of(inputs[:2]), edits=edits)
    assert (view.lens, view.attention) == (None, None)
    expected = results.score(model, inputs[:2], tokens=True, edits=edits).probabilities
    assert expected is not None
    np.testing.assert_allclose(1 / (1 + np.exp(-view.scores[0, view.best])), expected[:, 1], atol=1e-5)
    with pytest.raises(ResumeMismatch, match="different edits"):
        view_of_texts(results, model, task_of(inputs[:2]))
    with pytest.raises(DataError, match="position all"):
        view_of_results(results, extract(model, task, edits=edits), model)
    every = extract(model, task, position="all", edits=edits)
    assert view_of_results(results, every, model, Shown(2)).meta["notes"] == [EDITED]


def test_the_model_of_a_store_is_found_again_without_a_network(tmp_path, monkeypatch):
    folder = tmp_path / "steps" / "step10"
    folder.mkdir(parents=True)
    here = {"name_or_path": str(tmp_path / "steps"), "revision": "step10", "dtype": "float32"}
    assert source_here(here) == here
    hub = {"name_or_path": "owner/tiny", "revision": "c0ffee"}
    monkeypatch.setattr(load, "cached_model", lambda name, revision: folder if revision == "c0ffee" else None)
    assert source_here(hub) == {"name_or_path": str(folder), "revision": None}
    assert source_here({**hub, "revision": "other"}) is None
