"""`ProbeResults`: what `train_probes` returns, with its table, picture and files."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

from probekit import registries
from probekit.evaluation.results.data import LayerResult, ProbeData
from probekit.evaluation.results.files import load_results, save_results
from probekit.evaluation.results.report import short_text, summary, summary_html
from probekit.evaluation.results.rows import curve_rows
from probekit.options.check import check_path
from probekit.probes.in_results import results_folder
from probekit.results.table import results_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd
    from matplotlib.axes import Axes

    from probekit.activations.activations import Activations
    from probekit.points import PointSpec


class PlaceResults(LayerResult):
    """The result of a place; its attributes are those of `LayerResult`."""

    __slots__ = ("_of",)  # the curve, kept out of the fields
    _of: "ProbeResults"

    @property
    def curve(self) -> "ProbeResults":
        """The results that the place is of."""
        return self._of

    def score(self, model: Any, texts: Any, **options: Any) -> Any:
        """Score new texts with this place's probe: see `ProbeResults.score`."""
        return self._of.score(model, texts, place=self.place, **options)

    def __repr__(self) -> str:
        scores = ", ".join(f"{name} {value:.3f}" for name, value in self.metrics["test"].items())
        return f"PlaceResults({self.place}; C {self.C}; test {scores})"


class ProbeResults(ProbeData):
    """The curve that `train_probes` returns; its attributes are those of `ProbeData`."""

    layers: list[PlaceResults]  # pyright: ignore[reportIncompatibleVariableOverride]

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "layers", [PlaceResults(**vars(layer)) for layer in self.layers])
        for layer in self.layers:
            object.__setattr__(layer, "_of", self)

    @property
    def best(self) -> PlaceResults:
        """The layer with the highest headline on validation. Test plays no part.

        Ties go to the lower log loss (of numbers, squared error), the smaller C, then the earlier layer.

        `best.score(model, texts)` scores new texts with its probe. With nested folds every row took part in the
        selection, so quote no score of this layer, but `estimate`. A layer whose fit did not converge is taken only if
        none did.

        Raises:
            UsageError: several layers and no validation split, so that none was selected.
        """
        return cast("PlaceResults", super().best)

    def score(self, model: Any, texts: Any, place: str | None = None, **options: Any) -> Any:
        """Score new texts: the model runs as for training, the probe reads its activations, only scores are kept.

        Args:
            model: from `load_model`, with the weights and the tokenizer that the probe was trained on.
            texts: a list of texts, of token ids or of chats, or a task; labels are not needed.
            place: "resid_pre.5"; None is the best place.
            options: of `probekit.options.ScoreOptions`: tokens, fpr, any_model and more.

        Returns:
            `probekit.scoring.results.Scores`.

        Raises:
            UsageError: no such place; a rate that validation cannot hold; an option that does not fit the probe.
            DataError: a probe that is not saved; texts that cannot be read.
            ResumeMismatch: another model or tokenizer.
        """
        return registries.METHODS["score_texts"](self, model, texts, place=place, **options)

    def to_frame(self) -> "pd.DataFrame":
        """A tidy table: one row per probe, baseline, control task or random-weights probe, split and metric.

        The columns are `probekit.results.table.COLUMNS`, as in every kind of results: `low` and `high` are the interval
        on test, `band_low` and `band_high` the band of the headline.
        """
        return results_table(curve_rows(self))

    def export(self, place: Any = None, **options: Any) -> Path:
        """Write a probe for another program, or the table of the curve, or a card; returns the path.

        Args:
            place: "resid_pre.5"; None is the best place. A table takes none.
            options: of `probekit.options.ExportOptions`: to ("numpy", "sklearn-json", "latex", "card", ...) and out.

        Raises:
            UsageError: an unknown kind or place, or a probe that has no such form.
            DataError: no fitted probe of the place.
            StorageError: the disk refused.
        """
        return registries.METHODS["export_results"](self, place, **options)

    def plot(
        self,
        ax: "Axes | None" = None,
        *,
        label: str | None = None,
        color: str | None = None,
        title: str | None = None,
        width: float | None = None,
    ) -> "Axes":
        """Draw the headline by layer, on `ax` or on a new figure; returns the axes.

        Several results can be drawn on one axes: `ax = first.plot()`, then `second.plot(ax)`.

        Args:
            ax: where to draw; other results on it are kept.
            label: the curve's name in the legend.  [default: what it differs in from the other curves]
            color: of the curve, as matplotlib has it.  [default: the next that is free]
            title: of the picture, as plain text; "" for none.  [default: what was probed, in which model]
            width: of a new figure, in inches; 3.25 is a column of a paper.  [default: the picture's own]

        Raises:
            UsageError: the axes hold results of another metric; an unknown color.
        """
        return registries.METHODS["plot_accuracy_by_layer"](
            self, ax, label=label, color=color, title=title, width=width
        )

    def tokens(
        self,
        model: Any,
        texts: Any,
        *,
        fpr: float | None = None,
        edits: "Mapping[Any, Any] | None" = None,
        chat_template: "str | Path | None" = None,
    ) -> Any:
        """The score of every token of some texts at every layer; shows itself in a notebook.

        Args:
            model: the one that the probes were trained on.
            texts: a list of texts, chats or lists of token ids, or a task, whose labels are then shown.
            fpr: centre the colours on the threshold chosen on validation for this false-positive rate; None: even odds.
            edits: those that the model ran with when the probes were trained.
            chat_template: template or its file for chats, where it is not the model's own.

        Returns:
            `probekit.report.tokens.notebook.TokenView`.

        Raises:
            UsageError: probes that were not saved; a rate that validation cannot hold.
            DataError: texts that the model cannot take.
            ResumeMismatch: another model, other edits or another chat template than the probes'.
        """
        return registries.METHODS["token_view"](self, model, texts, fpr=fpr, edits=edits, chat_template=chat_template)

    def plot_projection(
        self,
        acts: "Activations",
        place: "PointSpec | None" = None,
        ax: "Axes | None" = None,
        *,
        title: str | None = None,
        width: float | None = None,
    ) -> "Axes":
        """Draw the test rows along the probe and the first principal component orthogonal to it; returns the axes.

        Args:
            acts: the activations that were probed.
            place: such as "resid_pre.5".  [default: the layer selected on validation]
            ax: where to draw.
            title: of the picture, as plain text; "" for none.  [default: what was probed, in which model]
            width: of a new figure, in inches; 3.25 is a column of a paper.  [default: the picture's own]

        Raises:
            UsageError: no such place; a probe that is not linear.
            DataError: other activations than those that were probed.
        """
        return registries.METHODS["plot_projection"](self, acts, place, ax, title=title, width=width)

    def summary(self) -> str:
        """The results as a plain table, with at most six footnotes."""
        return summary(self)

    def save(self, folder: str | Path) -> Path:
        """Write results.csv, the probes, what scoring new texts needs and, last, results.json; returns the folder.

        Earlier results there, pictures included, are deleted first, so that all files are of one run.

        Raises:
            StorageError: the disk refused, or the folder holds something else.
        """
        folder = check_path("folder", folder)
        save_results(self, folder)
        return folder

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Read what `save` wrote to `folder`, with every number and every probe.

        Args:
            folder: where they are; hf://owner/name for those on the Hub.

        Raises:
            DataError: no results there, or files that do not belong together.
        """
        path = results_folder(folder)
        data = load_results(path)
        return cls(**vars(data))

    def _repr_html_(self) -> str:
        return summary_html(self)

    def __repr__(self) -> str:
        return f"ProbeResults({short_text(self)})"
