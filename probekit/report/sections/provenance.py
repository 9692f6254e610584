"""Where the numbers come from: model, data, seeds and versions; and the commands that make them again."""

import dataclasses
import shlex
from collections.abc import Mapping
from typing import Any

from probekit.options import ProbeOptions
from probekit.options.option import help_of
from probekit.report.parts import Commands, Facts, Heading, Lines, Part
from probekit.report.render import html_of
from probekit.report.runs import Run
from probekit.report.section import Section
from probekit.text import printable

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

NOT_REPEATED = (
    "The command of the extraction leaves out devices, columns by name, chat templates, edits and what the model wrote "
    "itself; the fingerprints above tell whether the texts and the weights are the same."
)


def provenance_section(run: Run) -> Section:
    """Fingerprints, settings, versions and commands of a run."""
    meta = run.results.meta
    parts: list[Part] = [Facts(_facts(run, meta))]
    commands = commands_of(run)
    if commands:
        parts += [Heading("Make it again"), Commands(commands)]
        if run.store is None:
            parts.append(
                Lines(["The store was not found next to these results, so its own command is not known."], "note")
            )
        else:
            parts.append(Lines([NOT_REPEATED], "note"))
    return Section("provenance", "Provenance", html_of(parts))


def _facts(run: Run, meta: Mapping[str, Any]) -> list[tuple[str, str]]:
    read = meta.get("activations") or {}
    pairs = [("Results", str(run.folder))]
    pairs += [("Store", str(run.store.path))] if run.store is not None else []
    pairs += [("Model", str(meta["model"]))] + [("Task", str(meta[key])) for key in ("task",) if meta.get(key)]
    pairs += [(name, _plain(read[key])) for key, name in NAMES.items() if key in read]
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


def commands_of(run: Run) -> list[str]:
    """The commands that make the results again, as far as their files record them; texts are quoted for a shell."""
    asked = run.results.meta.get("asked")
    if not isinstance(asked, Mapping):
        return []
    store = "STORE" if run.store is None else str(run.store.path)
    if "probes" in asked:  # of causal
        return [_joined(["probekit", "causal", store, *_causal_options(asked)])]
    found = [] if run.store is None else [_joined(_extract(run.store.meta, run.store.source or {}))]
    random = ["--baseline", "random-init"] if asked.get("random_init") else []
    found.append(_joined(["probekit", "train-probe", store, *_probe_options(run, asked), *random]))
    for causal in run.causal.values():
        if isinstance(causal.meta.get("asked"), Mapping):
            found.append(_joined(["probekit", "causal", store, *_causal_options(causal.meta["asked"])]))
    return found


def _joined(words: list[str]) -> str:
    return " ".join(shlex.quote(printable(word)) for word in words)


def _extract(meta: Mapping[str, Any], source: Mapping[str, Any]) -> list[str]:
    """What made the store: model, data, points, tokens and type."""
    info = meta.get("task_info") or {}
    if meta.get("kind"):  # an import
        return ["probekit", "import", "FILES"]
    words = ["probekit", "extract", "--model", str(source.get("name_or_path", meta["model"]))]
    words += ["--dataset", str(info.get("source", meta["task"]))]
    words += ["--points", ",".join(meta["points"])]
    position = meta.get("position")
    words += ["--position", ",".join(map(str, position)) if isinstance(position, list) else str(position)]
    for key, flag in (("limit", "--limit"), ("seed", "--seed")):
        words += [flag, str(info[key])] if info.get(key) else []
    if meta.get("bos") is not None:
        words.append("--bos" if meta["bos"] else "--no-bos")
    words += ["--dtype", str(meta["compute_dtype"])] if meta.get("compute_dtype", "float32") != "float32" else []
    words += ["--store-dtype", str(meta["dtype"])] if meta.get("dtype", "float32") != "float32" else []
    return words


def _probe_options(run: Run, asked: Mapping[str, Any]) -> list[str]:
    """The options of train-probe that differ from their defaults; the label and the point are always named."""
    meta = run.results.meta
    usual = vars(ProbeOptions(**{name: asked[name] for name in ("aggregate", "quick", "by") if asked.get(name)}))
    words = ["--label", str(meta["label"]), "--point", str(meta["point"])]
    for field in dataclasses.fields(ProbeOptions):
        known = help_of(field)
        value = asked.get(field.name)
        is_mode = field.name in ("aggregate", "quick", "by") and value not in (None, False)
        if known.flag is None or field.name in ("label", "point") or value is None:
            continue
        if is_mode or value != _listed(usual.get(field.name)):
            words += _words(known.flag.partition("/")[0].partition(",")[0], value)
    return words


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _words(flag: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [flag]
    if isinstance(value, dict):  # a probe with parameters
        name = str(value["name"])
        return [
            flag,
            name,
            *(w for k, v in value.items() if k != "name" for w in ("--set", f"train-probe.probe.{k}={v}")),
        ]
    return [
        flag,
        ",".join(f"{one:g}" if isinstance(one, float) else str(one) for one in value)
        if isinstance(value, list)
        else str(value),
    ]


def _causal_options(asked: Mapping[str, Any]) -> list[str]:
    answers = asked.get("answers")
    return ["--answers", ",".join(map(str, answers))] if isinstance(answers, list) else []
