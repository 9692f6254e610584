"""Chats, words and selections of parts are read as they were for the probe, and other kinds are refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probekit.errors import DataError, ResumeMismatch
from probekit.evaluation import ProbeResults
from probekit.models import load_model
from probekit.tasks.base import Task
from probekit.verbs.extract import extract
from probekit.verbs.train_probes import train_probes

pytest_plugins = ("cli.conftest",)
QUICK: dict[str, Any] = {"quick": True, "intervals": False, "baselines": False, "probe": "ridge", "layers": "1,2"}
SPLITS = np.array(["train", "train", "validation", "test"])
TEMPLATE = (
    "{% for m in messages %}<{{ m.role[0] }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<a>{% endif %}"
)
OTHER = TEMPLATE.replace("<", "[")


@pytest.fixture(scope="module")
def model(gpt2_folder: Path) -> Any:
    return load_model(str(gpt2_folder))


def chats(n: int, start: int = 0) -> list[list[dict[str, str]]]:
    return [
        [
            {"role": "user", "content": f"is {i} {'odd' if i % 2 else 'even'}"},
            {"role": "assistant", "content": f"no {i}"},
        ]
        for i in range(start, start + n)
    ]


def labelled(inputs: list[Any], **more: Any) -> Task:
    n = len(inputs)
    return Task("made", inputs, {"y": np.arange(n) % 2}, {"y": ["no", "yes"]}, SPLITS[np.arange(n) // 2 % 4], **more)


@pytest.mark.parametrize(("position", "prompt"), [("last", True), ("last@user", False), ("mean@assistant", True)])
def test_chats_go_through_the_same_template(model: Any, position: str, prompt: bool) -> None:
    how: dict[str, Any] = {"position": position, "add_generation_prompt": prompt, "chat_template": TEMPLATE}
    task = labelled([""] * 40, chats=chats(40))
    results = train_probes(extract(model, task, **how), **QUICK)
    new = chats(5, 70)
    found = results.best.score(model, new, chat_template=TEMPLATE)
    expected = results.best.probe.decision_function(extract(model, new, **how)[results.best.place])
    np.testing.assert_allclose(found.scores, expected, rtol=1e-6, atol=1e-6)
    with pytest.raises(ResumeMismatch, match="the chat template of 'this call' is not the one"):
        results.best.score(model, new, chat_template=OTHER)
    assert len(results.best.score(model, new[:1], chat_template=OTHER, any_model=True)) == 1
    with pytest.raises(DataError, match="the probe was trained on chats, and these are plain texts; give chats"):
        results.best.score(model, ["a text"])


def test_chats_for_a_probe_of_texts_are_refused_unless_that_is_wanted(model: Any) -> None:
    results = train_probes(extract(model, labelled([f"text {i}" for i in range(40)])), **QUICK)
    with pytest.raises(DataError, match="trained on plain texts, and these are chats"):
        results.best.score(model, chats(3), chat_template=TEMPLATE)
    found = results.best.score(model, chats(3), chat_template=TEMPLATE, any_model=True)
    assert found.meta["notes"][-1] == "the probe was trained on plain texts, and these are chats"


def test_words_are_read_at_their_spans(model: Any, tmp_path: Path) -> None:
    texts = [f"a {'red' if i % 2 else 'green'} thing {i}" for i in range(40)]
    spans = np.array([[2, text.index(" thing")] for text in texts])
    results = train_probes(extract(model, labelled(texts, spans=spans)), **QUICK)
    new = Task("new", ["one blue sky", "so green a hill"], spans=np.array([[4, 8], [3, 8]]))
    expected = results.best.probe.decision_function(extract(model, new)[results.best.place])
    for known in (results, ProbeResults.load(results.save(tmp_path / "r"))):
        np.testing.assert_allclose(known.best.score(model, new).scores, expected, rtol=1e-6, atol=1e-6)
    with pytest.raises(DataError, match="trained on words of texts"):
        results.best.score(model, ["one blue sky"])


def test_texts_without_the_token_are_named_or_left_out(model: Any) -> None:
    texts = [f"text {i}: {'yes' if i % 2 else 'not'}." for i in range(40)]
    results = train_probes(extract(model, labelled(texts), position='after:":"'), **QUICK)
    new = ["one: two", "none", "three: four"]
    with pytest.raises(DataError, match=r"example '1': .*does not occur in it"):
        results.best.score(model, new)
    found = results.best.score(model, new, on_bad_row="skip")
    assert found.ids.tolist() == ["0", "2"]
    assert found.texts is not None
    assert found.texts.tolist() == [new[0], new[2]]
    tokens = results.best.score(model, new, tokens=True)
    assert tokens.trained is not None
    assert tokens.tokens is not None
    assert [token for token, own in zip(tokens.tokens, tokens.trained, strict=True) if own] == [" ", " "]
    assert len(tokens) == sum(map(len, new))


def test_a_probe_of_every_token_has_a_row_for_each(model: Any) -> None:
    texts = [f"a{i % 10} b{'x' if i % 2 else 'y'}" for i in range(40)]
    acts = extract(model, labelled(texts), position="-2:")
    results = train_probes(acts, position="all", **QUICK)
    found = results.best.score(model, ["a7 bz", "cc"])
    assert found.tokens is not None
    assert found.tokens.tolist() == ["b", "z", "c", "c"]
    assert found.token_index is not None
    assert found.token_index.tolist() == [3, 4, 0, 1]
    assert found.ids.tolist() == ["0", "0", "1", "1"]
    expected = results.best.probe.decision_function(extract(model, ["a7 bz", "cc"], position="-2:")[results.best.place])
    np.testing.assert_allclose(found.scores, expected, rtol=1e-6, atol=1e-6)
