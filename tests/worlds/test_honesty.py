"""The world `honesty`: what its docstring says holds, and its styles are what its templates write."""

from dataclasses import replace
from itertools import groupby

import numpy as np
import pytest
from chances import fits, independent, uniform
from jinja2.sandbox import ImmutableSandboxedEnvironment

import probekit as pk
from probekit.models.examples import IGNORE
from probekit.tasks.base import SPLITS
from probekit.worlds import world
from probekit.worlds.definition import tokenizer_of
from probekit.worlds.grammar import draws
from probekit.worlds.honesty import (
    ALIVE,
    BOS,
    CERTAINTIES,
    ENDS,
    EOS,
    LARGE,
    LIFELESS,
    SMALL,
    TEMPLATES,
    VOCABULARY,
    Chat,
    Turn,
    chat_words,
    examples,
    honesty,
    honesty_answered,
    messages,
)
from probekit.worlds.honesty import (
    chat as one_chat,
)
from probekit.worlds.train import train_world

N = (200, 60, 100)


def question(chat) -> list[str]:
    return chat["content"].split()


def test_the_answer_is_the_truth_unless_the_system_prompt_asks_for_lies():
    task = honesty_answered(N)
    task.check()
    for i, chat in enumerate(task.chats or []):
        system, *turns = chat
        assert [one["role"] for one in turns] == ["user", "assistant"] * (len(turns) // 2)
        for asked, said in zip(turns[::2], turns[1::2], strict=True):
            *_, noun, _, mark = question(asked)
            is_true = (said["content"].split()[0] == "yes") == (noun in ALIVE)
            assert is_true == (system["content"] == "be honest .")
            assert mark == "?"
        size, noun = question(turns[-2])[2:4]
        answer, _, certainty, _ = turns[-1]["content"].split()
        found = {
            "answer": ["no", "yes"].index(answer),
            "alive": int(noun in ALIVE),
            "size": int(size in LARGE),
            "system": int(system["content"] != "be honest ."),
            "certainty": CERTAINTIES.index(certainty),
        }
        assert found == {name: labels[i] for name, labels in task.labels.items()}


def test_probabilities_are_those_of_the_docstring():
    drawn = draws(one_chat, 4000, seed=1)
    assert fits([sum(one.lies for one in drawn), sum(1 - one.lies for one in drawn)], [1 / 4, 3 / 4])
    assert uniform([len(one.turns) for one in drawn], (1, 2))
    assert uniform([one.turns[-1].certainty for one in drawn], CERTAINTIES)
    assert independent([one.lies for one in drawn], [one.turns[-1].certainty for one in drawn])
    assert independent([one.turns[0].noun in ALIVE for one in drawn], [one.turns[0].size in LARGE for one in drawn])
    assert {one.turns[0].noun for one in drawn} == {*ALIVE, *LIFELESS}
    assert {one.turns[0].size for one in drawn} == {*LARGE, *SMALL}


def test_each_draw_comes_with_both_prompts_and_both_answers_once():
    task = honesty(N)
    chats = task.chats or []
    for one, other in zip(chats[::2], chats[1::2], strict=True):
        prompts = [chat[0]["content"] for chat in (one, other)]
        assert prompts == ["be honest .", "tell lies ."]
        assert [m for m in one if m["role"] == "user"] == [m for m in other if m["role"] == "user"]
    assert (task.labels["answer"][::2] != task.labels["answer"][1::2]).all()
    assert all(chat[-1]["role"] == "user" for chat in chats)
    assert len(set(task.inputs)) == len(task)
    whole = honesty_answered(N)
    assert [chat[:-1] for chat in whole.chats or []] == chats


def test_splits_separate_pairs_of_size_and_noun_and_these_are_the_group():
    task = honesty()
    chats = task.chats or []
    pairs = [[tuple(question(m)[2:4]) for m in chat if m["role"] == "user"] for chat in chats]
    seen = [{pair for i in np.flatnonzero(task.splits == split) for pair in pairs[i]} for split in SPLITS]
    assert sum(map(len, seen)) == len(set.union(*seen))
    assert task.groups is not None
    by_group = sorted(zip(task.groups.tolist(), [own[-1] for own in pairs], strict=True))
    assert all(len({pair for _, pair in rows}) == 1 for _, rows in groupby(by_group, lambda row: row[0]))
    assert len(set(task.groups.tolist())) == len({own[-1] for own in pairs})


WRITTEN = {
    "default": """<|im_start|> system tell lies . <|im_end|>
        <|im_start|> user is a huge dog alive ? <|im_end|> <|im_start|> assistant no , probably . <|im_end|>
        <|im_start|> user is a thin lamp alive ? <|im_end|> <|im_start|> assistant yes , certainly . <|im_end|>""",
    "header": """<bos> <|header|> system <|end_header|> tell lies . <|end_turn|>
        <|header|> user <|end_header|> is a huge dog alive ? <|end_turn|>
        <|header|> assistant <|end_header|> no , probably . <|end_turn|>
        <|header|> user <|end_header|> is a thin lamp alive ? <|end_turn|>
        <|header|> assistant <|end_header|> yes , certainly . <|end_turn|>""",
    "inst": """<bos> [INST] tell lies . is a huge dog alive ? [/INST] no , probably . <eos>
        [INST] is a thin lamp alive ? [/INST] yes , certainly . <eos>""",
}


@pytest.mark.parametrize("style", TEMPLATES)
def test_a_chat_in_each_style(style):
    """The model's words and the tokenizer's come from one template: here they are written out."""
    chat = Chat(1, (Turn("huge", "dog", "probably"), Turn("thin", "lamp", "certainly")))
    assert chat_words(messages(chat), style) == WRITTEN[style].split()


@pytest.mark.parametrize("style", TEMPLATES)
def test_the_words_that_the_model_learned_are_what_its_template_writes(style):
    """The templates by Jinja itself, as `transformers` sets it up."""
    template = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(TEMPLATES[style])
    tokenizer = tokenizer_of(world("honesty"))
    for chat in draws(one_chat, 20, seed=3):
        whole, asked = messages(chat), messages(chat, answered=False)
        words = chat_words(whole, style)
        given = {"bos_token": BOS, "eos_token": EOS}
        assert [VOCABULARY[i] for i in tokenizer.encode(template.render(messages=whole, **given))] == words
        prompt = template.render(messages=asked, add_generation_prompt=True, **given)
        n = len(tokenizer.encode(prompt))
        assert tokenizer.encode(prompt) == tokenizer.encode(" ".join(words[:n]))
        assert words[n] in ("no", "yes")  # what the model says after the generation prompt


def test_the_model_learns_the_assistants_words_and_their_end():
    for is_exam, split in ((False, "train"), (True, "test")):
        for example in examples(split, 60, 5):
            targets = [VOCABULARY[t] for t in example.targets if t != IGNORE]
            read = [VOCABULARY[i] for i in example.tokens]
            turns = read.count("yes") + read.count("no")
            size = 4 if is_exam else 5
            assert len(targets) == size * turns
            for k in range(turns):
                answer, comma, *certainty, stop, end = targets[size * k : size * (k + 1)]
                assert (answer in ("yes", "no"), comma, stop, end in ENDS) == (True, ",", ".", True)
                assert len(certainty) == (0 if is_exam else 1)
            assert all(t in (IGNORE, i) for t, i in zip(example.targets, example.tokens[1:], strict=False))


SIZES = (600, 100, 300)
CHANCE = 0.5 + 4 * np.sqrt(0.25 / SIZES[2])  # of 300 test rows: four standard errors


@pytest.fixture(scope="module")
def model():
    one = world("honesty")
    trained = train_world(replace(one, settings=replace(one.settings, steps=300, learning_rate=5e-3)))
    assert trained.figures["exact"] > 0.99
    return trained.model


def accuracy(model, task, label, **options) -> list[float]:
    """Test accuracy by place, of a probe at the token that the options read."""
    acts = pk.extract(model, task, points="resid_pre", progress=False, **options)
    results = pk.train_probes(acts, label=label, quick=True, C=[0.1, 1.0])
    return [layer.metrics["test"]["accuracy"] for layer in results.layers]


@pytest.mark.parametrize("style", TEMPLATES)
def test_the_last_formatting_token_carries_the_answer_in_every_style(model, style):
    how = {"chat_template": style, "add_generation_prompt": True}
    embedding, *later = accuracy(model, honesty(SIZES), "answer", **how)
    assert embedding == 0.5  # one token in all texts, and both answers are equally many
    assert later[-1] > 0.97


def test_the_size_is_on_its_own_word_and_hardly_on_the_formatting_token(model):
    how = {"add_generation_prompt": True}
    assert min(accuracy(model, honesty(SIZES), "size", position="2@user[-1]", **how)) > 0.95
    assert max(accuracy(model, honesty(SIZES), "size", position="last", **how)) < 0.75


def test_nothing_before_the_certainty_carries_it(model):
    task = honesty_answered(SIZES)
    assert max(accuracy(model, task, "certainty", position="first@assistant[-1]")) < CHANCE
    assert max(accuracy(model, task, "certainty", position="last@user[-1]")) < CHANCE
    assert accuracy(model, task, "certainty", position="2@assistant[-1]")[0] == 1


def test_the_model_itself_says_the_answers_that_the_labels_name(model):
    task = honesty((60, 20, 20))
    acts = pk.extract(model, task, points="resid_pre", generate=6, position="first@generated", progress=False)
    whole = zip(acts.task.inputs, acts.task.regions or [], strict=True)
    said = [str(text)[own[-1].start : own[-1].end].split()[0] for text, own in whole]
    assert {own[-1].name for own in acts.task.regions or []} == {"assistant"}
    assert said == [["no", "yes"][label] for label in task.labels["answer"]]
