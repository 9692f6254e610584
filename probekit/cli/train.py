"""`probekit train-probe`: a probe at every layer of a store, and the picture of it."""

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from probekit.cli import console, options

if TYPE_CHECKING:
    from probekit.activations import Store

StorePath = Annotated[
    Path | None, typer.Argument(help="What `probekit extract` wrote.  [default: the newest complete one under ./runs]")
]
Layer = Annotated[str, typer.Option(metavar="LAYERS", help="all, 3, 0,4,8 or 2-6.")]
Point = Annotated[str | None, typer.Option(metavar="NAME", help="Point to read.  [default: the store's first]")]
Probe = Annotated[str, typer.Option(metavar="NAME", help="logistic, ridge or mean-diff.")]
Label = Annotated[str | None, typer.Option(metavar="NAME", help="Label set to predict.  [default: the task's target]")]
Position = Annotated[
    str | None,
    typer.Option(metavar="TOKEN", help="Which token, where the store keeps several or all: last, first, mean, 3."),
]
C = Annotated[
    str | None,
    typer.Option("--C", metavar="NUMBERS", help="Inverse regularisation to choose from.  [default: the probe's grid]"),
]
Out = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Results.  [default: STORE/results/LABEL-POINT-PROBE...]")
]


def train_probe(
    store: StorePath = None,
    layer: Layer = "all",
    point: Point = None,
    probe: Probe = "logistic",
    label: Label = None,
    position: Position = None,
    C: C = None,
    seed: options.Seed = 0,
    out: Out = None,
    json_: options.Json = False,
    quiet: options.Quiet = False,
    config: options.Config = None,
    set_: options.Set = None,
) -> None:
    """Train a probe at each layer of a store and draw accuracy by layer.

    The best layer is chosen on validation; test decides nothing. Writes accuracy_by_layer.png and .svg, results.json,
    results.csv and the probes.

    \b
    Examples:
        probekit train-probe --layer all
        probekit train-probe runs/gpt2-sst2 --layer 2-6 --probe ridge --C 0.01,1,100
    """
    how: dict[str, Any] = {"layers": layer, "point": point, "probe": probe, "label": label, "seed": seed}
    if position is not None:
        how["position"] = options.position_of(position)
    if C is not None:
        how["C"] = options.positive_numbers("--C", C)

    from probekit.activations import load_activations

    run_training(load_activations(store or _newest(quiet)), how, out=out, as_json=json_, quiet=quiet)


def run_training(store: "Store", how: dict[str, Any], out: Path | None, as_json: bool, quiet: bool) -> None:
    """Train, write probes, numbers and picture, and print what was found.

    Raises:
        KeyboardInterrupt: with what is kept and how to go on.
    """
    with _interrupt_says(f"the store {store.path} is whole, no results were written; run the same command again"):
        from probekit.evaluation import train_probes
        from probekit.plots import save_plot

        with console.progress("train", "layers", quiet) as progress:
            results = train_probes(store, **how, progress=progress)
    folder = out or _folder(store, results.meta, how)
    with _interrupt_says(
        f"the store {store.path} is whole, the results in {folder} are not; run the same command again"
    ):
        results.save(folder)
        picture = save_plot(results, folder)
    if as_json:
        where = {"store": str(store.path), "results": str(folder), "picture": str(picture)}
        console.result_json(where | json.loads((folder / "results.json").read_text()))
    elif quiet:
        console.result(picture)
    else:
        console.result(f"{results.summary()}\n\nPicture: {picture}")


@contextmanager
def _interrupt_says(what: str) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(what) from None


def _folder(store: "Store", found: dict[str, Any], how: dict[str, Any]) -> Path:
    """Where the results stand by default: what was asked for is in the name, so that other questions keep theirs."""
    name = "-".join(found[part] for part in ("label", "point", "probe"))
    name += f"-{how['position']}" if "position" in how else ""
    layers = how.get("layers", "all")
    name += "" if layers.strip() == "all" else f"-layers-{layers}"
    name += "-C-" + "-".join(str(C).removesuffix(".0") for C in how["C"]) if "C" in how else ""
    name += f"-seed-{how['seed']}" if how["seed"] else ""
    if len(name) > 200:
        name = f"{name[:180]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    return store.path / "results" / re.sub(r"[^A-Za-z0-9._-]+", "-", name).lstrip(".-")


def _newest(quiet: bool) -> Path:
    from probekit.activations import newest_store

    path = newest_store("runs")
    if not quiet:
        console.note(f"store: {path} (the newest under runs)")
    return path
