"""What sections share: where notes are told, and the rows that tested."""

from typing import Literal

import numpy as np

from probekit.evaluation.results.data import LayerResult, ProbeData
from probekit.evaluation.results.report import AT_LENGTH, Note, every_note
from probekit.evaluation.results.row_scores import RowScores

OLDER = "These results have no scores of rows, as those of older versions; train again to see this."


Home = Literal["summary", "controls", "table"]


def notes_of(data: ProbeData, home: Home) -> list[str]:
    """The notes that a section tells: each note has one home on the page.

    What may change or qualifies the conclusion is in the summary, which begins with what to quote and the cautions;
    control tasks and code lengths are explained where they are drawn; the rest is under the table.
    """
    drawn = {
        "control task": any(layer.control is not None for layer in data.layers),
        "compression": any(layer.codelength is not None for layer in data.layers),
    }

    def home_of(note: Note) -> Home:
        if drawn.get(note.subject):
            return "controls"
        return "summary" if note.rank < AT_LENGTH else "table"

    return [note.text for note in every_note(data) if note.subject != "quote" and home_of(note) == home]


def shown_layer(data: ProbeData) -> LayerResult | None:
    """The place whose rows are shown: the selected one, if its scores were saved."""
    best = data.selected
    return best if best is not None and data.rows is not None and best.place in data.rows.scores else None


def test_rows(rows: RowScores) -> np.ndarray:
    """Which rows are of test, bool [N]."""
    return rows.splits == "test"


def why_not_shown(data: ProbeData) -> str:
    """Why no rows can be shown."""
    if data.selected is None:
        return "No layer was selected, as the task has no validation split, so the rows of none are shown."
    return OLDER
