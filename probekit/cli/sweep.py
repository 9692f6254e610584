"""`probekit sweep`: many tasks, models, points and probes, with one table; the same command resumes it."""

import dataclasses
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probekit.cli import console, stores
from probekit.cli.derive import command
from probekit.cli.extract import MODEL
from probekit.cli.fields import Output, required
from probekit.cli.results import draw
from probekit.errors import DataError
from probekit.machine.program import loading
from probekit.machine.progress import parts_line
from probekit.options import ClusterOptions, SweepArguments, kinds
from probekit.options.option import option
from probekit.options.picture import PictureOptions
from probekit.options.question import Question, asked_by, default_folder
from probekit.text import counted, listed

if TYPE_CHECKING:
    from probekit.sweeps import SweepResults, SweepRun
    from probekit.sweeps.run import SweepPlan

ORDER = "model dataset point layer probe position limit quick out dry_run stores engine workers gpus_per_worker address"


@dataclass(frozen=True, kw_only=True)
class SweepJob(Output):
    """The models, the tasks, and whether anything is run."""

    model: str = required(f"{MODEL[:-1]}; several with commas.", "NAMES|FOLDERS")
    dataset: str = required(
        "A folder with a table for each task, or names, files and folders as of extract, with commas.", "FOLDER|NAMES"
    )
    dry_run: bool = option(False, "Read the tasks, say what would be run, and stop.")


@command(ORDER, config_first=True)
def sweep(job: SweepJob, options: SweepArguments, picture: PictureOptions) -> None:
    """Train probes for many tasks on many models, with one table.

    A folder of 155 CSV files is 155 tasks. Each model is loaded once for all of them. A task that fails is one line
    with its reason, the others are done, and the exit code is 3. Run the same command again to resume a sweep that was
    killed; nothing is done twice. Writes results.csv, a picture, and a folder of results for each run, as train-probe
    does.

    \b
    Examples:
        probekit sweep --model gpt2 --dataset tasks/ --quick
        probekit sweep --model gpt2,pythia-70m --dataset tasks/ --point resid_pre,mlp_out --probe logistic,mean-diff
        probekit sweep configs/sweep.yaml --dry-run
    """
    console.hush_downloads(job.quiet)
    out = Path(options.out or _default_out(job, options))
    options = dataclasses.replace(options, out=out)
    stores.check_out(out)
    from probekit.models.load import check_model
    from probekit.options.sweep import model_options_of, shared_options

    is_path = os.path.exists(job.model)  # noqa: PTH110 (of a name that is too long for a path this is False)
    for name in [job.model] if is_path else kinds.names(job.model):
        check_model(name, model_options_of(options))
    with parts_line(console.bars(job.quiet)) as line:
        line.part("loading libraries")
        with loading():
            from probekit.engines.ray_sweep import runs_on_ray
            from probekit.sweeps.run import plan_sweep, run_sweep

        asked = asked_by(shared_options(options), model=job.model, dataset=job.dataset)
        plan = dataclasses.replace(plan_sweep(job.model, job.dataset, options), asked=asked)
        if job.dry_run:
            from probekit.sweeps.preview import preview

            line.part("reading tasks")
            found = preview(plan, line.set)
            line.clear()
            console.answer(job, lambda: {"out": str(plan.folder), **found.as_dict}, found)
            return
        line.part("runs")
        with console.interrupt_says(f"the runs that ended are in {out}; run the same command again to resume"):
            more = {"on_progress": line.set, "on_run": lambda run: _note(job, plan, run)}
            results = run_sweep(dataclasses.replace(plan, options=dataclasses.replace(options, **more)), runs_on_ray)
    _show(job, out, results, picture)
    if results.failed:
        names = listed([run.task for run in results.failed], most=3)
        raise DataError(
            f"{len(results.failed)} of {counted(len(results.runs), 'run')} failed ({names}); correct the data, and run "
            "the same command again: it repeats only these"
        )


def _show(job: SweepJob, out: Path, results: "SweepResults", picture: PictureOptions) -> None:
    """Draw and print the results."""
    from probekit.sweeps.files import TABLE, table_rows

    pictures = draw("sweep", results, out, picture)
    table = str(out / TABLE)

    def body() -> dict[str, Any]:
        failed = [{"task": run.task, "model": run.model, "error": run.error} for run in results.failed]
        rows = [row for row in table_rows(results) if not row["error"]]
        paths = {"sweep": str(out), "table": table, "picture": str(pictures[0]) if pictures else None}
        return {**paths, "rows": rows, "failed": failed, "meta": results.meta}

    lines = [str(results.summary()), "", f"Table: {table}", *(f"Picture: {path}" for path in pictures)]
    console.answer(job, body, "\n".join(lines), brief=table)


def _note(job: SweepJob, plan: "SweepPlan", run: "SweepRun") -> None:
    """Say at once that a run failed."""
    from probekit.sweeps.report import failure_text

    if run.error and not job.quiet:
        console.note(f"failed: {failure_text(run, len(plan.models) > 1)}")


def _default_out(job: SweepJob, options: SweepArguments) -> Path:
    """A folder under runs for these models, tasks and options, so that the same command finds it again."""
    who = {one.name for one in dataclasses.fields(ClusterOptions)}  # the same sweep, whoever does the work
    shown = {one.name: repr(getattr(options, one.name)) for one in dataclasses.fields(options) if one.name not in who}
    name: Any = Path(job.dataset).name if Path(job.dataset).exists() else ""
    plain = re.sub(r"[^A-Za-z0-9]", "-", name)[:40].strip("-") or "tasks"
    asked = {"model": job.model, "dataset": job.dataset, **shown}
    return default_folder(Question("sweep", "sweep", asked, [job.model, job.dataset, shown]), Path("runs"), plain)
