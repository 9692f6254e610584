"""Weights that files hold in few bits: what config.json says of them, and the numbers that they stand for.

A weight is widened when it is read, one matrix at a time (one expert's, where a tensor holds all of a layer), so that
memory holds the model once. Only the weights are rounded: activations, which some engines round as well, are not.
torch is imported when a weight is widened. The layouts, by `quant_method`:

- fp8 (DeepSeek V3, section 3.3; Qwen3, Ministral 3): float8 `weight`, one scale for each block of 128 x 128, or one.
- mxfp4 (OCP Microscaling Formats 1.0, section 5.3; gpt-oss): `_blocks` of 32 numbers in 4 bits, a power of two each.
- compressed-tensors (vllm-project/compressed-tensors): `weight_packed` in 4 or 8 bits, or a `weight` of int8 or float8.
- gptq (Frantar et al. 2023) and awq (Lin et al. 2024): `qweight`, `qzeros` and `scales`, eight numbers in an int32.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from probekit.errors import DataError
from probekit.models.config_fields import Unimplemented
from probekit.text import listed

if TYPE_CHECKING:
    from torch import Tensor

    from probekit.models.weights import TensorInFile

Parts = Mapping[str, "Tensor"]  # a weight's tensors by the ends of their names
Shapes = Mapping[str, tuple[int, ...]]

FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # of a nibble without its highest bit, the sign
AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # the place within an int32 of each of eight neighbouring columns
OF_ACTIVATIONS = (".input_scale", ".activation_scale", ".k_scale", ".v_scale", ".input_global_scale")
AT_ONCE = 1 << 18  # numbers that are scaled at a time
FULL = ("F32", "F16", "BF16")


@dataclass(frozen=True)
class FewBits:
    """How a file holds a quantized weight.

    Attributes:
        main: the end of the name of the tensor with the numbers.
        dtype: of that tensor, as the file's header names it.
        others: the ends of the tensors that may be there too.
        needed: of each of these pairs or more, one must be there.
        ours: what the weight's name ends with, in place of `main`.
        shape: the weight's shape, from those of its tensors.
        widen: the weight in float32, from its tensors.
    """

    main: str
    dtype: str
    others: tuple[str, ...]
    needed: tuple[tuple[str, ...], ...]
    ours: str
    shape: Callable[[Shapes], tuple[int, ...]]
    widen: Callable[[Parts], "Tensor"]


def few_bits_of(hf: Mapping[str, Any]) -> FewBits | None:
    """The layout that a config.json names; None for weights in full.

    Raises:
        Unimplemented: another method, or an option of it that is not known.
    """
    config = hf.get("quantization_config")
    if config is None:
        return None
    method = config.get("quant_method") if isinstance(config, Mapping) else None
    made = _METHODS.get(method) if isinstance(method, str) else None
    if made is None:
        raise Unimplemented(f"quantization_config: weights quantized by {method!a:.40} are not implemented here")
    return made(config)


def _only(config: Mapping[str, Any], method: str, **known: tuple[Any, ...]) -> None:
    """Refuse fields of the config with other values than those that are known."""
    for name, values in known.items():
        value = config.get(name, values[0])
        if not any(type(value) is type(one) and value == one for one in values):
            raise Unimplemented(
                f"quantization_config: {name} = {config[name]!a:.40} of {method} is not implemented; only "
                f"{listed([repr(value) for value in values])} is"
            )


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _group_size(config: Mapping[str, Any], method: str) -> int | None:
    """How many inputs share a scale; None for all of them.

    Raises:
        Unimplemented: neither -1 nor a whole number above 0.
    """
    size = config.get("group_size")
    if not _is_size(size) and (type(size) is not int or size != -1):
        raise Unimplemented(
            f"quantization_config: group_size of {method} must be -1 or a whole number above 0; got {size!a:.40}"
        )
    return None if size == -1 else size


def _checked_block(value: Any, name: str) -> tuple[int, int]:
    """The rows and columns that share a scale.

    Raises:
        Unimplemented: not two whole numbers above 0.
    """
    if not isinstance(value, list | tuple) or len(value) != 2 or not all(map(_is_size, value)):
        raise Unimplemented(f"quantization_config: {name} must be two whole numbers above 0; got {value!a:.40}")
    return value[0], value[1]


def _scaled(
    numbers: "Tensor",
    scale: "Tensor",
    zero: "Tensor | None" = None,
    block: tuple[int, int] | None = None,
    rows: "Tensor | None" = None,
) -> "Tensor":
    """(numbers - zero) * scale in float32, some rows at a time: scales as large as the weight would need its memory.

    Args:
        numbers: [..., O, I].
        scale: one, one for each row, or [..., N, M].
        zero: as `scale`.
        block: the rows and the columns that share a scale; the last ones may be cut off.
        rows: which of the N each of the O rows has, where they are not in blocks.
    """
    import torch

    wide = torch.empty(numbers.shape, device=numbers.device)
    scales = _by_rows(scale, numbers.shape, block, rows)
    zeros = None if zero is None else _by_rows(zero, numbers.shape, block, rows)
    step = max(1, AT_ONCE // max(1, numbers.shape[-1]))
    for start in range(0, numbers.shape[-2], step):
        here = slice(start, start + step)
        part = wide[..., here, :].copy_(numbers[..., here, :])
        if zeros is not None:
            part -= zeros(here)
        part *= scales(here)
    return wide


def _by_rows(
    small: "Tensor", shape: tuple[int, ...], block: tuple[int, int] | None, rows: "Tensor | None"
) -> "Callable[[slice], Tensor]":
    """A function of some rows of a matrix of this shape to their scales, as `_scaled` describes them."""
    import torch

    small = small.reshape(-1, 1) if small.dim() < 2 else small
    tall, wide = (_share(small.shape[axis], shape[axis], block[axis] if block else None) for axis in (-2, -1))
    which = torch.arange(shape[-2], device=small.device) // max(1, tall) if rows is None else rows
    return lambda here: small[..., which[here], :].float().repeat_interleave(wide, -1)[..., : shape[-1]]


def _share(n: int, size: int, each: int | None) -> int:
    """How many of `size` rows or columns share one of n scales: all of them, one, or `each`."""
    if n in (1, size):
        return size // max(1, n)
    if each is None or -(-size // each) != n:
        raise ValueError(f"{n} scales do not fit {size} numbers in blocks of {each}")
    return each


def _unpacked(packed: "Tensor", bits: int, axis: int, order: tuple[int, ...] | None = None) -> "Tensor":
    """Unsigned numbers of a few bits each along an axis; `order` is their places within an int32, lowest bits first."""
    import torch

    places = torch.tensor(order or range(32 // bits), dtype=torch.int32, device=packed.device)
    wide = packed.unsqueeze(axis + 1) >> bits * (places[:, None] if axis == 0 else places)
    wide &= (1 << bits) - 1
    return wide.flatten(axis, axis + 1)


def _fp8(config: Mapping[str, Any]) -> FewBits:
    size = config.get("weight_block_size")
    block = None if size is None else _checked_block(size, "weight_block_size")
    return FewBits(
        ".weight",
        "F8_E4M3",
        (".weight_scale_inv", ".weight_scale"),
        ((".weight_scale_inv", ".weight_scale"),),
        ".weight",
        lambda shapes: shapes[".weight"],
        lambda parts: _scaled(parts[".weight"], _scale(parts), block=block),
    )


def _scale(parts: Parts) -> "Tensor":
    return next(parts[name] for name in (".weight_scale_inv", ".weight_scale") if name in parts)


def _mxfp4(config: Mapping[str, Any]) -> FewBits:
    """Of experts: [E, out, I / 32, 16] and [E, out, I / 32], for weights [E, I, out]."""

    def widen(parts: Parts) -> "Tensor":
        import torch

        blocks, exponents = parts["_blocks"], parts["_scales"].int() - 127
        numbers = torch.tensor((*FP4, *(-x for x in FP4)), device=blocks.device)
        pairs = torch.stack((numbers[(blocks & 15).long()], numbers[(blocks >> 4).long()]), -1).flatten(-2)
        return torch.ldexp(pairs, exponents[..., None]).flatten(-2).transpose(-1, -2)

    def shape(shapes: Shapes) -> tuple[int, ...]:
        *experts, rows, groups, half = shapes["_blocks"]
        return (*experts, groups * half * 2, rows)

    return FewBits("_blocks", "U8", ("_scales",), (("_scales",),), "", shape, widen)


def _compressed(config: Mapping[str, Any]) -> FewBits:
    groups = config.get("config_groups")
    groups = list(groups.values()) if isinstance(groups, Mapping) else []
    options = [each.get("weights") if isinstance(each, Mapping) else None for each in groups]
    first = options[0] if options and all(one == options[0] for one in options) else None
    if not isinstance(first, Mapping):
        raise Unimplemented("quantization_config: compressed-tensors with several kinds of weights is not implemented")
    name = "compressed-tensors"
    _only({"format": None} | dict(config), name, format=tuple(_FORMATS))
    form = config["format"]
    weights: Mapping[str, Any] = {"type": "int", **first}
    _only(weights, f"{name} ({form})", type=_FORMATS[form])
    kind = weights["type"]
    _only(weights, f"{name} ({kind})", num_bits=(8, 4) if kind == "int" else (8,))
    _only(weights, name, strategy=("channel", "group", "tensor", "block"), symmetric=(True, False))
    _only(weights, name, actorder=(None, "weight", "static"))
    _only(config, name, sparsity_config=(None, {}), transform_config=(None, {}))
    block, zero = None, ".weight_zero_point"
    if weights.get("strategy") == "block":
        block = _checked_block(weights.get("block_structure"), "block_structure")
    elif weights.get("strategy") == "group" and (group := _group_size(weights, name)):
        block = (1, group)
    needed = ((".weight_scale",),) if weights.get("symmetric", True) else ((".weight_scale",), (zero,))
    if form != "pack-quantized":
        return FewBits(
            ".weight",
            "I8" if kind == "int" else "F8_E4M3",
            (".weight_scale", zero),
            needed,
            ".weight",
            lambda shapes: shapes[".weight"],
            lambda parts: _scaled(parts[".weight"], parts[".weight_scale"], parts.get(zero), block),
        )
    bits = weights.get("num_bits", 8)
    half = 1 << bits - 1

    def widen(parts: Parts) -> "Tensor":
        import torch

        rows, columns = parts[".weight_shape"].tolist()
        numbers, zeros = _unpacked(parts[".weight_packed"], bits, 1)[:rows, :columns], parts.get(zero)
        numbers -= half
        if zeros is not None and zeros.dtype == torch.int32:  # packed as the weights are, along the rows
            zeros = _unpacked(zeros, bits, 0)[:rows] - half
        return _scaled(numbers, parts[".weight_scale"], zeros, block)

    def shape(shapes: Shapes) -> tuple[int, ...]:
        rows, packed = shapes[".weight_packed"]
        return rows, packed * 32 // bits

    others, needed = (".weight_scale", ".weight_shape", zero), (*needed, (".weight_shape",))
    return FewBits(".weight_packed", "I32", others, needed, ".weight", shape, widen)


_FORMATS = {
    "pack-quantized": ("int",),
    "int-quantized": ("int",),
    "float-quantized": ("float",),
    "naive-quantized": ("int", "float"),
}


def _gptq(config: Mapping[str, Any]) -> FewBits:
    _only({"bits": None} | dict(config), "gptq", bits=(4, 8, 2), checkpoint_format=("gptq", "gptq_v2"))
    bits, group = config["bits"], _group_size(config, "gptq")
    less = int(config.get("checkpoint_format", "gptq") == "gptq")  # files of the first version hold zeros less one

    def widen(parts: Parts) -> "Tensor":
        numbers = _unpacked(parts[".qweight"], bits, 0)  # [I, O]
        zeros = (_unpacked(parts[".qzeros"], bits, 1) + less) & ((1 << bits) - 1)
        which = parts[".g_idx"].long() if ".g_idx" in parts else None
        return _scaled(numbers, parts[".scales"], zeros, (group, 1) if group else None, which).T

    def shape(shapes: Shapes) -> tuple[int, ...]:
        packed, columns = shapes[".qweight"]
        return columns, packed * 32 // bits

    others, needed = (".qzeros", ".scales", ".g_idx"), ((".scales",), (".qzeros",))
    return FewBits(".qweight", "I32", others, needed, ".weight", shape, widen)


def _awq(config: Mapping[str, Any]) -> FewBits:
    _only(config, "awq", bits=(4,), version=("gemm",), zero_point=(True,))
    group = _group_size(config, "awq")

    def widen(parts: Parts) -> "Tensor":
        numbers, zeros = (_unpacked(parts[end], 4, 1, AWQ_ORDER) for end in (".qweight", ".qzeros"))  # [I, O]
        return _scaled(numbers, parts[".scales"], zeros, (group, 1) if group else None).T

    def shape(shapes: Shapes) -> tuple[int, ...]:
        rows, packed = shapes[".qweight"]
        return packed * 8, rows

    others, needed = (".qzeros", ".scales"), ((".scales",), (".qzeros",))
    return FewBits(".qweight", "I32", others, needed, ".weight", shape, widen)


_METHODS: dict[str, Callable[[Mapping[str, Any]], FewBits]] = {
    "fp8": _fp8,
    "mxfp4": _mxfp4,
    "compressed-tensors": _compressed,
    "gptq": _gptq,
    "awq": _awq,
}


def in_full(stored: Mapping[str, "TensorInFile"], layout: FewBits) -> dict[str, "TensorInFile"]:
    """The tensors of a folder, the quantized ones in place of what holds them, by the names of weights in full.

    Raises:
        DataError: a tensor without its scales.
    """
    ends = (layout.main, *layout.others, *OF_ACTIVATIONS)
    found = {key: tensor for key, tensor in stored.items() if not key.endswith(ends)}
    for key, tensor in stored.items():
        if not key.endswith(layout.main):
            continue
        stem = key.removesuffix(layout.main)
        parts = {end: stored[stem + end] for end in (layout.main, *layout.others) if stem + end in stored}
        absent = [" or ".join(ends) for ends in layout.needed if not parts.keys() & set(ends)]
        if not absent and tensor.dtype != layout.dtype:
            raise DataError(
                f"{str(tensor.file)!a} holds {key!a:.200} as {tensor.dtype}, where quantization_config says "
                f"{layout.dtype}; correct that field of config.json, or download the weights again"
            )
        if not absent:
            shape = _shape_of(layout, key, parts)
            if stem + layout.ours in stored and layout.main != layout.ours:
                raise DataError(
                    f"{str(tensor.file)!a} holds {stem + layout.ours!a:.200} twice, in full and in few bits"
                )
            packed = tensor._replace(key=stem + layout.ours, dtype="F32", shape=shape)
            found[stem + layout.ours] = packed._replace(parts=parts, widen=layout.widen)
        elif layout.main == layout.ours and tensor.dtype in FULL:
            found[key] = tensor  # config.json leaves some out, such as norms
        else:
            raise DataError(
                f"{str(tensor.file)!a} holds {key!a:.200}, {tensor.dtype}, without {absent[0]}; download the weights "
                "again"
            )
    return found


def _shape_of(layout: FewBits, key: str, parts: Mapping[str, "TensorInFile"]) -> tuple[int, ...]:
    try:
        return layout.shape({end: part.shape for end, part in parts.items()})
    except ValueError:
        shapes = listed([f"{end} {list(part.shape)}" for end, part in parts.items()])
        raise DataError(f"{key!a:.200} has tensors of other shapes than its layout ({shapes})") from None
