"""Extraction compared with other libraries, on the same texts and weights, in turn: python benchmarks/extract.py --help

    python benchmarks/extract.py --dataset data/sst2 --tokenizer TOKENIZER --section main --texts 3000 \\
        --python-transformerlens TL_ENV/bin/python --python-nnsight NN_ENV/bin/python

A model in the shape of GPT-2 small with random weights reads SST-2's phrases (training and validation) as token ids;
in the section `long`, that and a Llama read texts of random ids. Every contestant is a process of its own with 2
threads, or with `--threads 1`, and then CPU seconds count; they run one after the other, round after round. Ratios are
taken round by round, then their median. A sample of what each keeps is compared with Hugging Face at one text a time
(`contestants.py`).

Texts share prefixes as they do in the full set: `--texts n` takes runs of neighbours out of the sorted set, and puts
them back into the order of the data. Tokens/s count the texts' own tokens, "computed" those that the model ran on,
padding included. "Of the limit" is 24 D^2 n_layers FLOPs (GPT-2's linear layers alone) for each token computed, over
the time, over the fastest matrix product measured in the same rounds. Peak MB is resident memory over the loaded
model's.
"""

import argparse
import json
import statistics
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from contestants import CONTESTANTS, Texts, work
from safetensors.torch import load_file, save_file
from texts import blimp_pairs, few_shot, neighbours, prefix_nodes, slices, sst2
from workers import THREADS, Worker, WorkerFailed

MOST_ERROR = {False: 5e-6, True: 3e-2}  # of the largest value of the place, in fp32 and in bf16
SAMPLE = 48
MATRICES = {"gpt2": 12, "llama": 32 / 3}  # numbers in the matrices of a block over D^2
LONG_CONTEXT, LONG_TOKENS = 2048, 8192  # of a text at most; of all long texts, about
PEERS = ["hf-order", "hf-sorted", "hf-sorted-bf16", "hf-sorted-bf16-weights", "transformerlens", "nnsight"]
PATTERN = ["hf-pattern", "hf-pattern-sorted", "probekit-pattern"]
LONG_PEERS = ["hf-sorted", "hf-alone", "hf-sorted-bf16-weights", "probekit", "probekit-bf16"]
OURS = ["probekit-packed", "probekit", "probekit-bf16"]


@dataclass
class Part:
    """Texts that all contestants read, one after the other."""

    path: Path
    texts: Texts
    expected: dict[str, torch.Tensor] = field(default_factory=dict)

    @property
    def rows(self) -> list[int]:
        """Rows of which the values are compared."""
        return np.linspace(0, len(self.texts) - 1, min(SAMPLE, len(self.texts))).astype(int).tolist()

    @property
    def tokens(self) -> int:
        return sum(map(len, self.texts))


@dataclass
class Measured:
    """One contestant; seconds[round][part]."""

    seconds: list[list[float]] = field(default_factory=list)
    peak: int = 0
    computed: int = 0
    error: float = 0.0
    bf16: bool = False
    failed: str = ""

    @property
    def totals(self) -> list[float]:
        """Seconds of each round."""
        return [sum(parts) for parts in self.seconds]


class Bench:
    """A model on disk, and contestants that read it."""

    def __init__(self, args: argparse.Namespace, scratch: Path, shape: str):
        self.args, self.scratch = args, scratch
        family, _, sizes = shape.rpartition("-")
        self.family, self.folder = family or "gpt2", scratch / f"model-{shape}"
        self.n_layers, self.d_model = map(int, sizes.split("x"))
        self.versions: dict[str, dict[str, str]] = {}
        if not self.folder.exists():
            make_model(self.folder, self.family, self.n_layers, self.d_model)

    def worker(self, name: str) -> Worker:
        python = pythons(self.args).get(name) or sys.executable
        threads = str(self.args.threads)
        worker = Worker(__file__, "--worker", name, "--model", str(self.folder), "--threads", threads, python=python)
        self.versions |= {name: worker.ask(do="load")["versions"]}
        return worker

    def part(self, texts: Texts, reference: str = "reference") -> Part:
        """The texts as a file, and what is expected of some of them."""
        part = Part(self.scratch / f"texts-{len(list(self.scratch.glob('texts-*')))}.safetensors", texts)
        ids, lengths = [token for text in texts for token in text], [len(text) for text in texts]
        save_file({"ids": torch.tensor(ids), "lengths": torch.tensor(lengths)}, part.path)
        worker = self.worker(reference)
        part.expected = self.run(worker, part)["values"]
        worker.close()
        return part

    def run(self, worker: Worker, part: Part) -> dict[str, Any]:
        values = self.scratch / "values.safetensors"
        reply = worker.ask(do="run", texts=str(part.path), rows=part.rows, values=str(values))
        return {**reply, "values": load_file(values)}

    def race(self, names: list[str], parts: list[Part]) -> tuple[dict[str, Measured], dict[str, float]]:
        """Every contestant on every part, in turn; and the machine's limits in GFLOP/s."""
        measured, limits = {name: Measured() for name in names}, {"fp32": 0.0, "bf16": 0.0}
        with ExitStack() as stack:
            workers = self.started(measured, stack)
            for number in range(self.args.repeats):
                for m in measured.values():
                    m.seconds.append([])
                    m.computed = 0
                for part in parts:
                    found = self.run(workers["limit"], part)["values"]
                    limits = {key: max(best, float(found[key])) for key, best in limits.items()}
                    for name in [name for name in names if not measured[name].failed]:
                        self.measure(workers[name], part, measured[name])
                        told = measured[name].failed or f"{measured[name].seconds[-1][-1]:.2f} s"
                        print(f"round {number}, {part.path.stem}, {name}: {told}", file=sys.stderr)
        return measured, limits

    def started(self, measured: dict[str, Measured], stack: ExitStack) -> dict[str, Worker]:
        """The workers by name, closed with the stack; what cannot start has failed."""
        workers = {}
        for name in ["limit", *measured]:
            try:
                workers[name] = self.worker(name)
                stack.callback(workers[name].close)
            except WorkerFailed as error:
                measured[name].failed = str(error)
        return workers

    def measure(self, worker: Worker, part: Part, into: Measured) -> None:
        try:
            reply = self.run(worker, part)
        except WorkerFailed as error:
            into.failed = str(error)
            return
        into.seconds[-1].append(reply["seconds"])
        into.computed += reply["computed"]
        into.peak, into.bf16 = max(into.peak, reply["peak"]), reply["bf16"]
        into.error = max(into.error, error_of(reply["values"], part.expected))


def error_of(values: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    """The largest difference of any place over the largest value that is expected there."""
    if values.keys() != expected.keys():
        return float("inf")
    pairs = [(values[name].double(), x.double()) for name, x in expected.items()]
    return max(((ours - x).abs().max() / x.abs().max()).nan_to_num(float("inf")).item() for ours, x in pairs)


def make_model(folder: Path, family: str, n_layers: int, d_model: int) -> None:
    """Random weights in heads of 64; a Llama has a key/value head for every three heads, and an MLP 8/3 as wide."""
    import transformers

    torch.manual_seed(0)
    heads, context = d_model // 64, LONG_CONTEXT
    if family == "gpt2":
        sizes: Any = {"n_layer": n_layers, "n_embd": d_model, "n_head": heads, "n_positions": context}
        model: Any = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes))
    else:
        sizes = {"num_hidden_layers": n_layers, "hidden_size": d_model, "intermediate_size": 8 * d_model // 3}
        sizes |= {"num_attention_heads": heads, "num_key_value_heads": heads // 3, "max_position_embeddings": context}
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes))
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 1:  # biases and norms are not trivial, so that a mistake there shows
                weight += 0.02 * torch.randn_like(weight)
    model.save_pretrained(folder)


def report(title: str, bench: Bench, parts: list[Part], names: list[str], against: list[str]) -> dict[str, Any]:
    """Run, print a Markdown table, and return everything as JSON-able values."""
    texts = [text for part in parts for text in part.texts]
    tokens, nodes = sum(part.tokens for part in parts), prefix_nodes(texts)
    measured, limits = bench.race(names, parts)
    against = [name for name in against if name in names]
    print(f"\n### {title}\n\n{len(texts):,} texts, {tokens:,} tokens, {nodes:,} prefixes ({tokens / nodes:.2f}x);")
    threads = f"{bench.args.threads} threads" if bench.args.threads > 1 else "1 thread, CPU seconds"
    print(f"{bench.family}, {bench.n_layers} layers of {bench.d_model}; {bench.args.repeats} rounds; {threads};")
    print(f"limit {limits['fp32']:.0f} GFLOP/s in fp32, {limits['bf16']:.0f} in bf16.\n")
    heads = ["", "s", "tokens/s", *(f"x {name}" for name in against), "peak MB", "computed", "of the limit", "error"]
    print("| " + " | ".join(heads) + " |\n|" + "---|" * len(heads))
    rows = {}
    for name, m in measured.items():
        ratios = {other: ratio(measured[other], m) for other in against}
        flops = 2 * MATRICES[bench.family] * bench.d_model**2 * bench.n_layers * m.computed
        seconds = float("nan") if m.failed else statistics.median(m.totals)
        share = flops / seconds / 1e9 / limits["bf16" if m.bf16 else "fp32"]
        rows[name] = {**asdict(m), "median": seconds, "ratios": ratios, "share_of_limit": share}
        cells = [f"{seconds:.2f}", f"{tokens / seconds:,.0f}", *(f"{x:.2f}" for x in ratios.values())]
        cells += [f"{m.peak / 1e6:,.0f}", f"{m.computed:,}", f"{share:.0%}", verdict(m)]
        if m.failed:
            cells = ["failed", *[""] * (len(heads) - 3), m.failed]
        print("| " + " | ".join([name, *cells]) + " |", flush=True)
    return {"texts": len(texts), "tokens": tokens, "prefixes": nodes, "limits": limits, "versions": bench.versions,
            "contestants": rows}  # fmt: skip


def ratio(theirs: Measured, ours: Measured) -> float:
    if theirs.failed or ours.failed:
        return float("nan")
    return statistics.median(a / b for a, b in zip(theirs.totals, ours.totals, strict=True))


def verdict(m: Measured) -> str:
    """The error, and whether it is too large to be of rounding."""
    return f"{m.error:.1e}" + ("" if m.error <= MOST_ERROR[m.bf16] else " WRONG")


def pythons(args: argparse.Namespace) -> dict[str, str | None]:
    """The Python of each contestant that has packages of its own."""
    return {"transformerlens": args.python_transformerlens, "nnsight": args.python_nnsight}


def chosen(args: argparse.Namespace, names: list[str]) -> list[str]:
    """Of these contestants, the wanted ones that can run."""
    given = pythons(args)
    for name in [name for name in names if name in given and not given[name]]:
        print(f"{name}: skipped, for --python-{name} is not given", file=sys.stderr)
    names = [name for name in names if name not in given or given[name]]
    return [name for name in names if not args.only or name in args.only]


def main_section(args: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    bench, texts = Bench(args, scratch, args.shape), sst2(args.dataset, args.tokenizer)
    taken = texts if args.texts is None else neighbours(texts, args.texts, args.runs)
    names = chosen(args, [*PEERS, *OURS])
    return report("Residual stream, last token", bench, [bench.part(taken)], names, ["hf-order", "hf-sorted"])


def full_section(args: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    bench, texts = Bench(args, scratch, args.shape), sst2(args.dataset, args.tokenizer)
    texts = texts if args.texts is None else neighbours(texts, args.texts, args.runs)
    parts = [bench.part(part) for part in slices(texts, args.slices)]
    names = chosen(args, ["hf-sorted", "probekit", "probekit-bf16"])
    in_slices = report(f"All texts, in {args.slices} slices", bench, parts, names, ["hf-sorted"])
    names = chosen(args, ["probekit", "probekit-store"])
    stored = report("All texts, into a store", bench, [bench.part(texts)], names, ["probekit"])
    return {"slices": in_slices, "store": stored}


def sharing(title: str, bench: Bench, texts: Texts, names: list[str]) -> dict[str, Any]:
    """Our engine with and without shared prefixes."""
    return report(title, bench, [bench.part(texts)], chosen(bench.args, names), ["hf-sorted", "probekit-packed"])


def blimp_section(args: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    texts = blimp_pairs(args.blimp, args.tokenizer, args.texts)
    return sharing("Minimal pairs (BLiMP)", Bench(args, scratch, args.shape), texts, ["hf-sorted", *OURS])


def fewshot_section(args: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    texts = few_shot(sst2(args.dataset, args.tokenizer), args.texts or 5000)
    title = "A prefix of 200 tokens and continuations of 5 to 15"
    return sharing(title, Bench(args, scratch, args.shape), texts, OURS)


def pattern_section(args: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    bench, texts = Bench(args, scratch, args.shape), sst2(args.dataset, args.tokenizer, ["test"])
    rows = np.linspace(0, len(texts) - 1, args.texts or 128).astype(int)
    part, names = bench.part([texts[i] for i in rows], "reference-pattern"), chosen(args, PATTERN)
    return report("attn_pattern of all heads and layers", bench, [part], names, PATTERN[:2])


def long_texts(longest: int, n: int) -> Texts:
    """Texts of random ids, which share nothing, of three quarters of the longest to the longest."""
    rng = np.random.default_rng(0)
    return [rng.integers(0, 32000, size=rng.integers(3 * longest // 4, longest + 1)).tolist() for _ in range(n)]


def long_section(args: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    found = {}
    for shape in (args.shape, args.llama_shape):
        bench = Bench(args, scratch, shape)
        for longest in args.lengths:
            texts, names = long_texts(longest, args.texts or LONG_TOKENS // longest), chosen(args, LONG_PEERS)
            title = f"Texts of {3 * longest // 4} to {longest} tokens, {bench.family}"
            found[title] = report(title, bench, [bench.part(texts)], names, ["hf-sorted", "hf-alone"])
    return found


def memory_section(args: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    bench, texts = Bench(args, scratch, args.memory_shape), sst2(args.dataset, args.tokenizer)
    some = [neighbours(texts, args.texts or 6000, args.runs), texts]
    found = [report("Memory of a store", bench, [bench.part(x)], ["probekit-store"], []) for x in some]
    few, full = (x["contestants"]["probekit-store"]["peak"] for x in found)
    print(f"\nPeak over the loaded model: {few / 1e6:.0f} and {full / 1e6:.0f} MB, ratio {full / few:.2f}")
    return {"few": found[0], "full": found[1], "ratio": full / few}


SECTIONS = {
    "main": main_section,
    "full": full_section,
    "blimp": blimp_section,
    "fewshot": fewshot_section,
    "pattern": pattern_section,
    "memory": memory_section,
    "long": long_section,
}


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--section", choices=SECTIONS, nargs="+", default=["main"])
    parser.add_argument("--dataset", help="folder with SST-2 as TSV")
    parser.add_argument("--tokenizer", type=Path, help="folder with vocab.json and merges.txt")
    parser.add_argument("--blimp", type=Path, help="folder with BLiMP's JSONL files")
    parser.add_argument("--texts", type=lambda n: None if n == "full" else int(n), help="a number, or full (default)")
    parser.add_argument("--runs", type=int, default=8, help="stretches of the sorted set that --texts takes")
    parser.add_argument("--slices", type=int, default=8, help="of the full set, run in turn")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=CONTESTANTS, help="leave out the other contestants")
    parser.add_argument("--shape", default="12x768", help="layers x width")
    parser.add_argument("--llama-shape", default="llama-8x768", help="the same, for the Llama of the section long")
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, LONG_CONTEXT], help="of the section long")
    parser.add_argument("--threads", type=int, default=THREADS)
    parser.add_argument("--memory-shape", default="4x256", help="the same, for the section memory")
    parser.add_argument("--python-transformerlens", help="a Python with transformer-lens 3.x")
    parser.add_argument("--python-nnsight", help="a Python with nnsight")
    parser.add_argument("--scratch", type=Path, help="folder for the model, and for stores")
    parser.add_argument("--json", type=Path, help="write everything measured to this file")
    parser.add_argument("--worker", choices=CONTESTANTS, help=argparse.SUPPRESS)
    parser.add_argument("--model", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    args = parsed()
    if args.worker:
        work(args.worker, args.model, args.threads)
        return
    with tempfile.TemporaryDirectory(dir=args.scratch) as scratch:
        found = {section: SECTIONS[section](args, Path(scratch)) for section in args.section}
    if args.json:
        args.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
