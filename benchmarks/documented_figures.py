"""Check the figures of docs/causal.md and docs/read-a-result.md against their commands, or write them again.

    python benchmarks/documented_figures.py [--write]

The commands of docs/causal.md run in a temporary folder, one group for each `probekit extract` (about 2 minutes on one
core); the first two of its first group are those of the demo. Each block
between `<!-- figures: NAME -->` and `<!-- end -->` is made from their results by the function of that name. Without
`--write`, blocks that differ are shown, and the exit code is 1.
"""

import argparse
import difflib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from probekit.causal.data import CausalLayer, Effect
from probekit.causal.results.results import CausalResults
from probekit.causal.results.view import curve_effects, largest_placebo
from probekit.evaluation import ProbeResults
from probekit.text import listed

REPO = Path(__file__).parents[1]
PAGES = [REPO / "docs/causal.md", REPO / "docs/read-a-result.md"]
COMMANDS = re.compile(r"(?:^    probekit .*\n)+", re.MULTILINE)
BLOCK = re.compile(r"(<!-- figures: (\w+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
BY_HAND = (  # experiments/causal.ipynb
    "| used, not read | a model made by hand whose answer is an exclusive or, layer 0 | 0.42, 0.50 (DAS), 0.35 | "
    "the two class means are equal, so that no linear probe can tell the classes apart |"
)


@dataclass(frozen=True)
class Run:
    """What a group of commands gave: the probes' table and the causal results."""

    table: str
    causal: CausalResults


Runs = Mapping[str, Run]


def run_commands(page: str) -> dict[str, Run]:
    """Name of the task -> results of its group of commands in docs/causal.md."""
    found = {}
    for group in COMMANDS.findall(page):
        lines = [line.split()[1:] for line in group.splitlines()]
        if [line[0] for line in lines] != ["extract", "train-probe", "causal"]:
            continue
        with tempfile.TemporaryDirectory() as folder:
            path = f"{REPO}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
            for line in lines:
                print("probekit", *line, file=sys.stderr)
                subprocess.run(
                    [sys.executable, "-m", "probekit", *line, "--quiet"],
                    cwd=folder,
                    env={**os.environ, "PYTHONPATH": path},
                    check=True,
                    stdout=subprocess.DEVNULL,
                )
            (record,) = Path(folder).glob("runs/*/results/causal-*/causal.json")
            results = CausalResults.load(record.parent)
            (probes,) = Path(folder).glob("runs/*/results/*/results.json")
            table = ProbeResults.load(probes.parent).summary()
        found[str(results.meta["task"])] = Run(table, results)
    return found


def table(runs: Runs) -> str:
    """The rows of the table of Read a result, indented as a block of code."""
    rows = runs["agreement"].table.split("\n\n")[1].splitlines()
    return "\n" + "".join(f"    {line.rstrip()}\n" for line in rows if not line.startswith("Marks"))


def picture(runs: Runs) -> str:
    """What the first picture shows."""
    results = runs["agreement"].causal
    curve, layers = curve_effects(results.data, "interchange"), results.layers
    read, used = next(x for x in layers if x.is_read), next(x for x in layers if x.used_by)
    unclear = [curve[x.place] for x in layers if x.quadrant == "read, not shown to be used"]
    small = [f"{e.effect:.2f} at layer {e.layer} (from {_low(e):.2f}, placebos to {_placebo(e):.2f})" for e in unclear]
    return (
        "The picture shows a model in which the number of the subject can be read from layer "
        f"{read.layer} on (blue). Changing it at the last token moves the verb {curve[used.place].effect:.2f}\n"
        f"of the way to the other one at layer {used.layer} (red). Before, the interval of its effect is not clear of "
        f"the placebos: {listed(small)}."
    )


def placebos(runs: Runs) -> str:
    """The largest placebos of two kinds at the output."""
    results = runs["agreement"].causal
    place = results.layers[-1].place
    largest = {
        kind: max(
            abs(e.effect)
            for e in results.effects
            if (e.method, e.direction, e.place, e.split) == ("interchange", kind, place, "test")
        )
        for kind in ("covariance", "random")
    }
    return (
        f"In `agreement-gpt2` directions of the covariance reach {largest['covariance']:.2f} at the output, where "
        f"random ones reach {largest['random']:.2f}."
    )


def quadrants(runs: Runs) -> str:
    """The table of the four cases."""
    lines = [
        "| | what was run | score, effect, largest placebo | why |",
        "|---|---|---|---|",
        _case(
            runs["agreement"].causal,
            "read and used",
            "`agreement-gpt2`: the commands above",
            "the verb agrees with the subject",
        ),
        _case(
            runs["ballots"].causal,
            "read, not shown to be used",
            "`ballots-gpt`: colour of the paper, answers by winner",
            "the winner does not depend on the colour",
        ),
        _case(runs["brackets"].causal, "neither", "`brackets-gpt`: balanced", 'the last token is "?" in every text'),
        BY_HAND,
    ]
    return "\n".join(lines)


def _case(results: CausalResults, quadrant: str, what: str, why: str) -> str:
    """A line of the table: the first layer of a quadrant."""
    layer = next(each for each in results.layers if each.quadrant == quadrant)
    effect = curve_effects(results.data, "interchange")[layer.place]
    numbers = f"{layer.score:.2f}, {effect.effect:z.2f}, {_placebo(effect):.2f}"
    return f"| {quadrant} | {what}, layer {layer.layer} | {numbers} | {why} |"


def ballots(runs: Runs) -> str:
    """The verdict on the colour, with its sizes."""
    results = runs["ballots"].causal
    curve = curve_effects(results.data, "interchange").values()
    most, flips = max(abs(e.effect) for e in curve), max(e.flip_rate for e in curve)
    wide = max(_placebo(e) for e in curve)
    verdicts = listed(list(dict.fromkeys(layer.quadrant for layer in results.layers)))
    return (
        f"The verdict on the colour is *{verdicts}* at every layer: the largest effect is {most:.2f}, and {flips:.0%} "
        "of answers flip. The winner is one of the main ways\nin which activations vary, so directions drawn from the "
        f"covariance hold it, and placebos reach {wide:.2f}. Every text of the world confirms the verdict: the answer "
        "is the same in both colours."
    )


def completeness(runs: Runs) -> str:
    """Completeness of two edits at later layers."""
    layers = runs["agreement"].causal.layers
    return f"Erasure at the worst later layer: {_worst(layers, 'erase')}. Interchange: {_worst(layers, 'interchange')}."


def _worst(layers: list[CausalLayer], method: str) -> str:
    found = {layer.layer: layer.completeness.get(method, []) for layer in layers}
    return listed([f"{min(values[1:]):z.2f} after layer {layer}" for layer, values in found.items() if len(values) > 1])


def patching(runs: Runs) -> str:
    """The largest cells of three grids."""
    grids = {grid.point: grid for grid in runs["agreement"].causal.grids}
    cells = {}
    for point, unit in (("resid_pre", "token"), ("attn_out", "token"), ("z", "head")):
        values = grids[point].recovery
        row, column = divmod(int(values.argmax()), values.shape[1])
        cells[point] = f"{values.max():.2f} at layer {grids[point].layers[row]}, {unit} {grids[point].columns[column]}"
    return (
        f"The largest recoveries: in the stream {cells['resid_pre']} (the last), of the attention {cells['attn_out']}, "
        f"of a head {cells['z']}."
    )


def _low(effect: Effect) -> float:
    return float("nan") if effect.interval is None else effect.interval[0]


def _placebo(effect: Effect) -> float:
    found = largest_placebo(effect)
    return float("nan") if found is None else found


BLOCKS: dict[str, Callable[[Runs], str]] = {
    each.__name__: each for each in (table, picture, placebos, quadrants, ballots, completeness, patching)
}


def with_figures(page: str, runs: Runs) -> str:
    """A page with every block made again."""
    return BLOCK.sub(lambda found: f"{found[1]}{BLOCKS[found[2]](runs)}\n{found[4]}", page)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--write", action="store_true", help="write the pages instead of checking them")
    write = parser.parse_args().write
    runs, drift = run_commands(PAGES[0].read_text(encoding="utf-8")), []
    for page in PAGES:
        old = page.read_text(encoding="utf-8")
        new = with_figures(old, runs)
        if write:
            page.write_text(new, encoding="utf-8")
        drift += difflib.unified_diff(old.splitlines(), new.splitlines(), page.name, "measured", lineterm="", n=0)
    print("\n".join(drift) or "all documented figures are those of the commands")
    return int(bool(drift) and not write)


if __name__ == "__main__":
    sys.exit(main())
