"""One part of an extraction on the command line: its share of the work, and what it leaves to be done."""

from functools import partial
from shlex import quote
from typing import TYPE_CHECKING, Any

from probekit.cli import console
from probekit.cli.stores import make_store, saved_rows
from probekit.files.remote.path import as_path
from probekit.options import ExtractArguments
from probekit.options.engine import Sums
from probekit.text import counted, listed

if TYPE_CHECKING:
    from probekit.activations import ExtractionPlan, PartDone

Part = tuple[int, int]
MOST_SHARES = 8  # that a plan lists one by one
UNEVEN = 0.25  # by how much the largest part may exceed an equal share before the plan says how to cut more evenly
SHARDS_EACH = 10  # shards of a part, so that one shard more or less is a tenth of its work


def write_part(
    plan: "ExtractionPlan",
    options: ExtractArguments,
    part: Part,
    quiet: bool,
    shown: tuple[Sums, str],
) -> "PartDone":
    """Do one part of a plan, and say what it did and what is missing.

    Args:
        plan: of the complete extraction.
        options: with the store's path, if it is named.
        part: (i, n).
        quiet: show neither plan, progress nor notes.
        shown: the sums that are wanted, and the plan in words.
    """
    from probekit.activations import Store, default_path, run_part, statistics_progress

    sums, text = shown
    path = as_path(options.out or default_path(plan))
    progress = statistics_progress if sums == "only" else Store.progress
    saved = partial(saved_rows, partial(progress, path), len(plan.task), "texts", path)
    write = partial(run_part, plan, path, part, console.bars(quiet), sums, options.check)
    done = make_store(f"{text}\n{describe_share(plan, part)}".strip(), write, saved, quiet)
    if not quiet:
        console.note(describe_part(done))
    return done


def describe_part(done: "PartDone") -> str:
    """What a part did, what is missing, and the next command."""
    name, path = f"part {done.part}/{done.of}", quote(str(done.path))
    if not done.shards:
        lines = [f"{name}: nothing to do, as there are fewer shards than parts"]
    else:
        lines = [f"{name}: done, {counted(done.shards, 'shard')} with {counted(done.rows, 'text')}"]
    if done.counted is not None:
        state = "joined" if done.counted else "not joined, as some are missing"
        lines.append(f"statistics of the {done.of} parts: {state}")
    if done.complete:
        lines.append(f"all parts are finished and the store is complete. Next: probekit train-probe {path}")
    if done.missing:
        from probekit.activations.parts.cut import parts_in_words

        lines.append(f"missing in {path}: {parts_in_words(done.missing)}")
        following = listed([f"--part {one.part}/{one.of}" for one in done.missing], most=4)
        lines.append(
            f"run the same command with {following}; if the parts have separate folders, merge them: "
            f"probekit merge {path} FOLDER... --out STORE"
        )
    return "\n".join(lines)


def share_as_dict(plan: "ExtractionPlan", part: Part) -> dict[str, Any]:
    """The share of the work of each part, and the shards and texts of this one."""
    from probekit.activations.parts.cut import cut_parts, shard_costs
    from probekit.activations.run.loop import shard_rows

    costs = shard_costs(plan)
    cut = cut_parts(costs, part[1])
    own = cut[part[0] - 1].tolist()
    return {
        "part": part[0],
        "of": part[1],
        "shards": len(own),
        "rows": sum(len(shard_rows(plan, number)) for number in own),
        "shares": [float(costs[numbers].sum() / costs.sum()) for numbers in cut],
    }


def describe_share(plan: "ExtractionPlan", part: Part) -> str:
    """The share of this part, and how equal those of all parts are, as lines of the plan."""
    share = share_as_dict(plan, part)
    shares = share["shares"]
    own = (
        f"{counted(share['shards'], 'shard')}, {counted(share['rows'], 'text')}, {shares[part[0] - 1]:.1%} of the work"
    )
    every = ", ".join(f"{one:.1%}" for one in shares)
    if len(shares) > MOST_SHARES:
        every = f"{min(shares):.1%} to {max(shares):.1%}"
    line = f"{'part':<9}{part[0]} of {part[1]}: {own} (all parts: {every})"
    if max(shares) * len(shares) <= 1 + UNEVEN:
        return line
    from probekit.activations import plan_as_dict

    smaller = f"{max(1, plan_as_dict(plan)['bytes'] // (SHARDS_EACH * len(shares))):.1g}"
    return (
        f"{line}\n{'':<9}uneven: {counted(len(plan.shards), 'shard')} for {counted(len(shares), 'part')}; smaller "
        f"shards cut more evenly: --shard-bytes {int(float(smaller))} for every part"
    )
