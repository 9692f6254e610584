"""The state of a training run in one safetensors file: tensors, and in the header JSON that identifies the run.

The file is replaced atomically: a run killed at any moment leaves either the previous checkpoint or the new one. A
checksum over everything detects damage.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from probekit.errors import ResumeMismatch, StorageError
from probekit.files.durable import open_plain, remove_stale, write_as
from probekit.files.safetensors_header import read_header

SHOWN = 80  # characters; an error shows two values only if both fit


def save_checkpoint(path: Path, tensors: dict[str, Tensor], identity: dict[str, Any]) -> None:
    """Write a checkpoint, which replaces the previous one.

    Args:
        path: of the file; its folder is created if needed.
        tensors: name -> tensor, everything that the run needs to resume.
        identity: what identifies the run, as JSON-able values.

    Raises:
        StorageError: the disk refused; the previous checkpoint is intact.
    """
    tensors = {name: x.cpu().contiguous() for name, x in tensors.items()}
    about = json.dumps(identity, sort_keys=True)
    remove_stale(path.parent)
    write_as(path, save(tensors, {"run": about, "sha256": _digest(tensors, about)}))


def load_checkpoint(path: Path, identity: dict[str, Any]) -> dict[str, Tensor] | None:
    """The tensors of a checkpoint; None if there is none.

    Raises:
        StorageError: the file is damaged, not a checkpoint, or not a regular file.
        ResumeMismatch: it belongs to a run with another identity.
    """
    try:
        with open_plain(path) as file:  # refuses links and pipes
            header = read_header(file.buffered)
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        return None
    except (SafetensorError, OSError, RuntimeError, ValueError):
        raise StorageError(_damaged(path)) from None
    about = header.metadata.get("run", "")
    if header.metadata.get("sha256") != _digest(tensors, about):
        raise StorageError(_damaged(path))
    _check_same(path, json.loads(about), identity)
    return tensors


def _check_same(path: Path, saved: dict[str, Any], current: dict[str, Any]) -> None:
    if differ := [name for name in {**current, **saved} if current.get(name) != saved.get(name)]:
        changes = "; ".join(_change(name, saved.get(name), current.get(name)) for name in differ)
        raise ResumeMismatch(f"{str(path)!a} belongs to another run ({changes}); remove it, or give another folder")


def _change(name: str, was: Any, now: Any) -> str:
    """The change of a value; long values, such as checksums, are not shown."""
    is_short = len(ascii(was)) + len(ascii(now)) < SHOWN
    return f"{name} was {was!a}, now {now!a}" if is_short else f"another {name}"


def _digest(tensors: dict[str, Any], about: str) -> str:
    digest = hashlib.sha256(about.encode())
    for name, x in sorted(tensors.items()):
        digest.update(f"\n{name} {x.dtype} {list(x.shape)} ".encode())
        digest.update(memoryview(x.flatten().view(torch.uint8).numpy()))
    return digest.hexdigest()


def _damaged(path: Path) -> str:
    return f"{str(path)!a} is damaged or not a checkpoint; remove it to train from the start"
