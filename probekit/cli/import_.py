"""`probekit import`: activations that another program took, as a store on disk."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from probekit.cli import console
from probekit.cli.derive import command
from probekit.cli.fields import Output, argument
from probekit.cli.stores import check_store_out, make_store, saved_rows
from probekit.files.remote.path import AnyPath
from probekit.options import ImportArguments
from probekit.options.check import check_there
from probekit.options.option import option


@dataclass(frozen=True, kw_only=True)
class ImportJob(Output):
    """The files to import."""

    source: Path = argument(
        ".npy and .safetensors files, whose names give the point and the layer.", metavar="FOLDER|FILE"
    )
    dry_run: bool = option(False, "Print what each file would become, and stop.")


@command(
    "source labels point layers stack_axis n_layers position text_column label_column out dry_run format model dataset "
    "verify store_dtype model_name task_name group_column columns header regression max_classes seed"
)
def import_(job: ImportJob, options: ImportArguments) -> None:
    """Make a store of activations that another program took.

    TransformerLens, nnsight, vLLM or hooks of your own, say. The last line of stdout is the store's path. To resume
    an interrupted import, give the same command again.

    \b
    Names: resid_pre.3, resid_post_11, blocks.3.hook_resid_pre, embed; hidden_states_3 with --n-layers;
    layer_3, 3 or model.layers.3 with --point. Each array is [examples, width], or three axes with --stack-axis.

    \b
    Examples:
        probekit import acts/ --labels cities.csv
        probekit import acts.npy --labels y.npy --stack-axis 0 --point resid_post --model-name llama --dry-run
        probekit import --format vllm requests/ --model Qwen/Qwen3-8B --dataset cities.csv --layers 0,9,18,27,36
        probekit import acts/ --labels cities.csv --position last --model gpt2 --verify 50
    """
    check_there(job.source.expanduser())
    check_store_out(options.out)
    from probekit.activations import Store, describe_import, import_as_dict, plan_import, run_import
    from probekit.activations.imports.verify import verified_text

    plan = plan_import(job.source, options)
    as_dict = import_as_dict(plan)
    if job.dry_run:
        console.answer(job, lambda: as_dict, describe_import(plan))
        return
    begun: list[AnyPath] = []

    def saved() -> str:
        if not begun:
            return "nothing was written; run the same command again"
        return saved_rows(partial(Store.progress, begun[0]), len(plan.task), "rows", begun[0])

    write = partial(run_import, plan, options.out, progress=console.bars(job.quiet), on_begin=begun.append)
    store = make_store(describe_import(plan, arrays=False), write, saved, job.quiet)
    verified = store.meta.get("verified")
    if verified and not job.quiet:
        console.note(f"verified: {verified_text(verified)}")
    console.answer(job, lambda: {"store": str(store.path), **as_dict, "verified": verified}, store.path)
