"""The registry of a task's columns: whatever one holds, it is stored, cut, joined, fingerprinted and shown alike."""

import contextlib
import dataclasses
import hashlib
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from probekit.activations.layout import Layout
from probekit.activations.store import examples as stored_examples
from probekit.activations.store.examples import read_examples, write_examples
from probekit.errors import StorageError
from probekit.files.durable import seal, unseal
from probekit.selections import Selection
from probekit.tasks import Task
from probekit.tasks.base import examples_table
from probekit.tasks.fields import FIELDS, Region, column_rows, fields_of, joined_columns, task_columns

task_of: Any = Task  # takes lists where it is given none of its own types
ODD = ["it's", 'a "b"', "tab\t", "é\u0301 漢字 \U0001f600", "\ud800 alone", "\x00\x7f\xa0", "\u2028", "x" * 300, "NA"]
ALONE = {"name", "label_names", "target", "info", "rows_made"}  # what there is one of for the task
TEXTS = st.one_of(st.sampled_from(ODD), st.text(st.characters(codec=None), min_size=1, max_size=9))
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
NAMES = st.text(st.characters(codec=None), min_size=1, max_size=5)
WHOLE = st.sampled_from([one for one in ODD if "\ud800" not in one and "\0" not in one and one not in ("NA", "\u2028")])
CHAT = st.lists(
    st.builds(lambda role, text: {"role": role, "content": text}, st.sampled_from(["user", "assistant"]), WHOLE),
    min_size=1,
    max_size=2,
)


def lists(draw: Any, of: Any, n: int) -> list[Any]:
    return draw(st.lists(of, min_size=n, max_size=n))


@st.composite
def tasks(draw: Any) -> Task:
    """A task with any of the columns that may be together."""
    n = draw(st.integers(1, 12))
    whole = st.integers(0, 2**31)
    splits = np.array(lists(draw, st.sampled_from(["train", "validation", "test"]), n))
    fields: dict[str, Any] = {"splits": splits, "labels": {}, "label_names": {}, "token_labels": {}}
    fields["ids"] = draw(st.sampled_from([[f"é{k}" for k in range(n)], list(range(n)), [str(k) for k in range(n)]]))
    are_ids = draw(st.booleans())
    cells = st.lists(whole, min_size=1, max_size=5) if are_ids else TEXTS
    inputs = fields["inputs"] = lists(draw, cells, n)
    if draw(st.booleans()):  # as the words of a text have one
        inputs[:] = [inputs[k // 3] for k in range(n)]
    for name in draw(st.lists(NAMES, max_size=2, unique=True)):
        kinds = {
            "classes": np.array(lists(draw, st.integers(-1, 2), n)),
            "numbers": np.array(lists(draw, NUMBERS, n), dtype=float),
            "several": np.array(lists(draw, st.tuples(NUMBERS, NUMBERS), n), dtype=float).reshape(n, 2),
        }
        kind = draw(st.sampled_from(sorted(kinds)))
        fields["labels"][name], fields["label_names"][name] = kinds[kind], ["a", "b", "ü"] * (kind == "classes")
    if draw(st.booleans()):
        fields["groups"] = np.array(draw(st.sampled_from([list(range(n)), ["g", *"h" * (n - 1)]])))
    if draw(st.booleans()):
        fields["position"] = np.array(lists(draw, st.integers(-3, 3), n))
    elif not are_ids and draw(st.booleans()):
        fields["spans"] = np.array([[0, len(text)] for text in inputs])
    if "spans" not in fields and draw(st.booleans()):
        fields["targets"] = lists(draw, draw(st.sampled_from([TEXTS, st.lists(whole, min_size=1, max_size=3)])), n)
    elif "spans" not in fields and are_ids and draw(st.booleans()):
        own = [np.array(lists(draw, st.integers(-1, 1), len(one))) for one in inputs]
        wide = [np.array(lists(draw, st.tuples(NUMBERS, NUMBERS), len(one)), dtype=float) for one in inputs]
        fields["token_labels"] = {"tokens": own, "wide\ud800": [one.reshape(-1, 2) for one in wide]}
        fields["label_names"] |= {"tokens": ["no", "yes"], "wide\ud800": []}
    if draw(st.booleans()):
        fields["chats"] = lists(draw, CHAT, n)
    if not are_ids and draw(st.booleans()):
        fields["regions"] = [[Region("user", 0, len(text) // 2)] * (k % 2) for k, text in enumerate(inputs)]
    if draw(st.booleans()):
        fields["token_ids"] = lists(draw, st.lists(whole, max_size=4), n)
        fields["generated"] = np.array(lists(draw, st.integers(0, 4), n))
    if draw(st.booleans()):
        some = np.array([*lists(draw, st.one_of(st.just(np.nan), NUMBERS), n)], dtype=float)
        cells = np.empty(n, dtype=object)
        cells[:] = lists(draw, st.one_of(st.none(), WHOLE), n)
        fields["columns"] = {"size": some, "source\t": cells}
    target = next(iter(fields["label_names"]), "")
    return Task("t", **fields, target=target, info={"seed": 3, "text": ODD})


def plain(values: Any) -> Any:
    """A column as nested lists of Python's own values; NaN is a word, so that it equals itself."""
    values = values.tolist() if hasattr(values, "tolist") else values
    if isinstance(values, list | tuple):
        return [plain(one) for one in values]
    return "NaN" if values != values else values


def content(task: Task) -> dict[Any, Any]:
    about: dict[Any, Any] = {name: getattr(task, name) for name in ("name", "label_names", "target", "info")}
    kinds = {
        key: (values.dtype.kind if isinstance(values, np.ndarray) else "list") for key, values in task_columns(task)
    }
    position = task.position if isinstance(task.position, str) else None
    return about | {"position": position, "kinds": kinds} | {key: plain(one) for key, one in task_columns(task)}


def layout_of(task: Task) -> Layout:
    lengths = np.array([len(one) for one in task.inputs])
    return Layout([Selection("last")], lengths, 0, np.arange(len(task)))


def stored(path: Path, task: Task, rows: int) -> Task:
    path.mkdir()
    before, stored_examples.PIECE_ROWS = stored_examples.PIECE_ROWS, rows
    try:
        write_examples(path, task, layout_of(task), [Selection("last")])
    finally:
        stored_examples.PIECE_ROWS = before
    plan: Any = SimpleNamespace(rows=len(task))
    return read_examples(path, plan).task


def test_every_column_of_a_task_is_in_the_registry():
    assert {one.name for one in dataclasses.fields(Task)} - ALONE == FIELDS.keys()


@settings(max_examples=25, phases=[Phase.explicit, Phase.generate])
@given(task=tasks(), data=st.data())
def test_any_task_is_stored_cut_and_joined(tmp_path_factory: Any, task: Task, data: Any):
    n = len(task)
    read = stored(tmp_path_factory.mktemp("task") / "whole", task, data.draw(st.integers(1, n)))
    assert content(read) == content(task)
    assert read.fingerprint() == task.fingerprint()
    shown = [{name: plain(cells) for name, cells in examples_table(one).items()} for one in (read, task)]
    assert shown[0] == shown[1]
    rows = np.array(data.draw(st.lists(st.integers(0, n - 1), min_size=1, unique=True)))
    own = task.subset(rows)
    assert {key: plain(values) for key, values in task_columns(own)} == {
        key: [plain(values)[row] for row in rows.tolist()] for key, values in task_columns(task)
    }
    assert stored(tmp_path_factory.mktemp("task") / "own", own, n).fingerprint() == read.subset(rows).fingerprint()
    cuts = [0, *sorted(data.draw(st.lists(st.integers(1, n), max_size=3, unique=True))), n]
    parts = [np.arange(a, b) for a, b in pairwise(cuts) if a < b]
    pieces = ({key: column_rows(values, part) for key, values in task_columns(task)} for part in parts)
    whole = dataclasses.replace(task, **fields_of(joined_columns(pieces)))
    assert content(whole) == content(task)


@settings(max_examples=25, phases=[Phase.explicit, Phase.generate])
@given(task=tasks(), data=st.data())
def test_any_change_of_a_cell_changes_the_fingerprint(task: Task, data: Any):
    key, values = data.draw(st.sampled_from([one for one in task_columns(task) if one[0][0] not in ("token_labels",)]))
    row, cells = data.draw(st.integers(0, len(task) - 1)), plain(values)
    before = cells[row]
    other = [cell for cell in cells if cell != before] or [
        {"splits": "train" if before != "train" else "test"}.get(key[0]) or _other(before)
    ]
    cells[row] = data.draw(st.sampled_from(other))
    made = np.array(cells) if isinstance(values, np.ndarray) and values.dtype != object else cells
    if isinstance(values, np.ndarray) and values.dtype == object:
        made = np.empty(len(cells), dtype=object)
        made[:] = cells
    before = task.fingerprint()
    changed = dataclasses.replace(task)
    column = {**getattr(changed, key[0]), key[1]: made} if FIELDS[key[0]].several else made
    object.__setattr__(changed, key[0], column)  # a Task would not take all of them
    assert changed.fingerprint() != before


def _other(cell: Any) -> Any:
    """A value of the same kind."""
    if isinstance(cell, list):
        return [*cell, cell[0] if cell else 7]
    return f"{cell}?" if isinstance(cell, str) else 1.5 if isinstance(cell, float) else 1 if cell is None else cell + 1


def test_lists_arrays_and_tensors_of_equal_numbers_have_one_fingerprint():
    ids = [[k, k + 1, 2] for k in range(5000)]  # more than one batch
    forms = [ids, [tuple(one) for one in ids], [np.array(one) for one in ids], [torch.tensor(one) for one in ids]]
    forms.append([[np.int32(x) for x in one] for one in ids])
    assert len({task_of("t", own).fingerprint() for own in forms}) == 1
    whole = task_of("t", ids, np.arange(5000) % 2, ["a", "b"], groups=np.arange(5000))
    narrow = task_of(
        "t", ids, (np.arange(5000) % 2).astype(np.int8), ["a", "b"], groups=np.arange(5000, dtype=np.int32)
    )
    assert whole.fingerprint() == narrow.fingerprint() != task_of("t", ids).fingerprint()
    assert task_of("t", [[2**70], [1]]).fingerprint() != task_of("t", [[2**70 + 1], [1]]).fingerprint()
    assert task_of("t", [[1, 2], [3]]).fingerprint() != task_of("t", [[1], [2, 3]]).fingerprint()


TASK = task_of(
    "t",
    [f"text {k}" for k in range(8)],
    {"a": np.arange(8) % 2, "x": np.arange(8) / 3},
    {"a": ["no", "yes"], "x": []},
    np.array(["train", "test"] * 4),
    "a",
    groups=[f"g{k}" for k in range(8)],
    chats=[[{"role": "user", "content": "hi"}]] * 8,
    columns={"size": np.arange(8) / 2},
)
CELLS = {
    "nothing": pa.nulls(8),
    "texts": pa.array([f"t{k}" for k in range(8)]),
    "bytes": pa.array([b"\xff"] * 8),
    "JSON": pa.array([b"[1]"] * 8),
    "numbers": pa.array(np.arange(8) + 100),
    "fractions": pa.array(np.arange(8) / 7),
    "not finite": pa.array([np.nan, np.inf] * 4),
    "lists": pa.array([[1]] * 8),
    "lists of nothing": pa.array([None] * 8, pa.list_(pa.int64())),
    "times": pa.array([1] * 8, pa.timestamp("s")),
    "structs": pa.array([{"a": 1}] * 8),
    "some missing": pa.array([None, "a"] * 4),
    "a dictionary": pa.array(["a"] * 8).dictionary_encode(),
}


@pytest.mark.parametrize("name", ["ids", "inputs", "splits", "labels.a", "groups", "lengths", "tokens", "chats"])
def test_foreign_pieces_are_refused_in_one_line_or_read(tmp_path: Path, name: str):
    """Whatever a column of a Parquet file holds, with hashes that agree."""
    stored(tmp_path / "store", TASK, 8)
    head, _ = unseal(tmp_path / "store" / "examples.json")
    file = tmp_path / "store" / "examples" / f"{head['pieces'][0]}.parquet"
    table = pq.read_table(file)
    at = table.column_names.index(name)
    tables = {what: table.set_column(at, name, cells) for what, cells in CELLS.items()}
    tables |= {
        "without it": table.remove_column(at),
        "under another name": table.rename_columns([f"{one}?" if one == name else one for one in table.column_names]),
        "twice": table.append_column(name, table.column(at)),
        "by name": table.append_column(f"{name}.more", table.column(at)),
        "no rows": table[:0],
        "fewer rows": table[:5],
        "rows twice": pa.concat_tables([table, table]),
    }
    for what, changed in tables.items():
        other = tmp_path / "other.parquet"
        pq.write_table(changed, other)
        data = other.read_bytes()
        checksum = hashlib.sha256(data).hexdigest()
        (tmp_path / "store" / "examples" / f"{checksum}.parquet").write_bytes(data)
        (tmp_path / "store" / "examples.json").write_bytes(seal({**head, "pieces": [checksum]})[0])
        if task := read_or_refused(tmp_path / "store"):
            assert name != "splits"
            assert what in {*CELLS, "without it"}, what
            assert what in ("numbers", "lists", "without it") or name not in ("lengths", "labels.a", "tokens"), what
            assert (task.fingerprint() == TASK.fingerprint()) == (name in ("lengths", "tokens"))


def read_or_refused(path: Path) -> Task | None:
    """The task of a store of 8 examples; None where it was refused in one line."""
    plan: Any = SimpleNamespace(rows=8)
    with contextlib.suppress(StorageError):
        return read_examples(path, plan).task
    with pytest.raises(StorageError, match=r"\A.*is not a list of the examples of a store.*\Z"):
        read_examples(path, plan)
    return None


def test_bytes_that_are_no_parquet_are_refused(tmp_path: Path):
    stored(tmp_path / "store", TASK, 8)
    head, _ = unseal(tmp_path / "store" / "examples.json")
    good = (tmp_path / "store" / "examples" / f"{head['pieces'][0]}.parquet").read_bytes()
    rng = np.random.default_rng(0)
    for k in range(60):
        bad = bytearray(good if k else b"")
        for _ in range(1 + k % 4 if k else 0):
            bad[int(rng.integers(len(bad)))] ^= 1 << int(rng.integers(8))
        bad = bad[: int(rng.integers(len(bad)))] if k % 5 == 1 else bad
        checksum = hashlib.sha256(bad).hexdigest()
        (tmp_path / "store" / "examples" / f"{checksum}.parquet").write_bytes(bad)
        (tmp_path / "store" / "examples.json").write_bytes(seal({**head, "pieces": [checksum]})[0])
        task = read_or_refused(tmp_path / "store")
        assert task is None or len(task) == 8
