"""`probekit params`: parameters, memory and FLOPs of a model by component, from its shape alone.

The parameters of a class of transformers are counted on the meta device.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probekit.cli import console
from probekit.cli.derive import command
from probekit.cli.fields import Output, argument
from probekit.errors import UsageError
from probekit.machine.dtypes import BYTES
from probekit.options import ModelOptions, kinds
from probekit.options.load import Via
from probekit.options.option import like, option
from probekit.options.picture import PictureOptions
from probekit.tables import text_table
from probekit.text import listed, metric

if TYPE_CHECKING:
    from probekit.models.accounting import Account
    from probekit.models.base import LanguageModel
    from probekit.models.shapes import ModelShape


def show_adapted_params(name: str, model: Any, dtype: str, as_json: bool, quiet: bool) -> None:
    """Print the parameters and the bytes of the parts of a model that this project's code does not compute."""
    from probekit.models.adapter.model import AdaptedModel, parameters_by_part

    whole = {"module": sum(weight.numel() for weight in model.parameters())}
    parts = parameters_by_part(model) if isinstance(model, AdaptedModel) else whole
    rows = {**parts, "total": sum(parts.values())}
    if as_json:
        found = {part: {"parameters": n, "bytes": n * BYTES[dtype]} for part, n in rows.items()}
        console.result_json({"model": name, "class": model.cfg.model_class, "dtype": dtype, "parts": found})
        return
    cells = [[part, f"{n:,}", f"{metric(n * BYTES[dtype])}B"] for part, n in rows.items()]
    console.result(
        f"{name}, {model.cfg.model_class} in {dtype}\n\n" + text_table([["", "parameters", "memory"], *cells])
    )
    if not quiet:
        console.note("activations and FLOPs are counted for probekit's own families alone")


CONTEXTS = (1024, 2048, 4096, 8192, 16384)
PICTURE = Path("runs/flop_shares.png")


@dataclass(frozen=True, kw_only=True)
class ParamsJob(Output):
    """The models, and the size of a batch."""

    models: list[str] = argument(
        "a published model (gpt2-xl, pythia-70m, gemma-2-9b, qwen3-8b ...), another Hub name, a folder, or a world's "
        "model such as counting-gpt.",
        metavar="MODEL...",
    )
    compare: bool = option(False, "Compare several models: one table, and a picture of the shares of FLOPs.")
    context: int | None = option(
        None, "Tokens in a text.  [default: the model's own context; with --compare 1,024 to 16,384]", metavar="L"
    )
    batch: int = option(1, "Texts in a batch.", metavar="B")
    dtype: str = like(ModelOptions, "dtype", "Type of weights and activations: fp32, bf16 or fp16.")
    revision: str | None = like(ModelOptions, "revision")
    via: Via | None = like(
        ModelOptions, "via", "transformers counts the parameters of that library's class, and no FLOPs."
    )
    out: Path | None = option(None, f"The picture of --compare.  [default: {PICTURE}]", metavar="PATH")


@command()
def params(job: ParamsJob, options: PictureOptions) -> None:
    """Count a model's parameters, memory and FLOPs.

    All by component, for one forward pass. Needs at most the config.json, no weights.

    \b
    Examples:
        probekit params gpt2-xl --context 16384 --dtype bf16
        probekit params --compare gpt2 gpt2-medium gpt2-large gpt2-xl
        probekit params --compare gemma-2-2b llama-3.2-3b qwen3-4b --context 4096
    """
    from probekit.models.accounting import account, describe_account

    names = _names(job)
    console.hush_downloads(job.quiet)
    for size, name in ((job.batch, "--batch"), (1 if job.context is None else job.context, "--context")):
        if size < 1:
            raise UsageError(f"{name} is a whole number above 0; got {size}")
    found = {name: _shape_or_model(name, job.revision, job.via) for name in names}
    adapted = {name: model for name, (_, model) in found.items() if model is not None}
    if adapted and (job.compare or job.context is not None or job.batch != 1):
        raise UsageError(
            f"{next(iter(adapted))!a} is run by code that is not probekit's, whose parameters alone are counted; leave "
            "out --compare, --context and --batch"
        )
    if adapted:
        show_adapted_params(names[0], adapted[names[0]], job.dtype, job.json, job.quiet)
        return
    shapes = {name: shape for name, (shape, _) in found.items()}
    contexts = CONTEXTS if job.compare and job.context is None else (job.context,)
    titles = _titles(names)
    accounts = [
        account(titles[name], shape, n, job.batch, job.dtype) for name, shape in shapes.items() for n in contexts
    ]
    if not job.quiet:
        _note_long(accounts)
    if job.compare:
        _show_compared(accounts, job.out or PICTURE, job.json, options)
    else:
        console.answer(job, accounts[0].as_dict, describe_account(accounts[0]))


def _names(job: ParamsJob) -> list[str]:
    """The models that were named, each once.

    Raises:
        UsageError: several without --compare, or one with it.
    """
    names = list(dict.fromkeys(name for text in job.models for name in kinds.names(text)))
    given = listed([repr(name) for name in names]) or "none"
    if job.compare and len(names) < 2:
        raise UsageError(f"--compare takes two or more models; got {given}")
    if not job.compare and len(names) != 1:
        raise UsageError(f"expected one model, or several with --compare; got {given}")
    return names


def _titles(names: list[str]) -> dict[str, str]:
    """The name of each model in the output: for a folder its own, unless another model has that name too."""
    own = {name: Path(name).resolve().name if Path(name).is_dir() else name for name in names}
    return {name: title if list(own.values()).count(title) == 1 else name for name, title in own.items()}


def _shape_or_model(name: str, revision: str | None, via: Via | None) -> "tuple[ModelShape, LanguageModel | None]":
    """The shape of a model; with the model itself if it is not probekit's own, as its shape is then an estimate.

    Published sizes need no network, and those of GPT-2 no torch, unless a folder has that name; a world's model need
    not be trained.
    """
    from probekit.models.families import named_shape, shape_of

    known = None if revision is not None or via is not None or Path(name).exists() else named_shape(name)
    if known:
        return known, None
    from probekit.models import outline
    from probekit.worlds import MODELS, world

    if name in MODELS and revision is None and via is None:
        return shape_of(world(name).make_config()), None
    model = outline(name, revision, via)
    return shape_of(model.cfg), None if model.is_ours else model


def _note_long(accounts: "list[Account]") -> None:
    """Say which contexts are longer than the model's own."""
    contexts = {each.name: each.shape.n_ctx for each in accounts if each.context > each.shape.n_ctx}
    for name, n_ctx in contexts.items():
        console.note(f"{name} supports {n_ctx:,} tokens; figures for longer contexts are hypothetical")


def _show_compared(accounts: "list[Account]", path: Path, as_json: bool, options: PictureOptions) -> None:
    from probekit.models.accounting import compared, forward_flops
    from probekit.plots import save_flop_shares

    flops: dict[str, dict[int, dict[str, int]]] = {}
    for each in accounts:
        flops.setdefault(each.name, {})[each.context] = forward_flops(each.shape, each.context)
    picture = save_flop_shares(flops, path, **vars(options))
    if as_json:
        console.result_json({"models": [each.as_dict() for each in accounts], "picture": str(picture)})
    else:
        console.result(f"{compared(accounts)}\n\nPicture: {picture}")
