"""The options of `load_model`."""

from dataclasses import dataclass

from probekit.options import parse
from probekit.options.option import option


@dataclass(frozen=True)
class DeviceOptions:
    """Where a model runs, in which type, and which revision of it."""

    device: str = option(
        "auto",
        "cpu, cuda, cuda:1, mps; auto is CUDA where there is a GPU, else the CPU.",
        metavar="NAME",
    )
    dtype: str = option(
        "float32",
        "Type to compute in: fp32, bf16 or fp16.",
        notes="The type of the weights and of the forward pass.",
        metavar="TYPE",
        parse=parse.dtype,
    )
    revision: str | None = option(None, "Branch, tag or commit of the model on the Hub.", metavar="REV")


@dataclass(frozen=True)
class ModelOptions(DeviceOptions):
    """`DeviceOptions`, and whether the weights are random."""

    random_init: bool = option(
        False,
        "Random weights in the model's shape: a baseline.",
        notes="Only config.json and the tokenizer are read.",
    )
    seed: int = option(
        0,
        "Seed of the random weights.",
        notes="Equal seeds give equal weights.",
        metavar="N",
        flag="--model-seed",
        least=0,
    )


@dataclass(frozen=True)
class ModelArguments(ModelOptions):
    """`ModelOptions`, and what only Python can pass."""

    progress: bool | None = option(
        None,
        "Show a line and a progress bar while a world's model is trained on first use; None: on a terminal only.",
        flag=None,
    )
