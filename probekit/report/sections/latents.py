"""The best latents of an autoencoder: how well each does alone, and the tokens where it is strongest."""

import heapq
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from probekit.activations.latents import latents_of
from probekit.activations.store.kept_latents import StoredLatents
from probekit.activations.store.reader import Store
from probekit.evaluation.results.data import ProbeData
from probekit.evaluation.results.wording import interval_text, latents_read, metric_name, number_text
from probekit.report.parts import Lines, PageTable
from probekit.report.render import html_of
from probekit.report.section import Section
from probekit.text import printable

STRONGEST = 5  # tokens of each latent
BEFORE, AFTER = 48, 16  # characters of the text around a token


def latents_section(data: ProbeData, store: Store | None) -> Section | None:
    """The table of the best latents; None for results of something else."""
    best = data.meta.get("best_latents")
    if not best:
        return None
    numbers = [one["latent"] for one in best["latents"]]
    kept = None if store is None else _kept(store, data, best["place"])
    tokens = {} if store is None or kept is None else _strongest_tokens(store, kept, numbers)
    classes = data.meta["classes"]
    header = [
        "latent",
        f"test {metric_name(data.headline)} alone",
        "95% interval",
        "active in",
        "class where highest",
        "strongest",
    ]
    rows = [header]
    for one in best["latents"]:
        where = tokens.get(one["latent"]) or _strongest_rows(store, one["rows"])
        scored = [number_text(one["score"]), interval_text(one["interval"])]
        rows.append([str(one["latent"]), *scored, f"{one['active']:.1%}", str(classes[one["class"]]), "; ".join(where)])
    what = "Strongest are the tokens of all texts where the latent is highest, in brackets, with their texts"
    if not tokens:
        what = "Strongest are the texts whose row is highest; extract all tokens with --sae to see tokens"
    about = (
        f"The {len(numbers)} latents of {best['place']} whose means differ most between classes on train. Each is "
        f"scored alone, by a logistic probe of it. Active is the share of rows where it is not 0. {what}."
    )
    return Section("latents", "Best latents", html_of([Lines([about]), PageTable(rows, wraps=True)]))


def _kept(store: Store, data: ProbeData, place: str) -> StoredLatents | None:
    """What the store keeps of the autoencoder that was read."""
    mark = latents_read(data.meta).get(place, {}).get("fingerprint")
    every = [one for one in store.kept_latents() if one.fingerprint == mark]
    return next((one for one in every if str(latents_of(one.reads)) == place), None)


def _strongest_tokens(store: Store, kept: StoredLatents, numbers: Sequence[int]) -> Mapping[int, list[str]]:
    """For each latent, its strongest tokens with their texts; nothing where the store does not know the characters."""
    layout, task = store.layout, store.task
    if layout.characters is None or not task.has_texts:
        return {}
    top: dict[int, list[tuple[float, int, int]]] = {number: [] for number in numbers}
    for examples, matrix in kept.shards():
        rows = layout.index(kept.reads, examples)
        text_of = np.repeat(examples, layout.counts(kept.reads)[examples])
        for number, column in zip(numbers, matrix[:, numbers].toarray().T, strict=True):
            some = np.argsort(-column, kind="stable")[:STRONGEST]
            found = [(float(column[i]), int(text_of[i]), int(rows[i])) for i in some if column[i] > 0]
            top[number] = heapq.nlargest(STRONGEST, [*top[number], *found])
    texts: Any = task.inputs
    ends = layout.characters
    return {
        number: [_in_context(texts[text], int(ends[row, 0]), int(ends[row, 1]), value) for value, text, row in own]
        for number, own in top.items()
    }


def _in_context(text: str, start: int, stop: int, value: float) -> str:
    """A token in brackets in its text, with its value."""
    before = ("…" if start > BEFORE else "") + text[max(0, start - BEFORE) : start]
    after = text[stop : stop + AFTER] + ("…" if len(text) > stop + AFTER else "")
    return f"{printable(before)}[{printable(text[start:stop])}]{printable(after)} {value:.3g}"


def _strongest_rows(store: Store | None, rows: Sequence[tuple[str, float]]) -> list[str]:
    """The texts of the strongest rows, or their ids."""
    texts: dict[str, Any] = {}
    if store is not None and store.task.has_texts:
        wanted = {name for name, _ in rows}
        texts = {name: text for name, text in zip(store.ids, store.inputs, strict=True) if name in wanted}
    return [f"{printable(str(texts.get(name, name)))[-BEFORE:]} {value:.3g}" for name, value in rows[:STRONGEST]]
