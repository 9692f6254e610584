"""Whether the model uses what the probe reads: effects of edits by layer, the table, and the reviewer's checklist."""

from probekit.causal.data import CausalData
from probekit.causal.results.checklist import answered, reviewer_checklist
from probekit.causal.results.report import causal_report
from probekit.charts.effects import causal_chart, other_edits_chart
from probekit.charts.grids import patching_grids
from probekit.report.parts import Items, Lines, More, PageTable, Part, Picture
from probekit.report.render import html_of
from probekit.report.section import Section
from probekit.report.svg.grid import draw_grid
from probekit.report.svg.lines import lines_picture


def causal_section(data: CausalData, number: int = 0, own: str = "") -> Section:
    """The section of one causal run; `number` counts those after the first, `own` says how it differs from others."""
    report = causal_report(data)
    parts: list[Part] = [Lines(report.lines)]
    if data.layers:
        rows = [[row[0], row[-1], *row[1:-1]] for row in report.rows]  # the quadrant, which a phone would cut off
        parts.append(lines_picture(causal_chart(data), "Effects are shares: 0 is no effect, 1 is all of the way."))
        parts += [lines_picture(chart, f"{chart.name}.") for chart in [other_edits_chart(data)] if chart]
        parts.append(PageTable(rows, left=2, bold=report.bold))
    parts += [Picture(draw_grid(grid), grid.caption) for grid in patching_grids(data)]
    parts.append(Lines(report.notes, "note"))
    items = data.checklist or reviewer_checklist(data)
    lines = [f"{'✓' if item.is_answered else '○'} {item.question} {item.answer}" for item in items]
    parts.append(
        More(f"Reviewer's checklist: {answered(items)} answered (✓ means answered, not passed)", [Items(lines)])
    )
    name = "causal" if number == 0 else f"causal-{number + 1}"
    return Section(name, f"Is it used?{f' {own}' if own else ''}", html_of(parts))
