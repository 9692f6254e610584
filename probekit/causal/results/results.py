"""`CausalResults`: what `causal` returns, with its table, pictures and files."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from probekit import registries
from probekit.causal.data import CausalData, CausalLayer, ChecklistItem, Effect, PatchGrid
from probekit.causal.results.files import load_causal, save_causal
from probekit.causal.results.report import causal_html, causal_summary, short_causal
from probekit.causal.results.table import causal_rows
from probekit.options.check import check_path
from probekit.results.table import results_table

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False, repr=False)
class CausalResults:
    """What a causal run found.

    Attributes:
        data: all of it; its parts are attributes here, too.
    """

    data: CausalData

    @property
    def layers(self) -> list[CausalLayer]:
        """The curve: what can be read at each layer, and what is used."""
        return self.data.layers

    @property
    def effects(self) -> list[Effect]:
        """Every method, direction, place, scale and split, placebos included."""
        return self.data.effects

    @property
    def grids(self) -> list[PatchGrid]:
        """Activation patching."""
        return self.data.grids

    @property
    def checklist(self) -> list[ChecklistItem]:
        """A reviewer's questions, with what these results say to each."""
        return self.data.checklist

    @property
    def meta(self) -> dict[str, Any]:
        """What was run: see `CausalData`."""
        return self.data.meta

    def to_frame(self) -> "pd.DataFrame":
        """The tidy table, with `probekit.results.table.COLUMNS`: a row for each number; the method is in `name`.

        Effects are of the kinds "direction", "ceiling", "control" and "placebo", after what their `direction` is for;
        the other rows are of the kinds "layer" and "patching".
        """
        return results_table(causal_rows(self.data))

    def plot(self, *, title: str | None = None, width: float | None = None) -> "Figure":
        """Draw decodability and effect by layer, with dose-response where it was measured; returns the figure.

        Args:
            title: of the picture, as plain text; "" for none.  [default: what was edited, in which model]
            width: in inches; 3.25 is a column of a paper.  [default: the picture's own]

        Raises:
            UsageError: there are no layers, as only patching was run; use `plot_patching`.
        """
        return registries.METHODS["plot_causal"](self.data, title=title, width=width)

    def plot_patching(self, *, title: str | None = None, width: float | None = None) -> "Figure":
        """Draw the patching grids; returns the figure.

        Args:
            title: of the picture, as plain text; "" for none.  [default: what was patched, in which model]
            width: in inches; 3.25 is a column of a paper.  [default: the picture's own]

        Raises:
            UsageError: no patching was run.
        """
        return registries.METHODS["plot_patching"](self.data, title=title, width=width)

    def summary(self) -> str:
        """The results as a plain table, with the reviewer's checklist."""
        return causal_summary(self.data)

    def save(self, folder: str | Path) -> Path:
        """Write results.csv and, last, causal.json into `folder`; returns the folder.

        Earlier causal results there, pictures included, are deleted first.

        Raises:
            StorageError: the disk refused, or the folder holds something else.
        """
        folder = check_path("folder", folder)
        save_causal(self.data, folder)
        return folder

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Read what `save` wrote to `folder`.

        Raises:
            DataError: no causal results there, or incomplete ones.
        """
        return cls(load_causal(check_path("folder", folder)))

    def _repr_html_(self) -> str:
        return causal_html(self.data)

    def __repr__(self) -> str:
        return f"CausalResults({short_causal(self.data)})"
