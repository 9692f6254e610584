"""The random-init baseline: the same architecture with random weights, on the same task, through the same engine.

Whatever a probe finds there comes from the architecture and the words, not from training (Zhang and Bowman 2018,
arXiv 1809.10040).
"""

from typing import Any, NotRequired, TypedDict

from probekit.activations.activations import Activations
from probekit.activations.extract import run_plan
from probekit.activations.labelled import with_task
from probekit.activations.replan import check_extracted, device_again, plan_again
from probekit.activations.store.examples import read_examples
from probekit.activations.store.format import PlanFile, has_manifest, read_plan
from probekit.activations.store.reader import Store
from probekit.errors import UsageError
from probekit.files.records import has_form
from probekit.files.remote.path import AnyPath
from probekit.files.run import differing
from probekit.options.check import check_any_path

BY_HAND = "make such a baseline yourself: extract(load_model(..., random_init=True), task, ...)"
WRAPPED_BY_HAND = (
    "make such a baseline yourself, in Python: train_probes(..., random_init=extract(wrap(module, points), task, ...)) "
    "of the untrained module"
)
_MAY_DIFFER = {"model_fingerprint", "quantize", "arithmetic", "shards"}  # the weights, rounding, and of no value


class _Source(TypedDict):
    name_or_path: str
    revision: NotRequired[str | None]


def random_init_of(
    store: Store | str | AnyPath, seed: int = 0, out: str | AnyPath | None = None, progress: bool | None = None
) -> Activations:
    """Activations of the store's architecture with random weights: the same task, points, positions, types and batches.

    Labels that were joined to the store later are the baseline's too.

    Args:
        store: a store that `extract(..., out=path)` wrote, or its path.
        seed: of the weights, which depend on nothing else.
        out: the store of the baseline; None is STORE/random-init-SEED. An unfinished one is resumed, a complete one
            loaded.
        progress: show progress on stderr: None on a terminal and in a notebook, True always, False never.

    Raises:
        UsageError: activations in memory, imported ones or those under edits, a model that was made in code,
            or one with these very weights.
        DataError: no store there, or the model's config.json or tokenizer is gone.
        StorageError: the store is damaged or unfinished, or the disk refused.
        ResumeMismatch: `out` holds another store.
    """
    if isinstance(store, Activations) and not isinstance(store, Store):
        raise UsageError(f"random_init_of takes a store, and these activations are in memory; {BY_HAND}")
    store = store if isinstance(store, Store) else Store(store)
    path, task = store.path, store.task
    plan = read_plan(path)
    source = _random_source(path, plan, seed)
    baseline = path / f"random-init-{seed}" if out is None else check_any_path("out", out)
    if _is_done(baseline, plan, source):  # no model is needed to know
        made = Store(baseline)
    else:
        from probekit.models import load_model

        how = {key: value for key, value in source.items() if key != "name_or_path"}
        model = load_model(source["name_or_path"], **how, device=device_again(plan, source))
        made = run_plan(plan_again(plan, read_examples(path, plan), model), baseline, progress)
    return made if made.task.labels.keys() == task.labels.keys() else with_task(made, task)


def _random_source(path: AnyPath, plan: PlanFile, seed: int) -> dict[str, Any]:
    """The arguments of `load_model` for the random weights, as the plan of their store will hold them."""
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise UsageError(f"seed is a whole number, 0 or more; got {seed!r}")
    source, what = plan.source, f"the random-init baseline runs the model again, and {str(path)!a}"
    if "model_fingerprint" not in plan.identity:
        raise UsageError(f"{what} holds imported activations, which name no model; import those of a random model too")
    if plan.edits:
        raise UsageError(
            f"{str(path)!a} was extracted under edits ({plan.edits}), made for the trained model; take "
            "the baseline of a store without edits"
        )
    if source is None or not has_form(_Source, source):
        how = WRAPPED_BY_HAND if plan.identity.get("family") == "WrappedModule" else BY_HAND
        raise UsageError(f"{what} does not record where its model was loaded from; {how}")
    if source.get("random_init") and source.get("seed") == seed:
        raise UsageError(f"{str(path)!a} holds random weights of seed {seed} already; give the baseline another seed")
    check_extracted(path, plan.identity)
    model = {"name_or_path": source["name_or_path"], "revision": source.get("revision")}
    how = {name: source[name] for name in ("via", "device_map") if name in source}  # random weights are not quantized
    return {**model, "random_init": True, "seed": seed, "dtype": plan.identity["compute_dtype"], **how}


def _is_done(baseline: AnyPath, plan: PlanFile, source: dict[str, Any]) -> bool:
    if not has_manifest(baseline):
        return False
    found = read_plan(baseline)
    return found.source == source and set(differing(found.identity, plan.identity)) <= _MAY_DIFFER
