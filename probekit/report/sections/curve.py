"""The curve: test score by layer with its band, what it is compared with, and the table."""

from collections.abc import Mapping, Sequence

from probekit.charts.accuracy import accuracy_chart
from probekit.charts.by_k import k_chart
from probekit.charts.curves import metric_of, named_curves, test_value
from probekit.evaluation.results.by_k import curves_by_k
from probekit.evaluation.results.curves_report import k_notes
from probekit.evaluation.results.data import ProbeData
from probekit.evaluation.results.quote import quote_line, quote_of_curves
from probekit.evaluation.results.report import curve_report, marks
from probekit.evaluation.results.wording import interval_text, number_text
from probekit.report.parts import Lines, PageTable, Part
from probekit.report.render import html_of
from probekit.report.section import Section
from probekit.report.sections.names import notes_of
from probekit.report.svg.lines import lines_picture
from probekit.tables import without_empty_columns


def curve_section(data: ProbeData) -> Section:
    """The picture of a curve, and its numbers as JSON."""
    picture = lines_picture(accuracy_chart(named_curves([data])))
    return Section("curve", "Curve", html_of([picture]), {"curve": _numbers(data)})


def table_section(data: ProbeData) -> Section:
    """The table of a curve with its marks, and the notes that no other section tells."""
    report = curve_report(data)
    notes = [*marks(data), *notes_of(data, "table")]
    head = report.rows[0]
    order = sorted(range(len(head)), key=lambda i: (i > 0, not head[i].startswith(("test ", "95%"))))  # test first
    rows = [[row[i] for i in order] for row in report.rows]
    parts: list[Part] = [Lines(report.lines), PageTable(rows, bold=report.bold), Lines(notes, "note")]
    return Section("table", "Table", html_of(parts))


def together_section(several: Sequence[tuple[str, ProbeData]], number: int = 0) -> Section:
    """Several curves of one metric, with their names, on the same axes; the score to quote of each.

    `number` counts metrics.
    Baselines and control tasks are in the table and in the section of each run: lines for all of them hide the curves.
    """
    metric = metric_of(several[0][1])
    curves = named_curves([data for _, data in several], [name for name, _ in several])
    by_k = curves_by_k([data for _, data in several])
    picture = lines_picture(k_chart(by_k) if by_k else accuracy_chart(curves, has_references=False))
    rows = [["run", "task", "selected layer", f"test {metric}", "95% interval", "best baseline", "over it"]]
    for name, data in several:
        row = [name, str(data.meta["task"]), "", "", "", "", ""]
        if (quoted := data.quoted) is not None:
            lead = data.meta.get("lead")
            where = quoted.place or "nested folds"
            over = ["", ""] if lead is None else [str(lead["baseline"]), f"{lead['over']:+z.3f}"]
            row[2:] = [where, number_text(quoted.value), interval_text(quoted.interval), *over]
        rows.append(row)
    name = "curves" if number == 0 else f"curves-{number + 1}"
    table = PageTable(without_empty_columns(rows), left=3, wraps=True)
    quotation = Lines([quote_line(quote_of_curves([data for _, data in several]))], "lead")
    notes = Lines(k_notes([data for _, data in several]), "note")
    return Section(name, f"Curves by {metric}", html_of([quotation, picture, notes, table]))


def k_section(by_k: Mapping[int, ProbeData], number: int = 0) -> Section:
    """The picture of k-sparse curves by k, and the k that validation chooses; `number` counts them."""
    curves = [*by_k.values()]
    name = f"by-k-{number + 1}" if number else "by-k"
    return Section(name, "Score by k", html_of([lines_picture(k_chart(by_k)), Lines(k_notes(curves), "note")]))


def _numbers(data: ProbeData) -> dict[str, object]:
    """What the picture shows, for other programs."""
    layers = [
        {
            "place": layer.place,
            "test": test_value(data, layer),
            "interval": layer.intervals.get(data.headline),
            "band": layer.band,
            "validation": layer.metrics.get("validation", {}).get(data.headline),
            "control": layer.control,
        }
        for layer in data.layers
    ]
    baselines = {one.name: one.metrics["test"].get(data.headline) for one in data.baselines}
    return {"metric": data.headline, "layers": layers, "baselines": baselines}
