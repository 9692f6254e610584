"""Texts as prompts: the template, the examples that are shown, and the model's chat template around them."""

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, TemplateError
from jinja2.meta import find_undeclared_variables

from probekit.activations.plan.prepare import read_template, rendered_task
from probekit.errors import DataError, UsageError
from probekit.models.base import LanguageModel
from probekit.options import ExtractOptions
from probekit.options.prompt import QUESTION, TEXT, PromptArguments
from probekit.tasks.base import Task
from probekit.tasks.chats.messages import has_chats, messages_of, plain_lines
from probekit.tasks.chats.render import ChatTemplate, render_prompts
from probekit.text import counted, listed

BUILT_IN = """\
{% for shot in shots %}
{{ kind }}: {{ shot.text }}
{{ question }}
Answer: {{ shot.answer }}

{% endfor %}
{{ kind }}: {{ text }}
{{ question }}
Answer:"""
AS_IT_IS = "{{ text }}"
KIND = "prompt template"


@dataclass(frozen=True)
class Prompts:
    """What the model is asked for some rows.

    Attributes:
        texts: of the prompts.
        bos: whether a BOS is put before each; chat templates write their own.
        answers: one for each class.
        shots: ids of the examples that are shown.
        template: sha256 of the template.
    """

    texts: list[str]
    bos: bool
    answers: list[str]
    shots: list[str]
    template: str


def make_prompts(model: LanguageModel, task: Task, label: str, rows: np.ndarray, options: PromptArguments) -> Prompts:
    """The prompts of these rows of a task.

    Raises:
        UsageError: labels that are numbers, other than one answer for each class, more shots than there are examples.
        DataError: a template that cannot be used, or rows that are no texts.
    """
    answers = _answers(task, label, options)
    _check_texts(task)
    shots = _shots(task, label, options)
    template = _template(options)
    question = options.question or f"Which {label} is it: {_either(answers)}?"
    chats = has_chats(task)
    common = {"question": question, "answers": answers, "label": label, "kind": "Conversation" if chats else "Text"}
    common["shots"] = [{"text": _text(task, row), "answer": answers[int(task.labels[label][row])]} for row in shots]
    as_chat, as_it_is = options.as_chat, options.prompt == TEXT
    if as_chat is None:
        own = model.tokenizer is not None and bool(model.tokenizer.chat_templates)
        as_chat = (own or options.prompt_template is not None) and not as_it_is
    given = [_row(task, int(row), common) for row in rows]
    _check_names(template, given[0])
    _check_used(template, options, given, [task.ids[row] for row in rows])
    if as_it_is and chats and not as_chat:
        texts = _as_users(model, [_messages(task, int(row)) for row in rows], options)
    else:
        texts = render_prompts(template, given, [task.ids[row] for row in rows])
        if empty := [number for number, text in enumerate(texts) if not text.strip()]:
            raise DataError(
                f"{template.origin}: the prompt of {task.ids[rows[empty[0]]]!a} is empty; write {{{{ text }}}}"
            )
        if len(set(texts)) == 1 < len({row["text"] for row in given}):
            raise UsageError(
                f"{template.origin}: every prompt is the same, so no text is asked about; write {{{{ text }}}} or "
                "{{ messages }} in it"
            )
        if as_chat:
            texts = _as_users(model, [[{"role": "user", "content": text}] for text in texts], options)
    is_text = not as_chat and not (as_it_is and chats)
    bos = is_text and model.tokenizer is not None and model.tokenizer.bos_token_id is not None
    digest = hashlib.sha256(template.text.encode("utf-8", "surrogatepass")).hexdigest()
    return Prompts(texts, bos, answers, [task.ids[row] for row in shots], digest)


def _check_names(template: ChatTemplate, row: dict[str, Any]) -> None:
    """Raise a UsageError for a name that a prompt does not find, which Jinja would leave empty."""
    try:
        tree = Environment(extensions=["jinja2.ext.loopcontrols"]).parse(template.text)
    except (TemplateError, RecursionError):
        return  # said where it is rendered
    if unknown := sorted(find_undeclared_variables(tree) - row.keys()):
        raise UsageError(f"{template.origin}: no name {unknown[0]!a:.40} in prompts; they find {listed(sorted(row))}")


def _check_used(template: ChatTemplate, options: PromptArguments, rows: list[dict[str, Any]], names: list[str]) -> None:
    """Raise a UsageError for shots or a question that no prompt shows: it would be the same without."""
    for name, given, without in (("shots", options.shots, []), ("question", options.question, "")):
        if given and options.prompt != QUESTION:
            texts = render_prompts(template, rows, names)
            with suppress(DataError):  # which needs them, then
                if render_prompts(template, [{**row, name: without} for row in rows], names) == texts:
                    raise UsageError(
                        f"the prompt {_prompt_name(options)} shows no {name}, so --{name} changes nothing; leave it "
                        f"out, or give a Jinja file with {{{{ {name} }}}} (--prompt)"
                    )


def _prompt_name(options: PromptArguments) -> str:
    return "of this call" if "\n" in (name := str(options.prompt)) else ascii(name)[:60]


def _answers(task: Task, label: str, options: PromptArguments) -> list[str]:
    names = task.label_names[label]
    if not names:
        raise UsageError(f"{label!a} holds numbers, and a prompt is answered by one of a few words; name another label")
    answers = [*names] if options.answers is None else [*options.answers]
    if len(answers) != len(names):
        raise UsageError(
            f"{label!a} has {counted(len(names), 'class', 'classes')} ({listed(names, most=4)}), got "
            f"{counted(len(answers), 'answer')}; give one answer for each class in this order (--answers)"
        )
    return answers


def _check_texts(task: Task) -> None:
    if not task.has_texts or not isinstance(task.inputs[0], str):
        raise UsageError(
            f"a prompt is made of texts, and {task.name!a} holds none (only token ids or activations); give "
            "scores by id (scores:FILE)"
        )
    if task.text_of is not None or task.spans is not None:
        raise UsageError(
            f"a prompt asks about a text, and the rows of {task.name!a} are words or tokens of texts; take a label of "
            "complete texts, or give scores by id (scores:FILE)"
        )


def _template(options: PromptArguments) -> ChatTemplate:
    given = options.prompt
    if given == QUESTION:
        return ChatTemplate(BUILT_IN, "probekit", kind=KIND)
    if given == TEXT:
        return ChatTemplate(AS_IT_IS, "probekit", kind=KIND)
    if isinstance(given, str) and ("{%" in given or "{{" in given):
        return ChatTemplate(given, "this call", kind=KIND)
    return ChatTemplate(read_template(Path(given), [QUESTION, TEXT], KIND), Path(given).name, kind=KIND)


def _shots(task: Task, label: str, options: PromptArguments) -> list[int]:
    """Training rows in a random order, one class after the other in turn."""
    if not options.shots:
        return []
    labels = task.labels[label]
    rng = np.random.default_rng(options.seed)
    train = rng.permutation(np.flatnonzero((task.splits == "train") & (labels >= 0)))
    if len(train) < options.shots:
        raise UsageError(f"{options.shots} shots come from train, which has {len(train)} labelled rows; take fewer")
    turn = np.empty(len(train), dtype=np.int64)  # how many rows of its class come before each
    for k in np.unique(labels[train]):
        own = labels[train] == k
        turn[own] = np.arange(own.sum())
    chosen = train[np.argsort(turn, kind="stable")[: options.shots]]
    return rng.permutation(chosen).tolist()


def _row(task: Task, row: int, common: dict[str, Any]) -> dict[str, Any]:
    messages = _messages(task, row) if has_chats(task) else None
    return {**common, "text": _text(task, row), "messages": messages}


def _messages(task: Task, row: int) -> list[dict[str, Any]]:
    return [{"role": role, "content": content} for role, content in messages_of(task, row)]


def _text(task: Task, row: int) -> str:
    return plain_lines(_messages(task, row)) if has_chats(task) else str(task.inputs[row])


def _as_users(model: LanguageModel, chats: Sequence[list[dict[str, Any]]], options: PromptArguments) -> list[str]:
    """Chats up to the model's turn, as its chat template writes them."""
    asked = Task("prompts", [plain_lines(chat) for chat in chats], chats=list(chats))
    how = ExtractOptions(chat_template=options.prompt_template, add_generation_prompt=True)
    try:
        return [str(text) for text in rendered_task(model, asked, how).inputs]
    except UsageError as error:
        raise UsageError(str(error).replace("--chat-template", "--prompt-template")) from None


def _either(answers: Sequence[str]) -> str:
    return f"{', '.join(answers[:-1])} or {answers[-1]}"
