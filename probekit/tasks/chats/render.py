"""Chats as texts: the parent of the process that runs a chat template (see `worker`), with limits for each chat."""

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from probekit.errors import DataError
from probekit.tasks.chats.template import ChatTemplate, described
from probekit.tasks.regions import Region

SECONDS = 10.0  # for one chat, which takes less than a millisecond
MEMORY = 1 << 30  # bytes of the process
MOST_TEXT = 1_000_000  # characters for a chat of no content; ten times the content may be added
MAX_ANSWER = 1 << 28  # bytes
WORKER = Path(__file__).with_name("worker.py")
LIMITS = ("time", "memory", "output")  # kinds of flaws that cost time
ENVIRONMENT = ("PATH", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "SYSTEMROOT", "TZ", "LANG", "LC_ALL")

Message = dict[str, Any]


class Rendering(NamedTuple):
    """A chat as a text, or what is wrong with it.

    Attributes:
        text: as the model reads it.
        regions: the contents of the messages in the text, by role.
        flaw: (kind, what comes after "the chat template"), or None.
        dated: whether the template wrote the date of today.
    """

    text: str
    regions: list[Region]
    flaw: tuple[str, str] | None = None
    dated: bool = False


def render_chats(
    template: ChatTemplate, chats: Sequence[Sequence[Message]], add_generation_prompt: bool = False
) -> Iterator[Rendering]:
    """Each chat as a text, with the places of its contents.

    Raises:
        DataError: the template is no valid Jinja.
    """
    given = {**template.tokens, "add_generation_prompt": add_generation_prompt}
    job = {"template": template.text, "given": given, "most": MOST_TEXT, "memory": MEMORY}
    child: _Child | None = None
    try:
        for chat in chats:
            if child is None:
                child = _Child()
                if flaw := child.ask(job).get("flaw"):
                    raise DataError(f"{described(template)} {flaw[1]}; correct it, or give another one")
            answer = child.ask(chat)
            if (flaw := answer.get("flaw")) and flaw[0] in ("time", "memory", "ended"):
                child.close()
                child = None
            yield _rendering(chat, answer)
    finally:
        if child is not None:
            child.close()


def _rendering(chat: Sequence[Message], answer: dict[str, Any]) -> Rendering:
    if flaw := answer.get("flaw"):
        return Rendering("", [], (str(flaw[0]), str(flaw[1])))
    regions = [Region(str(chat[i]["role"]), start, end) for start, end, i in answer["places"]]
    return Rendering(answer["text"], regions, dated=bool(answer["dated"]))


class _Child:
    """The process, asked one line at a time; its answers are read by a thread, so that waiting for one has an end."""

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

    def ask(self, what: Any) -> dict[str, Any]:
        """The answer to one line, or the flaw of a process that does not answer."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(what).encode() + b"\n")
            self.process.stdin.flush()
            line = self.answers.get(timeout=SECONDS)
        except queue.Empty:
            return {"flaw": ("time", f"takes more than {SECONDS:g} s")}
        except OSError:
            line = b""
        if not line.endswith(b"\n"):
            return {"flaw": ("ended", "ends its process")}
        return json.loads(line)

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            try:
                if pipe is not None:
                    pipe.close()
            except OSError:  # what was not written yet
                continue
