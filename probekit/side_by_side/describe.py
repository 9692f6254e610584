"""What a run is of, as facts; the names that tell several runs from one another; and its curve as numbers.

Of the settings that decide its scores, those at their default in every version of probekit are left out, since older
results do not list them.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from probekit.evaluation.results.coordinates import within_text
from probekit.evaluation.results.data import LayerResult, ProbeData, Quote, is_output
from probekit.evaluation.results.verdict import chance_of
from probekit.evaluation.results.wording import decoding, latents_read, point_name, position_name
from probekit.options.question import OF_BLACK_BOXES
from probekit.points import Place, depth_of
from probekit.side_by_side.data import ComparedPlace, ComparedRun
from probekit.side_by_side.runs import NamedRun
from probekit.side_by_side.steps import training_step
from probekit.text import printable

# options that another fact of the results names, or that decide no score
_NO_SETTING = {"label", "point", "probe", "position", "seed", "layers", "by", "check", "title", "random_init"}
_NO_SETTING |= {"aggregate", "C", "quick", "controls", "control_type", "control_C", "codelength", "intervals"}
_NO_SETTING |= {"baselines", "least_texts", "nuisance", "shift_column", "within", "on_bad_row"}
OF_PROBE = "probe."  # begins the names of settings that other kinds of probes do not have, or mean differently
_NO_SETTING |= {"sae", "sae_digest", "force", "ensemble", *OF_BLACK_BOXES}
_SEEDS = ("random_state", "seed")  # parameters of estimators
_EXTRACTION = {"compute_dtype": "dtype", "dtype": "store_dtype", "bos": "bos", "via": "via", "quantize": "quantize"}
"""Entry of the activations' record -> the option that sets it."""


def settings_of(meta: Mapping[str, Any]) -> dict[str, str]:
    """Setting, such as "--bos" or "--probe.C" -> its name and value in words, such as "bos True".

    Args:
        meta: of the results.
    """
    known, estimator = meta.get("activations") or {}, meta.get("estimator") or {}
    given = {name: known.get(entry) for entry, name in _EXTRACTION.items()}
    given |= {"edits": _edits(known), "sae": _saes(meta), **_reading(meta.get("reading") or {})}
    parameters = estimator.get("parameters") or {}
    given |= {f"{OF_PROBE}{name}": value for name, value in parameters.items() if name not in _SEEDS}
    given |= {f"{OF_PROBE}C": meta.get("C")}
    given |= {name: value for name, value in (meta.get("asked") or {}).items() if name not in _NO_SETTING}
    given |= {name: meta[name] for name in ("folds", "drop_leaks") if meta.get(name)}
    shown = {name: name.removeprefix(OF_PROBE) for name in given}
    return {f"--{name}": f"{shown[name]} {_text(one)}" for name, one in given.items() if one not in (None, False)}


def _edits(known: Mapping[str, Any]) -> str | None:
    """The edits of the model in words, with a digest that tells two directions from one another."""
    edits = known.get("edits")
    return None if not edits else f"{known.get('edited', '')} ({_digest([edits, known.get('edit_positions')])})".strip()


def _saes(meta: Mapping[str, Any]) -> str | None:
    """The autoencoders by name, with a digest of what they are."""
    latents = latents_read(meta)
    names = dict.fromkeys(one["sae"].rstrip("/").rpartition("/")[2] for one in latents.values())
    return f"{','.join(names)} ({_digest([one['fingerprint'] for one in latents.values()])})" if latents else None


def _reading(reading: Mapping[str, Any]) -> dict[str, Any]:
    chat, long = reading.get("chat"), reading.get("on_long")
    found = {name: reading.get(name) for name in ("keep_blanks", "skip_special")}
    return found | {"on_long": None if long == "cut" else long, "chat_template": _digest(chat) if chat else None}


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:6]


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


LONGEST = 60  # characters of a run's name
_NAMED = ("model", "revision", "task", "label", "point", "position", "within", "probe", "place")


def compared_runs(runs: Sequence[NamedRun]) -> list[ComparedRun]:
    """The runs as numbers, each with a name of its own."""
    facts = [facts_of(run) for run in runs]
    names = _names(runs, facts)
    return [_compared(run, own, name) for run, own, name in zip(runs, facts, names, strict=True)]


def facts_of(run: NamedRun) -> dict[str, str]:
    """What a run is of, by the name of the fact; settings have names that begin with "--"."""
    meta = run.data.meta
    known = meta.get("activations") or {}
    facts = {key: str(meta[key]) for key in ("model", "task", "label", "point")}
    facts |= {
        "point": point_name(meta),
        "position": position_name(meta["position"]),
        "probe": str(meta["probe"]),
        "seed": str(meta.get("seed")),
    }
    if within := within_text(meta):
        facts["within"] = within
    if known.get("revision"):
        facts["revision"] = str(known["revision"])
    if run.place is not None:
        facts["place"] = run.place.place
    facts["weights"] = str(known.get("model_fingerprint") or known.get("source_fingerprint") or "")[:8]
    facts["rows"] = str(known.get("task_fingerprint") or "")[:8]  # texts, labels and splits
    facts["examples"] = _examples(meta)
    return facts | settings_of(meta)


def _examples(meta: Mapping[str, Any]) -> str:
    """How many rows of each class there are in all splits: the same for other splits of the same data."""
    totals: dict[str, int] = {}
    for counts in (meta.get("counts") or {}).values():
        for name, n in counts.items():
            totals[name] = totals.get(name, 0) + n
    return str(sorted(totals.items()) or sum(meta["n"].values()))


def shared_by_all(facts: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """The facts that all runs have in common."""
    return {key: value for key, value in facts[0].items() if all(own.get(key) == value for own in facts)}


def _names(runs: Sequence[NamedRun], facts: Sequence[Mapping[str, str]]) -> list[str]:
    """The given name of each run, or the facts in which it differs from others; no name is given twice.

    Runs that differ in no fact from another have the name of their folder too, or else their number.
    """
    shared = shared_by_all(facts)
    told = [run.name or ", ".join(_differing(own, shared)) for run, own in zip(runs, facts, strict=True)]
    names: list[str] = []
    for number, (run, name) in enumerate(zip(runs, told, strict=True), 1):
        where = run.address or (run.path.name if run.path is not None else "")
        folder = where if run.name is None and told.count(name) > 1 else ""
        name = ", ".join(filter(None, (name, folder))) or f"run {number}"
        name = name if len(name) <= LONGEST else f"{name[: LONGEST // 2 - 1]}…{name[-(LONGEST // 2) :]}"
        names.append(f"{name} ({number})" if name in names else name)
    return names


def _differing(own: Mapping[str, str], shared: Mapping[str, str]) -> list[str]:
    """The facts of a run that not all runs share, as its name has them."""
    told = [key for key in _NAMED if key in own and key not in shared]
    differs = [own[key] for key in told if key != "point" or "place" not in told]  # a place says its point
    differs += [f"seed {own['seed']}"] if "seed" not in shared else []
    settings = [key for key in own if key.startswith("--") and key not in shared]
    same_probe = "probe" in shared
    return differs + [own[key] for key in settings if same_probe or not key.startswith(f"--{OF_PROBE}")]


def _compared(run: NamedRun, facts: dict[str, str], name: str) -> ComparedRun:
    data, quoted = run.data, run.data.quoted
    if run.place is not None:
        ends = run.place.intervals.get(data.headline)
        quoted = Quote(run.place.metrics["test"][data.headline], ends, run.place)
    place = None if quoted is None else quoted.layer
    return ComparedRun(
        name=name,
        path=None if run.path is None else run.address or str(run.path),
        facts=facts,
        step=training_step(facts.get("revision")),
        headline=data.headline,
        n_layers=int(data.meta["n_layers"]),
        n_test=int(data.meta["n"]["test"]),
        places=[_place(data, layer) for layer in data.layers],
        best=None if place is None else next(i for i, layer in enumerate(data.layers) if layer is place),
        given=run.place is not None,
        estimate=None if quoted is None else quoted.value,
        interval=None if quoted is None else quoted.interval,
        chance=chance_of(data),
        converged=place is None or place.converged,
    )


def _place(data: ProbeData, layer: LayerResult) -> ComparedPlace:
    low, high = layer.intervals.get(data.headline, (None, None))
    value = layer.metrics["test"][data.headline]
    x = layer_number(data, layer)
    depth = depth_of(Place(layer.point, layer.layer), int(data.meta["n_layers"]))
    depth = 1.0 if depth is None else depth  # places side by side are drawn at the end
    about = {"C": layer.C, "in_best_set": layer.in_best_set, "is_at_edge": layer.is_at_edge}
    return ComparedPlace(layer.point, layer.layer, x, depth, value, low, high, layer.band, **about)


def layer_number(data: ProbeData, layer: LayerResult) -> int:
    """Where a place is on the layer axis; an embedding is before layer 0, the output after the last layer."""
    if layer.layer is not None and not is_output(data, layer):
        return layer.layer
    n_layers = int(data.meta["n_layers"])
    return -1 if depth_of(Place(layer.point, layer.layer), n_layers) == 0 else n_layers


def heading(facts: Sequence[Mapping[str, str]], metric: str) -> str:
    """Label, model and task as far as all runs share them: "Decoding number from gpt2 (agreement)"."""
    return printable(decoding(shared_by_all(facts), metric))
