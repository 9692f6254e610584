"""Work in forked children, which may be killed; the parent stays warm and never runs a thread."""

import json
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

PATIENCE = 60  # seconds after which a child counts as hung


@dataclass(frozen=True)
class End:
    """How a child ended: exit code (negative: the signal), what its work returned, what it wrote to stderr."""

    code: int
    value: Any
    stderr: str

    @property
    def is_done(self) -> bool:
        return self.code == 0


class Child:
    """One forked process; `work` returns what JSON can hold. `ready` waits until it has reached its work."""

    def __init__(self, work: Callable[[], Any]):
        self._value, value = os.pipe()
        self._stderr, stderr = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._value)
            os.close(self._stderr)
            _work(work, value, stderr)
        os.close(value)
        os.close(stderr)

    def ready(self) -> None:
        os.read(self._value, 1)

    def kill(self, number: int = signal.SIGKILL) -> None:
        os.kill(self.pid, number)

    def end(self, patience: float = PATIENCE) -> End:
        said = {self._value: b"", self._stderr: b""}
        still = set(said)
        while still:
            readable, _, _ = select.select(list(still), [], [], patience)
            if not readable:
                self.kill()
            for fd in readable:
                part = os.read(fd, 1 << 16)
                said[fd] += part
                still -= set() if part else {fd}
        _, status = os.waitpid(self.pid, 0)
        os.close(self._value)
        os.close(self._stderr)
        value = said[self._value].removeprefix(b"!")
        stderr = said[self._stderr].decode(errors="replace")
        return End(os.waitstatus_to_exitcode(status), json.loads(value) if value else None, stderr)


def _work(work: Callable[[], Any], to_parent: int, stderr: int) -> None:
    code = 99
    try:
        os.dup2(stderr, 1)
        os.dup2(stderr, 2)
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
        os.write(to_parent, b"!")
        value = json.dumps(work()).encode()
        while value:
            value = value[os.write(to_parent, value) :]
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def in_child(work: Callable[[], Any]) -> End:
    return Child(work).end()


def killed_after(work: Callable[[], Any], seconds: float, number: int = signal.SIGKILL) -> End:
    """Let a child work and send it a signal after that time, whatever it is doing then."""
    handler = signal.getsignal(signal.SIGINT)
    if number == signal.SIGINT:  # ignored by the child until the work can catch it
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    child = Child(work)
    signal.signal(signal.SIGINT, handler)
    child.ready()
    time.sleep(seconds)
    child.kill(number)  # not waited for yet, so the number is still its own
    return child.end()
