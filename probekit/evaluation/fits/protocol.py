"""Which rows teach, which choose and which judge: the task's splits, or nested folds of all rows.

Both have one form. Each *round* holds rows out and judges on them once; what is fitted for it, the choice of C and of
the layer too, sees no row of its test part. The splits are one round, k nested folds (Stone 1974; Varma and Simon 2006)
are k: in each, the other k - 1 folds take turns as the validation part.

Axes: N examples.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import connected_components
from sklearn.model_selection import GroupKFold, KFold, StratifiedGroupKFold, StratifiedKFold

from probekit.errors import DataError
from probekit.tasks.base import SPLITS, Task
from probekit.tasks.quality.duplicates import Inputs, near_pairs
from probekit.tasks.splits import components


@dataclass(frozen=True, eq=False)
class Round:
    """One part of the rows that judges, and what is fitted for it.

    Attributes:
        mask: which of the protocol's masks the judged probe is fitted on.
        test: int64, the rows that judge.
        choosers: (mask, int64 rows): what is fitted on the mask is scored on the rows, and the mean chooses.
    """

    mask: int
    test: np.ndarray
    choosers: list[tuple[int, np.ndarray]]


@dataclass(frozen=True, eq=False)
class Protocol:
    """All fits that a layer needs, and what each is asked.

    Attributes:
        masks: float64 [N] each, 1 for the rows that are fitted.
        rounds: one, or one a fold.
        final: which mask the probe that is kept is fitted on.
        rows: split -> int64 rows that stand in it; with folds "test" alone, which is all of them.
        folds: how many, or None.
    """

    masks: list[np.ndarray]
    rounds: list[Round]
    final: int
    rows: dict[str, np.ndarray]
    folds: int | None = None

    @property
    def test(self) -> np.ndarray:
        """The rows of all rounds, in the order in which predictions are pooled."""
        return np.concatenate([each.test for each in self.rounds])

    @property
    def choosers(self) -> list[tuple[int, np.ndarray]]:
        """Those of all rounds."""
        return [chooser for each in self.rounds for chooser in each.choosers]

    @property
    def used(self) -> np.ndarray:
        """The rows that anything is fitted on; no other row comes near a fit."""
        return np.flatnonzero(np.any(self.masks, axis=0))

    @property
    def taught(self) -> np.ndarray:
        """The rows that the probe that is kept is fitted on."""
        return np.flatnonzero(self.masks[self.final])


def of_splits(splits: np.ndarray, kept: np.ndarray) -> Protocol:
    """Fit on train, choose on validation, judge on test; of the rows [N] that are kept."""
    rows = {split: np.flatnonzero((splits == split) & kept) for split in SPLITS}
    mask = ((splits == "train") & kept).astype(np.float64)
    return Protocol([mask], [Round(0, rows["test"], [(0, rows["validation"])])], 0, rows)


def of_folds(labels: np.ndarray, together: np.ndarray, kept: np.ndarray, folds: int, seed: int) -> Protocol:
    """Nested folds over all rows that are kept.

    Args:
        labels: int64 [N], folds get each class's share; float64 for a regression.
        together: int64 [N]; rows of one number stand in one fold.
        kept: bool [N].
        folds: 3 or more: one tests, one chooses, the rest are fitted.
        seed: of the folds.

    Raises:
        DataError: fewer groups of rows than folds.
    """
    rows = np.flatnonzero(kept)
    parts = _parts(labels[rows], together[rows], folds, seed)
    parts = [rows[part] for part in parts]
    masks: list[np.ndarray] = []

    def mask_without(*left_out: int) -> int:
        mask = kept.astype(np.float64)
        mask[np.concatenate([np.empty(0, dtype=np.int64), *(parts[i] for i in left_out)])] = 0
        masks.append(mask)
        return len(masks) - 1

    pairs = {frozenset((i, j)): mask_without(i, j) for i in range(folds) for j in range(i)}
    rounds = [
        Round(mask_without(i), parts[i], [(pairs[frozenset((i, j))], parts[j]) for j in range(folds) if j != i])
        for i in range(folds)
    ]
    return Protocol(masks, rounds, mask_without(), {"test": rows}, folds)


def check_taught(protocol: Protocol, labels: np.ndarray, names: Sequence[str], label: str) -> None:
    """Whether there is something to learn in everything that is fitted: every class, or numbers that vary.

    Args:
        protocol: of folds.
        labels: int64 [N], or float64 [N] where there are no names.
        names: of the classes; none for a regression.
        label: the label set's name.

    Raises:
        DataError: a class and the fold whose training part lacks it; labels out of range; a constant target.
    """
    own = labels[protocol.rows["test"]]
    if not names:
        if not np.isfinite(own).all() or any(np.ptp(labels[mask > 0]) == 0 for mask in protocol.masks):
            raise DataError(f"{label!a} must be finite and vary in every training part; leave other examples out")
        return
    if own.min() < 0 or own.max() >= len(names):
        raise DataError(f"labels of {label!a} must be 0..{len(names) - 1}, got {own.min()}..{own.max()}")
    present = [np.bincount(labels[mask > 0], minlength=len(names)) > 0 for mask in protocol.masks]
    for number, each in enumerate(protocol.rounds, 1):
        there = np.all([present[mask] for mask in [each.mask, *(mask for mask, _ in each.choosers)]], axis=0)
        if not there.all():
            k = int(there.argmin())
            raise DataError(
                f"class {names[k]!a} of {label!a} is missing from a training part of fold {number} (it has "
                f"{(own == k).sum()} rows in all; equal texts and groups stay together); take fewer folds, add "
                "examples, or merge rare classes"
            )


def rows_together(inputs: Sequence[str | list[int]], groups: np.ndarray | None) -> np.ndarray:
    """Rows that may not be parted, for they are of one group or of one text: equal numbers, int64 [N].

    Texts are one when they are equal, or near duplicates, as `evaluation.duplicates` and the audit have it.
    """
    found = Inputs.of(inputs)
    shingles = found.shingles()
    one, other, _ = near_pairs(shingles, np.arange(shingles.shape[0]))
    links = sparse.coo_array((np.ones(len(one)), (one, other)), shape=(shingles.shape[0],) * 2)
    texts = connected_components(links, directed=False)[1][found.number].tolist()
    return components(texts) if groups is None else components(texts, groups.tolist())


def drawn_together(task: Task) -> np.ndarray | None:
    """Rows that depend on each other, and are resampled together: equal numbers or names, [N]; None: there are none.

    They are the groups. Without groups, where each row is read at a token of its own, they are the rows of one text.
    """
    if task.groups is not None or isinstance(task.position, str) or task.info.get("no_texts"):
        return task.groups
    number = Inputs.of(task.inputs).number
    return number if len(np.unique(number)) < len(number) else None


def _parts(labels: np.ndarray, together: np.ndarray, folds: int, seed: int) -> list[np.ndarray]:
    n_units = len(np.unique(together))
    if n_units < folds:
        raise DataError(f"{folds} folds need {folds} rows or groups of rows at the least; there are {n_units}")
    by_group = n_units < len(together)
    if labels.dtype.kind == "f":
        how = GroupKFold if by_group else KFold
    else:
        how = StratifiedGroupKFold if by_group else StratifiedKFold
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The least populated class", UserWarning)  # `check_classes` says which
        try:
            splitter = how(n_splits=folds, shuffle=True, random_state=seed)
            return [test for _, test in splitter.split(labels, labels, together if by_group else None)]
        except ValueError as error:
            raise DataError(
                f"{len(labels)} rows of {n_units} texts or groups make no {folds} folds ({error}); take fewer folds"
            ) from None
