"""The `probekit` program while its modules are imported: what Ctrl-C does, and what says that memory ran out.

A program that imports probekit keeps its own handler of Ctrl-C.
"""

# the module `signal` itself imports enum, for some milliseconds
import _signal  # pyright: ignore[reportMissingImports]
import os
import sys


def stop_at_once(number: int, frame: object) -> None:
    """End with one line: a KeyboardInterrupt during an import would be a traceback, or be lost in a callback."""
    os.write(2, b"probekit: error: interrupted\n")
    os._exit(130)


def is_running() -> bool:
    """True if this process is `probekit ...` or `python -m probekit ...`."""
    name = sys.argv[0] if sys.argv else ""
    if name == "-m":  # as it is while the package is imported
        at = sys.orig_argv.index("-m") if "-m" in sys.orig_argv else len(sys.orig_argv)
        return sys.orig_argv[at + 1 : at + 2] == ["probekit"]
    return os.path.basename(name) in ("probekit", "probekit.exe")  # noqa: PTH119  (pathlib takes 10 ms to import)


def stop_at_interrupts() -> None:
    """Let Ctrl-C end the program at once, unless it is ignored (`nohup`) or someone else's."""
    if is_running() and _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, stop_at_once)


def raise_at_interrupts() -> None:
    """Let Ctrl-C raise KeyboardInterrupt, now that the commands catch it."""
    if _signal.getsignal(_signal.SIGINT) is stop_at_once:
        _signal.signal(_signal.SIGINT, _signal.default_int_handler)


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
