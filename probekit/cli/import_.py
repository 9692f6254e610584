"""`probekit import`: activations that another program took, as a store on disk."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from probekit.cli import console, options
from probekit.errors import ProbekitError
from probekit.options import ImportOptions, parse

if TYPE_CHECKING:
    from probekit.activations import ImportPlan

Source = Annotated[
    Path, typer.Argument(metavar="FOLDER|FILE", help=".npy and .safetensors files; a name says the point and layer.")
]
Labels = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="CSV, TSV, JSONL or Parquet with a row for each example, in order, or a .npy.  "
        "[default: labels.npy, or the tensor labels]",
    ),
]
Point = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Of names that say a layer alone: resid_pre, resid_post, hidden_states, ..."),
]
StackAxis = Annotated[
    int | None, typer.Option(metavar="0|1", help="Axis of the layers in arrays that stack them with the examples.")
]
Layers = Annotated[
    str | None,
    typer.Option(metavar="LAYERS", help="Of stacked arrays, in their order: 0,4,8 or 2-6.  [default: 0-...]"),
]
NLayers = Annotated[
    int | None, typer.Option(metavar="N", help="Blocks of the model.  [default: one more than the last layer there]")
]
Position = Annotated[
    str | None, typer.Option(metavar="TOKEN", help="The token that was read, for titles: last, first, mean, 3.")
]
StoreDtype = Annotated[
    str | None,
    typer.Option(metavar="TYPE", help="Type on disk: fp32, fp16 or bf16.  [default: the files'; fp32 for fp64]"),
]
ModelName = Annotated[str, typer.Option(metavar="NAME", help="What titles call the model.")]
TaskName = Annotated[
    str | None, typer.Option(metavar="NAME", help="What titles call the task.  [default: of the file]")
]
TextColumn = Annotated[
    str | None, typer.Option(metavar="NAME", help="Column of the texts.  [default: found by name, if there]")
]
LabelColumn = Annotated[
    str | None, typer.Option(metavar="NAME", help="Column of the labels.  [default: found by name]")
]
GroupColumn = Annotated[str | None, typer.Option(metavar="NAME", help="Column whose equal rows stay in one split.")]
Out = Annotated[Path | None, typer.Option(metavar="PATH", help="The store.  [default: a name under ./runs]")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what each file would become and stop.")]


def import_(
    source: Source,
    labels: Labels = None,
    point: Point = None,
    stack_axis: StackAxis = None,
    layers: Layers = None,
    n_layers: NLayers = None,
    position: Position = None,
    store_dtype: StoreDtype = None,
    model_name: ModelName = "unnamed",
    task_name: TaskName = None,
    text_column: TextColumn = None,
    label_column: LabelColumn = None,
    group_column: GroupColumn = None,
    seed: options.Seed = 0,
    out: Out = None,
    dry_run: DryRun = False,
    json_: options.Json = False,
    quiet: options.Quiet = False,
    config: options.Config = None,
    set_: options.Set = None,
) -> None:
    """Make a store of activations taken elsewhere (TransformerLens, nnsight, vLLM, hooks).

    The last line of stdout is the store's path. An interrupted import goes on when the same command is given again.

    \b
    Names: resid_pre.3, resid_post_11, blocks.3.hook_resid_pre, embed; hidden_states_3 with --n-layers;
    layer_3, 3 or model.layers.3 with --point. Each array is [examples, width], or three axes with --stack-axis.

    \b
    Examples:
        probekit import acts/ --labels cities.csv
        probekit import acts.npy --labels y.npy --stack-axis 0 --point resid_post --model-name llama --dry-run
    """
    from probekit.activations.imports.run import plan_import

    planned = plan_import(
        source,
        ImportOptions(
            labels,
            point=point,
            stack_axis=stack_axis,
            layers=None if layers is None else parse.stacked_layers(layers),
            n_layers=n_layers,
            position=None if position is None else parse.position(position),
            dtype=None if store_dtype is None else parse.dtype(store_dtype),
            model_name=model_name,
            task_name=task_name,
            text_column=text_column,
            label_column=label_column,
            group_column=group_column,
            seed=seed,
        ),
    )
    if dry_run:
        if json_:
            console.result_json(planned.as_dict())
        else:
            console.result(planned.describe())
        return
    path = make_store(planned, out, quiet)
    if json_:
        console.result_json({"store": str(path), **planned.as_dict()})
    else:
        console.result(path)


def make_store(planned: "ImportPlan", out: Path | None, quiet: bool) -> Path:
    """The path of the finished store; plan and progress go to stderr.

    Raises:
        KeyboardInterrupt: with what is kept and how to go on.
    """
    from probekit.activations.imports.run import run_import

    if not quiet:
        console.note(planned.describe(arrays=False))
    try:
        return run_import(planned, out, progress=False if quiet else None).path
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_kept(planned, out)) from None


def _kept(planned: "ImportPlan", out: Path | None) -> str:
    from probekit.activations import Store

    if not planned.is_read:
        return "nothing was written; run the same command again"
    path = out or planned.default_path
    try:
        kept, _ = Store.progress(path)
    except ProbekitError:  # the store was not begun
        kept = 0
    return f"kept {kept:,} of {planned.texts:,} rows in {path}; run the same command again to go on"
