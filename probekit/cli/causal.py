"""`probekit causal`: whether the model uses what its probes read."""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from probekit.cli import console
from probekit.cli.derive import command
from probekit.cli.fields import Output, argument
from probekit.cli.results import check_question, emit
from probekit.cli.stores import check_results_out
from probekit.errors import DataError, ProbekitError, UsageError
from probekit.files.plain_files import MAX_RESULTS, read_bytes
from probekit.files.records import Count, parse_record, read_as
from probekit.files.remote.path import AnyPath, as_path, local_path
from probekit.machine.progress import parts_line
from probekit.manifest import (
    check_is_store,
    is_store,
    newest_manifest,
    newest_with_results,
    results_home,
    stored_places,
)
from probekit.options import CausalOptions
from probekit.options.check import check_there
from probekit.options.kinds import READING
from probekit.options.option import CHECKS, RUNS, option
from probekit.options.picture import PictureOptions
from probekit.options.question import Question, asked_by, default_folder
from probekit.points import places_of
from probekit.results.kinds import refuse_other_kind
from probekit.text import listed

if TYPE_CHECKING:
    from probekit.activations import Store
    from probekit.causal.results.results import CausalResults
    from probekit.evaluation import ProbeResults
    from probekit.models.base import LanguageModel

ORDER = """
    path answers answer_at answers_label method layer at scale rows out dry_run
    placebos no_das no_completeness neutral pairs align
    exact label point store model check seed title no_title width format
"""
WITHOUT_DIRECTION = ("mlp",)  # kinds of probes that are no linear map


class _Curve(TypedDict, total=False):
    label: str
    point: str
    probe: str
    position: str | int | list[str]
    classes: list[str]
    n_classes: Count
    n: dict[str, Count]
    activations: dict[str, Any]


class _Trained(TypedDict):
    """What results of probes say before they are loaded."""

    meta: _Curve


@dataclass(frozen=True, kw_only=True)
class CausalJob(Output):
    """The probes, the store that they were trained on, the model, and the folder for the results."""

    path: str | None = argument(
        "A store with results of `probekit train-probe`, or a folder of such results; hf://OWNER/NAME with --store.  "
        "[default: the newest store under ./runs that has some]",
        metavar="[STORE|RESULTS]",
        default=None,
    )
    label: str | None = option(None, "Take the results of this label set.  [default: the newest]", metavar="NAME")
    point: str | None = option(None, "Take the results of this point.  [default: the newest]", metavar="NAME")
    store: AnyPath | None = option(None, "The store of results that lie elsewhere.", metavar="DIR")
    model: str | None = option(
        None, "The model that made the store.  [default: where it was loaded from]", metavar="NAME|FOLDER", heading=RUNS
    )
    check: str = option(
        "hash", "hash: compare what is read with its checksums; size: only the sizes of files.", READING, heading=CHECKS
    )
    out: Path | None = option(
        None, "Where the results go.  [default: STORE/results/causal-LABEL-POINT-...]", metavar="DIR"
    )
    dry_run: bool = option(False, "Say what would be run and how long it would take, and stop.")


@command(ORDER)
def causal(job: CausalJob, options: CausalOptions, picture: PictureOptions) -> None:
    """Edit what probes read, and watch the model's next token.

    Directions are fitted to train rows; direction, layer and scale are chosen on validation rows; effects are those on
    test rows, compared with the same edits along placebo directions. Writes causal_by_layer.png and .svg, causal.json
    and tables as CSV. A run that was stopped resumes with the layers that are missing.

    Minimal pairs (--pairs FILE --method patch) carry their answers, and need neither --answers nor probes.

    \b
    Examples:
        probekit causal --answers is,are
        probekit causal runs/agreement-gpt2-agreement --answers is,are --method interchange,erase
        probekit causal runs/STORE/results/number-resid_pre-logistic --answers is,are --layer 2-4 --rows 500
        probekit causal runs/STORE --method patch --pairs pairs.csv
    """
    store_path, results_path = find_results(job, not options.patches_pairs_alone)
    check_results_out(job.out, store_path)
    if results_path is not None:
        _check_record(store_path, results_path, options)
    for file in (options.pairs, options.neutral):
        if file is not None:
            check_there(Path(file))
    if not job.quiet:
        if job.path is None:
            console.note(f"probes: {results_path} (the newest)")
        if options.at == "all":
            console.note("edits at all tokens: erase and steer; interchange takes the coordinate of one token")
    console.hush_downloads(job.quiet)
    run_causal(store_path, results_path, options, job, picture)


def run_causal(
    store_path: AnyPath,
    results_path: Path | None,
    options: CausalOptions,
    job: CausalJob,
    picture: PictureOptions = PictureOptions(),  # noqa: B008 (frozen)
) -> None:
    """Open everything, run, save and print.

    Raises:
        StorageError: `job.out` holds something else; the disk refused.
        ResumeMismatch: `job.out` holds results of another question.
        KeyboardInterrupt: with what is complete and how to resume.
    """
    began = time.perf_counter()
    with parts_line(console.bars(job.quiet)) as line:
        line.part("loading libraries")
        from probekit.activations import load_activations
        from probekit.causal.curve.question import check_results
        from probekit.evaluation import ProbeResults

        line.part("reading the results")
        results = None if results_path is None else ProbeResults.load(results_path)
        if results is not None:
            check_results(results)
        store = load_activations(store_path, job.check)
        asked = asked_by(options, probes=results_path.name if results_path else None)
        question = Question("causal", "causal", asked, asked)
        names = ["pairs"] if results is None else [results.meta["label"], results.meta["point"]]
        folder = job.out or default_folder(question, results_home(store_path), *names)
        check_question(folder, question)
        line.part("loading the model")
        model = _load(job.model, store)
    if job.dry_run:
        _show_plan(model, store, results, options, job, began)
        return
    found = _run(model, store, results, options, folder, job)
    found.meta["files"] = {name: str(path) for name in ("neutral", "pairs") if (path := getattr(options, name))}
    where = {"store": str(store_path)}
    if results_path is not None:
        where["probes"] = str(results_path)
        found.meta["files"]["probes"] = os.path.relpath(results_path.resolve(), folder.resolve().parent)
    emit(found, question, folder, job, picture, "the edits are complete", where)
    from probekit.causal.curve.parts import remove_places

    remove_places(folder)


def _run(
    model: "LanguageModel",
    store: "Store",
    results: "ProbeResults | None",
    options: CausalOptions,
    folder: Path,
    job: CausalJob,
) -> "CausalResults":
    from probekit.causal.curve.causal_curve import causal_curve
    from probekit.causal.curve.parts import kept_places

    try:
        with parts_line(console.bars(job.quiet)) as line:
            return causal_curve(
                model, store, results, **vars(options), keep=folder, on_progress=line.set, on_part=line.part
            )
    except KeyboardInterrupt:
        if results is None:
            raise
        n = kept_places(folder)
        kept = f"saved {n} of {len(results.layers)} places in {folder}" if n else "no place was complete yet"
        raise KeyboardInterrupt(f"{kept}; run the same command again to resume") from None


def find_results(job: CausalJob, needs_probes: bool = True) -> tuple[AnyPath, Path | None]:
    """The store, and the folder of results of probes trained on it unless none are needed; nothing here needs torch.

    Raises:
        DataError: no store there, or no results in it.
        UsageError: results whose store is not known, or two stores.
    """
    root = Path("runs")
    given = job.path or str(newest_with_results(root, ["results.json"]) if needs_probes else newest_manifest(root))
    path = as_path(given)
    if job.store is not None:  # so `given` are results, and those of the Hub are downloaded
        from probekit.probes.in_results import results_folder

        path = results_folder(given)
    here = local_path(path)
    if here is None:
        if str(path).startswith("hf:") and not is_store(path):
            raise DataError(f"no store at {given!a}; for results on the Hub, name the store they are of with --store")
        check_is_store(path)
        return path, _newest_results(path, job) if needs_probes else None
    path = here
    if not path.is_dir():
        raise DataError(f"no folder {str(path)!a}; name a store, or a folder of results of train-probe")
    if (path / "curves.json").is_file():
        raise UsageError(f"{str(path)!a} holds several curves; name the folder of one of them")
    if not (path / "results.json").is_file():
        refuse_other_kind(path)
        check_is_store(path)
        if job.store is not None:
            raise UsageError(f"{str(path)!a} is a store itself; leave out --store, or name a folder of results")
        return path, _newest_results(path, job) if needs_probes else None
    if chosen := _chosen(job):
        flag = chosen[0][0]
        raise UsageError(f"{flag} chooses among the results of a store, and {str(path)!a} are results; leave it out")
    probes = path if needs_probes else None
    if job.store is not None:
        check_is_store(job.store)
        return job.store, probes
    for folder in path.resolve().parents:
        if (folder / "plan.json").is_file() and (folder / "manifest.json").is_file():
            return folder, probes
    raise UsageError(f"the results in {str(path)!a} lie in no store; name the store they are of with --store")


def _chosen(job: CausalJob) -> list[tuple[str, str]]:
    """The flags that choose among the results of a store, with their values."""
    return [(flag, given) for flag, given in (("--label", job.label), ("--point", job.point)) if given is not None]


def _newest_results(store: AnyPath, job: CausalJob) -> Path:
    """The newest results of this label and point, of those that causal can use if there are any."""
    dated, home = [], results_home(store)
    for file in [*home.glob("*/results.json"), *home.glob("*/*/results.json")]:
        meta = _record(file.parent)
        if job.label in (None, meta.get("label")) and job.point in (None, meta.get("point")):
            dated.append((_is_usable(meta), file.stat().st_mtime_ns, file.parent))
    if not dated:
        asked = _chosen(job)
        wanted = f" of {listed([given for _, given in asked])}" if asked else ""
        how = " ".join(["probekit train-probe", str(store), *(f"{name} {given}" for name, given in asked)])
        raise DataError(f"{str(store)!a} holds no results of probes{wanted}; run {how} first")
    return max(dated)[2]


def _record(results: Path) -> dict[str, Any]:
    """What the results say of themselves; empty if they cannot be read."""
    try:
        return read_as(_Trained, parse_record(read_bytes(results / "results.json", MAX_RESULTS)))["meta"]
    except (OSError, ValueError):
        return {}


def _is_usable(meta: Mapping[str, Any]) -> bool:
    """Whether causal can use results of such a record."""
    from probekit.causal.curve.refusals import check_curve

    try:
        check_curve(meta)
    except ProbekitError:
        return False
    return meta["probe"] not in WITHOUT_DIRECTION


def _check_record(store: AnyPath, results: Path, options: CausalOptions) -> None:
    """Refuse what the record of the probes and that of the store show already, before torch is imported."""
    from probekit.causal.curve.refusals import check_answers, check_curve, check_numbers

    if not (meta := _record(results)):
        return  # loading it says what is wrong
    check_curve(meta)
    if not meta["n_classes"]:
        check_numbers(meta["label"], options)
    elif options.answers_label is None or options.answers is None:
        check_answers(meta["label"], list(meta["classes"]), list(options.answers or ()) or None)
    known = stored_places(store)
    if known is not None and meta["point"] in known.points:
        places_of(known, meta["point"], options.layers)


def _load(name: str | None, store: "Store") -> "LanguageModel":
    """The model of the store, as it was loaded."""
    from probekit.models.load import load_model

    source = dict(store.source or {})
    if name is None and "name_or_path" not in source:
        raise UsageError(f"{str(store.path)!a} does not say where its model was loaded from; name it with --model")
    name_or_path = source.pop("name_or_path", None)
    return load_model(name or name_or_path, **(source if name is None else {}))


def _show_plan(
    model: "LanguageModel",
    store: "Store",
    results: "ProbeResults | None",
    options: CausalOptions,
    job: CausalJob,
    began: float,
) -> None:
    from probekit.causal.curve.estimate import describe_causal, plan_causal
    from probekit.causal.curve.grids import plan_patching

    if results is None:
        plan = plan_patching(model, store.meta.get("bos"), options)
        text = "\n".join(f"{key:<9}{value}" for key, value in plan.items())
    else:
        from probekit.plots.causal import save_causal_plot  # noqa: F401  the run needs it, too

        loading = time.perf_counter() - began
        plan = plan_causal(model, store, results, options)
        plan |= {"seconds": plan["seconds"] + loading, "parts": {"loading": loading} | plan["parts"]}
        text = describe_causal(plan)
    console.answer(job, lambda: plan, text)
