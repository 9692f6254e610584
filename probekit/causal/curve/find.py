"""Which probes a causal run is of, and what their record says against it; nothing here needs torch."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

from probekit.causal.curve.refusals import check_answers, check_curve, check_numbers
from probekit.errors import DataError, ProbekitError, UsageError
from probekit.files.plain_files import MAX_RESULTS, read_bytes
from probekit.files.records import Count, parse_record, read_as
from probekit.files.remote.path import AnyPath, as_path, local_path
from probekit.manifest import (
    check_is_store,
    is_store,
    newest_manifest,
    newest_with_results,
    results_home,
    stored_places,
)
from probekit.options import CausalOptions
from probekit.points import places_of
from probekit.results.kinds import refuse_other_kind
from probekit.text import listed

WITHOUT_DIRECTION = ("mlp",)  # kinds of probes that are no linear map


class _Curve(TypedDict, total=False):
    label: str
    point: str
    probe: str
    position: str | int | list[str]
    classes: list[str]
    n_classes: Count
    n: dict[str, Count]
    activations: dict[str, Any]


class _Trained(TypedDict):
    """What results of probes say before they are loaded."""

    meta: _Curve


def find_probes(
    given: str | None, store: AnyPath | None, label: str | None, point: str | None, needs_probes: bool = True
) -> tuple[AnyPath, Path | None]:
    """The store, and the folder of results of probes trained on it unless none are needed.

    Args:
        given: a store with results, or a folder of results; None is the newest store under ./runs.
        store: the store of results that lie elsewhere.
        label: of the results of a store, those of this label set; None is the newest of any.
        point: of them, those of this point.
        needs_probes: find results, too.

    Raises:
        DataError: no store there, or no results in it.
        UsageError: results whose store is not known, or two stores.
    """
    root = Path("runs")
    given = given or str(newest_with_results(root, ["results.json"]) if needs_probes else newest_manifest(root))
    chosen = {flag: name for flag, name in (("--label", label), ("--point", point)) if name is not None}
    if store is None:
        path = as_path(given)
    else:  # so `given` are results, and those of the Hub are downloaded
        from probekit.probes.in_results import results_folder

        path = results_folder(given)
    here = local_path(path)
    if here is None:
        if str(path).startswith("hf:") and not is_store(path):
            raise DataError(f"no store at {given!a}; for results on the Hub, name the store they are of with --store")
        check_is_store(path)
        return path, _newest_results(path, chosen) if needs_probes else None
    if not here.is_dir():
        raise DataError(f"no folder {str(here)!a}; name a store, or a folder of results of train-probe")
    if (here / "curves.json").is_file():
        raise UsageError(f"{str(here)!a} holds several curves; name the folder of one of them")
    if not (here / "results.json").is_file():
        refuse_other_kind(here)
        check_is_store(here)
        if store is not None:
            raise UsageError(f"{str(here)!a} is a store itself; leave out --store, or name a folder of results")
        return here, _newest_results(here, chosen) if needs_probes else None
    if chosen:
        flag = next(iter(chosen))
        raise UsageError(f"{flag} chooses among the results of a store, and {str(here)!a} are results; leave it out")
    probes = here if needs_probes else None
    if store is not None:
        check_is_store(store)
        return store, probes
    for folder in here.resolve().parents:
        if (folder / "plan.json").is_file() and (folder / "manifest.json").is_file():
            return folder, probes
    raise UsageError(f"the results in {str(here)!a} lie in no store; name the store they are of with --store")


def _newest_results(store: AnyPath, chosen: Mapping[str, str]) -> Path:
    """The newest results of the chosen label and point, of those that causal can use if there are any."""
    dated, home = [], results_home(store)
    for file in [*home.glob("*/results.json"), *home.glob("*/*/results.json")]:
        meta = record_of_probes(file.parent)
        if all(meta.get(flag.removeprefix("--")) == name for flag, name in chosen.items()):
            dated.append((can_be_used(meta), file.stat().st_mtime_ns, file.parent))
    if not dated:
        wanted = f" of {listed([*chosen.values()])}" if chosen else ""
        how = " ".join(["probekit train-probe", str(store), *(f"{flag} {name}" for flag, name in chosen.items())])
        raise DataError(f"{str(store)!a} holds no results of probes{wanted}; run {how} first")
    return max(dated)[2]


def record_of_probes(results: Path) -> dict[str, Any]:
    """What the results in a folder say of themselves; empty if they cannot be read."""
    try:
        return read_as(_Trained, parse_record(read_bytes(results / "results.json", MAX_RESULTS)))["meta"]
    except (OSError, ValueError):
        return {}


def can_be_used(meta: Mapping[str, Any]) -> bool:
    """Whether a causal run can use the probes of such a record."""
    try:
        check_curve(meta)
    except ProbekitError:
        return False
    return meta["probe"] not in WITHOUT_DIRECTION


def check_record(store: AnyPath, results: Path, options: CausalOptions) -> None:
    """Refuse what the record of the probes and that of the store show already."""
    if not (meta := record_of_probes(results)):
        return  # loading it says what is wrong
    check_curve(meta)
    if not meta["n_classes"]:
        check_numbers(meta["label"], options)
    elif options.answers_label is None or options.answers is None:
        check_answers(meta["label"], list(meta["classes"]), list(options.answers or ()) or None)
    known = stored_places(store)
    if known is not None and meta["point"] in known.points:
        places_of(known, meta["point"], options.layers)
