"""`probekit push`: a store or results, to the Hugging Face Hub."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from probekit.cli import console
from probekit.cli.derive import command
from probekit.cli.fields import Output, argument
from probekit.files.remote.path import AnyPath
from probekit.options import PushOptions
from probekit.options.option import option
from probekit.text import counted, metric, printable

if TYPE_CHECKING:
    from probekit.sharing.push import Pushed, PushPlan


@dataclass(frozen=True, kw_only=True)
class PushJob(Output):
    """What is pushed, and where."""

    source: AnyPath = argument("A store, or a folder of results that train-probe wrote.", metavar="STORE|RESULTS")
    repo: str = argument("Repository on the Hub, and a folder in it if you like.", metavar="OWNER/NAME[/FOLDER]")
    dry_run: bool = option(False, "Print what would be uploaded, and stop.")


@command("source repo private revision message license dry_run")
def push(job: PushJob, options: PushOptions) -> None:
    """Upload a store or results to the Hugging Face Hub.

    A store becomes a dataset repository, results a model repository, with a generated README.md. Only files that are
    missing there are uploaded; to resume an interrupted push, give the same command again. A new repository is private
    unless --public is given, and everything that is pushed to a public one can be read by everybody: texts and labels
    too. The token is that of `hf auth login` or HF_TOKEN.

    \b
    Examples:
        probekit push runs/STORE me/gpt2-sst2-activations --dry-run
        probekit push runs/STORE/results/label-resid_pre-logistic me/gpt2-sst2-probe --license mit --public
    """
    console.hush_downloads(True)
    from probekit.sharing.push import plan_push, run_push

    plan = plan_push(job.source, job.repo, replace(options, progress=console.bars(job.quiet)))
    if job.dry_run:
        console.answer(job, lambda: _as_dict(plan), _description(plan))
        return
    if not job.quiet:
        console.note(_description(plan))
    with console.interrupt_says("what was uploaded is kept; run the same command again to resume"):
        done = run_push(plan)
    summary = _summary(done, stays_private=bool(done.private) and not options.private)
    console.answer(job, lambda: vars(done), done.url, summary)


def _as_dict(plan: "PushPlan") -> dict[str, Any]:
    files = [{"name": ascii(file.name)[1:-1], "bytes": file.size} for file in plan.shared.files]
    return {
        "source": str(plan.shared.path),
        "what": plan.shared.what,
        "kind": plan.shared.kind,
        "repo": plan.address.repo,
        "folder": plan.address.folder,
        "private": plan.options.private,
        "bytes": plan.shared.n_bytes,
        "visible": plan.shared.visible,
        "files": files,
    }


def _description(plan: "PushPlan") -> str:
    """What is uploaded, with its size, and what it shows of the data."""
    shared, sizes = plan.shared, dict[str, list[int]]()
    for file in shared.files:
        sizes.setdefault(file.name.rpartition("/")[0], []).append(file.size)
    readers = "its owners alone" if plan.options.private else "everybody"
    folder = f", folder {plan.address.folder}" if plan.address.folder else ""
    lines = [
        ("push", f"{shared.what} {shared.path}"),
        ("to", f"{shared.kind} repository {plan.address.repo}{folder}; if it is new, {readers} can read it"),
        ("size", f"{_size(shared.n_bytes)} in {counted(len(shared.files), 'file')}"),
        *(("", f"{name or 'top'}: {_size(sum(n))} in {counted(len(n), 'file')}") for name, n in sorted(sizes.items())),
        *(("shows", one) for one in shared.visible),
    ]
    return "\n".join(f"{key:<8}{printable(value)}" for key, value in lines)


def _size(n_bytes: int) -> str:
    return f"{metric(n_bytes)}B" if n_bytes >= 1000 else f"{n_bytes} B"


def _summary(done: "Pushed", stays_private: bool) -> str:
    load = "load_activations" if done.kind == "dataset" else "load_probe"
    removed = f", {counted(done.removed, 'file')} of an earlier push removed" if done.removed else ""
    lines = [
        f"{counted(done.uploaded, 'file')} uploaded ({_size(done.bytes)}), {done.present:,} there already{removed}"
        if done.uploaded or done.removed
        else f"nothing to upload: all {counted(done.present, 'file')} are there",
        *(["README.md there was written or edited by somebody, and stays as it is"] if done.card_kept else []),
        *(["the repository is private, as it was; make it public in its settings on the Hub"] if stays_private else []),
        f"load it: pk.{load}({done.address!a})",
    ]
    return "\n".join(map(printable, lines))
