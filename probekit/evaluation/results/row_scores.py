"""`RowScores`: what each place's probe gave for the rows that chose and tested; and `predictions.parquet`, its file.

Axes: N rows, C classes, K outputs of a regression.
"""

import hashlib
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from probekit.errors import DataError
from probekit.evaluation.results.part_file import read_part

ROWS_FILE = "predictions.parquet"
DIGITS = 16  # of the hash of a text: 64 bits, so two of a million texts share one with a chance of 3e-8
PREDICTED = "predicted "  # begins the column of predicted classes
SCORED_SPLITS = ("validation", "test")


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
    """

    ids: np.ndarray
    digests: np.ndarray
    splits: np.ndarray
    labels: np.ndarray
    groups: np.ndarray
    scores: dict[str, np.ndarray] = field(default_factory=dict)
    predicted: dict[str, np.ndarray] = field(default_factory=dict)


def digests_of(inputs: Sequence[Any], has_texts: bool) -> np.ndarray:
    """The digest of each input, a text or a list of token ids: [N]; "" for each where the task has no texts."""
    if not has_texts:
        return np.array([""] * len(inputs), dtype=object)
    known = {id(one): one for one in inputs}  # the tokens of a text share one input
    digests = {key: _digest(one) for key, one in known.items()}
    return np.array([digests[id(one)] for one in inputs], dtype=object)


def row_scores_frame(rows: RowScores) -> Any:
    """The rows as a DataFrame: id, digest, split, label, group, then the scores and predictions of each place."""
    import pandas as pd

    columns: dict[str, Any] = {
        "id": rows.ids,
        "digest": rows.digests,
        "split": rows.splits,
        "label": _cells(rows.labels),
        "group": rows.groups,
    }
    for place, values in rows.scores.items():
        columns[place] = _cells(values)
        if place in rows.predicted:
            columns[PREDICTED + place] = rows.predicted[place]
    return pd.DataFrame(columns)


def row_scores_bytes(rows: RowScores) -> bytes:
    """The rows as a Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    out = io.BytesIO()
    pq.write_table(pa.Table.from_pandas(row_scores_frame(rows), preserve_index=False), out, compression="zstd")
    return out.getvalue()


def read_row_scores(folder: Path, sha256: str) -> RowScores:
    """The rows of the results in a folder.

    Raises:
        DataError: a file that is missing, damaged, or not of these results.
    """
    path = folder / ROWS_FILE
    data = read_part(path, sha256)
    try:
        return _rows_of(data)
    except (ValueError, KeyError, TypeError, OSError, AttributeError) as error:
        raise DataError(f"{str(path)!a} does not hold the rows of results ({error!a:.200}); train again") from None


def _rows_of(data: bytes) -> RowScores:
    import pyarrow as pa
    import pyarrow.parquet as pq

    # A precaution: commands that read this file with Arrow's threads ended now and then with an abort as Python exited.
    table = pq.ParquetFile(pa.BufferReader(data), pre_buffer=False).read(use_threads=False)
    columns = {name: _array(table.column(name)) for name in table.column_names}
    ids, digests, splits, labels, groups = (columns.pop(name) for name in ("id", "digest", "split", "label", "group"))
    if not np.isin(splits.astype(str), SCORED_SPLITS).all():
        raise ValueError("a split that is neither validation nor test")
    predicted = {name.removeprefix(PREDICTED): x for name, x in columns.items() if name.startswith(PREDICTED)}
    scores = {name: x for name, x in columns.items() if not name.startswith(PREDICTED)}
    return RowScores(ids, digests, splits, labels, groups, scores, predicted)


def _array(column: Any) -> np.ndarray:
    """A column as [N], or [N, K] of lists with one length; texts as objects."""
    import pyarrow as pa

    whole = column.combine_chunks()
    if not pa.types.is_list(whole.type):
        return whole.to_numpy(zero_copy_only=False)
    if not len(whole):
        return np.empty((0, 0))
    return whole.flatten().to_numpy(zero_copy_only=False).reshape(len(whole), -1)


def _cells(values: np.ndarray) -> Any:
    return values if values.ndim == 1 else list(values)


def _digest(one: Any) -> str:
    data = one.encode("utf-8", "surrogatepass") if isinstance(one, str) else json.dumps(_plain(one)).encode()
    return hashlib.sha256(data).hexdigest()[:DIGITS]


def _plain(tokens: Any) -> Any:
    return [int(token) for token in tokens]
