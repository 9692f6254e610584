"""Cut the shards of a plan into parts of nearly equal cost.

A pure function of the plan: every process that makes the same plan gets the same parts, so that n processes share the
work without speaking to each other.
"""

from collections.abc import Sequence

import numpy as np

from probekit.activations.plan.packing import ATTENTION_COST, Packing
from probekit.activations.plan.plan import ExtractionPlan

# A node of a model without d_model: attention is left out, as nothing says how wide its linear layers are.
_NO_WIDTH = float("inf")


def shard_costs(plan: ExtractionPlan) -> np.ndarray:
    """The cost of each shard, float64 [shards]: its nodes as they are computed, with those that fill up batches.

    The unit is a node without attention; attention of a node to the N nodes of its block is added, as in
    `choose_nodes`. For a decoder the nodes of the sources count too.
    """
    width = float(getattr(plan.model.cfg, "d_model", _NO_WIDTH))
    packings = [plan.packing] + ([] if plan.packing.sources is None else [plan.packing.sources])
    return np.array(
        [sum(_batch_cost(packing, batch, width) for batch in shard for packing in packings) for shard in plan.shards]
    )


def _batch_cost(packing: Packing, blocks: np.ndarray, width: float) -> float:
    largest = int(packing.sizes[blocks].max())
    return len(blocks) * largest * (1 + ATTENTION_COST * largest / width)


def cut_parts(costs: Sequence[float] | np.ndarray, n: int) -> list[np.ndarray]:
    """The shard numbers of each of n parts, ascending, int64; a part may be empty if there are fewer shards.

    The most expensive shard goes first, each to the part with the least so far (Graham 1969): no part costs more than
    an equal share and one shard. Ties go to the smaller number, of shards and of parts.
    """
    costs = np.asarray(costs, dtype=np.float64)
    loads, parts = np.zeros(n), [list[int]() for _ in range(n)]
    for number in np.argsort(-costs, kind="stable").tolist():
        least = int(np.argmin(loads))
        parts[least].append(number)
        loads[least] += costs[number]
    return [np.array(sorted(numbers), dtype=np.int64) for numbers in parts]
