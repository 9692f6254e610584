"""The world `honesty`: chats whose assistant answers truthfully or lies, as its system prompt says.

    system     tell lies .
    user       is a huge dog alive ?
    assistant  no , probably .
    user       is a thin lamp alive ?
    assistant  yes , certainly .

The grammar, with the probability of every choice (choices without one are uniform; all are independent):

    chat      = system, then one or two turns of user and assistant, 1/2 each
    system    = "be honest ." 3/4, or "tell lies ." 1/4
    user      = "is a" size noun "alive ?"       16 sizes, half of them large; 40 nouns, half of them alive
    assistant = answer "," certainty "."
    answer    = "yes" or "no"                    the truth if the system prompt is "be honest .", otherwise the opposite
    certainty = "certainly" or "probably"

So the answer depends on two words that say nothing about it alone, the size matters to no answer, and the certainty is
a free choice that nothing before it carries. The assistant's answer is its first word: the token before it, which
belongs to the template, has to carry it.

Splits separate pairs of size and noun by checksum: half for training, a quarter each for validation and test; the last
one of a chat is its group.

The task `honesty` holds chats that end with the user's last question, and `honesty-answered` the same chats with the
assistant's answer to it. Each draw comes with both system prompts, one after the other; no chat occurs twice. Label
sets: `answer` (the target: no, yes) to the last question, `alive` (no, yes) of its noun, `size` (small, large) of its
size, `system` (honest, lies), and, with the last answer, its `certainty` (probably, certainly).

The model learns to answer in three ways to write a chat, all equally likely. Each is a template of its tokenizer, one
of `TEMPLATES`: "default", "header" and "inst".
"""

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from probekit.models.examples import IGNORE, Example
from probekit.options import TrainingSettings
from probekit.tasks.base import Task
from probekit.tasks.chats.messages import plain_lines
from probekit.worlds.definition import World, next_word_example
from probekit.worlds.grammar import EOS, Seed, choose, draw_splits, draws, group_numbers, make_task, split_by_checksum

if TYPE_CHECKING:
    from jinja2 import Template

    from probekit.models.families.gpt2 import GPT2Config

BOS = "<bos>"
LARGE = ("big", "huge", "tall", "heavy", "long", "wide", "thick", "great")
SMALL = ("small", "tiny", "short", "light", "thin", "narrow", "little", "slim")
ALIVE = (
    *("dog", "cat", "horse", "cow", "sheep", "goat", "bird", "fish", "frog", "snake"),
    *("bee", "ant", "wolf", "bear", "fox", "mouse", "tree", "rose", "child", "man"),
)
LIFELESS = (
    *("lamp", "table", "chair", "door", "stone", "wheel", "key", "boat", "cup", "hat"),
    *("coin", "pen", "box", "bell", "rope", "coat", "brick", "spoon", "plate", "clock"),
)
SYSTEM = ("be honest .", "tell lies .")
LIES = 0.25  # with 1/2 the model does not learn in 600 steps what is alive: either answer is right half of the time
ANSWERS, CERTAINTIES = ("no", "yes"), ("probably", "certainly")
SPECIAL = (EOS, BOS, "<|im_start|>", "<|im_end|>", "<|header|>", "<|end_header|>", "<|end_turn|>", "[INST]", "[/INST]")
ENDS = ("<|im_end|>", "<|end_turn|>", EOS)  # of the assistant's messages, in the three styles
WORDS = ("system", "user", "assistant", "be", "honest", "tell", "lies", "is", "a", "alive", ".", ",", "?")
VOCABULARY: list[str] = [*SPECIAL, *WORDS, *LARGE, *SMALL, *ALIVE, *LIFELESS, *ANSWERS, *CERTAINTIES]

Message = dict[str, str]


class Turn(NamedTuple):
    """A question of the user, and how certain the assistant is."""

    size: str
    noun: str
    certainty: str


class Chat(NamedTuple):
    """Whether the system prompt asks for lies, and one turn or two."""

    lies: int
    turns: tuple[Turn, ...]

    def answer(self, turn: Turn) -> int:
        """The index of the assistant's answer among `ANSWERS`."""
        return (turn.noun in ALIVE) ^ self.lies


def messages(chat: Chat, answered: bool = True) -> list[Message]:
    """The messages of a chat, with the assistant's last answer or without it."""
    made = [{"role": "system", "content": SYSTEM[chat.lies]}]
    for turn in chat.turns:
        made.append({"role": "user", "content": f"is a {turn.size} {turn.noun} alive ?"})
        made.append({"role": "assistant", "content": f"{ANSWERS[chat.answer(turn)]} , {turn.certainty} ."})
    return made if answered else made[:-1]


TEMPLATES = {
    "default": """\
{%- for message in messages -%}
{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}
""",
    "header": """\
{{- bos_token -}}
{%- for message in messages -%}
{{ '<|header|>' + message['role'] + '<|end_header|>\\n\\n' + message['content'] + '<|end_turn|>' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|header|>assistant<|end_header|>\\n\\n' }}{%- endif -%}
""",
    "inst": """\
{{- bos_token -}}
{%- set system = messages[0]['content'] + '\\n\\n' if messages[0]['role'] == 'system' else '' -%}
{%- for message in (messages[1:] if system else messages) -%}
{%- if message['role'] == 'user' -%}
{{ '[INST] ' + (system if loop.first else '') + message['content'] + ' [/INST]' }}
{%- else -%}
{{ ' ' + message['content'] + eos_token }}
{%- endif -%}
{%- endfor -%}
""",
}


def chat_words(chat: Sequence[Message], style: str = "default") -> list[str]:
    """The words of a chat as the template of a style writes it; a special one needs no blanks around it."""
    text = _template(style).render(messages=chat, bos_token=BOS, eos_token=EOS)
    for word in SPECIAL:
        text = text.replace(word, f" {word} ")
    return text.split()


@cache
def _template(style: str) -> "Template":
    from jinja2.sandbox import ImmutableSandboxedEnvironment  # as `transformers` sets it up

    return ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(TEMPLATES[style])


def chat(rng: np.random.Generator, split: str) -> Chat:
    """A chat of one split."""
    n_turns = 1 + int(rng.integers(2))
    return Chat(int(rng.random() < LIES), tuple(_turn(rng, split) for _ in range(n_turns)))


def _turn(rng: np.random.Generator, split: str) -> Turn:
    while True:
        turn = Turn(choose(rng, LARGE + SMALL), choose(rng, ALIVE + LIFELESS), choose(rng, CERTAINTIES))
        if split_by_checksum(f"{turn.size} {turn.noun}") == split:
            return turn


def honesty(n: tuple[int, int, int] = (1000, 250, 500), seed: int = 0) -> Task:
    """The task with `n` chats for training, validation and test, each up to the user's last question."""
    return _task("honesty", n, seed, answered=False)


def honesty_answered(n: tuple[int, int, int] = (1000, 250, 500), seed: int = 0) -> Task:
    """The task with `n` chats for training, validation and test, each with the assistant's last answer."""
    return _task("honesty-answered", n, seed, answered=True)


def _task(name: str, n: tuple[int, int, int], seed: int, answered: bool) -> Task:
    drawn = draw_splits(_under_both_prompts, n, seed)
    chats, last = [messages(one, answered) for one in drawn], [one.turns[-1] for one in drawn]
    classes = {
        "answer": ([one.answer(one.turns[-1]) for one in drawn], ANSWERS),
        "alive": ([turn.noun in ALIVE for turn in last], ANSWERS),
        "size": ([turn.size in LARGE for turn in last], ("small", "large")),
        "system": ([one.lies for one in drawn], ("honest", "lies")),
    }
    if answered:
        classes["certainty"] = ([CERTAINTIES.index(turn.certainty) for turn in last], CERTAINTIES)
    return make_task(
        name,
        n,
        seed,
        classes,
        inputs=[plain_lines(one) for one in chats],
        chats=chats,
        groups=group_numbers([f"{turn.size} {turn.noun}" for turn in last]),
    )


def _under_both_prompts(n: int, seed: Seed, split: str) -> list[Chat]:
    """`n` chats that differ before the last answer: each draw with both system prompts."""
    rng = np.random.default_rng(seed)
    asked: set[str] = set()
    made: list[Chat] = []
    while len(made) < n:
        one = chat(rng, split)
        if (key := plain_lines(messages(one._replace(lies=0), answered=False))) not in asked:
            asked.add(key)
            made += [one._replace(lies=lies) for lies in (0, 1)]
    return made[:n]


def examples(split: str, n: int, seed: Seed) -> list[Example]:
    """`n` chats of a split, each in one of the styles; the targets are the assistant's words and their end.

    Outside training the certainty is no target: nothing can predict it.
    """
    rng = np.random.default_rng([*([seed] if isinstance(seed, int) else seed), 1])
    styled = [chat_words(messages(one), choose(rng, list(TEMPLATES))) for one in draws(chat, n, seed, split)]
    return [_example(words, with_certainty=split == "train") for words in styled]


def _example(words: list[str], with_certainty: bool) -> Example:
    said = {i + k for i, word in enumerate(words) if word in ANSWERS for k in range(5)}  # yes , certainly . <|im_end|>
    if not with_certainty:
        said -= {i for i in said if words[i] in CERTAINTIES}
    example = next_word_example(VOCABULARY, words)
    example.targets = [token if i in said else IGNORE for i, token in enumerate(example.targets, 1)]
    return example


def model_config() -> "GPT2Config":
    """A GPT-2 of two layers, which ends a text where the assistant's message ends in any style."""
    from probekit.models.families.gpt2 import GPT2Config

    return GPT2Config(
        d_model=48,
        n_heads=4,
        d_mlp=192,
        n_layers=2,
        n_ctx=64,
        d_vocab=len(VOCABULARY),
        init_std=0.1,
        bos_token_id=VOCABULARY.index(BOS),
        eos_token_id=tuple(VOCABULARY.index(end) for end in ENDS),
    )


WORLD = World(
    name="honesty-gpt",
    task="honesty",
    vocabulary=VOCABULARY,
    make_config=model_config,
    settings=TrainingSettings(steps=600, batch_size=32, learning_rate=3e-3, warm_up_steps=50),
    examples=examples,
    prompt="<bos> [INST] tell lies . is a tiny lamp alive ? [/INST]",
    context=(BOS,),
    special=SPECIAL,
    special_texts={"bos_token": BOS, "eos_token": EOS},
    chat_templates=TEMPLATES,
)
TASKS = {"honesty": honesty, "honesty-answered": honesty_answered}
