"""The options of `causal`."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from probekit.errors import UsageError, nearest
from probekit.options.check import is_real, is_whole
from probekit.options.engine import PartsOptions
from probekit.options.kinds import LAYERS, Kind, choice, names, whole
from probekit.options.option import CHECKS, EDITED, READ, Options, option
from probekit.selections import Selection
from probekit.text import listed

if TYPE_CHECKING:
    import numpy as np

CausalMethod = Literal["interchange", "erase", "steer", "patch"]
At = Literal["read", "all"]
PairAlign = Literal["tokens", "last"]
DEFAULT_METHODS = ("interchange", "erase", "steer")
DEFAULT_SCALES = (-4.0, -2.0, -1.0, 1.0, 2.0, 4.0)
LEAST_PLACEBOS = 20  # of one kind alone; with fewer no p-value can be below 0.05


def _answers(_: str, given: Any) -> tuple[str | int, ...] | dict[str | int, float]:
    if isinstance(given, Mapping):
        if len(given) < 2 or not all(map(is_real, given.values())):
            raise UsageError(f"answers as a dict are word -> number, two or more; got {given!a:.60}")
        return dict(given)
    words = tuple(names(given)) if isinstance(given, str) else tuple(given)
    words = tuple(int(word) if is_whole(word) else word for word in words)
    if len(words) < 2 or not all(type(word) in (str, int) and word != "" for word in words):
        raise UsageError(
            f"answers (--answers) are the next word of each class, such as is,are, or token ids; got {given!a:.60}"
        )
    if len(set(words)) < len(words):
        raise UsageError(f"answers (--answers) must differ between classes; got {given!a:.60}")
    return words


def _readout(_: str, given: Any) -> tuple[float, ...]:
    each = given.tolist() if hasattr(given, "tolist") else given
    if not (isinstance(each, list | tuple) and each and all(map(is_real, each))):
        raise UsageError(f"readout is a vector of numbers, [D]; got {given!a:.60}")
    return tuple(map(float, each))


def _answer_at(_: str, given: Any) -> Selection | tuple[int, ...]:
    """One token of each text: a selection, an index, or an index for each example."""
    if is_whole(given):
        return Selection(int(given))
    if isinstance(given, str):
        selection = Selection.parse(given)
        if selection.pick == "mean" or selection.several:
            raise UsageError(
                f"a model answers after one token of each text, and --answer-at {given!a:.60} names several; write "
                "last, 3, before:TEXT, ..."
            )
        return selection
    each = given.tolist() if hasattr(given, "tolist") else given
    if not isinstance(each, list | tuple) or not each or not all(map(is_whole, each)):
        raise UsageError(
            "answer_at (--answer-at) is one token of each text, such as 3 or before:TEXT, or its index in each "
            f"example; got {given!a:.60}"
        )
    return tuple(map(int, each))


def _methods(_: str, given: Any) -> tuple[str, ...]:
    """The methods in their order."""
    chosen = tuple(names(given)) if isinstance(given, str) else tuple(given)
    known = get_args(CausalMethod)
    for name in chosen:
        if name not in known:
            raise UsageError(f"unknown method {name!a:.60}; {nearest(str(name), known)}")
    if not chosen or len(set(chosen)) < len(chosen):
        raise UsageError(f"methods (--method) are different names of {listed(known)}; got {given!a:.60}")
    return tuple(name for name in known if name in chosen)


def _scales(_: str, given: Any) -> tuple[float, ...]:
    given = _numbers(given) if isinstance(given, str) else given
    values = tuple(given) if isinstance(given, Iterable) else (given,)
    if not values or not all(is_real(value) and math.isfinite(value) and value != 0 for value in values):
        raise UsageError(
            f"scales (--scale) are numbers other than 0 (which is the unedited run), such as -2,2; got {given!a:.60}"
        )
    return tuple(sorted({float(value) for value in values}))


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in names(text)]
    except ValueError:
        raise UsageError(f"--scale takes numbers with commas between them, such as -2,2; got {text!r:.80}") from None


@dataclass(frozen=True, kw_only=True)
class CausalOptions(Options, heading=READ):
    """Which behaviour is measured, and which edits are made where."""

    answers: "str | Sequence[str | int] | Mapping[str | int, float] | None" = option(
        None,
        "The next word of each class, such as is,are, in the order of the classes; each is one token.",
        notes="For a label of numbers, words that are numbers: 0,1,2,3. In Python also token ids, such as [2, 3], and "
        "for numbers a dict word or id -> number. The behaviour is the logit of the own class's word minus that "
        "of the other's, after the last token.",
        kind=Kind(_answers, metavar="WORDS"),
    )
    readout: "Sequence[float] | np.ndarray | None" = option(
        None,
        "For a label of numbers: a linear readout [D] of the final norm's output, measured in place of answers.",
        Kind(_readout),
        flag=None,
    )
    answer_at: "str | int | np.ndarray | Sequence[int] | None" = option(
        None,
        "The token after which the model answers: 3, -2, last@user, before:TEXT, ... (see: which-token).  [default: "
        "last; of a masked language model its MASK; of another bidirectional model the token that the probes read]",
        notes="In Python also the index of one token of each example, an int array [N]. With it, --answers are words "
        "by themselves, tried after a blank first.",
        kind=Kind(_answer_at, Selection.parse, "TOKEN"),
    )
    answers_label: str | None = option(
        None,
        "The label set whose class decides a text's own answer.  [default: that of the probes]",
        notes="With another one: is what the probes read used for this behaviour? Its classes need a word each.",
        metavar="NAME",
    )
    methods: str | Iterable[str] | None = option(
        None,
        "Edits: interchange, erase, steer, patch; several with commas.  [default: interchange,erase,steer; with --at "
        "all erase,steer]",
        notes="interchange takes the coordinate along the direction from a text of another class; erase removes the "
        "label linearly (LEACE); steer adds the direction; patch copies activations of a text of another class into "
        "each layer and position.",
        kind=Kind(_methods, metavar="NAMES"),
        heading=EDITED,
        flag="--method",
    )
    layers: str | int | Iterable[int] = option(
        "all",
        "Layers to edit, among those of the results: all, 3, 0,4,8 or 2-6.",
        LAYERS,
        heading=EDITED,
        flag="--layer",
    )
    at: str = option(
        "read",
        "Tokens to edit: the one that the probe reads (read), or all of the text (all; erase and steer).",
        kind=choice("read", "all"),
        heading=EDITED,
    )
    scales: str | Iterable[float] | None = option(
        None,
        "Scales of steering, in standard deviations along the direction; above 0 is towards the other class.  "
        "[default: -4,-2,-1,1,2,4]",
        kind=Kind(_scales, metavar="NUMBERS"),
        heading=EDITED,
        flag="--scale",
    )
    rows: int = option(
        200, "Validation rows, and test rows, at most; drawn at random, complete groups together.", kind=whole(2)
    )
    placebos: int = option(
        20,
        "Random directions, and as many drawn from the covariance of the activations, that get the same edits.",
        heading=CHECKS,
        metavar="K",
        kind=whole(0),
    )
    das: bool = option(
        True,
        "Search the best single direction too (distributed alignment search).",
        off="Leave out the search for the best single direction (distributed alignment search).",
        heading=EDITED,
        flag="--no-das",
    )
    completeness: bool = option(
        True,
        "Train fresh probes on other rows after the edit.",
        off="Leave out fresh probes on other rows after the edit.",
        heading=CHECKS,
        flag="--no-completeness",
    )
    neutral: str | Path | None = option(
        None,
        "Texts whose loss says what else an edit harms: a .txt file of lines, or a table with a column text.  "
        "[default: train texts]",
        metavar="FILE",
    )
    pairs: str | Path | None = option(
        None,
        "File of minimal pairs for patch: columns clean, corrupted, clean_answer, corrupted_answer.  [default: test "
        "rows and their counterparts]",
        metavar="FILE",
    )
    align: str = option(
        "tokens",
        "Texts of a pair of --pairs: equally long, token by token (tokens), or aligned at the answer (last).",
        kind=choice("tokens", "last"),
    )
    exact: int | None = option(
        None,
        "Pairs to patch cell by cell; the others by attribution patching (one backward pass).  [default: all, or as "
        "many as some minutes allow]",
        kind=whole(0),
    )
    seed: int = option(0, "Seed of everything that is drawn: rows, counterparts, placebos, resamples.", kind=whole(0))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.methods is None:  # all but patch, and at all tokens those that can edit them
            usual = tuple(name for name in DEFAULT_METHODS if self.at == "read" or name != "interchange")
            object.__setattr__(self, "methods", usual)
        if self.scales is None:
            object.__setattr__(self, "scales", DEFAULT_SCALES)

    @property
    def patches(self) -> bool:
        """Whether activations are patched."""
        return "patch" in self.method_names

    @property
    def patches_alone(self) -> bool:
        """Whether activations are patched, and nothing else is done."""
        return self.method_names == ("patch",)

    @property
    def patches_pairs_alone(self) -> bool:
        """Whether a file of pairs is patched and nothing else; it has the answers, and no probe is needed."""
        return self.pairs is not None and self.patches_alone

    @property
    def interchanges(self) -> bool:
        """Whether coordinates are taken from other texts."""
        return "interchange" in self.method_names

    @property
    def method_names(self) -> tuple[str, ...]:
        """The methods, in the order in which they are done."""
        return tuple(self.methods or ())

    @property
    def scale_values(self) -> tuple[float, ...]:
        """The scales of steering, rising."""
        return tuple(float(scale) for scale in self.scales or ())


@dataclass(frozen=True, kw_only=True)
class CausalArguments(PartsOptions, CausalOptions, heading=READ):
    """`CausalOptions`, and what only Python can pass."""

    keep: Path | None = option(
        None, "Folder for what is complete of an unfinished run, from which the next one resumes.", flag=None
    )
