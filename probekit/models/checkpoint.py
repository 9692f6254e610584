"""Where a training run stands, in one safetensors file: tensors, and in its header JSON that says which run it is.

The file is replaced whole, so that a run that is killed at any moment leaves the checkpoint before or the one after;
a checksum over all of it tells damage.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from probekit.durable import open_plain, sweep, write_as
from probekit.errors import ResumeMismatch, StorageError
from probekit.safetensors_header import read_header

SHOWN = 80  # characters of two values; longer ones are not shown


def save_checkpoint(path: Path, tensors: dict[str, Tensor], identity: dict[str, Any]) -> None:
    """Write a checkpoint, which replaces the one before it.

    Args:
        path: of the file; its folder is made where it is missing.
        tensors: by name, all that the run needs to go on.
        identity: what makes the run this one and no other, as JSON has it.

    Raises:
        StorageError: the disk refused; the checkpoint before still stands.
    """
    tensors = {name: x.cpu().contiguous() for name, x in tensors.items()}
    about = json.dumps(identity, sort_keys=True)
    sweep(path.parent)
    write_as(path, save(tensors, {"run": about, "sha256": _digest(tensors, about)}))


def load_checkpoint(path: Path, identity: dict[str, Any]) -> dict[str, Tensor] | None:
    """The tensors of a checkpoint; None if there is none.

    Raises:
        StorageError: it is damaged, no checkpoint, or no plain file.
        ResumeMismatch: it is of a run with another identity.
    """
    try:
        with open_plain(path) as fd, open(fd, "rb", closefd=False) as file:  # refuses links and pipes
            header = read_header(file)
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        return None
    except (SafetensorError, OSError, RuntimeError, ValueError) as error:
        raise StorageError(_damaged(path)) from error
    about = header.metadata.get("run", "")
    if header.metadata.get("sha256") != _digest(tensors, about):
        raise StorageError(_damaged(path))
    _check_same(path, json.loads(about), identity)
    return tensors


def _check_same(path: Path, theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    if differ := [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]:
        changes = "; ".join(_change(name, theirs.get(name), ours.get(name)) for name in differ)
        raise ResumeMismatch(f"{str(path)!a} is of another run ({changes}); remove it, or take another folder")


def _change(name: str, was: Any, now: Any) -> str:
    """What became of a value; of a checksum, only that there is another one."""
    is_short = len(ascii(was)) + len(ascii(now)) < SHOWN
    return f"{name} was {was!a}, now {now!a}" if is_short else f"another {name}"


def _digest(tensors: dict[str, Any], about: str) -> str:
    digest = hashlib.sha256(about.encode())
    for name, x in sorted(tensors.items()):
        digest.update(f"\n{name} {x.dtype} {list(x.shape)} ".encode())
        digest.update(memoryview(x.flatten().view(torch.uint8).numpy()))
    return digest.hexdigest()


def _damaged(path: Path) -> str:
    return f"{str(path)!a} is damaged or no checkpoint; remove it to train from the start"
