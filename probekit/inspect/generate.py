"""Continue a chat under a monitor that may end it."""

import secrets
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from probekit.activations.plan.prepare import rendered_task
from probekit.inspect.samples import RUNNING, SampleProbe
from probekit.models.base import LanguageModel
from probekit.models.generation import continuation_text, continuations, stop_ids, to_ids
from probekit.options import ExtractOptions, Sampling
from probekit.options.samples import SampleOptions
from probekit.scoring.monitor import Monitor
from probekit.tasks.tables.objects import task_of

REASONS = {"stop token": "stop", "max_new_tokens": "max_tokens", "context": "model_length", "stopped": "content_filter"}


def generate_watched(
    model: LanguageModel,
    known: SampleProbe | None,
    options: SampleOptions,
    messages: Sequence[dict[str, Any]],
    stop: bool,
    config: Any,
) -> dict[str, Any]:
    """Continue a chat: the text, why it ended, its tokens and seed, the scores of its tokens, and the first alarm.

    Args:
        model: that writes.
        known: the probe that watches; None for none.
        options: with the chat template.
        messages: as templates take them.
        stop: whether an alarm ends the text.
        config: Inspect's `GenerateConfig`.

    Raises:
        UsageError: no chat template, or a prompt that does not fit the context.
        DataError: a chat that the template refuses.
    """
    how = ExtractOptions(chat_template=options.chat_template, add_generation_prompt=True)
    seed = config.seed
    if seed is None and config.temperature:
        seed = secrets.randbelow(2**31)  # with one seed for all, the epochs of a sample would be the same text
    sampling = Sampling(config.temperature or 0.0, config.top_k, config.top_p, seed or 0)
    with RUNNING:
        (text,) = rendered_task(model, task_of([list(messages)]), how).inputs
        (prompt,), _, _ = to_ids(model, [str(text)], bos=False)  # the template writes a BOS itself
        watching = nullcontext() if known is None else _monitor(model, known, stop)
        with watching as monitor:
            (made,) = continuations(model, [prompt], config.max_tokens, sampling, stop_ids(model, None))
        return {
            "text": continuation_text(model, prompt, made),
            "reason": REASONS[made.ended],
            "n_prompt": len(prompt),
            "n_new": len(made.tokens),
            "seed": seed,
            **({"probe": None, "alarm": None} if monitor is None else _watched(model, monitor)),
        }


def _monitor(model: LanguageModel, known: SampleProbe, stop: bool) -> Monitor:
    alarms: dict[str, Any] = {"threshold": known.threshold, "on_alarm": lambda _: stop}
    sae = getattr(known.scoring.probe, "sae", None)
    how = alarms if known.threshold is not None else {}
    return Monitor(model, known.results, place=known.place, any_model=known.options.any_model, sae=sae, **how)


def _watched(model: LanguageModel, monitor: Monitor) -> dict[str, Any]:
    """The scores of the generated tokens that the model has read, and the first alarm; JSON-able."""
    (text,), (watched,) = monitor.texts, monitor.probes
    scores = text.scores[watched.name][text.n_prompt :]
    found = {"place": str(watched.place), "threshold": watched.threshold, "scores": scores}
    if not text.alarms:
        return {"probe": found, "alarm": None}
    first = text.alarms[0]
    piece = "" if first.token is None else model.need_tokenizer().tokens([first.token])[0]
    why = f"score {first.score:.3g} at token {first.index}, {piece!a}, reached the threshold {first.threshold:.3g}"
    index = first.index - text.n_prompt
    return {"probe": found, "alarm": {"place": str(watched.place), "index": index, "score": first.score, "why": why}}
