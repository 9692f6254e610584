"""`probekit selftest`: is every activation of this model right, on this machine?"""

from typing import Annotated

import typer

from probekit.cli import console, options
from probekit.errors import DataError

Dtype = Annotated[str, typer.Option(metavar="TYPE", help="Type to compute in: fp32, bf16 or fp16.")]
Seed = Annotated[int, typer.Option(metavar="N", min=0, help="Seed of the token ids, and of --random-init.")]
RandomInit = Annotated[bool, typer.Option("--random-init", help="Random weights in the model's shape.")]


def selftest(
    model: options.Model,
    dtype: Dtype = "fp32",
    device: options.Device = "auto",
    seed: Seed = 0,
    revision: options.Revision = None,
    random_init: RandomInit = False,
    json_: options.Json = False,
    quiet: options.Quiet = False,
    config: options.Config = None,
    set_: options.Set = None,
) -> None:
    """Prove a model right on this machine: against transformers, and in every kind of batch against the text alone.

    Prints the largest relative error of every point. Bounds: in fp32 5e-6 for packing, padding and order, and 1e-5
    against transformers in float64; in bf16 and fp16, 8 times the type's machine epsilon. Beyond them it exits with 3.

    \b
    Example:
        probekit selftest --model gpt2
    """
    console.hush_downloads(quiet)
    from probekit.models import load_model

    loaded = load_model(model, device, options.dtype_name(dtype), revision, random_init, seed)
    from probekit import verification

    found = verification.selftest(loaded, seed)
    if json_:
        console.result_json(found.as_dict())
    else:
        console.result(found.verdict if quiet else found.describe())
    if not found.passed:
        raise DataError(f"{found.model!a}: {found.verdict}")
