"""The commands by name. A command's module is imported when it is needed, so that `probekit --help` stays fast."""

import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from probekit.cli.derive import Command

T = TypeVar("T")

GROUPS = {
    "Start here": {
        "demo": "Extract, train and plot, on a small built-in model.",
        "extract": "Keep a model's activations on a dataset, as a store on disk.",
        "train-probe": "Train a probe at each layer and plot accuracy by layer.",
    },
    "Stores of activations": {
        "import": "Make a store of activations that another program took.",
        "merge": "Make one store of the parts of an extraction.",
        "label": "Join labels to the texts of a store, by id.",
        "ls": "List the stores under a folder, and the results in each.",
        "verify": "Check every byte of a store, finished or not.",
        "repair": "Compute the broken shards of a store again.",
    },
    "Several runs": {
        "sweep": "Train probes for many tasks on many models, with one table.",
        "transfer": "Train probes on each task and test them on all tasks.",
        "compare": "Put runs side by side: models, seeds, points, checkpoints.",
    },
    "With trained probes": {
        "causal": "Edit what probes read, and watch the model's next token.",
        "score": "Score new texts with a trained probe.",
        "report": "Write results as one HTML file that opens anywhere.",
        "export": "Write a probe or a table of results for other programs.",
        "push": "Upload a store or results to the Hugging Face Hub.",
    },
    "Models": {
        "points": "List a model's named points with their shapes.",
        "params": "Count a model's parameters, memory and FLOPs.",
        "generate": "Continue a text, greedily or by sampling.",
        "selftest": "Check a model's activations against transformers.",
        "known-answers": "Compare verdicts with the truth, on models made by hand.",
        "train-model": "Train and test the model of a synthetic world.",
    },
}
"""Heading -> command -> the first line of its `--help`, in the order of `probekit --help`."""

SUMMARIES = {name: summary for group in GROUPS.values() for name, summary in group.items()}
_OTHER_NAMES = {"import": "import_"}  # a module and a function cannot be named import


class ByCommand(Mapping[str, T]):
    """Command name -> a value that is made on first use."""

    def __init__(self, make: Callable[[str], T]):
        self._make = make
        self._made: dict[str, T] = {}

    def __getitem__(self, name: str) -> T:
        if name not in SUMMARIES:
            raise KeyError(name)
        if name not in self._made:
            self._made[name] = self._make(name)
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(SUMMARIES)

    def __len__(self) -> int:
        return len(SUMMARIES)

    def __contains__(self, name: object) -> bool:
        return name in SUMMARIES


def _imported(name: str) -> "Command":
    """The command, which is a function of the same name in a module of the same name."""
    own = _OTHER_NAMES.get(name, name.replace("-", "_"))
    return getattr(importlib.import_module(f"probekit.cli.{own}"), own)


COMMANDS: "ByCommand[Command]" = ByCommand(_imported)
SECTIONS = ByCommand(lambda name: COMMANDS[name].options)
"""The options of each command, for `--config` and `--set`."""
