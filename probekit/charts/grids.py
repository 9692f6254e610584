"""The grids of results: layers by positions or heads, tasks by tasks, patched tokens, layers by training steps.

White is chance, blue above it, red below. Grey cells are not above chance, or not outside the placebos.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from probekit.causal.data import CausalData, PatchGrid
from probekit.causal.results.checklist import is_approximate
from probekit.charts.cells import Cell, CellGrid
from probekit.charts.palette import short
from probekit.evaluation.by_position.data import PositionCurve, PositionData, is_above_chance, noun_of
from probekit.evaluation.by_position.report import axis_name, positions_title
from probekit.evaluation.results.coordinates import within_text
from probekit.evaluation.results.data import LayerResult, TransferCell, TransferData
from probekit.evaluation.results.surface_note import short_shift_text
from probekit.evaluation.results.wording import interval_text, metric_name, number_text, position_name
from probekit.options.probe import BY_HEAD
from probekit.side_by_side.checkpoints import is_above
from probekit.side_by_side.data import ComparedRun, ComparisonData
from probekit.side_by_side.report import comparison_title, shared_setting
from probekit.text import counted, printable

NAME = 20  # letters of a task or selection
TOKEN = 14  # letters of a token
LEAST = 0.05  # distance from chance that has the darkest colour at least
GREY_NOTE = "grey: not above chance (permutation test, corrected for all cells)"


def positions_grid(data: PositionData) -> CellGrid:
    """Layers by positions, or by heads: the headline of every cell on test."""
    noun, base = noun_of(data), "majority class" if data.meta["n_classes"] else "mean"
    most = max(LEAST, 1 - min(_base(one.chance) for one in data.positions))
    best = None if data.quoted is None else data.quoted.layer
    footer: list[tuple[str, list[str]]] = []
    if noun != BY_HEAD:  # heads have the same ones
        chances = ["" if one.chance is None else f"{one.chance:z.2f}" for one in data.positions]
        footer = [(base.split()[0], chances), ("test texts", [f"{one.n['test']:,}" for one in data.positions])]
    metric = metric_name(data.headline)
    return CellGrid(
        positions_title(data),
        [_layer_name(data, layer) for layer in data.positions[0].layers],
        [_column_name(one) for one in data.positions],
        [[_position_cell(data, one, i, most, best) for one in data.positions] for i in range(len(data.places))],
        f"layer, {short(data.meta['point'])}",
        axis_name(data),
        first_at_bottom=True,
        notes=_position_notes(data, base),
        footer=footer,
        scale=(f"test {metric}\nabove the {base}", most),
        caption=f"Test {metric} of each layer and {noun}; a cell without colour is at chance.",
    )


def _base(chance: float | None) -> float:
    return 0.0 if chance is None else chance


def _layer_name(data: PositionData, layer: LayerResult) -> str:
    if layer.point != data.meta["point"]:
        return "output"
    return layer.point if layer.layer is None else str(layer.layer)


def _column_name(one: PositionCurve) -> str:
    """The position, after the token that nearly all texts have there."""
    if one.token is None:
        return short(one.position, NAME)
    word = one.token.strip()
    if not any(letter.isalnum() for letter in word):  # a bracket next to a number would look like part of it
        word = repr(word or one.token)
    return f"{short(word, NAME)}  {one.position}"


def _position_notes(data: PositionData, base: str) -> list[str]:
    chance, read, level = data.positions[0].chance, "", "chance"
    if noun_of(data) == BY_HEAD and chance is not None:
        read, level = f", {position_name(data.meta['position'])}", f"{base}, {chance:.2f}"
    frame = "" if data.quoted is None else "; frame: selected on validation"
    if data.procedure is not None:
        frame = f"; {data.meta['folds']} nested folds"
    tested = data.meta.get("above_chance") is not None
    grey = GREY_NOTE if tested else f"no p-values: {data.meta['no_p_values']}"
    return [f"{short(data.meta['probe'])} probe{read}; white: {level}{frame}", grey]


def _position_cell(data: PositionData, one: PositionCurve, i: int, most: float, best: LayerResult | None) -> Cell:
    layer: LayerResult = one.layers[i]
    value, ends = layer.metrics["test"][data.headline], layer.intervals.get(data.headline)
    p, level = one.corrected[i], data.meta.get("above_chance")
    lines = [
        f"{noun_of(data)} {one.position}, {layer.place}",
        f"test {metric_name(data.headline)} {number_text(value)}{'' if ends is None else ' ' + interval_text(ends)}",
        f"chance {number_text(one.chance)}; {one.n['test']:,} test texts"
        + ("" if p is None else f"; corrected p = {p:.2g}"),
    ]
    if one.random_init:
        lines.append(f"random weights {number_text(one.random_init[i].metrics['test'].get(data.headline))}")
    muted = level is not None and is_above_chance(one, i, level) is False
    return Cell(f"{value:z.2f}", "\n".join(lines), (value - _base(one.chance)) / most, muted, layer is best)


def transfer_grid(data: TransferData) -> CellGrid:
    """Train on the rows, test on the columns: tasks or, of a shift, the values of a column."""
    meta, metric, shift = data.meta, metric_name(data.headline), data.meta.get("shift")
    is_accuracy = data.headline == "accuracy"
    chances = [float(share) for share in meta["majority"]] if is_accuracy else [float(meta["chance"])] * len(data.tasks)
    name = "the majority class" if is_accuracy else "chance"
    what = f"value of {printable(shift['column'])}" if shift else "task"
    rows = f", {short(rows)}" if (rows := within_text(meta)) else ""
    read = f"{printable(meta['point'])}, {position_name(meta['position'])}{rows}; {printable(meta['probe'])} probe"
    level = name if is_accuracy else f"chance level, {chances[0]:.2f}"
    notes = [read, f"test {metric}, 95% interval; white: {level}"]
    title = f"Transfer between tasks in {short(meta['model'])}"
    if shift:
        notes += [short_shift_text(shift)] if shift["change"] is not None else []
        title = f"{short(meta['label'])}: shift over {short(shift['column'])} in {short(meta['model'])}"
    return CellGrid(
        title,
        [f"{short(row[0].train_task, NAME)}\n{_at(row)}" for row in data.chosen],
        [short(task, NAME) for task in data.tasks],
        [
            [_transfer_cell(data, cell, chance, name) for cell, chance in zip(row, chances, strict=True)]
            for row in data.chosen
        ],
        "trained on",
        "tested on",
        notes=notes,
        footer=[("majority class", [f"{share:.2f}" for share in chances])] if is_accuracy else [],
        caption=f"Test {metric} on each {what}, at the layer that validation selected on what the probe was trained "
        f"on; white is {name}.",
    )


def _at(row: Sequence[TransferCell]) -> str:
    """The layer of a row, which is another one for each tested value where each leaves out another value."""
    return f"at {row[0].place}" if len({cell.place for cell in row}) == 1 else "each at its own layer"


def _transfer_cell(data: TransferData, cell: TransferCell, chance: float, name: str) -> Cell:
    value, ends = cell.metrics.get(data.headline), cell.intervals.get(data.headline)
    tip = f"trained on {cell.train_task}, tested on {cell.test_task}\n{cell.place}, test {metric_name(data.headline)} "
    if value is None:
        return Cell("\N{EN DASH}", f"{tip}undefined", muted=True)
    tip += f"{value:z.3f}{'' if ends is None else ' ' + interval_text(ends)}; {name} {chance:.3f}"
    least = -1.0 if data.headline == "r2" else 0.0  # of either side the end has the darkest colour
    level = (value - chance) / max(1 - chance if value >= chance else chance - least, LEAST)
    under = "" if ends is None else f"{ends[0]:.2f}\N{EN DASH}{ends[1]:.2f}"
    return Cell(f"{value:z.2f}", tip, level, under=under, bold=cell.train_task == cell.test_task)


def patching_grids(data: CausalData) -> list[CellGrid]:
    """Activation patching by layer and token, or head: how much of the clean run's answer a cell brings back.

    The colours of all grids reach the largest value of any.
    """
    values = [abs(value) for grid in data.grids for value in grid.recovery.ravel().tolist() if math.isfinite(value)]
    largest, varied = max([1e-12, *values]), bool(data.meta.get("patched", {}).get("varied"))
    grids = sorted(data.grids, key=lambda grid: grid.by == "head")  # heads last
    return [_patching_grid(grid, largest, varied) for grid in grids]


def _patching_grid(grid: PatchGrid, largest: float, varied: bool) -> CellGrid:
    inside = grid.within_placebo
    columns = [token_text(name) for name in grid.columns] if grid.by != "head" else [*map(printable, grid.columns)]
    counts = all(name.lstrip("-").isdigit() for name in grid.columns)  # texts of several lengths share no tokens
    n = f"{counted(grid.n, 'pair')}; " if grid.n is not None else ""
    grey = "no placebos" if inside is None else f"grey: inside the placebo band ({inside.mean():.0%} of cells)"
    mixed = "" if not varied or grid.by == "head" else "columns mix words, which differ by pair"
    mixed += "" if not mixed or counts else "; shown: the first pair's"
    cells = [
        [_patched_cell(grid, i, j, value / largest if math.isfinite(value) else 0.0) for j, value in enumerate(values)]
        for i, values in enumerate(grid.recovery.tolist())
    ]
    return CellGrid(
        f"{printable(grid.point)}, layer x {grid.by}",
        [*map(str, grid.layers)],
        columns,
        cells,
        "layer",
        "head" if grid.by == "head" else "token, counted from the last" if counts else "",
        first_at_bottom=True,
        notes=[note for note in (n + grey, _attribution_note(grid), mixed) if note],
        scale=("recovery", largest),
        caption=f"Activation patching at {grid.point}: recovery of the clean run's answer"
        f"{'; grey cells are inside the placebos' if inside is not None else ''}.",
    )


def _patched_cell(grid: PatchGrid, i: int, j: int, level: float) -> Cell:
    value, (low, high) = float(grid.recovery[i, j]), grid.interval[i, j].tolist()
    tip = f"layer {grid.layers[i]}, {grid.by} {grid.columns[j]}\nrecovery {value:z.3f} [{low:z.2f}, {high:z.2f}]"
    muted = grid.within_placebo is not None and bool(grid.within_placebo[i, j])
    return Cell(f"{value:z.2f}" if math.isfinite(value) and not muted else "", tip, level, muted)


def token_text(token: str) -> str:
    """A token on an axis: spaces that would be lost are shown as ␣."""
    text = short(token, TOKEN)
    return text if text.strip() else text.replace(" ", "␣") or "∅"


def _attribution_note(grid: PatchGrid) -> str:
    """Whether the cells are exact, and how well one backward pass approximates them."""
    r = "" if grid.correlation is None else f"correlation {grid.correlation:.2f}"
    if is_approximate(grid):
        sample = f" with exact patching of {counted(grid.n_exact or 0, 'pair')}" if r else ""
        return f"by attribution patching: {r or 'not compared with exact patching'}{sample}"
    return f"exact; attribution patching: {r}" if r else ""


class _Step(NamedTuple):
    """A checkpoint: the score at each place, what chance is there, and which places are not above it."""

    run: ComparedRun
    values: list[float]
    chance: float
    grey: list[bool]


def steps_grid(data: ComparisonData) -> CellGrid:
    """Layers by training steps: the headline on test; a frame marks the layer that validation selects at each step."""
    steps = [_step(data, run, column) for run, column in zip(data.runs, data.matrix.T.tolist(), strict=True)]
    most = max(LEAST, 1 - min(step.chance for step in steps))
    last = {place.place for run in data.runs for place in run.places if place.x == run.n_layers}
    tested = any(place.above_chance is not None for run in data.runs for place in run.places)
    base = "the majority class" if data.meta["n_classes"] else "the mean"
    return CellGrid(
        comparison_title(data),
        ["output" if name in last else name.rpartition(".")[2] or name for name in data.place_names],
        [step_name(step) for step in data.steps],
        [[_step_cell(data, step, i, most) for step in steps] for i in range(len(data.place_names))],
        "layer",
        "training step",
        first_at_bottom=True,
        notes=[shared_setting(data), "white: chance; frame: selected on validation", *[GREY_NOTE] * tested],
        scale=(f"test {metric_name(data.headline)}\nabove {base}", most),
    )


def _step(data: ComparisonData, run: ComparedRun, values: list[float]) -> _Step:
    n_classes = data.meta["n_classes"]
    chance = run.chance if run.chance is not None else 1 / n_classes if n_classes else 0.0
    above = {place.place: is_above(place.above_chance) for place in run.places}
    return _Step(run, values, chance, [above.get(name) is False for name in data.place_names])


def _step_cell(data: ComparisonData, step: _Step, i: int, most: float) -> Cell:
    value, quoted, name = step.values[i], step.run.quoted, data.place_names[i]
    tip = f"step {step.run.step:,}, {name}\ntest {metric_name(data.headline)} {number_text(value)}"
    framed = quoted is not None and quoted.place == name
    known = math.isfinite(value)
    return Cell(
        f"{value:z.2f}" if known else "", tip, (value - step.chance) / most if known else 0.0, step.grey[i], framed
    )


def step_name(step: int) -> str:
    """143000 -> "143k", 1_500_000 -> "1.5M"; smaller steps as they are."""
    for size, unit in ((10**12, "T"), (10**9, "B"), (1_000_000, "M"), (1000, "k")):
        if step >= size and step % (size // 10) == 0:
            return f"{step / size:g}{unit}"
    return f"{step:,}"
