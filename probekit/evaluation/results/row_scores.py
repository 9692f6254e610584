"""`RowScores`: what each place's probe gave for the rows that chose and tested; and `predictions.parquet`, its file.

Axes: N rows, C classes, K outputs of a regression.
"""

import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from probekit.evaluation.results.arrays import check_array
from probekit.evaluation.scores.alarms import Rises
from probekit.files.records import Unfit, describing, ensure
from probekit.results.files import read_part
from probekit.tasks.fields import LISTS, NUMBERS, TEXTS, RaggedRows, to_arrow
from probekit.text import listed, printable, utf8_text

ROWS_FILE = "predictions.parquet"
DIGITS = 16  # of the hash of a text: 64 bits, so two of a million texts share one with a chance of 3e-8
PREDICTED = "predicted "  # begins the column of predicted classes
BASELINE = "baseline "  # begins the column of a black box's scores
TOKENS = "tokens"  # how many each row's text has, where running scores are kept
RISES_AT, RISES_TO = "rises at ", "rises to "  # begin the columns of the rises of running scores: tokens, and maxima
TOKENS_OF = "tokens of "  # begins the column of the tokens that a black box read
SCORED_SPLITS = ("validation", "test")
MOST_PER_BYTE = 100  # values that a byte of the file may stand for; the id of a row takes about one byte


@dataclass(frozen=True, eq=False)
class RowScores:
    """The rows that chose and those that tested, with the score that the probe of each place gave them.

    With nested folds there are "test" rows only, each scored by the probes of the fold that held it out; these scores
    are standardised within the fold.

    Attributes:
        ids: [N], of the examples.
        digests: [N], the first 16 hex digits of the sha256 of the row's text or token ids; "" where there are none.
        splits: [N], "validation" or "test".
        labels: int64 [N], the class; float64 [N] or [N, K] of a regression.
        groups: int64 [N]; rows with equal numbers are resampled together.
        scores: place, such as "resid_pre.5" -> float64 [N] for two classes (higher means the second), [N, C] for more;
            the predicted values [N] or [N, K] of a regression.
        predicted: place -> int64 [N], the predicted class; empty for a regression.
        baselines: name of a black box -> its calibrated log odds, as those of a place; values of a regression.
        rises: place -> where the running score of each row's text rises to a new maximum; only of probes of two classes
            over a sequence, whose rows validation chose.
        tokens: name of a black box -> int64 [N], the tokens that it read for each row, where that is known; empty in
            results of older versions.
    """

    ids: np.ndarray
    digests: np.ndarray
    splits: np.ndarray
    labels: np.ndarray
    groups: np.ndarray
    scores: dict[str, np.ndarray] = field(default_factory=dict)
    predicted: dict[str, np.ndarray] = field(default_factory=dict)
    baselines: dict[str, np.ndarray] = field(default_factory=dict)
    rises: dict[str, Rises] = field(default_factory=dict)
    tokens: dict[str, np.ndarray] = field(default_factory=dict)


def digests_of(inputs: Sequence[Any], has_texts: bool) -> np.ndarray:
    """The digest of each input, a text or a list of token ids: [N]; "" for each where the task has no texts."""
    if not has_texts:
        return np.array([""] * len(inputs), dtype=object)
    known = {id(one): one for one in inputs}  # the tokens of a text share one input
    digests = {key: _digest(one) for key, one in known.items()}
    return np.array([digests[id(one)] for one in inputs], dtype=object)


def row_scores_bytes(rows: RowScores) -> bytes:
    """The rows as a Parquet file: id, digest, split, label, group, then the scores and predictions of each place.

    Of running scores the number of tokens, and for each place a list of tokens and one of scores.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {"id": to_arrow(TEXTS, [utf8_text(one) for one in rows.ids]), "digest": to_arrow(TEXTS, rows.digests)}
    columns |= {"split": to_arrow(TEXTS, rows.splits), "label": _numbers(rows.labels), "group": _numbers(rows.groups)}
    for place, values in rows.scores.items():
        columns[place] = _numbers(values)
        if place in rows.predicted:
            columns[PREDICTED + place] = _numbers(rows.predicted[place])
    columns |= {BASELINE + name: _numbers(values) for name, values in rows.baselines.items()}
    for place, rises in rows.rises.items():
        ends = np.concatenate([[0], np.cumsum(rises.counts)])
        columns[TOKENS] = _numbers(rises.lengths)
        columns[RISES_AT + place] = to_arrow(LISTS, RaggedRows(rises.tokens, ends))
        columns[RISES_TO + place] = to_arrow(LISTS, RaggedRows(rises.scores, ends))
    columns |= {TOKENS_OF + name: _numbers(values) for name, values in rows.tokens.items()}
    out = io.BytesIO()
    table = pa.Table.from_arrays([*columns.values()], names=[*columns])
    pq.write_table(table, out, compression="zstd")
    return out.getvalue()


def read_row_scores(
    folder: Path, sha256: str, places: Sequence[str], sizes: Mapping[str, int], n_classes: int
) -> RowScores:
    """The rows of the results in a folder.

    Args:
        folder: where they are.
        sha256: of the file.
        places: of the curve; each has its scores.
        sizes: split -> rows, of those of `SCORED_SPLITS` that there are.
        n_classes: C; 0 for a regression.

    Raises:
        DataError: a file that is missing, damaged, or not of these results.
    """
    path = folder / ROWS_FILE
    data = read_part(path, sha256)
    with describing(path, "train again"):
        rows = _rows_of(_columns_of(data), places, n_classes)
        found = {split: int((rows.splits == split).sum()) for split in SCORED_SPLITS}
        ensure(found == {split: sizes.get(split, 0) for split in SCORED_SPLITS}, _sizes_text(sizes), found, "split")
    return rows


def _sizes_text(sizes: Mapping[str, int]) -> str:
    return " and ".join(f"{sizes.get(split, 0):,} rows of {split}" for split in SCORED_SPLITS)


def _columns_of(data: bytes) -> dict[str, Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # A precaution: commands that read this file with Arrow's threads ended now and then with an abort as Python
        # exited. A text that many rows share is read once.
        schema = pq.read_schema(pa.BufferReader(data))
        shared = [column.name for column in schema if pa.types.is_string(column.type)]
        file = pq.ParquetFile(pa.BufferReader(data), pre_buffer=False, read_dictionary=shared)
        groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
        values = sum(group.column(j).num_values for group in groups for j in range(group.num_columns))
        most = MOST_PER_BYTE * len(data)
        ensure(max(values, file.metadata.num_rows) <= most, f"at most {most:,} values in such a file", values)
        table = file.read(use_threads=False)
        ensure(len(set(table.column_names)) == table.num_columns, "each column once", table.column_names)
        return {name: _array(table.column(name), name) for name in table.column_names}
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise Unfit("a Parquet file that can be read", printable(error)) from None


def _rows_of(columns: dict[str, Any], places: Sequence[str], n_classes: int) -> RowScores:
    for name in ("id", "digest", "split", "label", "group"):
        ensure(name in columns, "a column of this name", sorted(columns), name)
    ids, digests, splits, labels, groups = (columns.pop(name) for name in ("id", "digest", "split", "label", "group"))
    for name, texts in (("id", ids), ("digest", digests), ("split", splits)):
        ensure(texts.dtype == object and all(isinstance(one, str) for one in texts), "texts", texts.dtype.name, name)
    ensure(np.isin(splits.astype(str), SCORED_SPLITS).all(), "validation or test", sorted({*splits})[:3], "split")
    check_array(groups, "i", "group", groups.shape[:1])
    N, shape = len(labels), labels.shape
    if n_classes:
        _check_classes(labels, n_classes, N, "label")
        shape = (N,) if n_classes == 2 else (N, n_classes)
    else:
        check_array(labels, "fi", "label")
        labels = labels.astype(np.float64)
    rises = _rises_of(columns, places, N, n_classes)
    predicted = {name.removeprefix(PREDICTED): x for name, x in columns.items() if name.startswith(PREDICTED)}
    baselines = {name.removeprefix(BASELINE): x for name, x in columns.items() if name.startswith(BASELINE)}
    tokens = {name.removeprefix(TOKENS_OF): x for name, x in columns.items() if name.startswith(TOKENS_OF)}
    scores = {name: x for name, x in columns.items() if not name.startswith((PREDICTED, BASELINE, TOKENS_OF))}
    ensure(set(scores) == set(places), f"columns of the places {listed(places, most=4)}", sorted(scores))
    ensure(set(predicted) == set(places if n_classes else ()), "predicted classes of each place", sorted(predicted))
    for name, x in (*scores.items(), *((BASELINE + name, x) for name, x in baselines.items())):
        check_array(x, "f", name, shape)
    for place, x in predicted.items():
        _check_classes(x, n_classes, N, PREDICTED + place)
    ensure(set(tokens) <= set(baselines), "tokens of black boxes that have scores", sorted(tokens))
    for name, x in tokens.items():
        check_array(x, "i", TOKENS_OF + name, (N,))
    return RowScores(ids, digests, splits, labels, groups, scores, predicted, baselines, rises, tokens)


def _rises_of(columns: dict[str, Any], places: Sequence[str], N: int, n_classes: int) -> dict[str, Rises]:
    """The rises of each place, whose columns are taken out; none where no running scores were kept."""
    own = {name: columns.pop(name) for name in list(columns) if name.startswith((RISES_AT, RISES_TO))}
    if TOKENS not in columns:
        ensure(not own, f"the column {TOKENS}", sorted(own)[:2])
        return {}
    lengths = columns.pop(TOKENS)
    check_array(lengths, "i", TOKENS, (N,))
    ensure(n_classes == 2, "running scores of two classes only", n_classes, TOKENS)
    wanted = {prefix + place for place in places for prefix in (RISES_AT, RISES_TO)}
    ensure(set(own) == wanted, f"the rises at the places {listed(places, most=4)}", sorted(own)[:4])
    return {place: _rises(own[RISES_AT + place], own[RISES_TO + place], lengths, place) for place in places}


def _rises(at: Any, to: Any, lengths: np.ndarray, place: str) -> Rises:
    """The rises of one place, if tokens and scores rise within each text from its first token on."""
    for rows, kinds, name in ((at, "i", RISES_AT + place), (to, "f", RISES_TO + place)):
        ensure(isinstance(rows, RaggedRows), "a list in each row", type(rows).__name__, name)
        check_array(rows.numbers, kinds, name, rows.numbers.shape[:1])
        ensure(len(rows.offsets) == len(lengths) + 1, f"{len(lengths):,} lists", len(rows.offsets) - 1, name)
        ensure(np.array_equal(rows.offsets, at.offsets), "as many scores as tokens", "other lists", name)
        later = np.ones(len(rows.numbers), dtype=bool)
        counts = np.diff(rows.offsets)
        ensure((counts > 0).all(), "a rise in each text", "an empty list", name)
        later[rows.offsets[:-1]] = False
        rising = np.diff(rows.numbers, prepend=rows.numbers[:1]) > 0
        ensure(rising[later].all(), "numbers that rise in each list", "others", name)
    ensure((at.numbers[at.offsets[:-1]] == 0).all(), "a first rise at token 0", "another", RISES_AT + place)
    last = at.numbers[at.offsets[1:] - 1]
    ensure((last < lengths).all(), "tokens of the text", "later ones", RISES_AT + place)
    return Rises(lengths, np.diff(at.offsets), at.numbers, to.numbers)


def _check_classes(x: np.ndarray, n_classes: int, N: int, name: str) -> None:
    check_array(x, "i", name, (N,))
    wrong = x[(x < 0) | (x >= n_classes)]
    ensure(not len(wrong), f"classes from 0 to {n_classes - 1}", wrong[:3].tolist(), name)


def _array(column: Any, name: str) -> Any:
    """A column as [N], or [N, K] of lists with one length; texts as objects, and lists of rises as `RaggedRows`."""
    import pyarrow as pa

    whole = column.combine_chunks()
    ensure(not whole.null_count, "a value in every row", f"{whole.null_count:,} rows without", name)
    if pa.types.is_dictionary(whole.type):
        whole = whole if isinstance(whole, pa.DictionaryArray) else whole.unify_dictionaries().combine_chunks()
        return np.array(whole.dictionary.to_pylist(), dtype=object)[whole.indices.to_numpy(zero_copy_only=False)]
    if not pa.types.is_list(whole.type):
        return whole.to_numpy(zero_copy_only=False)
    if not len(whole):
        return np.empty((0, 0))
    if name.startswith((RISES_AT, RISES_TO)):
        ends = np.cumsum(whole.value_lengths().to_numpy(zero_copy_only=False).astype(np.int64))
        numbers = whole.flatten()
        ensure(not numbers.null_count, "numbers in every list", f"{numbers.null_count:,} without", name)
        return RaggedRows(numbers.to_numpy(zero_copy_only=False), np.concatenate([[0], ends]))
    lengths, values = whole.value_lengths().unique().to_pylist(), whole.flatten()
    ensure(len(lengths) == 1 and not values.null_count, "lists of one length", lengths[:4], name)
    return values.to_numpy(zero_copy_only=False).reshape(len(whole), -1)


def _numbers(values: np.ndarray) -> Any:
    """A column of numbers [N], or of lists of K numbers."""
    if values.ndim == 1:
        return to_arrow(NUMBERS, values)
    return to_arrow(LISTS, RaggedRows(values.reshape(-1), np.arange(len(values) + 1) * values.shape[1]))


def _digest(one: Any) -> str:
    data = one.encode("utf-8", "surrogatepass") if isinstance(one, str) else json.dumps(_plain(one)).encode()
    return hashlib.sha256(data).hexdigest()[:DIGITS]


def _plain(tokens: Any) -> Any:
    return [int(token) for token in tokens]
