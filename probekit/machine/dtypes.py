"""Number types by name, and how many bytes a value takes; nothing here needs torch."""

from probekit.errors import UsageError, nearest

BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
SHORT = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}


def dtype_name(dtype: object) -> str:
    """The name in `BYTES` of a torch type or of its name: `torch.float16`, `"float16"` and `"fp16"` give `"float16"`.

    Raises:
        UsageError: another type; the message names the nearest.
    """
    name = str(dtype).removeprefix("torch.")
    name = SHORT.get(name, name)
    if name not in BYTES:
        raise UsageError(f"unknown dtype {name!a}; {nearest(name, BYTES)}")
    return name
