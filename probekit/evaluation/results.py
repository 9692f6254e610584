"""What training gives back: a result per place, the baselines, and the one that was chosen, as numbers and files."""

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from probekit.durable import write_as
from probekit.errors import DataError
from probekit.evaluation import show
from probekit.evaluation.metrics import METRICS
from probekit.probes import LinearProbe, load_probe

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

SPLITS = ("train", "validation", "test")
FORMAT = "probekit.results/1"
COLUMNS = ("kind", "name", "point", "layer", "place", "C", "converged", "split", "metric", "value", "low", "high")


@dataclass(frozen=True)
class BaselineResult:
    """How well something did that reads no activations.

    Attributes:
        name: "majority" or "bag-of-words".
        C: the regularisation that validation chose, if there was a choice.
        converged: whether its solver reached its tolerance.
        metrics: split -> metric -> value.
        intervals: metric -> (low, high) of the test split.
    """

    name: str
    C: float | None
    converged: bool
    metrics: dict[str, dict[str, float]]
    intervals: dict[str, tuple[float, float]]


@dataclass(frozen=True)
class LayerResult:
    """The probe of one place and how well it does.

    Attributes:
        point: short name, such as "resid_pre".
        layer: None for a point that belongs to no layer.
        C: the regularisation that validation chose; None for a probe without one.
        converged: whether the solver reached its tolerance.
        metrics: split -> metric -> value.
        intervals: metric -> (low, high) of the test split.
        tried: (C, validation accuracy) of each candidate.
        probe: the fitted probe.
    """

    point: str
    layer: int | None
    C: float | None
    converged: bool
    metrics: dict[str, dict[str, float]]
    intervals: dict[str, tuple[float, float]]
    tried: list[tuple[float | None, float]]
    probe: LinearProbe = field(compare=False, repr=False)

    @property
    def place(self) -> str:
        """Point and layer in one word: "resid_pre.5"."""
        return self.point if self.layer is None else f"{self.point}.{self.layer}"


@dataclass(frozen=True)
class ProbeResults:
    """The curve: one result per place, in layer order, with the baselines beside it.

    Attributes:
        layers: in the order of the curve.
        baselines: what to compare with; empty when none were asked for.
        meta: JSON-able: model, task, label, point, position, probe, C (the grid), seed, n, versions and more.
    """

    layers: list[LayerResult]
    baselines: list[BaselineResult]
    meta: dict[str, Any]

    @property
    def best(self) -> LayerResult:
        """The place with the highest validation accuracy, the earliest of equals; test has no say in it."""
        return max(self.layers, key=lambda layer: layer.metrics["validation"]["accuracy"])

    def to_frame(self) -> "pd.DataFrame":
        """A tidy table: one row per probe or baseline, split and metric; `low` and `high` on the test rows."""
        import pandas as pd

        rows = [row for layer in self.layers for row in self._rows("probe", self.meta["probe"], layer)]
        rows += [row for baseline in self.baselines for row in self._rows("baseline", baseline.name, baseline)]
        types = {"layer": "Int64", "C": "float64", "low": "float64", "high": "float64"}
        return pd.DataFrame(rows, columns=list(COLUMNS)).astype(types)

    @staticmethod
    def _rows(kind: str, name: str, result: LayerResult | BaselineResult) -> list[tuple[Any, ...]]:
        place = (result.point, result.layer, result.place) if isinstance(result, LayerResult) else (None, None, None)
        return [
            (kind, name, *place, result.C, result.converged, split, metric, result.metrics[split][metric], *interval)
            for split in SPLITS
            for metric in METRICS
            for interval in [result.intervals.get(metric, (None, None)) if split == "test" else (None, None)]
        ]

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draw accuracy by layer, on `ax` or on a new figure; returns the axes."""
        from probekit.plots import plot_accuracy_by_layer

        return plot_accuracy_by_layer(self, ax)

    def summary(self) -> str:
        """A plain table for the terminal, and what was chosen and how."""
        return show.summary(self)

    def _repr_html_(self) -> str:
        return show.html_table(self)

    def __repr__(self) -> str:
        best = self.best
        return (
            f"ProbeResults({len(self.layers)} places; best on validation {best.place}, "
            f"test accuracy {best.metrics['test']['accuracy']:.3f})"
        )

    def save(self, folder: str | Path) -> Path:
        """Write results.csv, probes/ and, last, results.json into `folder`; returns the folder.

        Each file is replaced whole. results.json knows the hash of every probe, so that a mixture of two runs is found.

        Raises:
            StorageError: the disk refused.
        """
        folder = Path(folder)
        layers = [{**_as_dict(layer), "probe": _save_probe(layer, folder)} for layer in self.layers]
        baselines = [_as_dict(baseline) for baseline in self.baselines]
        body = {"format": FORMAT, "meta": self.meta, "best": self.best.place, "layers": layers, "baselines": baselines}
        text = json.dumps(body, indent=1, allow_nan=False)
        write_as(folder / "results.csv", self.to_frame().to_csv(index=False, lineterminator="\n").encode())
        write_as(folder / "results.json", text.encode())
        return folder

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """What `save` wrote to `folder`, every number and every probe the same.

        Raises:
            DataError: no results there, or files that do not belong together.
        """
        path = Path(folder) / "results.json"
        try:
            body = json.loads(path.read_bytes())
        except FileNotFoundError:
            raise DataError(f"no results here: {str(path)!a} is missing") from None
        except (OSError, ValueError) as error:
            raise DataError(f"could not read {str(path)!a}: {error}") from None
        if not isinstance(body, dict) or body.get("format") != FORMAT:
            raise DataError(f"{str(path)!a} is not a file of results (expected format {FORMAT})")
        try:
            layers = [_layer_of(entry, path.parent) for entry in body["layers"]]
            baselines = [BaselineResult(**_with_tuples(entry)) for entry in body["baselines"]]
            return cls(layers, baselines, body["meta"])
        except (KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{str(path)!a} is not a whole file of results: {error!a}") from None


def _as_dict(result: LayerResult | BaselineResult) -> dict[str, Any]:
    return {name: value for name, value in vars(result).items() if name != "probe"}


def _save_probe(layer: LayerResult, folder: Path) -> dict[str, str]:
    layer.probe.save(folder / "probes" / layer.place)
    return {"file": f"probes/{layer.place}", "sha256": _probe_hash(folder / "probes" / layer.place)}


def _probe_hash(path: Path) -> str:
    # the .json holds the hash of the weights, so its own stands for both files
    return hashlib.sha256(Path(f"{path}.json").read_bytes()).hexdigest()


def _layer_of(entry: dict[str, Any], folder: Path) -> LayerResult:
    layer = dict(entry)
    about = layer.pop("probe")
    result = LayerResult(**_with_tuples(layer), probe=load_probe(folder / "probes" / f"{_place_of(layer)}"))
    if _probe_hash(folder / "probes" / result.place) != about["sha256"]:
        raise DataError(
            f"the probe of {result.place!a} in {str(folder)!a} is not the one of these results; train again"
        )
    return result


def _place_of(entry: dict[str, Any]) -> str:
    point, layer = entry["point"], entry["layer"]
    if not str(point).isidentifier() or not isinstance(layer, int | None):  # it becomes a path
        raise DataError(f"no place is called {point!a}, {layer!a}")
    return point if layer is None else f"{point}.{layer}"


def _with_tuples(entry: dict[str, Any]) -> dict[str, Any]:
    fixed = {**entry, "intervals": {name: tuple(ends) for name, ends in entry["intervals"].items()}}
    return {**fixed, "tried": [tuple(pair) for pair in entry["tried"]]} if "tried" in entry else fixed
