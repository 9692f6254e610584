"""Results that are grids: layers by positions or heads, and tasks by tasks."""

from probekit.charts.grids import positions_grid, transfer_grid
from probekit.evaluation.by_position.data import PositionData, noun_of
from probekit.evaluation.by_position.report import positions_report
from probekit.evaluation.results.data import TransferData
from probekit.evaluation.results.transfer_report import transfer_report
from probekit.report.parts import Lines, PageTable, Part, Picture
from probekit.report.render import html_of
from probekit.report.section import Section
from probekit.report.svg.grid import draw_grid
from probekit.tables import TableReport


def positions_section(data: PositionData) -> Section:
    """Layers by positions, or by heads, with the table."""
    grid, noun, level = positions_grid(data), noun_of(data), data.meta.get("above_chance")
    legend = _legend("the majority class" if data.meta["n_classes"] else "the mean")
    if any(cell.framed for row in grid.cells for cell in row):
        legend.append(("selected on validation", "", "frame"))
    if level is not None:
        legend.append((f"not above chance (corrected p > {level:g})", "muted", "cell"))
    picture = Picture(draw_grid(grid), grid.caption, legend=legend)
    return _with_table(f"{noun}s", f"Layer by {noun}", picture, positions_report(data))


def transfer_section(data: TransferData) -> Section:
    """Train on the rows, test on the columns: tasks or, of a shift, the values of a column."""
    grid = transfer_grid(data)
    legend = _legend("the majority class" if data.headline == "accuracy" else "chance")
    title = "Shift" if data.meta.get("shift") else "Transfer"
    return _with_table("transfer", title, Picture(draw_grid(grid), grid.caption, legend=legend), transfer_report(data))


def _legend(base: str) -> list[tuple[str, str, str]]:
    return [(f"above {base}", "blue", "cell"), (f"below {base}", "red", "cell")]


def _with_table(name: str, title: str, picture: Picture, report: TableReport) -> Section:
    parts: list[Part] = [Lines([report.title], "lead"), Lines(report.lines), picture]
    parts += [PageTable(report.rows, report.left, report.bold), Lines(report.notes, "note")]
    return Section(name, title, html_of(parts))
