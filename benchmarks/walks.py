"""Trace where two values go: the options through `extract`, and `out` through writing a store.

    python benchmarks/walks.py [CHECKOUT ...]

A stay is a row of calls of one file's functions that take the value; a return is a stay in a file that the walk has
left before. The second figures count the files that read and write (`files/`, and where they were before there was such
a folder) as one. Each checkout is walked in a process of its own, on two texts and a small model made here.
"""

import itertools
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

OPTIONS = {"ExtractOptions", "ExtractArguments"}
DISK = re.compile(r"(files|remote)/.*|durable\.py|plain_files\.py")


def walk(call: Callable[[], object], is_value: Callable[[Any], bool]) -> str:
    """Stays, files and returns of a value while `call` runs."""
    stays: list[str] = []

    def follow(frame: FrameType, event: str, _: object) -> None:
        file = frame.f_code.co_filename
        if event != "call" or "/probekit/" not in file or not any(is_value(each) for each in frame.f_locals.values()):
            return
        stays.append(file.split("/probekit/")[1])

    sys.setprofile(follow)
    try:
        call()
    finally:
        sys.setprofile(None)
    return "; ".join(map(_figures, (stays, [DISK.sub("files", file) for file in stays])))


def _figures(calls: list[str]) -> str:
    stays = [file for file, _ in itertools.groupby(calls)]
    return f"{len(stays)} stays in {len(set(stays))} files, {len(stays) - len(set(stays))} returns"


def report(folder: Path) -> str:
    """Both walks of the checkout that `probekit` is imported from."""
    import transformers

    import probekit as pk

    config = transformers.GPT2Config(n_layer=2, n_embd=16, n_head=2, n_positions=32, vocab_size=64)
    transformers.GPT2LMHeadModel(config).save_pretrained(folder / "model")
    _save_tokenizer(folder / "model")
    model = pk.load_model(str(folder / "model"))
    out = folder / "store"
    options = walk(lambda: pk.extract(model, ["a b", "b c d"], points="resid_pre"), _is_options)
    path = walk(
        lambda: pk.extract(model, ["a b", "b c d"], points="resid_pre", out=out),
        lambda value: isinstance(value, str | Path) and str(value).startswith(str(out)),
    )
    return f"  options through extract: {options}\n  out through writing a store: {path}"


def _is_options(value: Any) -> bool:
    return type(value).__name__ in OPTIONS


def _save_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(WordLevel({"<|endoftext|>": 0, "a": 1, "b": 2, "c": 3, "d": 4}, unk_token="<|endoftext|>"))
    tokenizer.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<|endoftext|>").save_pretrained(folder)


if __name__ == "__main__":
    if sys.argv[1:] == ["--here"]:
        with tempfile.TemporaryDirectory() as name:
            print(report(Path(name)))
    else:
        for checkout in sys.argv[1:] or ["."]:
            print(f"{checkout}:", flush=True)
            environment = {**os.environ, "PYTHONPATH": str(Path(checkout).resolve())}
            subprocess.run([sys.executable, __file__, "--here"], env=environment, check=True)
