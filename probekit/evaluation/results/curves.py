"""`ProbeCurves`: what `train_probes` returns for several points and label sets, with its table, picture and files."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from probekit.errors import ProbekitError, UsageError
from probekit.evaluation.results.curves_files import load_curves, save_curves
from probekit.evaluation.results.curves_report import curves_html, curves_summary
from probekit.evaluation.results.frames import curves_frame
from probekit.evaluation.results.results import ProbeResults
from probekit.text import counted, listed, printable

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


class UnknownCurve(UsageError, KeyError):
    """No such curve; a KeyError too, as a mapping raises."""

    __str__ = ProbekitError.__str__


class ProbeCurves(Mapping[tuple[str, str], ProbeResults]):
    """The curves of several points and label sets: (label, point) -> `ProbeResults`.

    Args:
        curves: label set by label set, in each point by point.
        meta: JSON-able, of all curves together; each curve has a `meta` of its own.

    Attributes:
        meta: as given.
    """

    def __init__(self, curves: Iterable[ProbeResults], meta: dict[str, Any] | None = None):
        self._curves = {(curve.meta["label"], curve.meta["point"]): curve for curve in curves}
        self.meta = meta or {}

    def __getitem__(self, key: tuple[str, str]) -> ProbeResults:
        """The curve of a label set and a point, whose name may lack the "encoder." of an encoder's points.

        Raises:
            UnknownCurve: there is no such curve.
        """
        if key not in self._curves and isinstance(key, tuple) and len(key) == 2:
            label, point = key
            key = (label, next((known for known in self.points if known == f"encoder.{point}"), point))
        if key not in self._curves:
            known = listed([f"({label!a}, {point!a})" for label, point in self])
            raise UnknownCurve(f"no curve {key!a}; a curve is named by label set and point, here {known}")
        return self._curves[key]

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self._curves)

    def __len__(self) -> int:
        """The number of curves."""
        return len(self._curves)

    @property
    def labels(self) -> list[str]:
        """The label sets, in the order of the call."""
        return list(dict.fromkeys(label for label, _ in self))

    @property
    def points(self) -> list[str]:
        """The points, in the order of the call."""
        return list(dict.fromkeys(point for _, point in self))

    def to_frame(self) -> "pd.DataFrame":
        """One tidy table: `label`, then the columns of `ProbeResults.to_frame`.

        The rows of a baseline that several points share, such as the majority class, are listed once.
        """
        return curves_frame(list(self.values()))

    def plot(self, *, title: str | None = None) -> "Figure":
        """Draw the curves on a new figure, those that can be compared on the same axes; returns the figure.

        Curves of one label set share axes, and so do label sets with the same metric where there is one point.
        """
        from probekit.plots.panels import plot_curves

        return plot_curves(list(self.values()), title=title)

    def export(self, **options: Any) -> Path:
        """Write one table of all curves (to="latex", "csv" or "parquet"); returns the path."""
        from probekit.export.export import export_results

        return export_results([*self.values()], None, **options)

    def summary(self) -> str:
        """A table with one line for each curve."""
        return curves_summary(list(self.values()))

    def save(self, folder: str | Path) -> Path:
        """Write a folder for each curve, results.csv with all of them and, last, curves.json; returns the folder.

        Earlier curves there are deleted first.

        Raises:
            StorageError: the disk refused, or the folder holds something else.
        """
        save_curves(list(self.values()), self.meta, Path(folder))
        return Path(folder)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Read what `save` wrote to `folder`.

        Raises:
            DataError: no curves there, or files that do not belong together.
        """
        curves, meta = load_curves(Path(folder))
        return cls(
            (ProbeResults(**vars(each)) for each in curves),
            meta,
        )

    def _repr_html_(self) -> str:
        return curves_html(list(self.values()))

    def __repr__(self) -> str:
        labels, points = (printable(listed(names)) for names in (self.labels, self.points))
        return f"ProbeCurves({counted(len(self), 'curve')}; labels {labels}; points {points})"
