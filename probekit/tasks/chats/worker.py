"""Render chats with a Jinja template, in a process of its own that the parent limits and can end.

Run by path, with a JSON line in and one out for each chat, or for the variables of one prompt. It imports nothing of
probekit. On Linux, a template that escaped from Jinja's sandbox would find a process without secrets, with little
memory, which can open no file and no connection; macOS may not limit its memory, and Windows limits nothing but what
the parent limits: time and output.

The environment is that of `transformers.utils.chat_template_utils`, so that texts are equal to the last character.
"""

import json
import pprint  # noqa: F401  (this and what has no other use here is imported before no file can be opened)
import re
import signal
import sys
import textwrap  # noqa: F401
from contextlib import suppress
from datetime import datetime
from itertools import pairwise
from typing import Any

import jinja2
import jinja2.debug
import jinja2.ext
from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError, TemplateSyntaxError
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

REASONING = ("reasoning_content", "thinking", "reasoning")  # names of one thing
THOUGHT = "</think>"  # templates look for it in contents, and treat what comes after it as the answer

WARM_UP = r"""{{ "\n\u00e9" ~ strftime_now("%d %B %Y %Z") ~ lipsum() ~ ("a" | wordwrap | urlize | pprint) }}"""

Stretch = tuple[int, int, int]  # start, end, number of the message


class TooLongError(Exception):
    """The template wrote more than it may."""


class NoPlaceError(Exception):
    """It is not known where the text has the content of a message."""


class GenerationBlock(jinja2.ext.Extension):
    """`{% generation %}...{% endgeneration %}`, which marks what a model writes, gives the text of its body."""

    tags = {"generation"}  # noqa: RUF012  (an attribute of Jinja's)

    def parse(self, parser: Parser) -> nodes.Node:
        """The body in a scope of its own."""
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True)).set_lineno(line)


class PlainNamespace(Namespace):
    """Jinja's namespace without names that begin with an underscore."""

    def __init__(*args: Any, **named: Any) -> None:  # `self` is a name that a template may use
        values = dict(*args[1:], **named)
        for name in values:
            _refuse_private(name)
        Namespace.__init__(args[0], values)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_private(name)
        super().__setitem__(name, value)


def _refuse_private(name: Any) -> None:
    if str(name).startswith("_"):
        raise SecurityError(f"a namespace has no attribute {name!r}")


def _to_json(value: Any, ensure_ascii=False, indent=None, separators=None, sort_keys=False) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: Any) -> None:
    raise TemplateError(str(message))


class Renderer:
    """One template with its variables.

    Args:
        job: "template"; "given", its variables; "most", the characters that it may write for an empty chat; "now", the
            time that it may write, the same for all chats.

    Attributes:
        dated: whether it asked for the time.
    """

    def __init__(self, job: dict[str, Any]):
        sandbox = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlock, jinja2.ext.loopcontrols]
        )
        sandbox.filters["tojson"] = _to_json
        sandbox.globals |= {"raise_exception": _refuse, "strftime_now": self._now, "namespace": PlainNamespace}
        self.template = sandbox.from_string(job["template"])
        self.dated, self.now = False, datetime.fromisoformat(job["now"])
        self.most, self.given = job["most"], {"tools": None, "documents": None, **job["given"]}

    def _now(self, form: str) -> str:
        self.dated = True
        return self.now.strftime(form)

    def text(self, messages: list[dict[str, Any]]) -> str:
        """The text of a chat. Raises TooLongError, and whatever the template raises."""
        size = sum(len(str(message)) for message in messages)
        return self._written(size, {**self.given, "messages": [_with_reasoning(one) for one in messages]})

    def prompt(self, row: dict[str, Any]) -> str:
        """The text of a prompt with these variables. Raises as `text`."""
        return self._written(len(_to_json(row)), {**self.given, **row})

    def _written(self, size: int, given: dict[str, Any]) -> str:
        """What the template writes: a fixed number of characters, and ten for each of `size`, at most."""
        most, parts, length = self.most + 10 * size, [], 0
        for part in self.template.generate(**given):
            length += len(part)
            if length > most:
                raise TooLongError(f"wrote more than {most:,} characters")
            parts.append(part)
        return "".join(parts)

    def places(self, text: str, messages: list[dict[str, Any]]) -> list[Stretch]:
        """Where the content of each message is in the text, in order.

        The chat is rendered again with a mark in the place of each content. What is between the marks is the
        template's, so that the contents are what is left. A template that does more with a content than remove the
        blanks around it is tried with one mark at a time.

        Raises:
            NoPlaceError: that does not say where a content is.
        """
        contents = {i: message["content"] for i, message in enumerate(messages) if "content" in message}
        mark = _unused(f"{text}{_to_json(messages)}")
        marks = {i: f"{mark}{i}{mark}" for i in contents}
        marked = self._marked([{**one, "content": marks[i]} if i in marks else one for i, one in enumerate(messages)])
        found = None if marked is None else _between(text, marked, mark, contents)
        if found is None:
            found = sorted(place for i in contents for place in self._alone(text, messages, i, marks[i]))
        for (_, end, i), (start, _, j) in pairwise(found):
            if end > start:
                raise NoPlaceError(f"mixes the contents of messages {i} and {j}")
        if not found and any(map(str.strip, contents.values())):
            raise NoPlaceError("writes none of the contents of the messages")
        return found

    def _marked(self, messages: list[dict[str, Any]]) -> str | None:
        """The text of a chat with marks; None where the template needs the contents, such as a number."""
        try:
            return self.text(messages)
        except (MemoryError, TooLongError):
            raise
        except Exception:
            return None

    def _alone(self, text: str, messages: list[dict[str, Any]], i: int, mark: str) -> list[Stretch]:
        """Where the content of message i is: what changes when it is marked; nothing if the template leaves it out."""
        content = messages[i]["content"]
        thought = content[: content.rindex(THOUGHT) + len(THOUGHT)] if THOUGHT in content else ""
        for head in dict.fromkeys(("", thought)):
            marked = self._marked([*messages[:i], {**messages[i], "content": head + mark}, *messages[i + 1 :]])
            if marked is None:
                continue
            if marked == text:
                return []
            before, *after = marked.split(mark)
            if len(after) == 1 and _frames(text, before, after[0]):
                return [(len(before), len(text) - len(after[0]), i)]
        if not content.strip():
            return []
        raise NoPlaceError(f"does not write the content of message {i} ({messages[i]['role']}) once, in one piece")


def _with_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    """The message with its reasoning under the names that templates read."""
    given = next((message[name] for name in REASONING if message.get(name) is not None), None)
    return message if given is None else {"thinking": given, **message, "reasoning_content": given}


def _unused(text: str) -> str:
    """A character for private use that the text does not have: no case, no blank, nothing to escape."""
    return next(chr(code) for code in range(0xE000, 0xF900) if chr(code) not in text)


def _frames(text: str, before: str, after: str) -> bool:
    return len(before) + len(after) <= len(text) and text.startswith(before) and text.endswith(after)


def _between(text: str, marked: str, mark: str, contents: dict[int, str]) -> list[Stretch] | None:
    """The places of the contents, where the text is the marked one with its marks replaced; otherwise None."""
    first, *rest = re.split(f"{mark}([0-9]+){mark}", marked)
    numbers = [int(number) for number in rest[::2]]
    if len(set(numbers)) < len(numbers) or not text.startswith(first):
        return None
    at, found = len(first), []
    for i, after in zip(numbers, rest[1::2], strict=True):
        content = contents[i]
        for written in (content, content.strip(), content.lstrip(), content.rstrip()):
            if text.startswith(written + after, at):
                found.append((at, at + len(written), i))
                at += len(written) + len(after)
                break
        else:
            return None
    return found if at == len(text) else None


def answer_to(renderer: Renderer, asked: list[dict[str, Any]] | dict[str, Any]) -> dict[str, Any]:
    """The text of a chat and the places of its contents, or that of a prompt; or (kind, words) of what is wrong."""
    renderer.dated = False
    try:
        if isinstance(asked, dict):
            return {"text": renderer.prompt(asked), "places": [], "dated": renderer.dated}
        messages, text = asked, renderer.text(asked)
        return {"text": text, "places": renderer.places(text, messages), "dated": renderer.dated}
    except Exception as error:
        return {"flaw": _in_words(error)}


def _in_words(error: Exception) -> tuple[str, str]:
    """The kind of an error and what happened, which comes after "the chat template"."""
    said = f"{error!s:.200}"
    if isinstance(error, NoPlaceError):
        return "parts", said
    if isinstance(error, TooLongError):
        return "output", said
    if isinstance(error, MemoryError):
        return "memory", "needs too much memory"
    if isinstance(error, SecurityError):
        return "unsafe", f"does what the sandbox forbids: {said!a}"
    if isinstance(error, TemplateSyntaxError):
        return "syntax", f"is no valid Jinja, line {error.lineno}: {said!a}"
    if type(error) is TemplateError:
        return "refused", f"refuses this chat: {said!a}"
    return "failed", f"fails: {type(error).__name__} {said!a}"


def limit_process(memory: int) -> None:
    """Let this process use so many bytes, open no file, write none, and start no other process."""
    try:
        import resource
    except ImportError:  # Windows
        return
    # no number is left for a new file: with 3, a closed standard error would make room for one
    for name, most in (("RLIMIT_AS", memory), ("RLIMIT_FSIZE", 0), ("RLIMIT_NOFILE", 0), ("RLIMIT_NPROC", 0)):
        with suppress(AttributeError, OSError, ValueError):  # this system has no such limit, or a lower one already
            resource.setrlimit(getattr(resource, name), (most, most))


def _end_after(seconds: float) -> None:
    """End this process after these seconds, 0 for never: a parent that was killed ends nobody."""
    if hasattr(signal, "setitimer"):  # not on Windows
        signal.setitimer(signal.ITIMER_REAL, seconds)


def _say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def main() -> None:
    """The first line is the job, each other one a chat; each gets an answer, and the job one more when it can begin."""
    job = json.loads(sys.stdin.readline())
    Renderer({**job, "template": WARM_UP, "given": {}}).text([])
    limit_process(job["memory"])
    _say({})
    _end_after(job["seconds"])
    try:
        renderer = Renderer(job)
    except Exception as error:
        _say({"flaw": _in_words(error)})
        return
    _say({})
    _end_after(0)
    for line in sys.stdin:
        _end_after(job["seconds"])
        _say(answer_to(renderer, json.loads(line)))
        _end_after(0)


if __name__ == "__main__":
    main()
