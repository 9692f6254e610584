"""Results that are grids: layers by positions or heads, and tasks by tasks."""

from probekit.evaluation.by_position.data import PositionCurve, PositionData, is_above_chance
from probekit.evaluation.by_position.report import axis_name, positions_report
from probekit.evaluation.results.data import LayerResult, TransferCell, TransferData
from probekit.evaluation.results.transfer_report import transfer_report
from probekit.evaluation.results.wording import interval_text, metric_name, number_text
from probekit.options.probe import BY_HEAD
from probekit.report.parts import Lines, PageTable, Part, Picture
from probekit.report.render import html_of
from probekit.report.section import Section
from probekit.report.svg.grid import Cell, CellGrid, draw_grid
from probekit.tables import TableReport
from probekit.text import printable


def positions_section(data: PositionData) -> Section:
    """Layers by positions, or by heads, as a heatmap, with the table."""
    noun = "head" if data.meta.get("by") == BY_HEAD else "position"
    metric, level = metric_name(data.headline), data.meta.get("above_chance")
    chance = [0.0 if one.chance is None else one.chance for one in data.positions]
    most = max(0.05, 1 - min(chance))
    cells = [
        [_position_cell(data, one, i, base, most) for one, base in zip(data.positions, chance, strict=True)]
        for i in range(len(data.places))
    ]
    columns = [
        one.position if one.token is None else f"{one.token.strip() or one.token!r} {one.position}"
        for one in data.positions
    ]
    grid = CellGrid(f"Test {metric} by layer and {noun}", data.places, columns, cells, "layer", axis_name(data), True)
    base = "majority class" if data.meta["n_classes"] else "mean"
    legend = [
        (f"above the {base}", "blue", "cell"),
        (f"below the {base}", "red", "cell"),
        *([("selected on validation", "", "frame")] if data.quoted is not None and data.quoted.layer else []),
    ]
    if level is not None:
        legend.append((f"not above chance (corrected p > {level:g})", "muted", "cell"))
    picture = Picture(
        draw_grid(grid), f"Test {metric} of each layer and {noun}; a cell without colour is at chance.", legend=legend
    )
    return _with_table(f"{noun}s", f"Layer by {noun}", picture, positions_report(data))


def _position_cell(data: PositionData, one: PositionCurve, i: int, base: float, most: float) -> Cell:
    layer: LayerResult = one.layers[i]
    value, ends = layer.metrics["test"][data.headline], layer.intervals.get(data.headline)
    p, level = one.corrected[i], data.meta.get("above_chance")
    lines = [
        f"{'head' if data.meta.get('by') == BY_HEAD else 'position'} {one.position}, {layer.place}",
        f"test {metric_name(data.headline)} {number_text(value)}{'' if ends is None else ' ' + interval_text(ends)}",
        f"chance {number_text(one.chance)}; {one.n['test']:,} test texts"
        + ("" if p is None else f"; corrected p = {p:.2g}"),
    ]
    if one.random_init:
        lines.append(f"random weights {number_text(one.random_init[i].metrics['test'].get(data.headline))}")
    is_best = data.quoted is not None and data.quoted.layer is layer
    muted = level is not None and is_above_chance(one, i, level) is False
    return Cell(f"{value:z.2f}", "\n".join(lines), (value - base) / most, muted, is_best)


def transfer_section(data: TransferData) -> Section:
    """Train on the rows, test on the columns: tasks or, of a shift, the values of a column."""
    metric, shift = metric_name(data.headline), data.meta.get("shift")
    chances, name = _chances(data)
    cells = [
        [_transfer_cell(data, cell, chance, name) for cell, chance in zip(row, chances, strict=True)]
        for row in data.chosen
    ]
    what = f"value of {printable(shift['column'])}" if shift else "task"
    grid = CellGrid(f"Test {metric} by {what}", data.rows, data.tasks, cells, "trained on", "tested on")
    legend = [(f"above {name}", "blue", "cell"), (f"below {name}", "red", "cell")]
    caption = f"Test {metric} on each {what}, at the layer that validation selected on what the probe was trained on."
    title = "Shift" if shift else "Transfer"
    return _with_table("transfer", title, Picture(draw_grid(grid), caption, legend=legend), transfer_report(data))


def _chances(data: TransferData) -> tuple[list[float], str]:
    """The score that a probe which learned nothing has on each column, and its name."""
    if data.headline == "accuracy":
        return [float(share) for share in data.meta["majority"]], "the majority class"
    chance = float(data.meta["chance"])
    return [chance] * len(data.tasks), "chance"


def _transfer_cell(data: TransferData, cell: TransferCell, chance: float, name: str) -> Cell:
    value, ends = cell.metrics.get(data.headline), cell.intervals.get(data.headline)
    tip = f"trained on {cell.train_task}, tested on {cell.test_task}\n{cell.place}, test {metric_name(data.headline)} "
    if value is None:
        return Cell("-", f"{tip}undefined")
    tip += f"{value:z.3f}{'' if ends is None else ' ' + interval_text(ends)}; {name} {chance:.3f}"
    return Cell(f"{value:z.3f}", tip, (value - chance) / max(1 - chance, 0.05))


def _with_table(name: str, title: str, picture: Picture, report: TableReport) -> Section:
    parts: list[Part] = [Lines([report.title], "lead"), Lines(report.lines), picture]
    parts += [PageTable(report.rows, report.left, report.bold), Lines(report.notes, "note")]
    return Section(name, title, html_of(parts))
