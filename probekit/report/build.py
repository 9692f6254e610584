"""From runs to the page: which sections there are, in which order, and the file."""

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from markupsafe import Markup

from probekit.activations.activations import Activations
from probekit.causal.results.results import CausalResults
from probekit.errors import DataError, ProbekitError, StorageError, UsageError
from probekit.evaluation import PositionResults, ProbeResults, TransferResults
from probekit.evaluation.results.by_k import k_of, setting_of
from probekit.evaluation.results.curves_report import within_notes
from probekit.evaluation.results.data import ProbeData
from probekit.evaluation.results.report import title as curve_title
from probekit.evaluation.results.wording import latents_read
from probekit.files.durable import write_as
from probekit.files.plain_files import open_regular
from probekit.machine.progress import SILENT, Steps, shown_parts
from probekit.models.base import LanguageModel
from probekit.options.check import check_path
from probekit.options.option import keywords
from probekit.options.report import ReportOptions, TokenOptions
from probekit.probes.in_results import results_folder
from probekit.report.page import Group, Page, page_html
from probekit.report.parts import Lines
from probekit.report.render import html_of
from probekit.report.runs import ReportRun, load_runs, names_of_causal, titles_of_runs
from probekit.report.section import Section
from probekit.report.sections.audit import audit_section
from probekit.report.sections.causal import causal_section
from probekit.report.sections.controls import controls_section
from probekit.report.sections.curve import curve_section, k_section, table_section, together_section
from probekit.report.sections.grids import positions_section, transfer_section
from probekit.report.sections.latents import latents_section
from probekit.report.sections.provenance import provenance_section
from probekit.report.sections.scores import confusion_section, scores_section
from probekit.report.sections.summary import summary_section
from probekit.report.tokens.find import Shown, view_of_results
from probekit.report.tokens.section import SCRIPTS, STYLES, TITLE, token_section
from probekit.text import counted, kind_of, printable


def tokens_of_run(
    data: ProbeData, acts: Activations | None, options: TokenOptions, parts: Steps = SILENT
) -> Section | None:
    """The section of one curve.

    Args:
        data: the curve.
        acts: the activations that it was trained on; None where they were not found.
        options: which texts, and the model.
        parts: says what is being done.

    Returns:
        The section; None if it was not asked for.
    """
    if not options.tokens:
        return None
    if latents_read(data.meta):
        return _without("the probe reads latents; the section on the best latents has their strongest tokens")
    try:
        if acts is None:
            return _without("the store with the texts of the probes was not found; name it with --store")
        model = None if options.model is None else _loaded(options.model, data)
        shown = Shown(options.texts, int(data.meta.get("seed") or 0), options.fpr)
        return token_section(view_of_results(data, acts, model, shown, parts))
    except ProbekitError as error:
        return _without(str(error))


def _loaded(name: str, data: ProbeData) -> LanguageModel:
    """The model, in the type and by the code that computed the probes' activations."""
    from probekit.models import load_model

    origin = data.meta.get("activations", {})
    known = {"dtype": origin.get("compute_dtype"), "via": origin.get("via"), "quantize": origin.get("quantize")}
    return load_model(name, **{key: value for key, value in known.items() if value}, progress=False)


def _without(why: str) -> Section:
    return Section("tokens", TITLE, Markup("<p>No scores of single tokens here: {}.</p>").format(printable(why)))


_MARK = b'<meta name="generator" content="probekit '
DETAILS = ("confusion", "scores", "controls", "tokens")  # sections that are folded where the page has several runs
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
        UsageError: something else than folders.
        DataError: no results there, or incomplete ones.
        StorageError: `out` is a folder or another file, or the disk refused.
    """
    path = check_report_file(check_path("out", out))
    paths = [runs] if isinstance(runs, str | Path) else runs
    if not isinstance(paths, Sequence) or not all(isinstance(one, str | Path) for one in paths):
        raise UsageError(f"a report is made of folders of results; got {kind_of(runs)}; save it: results.save(folder)")
    with shown_parts(options) as shown:
        parts = Steps(shown.on_part or SILENT.begin, shown.on_progress or SILENT.advance)
        parts.begin("reading the results")
        found = load_runs([results_folder(one) for one in paths], options.store, parts.advance)
        html = report_html(found, options, parts)
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


def report_html(runs: Sequence[ReportRun], options: ReportOptions, parts: Steps = SILENT) -> str:
    """The page of some runs; what several have in common, their data and their origin, comes once and last.

    Raises:
        DataError: there are none.
    """
    if not runs:
        raise DataError("a report needs one run or more; give a folder of results or a store")
    titles = titles_of_runs(runs)
    groups, shared = [], []
    for i, run in enumerate(runs):
        own = f"run {i + 1} of {len(runs)}: " if len(runs) > 1 else ""
        said = Steps(lambda name, own=own: parts.begin(f"{own}{name}"), parts.advance)
        groups.append(Group(f"run-{i + 1}", titles[i], _sections(run, options, said)))
    parts.begin("comparing texts")
    shared = [*_audits(runs), *_provenance(runs)]
    if len(runs) == 1:
        groups = [replace(groups[0], sections=[*groups[0].sections, *_rows(runs), *shared])]
    else:
        groups = [Group(one.name, one.title, _prefixed(one)) for one in groups]
        groups.append(Group("shared", "Data and provenance", shared))
        if together := [*_rows(runs), *_together(runs, titles)]:
            groups.insert(0, Group("all-runs", "All runs", together))
    title = options.title or (titles[0] if len(runs) == 1 else counted(len(runs), "run"))
    subtitle = curve_title(runs[0].results) if len(runs) == 1 and isinstance(runs[0].results, ProbeResults) else ""
    return page_html(Page(title, subtitle, groups), *(STYLES, SCRIPTS) if options.tokens else ())


def _sections(run: ReportRun, options: ReportOptions, parts: Steps) -> list[Section]:
    """What is of this run alone."""
    data = run.results
    found: list[Section | None]
    if isinstance(data, ProbeResults):
        causal = [(name, one.data) for name, one in zip(names_of_causal(run), run.causal.values(), strict=True)]
        found = [summary_section(data, causal), curve_section(data), table_section(data)]
        found += [latents_section(data, run.store), confusion_section(data), scores_section(data)]
        found.append(controls_section(data))
        found += [causal_section(one, number, name) for number, (name, one) in enumerate(causal)]
        found.append(tokens_of_run(data, run.store, options, parts))
    elif isinstance(data, PositionResults):
        found = [positions_section(data)]
    elif isinstance(data, TransferResults):
        found = [transfer_section(data)]
    else:
        assert isinstance(data, CausalResults)
        found = [causal_section(data.data)]
    return [section for section in found if section is not None]


def _rows(runs: Sequence[ReportRun]) -> list[Section]:
    """That each run is of the rows with one value of a column, and which values have none."""
    curves = [run.results for run in runs if isinstance(run.results, ProbeResults)]
    grids = [run.results for run in runs if isinstance(run.results, PositionResults | TransferResults)]
    notes = [*within_notes(curves, "curve"), *within_notes(grids, "grid")]
    return [Section("rows", "Rows of each run", html_of([Lines(notes, "note")]))] if notes else []


def _audits(runs: Sequence[ReportRun]) -> list[Section]:
    """A section for each audit that differs, of curves and of curves by position."""
    audited: dict[tuple[object, ...], ReportRun] = {}
    for run in runs:
        if isinstance(run.results, ProbeResults | PositionResults):
            meta = run.results.meta
            store = None if run.store is None else run.store.path
            key = (json.dumps(meta.get("audit"), sort_keys=True, default=str), store, meta["task"], meta["label"])
            audited.setdefault(key, run)
    sections = [audit_section(run.results, run.store.task if run.store else None) for run in audited.values()]
    names = [f"{run.results.meta['label']} of {run.results.meta['task']}" for run in audited.values()]
    return _apart(sections, names)


def _provenance(runs: Sequence[ReportRun]) -> list[Section]:
    """A section for each store, with the commands of all its runs; one for each run whose store was not found."""
    of_store: dict[object, list[ReportRun]] = defaultdict(list)
    for i, run in enumerate(runs):
        of_store[i if run.store is None else run.store.path].append(run)
    names = [f"{own[0].results.meta['model']} on {own[0].results.meta.get('task')}" for own in of_store.values()]
    return _apart([provenance_section(own) for own in of_store.values()], names)


def _apart(sections: Sequence[Section], names: Sequence[str]) -> list[Section]:
    """Sections of one kind with anchors of their own, and names where there are several."""
    if len(sections) == 1:
        return [*sections]
    return [
        replace(one, name=f"{one.name}-{i + 1}", title=f"{one.title}: {printable(name)}")
        for i, (one, name) in enumerate(zip(sections, names, strict=True))
    ]


def _prefixed(group: Group) -> list[Section]:
    """The sections of one of several runs: with anchors of their own, and the details folded."""
    return [
        replace(section, name=f"{group.name}-{section.name}", folded=section.name in DETAILS)
        for section in group.sections
    ]


def _together(runs: Sequence[ReportRun], titles: Sequence[str]) -> list[Section]:
    """Curves of one metric on the same axes."""
    by_metric: dict[str, list[tuple[str, ProbeResults]]] = defaultdict(list)
    for run, title in zip(runs, titles, strict=True):
        if isinstance(run.results, ProbeResults):
            by_metric[run.results.headline].append((title, run.results))
    several = [curves for curves in by_metric.values() if len(curves) > 1]
    by_k = [found for curves in several for found in _groups_by_k([data for _, data in curves], len(curves))]
    sections = [together_section(curves, number) for number, curves in enumerate(several)]
    return [*(k_section(found, number) for number, found in enumerate(by_k)), *sections]


def _groups_by_k(curves: Sequence[ProbeResults], n: int) -> list[dict[int, ProbeData]]:
    """The k-sparse curves among several, by k: those of each setting; none where all are of one, drawn by k anyway."""
    groups: dict[str, list[ProbeData]] = defaultdict(list)
    for curve in curves:
        groups[json.dumps(setting_of(curve), sort_keys=True, default=str)].append(curve)
    found = [{k: one for one in own if (k := k_of(one)) is not None} for own in groups.values()]
    return [dict(sorted(one.items())) for one in found if 1 < len(one) < n]
