"""`TrainingSpread`: mean and covariance of the training activations of one place, for distances of new ones; its file.

The covariance has K directions with a variance each, and one variance in all others (Tipping and Bishop 1999), of a
covariance that was shrunk as Ledoit and Wolf (2004) do it. So it takes K * D numbers, is invertible however few rows
there were, and is the shrunk covariance itself where D is at most K.

Axes: N rows, D width, K directions.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors
import safetensors.numpy

from probekit.errors import DataError
from probekit.evaluation.results.part_file import read_part
from probekit.plain_files import parse_json

SPREAD_FILE = "training_activations.safetensors"
USUAL = 0.99  # share of held-out rows within the line
_ARRAYS = ("rows", "mean", "directions", "variances", "rest", "held_out")


@dataclass(frozen=True, eq=False)
class TrainingSpread:
    """The distribution of the training activations of one place.

    Attributes:
        place: "resid_pre.5".
        rows: training rows that it was made from.
        mean: float64 [D].
        directions: float32 [K, D], orthonormal.
        variances: float64 [K], of these directions.
        rest: variance in every other direction.
        held_out: float64 [n], rising: the distances of the validation rows; empty without any.
    """

    place: str
    rows: int
    mean: np.ndarray
    directions: np.ndarray
    variances: np.ndarray
    rest: float
    held_out: np.ndarray


def distances(spread: TrainingSpread, X: np.ndarray) -> np.ndarray:
    """The Mahalanobis distance of rows [N, D] from the training activations: float64 [N]."""
    centred, directions = X.astype(np.float64) - spread.mean, spread.directions.astype(np.float64)
    along = centred @ directions.T
    squares = (along**2 / spread.variances).sum(axis=1)
    if len(directions) < centred.shape[1]:
        left = centred - along @ directions  # |x|^2 - |along|^2 would lose what is small in a few huge dimensions
        squares += np.einsum("nd,nd->n", left, left) / spread.rest
    return np.sqrt(squares)


def usual_line(spread: TrainingSpread) -> tuple[float, float] | None:
    """The distance above which a row is unusual, and the highest expected share of rows like the training ones there.

    The line is the distance of a held-out row: of n, with k = ceil((n + 1) * 0.99), the k-th (split conformal; Vovk et
    al. 2005). With fewer than 99 rows it is the largest, and the share is 1 / (n + 1). None without held-out rows.
    """
    n = len(spread.held_out)
    if not n:
        return None
    k = min(n, int(np.ceil((n + 1) * USUAL - 1e-9)))
    return float(spread.held_out[k - 1]), (n + 1 - k) / (n + 1)


def spread_bytes(spread: TrainingSpread) -> bytes:
    """The file's content."""
    arrays = {name: np.array(getattr(spread, name), order="C") for name in _ARRAYS}
    return safetensors.numpy.save(arrays, {"place": spread.place})


def read_spread(folder: Path, sha256: str) -> TrainingSpread:
    """The spread of the results in a folder.

    Raises:
        DataError: a file that is missing, damaged, or not of these results.
    """
    path = folder / SPREAD_FILE
    data = read_part(path, sha256)
    try:
        arrays, place = safetensors.numpy.load(data), str(_metadata(data)["place"])
        K, D = arrays["directions"].shape
        if [arrays[name].shape for name in ("mean", "variances", "rest", "rows")] != [(D,), (K,), (), ()]:
            raise ValueError("shapes that do not agree")
    except (ValueError, LookupError, TypeError, safetensors.SafetensorError) as error:
        raise DataError(
            f"{str(path)!a} does not hold the spread of activations ({error!a:.200}); train again"
        ) from None
    mean, directions, variances, held_out = (arrays[name] for name in ("mean", "directions", "variances", "held_out"))
    return TrainingSpread(place, int(arrays["rows"]), mean, directions, variances, float(arrays["rest"]), held_out)


def _metadata(data: bytes) -> dict[str, str]:
    header = parse_json(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return header["__metadata__"]
