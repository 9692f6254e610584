"""The share of a part in the work, and what it did, in numbers and in words for the terminal."""

from shlex import quote
from typing import Any

from probekit.activations.parts.cut import cut_parts, parts_in_words, shard_costs
from probekit.activations.parts.run import PartDone
from probekit.activations.plan.plan import ExtractionPlan, shard_rows
from probekit.activations.plan.summary import plan_as_dict
from probekit.text import counted, listed

Part = tuple[int, int]
MOST_SHARES = 8  # that a plan lists one by one
UNEVEN = 0.25  # by how much the largest part may exceed an equal share before the plan says how to cut more evenly
SHARDS_EACH = 10  # shards of a part, so that one shard more or less is a tenth of its work


def describe_part(done: PartDone) -> str:
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
        lines.append(f"missing in {path}: {parts_in_words(done.missing)}")
        following = listed([f"--part {one.part}/{one.of}" for one in done.missing], most=4)
        lines.append(
            f"run the same command with {following}; if the parts have separate folders, merge them: "
            f"probekit merge {path} FOLDER... --out STORE"
        )
    return "\n".join(lines)


def share_as_dict(plan: ExtractionPlan, part: Part) -> dict[str, Any]:
    """The share of the work of each part, and the shards and texts of this one."""
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


def describe_share(plan: ExtractionPlan, part: Part) -> str:
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
    smaller = f"{max(1, plan_as_dict(plan)['bytes'] // (SHARDS_EACH * len(shares))):.1g}"
    return (
        f"{line}\n{'':<9}uneven: {counted(len(plan.shards), 'shard')} for {counted(len(shares), 'part')}; smaller "
        f"shards cut more evenly: --shard-bytes {int(float(smaller))} for every part"
    )
