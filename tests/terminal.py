"""A terminal as stderr, by default one that does not say how wide it is (as a pseudo-terminal is until it is set)."""

import os
import sys
import termios
from threading import Thread

import pytest


class Terminal:
    """What was written to stderr since it became a terminal; `read` gives stderr back."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, columns: int = 0):
        self.ours, theirs = os.openpty()
        if columns:
            termios.tcsetwinsize(theirs, (24, columns))
        assert os.get_terminal_size(theirs).columns == columns
        self.file = os.fdopen(theirs, "w")
        self.patch, self.said = monkeypatch, b""
        self.reader = Thread(target=self._drain)
        self.reader.start()
        self.before = sys.stderr
        monkeypatch.setattr(sys, "stderr", self.file)

    def _drain(self) -> None:
        try:
            while chunk := os.read(self.ours, 4096):
                self.said += chunk
        except OSError:  # Linux says so when the other end is closed
            pass

    def read(self) -> str:
        self.patch.setattr(sys, "stderr", self.before)
        self.file.close()
        self.reader.join()
        os.close(self.ours)
        return self.said.decode()
