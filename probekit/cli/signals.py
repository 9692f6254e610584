"""What signals do to a command: Ctrl-C, SIGTERM, SIGUSR1 and SIGUSR2 end it in order, and a second one at once.

The exit code is the shell's, 128 + the number of the signal. A batch script can so tell SIGUSR1 (138), which Slurm
sends before the time limit if it is asked to, from SIGTERM (143), which may mean that the job was cancelled.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from probekit.machine.program import STOPPING, has_default, stop_at_once

SECONDS_OF_ONE = 1.0  # shells, `timeout` and Slurm may send one signal twice: to the process, and to its group
_AT_ONCE = b"probekit: error: interrupted again, and ended at once; run the same command again\n"


@contextmanager
def orderly_signals() -> Iterator[Callable[[], int]]:
    """Let the first signal raise KeyboardInterrupt, a second one end the process at once, and lose none.

    Python drops an interrupt that falls into a callback, of a weak reference or a finalizer: it is raised again soon.
    Signals that are ignored stay so, as does a handler of SIGINT that is not Python's.

    Yields:
        A function that gives the exit code of an interrupted command.
    """
    received: list[tuple[int, float]] = []  # the first signal, and when

    def stop(number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if not received:
            received.append((number, now))
        elif now - received[0][1] < SECONDS_OF_ONE:
            return
        else:
            os.write(2, _AT_ONCE)
            os._exit(128 + number)
        interrupt(number, frame)

    def interrupt(number: int, frame: FrameType | None) -> None:
        if frame is not None and frame.f_code is again.__code__:
            signal.setitimer(signal.ITIMER_REAL, 0.001)  # the callback has not ended
        else:
            raise KeyboardInterrupt

    def again(lost: Any) -> None:
        if lost.exc_type is KeyboardInterrupt:
            signal.setitimer(signal.ITIMER_REAL, 0.001)
        else:
            show(lost)

    show = sys.unraisablehook
    try:
        before = _handled(stop, interrupt)
    except ValueError:  # only the main thread handles signals
        yield lambda: 128 + signal.SIGINT
        return
    sys.unraisablehook = again
    try:
        yield lambda: 128 + (received[0][0] if received else signal.SIGINT)
    finally:
        sys.unraisablehook = show
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


def _handled(stop: Callable[..., None], interrupt: Callable[..., None]) -> dict[int, Any]:
    """Set the handlers; those that were there before."""
    before: dict[int, Any] = {signal.SIGALRM: signal.signal(signal.SIGALRM, interrupt)}
    for number in STOPPING:
        if has_default(number) or signal.getsignal(number) is stop_at_once:
            before[number] = signal.signal(number, stop)
    return before


def end_by_signals() -> None:
    """Let signals end the process silently, as they do without handlers; those that are ignored stay so."""
    for number in STOPPING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
