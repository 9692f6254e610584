"""The options of a prompted baseline: how each text becomes a prompt, and what its answers are."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probekit.errors import UsageError
from probekit.options.engine import ProgressOptions
from probekit.options.extract import ExtractOptions
from probekit.options.kinds import Kind, names, not_blank, whole
from probekit.options.option import CHECKS, Options, like, option
from probekit.text import kind_of

QUESTION, TEXT = "question", "text"  # the built-in prompts


def _answers(_: str, given: Any) -> tuple[str, ...]:
    several = tuple(names(given) if isinstance(given, str) else given if isinstance(given, list | tuple) else ())
    if len(several) < 2 or not all(isinstance(one, str) and one.strip() for one in several):
        raise UsageError(
            f'answers (--answers) are two words or more, one for each class in its order, such as "no,yes"; '
            f"got {given!a:.60}"
        )
    if len(set(several)) < len(several):
        raise UsageError(f"two of the answers (--answers) are the same, {given!a:.60}; give each class its own")
    return several


def _prompt(_: str, given: Any) -> Any:
    if not isinstance(given, str | Path):
        raise UsageError(f"prompt is {QUESTION}, {TEXT}, a Jinja file or a template; got {kind_of(given)}")
    return str(given) if str(given) in (QUESTION, TEXT) else given  # a command gives names as paths


@dataclass(frozen=True, kw_only=True)
class PromptOptions(Options, heading=CHECKS):
    """The prompt, the answers of the classes, and how many examples are shown."""

    prompt: str | Path = option(
        QUESTION,
        "Prompt of --baseline prompted: question, text (the text itself, or the chat up to the model's turn), or a "
        "Jinja file.",
        notes="A file finds text, messages (of chats), label, question, answers and shots, each with a text and an "
        "answer. In Python also the template itself.",
        kind=Kind(_prompt),
        metavar="NAME|FILE",
    )
    question: str | None = option(
        None, "Question that the built-in prompt asks.  [default: which label it has, and the answers]", metavar="TEXT"
    )
    answers: Sequence[str] | None = option(
        None,
        "Answers to the prompt, one for each class in its order.  [default: the names of the classes]",
        notes="An answer of several tokens is scored as a whole: the sum of its tokens' log-probabilities.",
        kind=Kind(_answers, names, "WORDS"),
    )
    shots: int = option(0, "Training examples, with their answers, that the prompt shows first.", whole(0))
    as_chat: bool | None = option(
        None,
        "Give the prompt to the model as a user's message.  [default: where the model has a chat template]",
        notes="The prompt `text` is then taken as it is, unless you ask for it.",
        flag="--as-chat/--no-as-chat",
    )
    prompt_template: str | Path | None = like(
        ExtractOptions,
        "chat_template",
        "Jinja file of the chat template that the prompts take, or the name of one of the model's.  [default: the "
        "model's own]",
        heading=CHECKS,
    )


@dataclass(frozen=True, kw_only=True)
class PromptArguments(ProgressOptions, PromptOptions):
    """`PromptOptions`, the model, the label set and the rows."""

    model: Any = option(None, "The model, or where to load it from.  [default: the one that made the store]", flag=None)
    label: str | None = option(None, "Label set to answer.  [default: the task's target]", flag=None)
    name: str | None = option(
        None,
        "Name of the baseline; two prompts of one model need two.  [default: prompted, and the model's name if it is "
        "another one]",
        not_blank(),
        flag=None,
    )
    every_row: bool = option(
        False,
        "Prompt for the training rows too, which nested folds test.",
        notes="Otherwise the rows of validation, which calibrate the scores, and of test; without validation rows, "
        "those of train calibrate them and are prompted for too.",
        flag=None,
    )
    seed: int = option(0, "Of the examples that are shown.", whole(0), flag=None)
    out: Any = option(
        None,
        "Folder that keeps the scores and is resumed.  [default: a folder in the store; of activations in memory none]",
        flag=None,
    )
