"""A program for PATH that starts at once: a stub, which has a fork of the test's own process do its work.

Python with torch takes seconds to start. The stub passes its arguments, environment and streams to a server, and
signals to the process that works for it; its exit code is that of this process.
"""

import array
import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)


class WarmProgram:
    """Writes the stub to `path`, and starts the server, which forks a process of `work(arguments)` for each call."""

    def __init__(self, path: Path, work: Callable[[list[str]], int]):
        address = f"{path}.socket"
        path.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E {__file__} {address} "$@"\n')
        path.chmod(0o755)
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(address)
            listening.listen()
            self.pid = os.fork()
            if self.pid == 0:
                _serve(listening, work)

    def close(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def _serve(listening: socket.socket, work: Callable[[list[str]], int]) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the children
    while True:
        caller, _ = listening.accept()
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            code = 99
            try:
                code = _called(caller, work)
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                caller.send(bytes([code]))
                os._exit(code)
        caller.close()


def _called(caller: socket.socket, work: Callable[[list[str]], int]) -> int:
    data, streams, _, _ = socket.recv_fds(caller, 1 << 20, 3)
    call = json.loads(data)
    for at, fd in enumerate(streams):
        os.dup2(fd, at)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
    os.chdir(call["folder"])
    os.environ.clear()
    os.environ.update(call["environment"])
    caller.send(os.getpid().to_bytes(4, "big"))
    return work(call["arguments"])


def main() -> None:
    """The stub."""
    address, *arguments = sys.argv[1:]
    call = {"arguments": arguments, "folder": str(Path.cwd()), "environment": dict(os.environ)}
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(address)
        fds = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))
        server.sendmsg([json.dumps(call).encode()], [fds])
        pid = int.from_bytes(server.recv(4), "big")
        for number in FORWARDED:
            signal.signal(number, lambda number, _: os.kill(pid, number))
        sys.exit((server.recv(1) or b"\x01")[0])


if __name__ == "__main__":
    main()
