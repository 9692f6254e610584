"""The scorer of Inspect that scores the messages of a sample with a probe."""

import dataclasses

import anyio
from inspect_ai.scorer import Score, Scorer, Target, mean, scorer, stderr
from inspect_ai.solver import TaskState

from probekit.errors import DataError
from probekit.options.option import keywords
from probekit.options.samples import SampleOptions


@scorer(metrics=[mean(), stderr()])
@keywords(SampleOptions)
def probe_scorer(probe: str, model: str, options: SampleOptions) -> Scorer:
    """Score the messages of each sample with a saved probe.

    A probe of chats reads all messages, through the chat template; a probe of plain texts reads the model's last
    answer. The value is whether the sample is flagged, with `fpr` or `threshold`; else the calibrated probability of
    the second class, or the score where there is none. The explanation says where the score peaks, and the metadata
    hold every number. A sample without a token that the probe reads is unscored, with the reason.

    Args:
        probe: RESULTS[:PLACE], a folder of results and a place in it; without one the best.
        model: the model that the probe was trained on, which need not be the one that is evaluated.
        options: as keyword arguments.

    Raises:
        UsageError: a probe that gives several numbers, or both `fpr` and `threshold`.
        DataError: no such results; a model that cannot be loaded.
    """
    from probekit.inspect.samples import describe_sample, plain_messages, sample_probe

    known = sample_probe(str(probe), str(model), options)

    async def score(state: TaskState, target: Target) -> Score:
        messages, completion = plain_messages(state.messages), state.output.completion
        try:
            found = await anyio.to_thread.run_sync(known.score, messages, completion)
        except DataError as error:
            return Score.unscored(reason="scoring_failed", explanation=str(error))
        value = found.probability if found.flagged is None else found.flagged
        return Score(
            value=found.score if value is None else value,
            answer=found.predicted,
            explanation=describe_sample(found, known.scoring.classes),
            metadata={"place": known.place, **dataclasses.asdict(found)},
        )

    return score
