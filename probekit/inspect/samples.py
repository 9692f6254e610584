"""Score the messages of one sample with a probe, and find where the score peaks.

The model and the probe are loaded once a process and shared by the scorer, the model and the hook. Inspect runs samples
concurrently; the model reads one at a time.

Axes: T tokens of the sample.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from probekit.activations.plan.build import plan_extraction
from probekit.activations.plan.plan import ExtractionPlan
from probekit.errors import DataError, UsageError
from probekit.evaluation import ProbeResults
from probekit.models.base import LanguageModel
from probekit.models.load import load_model
from probekit.options import ScoreOptions
from probekit.options.samples import SampleOptions
from probekit.scoring.find import find_results, split_name
from probekit.scoring.probe import extraction_of, probe_of
from probekit.scoring.score import plan_scoring, run_scoring
from probekit.scoring.threshold import choose_threshold
from probekit.tasks.tables.objects import task_of
from probekit.text import printable

RUNNING = threading.Lock()
"""Held while the model computes: hooks are on the model, so that two samples would read one another's tokens."""
LOADING = threading.Lock()
"""Held while a probe and its model are loaded, so that concurrent samples load them once."""


@dataclass(frozen=True)
class Peak:
    """The token with the highest score, of those that the probe was trained on; of all messages where that is one.

    Attributes:
        index: of the token in the text, from 0.
        token: its piece of text.
        score: of the token.
        where: the message that holds it, such as "assistant message 2"; empty for a text without messages.
        trained: whether the probe was trained on such tokens.
    """

    index: int
    token: str
    score: float
    where: str
    trained: bool


@dataclass(frozen=True)
class ScoredSample:
    """What a probe gives for one sample.

    Attributes:
        score: of the probe; of several tokens, their aggregate.
        probability: of the second of two classes, calibrated; None without a calibration, and for a regression.
        predicted: name of the predicted class; None for a regression.
        flagged: whether the score is at or above the threshold; None without one.
        threshold: that it was compared with.
        unusual: whether the activations are far from those of the training; None where that is not known.
        cut: the context in tokens, where the text is longer and its end was not read; None otherwise.
        peak: the token with the highest score.
    """

    score: float
    probability: float | None
    predicted: str | None
    flagged: bool | None
    threshold: float | None
    unusual: bool | None
    cut: int | None
    peak: Peak


class SampleProbe:
    """A probe of results, with the model that it was trained on."""

    def __init__(self, probe: str, model: str, options: SampleOptions) -> None:
        """Load the results and the model.

        Args:
            probe: RESULTS[:PLACE], as `probekit score --probe` takes it.
            model: name or folder.
            options: what is flagged, and how the model runs.

        Raises:
            UsageError: a probe that gives several numbers.
            DataError: no such results; or as from `load_model`.
        """
        folder, place = split_name(probe)
        self.results, place = find_results(folder, options.place or place)
        self.options = options
        self.scoring = probe_of(self.results, place, ScoreOptions(sae=options.sae))
        n_classes, coef = len(self.scoring.classes), getattr(self.scoring.probe, "coef_", np.zeros(1))
        if n_classes > 2 or (not n_classes and np.ndim(coef) > 1):
            raise UsageError(
                f"a sample has one number, and the probe at {self.scoring.place} gives several; take one of two classes"
            )
        self.threshold = options.threshold
        if options.fpr is not None:
            self.threshold = choose_threshold(self.results.rows, self.place, options.fpr).value
        self.model = model_of(model, options, self.results)

    @property
    def place(self) -> str:
        """Of the probe: "resid_pre.5"."""
        return self.scoring.place

    def score(self, messages: Sequence[dict[str, Any]], completion: str, whole: bool = False) -> ScoredSample:
        """Score a chat with a probe of chats, and the model's answer alone with a probe of plain texts.

        Args:
            messages: of the sample, as templates take them.
            completion: what the model answered last.
            whole: whether texts longer than the context are refused; otherwise their end is not read.

        Raises:
            UnreadError: no token that the probe reads.
            DataError: a text that is not whole; or as from `ProbeResults.score`.
            ResumeMismatch: another model, or another chat template, than the probe's.
        """
        text = [dict(one) for one in messages] if self.scoring.reading.get("chat") else completion
        task, n_ctx = task_of([text]), self.model.cfg.n_ctx
        how = ScoreOptions(
            place=self.place,
            any_model=self.options.any_model,
            chat_template=self.options.chat_template,
            progress=False,
        )
        with RUNNING:
            plan = plan_extraction(self.model, task, extraction_of(self.scoring, how, True))
            cut = bool(plan.sequences.n_cut)
            if cut and whole:
                raise DataError(
                    f"the messages have more tokens than the context of {n_ctx:,}, so the newest cannot be read; give "
                    "fewer, or a model with a longer context"
                )
            own, every = (
                run_scoring(plan_scoring(self.results, self.model, task, replace(how, tokens=tokens), self.scoring))
                for tokens in (False, True)
            )
            where = _messages(plan, len(every))
        assert every.tokens is not None
        assert every.trained is not None
        inside = np.array([bool(name) for name in where])
        among = every.trained if every.trained.sum() > 1 else inside if inside.any() else np.ones_like(inside)
        at = int(np.argmax(np.where(among, every.scores, -np.inf)))
        aggregated = np.max if self.options.aggregate == "max" else np.mean
        score = float(aggregated(own.scores))
        return ScoredSample(
            score=score,
            probability=None if own.probabilities is None else float(aggregated(own.probabilities[:, 1])),
            predicted=None if own.predicted is None else str(self.scoring.classes[int(score > 0)]),
            flagged=None if self.threshold is None else score >= self.threshold,
            threshold=self.threshold,
            unusual=None if own.unusual is None else bool(own.unusual.any()),
            cut=n_ctx if cut else None,
            peak=Peak(at, str(every.tokens[at]), float(every.scores[at]), where[at], bool(every.trained[at])),
        )


def _messages(plan: ExtractionPlan, n: int) -> list[str]:
    """The message of each token of a text, "" where there is none: [T]."""
    (regions,), characters = plan.task.regions or [[]], plan.layout.characters
    found = [""] * n
    if characters is None:
        return found
    seen: dict[str, int] = {}
    for name, start, end in regions:
        seen[name] = seen.get(name, 0) + 1
        for i in np.flatnonzero((characters[:, 0] < end) & (characters[:, 1] > start)).tolist():
            found[i] = f"{name} message {seen[name]}"
    return found


def sample_probe(probe: str, model: str, options: SampleOptions) -> SampleProbe:
    """`SampleProbe`, made once."""
    with LOADING:
        return _made(probe, model, options)


@cache
def _made(probe: str, model: str, options: SampleOptions) -> SampleProbe:
    return SampleProbe(probe, model, options)


def model_of(name: str, options: SampleOptions, results: ProbeResults | None = None) -> LanguageModel:
    """A model, loaded once for each type and device: that of the probe's activations, unless the options name one."""
    origin = {} if results is None else results.meta.get("activations", {})
    dtype = options.dtype or origin.get("compute_dtype") or "float32"
    return _loaded(name, dtype, options.device, origin.get("via"), origin.get("quantize"))


@cache
def _loaded(name: str, dtype: str, device: str, via: Any, quantize: Any) -> LanguageModel:
    return load_model(name, dtype=dtype, device=device, via=via, quantize=quantize, progress=False)


def plain_messages(messages: Sequence[Any]) -> list[dict[str, Any]]:
    """Messages of Inspect as chat templates take them: role, text, and the calls of tools."""
    found = []
    for one in messages:
        calls = [
            {"type": "function", "id": call.id, "function": {"name": call.function, "arguments": call.arguments}}
            for call in getattr(one, "tool_calls", None) or []
        ]
        found.append({"role": one.role, "content": one.text, **({"tool_calls": calls} if calls else {})})
    return found


def describe_sample(found: ScoredSample, classes: Sequence[str]) -> str:
    """The score of a sample, against what, and where it peaks, in one line."""
    score = f"score {found.score:.3g}"
    if found.probability is not None:
        score += f", probability {found.probability:.3g} of {printable(classes[1])}"
    if found.threshold is not None:
        score += f"; {'at or above' if found.flagged else 'below'} the threshold {found.threshold:.3g}"
    peak = found.peak
    where = f" in {peak.where}" if peak.where else ""
    note = "" if peak.trained else ", a token of a kind that the probe was not trained on"
    far = "; unusual: far from the training activations" if found.unusual else ""
    cut = f"; only the first {found.cut:,} tokens were read, the model's context" if found.cut else ""
    return f"{score}; highest at token {peak.index}, {peak.token!a}{where} ({peak.score:.3g}{note}){far}{cut}"
