"""`probekit generate`: continue a text with a model."""

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from probekit.cli import console
from probekit.cli.continuations import NO_STOP, stops_of
from probekit.cli.derive import command
from probekit.cli.extract import MODEL
from probekit.cli.fields import Output, required
from probekit.errors import DataError, UsageError
from probekit.options import DeviceOptions, GenerateOptions, Sampling, kinds
from probekit.options.option import option
from probekit.text import counted, printable

if TYPE_CHECKING:
    from probekit.models.base import LanguageModel
    from probekit.models.generation import Continuation


@dataclass(frozen=True, kw_only=True)
class GenerateJob(Output):
    """The model, and the prompts."""

    model: str = required(MODEL, "NAME|FOLDER")
    prompt: list[str] | None = option(
        None,
        "Text to continue; the source text of an encoder-decoder. May be repeated: one line of output for each.",
        metavar="TEXT",
        repeats=True,
    )
    tokens: list[int] | None = option(
        None,
        "Token ids to continue instead, such as 3,17,5; prints ids.",
        kinds.Kind(parse=kinds.ids, metavar="IDS"),
    )
    no_stop: bool = option(False, NO_STOP)


@command(
    "model prompt tokens max_new_tokens temperature top_k top_p stop no_stop seed bos dtype device revision "
    "via device_map quantize",
)
def generate(job: GenerateJob, options: GenerateOptions, where: DeviceOptions) -> None:
    """Continue a text, greedily or by sampling.

    Prints only the continuation; one line for each of several prompts. It ends at a stop token, after --max-new-tokens,
    or when the context is full.

    \b
    Examples:
        probekit generate --model agreement-gpt2 --prompt "the keys near the old door"
        probekit generate --model gpt2 --prompt "Once upon a time" --temperature 0.8 --top-p 0.95 --seed 3
        probekit generate --model counting-gpt --prompt 34 --prompt 40
        probekit generate --model dialogue-gpt --prompt "3 + 4 - 2 <sep>"
    """
    if not job.prompt and job.tokens is None:
        raise UsageError("give --prompt with a text, or --tokens with ids")
    stop_tokens = stops_of(options.stop_tokens, job.no_stop)
    console.hush_downloads(job.quiet)
    from probekit.models.load import check_model, load_model

    check_model(job.model, where)
    from probekit.models import generation

    model = load_model(job.model, **vars(where), progress=console.bars(job.quiet))
    prompts = _encoded(model, job.prompt or [job.tokens], options.bos)
    stops = generation.stop_ids(model, stop_tokens)
    made = generation.continuations(model, prompts, options.max_new_tokens, options, stops, options.use_cache)
    texts = [
        generation.continuation_text(model, *row) if model.tokenizer else None
        for row in zip(prompts, made, strict=True)
    ]
    if job.json:
        rows = [
            {"prompt": text, "prompt_tokens": ids, "text": new, "tokens": one.tokens, "ended": one.ended}
            for text, ids, new, one in zip(job.prompt or [None], prompts, texts, made, strict=True)
        ]
        answer = rows[0] if len(rows) == 1 else {"continuations": rows}
        console.result_json({"model": model.name, **answer, "settings": _settings(options, stops)})
    else:
        _print([str(text) for text in texts] if job.prompt else [",".join(map(str, made[0].tokens))])
    if not job.quiet:
        for i, one in enumerate(made):
            console.note(f"{f'prompt {i + 1}: ' if len(made) > 1 else ''}{_why(one, model)}")


def _settings(options: GenerateOptions, stops: frozenset[int]) -> dict[str, Any]:
    sampling = {name: getattr(options, name) for name in Sampling.__dataclass_fields__}
    return {"max_new_tokens": options.max_new_tokens, **sampling, "stop_tokens": sorted(stops)}


def _encoded(model: "LanguageModel", prompts: list[Any], bos: bool | None) -> list[list[int]]:
    """The prompts as ids; a text that a world's model cannot read is answered with one that it can."""
    from probekit.models.generation import to_ids
    from probekit.worlds import MODELS, world

    try:
        return to_ids(model, prompts, bos)[0]
    except DataError as error:
        if model.name not in MODELS:
            raise
        raise DataError(f"{error}; {model.name} reads texts such as {world(model.name).prompt!a}") from None


def _print(texts: list[str]) -> None:
    """Print one text as it is, with control characters escaped on a terminal; several as one line each."""
    if len(texts) > 1:
        print("\n".join(map(printable, texts)))
    elif sys.stdout.isatty():
        console.result(texts[0])
    else:
        print(texts[0])


def _why(made: "Continuation", model: "LanguageModel") -> str:
    """Why a continuation ended, and after how many tokens."""
    n = len(made.tokens)
    if made.ended == "stop token":
        token = model.tokenizer.tokens(made.tokens[-1:])[0] if model.tokenizer else made.tokens[-1]
        if n == 1:
            return f"nothing follows: the first token is the stop token {token!a} (--no-stop continues)"
        return f"ended after {n} tokens: the stop token {token!a}"
    why = f"the context of {model.cfg.n_ctx} is full" if made.ended == "context" else "--max-new-tokens"
    return f"ended after {counted(n, 'token')}: {why}"
