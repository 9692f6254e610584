"""`probekit generate`: what a model says next."""

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from probekit.cli import console, options
from probekit.errors import DataError, UsageError
from probekit.text import printable

if TYPE_CHECKING:
    from probekit.models.base import LanguageModel
    from probekit.models.generation import Continuation

Prompt = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TEXT",
        help="Text to continue; an encoder-decoder reads it as its source. May be repeated: one line for each.",
    ),
]
Tokens = Annotated[
    str | None, typer.Option(metavar="IDS", help="Token ids to continue instead, such as 3,17,5; ids are the answer.")
]
MaxNewTokens = Annotated[int, typer.Option(metavar="N", min=1, help="The most tokens that are added.")]
Temperature = Annotated[float, typer.Option(metavar="T", help="0 takes the likeliest token; above, tokens are drawn.")]
TopK = Annotated[int | None, typer.Option(metavar="K", help="Draw from the K likeliest tokens.")]
TopP = Annotated[float | None, typer.Option(metavar="P", help="Draw from the likeliest tokens that hold P together.")]
Stop = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TOKEN",
        help="Token to stop at, or its id where there is no tokenizer; may be repeated.  [default: the model's end of "
        "text]",
    ),
]
NoStop = Annotated[bool, typer.Option("--no-stop", help="Stop at no token: go on until --max-new-tokens.")]
Bos = Annotated[
    bool | None,
    typer.Option("--bos/--no-bos", help="Put the model's BOS before the text.  [default: no; Marian's </s> behind it]"),
]
Dtype = Annotated[str, typer.Option(metavar="TYPE", help="Type to compute in: fp32, bf16 or fp16.")]
Seed = Annotated[int, typer.Option(metavar="N", min=0, help="Seed of what is drawn.")]


def generate(
    model: options.Model,
    prompt: Prompt = None,
    tokens: Tokens = None,
    max_new_tokens: MaxNewTokens = 50,
    temperature: Temperature = 0.0,
    top_k: TopK = None,
    top_p: TopP = None,
    stop: Stop = None,
    no_stop: NoStop = False,
    seed: Seed = 0,
    bos: Bos = None,
    dtype: Dtype = "fp32",
    device: options.Device = "auto",
    revision: options.Revision = None,
    json_: options.Json = False,
    quiet: options.Quiet = False,
    config: options.Config = None,
    set_: options.Set = None,
) -> None:
    """Continue a text: greedily, or by drawing.

    Prints the continuation alone; of several prompts one line for each. It ends at a stop token, after
    --max-new-tokens, or where the context is full.

    \b
    Examples:
        probekit generate --model agreement-gpt2 --prompt "the keys near the old door"
        probekit generate --model gpt2 --prompt "Once upon a time" --temperature 0.8 --top-p 0.95 --seed 3
        probekit generate --model counting-gpt --prompt 34 --prompt 40
        probekit generate --model dialogue-gpt --prompt "3 + 4 - 2 <sep>"
    """
    if (not prompt) == (tokens is None):
        raise UsageError("give --prompt with a text, or --tokens with ids")
    if stop and no_stop:
        raise UsageError("--stop names tokens to stop at, --no-stop none: give one of them")
    asked = prompt or [_ids(str(tokens))]
    from probekit.options import Sampling

    sampling = Sampling(temperature, top_k, top_p, seed)  # what cannot be is said before anything is loaded
    kind = options.dtype_name(dtype)
    console.hush_downloads(quiet)
    from probekit.models import generation, load_model

    loaded = load_model(model, device, kind, revision, progress=False if quiet else None)
    prompts = _read(loaded, asked, bos)
    stops = generation.stop_ids(loaded, [] if no_stop else [_stop(loaded, token) for token in stop] if stop else None)
    made = generation.continuations(loaded, prompts, max_new_tokens, sampling, stops)
    texts = [generation.text_of(loaded, *row) if loaded.tokenizer else None for row in zip(prompts, made, strict=True)]
    if json_:
        how = {"max_new_tokens": max_new_tokens, **vars(sampling), "stop_tokens": sorted(stops)}
        said = [
            {"prompt": text, "prompt_tokens": ids, "text": new, "tokens": one.tokens, "ended": one.ended}
            for text, ids, new, one in zip(prompt or [None], prompts, texts, made, strict=True)
        ]
        several = said[0] if len(said) == 1 else {"continuations": said}
        console.result_json({"model": loaded.name, **several, "settings": how})
    else:
        _show([str(text) for text in texts] if prompt else [",".join(map(str, made[0].tokens))])
    if not quiet:
        for i, one in enumerate(made):
            console.note(f"{f'prompt {i + 1}: ' if len(made) > 1 else ''}{_why(one, loaded)}")


def _read(model: "LanguageModel", asked: list[Any], bos: bool | None) -> list[list[int]]:
    """The prompts as ids; what the model of a world cannot read is answered with what it can."""
    from probekit.models.generation import to_ids
    from probekit.worlds import MODELS, world

    try:
        return to_ids(model, asked, bos)[0]
    except DataError as error:
        if model.name not in MODELS:
            raise
        raise DataError(f"{error}; {model.name} reads texts such as {world(model.name).prompt!a}") from error


def _show(texts: list[str]) -> None:
    """Print one as it is, but for what a terminal would act on; of several each as one line."""
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
            return f"nothing follows: the first token is the stop token {token!a} (--no-stop goes on)"
        return f"ended after {n} tokens: the stop token {token!a}"
    why = f"the context of {model.cfg.n_ctx} is full" if made.ended == "context" else "--max-new-tokens"
    return f"ended after {n} token{'s' * (n > 1)}: {why}"


def _ids(text: str) -> list[int]:
    try:
        return [int(part) for part in options.names(text)]
    except ValueError:
        raise UsageError(f"--tokens takes ids with commas between them, such as 3,17,5; got {text!a}") from None


def _stop(model: "LanguageModel", token: str) -> str | int:
    """The token; a number is an id where the model has no tokenizer."""
    return int(token) if model.tokenizer is None and token.strip().isdecimal() else token
