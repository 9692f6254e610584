"""A model of Inspect that this project computes, watched by a probe: it stops at the token of an alarm."""

from typing import Any

import anyio
from inspect_ai.model import (
    ChatCompletionChoice,
    ChatMessage,
    ChatMessageAssistant,
    GenerateConfig,
    ModelAPI,
    ModelOutput,
    ModelUsage,
    StopDetails,
    modelapi,
)
from inspect_ai.tool import ToolChoice, ToolInfo

from probekit.errors import UsageError
from probekit.options.option import keywords
from probekit.options.samples import SampleOptions

MAX_TOKENS = 2048  # as Inspect's own local models
NOT_OFFERED = (
    *("stop_seqs", "best_of", "frequency_penalty", "presence_penalty", "logit_bias", "num_choices", "logprobs"),
    *("prompt_logprobs", "response_schema"),
)


@modelapi(name="probekit")
class ProbekitAPI(ModelAPI):
    """`probekit/NAME`: a model of `load_model`, which may be watched by a probe.

        inspect eval task.py --model probekit/Qwen/Qwen3-8B -M probe=RESULTS -M fpr=0.01

    At an alarm, a generated token whose score reaches the threshold, the text ends before its next token. The stop
    reason is then "content_filter", the only one of Inspect's that says that someone else than the model ended it, with
    the alarm as its details. The metadata of the output hold the score of each generated token, and the seed of
    the draws: the configuration's, or a fresh one for each text.
    """

    def __init__(
        self,
        model_name: str,
        base_url: str | None = None,
        api_key: str | None = None,
        config: GenerateConfig = GenerateConfig(),  # noqa: B008  (as in the class above)
        probe: str | None = None,
        stop: bool = True,
        **model_args: Any,
    ) -> None:
        """Load the model, and the probe if one is named.

        Args:
            model_name: what `load_model` takes.
            base_url: of no use here.
            api_key: of no use here.
            config: of generation.
            probe: RESULTS[:PLACE], a folder of results and a place in it.
            stop: whether an alarm ends the text; False only records it.
            model_args: the options of `probe_scorer`.

        Raises:
            UsageError: an unknown option, or a threshold without a probe.
            DataError: a model or results that cannot be loaded.
            ResumeMismatch: the probe was trained on another model.
        """
        from probekit.inspect.samples import model_of, sample_probe

        super().__init__(model_name, base_url, api_key, [], config)
        options = model_args_of(model_name, **model_args)
        if probe is None and (options.fpr is not None or options.threshold is not None):
            raise UsageError("fpr and threshold are those of a probe; name it with -M probe=RESULTS")
        self.options, self.stop = options, stop
        self.known = None if probe is None else sample_probe(str(probe), model_name, options)
        self.model = model_of(model_name, options) if self.known is None else self.known.model

    def max_tokens(self) -> int | None:
        """New tokens at most, where nobody names a number."""
        return MAX_TOKENS

    def max_connections(self) -> int:
        """Texts at once."""
        return 1

    async def generate(
        self, input: list[ChatMessage], tools: list[ToolInfo], tool_choice: ToolChoice, config: GenerateConfig
    ) -> ModelOutput:
        """Continue a chat; greedily, unless the configuration names a temperature."""
        if tools:
            raise UsageError("the models of probekit call no tools; evaluate without them")
        if given := [name for name in NOT_OFFERED if getattr(config, name) not in (None, False)]:
            raise UsageError(f"the models of probekit have no {given[0]}; leave it out of the configuration")
        from probekit.inspect.samples import plain_messages

        made = await anyio.to_thread.run_sync(self._generate, plain_messages(input), config)
        alarm = made["alarm"]
        details = alarm and StopDetails(type="alarm", category=alarm["place"], explanation=alarm["why"])
        choice = ChatCompletionChoice(
            message=ChatMessageAssistant(content=made["text"], model=self.model_name, source="generate"),
            stop_reason=made["reason"],
            stop_details=details if made["reason"] == "content_filter" else None,
        )
        n, new = made["n_prompt"], made["n_new"]
        usage = ModelUsage(input_tokens=n, output_tokens=new, total_tokens=n + new)
        watched = {} if self.known is None else {"probe": made["probe"], "alarm": alarm}
        metadata = {"seed": made["seed"], **watched}
        return ModelOutput(model=self.model_name, choices=[choice], usage=usage, metadata=metadata)

    def _generate(self, messages: list[dict[str, Any]], config: GenerateConfig) -> dict[str, Any]:
        from probekit.inspect.generate import generate_watched

        return generate_watched(self.model, self.known, self.options, messages, self.stop, config)


@keywords(SampleOptions)
def model_args_of(model: str, options: SampleOptions) -> SampleOptions:
    """The arguments of a model (-M NAME=VALUE), checked."""
    return options
