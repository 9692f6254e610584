"""`probekit transfer`: probes of each task on the test splits of all of them."""

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from probekit.cli import console, options

Stores = Annotated[list[Path], typer.Argument(help="Stores of one model, each of another task.")]
Layer = Annotated[str, typer.Option(metavar="LAYERS", help="3 fixes it; of all, 0,4,8 or 2-6 validation chooses.")]
Point = Annotated[str | None, typer.Option(metavar="NAME", help="Point to read.  [default: the first store's first]")]
Probe = Annotated[str | None, typer.Option(metavar="NAME", help="As for train-probe.  [default: logistic, or ridge]")]
Label = Annotated[str | None, typer.Option(metavar="NAME", help="Label set to predict.  [default: each task's target]")]
Position = Annotated[
    str | None,
    typer.Option(metavar="TOKEN", help="Which token, where the stores keep several or all: last, first, mean, 3."),
]
C = Annotated[
    str | None,
    typer.Option("--C", metavar="NUMBERS", help="Inverse regularisation to choose from.  [default: the probe's grid]"),
]
Out = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Results.  [default: STORE/results/transfer-..., of the first]")
]


def transfer(
    stores: Stores,
    layer: Layer = "all",
    point: Point = None,
    probe: Probe = None,
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
    """Train on each task and test on all of them: does what the probe found hold elsewhere?

    Layer and C are chosen on the validation split of the task that is trained on. Writes transfer.png and .svg,
    transfer.json and transfer.csv, with every layer.

    \b
    Examples:
        probekit transfer runs/cities runs/neg_cities runs/sp_en_trans runs/larger_than
        probekit transfer runs/cities runs/neg_cities --layer 8 --probe mean-diff
    """
    how: dict[str, Any] = {"layers": layer, "probe": probe, "seed": seed, "point": point, "label": label}
    how["position"] = None if position is None else options.position_of(position)
    how["C"] = None if C is None else options.positive_numbers("--C", C)

    whole = "the stores are whole"
    with console.interrupt_says(f"{whole}, no results were written; run the same command again"):
        from probekit.activations import load_activations
        from probekit.evaluation import check_transfer_folder
        from probekit.evaluation import transfer as run_transfer
        from probekit.plots import save_transfer_plot

        if out is not None:
            check_transfer_folder(out)
        opened = [load_activations(path) for path in stores]
        with console.progress("train", "places", quiet) as progress:
            results = run_transfer(opened, **how, progress=progress)
    folder = out or _folder(stores, results.meta, how)
    with console.interrupt_says(f"{whole}, the results in {folder} are not; run the same command again"):
        results.save(folder)
        picture = save_transfer_plot(results, folder)
    if json_:
        where = {"stores": [str(path) for path in stores], "results": str(folder), "picture": str(picture)}
        console.result_json(where | json.loads((folder / "transfer.json").read_text()))
    elif quiet:
        console.result(picture)
    else:
        console.result(f"{results.summary()}\n\nPicture: {picture}")


def _folder(stores: list[Path], meta: dict[str, Any], how: dict[str, Any]) -> Path:
    """Where the results stand by default: other stores and other questions have a place of their own."""
    from probekit.activations.default_path import folder_name

    asked = json.dumps([[str(path.resolve()) for path in stores], how], sort_keys=True)
    digest = hashlib.sha256(asked.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return stores[0] / "results" / folder_name(["transfer", meta["point"], meta["probe"], digest])
