"""`Scores`: what a probe gives for new texts, with its table and its file."""

from pathlib import Path
from typing import TYPE_CHECKING

from probekit.options.check import check_path
from probekit.scoring.rows import ScoreRows, score_columns
from probekit.scoring.table import scores_html, scores_text
from probekit.scoring.write import write_scores

if TYPE_CHECKING:
    import pandas as pd


class Scores(ScoreRows):
    """One row for each text, or for each token; its attributes are those of `ScoreRows`."""

    def to_frame(self) -> "pd.DataFrame":
        """The columns as a DataFrame: id, text or token, predicted, probability, score, flagged, distance, unusual."""
        import pandas as pd

        return pd.DataFrame(score_columns(self))

    def summary(self) -> str:
        """The rows as a plain table, with what the columns mean."""
        return scores_text(self)

    def save(self, path: str | Path) -> Path:
        """Write the rows as .csv, .jsonl or .parquet; returns the path.

        Raises:
            StorageError: the disk refused; nothing was written.
            UsageError: another ending.
        """
        path = check_path("path", path)
        write_scores(path, [self])
        return path

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.ids)

    def __repr__(self) -> str:
        unit = "tokens" if self.token_index is not None else "texts"
        return f"Scores({len(self):,} {unit} at {self.meta['place']})"

    def _repr_html_(self) -> str:
        return scores_html(self)
