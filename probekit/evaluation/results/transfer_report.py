"""Transfer as text for a terminal and as HTML for a notebook: train on the rows, test on the columns."""

from probekit.evaluation.results.coordinates import within_text
from probekit.evaluation.results.data import RATE_NAMES, TransferCell, TransferData
from probekit.evaluation.results.wording import interval_text, metric_name, point_name, position_name, selected
from probekit.evaluation.scores.rates import DEFAULT_FPR
from probekit.tables import TableReport, html_page, html_table, text_table
from probekit.text import listed, printable


def transfer_summary(data: TransferData) -> str:
    """Title, matrix and footnotes as text."""
    table = text_table(_rows(data)).split("\n")
    return "\n".join(map(printable, [transfer_title(data), "", *table, "", *transfer_notes(data)]))


def transfer_html(data: TransferData) -> str:
    """The same as HTML."""
    return html_page(transfer_title(data), html_table(_rows(data)), transfer_notes(data))


def transfer_report(data: TransferData) -> TableReport:
    """The parts of `transfer_summary`."""
    return TableReport(transfer_title(data), [], _rows(data), transfer_notes(data))


def transfer_title(data: TransferData) -> str:
    """Model, point, position, probe and metric in one line."""
    meta = data.meta
    rows = f", {rows}" if (rows := within_text(meta)) else ""
    read = f"{point_name(meta)}, {position_name(meta['position'])}{rows}; {meta['probe']} probe"
    what = f"Shift over {shift['column']!a:.40}" if (shift := meta.get("shift")) else "Transfer"
    return printable(f"{what} in {meta['model']}: {read}; test {metric_name(data.headline)}")


def transfer_notes(data: TransferData) -> list[str]:
    """How layers were selected, what did not converge, and the notes that `transfer` made."""
    what = selected(len({cell.place for cell in data.cells}) > 1, len(data.meta["C"] or []) > 1)
    whose = "rows of the training values" if data.meta.get("shift") else "split of the training task"
    note = f"{what[:1].upper()}{what[1:]} selected on the validation {whose}; test selected nothing."
    notes = [note if what else "One layer, one setting: nothing was selected."]
    if late := [row[0].train_task for row in data.chosen if not row[0].converged]:
        notes.append(f"! not converged: {listed(late)}; a smaller C helps.")
    return [*notes, *_threshold_notes(data), *data.meta["notes"]]


def _threshold_notes(data: TransferData) -> list[str]:
    """What each task's threshold for 1% false positives gives on the others, and which tasks have none."""
    negatives, (tpr, fpr) = data.meta.get("negatives"), (name.format(DEFAULT_FPR) for name in RATE_NAMES)
    if data.meta.get("shift") or negatives is None:
        return []
    rows = [row for row in data.chosen if any(tpr in cell.metrics for cell in row)]
    notes = (
        [f"Thresholds for {DEFAULT_FPR:.0%} false positives, chosen on the training task's validation split:"]
        if rows
        else []
    )
    for row in rows:
        each = [f"{cell.test_task} {_value(cell, tpr)} / {_value(cell, fpr)}" for cell in row]
        notes.append(f"  {row[0].train_task}: TPR / FPR on test {', '.join(each)}.")
    few = [f"{task} {n:,}" for task, n in zip(data.tasks, negatives, strict=True) if 0 < n < 1 / DEFAULT_FPR]
    least = f"{round(1 / DEFAULT_FPR)} validation rows of the first class"
    return [
        *notes,
        *([f"No threshold for {DEFAULT_FPR:.0%} false positives, which needs {least}: {listed(few)}."] if few else []),
    ]


def _rows(data: TransferData) -> list[tuple[str, ...]]:
    rows = [("train on \\ test on", *data.tasks, "layer", "C"), *(_row(data, row) for row in data.chosen)]
    if data.headline == "accuracy":
        rows.append(("(majority class)", *[f"{share:.3f}" for share in data.meta["majority"]], "", ""))
    return rows


def _row(data: TransferData, row: list[TransferCell]) -> tuple[str, ...]:
    mark = "" if all(cell.converged for cell in row) else " !"
    C = {"" if cell.C is None else f"{cell.C:g}" for cell in row}
    places = {cell.place for cell in row}
    what = [own.pop() if len(own) == 1 else "several" for own in (places, C)]
    return (row[0].train_task + mark, *[_value(cell, data.headline) for cell in row], *what)


def _value(cell: TransferCell, metric: str) -> str:
    if metric not in cell.metrics:
        return "-"
    return f"{cell.metrics[metric]:.3f} {interval_text(cell.intervals.get(metric))}".rstrip()
