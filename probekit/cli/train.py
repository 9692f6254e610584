"""`probekit train-probe`: a probe at every layer of a store, and the picture of it."""

import hashlib
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from probekit.cli import console, options
from probekit.errors import ResumeMismatch, UsageError

if TYPE_CHECKING:
    from probekit.activations import Store

CONTROLS = 3  # as in `train_probes`, which only a run imports

StorePath = Annotated[
    Path | None, typer.Argument(help="What `probekit extract` wrote.  [default: the newest complete one under ./runs]")
]
Layer = Annotated[str, typer.Option(metavar="LAYERS", help="all, 3, 0,4,8 or 2-6.")]
Point = Annotated[str | None, typer.Option(metavar="NAME", help="Point to read.  [default: the store's first]")]
Probe = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="logistic, ridge, lda, mean-diff, mlp or k-sparse.  [default: logistic; ridge where labels are numbers]",
    ),
]
Label = Annotated[str | None, typer.Option(metavar="NAME", help="Label set to predict.  [default: the task's target]")]
Metric = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="What chooses and is drawn: accuracy, balanced_accuracy, auroc, average_precision, f1; of numbers r2, "
        "spearman.  [default: accuracy; auroc where a class has more than 80%; r2]",
    ),
]
Position = Annotated[
    str | None,
    typer.Option(metavar="TOKEN", help="Which token, where the store keeps several or all: last, first, mean, 3."),
]
C = Annotated[
    str | None,
    typer.Option("--C", metavar="NUMBERS", help="Inverse regularisation to choose from.  [default: the probe's grid]"),
]
Controls = Annotated[int, typer.Option(metavar="N", min=0, help="Draws of the control task; 0 leaves it out.")]
ControlType = Annotated[str, typer.Option(metavar="TYPE", help="What gets a random label: each token read, or text.")]
NoCodelength = Annotated[bool, typer.Option("--no-codelength", help="Leave the code length out.")]
Folds = Annotated[
    int | None,
    typer.Option(metavar="K", min=3, help="Nested folds over all rows, for small sets.  [default: the splits]"),
]
DropLeaks = Annotated[bool, typer.Option("--drop-leaks", help="Leave out texts that stand in a later split too.")]
Baseline = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="random-init: the same curve of the same architecture with random weights."),
]
Out = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Results.  [default: STORE/results/LABEL-POINT-PROBE...]")
]


def train_probe(
    store: StorePath = None,
    layer: Layer = "all",
    point: Point = None,
    probe: Probe = None,
    label: Label = None,
    position: Position = None,
    C: C = None,
    controls: Controls = CONTROLS,
    control_type: ControlType = "token",
    no_codelength: NoCodelength = False,
    folds: Folds = None,
    drop_leaks: DropLeaks = False,
    baseline: Baseline = None,
    metric: Metric = None,
    seed: options.Seed = 0,
    out: Out = None,
    json_: options.Json = False,
    quiet: options.Quiet = False,
    config: options.Config = None,
    set_: options.Set = None,
) -> None:
    """Train a probe at each layer of a store and draw accuracy by layer.

    The best layer is chosen on validation; test decides nothing. Texts in several splits are looked for first. Writes
    accuracy_by_layer.png and .svg, results.json, results.csv and the probes.

    \b
    Examples:
        probekit train-probe --layer all
        probekit train-probe runs/gpt2-sst2 --layer 2-6 --probe ridge --C 0.01,1,100
        probekit train-probe runs/gpt2-sst2 --drop-leaks --baseline random-init
    """
    how: dict[str, Any] = {"layers": layer, "point": point, "probe": probe, "label": label, "seed": seed}
    how |= {
        "controls": controls,
        "control_type": control_type,
        "codelength": not no_codelength,
        "folds": folds,
        "drop_leaks": drop_leaks,
        "metric": metric,
    }
    if position is not None:
        how["position"] = options.position_of(position)
    if C is not None:
        how["C"] = options.positive_numbers("--C", C)
    if baseline not in (None, "random-init"):
        raise UsageError(f"no baseline {baseline!a}; the one that can be added is random-init")

    from probekit.activations import load_activations

    run_training(load_activations(store or _newest(quiet)), how, out, json_, quiet, with_random=baseline is not None)


def run_training(
    store: "Store", how: dict[str, Any], out: Path | None, as_json: bool, quiet: bool, with_random: bool = False
) -> None:
    """Train, write probes, numbers and picture, and print what was found.

    Args:
        store: of the activations.
        how: arguments of `train_probes`.
        out: where the results go; None is a folder of the store, named by what was asked.
        as_json: print one JSON object instead of the table.
        quiet: print the picture's path alone.
        with_random: whether the same architecture with random weights is run first, as a baseline.

    Raises:
        StorageError: `out` holds something else; the disk refused.
        KeyboardInterrupt: with what is kept and how to go on.
    """
    with console.interrupt_says(
        f"the store {store.path} is whole, no results were written; run the same command again"
    ):
        from probekit.evaluation import train_probes
        from probekit.plots import save_plot

        asked = json.loads(json.dumps({**how, "random_init": with_random}))
        if out is not None:
            _check_out(out, store, asked)
        if with_random:
            from probekit.activations import random_init_of

            how["random_init"] = random_init_of(store, progress=False if quiet else None)
        with console.progress("train", "layers", quiet) as progress:
            results = train_probes(store, **how, progress=progress)
        results.meta["asked"] = asked
    folder = out or _folder(store, results.meta, how)
    with console.interrupt_says(
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


def _folder(store: "Store", found: dict[str, Any], how: dict[str, Any]) -> Path:
    """Where the results stand by default: what was asked for is in the name, so that other questions keep theirs."""
    name = "-".join(found[part] for part in ("label", "point", "probe"))
    name += f"-{how['position']}" if "position" in how else ""
    layers = how.get("layers", "all")
    name += "" if layers.strip() == "all" else f"-layers-{layers}"
    name += "-C-" + "-".join(str(C).removesuffix(".0") for C in how["C"]) if "C" in how else ""
    name += f"-folds-{how['folds']}" if how.get("folds") else ""
    name += "-drop-leaks" if how.get("drop_leaks") else ""
    name += "-random-init" if "random_init" in how else ""
    name += f"-controls-{how['controls']}" if how.get("controls", CONTROLS) != CONTROLS else ""
    name += "-control-text" if how.get("control_type", "token") == "text" else ""
    name += f"-{how['metric']}" if how.get("metric") else ""
    name += "-no-codelength" if not how.get("codelength", True) else ""
    name += f"-seed-{how['seed']}" if how["seed"] else ""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).lstrip(".-")
    if plain != name or len(name) > 200:  # 0,3 and 0-3 are spelled alike now
        plain = f"{plain[:180]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    return store.path / "results" / plain


def _check_out(out: Path, store: "Store", asked: dict[str, Any]) -> None:
    """Whether results may go to `out`: it is free, or holds those of the same question to the same activations.

    Raises:
        StorageError: something else than results stands there.
        ResumeMismatch: results of another question.
    """
    from probekit.evaluation import check_folder

    check_folder(out)
    try:
        meta = json.loads((out / "results.json").read_bytes())["meta"]
        there, of = meta["asked"], meta["activations"]
    except (OSError, ValueError, KeyError, TypeError):
        return  # nothing whole stands there
    different = [name for name, value in asked.items() if there.get(name) != value]
    different += [name for name, value in of.items() if store.meta.get(name, value) != value]
    if different:
        raise ResumeMismatch(
            f"{str(out)!a} holds results of another question ({', '.join(sorted(different))} differ); give another "
            "folder (--out), or remove that one"
        )


def _newest(quiet: bool) -> Path:
    from probekit.activations import newest_store

    path = newest_store("runs")
    if not quiet:
        console.note(f"store: {path} (the newest under runs)")
    return path
