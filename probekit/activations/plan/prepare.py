"""Make texts of a task's chats before it is planned, with the chat template of the model."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from probekit.errors import DataError, UsageError, nearest
from probekit.files.plain_files import MAX_CONFIG, read_bytes
from probekit.models.base import LanguageModel
from probekit.options import ExtractOptions
from probekit.tasks.base import Task, without_bad_rows
from probekit.tasks.chats.render import LIMITS, ChatTemplate, Rendering, described, render_chats, template_sha256
from probekit.tasks.fields import CHAT
from probekit.text import listed

MOST_LIMITS = 3  # chats that may each take the template's ten seconds, or all its memory


def rendered_task(model: LanguageModel, task: Task, options: ExtractOptions) -> Task:
    """The task with the texts that the model reads; one without chats is returned as it is.

    Raises:
        UsageError: a chat without a template, a template without chats, or a BOS that the template wrote already.
        DataError: a template that cannot be used, or a chat that it refuses; the message names the example.
    """
    if task.chats is None:
        if options.chat_template is not None or options.add_generation_prompt:
            which = "--chat-template" if options.chat_template is not None else "--add-generation-prompt"
            raise UsageError(f"{which} is for chats, and {task.name!a} holds none; leave it out")
        return task
    template = _template(model, task, options.chat_template)
    rendered = _rendered(task, template, options)
    bos = template.tokens.get("bos_token")
    if options.bos and bos and any(str(text).startswith(bos) for text in rendered.inputs):
        raise UsageError(
            f"the chat template writes {bos!a} before each text, and --bos would put another; leave it out"
        )
    return rendered


def _template(model: LanguageModel, task: Task, wanted: str | Path | None) -> ChatTemplate:
    """The template that was given, or else the model's own."""
    tokenizer = model.tokenizer
    own, tokens = ({}, {}) if tokenizer is None else (tokenizer.chat_templates, tokenizer.special_texts)
    if str(wanted) in own:  # a command gives names as paths
        return ChatTemplate(own[str(wanted)], f"{model.name} ({wanted})", tokens)
    if isinstance(wanted, str) and ("{%" in wanted or "{{" in wanted):
        return ChatTemplate(wanted, "this call", tokens)
    if wanted is not None:
        return ChatTemplate(read_template(Path(wanted), [*own]), Path(wanted).name, tokens)
    if "default" in own or len(own) == 1:
        return ChatTemplate(own.get("default", next(iter(own.values()))), model.name, tokens)
    if own:
        known = listed([ascii(name) for name in own])
        raise UsageError(f"{model.name!a} has several chat templates; name one with --chat-template: {known}")
    kind = "" if model.causal else ", as it is an encoder,"
    raise UsageError(
        f"{task.name!a} holds chats, and {model.name!a} has no chat template{kind} to make texts of them; give one "
        "with --chat-template FILE"
    )


def read_template(path: Path, names: list[str], kind: str = "chat template") -> str:
    """The Jinja of a file; `names` are those of the templates that need no file.

    Raises:
        UsageError: no such file.
        DataError: it is not UTF-8.
    """
    try:
        return read_bytes(path, MAX_CONFIG).decode("utf-8-sig").replace("\r\n", "\n")
    except FileNotFoundError:
        known = f"; {nearest(str(path), names)}" if names else ""
        raise UsageError(f"no {kind} {str(path)!a}: no such file{known}") from None
    except OSError as error:
        raise UsageError(f"cannot read the {kind} {str(path)!a}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise DataError(f"the {kind} {str(path)!a} is not UTF-8 (byte {error.start:,}); save it again") from None


def _rendered(task: Task, template: ChatTemplate, options: ExtractOptions) -> Task:
    """The task with its chats as texts, and the places of the messages in them."""
    done: list[Rendering] = []
    bad: dict[int, str] = {}
    n_limits = 0
    with closing(render_chats(template, task.chats or [], options.add_generation_prompt)) as renderings:
        for row, one in enumerate(renderings):
            done.append(one)
            if one.flaw is None:
                continue
            bad[row] = (
                f"{described(template)} {one.flaw[1]}; correct the chat, give another template "
                "(--chat-template FILE), or leave such rows out (--on-bad-row skip)"
            )
            n_limits += one.flaw[0] in LIMITS
            if options.on_bad_row == "error" or n_limits == MOST_LIMITS:
                without_bad_rows(task, {row: bad[row]}, "template", "error")
    task, rows = without_bad_rows(task, bad, "template", options.on_bad_row)
    date = next((done[i].date for i in rows if done[i].date), None)
    is_ignored = options.add_generation_prompt and "add_generation_prompt" not in template.text
    about: dict[str, Any] = {
        "template": template_sha256(template),
        "from": template.origin,
        "add_generation_prompt": options.add_generation_prompt,
        **({} if date is None else {"date": date}),
        **({"has_no_generation_prompt": True} if is_ignored else {}),
    }
    return replace(
        task,
        inputs=[done[i].text for i in rows],
        regions=[done[i].regions for i in rows],
        chats=None,
        info={**task.info, CHAT: about},
    )
