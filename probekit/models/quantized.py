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


@dataclass(frozen=True)
class FewBits:
    """How a file holds a quantized weight.

    Attributes:
        main: the end of the name of the tensor with the numbers.
        others: the ends of the tensors that may be there too.
        needed: of each of these pairs or more, one must be there.
        ours: what the weight's name ends with, in place of `main`.
        shape: the weight's shape, from those of its tensors.
        widen: the weight in float32, from its tensors.
    """

    main: str
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


def _checked_block(value: Any, name: str) -> tuple[int, int] | None:
    """The rows and columns that share a scale.

    Raises:
        Unimplemented: not two whole numbers above 0.
    """
    if value is None:
        return None
    if not isinstance(value, list | tuple) or len(value) != 2 or not all(map(_is_size, value)):
        raise Unimplemented(f"quantization_config: {name} must be two whole numbers above 0; got {value!a:.40}")
    return value[0], value[1]


def _scaled(numbers: "Tensor", scale: "Tensor", zero: "Tensor | None" = None, block: Any = None) -> "Tensor":
    """(numbers - zero) * scale; `block` is the rows and columns that share a scale, by default equal shares of all."""
    wide = numbers.float()
    if zero is not None:
        wide = wide - _spread(zero.float(), wide.shape, block)
    return wide * _spread(scale.float(), wide.shape, block)


def _spread(small: "Tensor", shape: tuple[int, ...], block: Any) -> "Tensor":
    """Entries repeated over blocks, the last ones cut off: [ceil(O / b), ceil(I / b)] to [O, I]; or what broadcasts."""
    if small.numel() == 1:
        return small.reshape(())
    small = small[:, None] if small.dim() == 1 else small
    for axis, size in ((-2, shape[-2]), (-1, shape[-1])):
        n = small.shape[axis]
        if n not in (1, size):
            each = block[axis] if block else size // max(1, n)
            if not each or -(-size // each) != n:
                raise ValueError(f"{n} scales do not fit {size} numbers in blocks of {each}")
            small = small.repeat_interleave(each, axis).narrow(axis, 0, size)
    return small


def _unpacked(packed: "Tensor", bits: int, axis: int) -> "Tensor":
    """Unsigned numbers of a few bits each, the lowest first within an int32, along an axis."""
    import torch

    shifts = torch.arange(0, 32, bits, dtype=torch.int32, device=packed.device)
    wide = (packed.unsqueeze(-1) >> shifts) & ((1 << bits) - 1)
    return wide.movedim(-1, axis + 1).flatten(axis, axis + 1)


def _fp8(config: Mapping[str, Any]) -> FewBits:
    block = _checked_block(config.get("weight_block_size"), "weight_block_size")
    return FewBits(
        ".weight",
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

    return FewBits("_blocks", ("_scales",), (("_scales",),), "", shape, widen)


def _compressed(config: Mapping[str, Any]) -> FewBits:
    groups = config.get("config_groups")
    groups = list(groups.values()) if isinstance(groups, Mapping) else []
    options = [each.get("weights") if isinstance(each, Mapping) else None for each in groups]
    weights = options[0] if options and all(one == options[0] for one in options) else None
    if not isinstance(weights, Mapping):
        raise Unimplemented("quantization_config: compressed-tensors with several kinds of weights is not implemented")
    name = "compressed-tensors"
    _only(config, name, format=("pack-quantized", "int-quantized", "float-quantized", "naive-quantized"))
    _only(weights, name, num_bits=(8, 4), type=("int", "float"), strategy=("channel", "group", "tensor", "block"))
    _only(weights, name, actorder=(None, "weight", "static"))
    _only(config, name, sparsity_config=(None, {}), transform_config=(None, {}))
    group = weights.get("group_size") if weights.get("strategy") == "group" else None
    block = (1, group) if _is_size(group) else _checked_block(weights.get("block_structure"), "block_structure")
    if config.get("format") != "pack-quantized":
        zero = ".weight_zero_point"
        return FewBits(
            ".weight",
            (".weight_scale", zero),
            ((".weight_scale",),),
            ".weight",
            lambda shapes: shapes[".weight"],
            lambda parts: _scaled(parts[".weight"], parts[".weight_scale"], parts.get(zero), block),
        )
    bits = weights.get("num_bits", 8)

    def widen(parts: Parts) -> "Tensor":
        rows, columns = parts[".weight_shape"].tolist()
        numbers = _unpacked(parts[".weight_packed"], bits, 1)[:rows, :columns] - (1 << bits - 1)
        zero = parts.get(".weight_zero_point")
        if zero is not None and zero.shape[0] != rows:  # packed as the weights are, along the rows
            zero = _unpacked(zero, bits, 0)[:rows] - (1 << bits - 1)
        return _scaled(numbers, parts[".weight_scale"], zero, block)

    def shape(shapes: Shapes) -> tuple[int, ...]:
        rows, packed = shapes[".weight_packed"]
        return rows, packed * 32 // bits

    others = (".weight_scale", ".weight_shape", ".weight_zero_point")
    return FewBits(".weight_packed", others, ((".weight_scale",), (".weight_shape",)), ".weight", shape, widen)


def _gptq(config: Mapping[str, Any]) -> FewBits:
    if "bits" not in config:
        raise Unimplemented("quantization_config: gptq without bits is not implemented")
    _only(config, "gptq", bits=(4, 8, 2), checkpoint_format=("gptq", "gptq_v2"))
    bits, group = config["bits"], config.get("group_size")
    less = int(config.get("checkpoint_format", "gptq") == "gptq")  # files of the first version hold zeros less one

    def widen(parts: Parts) -> "Tensor":
        numbers = _unpacked(parts[".qweight"], bits, 0)  # [I, O]
        zeros = (_unpacked(parts[".qzeros"], bits, 1) + less) & ((1 << bits) - 1)
        scales = parts[".scales"].float()
        if ".g_idx" in parts:
            which = parts[".g_idx"].long()
            return ((numbers - zeros[which]) * scales[which]).T
        return _scaled(numbers, scales, zeros, (group, 1) if _is_size(group) else None).T

    def shape(shapes: Shapes) -> tuple[int, ...]:
        packed, columns = shapes[".qweight"]
        return columns, packed * 32 // bits

    return FewBits(".qweight", (".qzeros", ".scales", ".g_idx"), ((".scales",), (".qzeros",)), ".weight", shape, widen)


def _awq(config: Mapping[str, Any]) -> FewBits:
    _only(config, "awq", bits=(4,), version=("gemm",), zero_point=(True,))
    group = config.get("group_size")

    def columns(packed: "Tensor") -> "Tensor":
        numbers = _unpacked(packed, 4, 1)
        return numbers.unflatten(1, (-1, 8))[:, :, list(AWQ_ORDER)].flatten(1)

    def widen(parts: Parts) -> "Tensor":
        block = (group, 1) if _is_size(group) else None
        return _scaled(columns(parts[".qweight"]), parts[".scales"], columns(parts[".qzeros"]), block).T

    def shape(shapes: Shapes) -> tuple[int, ...]:
        rows, packed = shapes[".qweight"]
        return packed * 8, rows

    return FewBits(".qweight", (".qzeros", ".scales"), ((".scales",), (".qzeros",)), ".weight", shape, widen)


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
        if not absent:
            shape = _shape_of(layout, key, parts)
            if stem + layout.ours in stored and layout.main != layout.ours:
                raise DataError(
                    f"{str(tensor.file)!a} holds {stem + layout.ours!a:.200} twice, in full and in few bits"
                )
            packed = tensor._replace(key=stem + layout.ours, dtype="F32", shape=shape)
            found[stem + layout.ours] = packed._replace(parts=parts, widen=layout.widen)
        elif layout.main == layout.ours and tensor.dtype in ("F32", "F16", "BF16"):
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
