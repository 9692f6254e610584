"""A hook of Inspect that ends a sample once a probe flags what was said in it.

Hooks are called around the calls of a model, not within them: what a hook can do at an alarm is end the sample before
its next call, by a limit. A model stops at the token of the alarm (`model.py`).
"""

from typing import Any, ClassVar

import anyio
from inspect_ai.hooks import BeforeModelGenerate, Hooks
from inspect_ai.util import LimitExceededError

from probekit.errors import ProbekitError, UnreadError, UsageError
from probekit.options.samples import SampleOptions


class StopAtAlarm(Hooks):
    """End a sample, before its next call of a model, when a probe flags its messages.

        @hooks(name="deception", description="Ends a sample when the probe flags it")
        class Deception(StopAtAlarm):
            probe, model = "runs/STORE/results/label-resid_pre-logistic", "Qwen/Qwen3-8B"
            options = {"fpr": 0.01}

    The sample ends with a limit of the type "custom", is scored, and the log says why. Messages without an answer of a
    model are not read, nor those of which the probe reads no token. Messages that cannot be scored, such as those that
    are longer than the context, end the sample too: an alarm that cannot be raised is no all-clear.

    Attributes:
        probe: RESULTS[:PLACE].
        model: the model that the probe was trained on.
        options: of `probe_scorer`; `fpr` or `threshold` is needed.
    """

    probe: ClassVar[str] = ""
    model: ClassVar[str] = ""
    options: ClassVar[dict[str, Any]] = {}

    def __init__(self) -> None:
        if not self.probe or not self.model or {"fpr", "threshold"}.isdisjoint(self.options):
            raise UsageError("a hook needs its probe, its model, and fpr or threshold among its options; name them")

    async def on_before_model_generate(self, data: BeforeModelGenerate) -> None:
        """Read the messages that the model is about to be given."""
        from probekit.inspect.samples import describe_sample, plain_messages, sample_probe

        answers = [one.text for one in data.input if one.role == "assistant"]
        if not answers:
            return
        options = SampleOptions(**self.options)
        try:
            known = await anyio.to_thread.run_sync(sample_probe, self.probe, self.model, options)
            found = await anyio.to_thread.run_sync(known.score, plain_messages(data.input), answers[-1], True)
        except UnreadError:
            return
        except ProbekitError as error:  # Inspect logs what hooks raise and goes on, but for limits
            why = f"the probe cannot read the messages, so the sample ends: {error}"
            raise LimitExceededError("custom", value=0, limit=0, message=why) from None
        if found.flagged and found.threshold is not None:
            why = f"the probe at {known.place} raised an alarm: {describe_sample(found, known.scoring.classes)}"
            raise LimitExceededError("custom", value=found.score, limit=found.threshold, message=why)
