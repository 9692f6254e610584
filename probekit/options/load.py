"""The options of `load_model`."""

from dataclasses import KW_ONLY, dataclass
from typing import Literal, get_args

from probekit.errors import UsageError
from probekit.options import parse
from probekit.options.check import check_among
from probekit.options.option import like, option
from probekit.options.progress import ProgressOptions

Via = Literal["probekit", "transformers"]
DeviceMap = Literal["auto"]
Quantize = Literal["8bit", "4bit"]


@dataclass(frozen=True)
class DeviceOptions:
    """Where a model runs, in which type, which revision of it, and whose code computes it."""

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
    revision: str | None = option(
        None,
        "Branch, tag or commit of the model on the Hub, or a checkpoint in a local folder that holds several.",
        notes="A local checkpoint is a folder in the model's folder, such as step1000/, with its own config.json.",
        metavar="REV",
    )
    _: KW_ONLY
    via: Via = option(
        "probekit",
        "Whose code runs: probekit's own families, or the class of transformers for any other text model.",
        notes="The latter offers the points of the stream that it can prove, and never runs code of the Hub.",
    )
    device_map: DeviceMap | None = option(
        None,
        "auto spreads the layers of a large model over all GPUs; those that are left stay on the host.",
        notes="A layer of the host is copied to the last GPU when it runs.",
    )
    quantize: Quantize | None = option(
        None,
        "Weights in 8 or 4 bits, by bitsandbytes; only with --via transformers.",
    )

    def __post_init__(self) -> None:
        check_among("via", self.via, get_args(Via))
        check_among("device_map", self.device_map, (None, *get_args(DeviceMap)))
        check_among("quantize", self.quantize, (None, *get_args(Quantize)))
        if self.quantize is not None and self.via != "transformers":
            raise UsageError("quantize (--quantize) works with transformers' models alone; add --via transformers")
        if self.device_map is not None and str(self.device) != "auto":
            raise UsageError(
                f"device_map (--device-map) chooses the devices; leave out device {str(self.device)!a:.60}"
            )


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

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.random_init and self.quantize is not None:
            raise UsageError("random weights are not quantized; leave out --quantize or --random-init")


@dataclass(frozen=True)
class ModelArguments(ModelOptions):
    """`ModelOptions`, and what only Python can pass."""

    progress: bool | None = like(ProgressOptions, "progress")
