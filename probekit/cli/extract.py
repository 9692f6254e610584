"""`probekit extract`: a model's activations on a dataset, as a store on disk."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from probekit.cli import console, options
from probekit.errors import ProbekitError, StorageError

if TYPE_CHECKING:
    from probekit.activations import ExtractionPlan

Dataset = Annotated[
    str,
    typer.Option(
        metavar="NAME|PATH",
        help="sst2, agreement, counting, ranking, spans, dialogue, brackets, brackets-depth, a Hub name, or a file or "
        "folder of CSV, TSV, JSONL, Parquet or CoNLL-U.",
    ),
]
Points = Annotated[str, typer.Option(metavar="NAMES", help="Points with commas between them (see: probekit points).")]
Layers = Annotated[str, typer.Option(metavar="LAYERS", help="all, 3, 0,4,8 or 2-6.")]
Position = Annotated[
    str | None,
    typer.Option(
        metavar="TOKEN",
        help="last, first, mean, a token's number; several with commas; all.  [default: the task's own]",
    ),
]
Limit = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="At most N texts (of words: all of N texts) of each split.")
]
Out = Annotated[Path | None, typer.Option(metavar="PATH", help="The store.  [default: a name under ./runs]")]
Dtype = Annotated[str, typer.Option(metavar="TYPE", help="Type to compute in: fp32, bf16 or fp16.")]
StoreDtype = Annotated[str, typer.Option(metavar="TYPE", help="Type on disk: fp32, fp16 or bf16.")]
BatchTokens = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help="Tokens computed at once.  [default: 2048 on a CPU, 16384 elsewhere]"),
]
Bos = Annotated[
    bool | None,
    typer.Option(
        "--bos/--no-bos",
        help="Put the model's BOS token before each text.  [default: no; BERT's CLS and SEP, Marian's </s>: yes]",
    ),
]
KeepBlanks = Annotated[bool, typer.Option("--keep-blanks", help="Leave white space at the end of texts.")]
OnLong = Annotated[Literal["cut", "error"], typer.Option(help="Texts longer than the context.")]
OnBadRow = Annotated[Literal["error", "skip"], typer.Option(help="Rows without a usable text or label.")]
TextColumn = Annotated[str | None, typer.Option(metavar="NAME", help="Column of the texts.  [default: found by name]")]
LabelColumn = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Column of the labels; of CoNLL-U upos, xpos, deprel, feats.NAME, head_distance or depth.  "
        "[default: found by name]",
    ),
]
GroupColumn = Annotated[str | None, typer.Option(metavar="NAME", help="Column whose equal rows stay in one split.")]
SpanColumn = Annotated[
    str | None,
    typer.Option(
        metavar="NAMES", help="Column of [start, end], or of lists of {start, end, label}; or two: start,end."
    ),
]
Regression = Annotated[
    bool, typer.Option("--regression", help="Labels that are whole numbers (years) are numbers, not classes.")
]
RandomInit = Annotated[bool, typer.Option("--random-init", help="Random weights in the model's shape: a baseline.")]
ModelSeed = Annotated[int, typer.Option(metavar="N", min=0, help="Seed of the weights of --random-init.")]
Stats = Annotated[
    bool, typer.Option("--stats", help="Beside the activations, the sums that ridge, LDA and mean-diff need.")
]
StatsOnly = Annotated[bool, typer.Option("--stats-only", help="Those sums, and no activations.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan with about the time and memory, and stop.")]


def extract(
    model: options.Model,
    dataset: Dataset,
    points: Points = "resid_pre",
    layers: Layers = "all",
    position: Position = None,
    limit: Limit = None,
    out: Out = None,
    device: options.Device = "auto",
    dtype: Dtype = "fp32",
    store_dtype: StoreDtype = "fp32",
    batch_tokens: BatchTokens = None,
    seed: options.Seed = 0,
    bos: Bos = None,
    keep_blanks: KeepBlanks = False,
    on_long: OnLong = "cut",
    on_bad_row: OnBadRow = "error",
    text_column: TextColumn = None,
    label_column: LabelColumn = None,
    group_column: GroupColumn = None,
    span_column: SpanColumn = None,
    regression: Regression = False,
    revision: options.Revision = None,
    random_init: RandomInit = False,
    model_seed: ModelSeed = 0,
    stats: Stats = False,
    stats_only: StatsOnly = False,
    dry_run: DryRun = False,
    json_: options.Json = False,
    quiet: options.Quiet = False,
    config: options.Config = None,
    set_: options.Set = None,
) -> None:
    """Run a model over a dataset and keep its activations.

    The last line of stdout is the store's path. An interrupted run goes on where it stopped when the same command
    is given again.

    \b
    Examples:
        probekit extract --model gpt2 --dataset sst2
        probekit extract --model gpt2 --dataset cities.csv --points resid_pre,attn_out --layers 4-8 --dry-run
        probekit extract --model gpt2 --dataset en_ewt-ud-dev.conllu --label-column upos --limit 500
    """
    of_model = {
        "device": device,
        "dtype": options.dtype_name(dtype),
        "revision": revision,
        "random_init": random_init,
        "seed": model_seed,
        "progress": False if quiet else None,
    }
    of_task = {
        "text_column": text_column,
        "label_column": label_column,
        "group_column": group_column,
        "span_column": span_column,
        "limit": limit,
        "keep_blanks": keep_blanks,
        "on_bad_row": on_bad_row,
        "regression": regression,
    }
    how = {
        "points": options.names(points),
        "layers": layers,
        "position": options.positions_of(position),
        "dtype": options.dtype_name(store_dtype),
        "batch_tokens": batch_tokens,
        "bos": bos,
        "on_long": on_long,
    }
    sums = options.sums_of(stats, stats_only)
    console.hush_downloads(quiet)
    loaded = load(model, dataset, seed, of_model, of_task)
    run_extraction(*loaded, how, out=out, dry_run=dry_run, as_json=json_, quiet=quiet, sums=sums)


def load(model: str, dataset: str, seed: int, of_model: dict[str, Any], of_task: dict[str, Any]) -> tuple[Any, Any]:
    """The model and the task, which is drawn from `seed`; the task comes first, for it fails sooner."""
    from probekit.models import load_model
    from probekit.tasks import load_task

    task = load_task(dataset, seed=seed, **of_task)
    return load_model(model, **of_model), task


def run_extraction(
    model: Any,
    task: Any,
    how: dict[str, Any],
    out: Path | None = None,
    dry_run: bool = False,
    as_json: bool = False,
    quiet: bool = False,
    sums: options.Sums = None,
) -> None:
    """Show the plan, carry it out, and print where the store is; a dry run prints the plan as its result."""
    from probekit.activations import plan_extraction
    from probekit.options import ExtractOptions

    planned = plan_extraction(model, task, ExtractOptions(**how))
    if dry_run:
        from probekit.activations import estimate

        about = estimate(planned)
        if as_json:
            console.result_json({**_as_dict(planned, sums), "estimate": about.as_dict()})
        else:
            console.result(f"{_describe(planned, sums)}\n{about.describe()}")
        return
    path = make_store(planned, out, quiet, sums)
    if as_json:
        console.result_json({"store": str(path), **_as_dict(planned, sums)})
    else:
        console.result(path)


def _as_dict(planned: "ExtractionPlan", sums: options.Sums) -> dict[str, Any]:
    from probekit.activations import statistics_bytes

    size = {"statistics": sums, "statistics_bytes": statistics_bytes(planned.task, planned.widths)} if sums else {}
    return {**planned.as_dict(), **size, **({"bytes": 0} if sums == "only" else {})}


def _describe(planned: "ExtractionPlan", sums: options.Sums) -> str:
    """The plan, and what its statistics come to; of those alone there is no other size."""
    from probekit.activations import statistics_bytes

    if sums is None:
        return planned.describe()
    lines = planned.describe().split("\n")
    kept = [line for line in lines if sums == "beside" or not line.startswith("size ")]
    size = f"{statistics_bytes(planned.task, planned.widths) / 1e6:,.1f} MB of sums for each place and split"
    return "\n".join([*kept, f"{'stats':<9}{size}{'' if sums == 'beside' else '; no activations'}"])


def make_store(planned: "ExtractionPlan", out: Path | None, quiet: bool, sums: options.Sums = None) -> Path:
    """The path of the finished store; plan and progress go to stderr.

    Raises:
        KeyboardInterrupt: with what is kept and how to go on.
    """
    from probekit.activations import default_path, run_plan, run_statistics

    path, progress = out or default_path(planned), False if quiet else None
    if not quiet:
        console.note(_describe(planned, sums))
    try:
        if sums == "only":
            run_statistics(planned, path, progress)
        else:
            run_plan(planned, path, progress, stats=sums == "beside")
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_kept(planned, path, sums)) from None
    except StorageError as error:
        if isinstance(error.__cause__, OSError):  # the disk refused: mend that, and go on
            raise StorageError(f"{error}; {_kept(planned, path, sums)}") from error
        raise
    if sums and not quiet:
        console.note(f"statistics: {path / 'statistics'} (in Python: pk.load_statistics({str(path)!a}))")
    return path


def _kept(planned: "ExtractionPlan", path: Path, sums: options.Sums) -> str:
    from probekit.activations import Store, statistics_progress

    try:
        kept, _ = (statistics_progress(path) or (0, 0)) if sums == "only" else Store.progress(path)
    except ProbekitError:  # the store was not begun
        kept = 0
    return f"kept {kept:,} of {planned.texts:,} texts in {path}; run the same command again to go on"
