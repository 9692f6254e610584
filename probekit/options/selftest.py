"""The options of `probekit selftest`."""

from dataclasses import KW_ONLY, dataclass

from probekit.options.load import ModelOptions
from probekit.options.option import like, option


@dataclass(frozen=True)
class SelftestOptions(ModelOptions):
    """`ModelOptions`, with one seed for the weights and the token ids, and whether speed is measured."""

    seed: int = like(ModelOptions, "seed", "Seed of the token ids, and of --random-init.", flag="--seed")
    _: KW_ONLY
    speed: bool = option(
        False,
        "Then time extract and transformers on the same texts, and compare with the device's fastest product.",
        notes="Both run in the model's type, in turn: tokens per second, their ratio, the share of the peak that a "
        "large matrix product reaches, how much of the copy to the host is hidden, and peak memory.",
    )
