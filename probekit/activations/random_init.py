"""The random-init baseline: the same architecture with random weights, on the same task, through the same engine.

What a probe finds there, the network's shape and the words alone explain (Zhang and Bowman 2018, arXiv 1809.10040).
"""

from pathlib import Path
from typing import Any

from probekit.activations.activations import Activations
from probekit.activations.extract import run_plan
from probekit.activations.replan import check_extracted, plan_again
from probekit.activations.store.examples import read_examples
from probekit.activations.store.format import PlanFile, read_plan
from probekit.activations.store.reader import Store
from probekit.errors import UsageError

BY_HAND = "extract(load_model(..., random_init=True), task, ...) makes such a baseline by hand"
SOURCE: dict[str, type | tuple[type, ...]] = {"name_or_path": str, "revision": (str, type(None))}
FREE = ("model_fingerprint", "shards")  # the weights decide the one, and the other changes no value


def random_init_of(
    store: Store | str | Path, seed: int = 0, out: str | Path | None = None, progress: bool | None = None
) -> Activations:
    """Activations of the store's architecture with random weights: the same task, points, positions, types and batches.

    Args:
        store: what `extract(..., out=path)` wrote, or its path.
        seed: of the weights; it alone decides them.
        out: where they are kept; None is STORE/random-init-SEED. An unfinished run goes on, a finished one is read.
        progress: a bar on stderr; None shows it on a terminal only.

    Raises:
        UsageError: activations in memory, imported ones, a model that was made in code, or one with these very weights.
        DataError: no store there, or the model's config.json or tokenizer is gone.
        StorageError: the store is damaged or unfinished, or the disk refused.
        ResumeMismatch: another store stands at `out`.
    """
    if isinstance(store, Activations) and not isinstance(store, Store):
        raise UsageError(f"random_init_of takes a store, and these activations are in memory; {BY_HAND}")
    path = (store if isinstance(store, Store) else Store(store)).path
    standing = read_plan(path)
    source = _random_source(path, standing, seed)
    there = path / f"random-init-{seed}" if out is None else Path(out)
    if _is_done(there, standing, source):
        return Store(there)
    return run_plan(_plan(path, standing, source), there, progress)


def _random_source(path: Path, standing: PlanFile, seed: int) -> dict[str, Any]:
    """What `load_model` takes for the random weights, as the plan of their store will say it."""
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise UsageError(f"seed is a whole number, 0 or more; got {seed!r}")
    source, what = standing.source, f"the random-init baseline runs the model again, and {str(path)!a}"
    if "model_fingerprint" not in standing.identity:
        raise UsageError(f"{what} holds imported activations, which name no model; import those of a random model too")
    if source is None or not all(isinstance(source.get(key), kind) for key, kind in SOURCE.items()):
        raise UsageError(f"{what} does not say where its model was loaded from; {BY_HAND}")
    if source.get("random_init") and source.get("seed") == seed:
        raise UsageError(f"{str(path)!a} holds random weights of seed {seed} already; give the baseline another seed")
    check_extracted(path, standing.identity)
    kept = {key: source[key] for key in SOURCE}
    return {**kept, "random_init": True, "seed": seed, "dtype": standing.identity["compute_dtype"]}


def _is_done(there: Path, standing: PlanFile, source: dict[str, Any]) -> bool:
    """Whether the baseline stands there whole, which needs no model to see."""
    if not (there / "manifest.json").exists():
        return False
    found = read_plan(there)
    same = (set(standing.identity) | set(found.identity)) - set(FREE)
    return found.source == source and all(found.identity.get(key) == standing.identity.get(key) for key in same)


def _plan(path: Path, standing: PlanFile, source: dict[str, Any]) -> Any:
    from probekit.models import load_model

    model = load_model(**source, device=standing.identity["device"])
    return plan_again(standing, read_examples(path, standing), model)
