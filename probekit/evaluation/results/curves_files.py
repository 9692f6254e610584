"""Curves of several points and label sets on disk: `probekit.curves/1`, a folder of results for each curve."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from probekit.evaluation.results.data import ProbeData
from probekit.evaluation.results.files import load_results, save_results
from probekit.evaluation.results.frames import curves_frame
from probekit.evaluation.results.several import load_several, save_several


def save_curves(curves: Sequence[ProbeData], meta: Mapping[str, Any], folder: Path) -> None:
    """Write a folder of results for each curve, results.csv and, last, curves.json; earlier curves are deleted first.

    Raises:
        StorageError: the disk refused, or the folder holds something else.
    """
    save_several("curves", curves, meta, curves_frame(curves), folder, save_results)


def load_curves(folder: Path) -> tuple[list[ProbeData], dict[str, Any]]:
    """The curves that `save_curves` wrote, and their `meta`.

    Raises:
        DataError: no curves there, damaged ones, or results that are not of these curves.
    """
    return load_several("curves", folder, load_results)
