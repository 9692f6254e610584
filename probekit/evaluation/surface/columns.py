"""The columns of examples that are no label: kept ones, other label sets, and those that are computed from the text.

A probe may be reading them instead of the label (nuisances), and they divide the rows (`values.py`).

Axes: N examples, V numbers of a column.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from probekit.activations.activations import Activations
from probekit.errors import DataError, UsageError, nearest
from probekit.evaluation.compare.baseline_fits import standardised
from probekit.evaluation.compare.lengths import length_features, with_squares
from probekit.evaluation.fits.protocol import Protocol
from probekit.evaluation.surface.residual import basis_of
from probekit.tasks.chats.messages import compared_inputs
from probekit.tasks.token_labels import no_label
from probekit.text import listed

LENGTH = "length"
MOST_COUNTED = 10  # different numbers in train up to which each is a category: a superset of the linear effect
MOST_CATEGORIES = 100
MOST_RANK = 0.5  # of the training rows; each independent column takes one degree of freedom from the activations
LEAST_ROWS = 2  # in train for a category of its own; rarer ones share one
MISSING = "(missing)"


@dataclass(frozen=True, eq=False)
class Nuisance:
    """Nuisance columns as a probe reads them.

    Attributes:
        names: as they were asked for.
        features: one-hot categories and numbers with mean 0 and spread 1 on the training rows, float64 [N, V].
        sizes: name -> how many of the V.
        rank: how many of the V are linearly independent on the training rows.
    """

    names: list[str]
    features: np.ndarray
    sizes: dict[str, int]
    rank: int


def nuisance_columns(acts: Activations, names: Sequence[str], label: str, protocol: Protocol) -> Nuisance:
    """The named columns of the examples.

    Args:
        acts: one row for each example.
        names: "length", "tokens", "position", kept columns, or other label sets.
        label: the label set that is predicted.
        protocol: whose final training rows categories, means and spreads are taken from; no label takes part, so with
            folds these may be all rows.

    Raises:
        UsageError: a name that is not there, the label itself, or a column of too many categories.
        DataError: the length of inputs that have no texts; a column with one value in train; nearly as many
            independent columns as training rows.
    """
    train = protocol.train
    parts = {name: standardised(_part(acts, name, label, train), train) for name in names}
    parts = {name: part[:, part[train].any(axis=0)] for name, part in parts.items()}
    if constant := [name for name, part in parts.items() if not part.shape[1]]:
        raise DataError(
            f"{constant[0]!a:.80} has one value in all {len(train):,} training rows, so it predicts nothing; leave it "
            "out (--nuisance)"
        )
    features = np.concatenate(list(parts.values()), axis=1)
    rank = basis_of(features, train).shape[1]
    fewest = min(int(mask.sum()) for mask in protocol.masks)
    if rank > fewest * MOST_RANK:
        raise DataError(
            f"the nuisances have {rank:,} independent columns for {fewest:,} training rows, so regressing them out "
            "leaves too little to train on; name fewer, join categories, or add rows"
        )
    return Nuisance(list(names), features, {name: part.shape[1] for name, part in parts.items()}, rank)


def _part(acts: Activations, name: str, label: str, train: np.ndarray) -> np.ndarray:
    if is_computed(acts, name):
        if name == LENGTH and acts.task.has_texts:  # in characters, words and sentences
            return with_squares(length_features(compared_inputs(acts.task), acts.layout.own_lengths), train)
        return with_squares(np.log1p(COMPUTED[name](acts, train)[:, None]), train)
    values = column_values(acts, name, label)
    if values.dtype == np.float64:
        present = values[train][~np.isnan(values[train])]
        if len(np.unique(present)) > MOST_COUNTED:
            missing = np.isnan(values)
            filled = np.where(missing, present.mean(), values)
            return np.stack([filled, missing.astype(np.float64)], axis=1)
    return _one_hot(categories(values), name, train)


def is_computed(acts: Activations, name: str) -> bool:
    """Whether a column is computed here: a kept column of the same name goes first."""
    return name not in acts.task.columns and name in COMPUTED


def _words(acts: Activations, _: np.ndarray) -> np.ndarray:
    if not acts.task.has_texts:
        raise DataError(f"these activations have no texts, so their {LENGTH} is unknown; name kept columns instead")
    return np.array([len(one.split()) if isinstance(one, str) else len(one) for one in compared_inputs(acts.task)])


def _tokens(acts: Activations, _: np.ndarray) -> np.ndarray:
    return acts.layout.own_lengths


def _position(acts: Activations, _: np.ndarray) -> np.ndarray:
    index = acts.layout.token_index
    index = acts.task.position if index is None and acts.task.text_of is not None else index
    if not isinstance(index, np.ndarray) or len(index) != acts.n_examples or (index < 0).any():
        raise UsageError("it is not known where in its text each token is (position); leave it out, or extract again")
    return index


def _frequency(acts: Activations, train: np.ndarray) -> np.ndarray:
    read = acts.task.words if acts.task.words is not None else acts.layout.tokens
    if read is None or len(read) != acts.n_examples or (isinstance(read, np.ndarray) and (read < 0).any()):
        raise UsageError("it is not known which token each row is of (frequency); read one token, or extract again")
    types = list(read)
    counts = Counter(types[row] for row in train)
    return np.array([counts[one] for one in types])


COMPUTED: dict[str, Callable[[Activations, np.ndarray], np.ndarray]] = {
    LENGTH: _words,  # of the text
    "tokens": _tokens,  # of the text
    "position": _position,  # of the token that is read
    "frequency": _frequency,  # how often the token or word that is read is read in the training rows
}
"""Columns that are computed: (activations, training rows) -> a number for each example, [N]."""

OF_TOKENS = ("position", "frequency")  # of the token that is read; the others are of its text


def column_values(acts: Activations, name: str, label: str) -> np.ndarray:
    """A column that the task keeps, or another label set: numbers float64 [N], or categories [N] with None.

    Raises:
        UsageError: there is none of this name, or it is the label itself.
    """
    task = acts.task
    if name in task.columns:
        return task.columns[name]
    if name == label:
        raise UsageError(f"{name!a} is the label that is predicted; name another column")
    if name in task.labels and task.labels[name].ndim == 1:
        values = task.labels[name]
        if not task.label_names[name]:
            return values.astype(np.float64)
        found = np.array([*task.label_names[name], None], dtype=object)
        return found[np.where(no_label(values), -1, values)]
    known = [*task.columns, *(one for one, own in task.labels.items() if one != label and own.ndim == 1)]
    there = f"there are {listed([ascii(one) for one in known])}" if known else "it keeps none"
    near = nearest(name, [ascii(one) for one in known]) if known else ""
    hint = f"{near.removesuffix('?')}, or " if near.startswith("did you mean") else ""
    raise UsageError(
        f"{task.name!a} has no column {name!a:.80}, {there} (and {listed(COMPUTED)}); {hint}extract again with "
        "--keep-columns, or join it: probekit label STORE FILE --label-column NAME"
    )


def categories(values: np.ndarray) -> np.ndarray:
    """The category of each value as text, [N]: numbers as they are written, and `MISSING` where there is none."""
    if values.dtype == np.float64:
        known = np.unique(values[~np.isnan(values)]).tolist()
        names = dict(zip(known, number_names(known), strict=True))
        return np.array([MISSING if value != value else names[value] for value in values.tolist()], dtype=object)
    return np.array([MISSING if value is None else value for value in values.tolist()], dtype=object)


def number_names(numbers: Sequence[float]) -> list[str]:
    """Different numbers with as few digits as tell them apart, six at least."""
    for digits in range(6, 17):
        names = [f"{number:.{digits}g}" for number in numbers]
        if len(set(names)) == len(names):
            return names
    return [repr(number) for number in numbers]


def _one_hot(values: np.ndarray, name: str, train: np.ndarray) -> np.ndarray:
    """A column of 0 and 1 for each category of train, [N, V]; rare ones share one.

    A category that train lacks joins the rare ones, or gets the mean of the training rows if none is rare.
    """
    counts = Counter(values[train].tolist())
    if len(counts) > MOST_CATEGORIES:
        raise UsageError(
            f"the column {name!a:.80} has {len(counts):,} different values in train, and a nuisance at most "
            f"{MOST_CATEGORIES}; join some of them, or use a column of numbers"
        )
    own = sorted(value for value, n in counts.items() if n >= LEAST_ROWS)
    number = {value: k for k, value in enumerate(own)}
    codes = np.array([number.get(value, len(own)) for value in values.tolist()], dtype=np.int64)
    out = (codes[:, None] == np.arange(len(own) + 1)).astype(np.float64)
    if len(own) == len(counts):
        out[codes == len(own)] = out[train].mean(axis=0)
    return out
