"""What training gives back: a result per place, the baselines, and the one that was chosen, as numbers and files."""

import hashlib
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from probekit.durable import refused, write_as
from probekit.errors import DataError, StorageError
from probekit.evaluation.results import report
from probekit.evaluation.scores.metrics import HEADLINES
from probekit.probes import load_probe

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

SPLITS = ("train", "validation", "test")
FORMAT = "probekit.results/2"
OLDER = ("probekit.results/1",)
COLUMNS = ("kind", "name", "point", "layer", "place", "C", "converged", "split", "metric", "value", "low", "high")
COLUMNS += ("band_low", "band_high")
# what may stand in a folder of results: whatever else does is somebody's own
OWN_FILES = re.compile(r"results\.(json|csv)|\w+_by_layer\.(png|svg)|probes")
PROBE_FILES = re.compile(r"\w+(\.\d+)?\.(json|safetensors)")


@dataclass(frozen=True)
class BaselineResult:
    """How well something did that reads no activations, or none but those before the first block.

    Attributes:
        name: "majority" (of a regression "mean"), "bag-of-words", "length", "word-type" or "embedding".
        C: the regularisation that validation chose, if there was a choice.
        converged: whether its solver reached its tolerance.
        metrics: split -> metric -> value; a metric that is not defined there is left out.
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

    "Headline" is the metric `meta["headline"]` that decides: the one asked for, or else accuracy, AUROC where a class
    has more than 80% of the training labels, R2 of a regression.

    Attributes:
        point: short name, such as "resid_pre".
        layer: None for a point that belongs to no layer.
        C: the regularisation that validation chose; None for a probe without one.
        converged: whether every fit that the numbers rest on reached its tolerance, control tasks' and code's too.
        metrics: split -> metric -> value; a metric that is not defined there is left out. With nested folds
            "validation" is the mean over inner folds, "test" is of the pooled predictions of the outer ones (their
            scores standardised within each), and there is no "train".
        intervals: metric -> (low, high) of the test split.
        tried: (C, headline on validation) of each candidate.
        probe: the fitted probe; None where only numbers are kept, as of random weights.
        gap: the worst certificate of these fits: an upper bound on (objective - optimum) / optimum; None where the
            probe gives none, or a fit that did not converge has none that is finite.
        band: (low, high) of the headline on test; together the bands hold the whole curve with 95%.
        in_best_set: whether the place cannot be told from the best on test (95%, all places at once).
        p_value: of the headline on test, against permuted labels; None with nested folds.
        control: mean headline on test of the control tasks (random labels of types).
        selectivity: headline on test less `control`; None for a control of whole texts, where less than half of the
            test rows have a type that train has, and where the control of a regression has an R2 below 0.
        codelength: of the training labels given the activations: {"bits", "uniform_bits", "prior_bits" (of the class
            frequencies alone), "compression" (uniform_bits / bits), "gain" (prior_bits / bits)}.
        late: which fits did not converge: "probe", "control", "code".
    """

    point: str
    layer: int | None
    C: float | None
    converged: bool
    metrics: dict[str, dict[str, float]]
    intervals: dict[str, tuple[float, float]]
    tried: list[tuple[float | None, float]]
    probe: Any = field(default=None, compare=False, repr=False)
    gap: float | None = None
    band: tuple[float, float] | None = None
    in_best_set: bool | None = None
    p_value: float | None = None
    control: float | None = None
    selectivity: float | None = None
    codelength: dict[str, float] | None = None
    late: list[str] = field(default_factory=list)

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
        meta: JSON-able: model, task, label, point, position, probe, C (the grid), seed, n, headline, audit, versions
            and more.
        random_init: the same places of the same architecture with random weights, numbers only; may be empty.
    """

    layers: list[LayerResult]
    baselines: list[BaselineResult]
    meta: dict[str, Any]
    random_init: list[LayerResult] = field(default_factory=list)

    @property
    def best(self) -> LayerResult:
        """The place with the highest headline on validation, the earliest of equals; test has no say in it.

        With nested folds every row had its say, so that no number of this place is an estimate: `judged` is. A place
        whose fit did not converge is taken only where none did.
        """
        name = self.headline
        return max(self.layers, key=lambda layer: ("probe" not in layer.late, layer.metrics["validation"][name]))

    @property
    def headline(self) -> str:
        """The metric that decides: "accuracy", "auroc" or "r2"."""
        return self.meta["headline"]

    @property
    def procedure(self) -> dict[str, Any] | None:
        """With nested folds, how well the choice of layer and C does, made anew inside each fold."""
        return self.meta.get("procedure")

    @property
    def judged(self) -> tuple[float, tuple[float, float] | None]:
        """The headline to quote, with its interval, on rows that chose nothing.

        It is that of the chosen place on test, or, with nested folds, that of the whole procedure.
        """
        metrics, intervals = self.best.metrics["test"], self.best.intervals
        if self.procedure is not None:
            metrics, intervals = self.procedure["metrics"], self.procedure["intervals"]
        ends = intervals.get(self.headline)
        return metrics[self.headline], None if ends is None else (ends[0], ends[1])

    def to_frame(self) -> "pd.DataFrame":
        """A tidy table: a row per probe, baseline, control or random-weight probe, split and metric.

        `low` and `high` are of the test rows, `band_low` and `band_high` of the headline's.
        """
        import pandas as pd

        probe = self.meta["probe"]
        rows = [row for layer in self.layers for row in self._rows("probe", probe, layer)]
        rows += [row for layer in self.layers for row in self._extras(layer)]
        rows += [row for baseline in self.baselines for row in self._rows("baseline", baseline.name, baseline)]
        rows += [row for layer in self.random_init for row in self._rows("random-init", probe, layer)]
        numbers = ("C", "value", "low", "high", "band_low", "band_high")
        return pd.DataFrame(rows, columns=list(COLUMNS)).astype({"layer": "Int64"} | dict.fromkeys(numbers, "float64"))

    def _rows(self, kind: str, name: str, result: LayerResult | BaselineResult) -> list[tuple[Any, ...]]:
        is_layer = isinstance(result, LayerResult)
        place = (result.point, result.layer, result.place) if is_layer else (None, None, None)
        none = (None, None)
        rows = []
        for split, values in result.metrics.items():
            for metric, value in values.items():
                interval = result.intervals.get(metric, none) if split == "test" else none
                band = result.band if is_layer and split == "test" and metric == self.headline else None
                ends = (*interval, *(band or none))
                rows.append((kind, name, *place, result.C, result.converged, split, metric, value, *ends))
        return rows

    def _extras(self, layer: LayerResult) -> list[tuple[Any, ...]]:
        """What is told of a probe beside its metrics, and its control, as rows of the test split."""
        code = layer.codelength or {}
        extras = {
            "selectivity": layer.selectivity,
            "codelength_bits": code.get("bits"),
            "compression": code.get("compression"),
            "gain": code.get("gain"),
            "p_value": layer.p_value,
        }
        rows = [("probe", self.meta["probe"], name, value) for name, value in extras.items()]
        rows.append(("control", "control", self.headline, layer.control))
        place = (layer.point, layer.layer, layer.place, layer.C, layer.converged, "test")
        none = (None, None, None, None)
        return [(kind, by, *place, name, value, *none) for kind, by, name, value in rows if value is not None]

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draw the headline by layer, on `ax` or on a new figure; returns the axes."""
        from probekit.plots import plot_accuracy_by_layer

        return plot_accuracy_by_layer(self, ax)

    def summary(self) -> str:
        """A plain table for the terminal, and what was chosen and how."""
        return report.summary(self)

    def _repr_html_(self) -> str:
        return report.html_table(self)

    def __repr__(self) -> str:
        what = "whole procedure," if self.procedure else f"best on validation {self.best.place}, test"
        name, (value, _) = report.metric_name(self.headline), self.judged
        return f"ProbeResults({len(self.layers)} places; {what} {name} {value:.3f})"

    def save(self, folder: str | Path) -> Path:
        """Write results.csv, probes/ and, last, results.json into `folder`; returns the folder.

        Results that stood there are taken away first, pictures too, so that what is found there is of one run.
        results.json knows the hash of every probe.

        Raises:
            StorageError: the disk refused, or something else stands in the folder.
        """
        folder = Path(folder)
        layers = [_as_dict(layer) for layer in self.layers]
        lists = {"baselines": self.baselines, "random_init": self.random_init}
        body = {"format": FORMAT, "meta": self.meta, "best": self.best.place, "layers": layers}
        body |= {name: [_as_dict(result) for result in results] for name, results in lists.items()}
        json.dumps(body, allow_nan=False)  # what cannot be written takes nothing away
        frame = self.to_frame().to_csv(index=False, lineterminator="\n").encode()
        clear(folder)
        for entry, layer in zip(layers, self.layers, strict=True):
            entry["probe"] = _save_probe(layer, folder)
        write_as(folder / "results.csv", frame)
        write_as(folder / "results.json", json.dumps(body, indent=1, allow_nan=False).encode())
        return folder

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """What `save` wrote to `folder`, every number and every probe the same.

        Raises:
            DataError: no results there, or files that do not belong together.
        """
        path = Path(folder) / "results.json"
        body = _read(path)
        try:
            layers = [_layer_of(entry, path.parent) for entry in body["layers"]]
            baselines = [BaselineResult(**_with_tuples(entry)) for entry in body["baselines"]]
            random_init = [LayerResult(**_with_tuples(entry)) for entry in body["random_init"]]
            _check_headline(body["meta"]["headline"], layers, path)
            return cls(layers, baselines, body["meta"], random_init)
        except (KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{str(path)!a} is not a whole file of results: {error!a}") from None


def check_folder(folder: str | Path, own: re.Pattern[str] = OWN_FILES) -> None:
    """Whether results may be written to `folder`: it is not there, or nothing but results stands in it.

    Args:
        folder: where they would go.
        own: names of what belongs to results of this kind.

    Raises:
        StorageError: something else stands there; it would be in danger.
    """
    folder = Path(folder)
    if not folder.exists():
        return
    if not folder.is_dir():
        raise StorageError(f"{str(folder)!a} is a file; results need a folder, give another one (--out)")
    foreign = [path.name for path in _entries(folder) if not _is_own(path, own)]
    if foreign:
        raise StorageError(
            f"{str(folder)!a} holds {min(foreign)!a}, which is not of results; give a new or empty folder (--out)"
        )


def clear(folder: Path, own: re.Pattern[str] = OWN_FILES) -> None:
    """Take away the results that stand in `folder`, its .json first: what is half gone is no results.

    Args:
        folder: where they stand.
        own: as for `check_folder`.

    Raises:
        StorageError: the disk refused, or something else stands in the folder.
    """
    check_folder(folder, own)
    files = [path for path in _entries(folder) if path.is_file()]
    files = [*sorted(files, key=lambda path: path.suffix != ".json"), *_entries(folder / "probes")]
    try:
        for path in files:
            path.unlink()
    except OSError as error:
        raise refused(folder, error) from error


def _entries(folder: Path) -> list[Path]:
    """What stands there, but for hidden files, which are of other programs and in nobody's way."""
    if not folder.is_dir():
        return []
    return [path for path in folder.iterdir() if not path.name.startswith(".")]


def _is_own(path: Path, own: re.Pattern[str]) -> bool:
    if own.fullmatch(path.name) is None:
        return False
    if path.name != "probes":
        return path.is_file()
    inside = (PROBE_FILES.fullmatch(inner.name) and inner.is_file() for inner in _entries(path))
    return path.is_dir() and not path.is_symlink() and all(inside)


def _read(path: Path) -> dict[str, Any]:
    try:
        body = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise DataError(f"no results here: {str(path)!a} is missing") from None
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"could not read {str(path)!a}: {error}") from None
    found = body.get("format") if isinstance(body, dict) else None
    if found in OLDER:
        raise DataError(f"{str(path)!a} has an older format of results ({found}, now {FORMAT}); train again")
    if found != FORMAT:
        raise DataError(
            f"{str(path)!a} is not a file of results (expected format {FORMAT}, got {found!a}); train again"
        )
    return body


def _check_headline(name: Any, layers: list[LayerResult], path: Path) -> None:
    if name not in HEADLINES:
        raise DataError(f"{str(path)!a} has the headline {name!a}; expected {', '.join(HEADLINES)}; train again")
    lacking = [layer.place for layer in layers for split in SPLITS[1:] if name not in layer.metrics[split]]
    if lacking or not layers:
        where = lacking[0] if lacking else "any place"
        raise DataError(f"{str(path)!a} lacks the headline {name} of {where}; train again")


def _as_dict(result: LayerResult | BaselineResult) -> dict[str, Any]:
    return {name: value for name, value in vars(result).items() if name != "probe"}


def _save_probe(layer: LayerResult, folder: Path) -> dict[str, str] | None:
    if layer.probe is None:
        return None
    layer.probe.save(folder / "probes" / layer.place)
    return {"file": f"probes/{layer.place}", "sha256": _probe_hash(folder / "probes" / layer.place)}


def _probe_hash(path: Path) -> str:
    # the .json holds the hash of the weights, so its own stands for both files
    return hashlib.sha256(Path(f"{path}.json").read_bytes()).hexdigest()


def _layer_of(entry: dict[str, Any], folder: Path) -> LayerResult:
    layer = dict(entry)
    about = layer.pop("probe")
    path = folder / "probes" / _place_of(layer)
    probe = None if about is None else load_probe(path)
    if about is not None and _probe_hash(path) != about["sha256"]:
        raise DataError(f"the probe of {path.name!a} in {str(folder)!a} is not the one of these results; train again")
    return LayerResult(**_with_tuples(layer), probe=probe)


def _place_of(entry: dict[str, Any]) -> str:
    point, layer = entry["point"], entry["layer"]
    if not str(point).isidentifier() or not isinstance(layer, int | None):  # it becomes a path
        raise DataError(f"no place is called {point!a}, {layer!a}")
    return point if layer is None else f"{point}.{layer}"


def _with_tuples(entry: dict[str, Any]) -> dict[str, Any]:
    fixed = {**entry, "intervals": {name: tuple(ends) for name, ends in entry["intervals"].items()}}
    if "tried" in entry:
        fixed["tried"] = [tuple(pair) for pair in entry["tried"]]
    if entry.get("band") is not None:
        fixed["band"] = tuple(entry["band"])
    return fixed
