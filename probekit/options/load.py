"""The options of `load_model` and `selftest`."""

from dataclasses import KW_ONLY, dataclass
from typing import Literal

from probekit.options.engine import ProgressOptions
from probekit.options.kinds import DTYPE, choice, names, whole
from probekit.options.option import RUNS, Options, like, option

Via = Literal["probekit", "transformers"]
DeviceMap = Literal["auto"]
Quantize = Literal["8bit", "4bit"]


@dataclass(frozen=True)
class DeviceOptions(Options, heading=RUNS):
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
        kind=DTYPE,
    )
    revision: str | None = option(
        None,
        "Branch, tag or commit of the model on the Hub, or a checkpoint in a local folder that holds several.",
        notes="A local checkpoint is a folder in the model's folder, such as step1000/, with its own config.json.",
        metavar="REV",
    )
    _: KW_ONLY
    via: Via | None = option(
        None,
        "Whose code runs: probekit's own families, or the class of transformers.  [default: ours where one fits]",
        choice("probekit", "transformers"),
        notes="The class of transformers offers the points that it can prove, and never runs code of the Hub.",
    )
    device_map: DeviceMap | None = option(
        None,
        "auto spreads the layers of a large model over all GPUs; those that are left stay on the host.",
        choice("auto"),
        notes="A layer of the host is copied to the last GPU when it runs.",
    )
    quantize: Quantize | None = option(
        None,
        "Weights in 8 or 4 bits, by bitsandbytes, in the class of transformers.",
        choice("8bit", "4bit"),
    )

    @property
    def own_device(self) -> str | None:
        """The one device of the model; None where that is left to probekit."""
        return None if self.device == "auto" else self.device

    @property
    def several_revisions(self) -> bool:
        """Whether several revisions are named, each with a store of its own."""
        return len(names(self.revision or "")) > 1


@dataclass(frozen=True)
class ModelOptions(DeviceOptions, heading=RUNS):
    """`DeviceOptions`, and whether the weights are random."""

    random_init: bool = option(
        False,
        "Random weights in the model's shape: a baseline.",
        notes="Only config.json and the tokenizer are read.",
    )
    seed: int = option(
        0, "Seed of the random weights.", notes="Equal seeds give equal weights.", flag="--model-seed", kind=whole(0)
    )

    @property
    def weights_seed(self) -> int:
        """The seed that nothing but random weights is drawn with."""
        return self.seed


@dataclass(frozen=True)
class ModelArguments(ProgressOptions, ModelOptions):
    """`ModelOptions`, and what only Python can pass; the seed that a store recorded may always be given."""

    @property
    def weights_seed(self) -> int:
        """The default: a model is loaded again with what its store recorded."""
        return 0


@dataclass(frozen=True)
class SelftestOptions(ModelOptions, heading=RUNS):
    """`ModelOptions`, with one seed for the weights and the token ids, and whether speed is measured."""

    seed: int = like(ModelOptions, "seed", "Seed of the token ids, and of --random-init.", flag="--seed")
    _: KW_ONLY
    speed: bool = option(
        False,
        "Then time extract and transformers on the same texts, and compare with the device's fastest product.",
        notes="Both run in the model's type, in turn: tokens per second, their ratio, the share of the peak that a "
        "large matrix product reaches, how much of the copy to the host is hidden, and peak memory.",
    )

    @property
    def weights_seed(self) -> int:
        """The default: token ids are drawn with this seed too."""
        return 0
