"""What the tests of engines extract."""

from pathlib import Path
from typing import Any

N = 270
SIZES: dict[str, Any] = {"batch_tokens": 40, "shard_bytes": 1000}


def job(folder: Path, *more: str) -> list[str]:
    """The command line of the extraction."""
    sizes = ["--batch-tokens", "40", "--shard-bytes", "1000"]
    return ["extract", "--model", str(folder / "tiny"), "--dataset", str(folder / "texts.csv"), *sizes, *more]


def sums(path: Path) -> dict[str, bytes]:
    """The sums of each place; a file is named by its content, and only its record has a date."""
    return {file.name: file.read_bytes() for file in (path / "statistics").glob("*.safetensors")}
