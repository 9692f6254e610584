"""Damage to a file of results: JSON, safetensors and Parquet with a value, type, shape or name that nobody expects.

The hashes that other files have of a damaged one are corrected half of the time, so that a reader meets what is in it.
"""

import hashlib
import io
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import safetensors.numpy

HOLE = "here stands the value"
DEEP = "[" * 5000 + "]" * 5000
NUMBERS = ["0", "-1", "1", "3", "0.5", "-0.25", "1e308", "-1e308", "1e999", "NaN", "-Infinity", "1" + "0" * 25]
NUMBERS += [str(2**53 + 1), "1" * 5000, "9" * 300, "1e-320", "true"]
TEXTS = ['""', '"x"', '"resid_pre.0"', '"resid_pre.7"', '"attn_out.0"', '"../x"', '"\\ud800"', '"none"', '"test"']
TEXTS += ['"<b>\\u001b[2J"', '"' + "y" * 3000 + '"', '"r2"', '"auroc"', '"0"']
OTHERS = ["null", "[]", "{}", '["a"]', "[[1, 2], [3]]", '{"a": {"a": 1}}', "[null, null]", "[0.1]", "[0.9, 0.1]", DEEP]

Rng = np.random.Generator


def damage(folder: Path, rng: Rng) -> str:
    """Damage one file of a folder; in words, what was done."""
    files = sorted(one for one in folder.rglob("*") if one.suffix in (".json", ".safetensors", ".parquet"))
    top = [one for one in files if one.suffix == ".json" and one.parent.name != "probes"]
    path = _pick(top if rng.random() < 0.6 else files, rng)
    data = path.read_bytes()
    how = _raw if rng.random() < 0.1 else {".json": _json, ".safetensors": _tensors, ".parquet": _table}[path.suffix]
    what, changed = how(data, rng)
    path.write_bytes(changed)
    if path not in top and rng.random() < 0.8:
        what += ", hashes corrected" * correct_hashes(folder, path, data)
    return f"{path.relative_to(folder)}: {what}"


def _pick(values: Any, rng: Rng) -> Any:
    return values[int(rng.integers(len(values)))]


def correct_hashes(folder: Path, path: Path, before: bytes) -> bool:
    """Put the hash of a file in place of its earlier one wherever it stands, and so on for the files that hold it."""
    pairs, found = [(before, path.read_bytes())], False
    while pairs:
        old, new = (hashlib.sha256(data).hexdigest().encode() for data in pairs.pop())
        for other in folder.rglob("*.json"):
            data = other.read_bytes()
            if old in data:
                other.write_bytes(data.replace(old, new))
                pairs.append((data, other.read_bytes()))
                found = True
    return found


def _raw(data: bytes, rng: Rng) -> tuple[str, bytes]:
    """Cut short, repeated, bits flipped, in another encoding, or empty."""
    at = int(rng.integers(len(data)))
    flipped = bytearray(data)
    flipped[at] ^= 1 << int(rng.integers(8))
    kinds = {
        "cut short": data[:at],
        "twice": data + data,
        "a bit flipped": bytes(flipped),
        "UTF-16": data.decode("latin-1").encode("utf-16"),
        "with a mark of UTF-8": b"\xef\xbb\xbf" + data,
        "empty": b"",
    }
    what = _pick(list(kinds), rng)
    return what, kinds[what]


# JSON -----------------------------------------------------------------------------------------------------------------


def _json(data: bytes, rng: Rng) -> tuple[str, bytes]:
    content = json.loads(data)
    parent, key, path = _node(content, rng)
    how = _pick([_replaced, _replaced, _like, _deleted, _doubled, _exchanged, _longer], rng)
    what, text = how(content, parent, key, rng)
    return f"{what} at {path}", text.encode("utf-8", "surrogatepass")


def _node(content: Any, rng: Rng) -> tuple[Any, Any, str]:
    """A value by the list or object that it is in and its key there; each level of the tree is met alike."""
    parent, key, path, node = None, None, "", content
    while isinstance(node, dict | list) and len(node) and (parent is None or rng.random() < 0.8):
        parent, key = node, _pick(list(node) if isinstance(node, dict) else range(len(node)), rng)
        path += f"/{key}"
        node = node[key]
    return parent, key, path


def _with(content: Any, parent: Any, key: Any, text: str) -> str:
    parent[key] = HOLE
    return json.dumps(content).replace(f'"{HOLE}"', text)


def _replaced(content: Any, parent: Any, key: Any, rng: Rng) -> tuple[str, str]:
    value = _pick(NUMBERS + TEXTS + OTHERS, rng)
    return f"{value[:30]} for {str(parent[key])[:30]}", _with(content, parent, key, value)


def _like(content: Any, parent: Any, key: Any, rng: Rng) -> tuple[str, str]:
    """A value of the same type."""
    old = parent[key]
    values = NUMBERS if isinstance(old, int | float) else TEXTS if isinstance(old, str) else OTHERS
    value = _pick(values, rng)
    return f"{value[:30]} for {str(old)[:30]}", _with(content, parent, key, value)


def _deleted(content: Any, parent: Any, key: Any, rng: Rng) -> tuple[str, str]:
    del parent[key]
    return "deleted", json.dumps(content)


def _doubled(content: Any, parent: Any, key: Any, rng: Rng) -> tuple[str, str]:
    """A second entry of the name in an object, or the same entry of a list again."""
    if isinstance(parent, list):
        parent.insert(key, parent[key])
        return "twice", json.dumps(content)
    value, own = _pick(NUMBERS + TEXTS + OTHERS, rng), json.dumps(parent[key])
    return f"a second entry, {value[:30]}", _with(content, parent, key, f"{own}, {json.dumps(key)}: {value}")


def _exchanged(content: Any, parent: Any, key: Any, rng: Rng) -> tuple[str, str]:
    """The value of another place of the file."""
    other, name, path = _node(content, rng)
    parent[key] = json.loads(json.dumps(other[name]))
    return f"the value of {path}", json.dumps(content)


def _longer(content: Any, parent: Any, key: Any, rng: Rng) -> tuple[str, str]:
    """One more entry, or a list with one fewer."""
    if isinstance(parent[key], dict):
        parent[key]["one more"] = 1
    elif isinstance(parent[key], list) and rng.random() < 0.5:
        parent[key].append(parent[key][-1] if parent[key] else 1)
    else:
        parent[key] = [parent[key]] * 3
    return "more entries", json.dumps(content)


# arrays ---------------------------------------------------------------------------------------------------------------


def _tensors(data: bytes, rng: Rng) -> tuple[str, bytes]:
    if rng.random() < 0.2:
        return _header(data, rng)
    arrays, about = safetensors.numpy.load(data), _metadata(data)
    name = _pick(sorted(arrays), rng)
    what, changed = _array(arrays[name], rng)
    arrays[name] = changed
    if what == "missing":
        del arrays[name]
    if what == "one more":
        arrays["another"] = np.zeros(3)
    return f"{name} {what}", safetensors.numpy.save({k: np.array(v, order="C") for k, v in arrays.items()}, about)


def _metadata(data: bytes) -> dict[str, str] | None:
    return json.loads(data[8 : 8 + struct.unpack("<Q", data[:8])[0]]).get("__metadata__")


def _header(data: bytes, rng: Rng) -> tuple[str, bytes]:
    (length,) = struct.unpack("<Q", data[:8])
    what, head = _json(data[8 : 8 + length], rng)
    if rng.random() < 0.2:
        return "a header without end", struct.pack("<Q", 1 << 62) + data[8:]
    return f"header: {what}", struct.pack("<Q", len(head)) + head + data[8 + length :]


def _array(x: np.ndarray, rng: Rng) -> tuple[str, np.ndarray]:
    """An array of another type, shape or content; "missing" and "one more" are the caller's."""
    spoiled = x.astype(np.float64)
    spoiled.reshape(-1)[: 1 + int(rng.integers(max(1, x.size)))] = _pick([np.nan, np.inf, -np.inf, 1e300, -1.0], rng)
    kinds: dict[str, Callable[[], np.ndarray]] = {
        "missing": lambda: x,
        "one more": lambda: x,
        "flat": lambda: x.reshape(-1),
        "with an axis more": lambda: x[None],
        "empty": lambda: x.reshape(-1)[:0],
        "cut": lambda: x.reshape(-1)[: max(1, x.size - 1)],
        "turned": lambda: x.T[..., None] if x.ndim < 2 else x.T,
        "twice": lambda: np.concatenate([x.reshape(-1)] * 2),
        "wider": lambda: np.concatenate([np.atleast_1d(x)] * 2, axis=-1),
        "longer": lambda: np.concatenate([np.atleast_1d(x)] * 2, axis=0),
        "whole numbers": lambda: np.nan_to_num(x).astype(np.int32),
        "truth values": lambda: x.astype(bool),
        "half": lambda: np.nan_to_num(x).astype(np.float16),
        "spoiled": lambda: spoiled.astype(x.dtype if x.dtype.kind == "f" else np.float64),
        "of zeros": lambda: np.zeros_like(x),
        "reversed": lambda: x.reshape(-1)[::-1].reshape(x.shape),
    }
    what = _pick(list(kinds), rng)
    with np.errstate(all="ignore"):
        return what, kinds[what]()


def _table(data: bytes, rng: Rng) -> tuple[str, bytes]:
    frame = pd.read_parquet(io.BytesIO(data))
    name = _pick(list(frame.columns), rng)
    what, changed = _column(frame, name, rng)
    out = io.BytesIO()
    changed.to_parquet(out, index=False)
    return f"{name} {what}", out.getvalue()


def _column(frame: pd.DataFrame, name: str, rng: Rng) -> tuple[str, pd.DataFrame]:
    n, x = len(frame), frame[name]
    some = rng.random(n) < 0.2
    some[int(rng.integers(n))] = True
    is_number = x.dtype.kind in "iuf"
    values: dict[str, Callable[[], Any]] = {
        "texts": lambda: [str(one) for one in x],
        "nothing": lambda: [None] * n,
        "some missing": lambda: [None if bad else one for one, bad in zip(x, some, strict=True)],
        "zeros": lambda: np.zeros(n),
        "truth values": lambda: np.arange(n) % 2 == 0,
        "lists": lambda: [[0.5, 0.5]] * n,
        "uneven lists": lambda: [[0.5] * (1 + i % 2) for i in range(n)],
        "bytes": lambda: [b"\xff"] * n,
        "times": lambda: pd.to_datetime(np.arange(n)),
        "numbers out of range": lambda: np.where(some, 10**9, x) if is_number else np.arange(n),
        "below 0": lambda: np.where(some, -1, x) if is_number else np.arange(n) - 5,
        "nan": lambda: np.where(some, np.nan, x) if is_number else np.full(n, np.nan),
        "infinite": lambda: np.where(some, np.inf, x) if is_number else np.full(n, np.inf),
    }
    tables: dict[str, Callable[[], Any]] = {
        "left out": lambda: frame.drop(columns=name),
        "under another name": lambda: frame.rename(columns={name: _pick(["resid_pre.7", "x", "predicted x"], rng)}),
        "and one column more": lambda: frame.assign(**{"resid_pre.9": 0.5}),
        "without rows": lambda: frame[:0],
        "with a row": lambda: frame[:1],
        "with fewer rows": lambda: frame[: n - 1],
        "with rows twice": lambda: pd.concat([frame, frame]),
        "with the rows of test alone": lambda: frame[frame["split"] == "test"],
    }
    what = _pick([*values, *tables], rng)
    return what, frame.assign(**{name: values[what]()}) if what in values else tables[what]()
