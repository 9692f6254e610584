"""`probekit selftest`: is every activation of this model right, on this machine?"""

from dataclasses import dataclass

from probekit.cli import console
from probekit.cli.derive import command
from probekit.cli.extract import MODEL
from probekit.cli.fields import Output, required
from probekit.errors import DataError
from probekit.options import ModelOptions
from probekit.options.option import like


@dataclass(frozen=True, kw_only=True)
class SelftestJob(Output):
    """The model."""

    model: str = required(MODEL, "NAME|FOLDER")


@dataclass(frozen=True)
class SelftestOptions(ModelOptions):
    """`ModelOptions`, with one seed for the weights and the token ids."""

    seed: int = like(ModelOptions, "seed", "Seed of the token ids, and of --random-init.", flag="--seed")


@command("model dtype device seed revision via device_map quantize random_init")
def selftest(job: SelftestJob, options: SelftestOptions) -> None:
    """Check a model's activations against transformers.

    Also checks batched against unbatched. Prints the largest relative error of every point. Bounds: in fp32
    5e-6 for packing, padding and order, and 1e-5 against transformers in float64; in bf16 and fp16, 8 times the type's
    machine epsilon. Beyond them the exit code is 3.

    \b
    Example:
        probekit selftest --model gpt2
    """
    console.hush_downloads(job.quiet)
    from probekit.models import load_model

    model = load_model(job.model, **vars(options))
    from probekit import verification

    found = verification.selftest(model, options.seed)
    if job.json:
        console.result_json(found.as_dict())
    else:
        console.result(found.verdict if job.quiet else found.describe())
    if not found.passed:
        raise DataError(f"{found.model!a}: {found.verdict}")
