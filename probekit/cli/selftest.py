"""`probekit selftest`: is every activation of this model right, on this machine, and how fast is it?"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from probekit.cli import console
from probekit.cli.derive import command
from probekit.cli.extract import MODEL
from probekit.cli.fields import Output
from probekit.errors import DataError
from probekit.options.load import SelftestOptions
from probekit.options.option import option

if TYPE_CHECKING:
    from probekit.models.base import LanguageModel


@dataclass(frozen=True, kw_only=True)
class SelftestJob(Output):
    """The model."""

    model: str | None = option(None, f"{MODEL}  [default: a GPT-2 with random weights]", metavar="NAME|FOLDER")


@command("model dtype device speed seed revision via device_map quantize random_init")
def selftest(job: SelftestJob, options: SelftestOptions) -> None:
    """Check a model's activations against transformers.

    Also checks batched against unbatched. Prints the largest relative error of every point. Bounds: in fp32
    5e-6 for packing, padding and order, and 1e-5 against transformers in float64; in bf16 and fp16, 8 times the type's
    machine epsilon. Beyond them the exit code is 3. Without --model it needs no download.

    \b
    Examples:
        probekit selftest --model gpt2
        probekit selftest --device cuda --dtype bf16 --speed
    """
    console.hush_downloads(job.quiet)
    model = _model(job, options)
    from probekit import verification

    found = verification.selftest(model, options.seed)
    if not job.json:  # at once: timing takes longer, and may run out of memory
        console.result(found.verdict if job.quiet else found.describe())
    speed = verification.measure_speed(model, options.seed) if options.speed and found.passed else None
    if job.json:
        timed = {} if speed is None else {"speed": verification.speed_as_dict(speed)}
        console.result_json(found.as_dict() | timed)
    elif speed is not None:
        console.result(verification.speed_verdict(speed) if job.quiet else f"\n{verification.describe_speed(speed)}")
    if not found.passed:
        raise DataError(f"{found.model!a}: {found.verdict}")


def _model(job: SelftestJob, options: SelftestOptions) -> "LanguageModel":
    """The model that is named, or a made-up one."""
    if job.model is not None:
        from probekit.models import load_model

        return load_model(job.model, **{name: value for name, value in vars(options).items() if name != "speed"})
    from probekit.machine.devices import DTYPES, find_device
    from probekit.verification import made_up_model

    return made_up_model(find_device(options.device), DTYPES[options.dtype], options.seed)
