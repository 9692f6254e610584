"""The user's own file: `--model module.py:make_model` runs it, and takes what its function returns."""

import importlib.util
import sys
from pathlib import Path
from traceback import extract_tb

import torch
from torch import nn

from probekit.errors import DataError, ProbekitError, UsageError
from probekit.models.base import LanguageModel
from probekit.models.wrapped.wrap import wrap
from probekit.text import listed


def model_of_file(path: Path, function: str, device: torch.device, dtype: torch.dtype) -> LanguageModel:
    """The model that a function in a Python file of the user's own makes; the file is run.

    Args:
        path: of the file, whose folder is put on sys.path.
        function: takes no arguments, and returns what `wrap` gives, or a module whose points are known.
        device: of the weights.
        dtype: of the weights.

    Raises:
        UsageError: the file has no such function.
        DataError: its code fails, or returns something else.
    """
    spec = importlib.util.spec_from_file_location(f"probekit_of_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    code = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = code  # where dataclasses look up their module
    if str(path.parent.resolve()) not in sys.path:
        sys.path.insert(0, str(path.parent.resolve()))
    running = "while it is read"
    try:
        spec.loader.exec_module(code)
        make, running = getattr(code, function, None), f"in {function}"
        make = make if callable(make) else None
        made = make() if make is not None else None
    except ProbekitError:
        raise
    except (Exception, SystemExit) as error:  # whatever the user's code raises
        why = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        lines = [frame.lineno for frame in extract_tb(error.__traceback__) if Path(frame.filename) == path]
        at = f", line {lines[-1]}" if lines else ""
        raise DataError(f"{str(path)!a}{at} fails {running}: {why!a}; correct the file") from None
    if make is None:
        known = [name for name, value in vars(code).items() if callable(value) and not name.startswith("_")]
        raise UsageError(f"{str(path)!a} has no function {function}; it has {listed(known)}")
    if isinstance(made, nn.Module) and not isinstance(made, LanguageModel):
        made = wrap(made)
    if not isinstance(made, LanguageModel):
        raise DataError(
            f"{function} of {str(path)!a} returned {type(made).__name__}; expected pk.wrap(module, points), or a "
            "module whose points are known"
        )
    made.name = f"{path.stem}.{function}"
    made.source = made.folder = made.revision = None  # the function may have changed what it loaded
    return made.to(device=device, dtype=dtype).eval()
