"""`TrainingSpread`: mean and covariance of the training activations of one place, for distances of new ones; its file.

The covariance has K directions with a variance each, and one variance in all others (Tipping and Bishop 1999), of a
covariance that was shrunk as Ledoit and Wolf (2004) do it. So it takes K * D numbers, is invertible however few rows
there were, and is the shrunk covariance itself where D is at most K.

Axes: N rows, D width, K directions.
"""

import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors
import safetensors.numpy

from probekit.evaluation.results.arrays import check_array
from probekit.files.records import Unfit, describing, ensure
from probekit.files.safetensors_header import read_header
from probekit.results.files import read_part

SPREAD_FILE = "training_activations.safetensors"
ORTHONORMAL = 0.1  # of the products of two directions; those of little variance are computed from small differences
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


def read_spread(folder: Path, sha256: str, widths: Mapping[str, int | None]) -> TrainingSpread:
    """The spread of the results in a folder.

    Args:
        folder: where they are.
        sha256: of the file.
        widths: place -> the width of its activations; None where it is not known.

    Raises:
        DataError: a file that is missing, damaged, or not of these results.
    """
    path = folder / SPREAD_FILE
    data = read_part(path, sha256)
    with describing(path, "train again"):
        try:
            metadata, arrays = read_header(io.BytesIO(data)).metadata, safetensors.numpy.load(data)
        except (ValueError, LookupError, safetensors.SafetensorError) as error:
            raise Unfit("a safetensors file", str(error)) from None
        ensure(set(arrays) == set(_ARRAYS), f"the arrays {', '.join(_ARRAYS)}", sorted(arrays))
        ensure(metadata.get("place") in widths, "a place of the results", metadata.get("place"), "place")
        return _checked(metadata["place"], arrays, widths[metadata["place"]])


def _checked(place: str, arrays: dict[str, np.ndarray], width: int | None) -> TrainingSpread:
    directions = arrays["directions"]
    check_array(directions, "f", "directions")
    ensure(directions.ndim == 2, "K directions of D numbers", list(directions.shape), "directions")
    K, D = directions.shape
    ensure(width == D or (width is None and D), f"{width} numbers, as the probe takes", D, "directions")
    shapes = {"mean": (D,), "variances": (K,), "rest": (), "held_out": arrays["held_out"].shape[:1]}
    for name, shape in shapes.items():
        check_array(arrays[name], "f", name, shape)
    check_array(arrays["rows"], "i", "rows", ())
    off = np.abs(directions.astype(np.float64) @ directions.T.astype(np.float64) - np.eye(K)).max(initial=0.0)
    ensure(K <= D and off < ORTHONORMAL, "orthonormal directions", f"{off:.2g} off", "directions")
    spreads = np.append(arrays["variances"], arrays["rest"] if K < D else 1.0)
    ensure((spreads > 0).all(), "variances above 0", float(spreads.min()), "variances")
    held_out = arrays["held_out"]
    rises = len(held_out) == 0 or (held_out[0] >= 0 and (np.diff(held_out) >= 0).all())
    ensure(rises, "distances that rise", held_out[:3].tolist(), "held_out")
    mean, variances, rest = arrays["mean"], arrays["variances"], float(arrays["rest"])
    return TrainingSpread(place, int(arrays["rows"]), mean, directions, variances, rest, held_out)
