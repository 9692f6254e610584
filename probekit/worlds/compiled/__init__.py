"""Compiled models: transformers whose weights are set by construction, with what is true of their variables.

Each file holds one: its program, its texts and its truths. To add one, write such a file and add its name here. Like
the other worlds, each is a model and a task of one name, such as `compiled-xor`.
"""

import hashlib
import importlib
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probekit.errors import UsageError, nearest
from probekit.registries import COMPILED

if TYPE_CHECKING:
    from probekit.tasks.base import Task
    from probekit.worlds.compiled.definition import Compiled

FILES = (
    *("reverse", "fraction", "histogram", "sort", "brackets", "palindrome", "names"),
    *("xor", "addition", "copies"),
)
NAMES = tuple(COMPILED + file for file in FILES)


def compiled_model(name: str) -> "Compiled":
    """The program, texts and truths of a compiled model, such as "compiled-xor".

    Raises:
        UsageError: no compiled model has this name.
    """
    if name not in NAMES:
        raise UsageError(f"no compiled model {name!a}; {nearest(str(name), NAMES)}")
    return importlib.import_module(f"probekit.worlds.compiled.{name.removeprefix(COMPILED)}").COMPILED


def compiled_task(name: str, **options: Any) -> "Task":
    """The task of a compiled model; options are those of `Compiled.task`, such as `seed`."""
    return compiled_model(name).task(**options)


def compiled_folder(name: str, weights: bool = True, progress: bool | None = None) -> Path:
    """The folder of a compiled model in the user's cache, written there first if it is new or not as it should be.

    Args:
        name: of the model.
        weights: the folder has them in any case.
        progress: nothing is shown; it takes milliseconds.

    Raises:
        StorageError: the disk refused.
    """
    from safetensors.numpy import save

    from probekit.files.durable import write_as
    from probekit.models.tokenizer import Tokenizer
    from probekit.models.tokenizer_files import tokenizer_files
    from probekit.worlds.compiled.program import compile_program
    from probekit.worlds.definition import word_level
    from probekit.worlds.train import cache_folder, make_once

    program = compiled_model(name).program
    config, arrays = compile_program(program)
    contents = {
        "config.json": json.dumps(config).encode(),
        "model.safetensors": save(arrays),
        **tokenizer_files(Tokenizer(word_level(list(program.words)))),
    }
    digest = hashlib.sha256(b"".join(contents[file] for file in sorted(contents))).hexdigest()[:8]

    def write(folder: Path) -> None:
        for file, content in contents.items():
            write_as(folder / file, content)

    folder = cache_folder() / "models" / f"{name}-{digest}"
    if folder.is_dir() and any(_content(folder / file) != content for file, content in contents.items()):
        shutil.rmtree(folder, ignore_errors=True)
    return make_once(folder, write)


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None
