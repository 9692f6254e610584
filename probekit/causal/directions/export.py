"""Write directions as safetensors, or as the GGUF control vector that llama.cpp adds while it generates.

GGUF, version 3: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. llama.cpp reads the tensors named
`direction.N`, each f32 with one axis, and adds `direction.N` to the output of its block N, blocks counted from 0
(`llama_adapter_cvec` and `common_control_vector_load`). So `resid_post.N`, which is `resid_pre.N+1`, is `direction.N`.
Block 0 cannot be steered there, and the metadata is for people: llama.cpp does not compare `model_hint`.
"""

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save

from probekit.causal.directions.directions import Direction
from probekit.errors import DataError, UsageError
from probekit.files.durable import write_as
from probekit.options.check import check_path, is_whole
from probekit.points import Place
from probekit.text import kind_of

ALIGNMENT = 32  # bytes; GGUF's default
UINT32, STRING, F32 = 4, 8, 0  # GGUF's numbers of these types


def export_directions(
    path: str | Path, directions: Mapping[Any, Any], point: str = "resid_pre", model: str = ""
) -> Path:
    """Write one vector for each layer: `model.safetensors` or `model.gguf`, by the suffix of `path`.

    A `Direction` is written as one standard deviation of the activations along it, so that the strength of llama.cpp's
    `--control-vector-scaled FILE:STRENGTH` counts standard deviations; a vector is written as it is. llama.cpp adds
    them at all tokens, and at all layers of the file unless `--control-vector-layer-range` names some.

    Args:
        path: a file; replaced if it is there.
        directions: a layer of `point`, or a place such as "resid_post.5", -> a `Direction` or a vector [D].
        point: of the keys that are numbers.
        model: name of the model, for the file's metadata.

    Raises:
        UsageError: another suffix; no directions; vectors of different widths; for .gguf, a place that llama.cpp cannot
            steer.
        DataError: NaN, infinity, or numbers that float32 cannot hold.
        StorageError: the disk refused.
    """
    target = check_path("path", path)
    vectors = _vectors(directions, point)
    if target.suffix == ".safetensors":
        data = save({str(at): torch.from_numpy(x) for at, x in vectors.items()}, {"model": model})
    elif target.suffix == ".gguf":
        data = control_vector(vectors_by_block(vectors), model)
    else:
        raise UsageError(f"directions are written to a .safetensors or .gguf file; got {str(target)!a}")
    write_as(target, data)
    return target


def control_vector(vectors: Mapping[int, np.ndarray], model: str = "") -> bytes:
    """The bytes of a GGUF control vector.

    Args:
        vectors: N -> float32 [D], added to the output of block N; N is 1 or more.
        model: the model's name.
    """
    fields = [
        _text("general.architecture") + struct.pack("<I", STRING) + _text("controlvector"),
        _text("controlvector.model_hint") + struct.pack("<I", STRING) + _text(model),
        _text("controlvector.layer_count") + struct.pack("<II", UINT32, len(vectors)),
    ]
    infos, values, offset = [], [], 0
    for block, vector in sorted(vectors.items()):
        content = _aligned(vector.astype("<f4").tobytes())
        infos.append(_text(f"direction.{block}") + struct.pack("<IQIQ", 1, len(vector), F32, offset))
        values.append(content)
        offset += len(content)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(infos), len(fields)) + b"".join(fields + infos)
    return _aligned(head) + b"".join(values)


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _aligned(data: bytes) -> bytes:
    return data + bytes(-len(data) % ALIGNMENT)


def _vectors(directions: Mapping[Any, Any], point: str) -> dict[Place, np.ndarray]:
    if not isinstance(directions, Mapping) or not directions:
        raise UsageError(
            f"expected layers or places with their directions, got {kind_of(directions)}; give one or more"
        )
    found = {_place(key, point): _vector(given) for key, given in directions.items()}
    if len(found) < len(directions) or len({len(x) for x in found.values()}) > 1:
        widths = sorted({len(x) for x in found.values()})
        raise UsageError(f"expected one vector for each place, all of one width; got {len(directions)} of {widths}")
    return found


def _place(key: Any, point: str) -> Place:
    place = Place.of((point, int(key)) if is_whole(key) else key)
    if place.layer is None or place.layer < 0:
        raise UsageError(f'expected a layer, such as 5, or a place, such as "resid_post.5"; got {key!a:.60}')
    return place


def _vector(given: Any) -> np.ndarray:
    exact = given.step_D if isinstance(given, Direction) else given
    vector = torch.as_tensor(exact).detach().double().cpu().numpy()
    if vector.ndim != 1 or not len(vector):
        raise UsageError(f"expected a vector [D], got {list(vector.shape)}; give each layer one direction")
    with np.errstate(over="ignore"):
        narrow = vector.astype(np.float32)
    if not np.isfinite(narrow).all():
        raise DataError("a direction holds NaN, infinity, or numbers that float32 cannot hold; scale it down")
    return narrow


def vectors_by_block(vectors: Mapping[Place, np.ndarray]) -> dict[int, np.ndarray]:
    """The vectors by the block of llama.cpp that adds them to its output.

    Raises:
        UsageError: a place that llama.cpp cannot steer, or two names of one place.
    """
    blocks: dict[int, np.ndarray] = {}
    for place, vector in vectors.items():
        point, layer = place
        if point not in ("resid_pre", "resid_post") or layer is None:
            raise UsageError(
                f"llama.cpp adds directions to the output of blocks (resid_pre, resid_post), not to {point}; write "
                ".safetensors"
            )
        block = layer if point == "resid_post" else layer - 1
        if block < 1:
            raise UsageError(
                f"llama.cpp adds nothing before the output of block 1, so it cannot steer {place}; leave "
                "it out (the first are resid_pre.2 and resid_post.1)"
            )
        if block in blocks:
            same = str(Place("resid_pre", block + 1)), str(Place("resid_post", block))
            raise UsageError(f"{same[0]} and {same[1]} are the same place; give one of them")
        blocks[block] = vector
    return blocks
