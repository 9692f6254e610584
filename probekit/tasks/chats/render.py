"""Chats as texts: the parent of the process that runs a chat template (see `worker`), with limits for each chat."""

import hashlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from probekit.errors import DataError, ProbekitError
from probekit.tasks.fields import Region


@dataclass(frozen=True)
class ChatTemplate:
    """The Jinja template that makes a text of messages.

    Attributes:
        text: in Jinja.
        origin: a file's name, for errors and for the record of a run.
        tokens: texts of special tokens by name, such as "bos_token", which the template may write.
        kind: what it is, for errors.
    """

    text: str
    origin: str
    tokens: Mapping[str, str] = field(default_factory=dict)
    kind: str = "chat template"


def template_sha256(template: ChatTemplate) -> str:
    """Hex sha256 of the template's text."""
    return hashlib.sha256(template.text.encode("utf-8", "surrogatepass")).hexdigest()


def described(template: ChatTemplate) -> str:
    """The template as an error names it."""
    return f"the {template.kind} of {ascii(template.origin)[1:-1]}"


SECONDS = 10.0  # for one chat, which takes less than a millisecond
START = 60.0  # seconds for the process to start, a fifth of one on an idle machine
MEMORY = 1 << 30  # bytes of the process
MOST_TEXT = 1_000_000  # characters for a chat of no content; ten times the content may be added
MAX_ANSWER = 1 << 28  # bytes
AHEAD = 1 << 14  # bytes of chats that are sent before they are asked for: less than a pipe holds, so that sending ends
WORKER = Path(__file__).with_name("worker.py")
ENDED = ("time", "memory", "ended")  # kinds of flaws after which the process is replaced
LIMITS = (*ENDED, "output")  # kinds of flaws that cost time
ENVIRONMENT = ("PATH", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "SYSTEMROOT", "TZ", "LANG", "LC_ALL")

Message = dict[str, Any]


class Rendering(NamedTuple):
    """A chat as a text, or what is wrong with it.

    Attributes:
        text: as the model reads it.
        regions: the contents of the messages in the text, by role.
        flaw: (kind, what comes after "the chat template"), or None.
        date: of today, if the template asked for it.
    """

    text: str
    regions: list[Region]
    flaw: tuple[str, str] | None = None
    date: str | None = None


def render_chats(
    template: ChatTemplate, chats: Sequence[Sequence[Message]], add_generation_prompt: bool = False
) -> Generator[Rendering]:
    """Each chat as a text, with the places of its contents.

    Raises:
        DataError: the template is no valid Jinja.
        ProbekitError: the process does not start.
    """
    child: _Child | None = None
    now = datetime.now()
    sent, waiting = 0, deque[int]()  # chats that were sent, and the bytes of those without an answer
    try:
        for done, chat in enumerate(chats):
            if child is None:
                child, sent = _started(template, add_generation_prompt, now), done
                waiting.clear()
            while sent < len(chats):
                line = _line(chats[sent])
                if waiting and sum(waiting) + len(line) > AHEAD:
                    break
                child.send(line)
                waiting.append(len(line))
                sent += 1
            answer = child.answer(SECONDS)
            waiting.popleft()
            if (flaw := answer.get("flaw")) and flaw[0] in ENDED:
                child.close()
                child = None
            yield _rendering(chat, answer, now)
    finally:
        if child is not None:
            child.close()


def render_prompts(template: ChatTemplate, rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[str]:
    """The text of each prompt; a row has the variables of one, and a name for errors.

    Raises:
        DataError: the template is no valid Jinja, or cannot be used for a row.
        ProbekitError: the process does not start.
    """
    texts: list[str] = []
    with closing(render_chats(template, rows)) as renderings:  # pyright: ignore[reportArgumentType]
        for name, one in zip(names, renderings, strict=True):
            if one.flaw is not None:
                raise DataError(f"example {name!a:.60}: {described(template)} {one.flaw[1]}; correct it")
            texts.append(one.text)
    return texts


def _started(template: ChatTemplate, add_generation_prompt: bool, now: datetime) -> "_Child":
    """A process that has compiled the template."""
    given = {**template.tokens, "add_generation_prompt": add_generation_prompt}
    job = {"template": template.text, "given": given, "most": MOST_TEXT, "memory": MEMORY, "now": now.isoformat()}
    child = _Child()
    child.send(_line({**job, "seconds": 2 * SECONDS}))  # this process waits for half of it
    if child.answer(START).get("flaw"):
        child.close()
        raise ProbekitError(
            f"the process that runs chat templates does not start; try it: {sys.executable} -P {WORKER} < /dev/null"
        )
    if flaw := child.answer(SECONDS).get("flaw"):
        child.close()
        raise DataError(f"{described(template)} {flaw[1]}; correct it, or give another one")
    return child


def _line(what: Any) -> bytes:
    return json.dumps(what).encode() + b"\n"


def _rendering(chat: Sequence[Message], answer: dict[str, Any], now: datetime) -> Rendering:
    if flaw := answer.get("flaw"):
        return Rendering("", [], (str(flaw[0]), str(flaw[1])))
    regions = [Region(str(chat[i]["role"]), start, end) for start, end, i in answer["places"]]
    return Rendering(answer["text"], regions, date=now.date().isoformat() if answer["dated"] else None)


class _Child:
    """The process, which answers each line with one; a thread reads them, so that waiting for one has an end."""

    def __init__(self) -> None:
        environment = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
        self.process = subprocess.Popen(
            [sys.executable, "-P", str(WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment | {"PYTHONHASHSEED": "0", "PYTHONIOENCODING": "utf-8"},
        )
        self.answers: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        line = b"\n"
        while line:
            line = self.process.stdout.readline(MAX_ANSWER)
            self.answers.put(line)

    def send(self, line: bytes) -> None:
        """Send a line; a process that has ended takes none, and its next answer says so."""
        assert self.process.stdin is not None
        with suppress(OSError):
            self.process.stdin.write(line)
            self.process.stdin.flush()

    def answer(self, seconds: float) -> dict[str, Any]:
        """The next answer, or the flaw of a process that gives none in time."""
        try:
            return json.loads(self.answers.get(timeout=seconds))
        except queue.Empty:
            return {"flaw": ("time", f"takes more than {seconds:g} s")}
        except ValueError:  # an empty line, or the beginning of one
            return {"flaw": ("ended", "ends its process")}

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            with suppress(OSError):  # what was not written yet
                if pipe is not None:
                    pipe.close()
