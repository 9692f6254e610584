"""The `probekit` program while its modules are imported: what signals do, and what says that memory ran out.

A program that imports probekit keeps its own handlers.
"""

# the module `signal` itself imports enum, for some milliseconds
import _signal  # pyright: ignore[reportMissingImports]
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# Slurm sends SIGTERM at the time limit, and SIGUSR1 (submitit: SIGUSR2) before it if it is asked to
_NAMES = ("SIGINT", "SIGTERM", "SIGUSR1", "SIGUSR2")
STOPPING = tuple(getattr(_signal, name) for name in _NAMES if hasattr(_signal, name))  # Windows has only two


def stop_at_once(number: int, frame: object) -> None:
    """End with one line: a KeyboardInterrupt during an import would be a traceback, or be lost in a callback."""
    os.write(2, b"probekit: interrupted\n")
    os._exit(128 + number)


def is_running() -> bool:
    """True if this process is `probekit ...` or `python -m probekit ...`."""
    name = sys.argv[0] if sys.argv else ""
    base = os.path.basename(name)  # noqa: PTH119  (pathlib takes 10 ms to import)
    if name == "-m" or base == "__main__.py":  # while the package is imported, and afterwards
        at = sys.orig_argv.index("-m") if "-m" in sys.orig_argv else len(sys.orig_argv)
        return sys.orig_argv[at + 1 : at + 2] == ["probekit"]
    return base in ("probekit", "probekit.exe")


def has_default(number: int) -> bool:
    """True if a signal does what it does in a new Python: it is neither ignored (`nohup`) nor someone else's."""
    return _signal.getsignal(number) in (_signal.SIG_DFL, _signal.default_int_handler)


def stop_at_signals() -> None:
    """Let the signals end the program at once, unless they are ignored or someone else's."""
    for number in STOPPING if is_running() else ():
        if has_default(number):
            _signal.signal(number, stop_at_once)


@contextmanager
def loading() -> Iterator[None]:
    """Import libraries without collecting garbage, and leave what they made out of every later collection.

    A quarter of a million objects of torch and the others stay until the end; collections went through them while they
    were made, and again as Python exits.
    """
    if not is_running() or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


NO_MEMORY = (
    "DefaultCPUAllocator",  # torch on a CPU
    "can't allocate memory",
    "Cannot allocate memory",  # ENOMEM
    "failed to map segment",  # a shared library, where no address is left
    "can't start new thread",
    "Resource temporarily unavailable",  # a thread that C++ could not start
)


def is_out_of_memory(error: BaseException) -> bool:
    """True for a MemoryError, and for other errors whose message says that memory or threads ran out."""
    return isinstance(error, MemoryError) or any(words in str(error) for words in NO_MEMORY)
