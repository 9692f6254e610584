"""Runs a command or a Python call in a fork of this warm process, and takes down what came of it as plain JSON.

A record holds no dates, seconds, folders of this machine or versions: what two runs of one tree do not share.
"""

import base64
import contextlib
import csv
import gzip
import hashlib
import io
import json
import math
import os
import re
import runpy
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

LIMIT = 240  # seconds after which a command is killed
# fields that differ between two runs of one tree
VOLATILE = re.compile(
    r"(^|_)(seconds|second|date|created|started|finished|time|times|when|host|versions?|python|platform|speed|eta|"
    r"tokens_per_second|memory|free|peak|pid|duration|checksum|sha256|modified|made_at|rate_of|cpu)(_|$)",
    re.IGNORECASE,
)
TIMES = re.compile(
    r"\b\d[\d,.]*\s*(ms|s|min|h|seconds?|minutes?|hours?|tokens/s|texts/s|GB/s|MB/s|GF/s|GFLOP/s)\b(?!\w)|"
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\.\d+)?(Z|\+\d\d:\d\d)?"
)
DIGEST = re.compile(r"(?<![0-9A-Za-z])(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{8,64}(?![0-9A-Za-z])")
_TEXT = re.compile(r"<!-- (.*?) -->|<text[^>]*>(.*?)</text>", re.DOTALL)
_CELL = re.compile(r"<t[dh][^>]*>(.*?)</t[dh]>", re.DOTALL)
_SCRIPT = re.compile(r'<script type="application/json" id="([^"]*)">(.*?)</script>', re.DOTALL)


def forked(work: Callable[[], Any], limit: float = LIMIT) -> dict[str, Any]:
    """What `work` returns, with its exit code, stdout and stderr: {"code", "out", "err", "value"}."""
    names = [Path(f"/tmp/.witness-{os.getpid()}-{what}") for what in ("out", "err", "value")]
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        code = 98
        try:
            os.setpgid(0, 0)
            for fd, name in zip((1, 2), names, strict=False):
                os.dup2(os.open(name, os.O_CREAT | os.O_TRUNC | os.O_WRONLY), fd)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            sys.stdin = open(0, closefd=False)  # noqa: SIM115
            sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            names[2].write_text(json.dumps(work()))
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else (0 if end.code is None else 97)
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)
    until, status = time.monotonic() + limit, None
    while status is None:
        done, found = os.waitpid(pid, os.WNOHANG)
        if done:
            status = os.waitstatus_to_exitcode(found)
        elif time.monotonic() > until:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            status = 124
        else:
            time.sleep(0.003)
    out, err, value = (name.read_text(errors="replace") if name.exists() else "" for name in names)
    for name in names:
        name.unlink(missing_ok=True)
    return {"code": status, "out": out, "err": err, "value": json.loads(value) if value else None}


def command(*arguments: Any, stdin: bytes | None = None) -> dict[str, Any]:
    """Run `probekit ARGUMENTS` as `python -m probekit` would, in a fork."""

    def work() -> None:
        if stdin is not None:
            Path(".stdin").write_bytes(stdin)
            os.dup2(os.open(".stdin", os.O_RDONLY), 0)
            sys.stdin = open(0, closefd=False)  # noqa: SIM115
        sys.argv = ["probekit", *map(str, arguments)]
        runpy.run_module("probekit", run_name="__main__", alter_sys=False)

    return forked(work)


def plain(value: Any) -> Any:
    """A value of Python as JSON; a tensor or an array of more than 40 numbers as its bits."""
    if isinstance(value, torch.Tensor):
        short = value.numel() <= 40 and value.dtype != torch.bfloat16
        return plain(value.detach().cpu().numpy()) if short else bits(value)
    if isinstance(value, np.ndarray):
        return plain(value.tolist()) if value.size <= 40 else bits(value)
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(one) for one in (sorted(value) if isinstance(value, set | frozenset) else value)]
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, str | int | bool) or value is None:
        return value
    return str(value)


def bits(x: Any) -> dict[str, Any]:
    """Shape, type and hash of a tensor's or an array's bytes."""
    if isinstance(x, torch.Tensor):
        x = x.detach().cpu().contiguous()
        data = x.view(torch.uint8).numpy().tobytes() if x.numel() else b""
        return {"bits": f"{list(x.shape)} {x.dtype} {hashed(data)}"}
    data = json.dumps(x.tolist()).encode() if x.dtype == object else np.ascontiguousarray(x).tobytes()
    return {"bits": f"{list(x.shape)} {x.dtype} {hashed(data)}"}


def hashed(data: bytes) -> str:
    """A hash in letters that `clean_text` leaves alone."""
    return base64.b32encode(hashlib.sha256(data).digest())[:16].decode()


def figures(x: Any) -> dict[str, Any]:
    """Shape and a few sums of fitted numbers, which are compared with a tolerance."""
    x = np.asarray(x.float() if isinstance(x, torch.Tensor) else x, dtype=np.float64).ravel()
    if x.size <= 12:
        return {"figures": plain(x.tolist())}
    weights = np.cos(np.arange(x.size))
    return {"size": x.size, "figures": plain([float(np.linalg.norm(x)), float(x @ weights), float(np.abs(x).max())])}


def frame(table: Any) -> dict[str, Any]:
    """A DataFrame by column; of long ones a hash of the texts and sums of the numbers."""
    made: dict[str, Any] = {"rows": len(table)}
    for name in table.columns:
        if VOLATILE.search(str(name)):
            continue
        column = [plain(one) for one in table[name].tolist()]
        numbers = all(isinstance(one, int | float) and not isinstance(one, bool) for one in column)
        if len(column) <= 400:
            made[str(name)] = column
        elif numbers:
            made[str(name)] = figures(np.array(column))
        else:
            made[str(name)] = {"bits": hashed(json.dumps(column).encode())}
    return clean(made)


def clean(value: Any) -> Any:
    """JSON without volatile fields, and with the folder of this run named ROOT."""
    if isinstance(value, dict):
        return {clean(key): clean(one) for key, one in value.items() if not VOLATILE.search(str(key))}
    if isinstance(value, list):
        return [clean(one) for one in value]
    return clean_text(value) if isinstance(value, str) else value


def clean_text(text: str) -> str:
    """A text without this run's folder, times, and digests."""
    root = os.environ.get("WITNESS_ROOT", "/nowhere")
    return DIGEST.sub("DIGEST", TIMES.sub("TIME", text.replace(root, "ROOT")))


def said(text: str) -> list[str]:
    """Lines of a stream, cleaned; of a progress line that was drawn again, its last state."""
    return [clean_text(line.split("\r")[-1].rstrip()) for line in text.splitlines() if line.strip()]


def taken(done: dict[str, Any]) -> dict[str, Any]:
    """The record of a command: its code, stdout (as JSON where it is), and what it said."""
    made: dict[str, Any] = {"code": done["code"]}
    try:
        made["json"] = clean(json.loads(done["out"]))
    except ValueError:
        made["stdout"] = said(done["out"])
    made["stderr"] = said(done["err"])
    return made


def files(folder: Path | str) -> dict[str, Any]:
    """The figures in every file under a folder, or of one file."""
    folder = Path(folder)
    if folder.is_file():
        return {folder.name: of_file(folder)}
    found = sorted(one for one in folder.rglob("*") if one.is_file() and "/." not in str(one.relative_to(folder)))
    return {clean_text(str(one.relative_to(folder))): of_file(one) for one in found}


def of_file(path: Path) -> Any:
    """The figures in one file."""
    kind = path.suffix
    try:
        if kind == ".json" or kind == ".ipynb":
            return clean(json.loads(path.read_text()))
        if kind == ".jsonl":
            return [clean(json.loads(line)) for line in path.read_text().splitlines()]
        if kind in (".csv", ".tsv"):
            table = list(csv.reader(io.StringIO(path.read_text()), delimiter="\t" if kind == ".tsv" else ","))
            return {
                name: [number(one) for one in column]
                for name, *column in zip(*table, strict=False)
                if not VOLATILE.search(name)
            }
        if kind == ".parquet":
            import pandas as pd

            return frame(pd.read_parquet(path))
        if kind == ".safetensors":
            return {name: {"shape": list(x.shape), **figures(x)} for name, x in sorted(load_file(path).items())}
        if kind in (".npy", ".npz"):
            found = np.load(path)
            if kind == ".npy":
                return figures(found)
            return {name: figures(found[name]) for name in found.files if found[name].dtype.kind in "fiu"}
        if kind == ".svg":
            return {"texts": [clean_text(a or b) for a, b in _TEXT.findall(path.read_text())]}
        if kind == ".html":
            return of_page(path.read_text())
        if kind in (".md", ".tex", ".txt", ".yaml"):
            return said(path.read_text())
        if kind == ".png":
            from PIL import Image

            return {"picture": list(Image.open(path).size)}
        return {"bytes": path.stat().st_size}
    except Exception as e:
        return {"unread": f"{type(e).__name__}: {clean_text(str(e))}"}


def of_page(text: str) -> dict[str, Any]:
    """The cells of a page's tables, the labels in its pictures, and the figures that its scripts read."""
    cells = [clean_text(re.sub(r"<[^>]*>", "", cell).strip()) for cell in _CELL.findall(text)]
    labels = [clean_text(b) for a, b in _TEXT.findall(text) if b]
    data = {name: digest_of_data(clean(json.loads(body))) for name, body in _SCRIPT.findall(text)}
    return {"cells": cells, "labels": [re.sub(r"<[^>]*>", "", one) for one in labels], "data": data}


def digest_of_data(value: Any) -> Any:
    """Nested data whose long lists of numbers are sums."""
    if isinstance(value, dict):
        return {key: digest_of_data(one) for key, one in value.items()}
    if isinstance(value, list):
        flat = np.array(value).ravel() if _numbers(value) else None
        return figures(flat) if flat is not None and flat.size > 12 else [digest_of_data(one) for one in value]
    if isinstance(value, str) and len(value) > 2000:
        return {"bits": hashed(value.encode())}
    return value


def _numbers(value: list[Any]) -> bool:
    try:
        return bool(value) and np.array(value).dtype.kind in "fiu"
    except ValueError:
        return False


def number(text: str) -> Any:
    """A cell of a table as a number where it is one."""
    try:
        return plain(float(text))
    except ValueError:
        return clean_text(text)


def write(path: Path, value: Any) -> None:
    """JSON, compressed where the name ends in .gz."""
    data = json.dumps(value, indent=1, sort_keys=True).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def read(path: Path) -> Any:
    """What `write` wrote."""
    data = path.read_bytes()
    return json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)


def fresh(folder: Path) -> Path:
    """An empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def plain_list(values: Any) -> list[Any]:
    """An array, a list of texts or of lists as plain lists."""
    found = plain_all(values.tolist() if isinstance(values, np.ndarray | torch.Tensor) else values)
    return found if isinstance(found, list) else [found]


def plain_all(value: Any) -> Any:
    """Lists of anything, without bits for long ones."""
    if isinstance(value, str | int | float | bool) or value is None:
        return value
    if isinstance(value, np.ndarray | torch.Tensor | np.generic):
        return plain_all(value.tolist())
    try:
        return [plain_all(one) for one in value]
    except TypeError:
        return str(value)


def digest(values: Any) -> dict[str, str]:
    """A hash of nested lists."""
    return {"bits": f"{len(values)} {hashed(json.dumps(values, default=str).encode())}"}
