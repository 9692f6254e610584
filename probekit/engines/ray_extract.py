"""`extract --engine ray`: Ray places workers, and the store decides what is done.

Workers get numbers of shards, compute and write them themselves, and answer with a few numbers (`ray_worker.py`); which
worker gets which shard, and what happens when one dies, is in `schedule.py`. After a killed driver, the same command
computes the shards without a record.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing

from probekit.activations.parts.cut import shard_costs
from probekit.activations.parts.work import begin_work, finish_store
from probekit.activations.plan.plan import ExtractionPlan
from probekit.engines.cluster import check_workers_fit, ray_cluster, workers_that_fit
from probekit.engines.ray_pool import Pool, least_and_most
from probekit.engines.ray_worker import own_versions
from probekit.engines.schedule import Schedule, shards_bar
from probekit.engines.shares import Shares
from probekit.files.remote.path import AnyPath
from probekit.options.engine import EngineOptions


def run_on_ray(plan: ExtractionPlan, path: AnyPath, options: EngineOptions, progress: bool | None) -> None:
    """Compute every missing shard of the store at `path` on the workers of a Ray cluster.

    Raises:
        UsageError: Ray is not installed, the cluster does not answer, or has no room for a worker.
        DataError, StorageError: as from `extract`; or no worker could start or stay, with the first reason.
    """
    missing = begin_work(plan, path, options.check)
    if missing:
        shares = Shares(missing, shard_costs(plan))
        with ray_cluster(options) as ray, shards_bar(plan, missing, progress) as count:
            place = str(path.absolute())
            needs = needs_of(plan, options, [node["Resources"] for node in ray.nodes() if node["Alive"]])
            check_workers_fit(ray, needs, options)
            opening = (place, own_versions(), options.check)
            with closing(Pool(ray, opening, needs, least_and_most(options))) as pool:
                Schedule(pool, shares, path, count).compute()
    finish_store(path)


def needs_of(plan: ExtractionPlan, options: EngineOptions, nodes: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """CPUs and GPUs of a worker: one GPU where the model runs on CUDA, else as many CPUs as let all workers fit.

    Args:
        plan: what is extracted.
        options: say how many workers there are at most, and how many GPUs each gets.
        nodes: CPUs and GPUs of each node.
    """
    gpus = options.gpus_per_worker
    if gpus is None:
        gpus = float(plan.device.type == "cuda")
    _, at_most = least_and_most(options)
    if gpus or at_most is None:
        return {"num_cpus": 1.0, "num_gpus": gpus}
    most = int(max((node.get("CPU", 0.0) for node in nodes), default=1.0))
    choices: Iterator[dict[str, float]] = ({"num_cpus": float(n), "num_gpus": 0.0} for n in range(most, 1, -1))
    wide = (needs for needs in choices if sum(workers_that_fit(node, needs) for node in nodes) >= at_most)
    return next(wide, {"num_cpus": 1.0, "num_gpus": 0.0})
