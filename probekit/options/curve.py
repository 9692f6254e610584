"""Which probe is fitted to which label, and where: the options that `train_probes` and `transfer` share."""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from probekit.errors import UsageError
from probekit.options.check import check_strength
from probekit.options.engine import PartsOptions
from probekit.options.kinds import POSITION, POSITIONS, Kind, layers, name_of, positive_numbers, whole
from probekit.options.option import CHOSEN, READ, Options, like, option

# the keys of `probekit.probes.PROBES`, and of `SEQUENCE_PROBES`, which take all tokens of a text
PROBE_NAMES = ("logistic", "ridge", "lda", "mean-diff", "mlp", "k-sparse", "attention", "multimax")
SEQUENCE_NAMES = ("attention", "multimax")
AGGREGATES = ("mean", "max", "rolling-max", "ema-max", "top-k", "softmax", "fitted-softmax", "last")
WITHOUT_C = ("lda", "mean-diff", "mlp")  # those whose `has_C` is False
_NAME = name_of("probe", PROBE_NAMES)
_K_SPARSE = re.compile(r"k-sparse-([1-9][0-9]{0,6})")


def _rising(_: str, C: float | Iterable[float]) -> tuple[float, ...]:
    """The strengths to choose from, rising, each once."""
    several = tuple(C) if isinstance(C, Iterable) and not isinstance(C, str) else (C,)
    if not several:
        raise UsageError("the list of C is empty; give one positive number or more")
    return tuple(sorted({check_strength("C", value) for value in several}))


def checked_probe(_: str, probe: Any) -> Any:
    """A probe, or a tuple of several, whose names are known; other kinds of probes are checked later.

    Raises:
        UsageError: an unknown name, or parameters for several.
    """
    if isinstance(probe, Iterable) and not isinstance(probe, str | tuple | dict) and not hasattr(probe, "fit"):
        probe = tuple(probe)
    if isinstance(probe, dict) and "," in str(probe.get("name")):
        raise UsageError(f"several probes take no parameters, got {dict(probe)!a:.80}; name one probe")
    for name in map(name_in, probe if isinstance(probe, tuple) else (probe,)):
        if isinstance(name, str) and k_in(name) is None:
            _NAME.check("probe", name)
    return probe


def k_in(name: Any) -> int | None:
    """The number of features in the name of a probe: 4 of "k-sparse-4"; None in other names."""
    found = _K_SPARSE.fullmatch(name) if isinstance(name, str) else None
    return None if found is None else int(found[1])


def name_in(probe: Any) -> Any:
    """The name of a probe with parameters; any other probe as it is."""
    return probe.get("name") if isinstance(probe, dict) else probe


def check_strengths_of(probes: Sequence[Any], C: Any) -> None:
    """Refuse a C that none of the named probes takes; of several probes, those without a C are fitted without one."""
    names = [name for name in probes if isinstance(name, str)]
    if C is None or len(names) < len(probes):
        return
    if all(name in WITHOUT_C for name in names):
        which = f"probe {names[0]} has" if len(names) == 1 else f"probes {' and '.join(names)} have"
        raise UsageError(f"the {which} no C; leave it out")
    for name in names:
        if math.inf in C and name not in ("ridge", *WITHOUT_C):
            raise UsageError(f"the probe {name} needs a finite C (--C), got inf; only ridge may go without a penalty")


@dataclass(frozen=True, kw_only=True)
class CurveOptions(Options, heading=READ):
    """Which probe is fitted to which label, and where."""

    layers: str | int | Iterable[int] = option(
        "all",
        "Layers to probe: all, 3, 0,4,8 or 2-6.",
        notes='In Python also [0, 4]. Only "all" includes the output of the last block.',
        kind=layers("out", "output"),
        flag="--layer",
    )
    point: str | None = option(None, "Point to read.  [default: the store's first]", metavar="NAME")
    probe: Any = option(
        None,
        f"{', '.join(PROBE_NAMES[:-1])} or {PROBE_NAMES[-1]}.  [default: logistic; ridge where labels are numbers]",
        notes="In Python also a probe class, an instance, or any scikit-learn classifier or regressor, which is cloned "
        "for each fit, has no certificate and is not saved. An instance keeps its parameters; a C other than the "
        "default is then the only one tried.",
        kind=Kind(checked_probe, metavar="NAME"),
        heading=CHOSEN,
        takes_parameters=True,
    )
    label: str | None = option(None, "Label set to predict.  [default: the task's target]", metavar="NAME")
    position: str | int | Sequence[str | int] | None = option(
        None,
        "Token to read, if the store keeps several: last, first, mean or 3; all makes each token an example; with --by "
        "also several, such as last@user,mean@assistant.",
        kind=POSITIONS,
        metavar="TOKEN",
        tag="",
    )
    C: float | Iterable[float] | None = option(
        None,
        "Inverse regularisation to choose from; ridge: alpha = 1 / (2 C), inf for least squares.  [default: the "
        "probe's grid]",
        notes="Least squares of linearly dependent features takes the solution of least norm on standardised features.",
        kind=Kind(_rising, positive_numbers, "NUMBERS"),
        heading=CHOSEN,
        flag="--C",
    )
    seed: int = option(
        0,
        "Seed of everything that is drawn at random.",
        notes="It decides resamples, permutations, control tasks, the order of the code and the folds.",
        kind=whole(0),
        heading=CHOSEN,
    )
    concatenate: bool = option(
        False,
        "Fit one probe on all chosen layers side by side.",
        heading=CHOSEN,
        notes="Its rows have the features of all these layers, such as 12 * 768 instead of 768.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        probes = self.probe if isinstance(self.probe, tuple) else (self.probe,)
        check_strengths_of([name_in(one) for one in probes], self.C)


@dataclass(frozen=True, kw_only=True)
class TransferOptions(CurveOptions, heading=READ):
    """`CurveOptions` with the help texts of `transfer`."""

    layers: str | int | Iterable[int] = like(
        CurveOptions, "layers", "3 fixes the layer; among all, 0,4,8 or 2-6 validation chooses."
    )
    point: str | None = like(CurveOptions, "point", "Point to read.  [default: the first store's first]")
    label: str | None = like(CurveOptions, "label", "Label set to predict.  [default: each task's target]")
    position: str | int | None = like(
        CurveOptions, "position", "Token to read, if the stores keep several: last, first, mean or 3.", kind=POSITION
    )


@dataclass(frozen=True, kw_only=True)
class TransferArguments(PartsOptions, TransferOptions):
    """`TransferOptions`, and what only Python can pass."""
