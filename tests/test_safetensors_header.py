"""Headers of safetensors files: equal to the library's reading of its own files, and refused where they lie."""

import io
import json
import struct
from typing import Any

import pytest
import torch
from safetensors.torch import save

from probekit.files.safetensors_header import MAX_AXES, MAX_HEADER, HeaderError, read_header


def raw(header: Any, data: bytes = b"", length: int | None = None) -> io.BytesIO:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return io.BytesIO(struct.pack("<Q", len(text) if length is None else length) + text + data)


def entry(first: int, last: int, shape: Any, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [first, last]}


def test_the_header_says_what_the_library_wrote():
    tensors = {
        "b": torch.ones(2, 3),
        "a": torch.zeros(0, 4, dtype=torch.bfloat16),
        "c": torch.arange(5),
        "s": torch.ones(()),
    }
    data = save(tensors, {"run": "x"})
    header = read_header(io.BytesIO(data))
    assert header.metadata == {"run": "x"}
    assert {key: x.shape for key, x in header.tensors.items()} == {key: tuple(x.shape) for key, x in tensors.items()}
    for key, x in header.tensors.items():
        values = data[x.offset : x.offset + x.n_bytes]
        assert values == tensors[key].contiguous().flatten().view(torch.uint8).numpy().tobytes()
    offsets = [x.offset for x in header.tensors.values()]
    assert offsets == sorted(offsets)


def test_a_type_that_is_not_known_is_described_all_the_same():
    assert read_header(raw({"x": entry(0, 3, [6], "F4")}, b"abc")).tensors["x"].dtype == "F4"


@pytest.mark.parametrize(
    ("file", "why"),
    [
        (io.BytesIO(), "claims 0 bytes, the file has 0"),
        (raw({}, length=2**63), "claims"),
        (raw(b" " * (MAX_HEADER + 1)), "claims"),
        (raw(b"[]"), None),
        (raw(b"[" * 100_000), None),
        (raw(b'{"x": 1, "x": 1}'), "stands twice"),
        (raw({"__metadata__": {"a": 1}}), "metadata"),
        (raw({"__metadata__": ["a"]}), "metadata"),
        (raw({"x": {"dtype": "F32"}}), None),
        (raw({"x": entry(0, 4, [True])}, b"abcd"), "invalid shape"),
        (raw({"x": entry(0, 4, [1] * (MAX_AXES + 1))}, b"abcd"), "invalid shape"),
        (raw({"x": entry(4, 0, [1], "F4")}, b"abcd"), "invalid offsets"),
        (raw({"x": entry(0, 4, [2])}, b"abcd"), "needs 8 bytes, its offsets leave 4"),
        (raw({"x": entry(0, 4, [1])}, b"abc"), "cut short"),
        (raw({"x": entry(0, 4, [1])}, b"abcde"), "its header describes"),
        (raw({"x": entry(1, 5, [1])}, b"abcde"), "begins at byte"),
        (raw({"x": entry(0, 4, [1]), "y": entry(0, 4, [1])}, b"abcd"), "begins at byte"),
    ],
    ids=lambda value: value if isinstance(value, str) else "file",
)
def test_a_header_that_does_not_fit_its_file_is_refused(file: io.BytesIO, why: str | None) -> None:
    with pytest.raises(HeaderError, match=why):
        read_header(file)
