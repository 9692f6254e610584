"""Turn what was typed on the command line, or written in a config file, into the values of options."""

import re

from probekit.errors import UsageError, nearest
from probekit.selections import PER_EXAMPLE, as_position, split_selections

MAX_STACKED = 10_000
DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}


def names(text: str) -> list[str]:
    """`"resid_pre, attn_out"` -> `["resid_pre", "attn_out"]`."""
    return [part.strip() for part in text.split(",") if part.strip()]


def probes(text: str) -> str | tuple[str, ...]:
    """`"logistic"` as it is; `"logistic, mean-diff"` -> `("logistic", "mean-diff")`, each once."""
    several = tuple(dict.fromkeys(names(text)))
    return several if len(several) > 1 else "".join(several) or text


def dtype(text: str) -> str:
    """`"fp32"` or `"float32"` -> `"float32"`, and so on. Raises UsageError that names the nearest."""
    name = DTYPES.get(text, text)
    if name not in DTYPES.values():
        raise UsageError(f"unknown type {text!r:.80}; {nearest(text, [*DTYPES, *DTYPES.values()])}")
    return name


def position(text: str) -> str | int:
    """One selection of tokens as the language writes it, a token's number, or `"per example"`."""
    return text if text == PER_EXAMPLE else as_position(text)


def positions(text: str) -> str | int | list[str | int] | None:
    """One selection of tokens, or several with commas between them."""
    several = [position(part) for part in split_selections(text)]
    return several if len(several) > 1 else several[0] if several else None


def stacked_layers(text: str) -> list[int]:
    """`"0,4,8"` or `"2-6"` -> the layers in the order given, which is that of the array. Raises UsageError."""
    layers: list[int] = []
    for part in text.split(","):
        first, dash, last = (word.strip() for word in part.partition("-"))
        if not all(word.isdecimal() and len(word) < 5 for word in (first, last or first)) or (dash and not last):
            raise UsageError(f"--layers of stacked arrays are 0,4,8 or 2-6; got {text!r:.80}")
        layers += range(int(first), int(last or first) + 1)
        if len(layers) > MAX_STACKED:
            raise UsageError(f"--layers of stacked arrays are at most {MAX_STACKED:,}; got {text!r:.80}")
    return layers


def positive_numbers(text: str) -> list[float]:
    """`"0.01,1,100"` -> `[0.01, 1.0, 100.0]`."""
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = []
    if not values or not all(value > 0 for value in values):
        known = "numbers above 0 with commas between them, such as 0.01,1,100 or inf"
        raise UsageError(f"--C takes {known}, got {text!r:.80}")
    return values


def ids(text: str) -> list[int]:
    """`"3,17,5"` -> `[3, 17, 5]`."""
    try:
        return [int(part) for part in names(text)]
    except ValueError:
        raise UsageError(f"--tokens takes ids with commas between them, such as 3,17,5; got {text!a:.80}") from None


def n_bytes(text: str | int) -> int:
    """`"8GB"`, `"500 MB"`, `"1.5GiB"` or a number of bytes as that number. Raises UsageError for anything else."""
    found = re.fullmatch(r"\s*(\d{1,18}(?:\.\d{1,9})?)\s*([KMGT]?)(i?)B?\s*", str(text), re.IGNORECASE)
    value = 0 if found is None or isinstance(text, bool) else float(found[1]) * _unit(found[2], found[3])
    if not value >= 1:
        raise UsageError(f"memory (--memory) is a size such as 8GB, 500MB or a number of bytes; got {text!a:.80}")
    return int(value)


def _unit(letter: str, binary: str) -> int:
    return (1024 if binary else 1000) ** " KMGT".index(letter.upper() or " ")
