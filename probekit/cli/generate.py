"""`probekit generate`: what a model says next."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from probekit.cli import console, options
from probekit.errors import UsageError

if TYPE_CHECKING:
    from probekit.models.base import LanguageModel

Prompt = Annotated[
    str | None, typer.Option(metavar="TEXT", help="Text to continue; an encoder-decoder reads it as its source.")
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

    Prints the continuation alone. It ends at a stop token, after --max-new-tokens, or where the context is full.

    \b
    Examples:
        probekit generate --model agreement-gpt2 --prompt "the keys near the old door"
        probekit generate --model gpt2 --prompt "Once upon a time" --temperature 0.8 --top-p 0.95 --seed 3
    """
    if (prompt is None) == (tokens is None):
        raise UsageError("give --prompt with a text, or --tokens with ids")
    asked = prompt if prompt is not None else _ids(str(tokens))
    console.hush_downloads(quiet)
    from probekit.models import generation, load_model

    sampling = generation.Sampling(temperature, top_k, top_p, seed)  # what cannot be is said before anything is loaded
    progress = False if quiet else None
    loaded = load_model(model, device, options.dtype_name(dtype), revision, progress=progress)
    prompts, is_text, _ = generation.to_ids(loaded, asked, bos)
    stops = generation.stop_ids(loaded, [_stop(loaded, token) for token in stop] if stop else None)
    made = generation.continuations(loaded, prompts, max_new_tokens, sampling, stops)[0]
    text = generation.text_of(loaded, prompts[0], made) if loaded.tokenizer else None
    if json_:
        how = {"max_new_tokens": max_new_tokens, **vars(sampling), "stop_tokens": sorted(stops)}
        said = {"prompt": prompt, "prompt_tokens": prompts[0], "text": text, "tokens": made.tokens, "ended": made.ended}
        console.result_json({"model": loaded.name, **said, "settings": how})
    else:
        _show(str(text) if is_text else ",".join(map(str, made.tokens)))
    if not quiet and made.ended != "stop token":
        console.note(f"ended after {len(made.tokens)} tokens: {_why(made.ended, loaded)}")


def _show(text: str) -> None:
    """Print it as it is, but for what a terminal would act on."""
    if sys.stdout.isatty():
        console.result(text)
    else:
        print(text)


def _why(ended: str, model: "LanguageModel") -> str:
    return f"the context of {model.cfg.n_ctx} is full" if ended == "context" else "--max-new-tokens"


def _ids(text: str) -> list[int]:
    try:
        return [int(part) for part in options.names(text)]
    except ValueError:
        raise UsageError(f"--tokens takes ids with commas between them, such as 3,17,5; got {text!a}") from None


def _stop(model: "LanguageModel", token: str) -> str | int:
    """The token; a number is an id where the model has no tokenizer."""
    return int(token) if model.tokenizer is None and token.strip().isdecimal() else token
