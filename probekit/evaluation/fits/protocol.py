"""Which rows are fitted, which choose and which test: the task's splits, or nested folds over all rows.

Both have one form. Each *round* holds out rows and tests on them once; nothing that is fitted or chosen for it, C and
layer included, sees its test rows. The splits are one round. Nested folds (Stone 1974; Varma and Simon 2006) are k
rounds: in each, the other k - 1 folds take turns as the validation part.

Axes: N examples.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from probekit.errors import DataError
from probekit.tasks.base import SPLITS
from probekit.text import counted


@dataclass(frozen=True, eq=False)
class Round:
    """One set of test rows, and what is fitted and chosen for them.

    Attributes:
        mask: number of the protocol's mask that the tested probe is fitted on.
        test: int64, the test rows.
        choosers: (mask, part) pairs: the fit on the mask is scored on the validation part; the mean over pairs chooses.
            None where there is nothing to choose from.
    """

    mask: int
    test: np.ndarray
    choosers: list[tuple[int, int]]


@dataclass(frozen=True, eq=False)
class Protocol:
    """The rounds, and the masks that they share.

    Attributes:
        masks: float64 [N] each, 1 for the rows that are fitted.
        parts: int64 rows of each validation part.
        rounds: one for splits, one per fold for folds.
        final: number of the mask that the saved probe is fitted on.
        rows: split -> int64 rows, without a validation split that has none; with folds only "test", which is all rows.
        folds: how many, or None for splits.
    """

    masks: list[np.ndarray]
    parts: list[np.ndarray]
    rounds: list[Round]
    final: int
    rows: dict[str, np.ndarray]
    folds: int | None = None

    @property
    def test(self) -> np.ndarray:
        """The test rows of all rounds, in the order in which predictions are pooled."""
        return np.concatenate([each.test for each in self.rounds])

    @property
    def choosers(self) -> list[tuple[int, int]]:
        """The choosers of all rounds."""
        return [chooser for each in self.rounds for chooser in each.choosers]

    @property
    def chooses(self) -> bool:
        """Whether any rows choose; without them there is one setting, and no layer is selected."""
        return bool(self.parts)

    @property
    def fitted(self) -> np.ndarray:
        """The rows of any mask; no other row takes part in a fit."""
        return np.flatnonzero(np.any(self.masks, axis=0))

    @property
    def train(self) -> np.ndarray:
        """The rows that the saved probe is fitted on."""
        return np.flatnonzero(self.masks[self.final])


def split_protocol(splits: np.ndarray, kept: np.ndarray) -> Protocol:
    """Fit on train, choose on validation if it has rows, test on test; only the rows [N] that are kept."""
    rows = {split: np.flatnonzero((splits == split) & kept) for split in SPLITS}
    rows = {split: which for split, which in rows.items() if len(which) or split != "validation"}
    mask = ((splits == "train") & kept).astype(np.float64)
    parts = [rows["validation"]] if "validation" in rows else []
    choosers = [(0, part) for part in range(len(parts))]
    return Protocol([mask], parts, [Round(0, rows["test"], choosers)], 0, rows)


def fold_protocol(labels: np.ndarray, linked: np.ndarray, folds: int, seed: int) -> Protocol:
    """Nested folds over all rows.

    Args:
        labels: int64 [N], stratified over the folds; float64 for a regression.
        linked: int64 [N]; rows with equal numbers share a fold.
        folds: 3 or more: one tests, one chooses, the rest are fitted.
        seed: of the folds.

    Raises:
        DataError: fewer groups of rows than folds.
    """
    return nested_protocol(fold_rows(labels, linked, folds, seed), len(labels))


def nested_protocol(parts: Sequence[np.ndarray], n: int) -> Protocol:
    """Nested folds over `n` rows; `parts` are the rows of each fold."""
    folds = len(parts)
    masks: list[np.ndarray] = []

    def mask_without(*left_out: int) -> int:
        mask = np.ones(n)
        for i in left_out:
            mask[parts[i]] = 0
        masks.append(mask)
        return len(masks) - 1

    pairs = {frozenset((i, j)): mask_without(i, j) for i in range(folds) for j in range(i)}
    rounds = [
        Round(mask_without(i), parts[i], [(pairs[frozenset((i, j))], j) for j in range(folds) if j != i])
        for i in range(folds)
    ]
    return Protocol(masks, list(parts), rounds, mask_without(), {"test": np.arange(n)}, folds)


def check_masks(protocol: Protocol, labels: np.ndarray, names: Sequence[str], label: str) -> None:
    """Check that every mask has something to learn: all classes, or numbers that vary.

    Args:
        protocol: with folds.
        labels: int64 [N], or float64 [N] where there are no names.
        names: class names; none for a regression.
        label: name of the label set.

    Raises:
        DataError: a class and the fold whose training part lacks it; labels out of range; a constant target.
    """
    own = labels[protocol.rows["test"]]
    if not names:
        if not np.isfinite(own).all() or any((np.ptp(labels[mask > 0], axis=0) == 0).any() for mask in protocol.masks):
            raise DataError(
                f"the values of {label!a} must be finite and vary in the training part of every fold; leave other "
                "values out"
            )
        return
    if own.min() < 0 or own.max() >= len(names):
        raise DataError(
            f"labels of {label!a} must be 0..{len(names) - 1}, got {own.min()}..{own.max()}; leave unlabelled "
            "examples out"
        )
    present = [np.bincount(labels[mask > 0], minlength=len(names)) > 0 for mask in protocol.masks]
    for number, each in enumerate(protocol.rounds, 1):
        complete = np.all([present[mask] for mask in [each.mask, *(mask for mask, _ in each.choosers)]], axis=0)
        if not complete.all():
            k = int(complete.argmin())
            raise DataError(
                f"class {names[k]!a} of {label!a} is missing from a training part of fold {number} (it has "
                f"{counted(int((own == k).sum()), 'row')} in all; equal texts and groups share a fold); take fewer "
                "folds, add "
                "examples, or merge rare classes"
            )


def fold_rows(labels: np.ndarray, linked: np.ndarray, folds: int, seed: int) -> list[np.ndarray]:
    """The rows of each fold, [folds]; rows with equal numbers in `linked` share one, and classes are stratified."""
    from sklearn.model_selection import GroupKFold, KFold, StratifiedGroupKFold, StratifiedKFold

    n_units = len(np.unique(linked))
    if n_units < folds:
        raise DataError(f"{folds} folds need at least {folds} rows or groups of rows, got {n_units}; take fewer folds")
    by_group = n_units < len(linked)
    if labels.dtype.kind == "f":
        splitter_class = GroupKFold if by_group else KFold
    else:
        splitter_class = StratifiedGroupKFold if by_group else StratifiedKFold
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The least populated class", UserWarning)  # `check_masks` says which
        try:
            splitter = splitter_class(n_splits=folds, shuffle=True, random_state=seed)
            return [test for _, test in splitter.split(labels, labels, linked if by_group else None)]
        except ValueError as error:
            raise DataError(
                f"{len(labels):,} rows of {n_units:,} texts or groups cannot be divided into {folds} folds ({error}); "
                "take fewer folds"
            ) from None
