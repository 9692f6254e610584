"""The options of `causal`."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from probekit.errors import UsageError, nearest
from probekit.options import parse
from probekit.options.check import check_among, check_whole, is_real, is_whole
from probekit.options.option import like, option
from probekit.options.progress import PartsOptions, ProgressOptions
from probekit.points import check_layers
from probekit.selections import as_position, keeps_several, parse_selection
from probekit.text import listed

if TYPE_CHECKING:
    import numpy as np

CausalMethod = Literal["interchange", "erase", "steer", "patch"]
At = Literal["read", "all"]
PairAlign = Literal["tokens", "last"]
DEFAULT_METHODS = ("interchange", "erase", "steer")
DEFAULT_SCALES = (-4.0, -2.0, -1.0, 1.0, 2.0, 4.0)
LEAST_PLACEBOS = 20  # of one kind alone; with fewer no p-value can be below 0.05


@dataclass(frozen=True, kw_only=True)
class CausalOptions:
    """Which behaviour is measured, and which edits are made where."""

    answers: "str | Sequence[str | int] | Mapping[str | int, float] | None" = option(
        None,
        "The next word of each class, such as is,are, in the order of the classes; each is one token.",
        notes="For a label of numbers, words that are numbers: 0,1,2,3. In Python also token ids, such as [2, 3], and "
        "for numbers a dict word or id -> number. The behaviour is the logit of the own class's word minus that "
        "of the other's, after the last token.",
        metavar="WORDS",
    )
    readout: "Sequence[float] | np.ndarray | None" = option(
        None,
        "For a label of numbers: a linear readout [D] of the final norm's output, measured in place of answers.",
        flag=None,
    )
    answer_at: "str | int | np.ndarray | Sequence[int] | None" = option(
        None,
        "The token after which the model answers: 3, -2, last@user, before:TEXT, ... (see: which-token).  [default: "
        "last; of a masked language model its MASK]",
        notes="In Python also the index of one token of each example, an int array [N]. With it, --answers are words "
        "by themselves, tried after a blank first.",
        metavar="TOKEN",
        parse=parse.position,
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
        metavar="NAMES",
        flag="--method",
    )
    layers: str | int | Iterable[int] = option(
        "all", "Layers to edit, among those of the results: all, 3, 0,4,8 or 2-6.", metavar="LAYERS", flag="--layer"
    )
    at: str = option(
        "read",
        "Tokens to edit: the one that the probe reads (read), or all of the text (all; erase and steer).",
        metavar="TOKENS",
    )
    scales: str | Iterable[float] | None = option(
        None,
        "Scales of steering, in standard deviations along the direction; above 0 is towards the other class.  "
        "[default: -4,-2,-1,1,2,4]",
        metavar="NUMBERS",
        flag="--scale",
    )
    rows: int = option(
        200,
        "Validation rows, and test rows, at most; drawn at random, complete groups together.",
        metavar="N",
        least=2,
    )
    placebos: int = option(
        20,
        "Random directions, and as many drawn from the covariance of the activations, that get the same edits.",
        metavar="K",
        least=0,
    )
    das: bool = option(
        True,
        "Search the best single direction too (distributed alignment search).",
        off="Leave out the search for the best single direction (distributed alignment search).",
        flag="--no-das",
    )
    completeness: bool = option(
        True,
        "Train fresh probes on other rows after the edit.",
        off="Leave out fresh probes on other rows after the edit.",
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
        metavar="HOW",
    )
    exact: int | None = option(
        None,
        "Pairs to patch cell by cell; the others by attribution patching (one backward pass).  [default: all, or as "
        "many as some minutes allow]",
        metavar="N",
        least=0,
    )
    seed: int = option(
        0, "Seed of everything that is drawn: rows, counterparts, placebos, resamples.", metavar="N", least=0
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "answers", _answers(self.answers))
        object.__setattr__(self, "answer_at", _answer_at(self.answer_at))
        object.__setattr__(self, "readout", _readout(self.readout))
        object.__setattr__(self, "methods", _methods(self.methods, self.at))
        object.__setattr__(self, "scales", _scales(self.scales))
        for name, least in (("rows", 2), ("placebos", 0), ("seed", 0)):
            object.__setattr__(self, name, check_whole(name, getattr(self, name), least))
        check_among("at", self.at, get_args(At))
        check_among("align", self.align, get_args(PairAlign))
        if self.exact is not None:
            object.__setattr__(self, "exact", check_whole("exact", self.exact, 0))
        _check_together(self)
        if not isinstance(self.layers, str | int):
            object.__setattr__(self, "layers", tuple(self.layers))
        elif isinstance(self.layers, str):
            check_layers(self.layers)

    @property
    def of_pairs_alone(self) -> bool:
        """Whether a file of pairs is patched and nothing else; it has the answers, and no probe is needed."""
        return self.pairs is not None and self.method_names == ("patch",)

    @property
    def method_names(self) -> tuple[str, ...]:
        """The methods, in the order in which they are done."""
        return tuple(self.methods or ())

    @property
    def scale_values(self) -> tuple[float, ...]:
        """The scales of steering, rising."""
        return tuple(float(scale) for scale in self.scales or ())


@dataclass(frozen=True, kw_only=True)
class CausalArguments(CausalOptions):
    """`CausalOptions`, and what only Python can pass."""

    keep: Path | None = option(
        None, "Folder for what is complete of an unfinished run, from which the next one resumes.", flag=None
    )
    progress: bool | None = like(ProgressOptions, "progress")
    on_progress: Callable[[int, int], None] | None = like(PartsOptions, "on_progress")
    on_part: Callable[[str], None] | None = like(PartsOptions, "on_part")


def _check_together(options: CausalOptions) -> None:
    """Refuse an option that no method would read."""
    if options.pairs is not None and "patch" not in options.method_names:
        raise UsageError("pairs (--pairs) are for patching; add patch to --method")
    if options.align != "tokens" and options.pairs is None:
        raise UsageError("align (--align) is for the pairs of a file; name it with --pairs")
    if options.of_pairs_alone and (options.answers is not None or options.answers_label is not None):
        raise UsageError("the file of --pairs has the answers; leave --answers and --answers-label out")
    if options.pairs is not None and options.answer_at is not None:
        raise UsageError("the texts of --pairs end before their answers; leave --answer-at out")
    if options.method_names == ("patch",) and options.neutral is not None:
        raise UsageError("neutral texts (--neutral) are for other methods than patch; add erase to --method")
    if options.method_names == ("patch",) and options.at == "all":
        raise UsageError("patch edits every position of a text by itself; leave out --at all")
    if options.at == "all" and "interchange" in options.method_names:
        raise UsageError(
            "interchange takes the coordinate of one token from another text; with --at all give --method erase,steer"
        )


def _answers(given: Any) -> tuple[str | int, ...] | dict[str | int, float] | None:
    if given is None:
        return None
    if isinstance(given, Mapping):
        if len(given) < 2 or not all(map(is_real, given.values())):
            raise UsageError(f"answers as a dict are word -> number, two or more; got {given!a:.60}")
        return dict(given)
    words = tuple(parse.names(given)) if isinstance(given, str) else tuple(given)
    words = tuple(int(word) if is_whole(word) else word for word in words)
    if len(words) < 2 or not all(type(word) in (str, int) and word != "" for word in words):
        raise UsageError(
            f"answers (--answers) are the next word of each class, such as is,are, or token ids; got {given!a:.60}"
        )
    if len(set(words)) < len(words):
        raise UsageError(f"answers (--answers) must differ between classes; got {given!a:.60}")
    return words


def _readout(given: Any) -> tuple[float, ...] | None:
    each = given.tolist() if hasattr(given, "tolist") else given
    if each is not None and not (isinstance(each, list | tuple) and each and all(map(is_real, each))):
        raise UsageError(f"readout is a vector of numbers, [D]; got {given!a:.60}")
    return None if each is None else tuple(map(float, each))


def _answer_at(given: Any) -> str | int | tuple[int, ...] | None:
    """One token of each text: a selection, an index, or an index for each example."""
    if given is None or is_whole(given):
        return None if given is None else int(given)
    if isinstance(given, str):
        selection = parse_selection(given)
        if selection.pick == "mean" or keeps_several(selection):
            raise UsageError(
                f"a model answers after one token of each text, and --answer-at {given!a:.60} names several; write "
                "last, 3, before:TEXT, ..."
            )
        return as_position(given)
    each = given.tolist() if hasattr(given, "tolist") else given
    if not isinstance(each, list | tuple) or not each or not all(map(is_whole, each)):
        raise UsageError(
            "answer_at (--answer-at) is one token of each text, such as 3 or before:TEXT, or its index in each "
            f"example; got {given!a:.60}"
        )
    return tuple(map(int, each))


def _methods(given: Any, at: str) -> tuple[str, ...]:
    """The methods in their order; by default all but patch, and at all tokens those that can edit them."""
    if given is None:
        return tuple(name for name in DEFAULT_METHODS if at == "read" or name != "interchange")
    names = tuple(parse.names(given)) if isinstance(given, str) else tuple(given)
    known = get_args(CausalMethod)
    for name in names:
        if name not in known:
            raise UsageError(f"unknown method {name!a:.60}; {nearest(str(name), known)}")
    if not names or len(set(names)) < len(names):
        raise UsageError(f"methods (--method) are different names of {listed(known)}; got {given!a:.60}")
    return tuple(name for name in known if name in names)


def _scales(given: Any) -> tuple[float, ...]:
    given = _numbers(given) if isinstance(given, str) else given
    values = DEFAULT_SCALES if given is None else tuple(given) if isinstance(given, Iterable) else (given,)
    if not values or not all(is_real(value) and math.isfinite(value) and value != 0 for value in values):
        raise UsageError(
            f"scales (--scale) are numbers other than 0 (which is the unedited run), such as -2,2; got {given!a:.60}"
        )
    return tuple(sorted({float(value) for value in values}))


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in parse.names(text)]
    except ValueError:
        raise UsageError(f"--scale takes numbers with commas between them, such as -2,2; got {text!r:.80}") from None
