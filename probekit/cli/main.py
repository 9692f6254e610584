"""`probekit`: the commands, and how errors are reported.

Exit codes: 0 done, 2 usage, 3 data, 4 storage, 5 a store or results with other settings are in the
way, 130 interrupted (143 by SIGTERM, 138 by SIGUSR1). An error is one line on stderr. A traceback means a bug in
probekit.

Ctrl-C, SIGTERM, SIGUSR1 and SIGUSR2 end a command in order, and a second one at once. The exit code is the shell's, 128
+ the number of the signal. A batch script can so tell SIGUSR1 (138), which Slurm sends before the time limit if it is
asked to, from SIGTERM (143), which may mean that the job was cancelled.
"""

import os
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from probekit.cli import console
from probekit.cli.commands import COMMANDS, GROUPS, SECTIONS, SUMMARIES, ByCommand
from probekit.errors import ProbekitError, StorageError
from probekit.machine.program import STOPPING, has_default, is_out_of_memory, stop_at_once
from probekit.machine.versions import __version__

OTHERS = "In every command"  # the heading of options that configure the others
SECONDS_OF_ONE = 1.0  # shells, `timeout` and Slurm may send one signal twice: to the process, and to its group
_AT_ONCE = b"probekit: interrupted again, and ended at once; run the same command again\n"


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


class _Group(TyperGroup):
    """Makes a command when it is run; `probekit --help` makes none."""

    def __init__(self, **settings: Any):
        super().__init__(**settings)
        self.commands: Any = ByCommand(_command)  # typer only reads it

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands under their headings, without importing them."""
        width = max(map(len, SUMMARIES))
        for heading, summaries in GROUPS.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(width), summary) for name, summary in summaries.items()])


class _Command(TyperCommand):
    """Shows its options under their headings."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        found: dict[str, list[tuple[str, str]]] = {}
        for one in self.get_params(ctx):
            if (row := one.get_help_record(ctx)) is not None:
                usual = "Arguments" if one.param_type_name == "argument" else OTHERS
                found.setdefault(getattr(one, "rich_help_panel", None) or usual, []).append(row)
        if len(found.keys() - {"Arguments"}) == 2:  # the options of few, and those of every command
            found["Options"] += found.pop(OTHERS)
        for heading, rows in found.items():
            with formatter.section(heading):
                formatter.write_dl(rows)


app = typer.Typer(
    name="probekit", cls=_Group, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False
)


def _command(name: str) -> Any:
    """One command as typer runs it."""
    one = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    one.command(name, cls=_Command)(COMMANDS[name].function)
    return typer.main.get_command(one)


def _show_version(value: bool) -> None:
    if value:
        console.result(f"probekit {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and stop.")
    ] = False,
) -> None:
    """What a transformer knows, at which layer, and how sure you can be.

    \b
    The main job, on a small model and task that come with probekit:
        probekit demo
    \b
    The same for your own model and data:
        probekit extract --model gpt2 --dataset sst2
        probekit train-probe --layer all
    """
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help(), err=True)
        raise typer.Exit(2)


def main() -> NoReturn:
    """Run the `probekit` program and exit."""
    code = run(sys.argv[1:])
    end_by_signals()  # the work is done: no traceback while Python exits
    exec("")  # clears a mark of Python's: an interrupt inside generated code, as of a dataclass, would end it by signal
    sys.exit(code)


def run(args: Sequence[str]) -> int:
    """Run one command and return its exit code; every error that the user can fix is one line on stderr."""
    _open_closed_streams()
    _show_odd_characters()
    with orderly_signals() as exit_code, _plain_warnings():
        try:
            code = _invoke(list(args))
            sys.stdout.flush()
            return code
        except BrokenPipeError:
            return _reader_has_gone()
        except KeyboardInterrupt as stop:
            console.interrupted(stop)
            return exit_code()
        except typer.TyperException as e:
            console.error(_usage_message(e))
            return e.exit_code
        except ProbekitError as e:
            console.error(e)
            return e.exit_code
        except Exception as e:
            if _out_of_memory(e):
                console.error(_memory_message(e))
            elif isinstance(e, OSError):
                console.error(_os_message(e))
            else:
                raise
            return StorageError.exit_code


def _invoke(args: list[str]) -> int:
    command = typer.main.get_command(app)
    try:
        with command.make_context("probekit", args, obj=SECTIONS) as ctx:
            command.invoke(ctx)
    except typer.Exit as e:
        return e.exit_code
    return 0


def _usage_message(e: typer.TyperException) -> str:
    ctx, message = getattr(e, "ctx", None), e.format_message()
    return message + (f" (see '{ctx.command_path} --help')" if ctx else "")


def _os_message(e: OSError) -> str:
    return f"{e.strerror or e}" + (f": {e.filename!r}" if e.filename is not None else "")


def _out_of_memory(e: Exception) -> bool:
    torch = sys.modules.get("torch")
    return is_out_of_memory(e) or (torch is not None and isinstance(e, torch.OutOfMemoryError))


def _memory_message(e: Exception) -> str:
    if "thread" in str(e):
        return "no more threads can be started; end other programs, or raise the limits (ulimit -u, -v)"
    return "out of memory; a smaller --batch-tokens, fewer --points or a smaller model need less"


def _reader_has_gone() -> int:
    """The exit code after `| head` has read enough; what is still buffered is dropped."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 128 + signal.SIGPIPE


def _open_closed_streams() -> None:
    """Replace the streams that `>&-` closed, which are None, by /dev/null."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115


def _show_odd_characters() -> None:
    """Print escapes on a terminal without UTF-8, instead of raising UnicodeEncodeError."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Print each warning as one line, without the source line that raised it."""
    before = warnings.showwarning

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        console.warn(message)

    warnings.showwarning = show
    try:
        yield
    finally:
        warnings.showwarning = before


if __name__ == "__main__":
    main()
