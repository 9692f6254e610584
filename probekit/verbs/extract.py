"""Extract activations, in this process, on several devices, or on a Ray cluster."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from probekit import engines
from probekit.activations.activations import ActivationSet
from probekit.activations.extract import extract_task
from probekit.activations.plan.plan import ExtractionPlan
from probekit.activations.store.reader import Store
from probekit.engines.devices import type_of_devices
from probekit.models.base import LanguageModel
from probekit.options import ExtractArguments
from probekit.options.option import keywords
from probekit.tasks.base import Task
from probekit.verbs.latents import check_saes, keep_latents, saes_asked, with_places_read


@keywords(ExtractArguments)
def extract(model: LanguageModel, task: Task | Iterable[Any], options: ExtractArguments) -> ActivationSet | Store:
    """Activations of `model` on `task`: place (point, layer) -> [N, D], in the task's order.

    A list of texts gives activations without labels, which no probe can be trained on.

    Each row is what its text gives when it runs by itself, regardless of batching: no text can see padding.

    Your own hooks run too. With the tensors kept in memory they see batches of texts of one length, at the price of
    sharing no prefixes.

    With `generate` the model first continues each text, greedily or by sampling. `inputs` are then the whole texts,
    each run at once. Continuations that an earlier run with these options wrote to `out` are read from there.

    With `part` the result is a `PartDone`, which says what is done and what is missing; `load_activations(out)` opens
    the store once it is complete.

    Args:
        model: a model from `load_model`.
        task: a task from `load_task`, or texts, lists of token ids, or chats (lists of {role, content}).
        options: one entry for each field.

    Raises:
        UsageError: an unknown point, type, device or position; a layer out of range; a point without a fixed width;
            stats without out, with several positions or with attention; out with a model that has hooks attached, which
            a store cannot record; more than fits in memory.
        DataError: inputs that the model cannot take; NaN or infinity in the activations, or a value too large for
            `dtype`; the message names the first such example of the task, and its first place.
        StorageError: the disk refused, or the files at `out` are damaged.
        ResumeMismatch: the store at `out` has other settings.
    """
    if options.devices is not None and str(options.device) == "auto":
        options = replace(options, device=type_of_devices(options.devices))
    saes = saes_asked(options)
    options, plans = with_places_read(options, saes), list[ExtractionPlan]()

    def on_plan(plan: ExtractionPlan) -> None:
        check_saes(plan, saes, options.force)
        plans.append(plan)

    acts = extract_task(model, task, options, engines.run, on_plan)
    if saes and isinstance(acts, Store):
        keep_latents(acts, plans[0], saes, options.force, options.progress)
    return acts
