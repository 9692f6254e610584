"""Compute what runs of 1e9 and 1e12 tokens take, from the sizes of the models alone: python benchmarks/large_runs.py

Prints the tables of docs/large-runs.md; `--page docs/large-runs.md` writes them there, and `--picture FILE` draws the
bytes. Nothing is run or measured. FLOPs are those of `probekit params` without the head, which an extraction never
computes, for texts of `--context` tokens without shared prefixes. GPU hours are FLOPs over `--share` of `--peak`.
`--peak` and `--float64` are an H100 SXM's, from NVIDIA's data sheet: 989 TFLOPs/s in dense bfloat16 (1,979 with
sparsity), 67 in float64 on tensor cores. `probekit selftest --speed` measures share and peak on your card.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from probekit.activations.plan.build import SHARD_BYTES
from probekit.activations.store.format import MAX_RECORDS, MAX_ROWS
from probekit.files.plain_files import MAX_TABLE
from probekit.models.accounting import forward_flops, parameters
from probekit.models.families import named_shape
from probekit.models.shapes import ModelShape
from probekit.text import metric

MODELS = {"7B": "llama-2-7b", "70B": "llama-2-70b"}
TOKENS = (10**9, 10**12)
BYTES = {"bf16, fp16": 2, "fp32": 4}
SPLITS = 3
BYTES_A_TOKEN = 4.5  # of English text, about
FLOAT64 = 8
RATES = {"10 Gb/s network": 1.25e9, "one NVMe disk": 3e9, "a parallel file system": 100e9}  # assumed
HASHED = 1.9e9  # bytes a second of sha256 on one core, measured on the development machine


@dataclass(frozen=True)
class Given:
    """The assumptions.

    Attributes:
        context: tokens of each text.
        share: of the peak that an extraction reaches.
        peak: FLOPs a second of one GPU in bfloat16.
        float64: FLOPs a second of one GPU in float64.
    """

    context: int = 500
    share: float = 0.4
    peak: float = 989e12
    float64: float = 67e12


def shape(size: str) -> ModelShape:
    found = named_shape(MODELS[size])
    assert found is not None
    return found


def flops_per_token(size: str, given: Given) -> float:
    """FLOPs of a forward for each token of a text, without the head."""
    flops = forward_flops(shape(size), given.context)
    return (sum(flops.values()) - flops["head"]) / given.context


def rate(size: str, given: Given) -> float:
    """Tokens a second of one GPU."""
    return given.share * given.peak / flops_per_token(size, given)


def choices(size: str, given: Given) -> dict[str, float]:
    """What is kept -> values for each token of the texts."""
    stack = shape(size).stacks[0]
    D, layers, texts = stack.d_model, stack.n_layers, 1 / given.context
    return {
        "last token, one layer": D * texts,
        "last token, all layers": D * layers * texts,
        "every token, one layer": D,
        "every token, all layers": D * layers,
    }


def sums_bytes(size: str) -> int:
    """Bytes of the statistics of all layers: a Gram matrix in float64 for each layer and split."""
    stack = shape(size).stacks[0]
    return FLOAT64 * stack.d_model * (stack.d_model + 3) * stack.n_layers * SPLITS


def sums_flops(size: str) -> int:
    """FLOPs in float64 that add one row of every layer to its Gram matrix: 2 D^2 each."""
    stack = shape(size).stacks[0]
    return 2 * stack.d_model**2 * stack.n_layers


def sums_share(size: str, given: Given) -> float:
    """Time that the sums of every token take at the peak in float64, over that of the model."""
    return sums_flops(size) / given.float64 * rate(size, given)


def rows_that_equal_sums(size: str, each: int) -> float:
    """How many rows of a layer take as many bytes as its sums."""
    return FLOAT64 * (shape(size).stacks[0].d_model + 3) * SPLITS / each


def table(head: list[str], rows: Iterator[list[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def compute_table(given: Given) -> str:
    head = ["", "weights in bf16", "layers x width", "FLOPs a token", "tokens/s of a GPU"]
    head += [f"GPU hours for {power(tokens)} tokens" for tokens in TOKENS]

    def rows() -> Iterator[list[str]]:
        for size, name in MODELS.items():
            stack, each, per_second = shape(size).stacks[0], flops_per_token(size, given), rate(size, given)
            hours = [f"{tokens / per_second / 3600:,.0f}" for tokens in TOKENS]
            cells = [f"{size} (`{name}`)", f"{metric(2 * parameters(shape(size)))}B"]
            yield [*cells, f"{stack.n_layers} x {stack.d_model:,}", f"{metric(each)}", f"{per_second:,.0f}", *hours]

    return table(head, rows())


def bytes_table(given: Given) -> str:
    head = ["", "kept", "type", *(f"{power(tokens)} tokens" for tokens in TOKENS)]
    head += ["shards of the latter", "bytes/s of one GPU"]

    def rows() -> Iterator[list[str]]:
        for size in MODELS:
            for kept, values in choices(size, given).items():
                for dtype, each in BYTES.items():
                    sizes = [tokens * values * each for tokens in TOKENS]
                    cells = [size, kept, dtype, *(f"{metric(n)}B" for n in sizes)]
                    yield [*cells, f"{sizes[-1] / SHARD_BYTES:,.0f}", f"{metric(rate(size, given) * values * each)}B/s"]
            yield [size, "sums of all layers, 3 splits", "float64", *[f"{metric(sums_bytes(size))}B"] * 2, "-", "-"]

    return table(head, rows())


def sums_table(given: Given) -> str:
    def rows() -> Iterator[list[str]]:
        for size in MODELS:
            at = [f"{rows_that_equal_sums(size, each):,.0f}" for each in BYTES.values()]
            taken = f"{sums_share(size, given):.0%} of the model's"
            yield [size, f"{metric(sums_bytes(size))}B", *at, f"{metric(sums_flops(size))}", taken]

    head = ["", "sums of all layers, 3 splits", *(f"rows of a layer as large, {x}" for x in BYTES)]
    return table([*head, "float64 FLOPs, a row of every layer", "time with every token"], rows())


def limits_table(given: Given) -> str:
    def rows() -> Iterator[list[str]]:
        tokens = MAX_TABLE / BYTES_A_TOKEN
        yield ["a table of texts", f"{metric(MAX_TABLE)}B", "`plain_files.py`", power(tokens)]
        tokens = MAX_ROWS * given.context
        yield ["texts of a store", f"{MAX_ROWS:,}", "`store/format.py`", power(tokens)]
        for size in MODELS:
            for kept, values in choices(size, given).items():
                tokens = MAX_RECORDS * SHARD_BYTES / (2 * values)
                cells = [f"shards of a store ({size}, {kept}, bf16)", f"{MAX_RECORDS:,}", "`store/format.py`"]
                yield [*cells, power(tokens)]

    return table(["what", "limit", "where", "tokens that reach it"], rows())


def checks_table(given: Given) -> str:
    def rows() -> Iterator[list[str]]:
        for size in MODELS:
            for kept, values in choices(size, given).items():
                n = 2 * TOKENS[0] * values
                cells = [size, kept, f"{metric(n)}B", f"{n / SHARD_BYTES:,.0f}"]
                cells += [duration(SHARD_BYTES / (2 * values) / rate(size, given)), duration(n / HASHED)]
                yield [*cells, *(duration(n / per_second) for per_second in RATES.values())]

    head = ["", "1e9 tokens, bf16", "bytes", "shards", "GPU time of a shard", "hashed by one core"]
    return table([*head, *(f"moved over {name}" for name in RATES)], rows())


def power(n: float) -> str:
    """17e9 -> "1.7e10", 1e9 -> "1e9"."""
    digits, _, exponent = f"{n:.1e}".partition("e")
    return f"{digits.removesuffix('.0')}e{int(exponent)}"


def duration(seconds: float) -> str:
    for unit, each in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * each:
            return f"{seconds / each:,.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 1 else "< 1 s"


def tables(given: Given) -> dict[str, str]:
    """The tables of the page by name."""
    return {
        "compute": compute_table(given),
        "bytes": bytes_table(given),
        "sums": sums_table(given),
        "limits": limits_table(given),
        "checks": checks_table(given),
    }


def filled(page: str, given: Given) -> str:
    """The page with these tables between its marks."""
    for name, text in tables(given).items():
        begin, end = f"<!-- {name} -->\n\n", f"\n\n<!-- end of {name} -->"
        before, _, rest = page.partition(begin)
        page = before + begin + text + end + rest.partition(end)[2]
    return page


def draw(given: Given, path: Path) -> None:
    """Bytes by tokens for each choice, and the limits of one store."""
    from matplotlib import pyplot as plt

    fig, axes = plt.subplots(1, len(MODELS), figsize=(10, 4.8), sharey=True)
    tokens = [10.0**n for n in range(6, 13)]
    for ax, size in zip(axes, MODELS, strict=True):
        for kept, values in choices(size, given).items():
            ax.loglog(tokens, [2 * n * values for n in tokens], label=kept)
        ax.axhline(sums_bytes(size), color="black", linestyle="--", label="sums of all layers")
        ax.axhline(MAX_RECORDS * SHARD_BYTES, color="grey", linestyle=":", label="most shards of one store")
        ax.axvline(MAX_ROWS * given.context, color="grey", linestyle="-.", label="most texts of one store")
        ax.set(title=f"{size}, bf16, texts of {given.context:,} tokens", xlabel="tokens")
        ax.grid(alpha=0.3)
    axes[0].set_ylabel("bytes")
    fig.tight_layout(rect=(0, 0.13, 1, 1))
    fig.legend(*axes[0].get_legend_handles_labels(), loc="lower center", ncols=4, fontsize=9)
    fig.savefig(path, dpi=110)


def parsed(args: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--context", type=int, default=Given.context, help="tokens of a text")
    parser.add_argument("--share", type=float, default=Given.share, help="of the peak that an extraction reaches")
    parser.add_argument("--peak", type=float, default=Given.peak, help="FLOPs a second of one GPU in bfloat16")
    parser.add_argument("--float64", type=float, default=Given.float64, help="FLOPs a second of one GPU in float64")
    parser.add_argument("--page", type=Path, help="also write the tables into this page")
    parser.add_argument("--picture", type=Path, help="also draw the bytes")
    return parser.parse_args(args)


def main() -> None:
    args = parsed()
    given = Given(args.context, args.share, args.peak, args.float64)
    print("\n\n".join(f"### {name}\n\n{text}" for name, text in tables(given).items()))
    if args.page:
        args.page.write_text(filled(args.page.read_text(encoding="utf-8"), given), encoding="utf-8")
    if args.picture:
        draw(given, args.picture)


if __name__ == "__main__":
    main()
