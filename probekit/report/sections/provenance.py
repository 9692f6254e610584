"""Where the numbers come from: model, data, seeds and versions; and the commands that make them again."""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from probekit.activations import Store, load_activations
from probekit.activations.imports.verify import verified_text
from probekit.errors import ProbekitError, StorageError
from probekit.evaluation import ProbeCurves, ProbeResults
from probekit.evaluation.results.wording import latents_read, reconstruction_text
from probekit.options import ExtractOptions, ModelOptions, TaskOptions
from probekit.options.generate import ContinuationOptions
from probekit.options.question import words_of
from probekit.options.typed import command_line, typed
from probekit.report.parts import Commands, Facts, Heading, Lines, Part
from probekit.report.render import html_of
from probekit.report.runs import ReportRun
from probekit.report.section import Section
from probekit.selections import PER_EXAMPLE
from probekit.tasks.fields import ASKED, IN_MEMORY, LABEL_SETS
from probekit.text import listed

NAMES = {
    "model_fingerprint": "Model fingerprint",
    "tokenizer_fingerprint": "Tokenizer fingerprint",
    "task_fingerprint": "Task fingerprint",
    "source_fingerprint": "Fingerprint of the import",
    "dtype": "Stored as",
    "compute_dtype": "Computed in",
    "bos": "BOS token",
    "edited": "Edits of the model",
    "check": "Checksums",
}

NO_FILE = "DATA"  # stands for data that no file or name can give again
CANNOT_BE_TYPED = {
    "edited": "edits of the model",
    "chat": "a chat template, if one was given",
}
"""What a store records of an extraction that its printed command does not repeat."""


def provenance_section(runs: Sequence[ReportRun]) -> Section:
    """Fingerprints, settings, versions and commands of runs on one store."""
    facts: dict[str, dict[str, None]] = {}
    for run in runs:
        for name, value in _facts(run, run.results.meta):
            facts.setdefault(name, {})[value] = None
    parts: list[Part] = [Facts([(name, "; ".join(values)) for name, values in facts.items()])]
    commands = list(dict.fromkeys(line for run in runs for line in commands_of(run)))
    if commands:
        parts += [Heading("Make it again"), Commands(commands)]
        if lacks := _not_repeated(runs[0].store):
            parts.append(Lines([lacks], "note"))
    return Section("provenance", "Provenance", html_of(parts))


def _not_repeated(store: Store | None) -> str:
    """What the commands do not say, in one sentence; empty if they say all."""
    if store is None:
        return "The store was not found next to these results, so its own command is not known."
    info = store.meta.get("task_info") or {}
    lacks = [what for key, what in CANNOT_BE_TYPED.items() if store.meta.get(key) or info.get(key)]
    if info.get(IN_MEMORY):
        lacks.append(f"the data, which came from memory ({info['source']}): write it to a file")
    if LABEL_SETS in info:
        lacks.append(f"labels that were joined later ({listed(list(info[LABEL_SETS]))}): see probekit label")
    told = f"The commands leave out {'; '.join(lacks)}. " if lacks else ""
    source = _dataset(store.meta)
    if not info.get(IN_MEMORY) and ("/" in source or Path(source).suffix) and not Path(source).is_absolute():
        told += f"The data {source!a} is a path from the folder where extract ran, or a name on the Hub. "
    return told and f"{told}The fingerprints tell whether the texts and weights are the same."


def _facts(run: ReportRun, meta: Mapping[str, Any]) -> list[tuple[str, str]]:
    read = meta.get("activations") or {}
    pairs = [("Results", str(run.folder))]
    pairs += [("Store", str(run.store.path))] if run.store is not None else []
    pairs += [("Model", str(meta["model"]))] + [("Task", str(meta[key])) for key in ("task",) if meta.get(key)]
    pairs += [(name, _plain(read[key])) for key, name in NAMES.items() if key in read]
    pairs += [("Rows of the import verified", verified_text(read["verified"]))] if "verified" in read else []
    for place, one in latents_read(meta).items():
        said = (f"{one['sae']}, which reads {one['of']}", reconstruction_text(one), f"fingerprint {one['fingerprint']}")
        pairs.append((f"Autoencoder of {place}", "; ".join(filter(None, said))))
    for name, box in (meta.get("black_boxes") or {}).items():
        made = {
            key: box["record"].get(key)
            for key in ("model", "answers", "shots", "bos", "first_prompt", "file", "sha256")
        }
        said = [f"{key.replace('_', ' ')} {value}" for key, value in made.items() if value not in (None, [], "")]
        pairs.append((f"Black box {name}", "; ".join(said)))
    if run.store is not None and run.store.meta.get("created"):
        pairs.append(("Store made", str(run.store.meta["created"])))
    if meta.get("C"):
        pairs.append(("Grid of C", ", ".join(f"{C:g}" if isinstance(C, float) else str(C) for C in meta["C"])))
    interval = meta.get("interval")
    if interval:
        pairs.append(("Intervals", f"95%, {interval['resamples']:,} resamples of each {interval['unit']}"))
    pairs += [("Seed", str(meta["seed"]))] if "seed" in meta else []
    pairs.append(("Versions", ", ".join(f"{name} {version}" for name, version in (meta.get("versions") or {}).items())))
    return pairs


def _plain(value: object) -> str:
    return {True: "yes", False: "no"}.get(value, str(value)) if isinstance(value, bool) else str(value)


def commands_of(run: ReportRun) -> list[str]:
    """The commands that make the results again, as far as their files record them, quoted for bash."""
    if not isinstance(run.asked, Mapping):
        return []
    own = [] if run.store is None else [_extract(run.store)]
    if "probes" in run.asked:
        words = [*own, *_probes_trained(run), _causal(run, run.folder, run.results)]
    elif "stores" in run.asked:
        words = [*map(_extract, _opened(run.asked["stores"])), _transfer(run, run.asked)]
    else:
        words = [*own, _train_probe(run, run.folder, run.results.meta, run.asked)]
        words += [_causal(run, *each) for each in run.causal.items() if isinstance(each[1].meta.get("asked"), Mapping)]
    return [command_line(each) for each in words]


def _opened(paths: Sequence[str]) -> list[Store]:
    """The stores that are still where they were."""
    found = []
    for path in paths:
        with suppress(ProbekitError):
            found.append(load_activations(path, "size"))
    return found


def _extract(store: Store) -> list[str]:
    """What made the store: the options of the model, the task and the extraction that differ from their defaults."""
    meta = store.meta
    if meta.get("kind"):
        return ["probekit", "import", "FILES"]
    source, info = dict(store.source or {}), meta.get("task_info") or {}
    words = ["probekit", "extract", "--model", _whole_path(str(source.pop("name_or_path", meta["model"])))]
    words += ["--dataset", _dataset(meta), *typed(TaskOptions, info.get(ASKED, info), "extract")]
    asked = meta.get("asked", {"points": meta["points"], "dtype": meta.get("dtype"), "bos": meta.get("bos")})
    position = meta.get("position")
    if "position" not in asked and position not in (None, "last", PER_EXAMPLE):
        asked = {**asked, "position": position}
    for kind in (ExtractOptions, ContinuationOptions, ModelOptions):
        words += typed(kind, source if kind is ModelOptions else asked, "extract")
    words += ["--no-stop"] if asked.get("stop_tokens") == [] else []
    kept = [] if "sae" in asked else [_whole_path(one.name) for one in _kept_latents(store)]
    words += ["--sae", ",".join(kept)] if kept else []
    return [*words, "--out", str(store.path)]


def _kept_latents(store: Store) -> Sequence[Any]:
    """The latents that a store keeps; none where they are damaged."""
    with suppress(StorageError):
        return store.kept_latents()
    return []


def _dataset(meta: Mapping[str, Any]) -> str:
    """The --dataset of a store."""
    info = meta.get("task_info") or {}
    source = str(info.get("source", meta["task"]))
    return NO_FILE if info.get(IN_MEMORY) else "-" if source == "stdin" else _whole_path(source)


def _whole_path(name: str) -> str:
    """A name as it is; a path to something that is there from the root, as a command may run in another folder."""
    is_path = "/" in name or Path(name).suffix
    return str(Path(name).resolve()) if is_path and Path(name).exists() else name


def _train_probe(run: ReportRun, folder: Path, meta: Mapping[str, Any], asked: Mapping[str, Any]) -> list[str]:
    """The command of results in a folder; the label and the point are always named."""
    named = {key: asked.get(key) or meta.get(key) for key in ("label", "point")}
    return words_of({**asked, **named}, [_store_name(run)], ["--out", str(folder)])


def _transfer(run: ReportRun, asked: Mapping[str, Any]) -> list[str]:
    """The command of a transfer; the point is always named."""
    return words_of({**asked, "point": run.results.meta["point"]}, asked["stores"], ["--out", str(run.folder)])


def _causal(run: ReportRun, folder: Path, causal: Any) -> list[str]:
    """The command of causal results in a folder, on the probes that they are of."""
    files = {name: _whole_path(path) for name, path in (causal.meta.get("files") or {}).items()}
    asked, probes = {**causal.meta["asked"], **files}, _probes_of(folder, causal)
    more: list[str] = []
    if probes is not None and (run.store is None or run.store.path.resolve() not in probes.resolve().parents):
        more += ["--store", _store_name(run)]
    more += ["--model", "MODEL"] if run.store is not None and not (run.store.source or {}).get("name_or_path") else []
    return words_of(asked, [_store_name(run) if probes is None else str(probes)], [*more, "--out", str(folder)])


def _probes_of(folder: Path, causal: Any) -> Path | None:
    """The folder of the probes that causal results are of; None for pairs, which need none."""
    name = {**causal.meta["asked"], **(causal.meta.get("files") or {})}.get("probes")
    return None if name is None else Path(os.path.normpath(folder.parent / str(name)))


def _probes_trained(run: ReportRun) -> list[list[str]]:
    """The command that trains the probes of causal results that stand alone, if they are still there."""
    probes = _probes_of(run.folder, run.results)
    if probes is None:
        return []
    with suppress(ProbekitError):
        meta = ProbeResults.load(probes).meta
        folder, asked = probes, meta.get("asked")
        if asked is None:  # one of several curves
            folder, asked = probes.parent, ProbeCurves.load(probes.parent).meta.get("asked")
        return [] if asked is None else [_train_probe(run, folder, meta, asked)]
    return []


def _store_name(run: ReportRun) -> str:
    return "STORE" if run.store is None else str(run.store.path)
