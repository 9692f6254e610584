"""`probekit demo`: the main job on the model and the task that come with probekit."""

from pathlib import Path
from typing import Annotated

import typer

from probekit.cli import console, options
from probekit.cli.extract import load, make_store
from probekit.cli.train import run_training

MODEL, TASK = "agreement-gpt2", "agreement"


def demo(
    out: Annotated[Path | None, typer.Option(metavar="PATH", help="The store.  [default: a name under ./runs]")] = None,
    seed: options.Seed = 0,
    json_: options.Json = False,
    quiet: options.Quiet = False,
    config: options.Config = None,
    set_: options.Set = None,
) -> None:
    """Extract, train and draw, on a small model that learned English agreement.

    Needs no network and no data: at which layer does the model know whether the verb's subject is one or many? The
    same as `probekit extract --model agreement-gpt2 --dataset agreement` and `probekit train-probe` after it.

    \b
    Example:
        probekit demo
    """
    from probekit.activations import load_activations, plan_extraction
    from probekit.options import ExtractOptions

    console.hush_downloads(quiet)
    path = make_store(plan_extraction(*load(MODEL, TASK, seed, {}, {}), ExtractOptions()), out, quiet)
    run_training(load_activations(path), {"seed": seed}, out=None, as_json=json_, quiet=quiet)
