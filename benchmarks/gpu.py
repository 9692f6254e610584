"""Measure one GPU in one step: python benchmarks/gpu.py --device cuda --out gpu.json > gpu.md

For each shape it makes a model with random weights on the device, in bfloat16, and times in turn, after a warm-up:

- `extract` of every layer's output at the last token into memory, and `transformers` on the same texts, as
  `probekit selftest --speed` does: tokens/s, their ratio with its interval, the share of the peak that a large matrix
  product reaches on this device, how much of the copy to the host is hidden, and peak memory;
- every token into memory, the last token into a store, and every token into a store, relative to the last token into
  memory;
- `train_probes` on the activations on the device, and on a copy in host memory.

The last column is the largest relative difference between a text in its packed batch and the text alone. Its bound is
that of `probekit selftest` for the type; a row beyond it says WRONG. A shape that does not fit the device is skipped.
`--tiny` runs everything in a minute on a CPU; its figures mean nothing.
"""

import argparse
import json
import platform
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from probekit import extract, train_probes
from probekit.activations.activations import ActivationSet
from probekit.files.published import PUBLISHED
from probekit.machine.devices import DTYPES, find_device
from probekit.models.base import LanguageModel
from probekit.models.families.gpt2 import GPT2Config
from probekit.models.families.llama import LlamaConfig
from probekit.options import parse
from probekit.tasks import Task
from probekit.verification import measure_speed, speed_as_dict
from probekit.verification.compare import bounds_of
from probekit.verification.inputs import made_up_model, published_config
from probekit.verification.speed import device_name, drawn_texts, in_turn, ratio_of

SHAPES = ("gpt2", "gpt2-xl", "llama-3.2-1b", "llama-3.1-8b")
TINY: dict[str, Any] = {
    "tiny gpt2": GPT2Config(d_model=32, n_heads=4, d_mlp=64, n_layers=2, n_ctx=64, d_vocab=100),
    "tiny llama": LlamaConfig(d_model=32, n_heads=4, n_kv_heads=2, d_mlp=64, n_layers=2, n_ctx=64, d_vocab=100),
}
KEPT = ("all", "store, last", "store, all")
HEAD = ("shape", "tokens/s", "x transformers", "of the peak", "copy hidden", "peak GB", *KEPT)
HEAD = (*HEAD, "train-probe s", "x host", "packed against alone")
STORED_BYTES = 4e9  # of every token's activations, at most
CHECKED = 24  # texts that are compared with themselves alone
LABELLED = {False: 4000, True: 200}  # rows that probes are trained on; with --tiny


@dataclass(frozen=True)
class Settings:
    """What is the same for every shape."""

    device: torch.device
    dtype: str
    rounds: int
    seconds: float
    compare: bool
    scratch: Path
    labelled: int


def measure(name: str, cfg: Any, how: Settings) -> dict[str, Any]:
    """Every figure of one shape."""
    model = made_up_model(how.device, DTYPES[how.dtype], cfg=cfg)
    note(f"{name}: {sum(weight.numel() for weight in model.parameters()) / 1e6:,.0f}M weights")
    speed = measure_speed(model, rounds=how.rounds, seconds=how.seconds, compare=how.compare)
    texts = drawn_texts(speed.texts, min(256, model.cfg.n_ctx), model.cfg.d_vocab)
    found = {"name": name, "error": error_of_packing(model, texts[:CHECKED], how), "bound": bound(model)}
    found |= {"speed": speed_as_dict(speed), "places": places(model, texts, how), "probes": probes(model, texts, how)}
    return found


def bound(model: LanguageModel) -> float:
    return bounds_of(model.dtype)["packed"]


def error_of_packing(model: LanguageModel, texts: list[list[int]], how: Settings) -> float:
    """The largest difference between a text in its batch and alone, over the largest value of its layer."""
    options: dict[str, Any] = {"points": "resid_post", "dtype": how.dtype, "progress": False}
    together = extract(model, texts, **options)
    alone = [extract(model, [text], **options) for text in texts]
    errors = []
    for place, x in together.items():
        wanted = torch.cat([one[place] for one in alone]).double().cpu()
        errors.append(float((x.double().cpu() - wanted).abs().max() / wanted.abs().max()))
    return max(errors)


def places(model: LanguageModel, texts: list[list[int]], how: Settings) -> dict[str, Any]:
    """Tokens/s of the four ways to keep activations, of as many texts as all tokens leave room for."""
    each = sum(map(len, texts)) / len(texts) * model.cfg.n_layers * model.cfg.d_model * model.dtype.itemsize
    texts = texts[: max(8, int(STORED_BYTES / each))]
    tokens = sum(map(len, texts))

    def run(position: str, store: bool) -> Callable[[], None]:
        def once() -> None:
            with tempfile.TemporaryDirectory(dir=how.scratch) as folder:
                out = Path(folder, "store") if store else None
                options: dict[str, Any] = {"points": "resid_post", "dtype": how.dtype, "progress": False}
                extract(model, texts, position=position, out=out, **options)

        return once

    runs = {"last": run("last", False), "all": run("all", False)}
    runs |= {"store, last": run("last", True), "store, all": run("all", True)}
    for once in runs.values():
        once()
    seconds = in_turn(runs, how.rounds, how.device)
    ratios = {name: vars(ratio_of(seconds["last"], own)) for name, own in seconds.items() if name != "last"}
    rates = {name: tokens / statistics.median(own) for name, own in seconds.items()}
    return {"texts": len(texts), "tokens": tokens, "tokens_per_second": rates, "ratios": ratios, "seconds": seconds}


def probes(model: LanguageModel, texts: list[list[int]], how: Settings) -> dict[str, Any]:
    """Seconds of a probe at every layer, where the activations are and in host memory."""
    texts = (texts * (1 + how.labelled // len(texts)))[: how.labelled]
    rng = np.random.default_rng(0)
    texts = [[*text[:-1], int(token)] for text, token in zip(texts, rng.integers(2, 90, len(texts)), strict=True)]
    labels = np.array([text[-1] % 2 for text in texts])
    splits = np.array(["train", "train", "train", "validation", "test"])[np.arange(len(texts)) % 5]
    task = Task("drawn", texts, {"parity": labels}, {"parity": ["even", "odd"]}, splits, "parity")
    options: dict[str, Any] = {"points": "resid_post", "progress": False}
    there = extract(model, task, **options)
    here = ActivationSet({place: x.cpu() for place, x in there.items()}, task)
    runs = {name: partial(train_probes, acts, quick=True) for name, acts in (("device", there), ("host", here))}
    seconds = in_turn(runs, min(how.rounds, 3), how.device)
    medians = {name: statistics.median(own) for name, own in seconds.items()}
    return {"rows": len(texts), "seconds": seconds, "medians": medians, "ratio": medians["host"] / medians["device"]}


def row(found: dict[str, Any]) -> str:
    """A line of the table."""
    speed, kept, trained = found["speed"], found["places"], found["probes"]
    ratio, overlap, peak = speed["ratio"], speed["overlap"], speed["ours"]["peak_bytes"]
    shares = speed["shares"]
    cells = [
        found["name"],
        f"{speed['ours']['tokens_per_second']:,.0f}",
        "-" if ratio is None else f"{ratio['value']:.2f} [{ratio['low']:.2f}, {ratio['high']:.2f}]",
        f"{shares.get('bfloat16', next(iter(shares.values()))):.0%}",
        "-" if overlap is None else f"{overlap['hidden']:.0%}",
        "-" if peak is None else f"{peak / 1e9:.2f}",
        *(f"{kept['ratios'][name]['value']:.2f}" for name in KEPT),
        f"{trained['medians']['device']:.2f}",
        f"{trained['ratio']:.2f}",
        f"{found['error']:.1e}" + ("" if found["error"] <= found["bound"] else " WRONG"),
    ]
    return f"| {' | '.join(cells)} |"


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def parsed(given: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto", help="cuda, cuda:1, cpu; auto is CUDA where there is a GPU")
    help_shapes = "names that `probekit params` knows"
    parser.add_argument("--shapes", nargs="+", default=SHAPES, choices=PUBLISHED, metavar="NAME", help=help_shapes)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each round of extract, about")
    parser.add_argument("--no-transformers", action="store_true", help="which needs the model's memory once more")
    parser.add_argument("--scratch", type=Path, default=Path(tempfile.gettempdir()), help="folder for stores")
    parser.add_argument("--out", type=Path, help="also write everything as JSON")
    parser.add_argument("--tiny", action="store_true", help="tiny models, for a test on a CPU")
    return parser.parse_args(given)


def main(given: list[str] | None = None) -> None:
    args = parsed(given)
    device = find_device(args.device)
    shapes = TINY if args.tiny else {name: published_config(name) for name in args.shapes}
    found = []
    print(
        f"\n{device_name(device)}, {args.dtype}, torch {torch.__version__}, Python {platform.python_version()}; ",
        end="",
    )
    print(f"{args.rounds} rounds of about {args.seconds} s\n")
    print(f"| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}", flush=True)
    for name, cfg in shapes.items():
        with tempfile.TemporaryDirectory(dir=args.scratch) as scratch:
            dtype, compare = parse.dtype(args.dtype), not args.no_transformers
            how = Settings(device, dtype, args.rounds, args.seconds, compare, Path(scratch), LABELLED[args.tiny])
            try:
                found.append(measure(name, cfg, how))
            except torch.OutOfMemoryError as error:
                note(f"{name}: skipped, it does not fit {device}: {str(error).splitlines()[0]}")
                continue
            finally:
                if device.type == "cuda":
                    torch.cuda.empty_cache()
        print(row(found[-1]), flush=True)
        if args.out:  # after each shape, so that a later one loses nothing
            about = {"device": device_name(device), "torch": torch.__version__}
            args.out.write_text(json.dumps({**about, "shapes": found}))
    print("\nall; store, last; store, all: speed over that of the last token into memory, on the same texts.")


if __name__ == "__main__":
    main()
