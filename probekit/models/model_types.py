"""What can be done with a config.json that no family here implements; nothing here imports torch or transformers.

The installed transformers lists its model types in `models/auto/modeling_auto.py`, in one table for each kind of model.
Reading that file takes 30 ms; importing it takes seconds.
"""

import ast
import importlib.util
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from probekit.errors import DataError, UsageError
from probekit.machine.versions import versions_of

# Parts of the tables' names, in the order in which they decide: a model of images may be in a table of texts as well.
_KINDS = {
    "is for images, not text": [
        "IMAGE",
        "VIDEO",
        "OBJECT",
        "DEPTH",
        "SEGMENTATION",
        "BACKBONE",
        "VISUAL",
        "MULTIMODAL",
    ],
    "is for sound, not text": ["AUDIO", "SPEECH", "CTC", "RNNT", "SPECTROGRAM", "WAVEFORM"],
    "is an encoder-decoder, and of those only Marian is implemented": ["SEQ_TO_SEQ"],
    "": ["FOR_CAUSAL_LM", "FOR_MASKED_LM"],
    "is not a language model": [""],
}
# Language models of which no point can be read; loading them would take a minute to say so.
_APPROXIMATE = "its attention approximates as the length of the batch decides, so no text has one set of activations"
_NOT_PROBED = {
    **dict.fromkeys(("big_bird", "longformer", "mra", "nystromformer", "reformer", "yoso"), _APPROXIMATE),
    "funnel": "it shortens the text between its blocks, so no stream has a row for each token",
}
_OTHER = "; take a decoder or an encoder of text, such as gpt2 or bert-base-uncased"


@cache
def transformers_types() -> dict[str, str]:
    """Every model type of the installed transformers -> why it cannot be probed; "" for a language model."""
    found = importlib.util.find_spec("transformers")  # finds a package without importing it
    file = Path(found.origin).parent / "models/auto/modeling_auto.py" if found and found.origin else None
    if file is None or not file.is_file():
        return {}
    tables = _tables(ast.parse(file.read_text(encoding="utf-8")))
    kinds: dict[str, str] = {}
    for kind, parts in _KINDS.items():
        for name, types in tables.items():
            if any(part in name for part in parts):
                kinds |= {model_type: kind for model_type in types if model_type not in kinds}
    # text models of those packaged as multimodal: few have a class with a head, which would name them in a table
    return kinds | {name: "" for name in kinds if name.endswith("_text") and kinds[name] == "is not a language model"}


def _tables(module: ast.Module) -> dict[str, list[str]]:
    """Name of a table -> its model types: `NAMES = OrderedDict([("gptj", "GPTJModel"), ...])`."""
    return {
        ast.unparse(node.targets[0]): [
            str(pair.elts[0].value)
            for pair in node.value.args[0].elts
            if isinstance(pair, ast.Tuple) and isinstance(pair.elts[0], ast.Constant)
        ]
        for node in module.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        if node.value.args and isinstance(node.value.args[0], ast.List)
    }


def check_adaptable(hf: Mapping[str, Any], own: Collection[str] = (), named: str | None = None) -> None:
    """Refuse a config for which the installed transformers has no class of a language model that can be wrapped.

    Args:
        hf: the fields of config.json.
        own: the model types of our families, which then can do without transformers.
        named: the field and the value that gave the model type, where that is another field.

    Raises:
        DataError: no such model type; a class that is code of the model's repository; images, sound, two stacks; an
            architecture that cannot be probed.
    """
    model_type = hf.get("model_type")
    kind = transformers_types().get(model_type) if isinstance(model_type, str) else None
    if kind == "" and model_type in _NOT_PROBED:
        raise DataError(f"model_type {model_type}: {_NOT_PROBED[model_type]}{_OTHER}")
    if kind == "":
        return
    otherwise = "; leave out --via transformers" if model_type in own else _OTHER
    if named is not None and model_type not in own:
        otherwise = f"; correct that field, or{_OTHER.removeprefix(';')}"
    named = named or f"model_type {model_type!a:.80}"
    if kind is not None:
        raise DataError(f"{named} {kind}{otherwise}")
    if hf.get("auto_map"):
        raise DataError(
            f"{named} needs code from its own repository ({_remote(hf['auto_map'])}), which is "
            f"never run, and {_version()} has no class for it{otherwise}"
        )
    raise DataError(f"{named} is not supported, and {_version()} has no class for it{otherwise}")


def _remote(auto_map: Any) -> str:
    """The class that `auto_map` names for the model, or the first that it names."""
    named = auto_map if isinstance(auto_map, Mapping) else {}
    models = [name for auto, name in named.items() if str(auto).startswith("AutoModel")]
    return f"{next(iter([*models, *named.values()]), auto_map)!a:.80}"


def _version() -> str:
    try:
        return f"transformers {versions_of('transformers')['transformers']}"
    except ImportError:  # importlib.metadata's PackageNotFoundError
        return "transformers, which is not installed,"


def check_packages(quantize: str | None, device_map: str | None) -> None:
    """Raise unless the packages are there with which transformers quantizes and places a model.

    Raises:
        UsageError: one is missing.
    """
    needed = {"bitsandbytes": quantize and f"--quantize {quantize}", "accelerate": device_map and "--device-map auto"}
    needed["accelerate"] = needed["accelerate"] or needed["bitsandbytes"]
    for package, option in needed.items():
        if option and importlib.util.find_spec(package) is None:
            raise UsageError(
                f"{option} of a model of transformers needs the package {package}, which is not installed; "
                f"install it, or leave the option out"
            )
