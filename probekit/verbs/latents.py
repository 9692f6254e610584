"""Keep the latents of autoencoders along with the activations of a store."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from probekit.activations.latents import Latents, check_alive, check_reads, latents_of, one_layer
from probekit.activations.plan.plan import ExtractionPlan
from probekit.activations.store.reader import Store
from probekit.causal.behaviour.measure import reconstruction_loss
from probekit.errors import UsageError
from probekit.evaluation.results.wording import reconstruction_text
from probekit.latents import Sae, load_sae
from probekit.options import ExtractArguments
from probekit.points import Place
from probekit.text import printable


def saes_asked(options: ExtractArguments, stored: bool = False) -> list[Sae]:
    """The autoencoders that the options name, loaded; `stored` says that a store is made even if none is named.

    Raises:
        UsageError: something else; activations in memory.
        DataError: as `load_sae`.
    """
    if options.sae is None:
        return []
    if options.out is None and not stored:
        raise UsageError(
            "sae keeps latents in a store, and none is named; give out=PATH, or encode what extract returns: "
            "acts.encode(load_sae(PATH))"
        )
    given = [options.sae] if isinstance(options.sae, Sae | str) or not hasattr(options.sae, "__iter__") else options.sae
    return [one if isinstance(one, Sae) else load_sae(one) for one in given]


def with_places_read(options: ExtractArguments, saes: Sequence[Sae]) -> ExtractArguments:
    """The options with the points and layers that the autoencoders read, unless other points were named."""
    reads = [sae.cfg.place for sae in saes if sae.cfg.place is not None]
    if not reads or options.points != ExtractArguments.points or options.layers != ExtractArguments.layers:
        return options
    layers = sorted({place.layer for place in reads if place.layer is not None})
    return replace(options, points=list(dict.fromkeys(place.point for place in reads)), layers=layers)


def check_saes(plan: ExtractionPlan, saes: Sequence[Sae], force: bool) -> None:
    """Raise before anything is computed unless the plan keeps what the autoencoders read; errors as `encode`."""
    widths = dict(zip(plan.places, plan.widths, strict=True))
    names: dict[Place, str] = {}
    for sae in saes:
        place = latents_of(check_reads(sae, widths, plan.model.name, force))
        if place in names:
            raise UsageError(one_layer(names[place], sae.name))
        names[place] = sae.name


def keep_latents(
    store: Store, plan: ExtractionPlan, saes: Sequence[Sae], force: bool, progress: bool | None = None
) -> Latents:
    """Write the latents into a complete store, with what the autoencoders lose; those that are there stay.

    Raises:
        As `Activations.encode`.
    """
    latents = Latents(store, saes, force, to_keep=True)
    for place, sae in zip(latents, saes, strict=True):
        if not latents.is_kept(place):
            check_alive(latents, place)
            reads = latents.reads(place)
            store.keep(sae, reads, {**latents.about(place), **_loss(plan, sae, reads)}, progress)
    return Latents(store, saes, force)


def latents_in_words(latents: Latents) -> list[str]:
    """A line for each autoencoder: where it is, and what it keeps."""
    lines = []
    for place, one in latents.meta["latents"].items():
        text = reconstruction_text(one)
        lines.append(f"{place}: {one['of']} through {printable(one['sae'])}{f' ({text})' if text else ''}")
    return lines


def _loss(plan: ExtractionPlan, sae: Sae, reads: Any) -> dict[str, Any]:
    """What splicing it in costs; nothing for transcoders, edited runs, and models that predict no tokens of texts."""
    model = plan.model
    if plan.edits is not None or sae.cfg.is_transcoder or hasattr(model, "decode") or not model.has_logits:
        return {}
    texts = [plan.sequences[i].tolist() for i in range(min(len(plan.sequences), 1000))]
    return reconstruction_loss(model, sae, reads, texts, plan.sequences.n_bos)
