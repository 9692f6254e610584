"""One line on stderr, an exit code that says whose matter it is, and no traceback."""

import errno
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import probekit
from probekit.cli import main as cli
from probekit.errors import DataError, ResumeMismatch, StorageError, UsageError
from probekit.options import ExtractOptions, ModelOptions

INTERRUPTED = "probekit: interrupted: what was saved before is kept; run the same command again"
ARGS = ["extract", "--model", "m", "--dataset", "d"]
Failing = Callable[[BaseException], None]


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Failing:
    """Make the work of `extract` raise."""

    def fail_with(error: BaseException) -> None:
        def load(*_: Any) -> None:
            raise error

        monkeypatch.setattr("probekit.cli.extract.load", load)

    return fail_with


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (UsageError("no such thing"), 2, "no such thing"),
        (DataError("row 3: empty\n  text"), 3, "row 3: empty text"),
        (StorageError("damaged \x1b[2J[bold]"), 4, r"damaged \x1b[2J[bold]"),
        (ResumeMismatch("other settings"), 5, "other settings"),
        (OSError(errno.ENOSPC, "No space left on device", "runs/x"), 4, "No space left on device: 'runs/x'"),
        (PermissionError(errno.EACCES, "Permission denied", "a\nb"), 4, r"Permission denied: 'a\nb'"),
        (MemoryError(), 4, "out of memory"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate"), 4, "out of memory"),
        (RuntimeError("can't start new thread"), 4, "no more threads can be started; end other programs"),
        (ImportError("libtorch_cpu.so: failed to map segment from shared object"), 4, "out of memory"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), 4, "out of memory"),
    ],
)
def test_each_error_has_its_code(
    failing: Failing, capsys: pytest.CaptureFixture[str], error: BaseException, code: int, line: str
) -> None:
    failing(error)
    assert cli.run(ARGS) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"probekit: error: {line}")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ("", "what was saved before is kept; run the same command again\n"),
        ("saved 3 of 9 texts; run the same command again to resume",) * 2,
        ("interrupted after step 5; to resume, give the same command again", "after step 5; to resume, give the"),
    ],
)
def test_an_interruption_is_no_error_and_says_how_to_resume(
    failing: Failing, capsys: pytest.CaptureFixture[str], said: str, line: str
) -> None:
    failing(KeyboardInterrupt(said))
    assert cli.run(ARGS) == 130
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"probekit: interrupted: {line}")


def test_a_cpu_without_memory_is_no_fault_of_our_own(failing: Failing, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 55, dtype=torch.uint8)
    failing(caught.value)
    assert cli.run(ARGS) == 4
    assert capsys.readouterr().err.startswith("probekit: error: out of memory; a smaller --batch-tokens")


def test_a_fault_of_our_own_is_not_hidden(failing: Failing) -> None:
    failing(RuntimeError("a bug"))
    with pytest.raises(RuntimeError, match="a bug"):
        cli.run(ARGS)


def test_both_spellings_of_a_type(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def planned(_: Any, model: ModelOptions, __: Any, options: ExtractOptions) -> None:
        seen.extend([model.dtype, str(options.dtype)])

    monkeypatch.setattr("probekit.cli.extract.planned", planned)
    monkeypatch.setattr("probekit.cli.extract.write_store", lambda *_: ("store", {}))
    for compute, store in (("bf16", "fp16"), ("bfloat16", "float16"), ("fp32", "bfloat16")):
        assert cli.run([*ARGS, "--dtype", compute, "--store-dtype", store]) == 0
    assert seen == ["bfloat16", "float16", "bfloat16", "float16", "float32", "bfloat16"]


def test_warnings_are_one_line_each(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def load(*_: Any) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("lbfgs\n  did not converge \x1b[0m", UserWarning, stacklevel=1)
        raise UsageError("after it")

    monkeypatch.setattr("probekit.cli.extract.load", load)
    assert cli.run(ARGS) == 2
    err = capsys.readouterr().err
    assert err == "probekit: warning: lbfgs did not converge \\x1b[0m\nprobekit: error: after it\n"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGUSR1, 138)])
def test_signals_are_as_orderly_as_ctrl_c(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: int, code: int
) -> None:
    before = signal.getsignal(number)
    monkeypatch.setattr("probekit.cli.extract.load", lambda *_: signal.raise_signal(number))
    assert cli.run(ARGS) == code
    assert capsys.readouterr().err.splitlines()[-1] == INTERRUPTED
    assert signal.getsignal(number) is before


def test_an_ignored_signal_stays_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """As under `nohup`, or in a background job of a script."""

    def load(*_: Any) -> None:
        signal.raise_signal(signal.SIGUSR1)
        raise UsageError("after it")

    monkeypatch.setattr("probekit.cli.extract.load", load)
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        assert cli.run(ARGS) == 2
        assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize(
    ("seconds", "last", "cleaned_up"),
    [
        (0, "probekit: interrupted again, and ended at once; run the same command again", False),
        (60, INTERRUPTED, True),
    ],
)
def test_a_second_signal_ends_at_once_and_one_that_came_twice_does_not(
    seconds: float, last: str, cleaned_up: bool
) -> None:
    """The command is cleaning up after the first one. Some programs send one signal to the process and to its group."""
    done = _python(
        "import signal, sys\n"
        "from probekit.cli import extract, main\n"
        f"main.SECONDS_OF_ONE = {seconds}\n"
        "def load(*_):\n"
        "    try:\n"
        "        signal.raise_signal(signal.SIGTERM)\n"
        "    finally:\n"
        "        signal.raise_signal(signal.SIGTERM)\n"
        "        print('cleaned up', flush=True)\n"
        "extract.load = load\n"
        f"sys.exit(main.run({ARGS!r}))\n"
    )
    assert done.returncode == 143
    assert done.stderr.splitlines()[-1] == last
    assert ("cleaned up" in done.stdout) == cleaned_up


def test_main_works_outside_the_main_thread(failing: Failing) -> None:
    failing(DataError("x"))
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(cli.run(ARGS)))
    thread.start()
    thread.join()
    assert codes == [3]


def test_no_command_shows_help_and_counts_as_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run([]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "Usage: probekit" in err


@pytest.mark.parametrize("command", sorted(cli.COMMANDS))
def test_help_of_each_command_has_an_example(capsys: pytest.CaptureFixture[str], command: str) -> None:
    assert cli.run([command, "--help"]) == 0
    out, _ = capsys.readouterr()
    assert f"    probekit {command}" in out
    assert "--config FILE" in out
    assert "--set COMMAND.KEY=VALUE" in out


def _python(code: str, *, stdout: Any = subprocess.PIPE, **env: str) -> subprocess.CompletedProcess[str]:
    root = str(Path(probekit.__file__).parents[1])
    return subprocess.run(
        [sys.executable, "-c", code],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": root, **env},
    )


def test_help_and_version_import_none_of_the_heavy_libraries() -> None:
    done = _python(
        "import sys; from probekit.cli.main import run\n"
        "for args in (['--version'], ['--help'], ['extract', '--help'], ['train-probe', '--help']):\n"
        "    assert run(args) == 0\n"
        "heavy = {'torch', 'numpy', 'sklearn', 'transformers', 'datasets', 'pandas', 'matplotlib', 'yaml', 'rich'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    assert done.stdout.splitlines()[0] == f"probekit {probekit.__version__}"
    assert done.stdout.splitlines()[-1] == "[]"
    assert done.stderr == ""


def test_a_reader_that_has_gone_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = _python("import sys; from probekit.cli.main import run; sys.exit(run(['--help']))", stdout=writer)
    os.close(writer)
    assert done.stderr == ""
    assert done.returncode == 128 + signal.SIGPIPE


def test_a_terminal_without_utf8_shows_escapes() -> None:
    code = "import sys; from probekit.cli import main as m; m._show_odd_characters(); m.console.result('é 漢')"
    done = _python(code, PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert done.stdout == "\\xe9 \\u6f22\n"


def test_a_closed_stdout_is_no_traceback(tmp_path: Path) -> None:
    code = "from probekit.cli.main import main; main()"
    command = [sys.executable, "-c", code, "ls", str(tmp_path)]
    done = subprocess.run(["sh", "-c", '"$@" >&-', "sh", *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert done.stderr.startswith("no stores under")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("module", ["probekit.cli.commands", "probekit.cli.ls"])
def test_ctrl_c_while_the_program_is_imported_is_one_line(module: str) -> None:
    code = (
        "import runpy, sys\n"
        "sys.argv = ['probekit', 'ls']\n"
        "class Stop:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == '{module}': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Stop())\n"
        "runpy.run_module('probekit', run_name='__main__')\n"
    )
    done = _python(code)
    assert done.returncode == 130
    assert done.stderr in ("probekit: interrupted\n", f"{INTERRUPTED}\n")  # before and after the command began


@pytest.mark.parametrize("kind", ["finalizer", "weak reference"])
def test_ctrl_c_in_a_callback_that_python_ignores_is_not_lost(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    class Finalized:
        def __del__(self) -> None:
            if kind == "finalizer":
                raise KeyboardInterrupt

    def stop(_: object) -> None:
        raise KeyboardInterrupt

    def load(*_: Any) -> None:
        one = Finalized()
        watch = weakref.ref(one, stop if kind == "weak reference" else None)
        del one
        assert watch() is None
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            time.sleep(0.001)

    monkeypatch.setattr("probekit.cli.extract.load", load)
    before = sys.unraisablehook
    assert cli.run(ARGS) == 130
    assert capsys.readouterr().err.splitlines()[-1] == INTERRUPTED
    assert sys.unraisablehook is before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGUSR1])
def test_signals_come_first_of_all_imports(number: int) -> None:
    """The handlers are there before the package imports anything else, and only in the program itself."""
    code = (
        "import os, runpy, signal, sys\n"
        "class Stop:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'probekit.worlds': os.kill(os.getpid(), {number})\n"
        "sys.meta_path.insert(0, Stop())\n"
        "sys.argv = [{name!r}, 'ls']\n"
        "import probekit\n"
    )
    code = code.replace("{number}", str(int(number)))
    done = _python(code.replace("{name!r}", "'/usr/bin/probekit'"))
    assert (done.returncode, done.stderr) == (128 + number, "probekit: interrupted\n")
    other = _python(code.replace("{name!r}", "'notebook'"))
    assert other.returncode != 128 + number
    assert ("KeyboardInterrupt" in other.stderr) == (number == signal.SIGINT)


def test_a_shared_library_that_cannot_be_mapped_is_too_little_memory() -> None:
    code = (
        "import runpy, sys\n"
        "sys.argv = ['probekit', 'ls']\n"
        "class Stop:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'probekit.cli.main': raise ImportError('x.so: failed to map segment from shared object')\n"
        "sys.meta_path.insert(0, Stop())\n"
        "runpy.run_module('probekit', run_name='__main__')\n"
    )
    done = _python(code)
    assert (done.returncode, done.stderr.count("\n")) == (4, 1)
    assert done.stderr.startswith("probekit: error: out of memory while the program was loaded")
