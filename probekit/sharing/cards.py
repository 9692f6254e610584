"""The README.md of a repository with a store or results: a header that the Hub reads, what it holds, how to load it."""

from collections.abc import Sequence
from typing import Any

from probekit.activations import Store
from probekit.activations.store.format import read_plan
from probekit.errors import UsageError
from probekit.evaluation import ProbeCurves
from probekit.evaluation.results.coordinates import coordinate_titles, curve_keys
from probekit.evaluation.results.report import short_text
from probekit.evaluation.results.wording import position_name
from probekit.export.card import TAGS, as_sentence, card, code
from probekit.export.front_matter import front_matter, marked
from probekit.files.hub import REPO_ID
from probekit.files.published import PUBLISHED
from probekit.manifest import is_store
from probekit.points import spans_of
from probekit.sharing.contents import SharedFolder
from probekit.tables import markdown_table
from probekit.tasks.base import SPLITS

_COMMIT_LETTERS = 40  # a model of the Hub is recorded with its commit


def card_of(shared: SharedFolder, address: str, license: str | None) -> str:
    """The card, with the mark of one that nobody edited.

    Args:
        shared: what is uploaded.
        address: where, hf://owner/name[/folder].
        license: as the Hub names it.
    """
    fields = {"license": license, **_origin(shared)}
    results = shared.source
    if isinstance(results, Store):
        return marked(_store_card(results, address, fields))
    if isinstance(results, ProbeCurves):
        return marked(_curves_card(results, address, fields))
    try:
        layer = results.best
    except UsageError:  # nothing was selected: the card is of the layer that the figures name first
        layer = results.layers[0]
    fitted = f"probes/{layer.place}" if layer.probe is not None else None
    return marked(card(results, layer, fitted, fields, address))


def _origin(shared: SharedFolder) -> dict[str, str | list[str] | None]:
    """base_model and datasets of the header, where model and data are of the Hub."""
    inside = shared.path.resolve().parents[:3]  # results are in STORE/results/NAME
    store = shared.path if shared.what == "store" else next((path for path in inside if is_store(path)), None)
    if store is not None:
        plan = read_plan(store)
        source, data = plan.source or {}, plan.meta.get("task_info") or {}
        name, revision, dataset = source.get("name_or_path"), source.get("revision"), data.get("source")
        of_hub = isinstance(name, str) and REPO_ID.fullmatch(name) and len(str(revision)) == _COMMIT_LETTERS
        from_hub = isinstance(dataset, str) and REPO_ID.fullmatch(dataset) and "offline" in data
        return {"base_model": [str(name)] if of_hub else None, "datasets": [str(dataset)] if from_hub else None}
    source: Any = shared.source
    curves = source.values() if isinstance(source, ProbeCurves) else [source]
    known = {PUBLISHED[curve.meta["model"]].hub_id for curve in curves if curve.meta["model"] in PUBLISHED}
    return {"base_model": sorted(known), "datasets": None}


def _curves_card(curves: ProbeCurves, address: str, fields: dict[str, Any]) -> str:
    first = next(iter(curves.values())).meta
    several = list(curves.values())
    rows = [
        (*(code(name, True) for name in key), as_sentence(short_text(curve)))
        for key, curve in zip(curve_keys(several), several, strict=True)
    ]
    example = f"{address}:{'/'.join(curve_keys(several)[0])}"
    lines = [
        *front_matter({"library_name": "probekit", "tags": TAGS, **fields}),
        f"# {len(curves)} curves of probes of {code(first['model'])} on {code(first['task'])}",
        "",
        "Probes fitted by probekit to activations of the model, a curve over its layers for each label set and point.",
        "",
        markdown_table((*coordinate_titles(several), "result"), rows),
        "",
        *_python(f"probe = pk.load_probe({example!a})  # the best layer of the first curve, no pickle"),
        "The probes show that a label can be read from the activations, not that the model uses it.",
    ]
    return "\n".join(lines)


def _store_card(store: Store, address: str, fields: dict[str, Any]) -> str:
    meta, task = store.meta, store.task
    kept = meta["position"] if isinstance(meta["position"], list) else [meta["position"]]
    kinds = {
        name: f"{len(classes):,} classes" if classes else "a number for each example"
        for name, classes in task.label_names.items()
    }
    point, layer = next(iter(store))
    first = f"{point!a}" if layer is None else f"{point!a}, {layer}"
    head = front_matter(
        {"viewer": False, "tags": ["probekit", "activations", "interpretability"], **fields}
    )  # the Hub's viewer would take the examples for a table
    splits = ", ".join(f"{(task.splits == split).sum():,} {split}" for split in SPLITS)
    rows = [
        ("model", code(meta["model"], True)),
        ("model fingerprint", code(meta.get("model_fingerprint", "not recorded"), True)),
        ("dataset", code(meta["task"], True)),
        ("examples", f"{len(task):,} ({splits})"),
        *(("labels", f"{code(name, True)}: {kinds[name]}") for name in task.labels),
        ("places", as_sentence(spans_of([*store]))),
        ("token that is read", as_sentence(", ".join(map(position_name, kept)))),
        ("type", code(f"{meta['dtype']}, computed in {meta.get('compute_dtype', 'another program')}", True)),
        ("made with", code(", ".join(f"{name} {n}" for name, n in meta.get("versions", {}).items()), True)),
    ]
    lines = [
        *head,
        f"# Activations of {code(meta['model'])} on {code(meta['task'])}",
        "",
        "Activations at named points of the model, as checksummed safetensors files, with the texts and labels.",
        "",
        markdown_table(("", ""), rows),
        "",
        *_python(f"acts = pk.load_activations({address!a})", f"acts[{first}]  # a tensor, [rows, width]"),
        "Texts and labels are those of the dataset: its licence holds for them.",
    ]
    return "\n".join(lines)


def _python(*lines: str) -> Sequence[str]:
    return ["```python", "import probekit as pk", "", *lines, "```", ""]
