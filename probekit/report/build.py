"""From runs to the page: which sections there are, in which order, and the file."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from probekit.causal.results.results import CausalResults
from probekit.durable import write_as
from probekit.errors import DataError, StorageError
from probekit.evaluation import PositionResults, ProbeResults, TransferResults
from probekit.evaluation.results.report import title as curve_title
from probekit.options.check import check_path
from probekit.options.option import keywords
from probekit.options.report import ReportOptions
from probekit.plain_files import open_regular
from probekit.probes.in_results import results_folder
from probekit.report.page import Group, Page, page_html
from probekit.report.runs import Run, load_runs, titles_of_runs
from probekit.report.section import Section
from probekit.report.sections.audit import audit_section
from probekit.report.sections.causal import causal_section
from probekit.report.sections.confusion import confusion_section
from probekit.report.sections.controls import controls_section
from probekit.report.sections.curve import curve_section, table_section, together_section
from probekit.report.sections.grids import positions_section, transfer_section
from probekit.report.sections.provenance import provenance_section
from probekit.report.sections.scores import scores_section
from probekit.report.sections.summary import summary_section
from probekit.report.tokens.run import tokens_of_run
from probekit.report.tokens.section import SCRIPTS, STYLES
from probekit.text import counted

_MARK = b'<meta name="generator" content="probekit '
_HEAD = 400  # bytes of a report that hold the mark


@keywords(ReportOptions)
def write_report(runs: Sequence[str | Path] | str | Path, out: str | Path, options: ReportOptions) -> Path:
    """Write the results of one or several runs as one HTML file, which loads nothing else; returns its path.

    Args:
        runs: one or several folders of results (of `train_probes`, `transfer` or `causal_curve`), or stores that hold
            such folders.
        out: the file; an earlier report there is replaced.
        options: what is shown.

    Raises:
        DataError: no results there, or incomplete ones.
        StorageError: `out` is a folder or another file, or the disk refused.
    """
    path = check_report_file(check_path("out", out))
    paths = [runs] if isinstance(runs, str | Path) else runs
    html = report_html(load_runs([results_folder(one) for one in paths], options.store), options)
    write_as(path, html.encode("utf-8", "replace"))
    return path


def check_report_file(path: Path) -> Path:
    """`path` itself, where a report may be written: nothing is there, or an earlier report.

    Raises:
        StorageError: a folder, or a file that is not a report.
    """
    if not path.exists():
        return path
    try:
        with open_regular(path) as file:
            is_report = _MARK in file.read(_HEAD)
    except OSError as error:
        raise StorageError(
            f"{str(path)!a} cannot be replaced: {error.strerror or error}; name another file (--out)"
        ) from None
    if not is_report:
        raise StorageError(f"{str(path)!a} is there and is no report of probekit; name another file (--out)")
    return path


def report_html(runs: Sequence[Run], options: ReportOptions) -> str:
    """The page of some runs.

    Raises:
        DataError: there are none.
    """
    if not runs:
        raise DataError("a report needs one run or more; give a folder of results or a store")
    titles = titles_of_runs(runs)
    groups = [Group(f"run-{i + 1}", titles[i], _sections(run, options)) for i, run in enumerate(runs)]
    if len(runs) > 1:
        groups = [Group(one.name, one.title, _prefixed(one)) for one in groups]
        if together := _together(runs, titles):
            groups.insert(0, Group("all-runs", "All runs", together))
    title = options.title or (titles[0] if len(runs) == 1 else counted(len(runs), "run"))
    subtitle = curve_title(runs[0].results) if len(runs) == 1 and isinstance(runs[0].results, ProbeResults) else ""
    return page_html(Page(title, subtitle, groups), *(STYLES, SCRIPTS) if options.tokens else ())


def _sections(run: Run, options: ReportOptions) -> list[Section]:
    data, task = run.results, None if run.store is None else run.store.task
    found: list[Section | None]
    if isinstance(data, ProbeResults):
        causal = [one.data for one in run.causal.values()]
        found = [summary_section(data, causal), curve_section(data), table_section(data)]
        found += [confusion_section(data), scores_section(data), controls_section(data), audit_section(data, task)]
        found += [causal_section(one, number) for number, one in enumerate(causal)]
        found.append(tokens_of_run(data, run.store, options))
    elif isinstance(data, PositionResults):
        found = [positions_section(data), audit_section(data, task)]
    elif isinstance(data, TransferResults):
        found = [transfer_section(data)]
    else:
        assert isinstance(data, CausalResults)
        found = [causal_section(data.data)]
    return [section for section in [*found, provenance_section([run])] if section is not None]


def _prefixed(group: Group) -> list[Section]:
    """The sections with anchors of their own."""
    return [replace(section, name=f"{group.name}-{section.name}") for section in group.sections]


def _together(runs: Sequence[Run], titles: Sequence[str]) -> list[Section]:
    """Curves of one metric on the same axes."""
    by_metric: dict[str, list[tuple[str, ProbeResults]]] = defaultdict(list)
    for run, title in zip(runs, titles, strict=True):
        if isinstance(run.results, ProbeResults):
            by_metric[run.results.headline].append((title, run.results))
    several = [curves for curves in by_metric.values() if len(curves) > 1]
    return [together_section(curves, number) for number, curves in enumerate(several)]
