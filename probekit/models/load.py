"""load_model: a built-in model, a folder or a model of the Hub, as our own hooked model.

torch and the families are imported once the model is found: what cannot be found is answered without them.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from probekit import builtin
from probekit.errors import DataError, UsageError, nearest
from probekit.hub import ALIASES, REPO_ID, HubRepo, fetch, find_repo
from probekit.models.files import read_json
from probekit.models.tokenizer_files import FILES, load_tokenizer
from probekit.options import ModelArguments
from probekit.options.option import keywords

if TYPE_CHECKING:
    import torch

    from probekit.models.base import LanguageModel
    from probekit.models.weights import HfTensor

BUILTIN_MODELS = ("agreement-gpt2",)
BUILTIN = Path(__file__).parent / "builtin"
HUB_ALIASES = ALIASES["model"]
DTYPES = ("float32", "bfloat16", "float16")


class Family(NamedTuple):
    """What there is to know of a family of models to load one.

    Attributes:
        config: has `from_hf` and `to_hf`.
        model: made of a config; has `init_weights`.
        hf_names: our name of every weight of a config -> its name in a Hugging Face file.
        hf_prefix: stands before the names of a model with a head, and not in the file of a bare one.
        hf_ties: of a config: a name that a file may hold besides -> the name whose copy it must be; None if the model
            computes nothing with it.
        hf_buffers: a regular expression; such names in a file are left aside.
        hf_renamed: the name that transformers gave a weight once -> the one it has today.
        hf_parts: the config of what a file holds, from the config and the names in it.
    """

    config: Any
    model: type["LanguageModel"]
    hf_names: Callable[[Any], Mapping[str, "HfTensor"]]
    hf_prefix: str
    hf_ties: Callable[[Any], Mapping[str, str | None]] = lambda cfg: {}
    hf_buffers: str = "(?!)"
    hf_renamed: Callable[[str], str] = lambda name: name
    hf_parts: Callable[[Any, Collection[str]], Any] = lambda cfg, names: cfg


def families() -> dict[str, Family]:
    """By the `model_type` of config.json."""
    from probekit.models import bert, gpt2, llama, marian, transformer

    kin = Family(llama.LlamaConfig, llama.Llama, llama.hf_names, llama.HF_PREFIX, llama.hf_ties, llama.HF_BUFFERS)
    return {
        "gpt2": Family(gpt2.GPT2Config, gpt2.GPT2, gpt2.hf_names, gpt2.HF_PREFIX, gpt2.hf_ties, gpt2.HF_BUFFERS),
        "llama": kin,
        "mistral": kin,
        "qwen2": kin,
        "bert": Family(
            bert.BertConfig,
            bert.Bert,
            bert.hf_names,
            bert.HF_PREFIX,
            bert.hf_ties,
            bert.HF_BUFFERS,
            bert.hf_renamed,
            bert.hf_parts,
        ),
        "marian": Family(
            transformer.TransformerConfig,
            transformer.Transformer,
            marian.hf_names,
            marian.HF_PREFIX,
            marian.hf_ties,
            hf_parts=marian.hf_parts,
        ),
    }


def family_of(model: "LanguageModel") -> Family:
    """The family that a model belongs to."""
    return next(family for family in families().values() if type(model) is family.model)


@keywords(ModelArguments)
def load_model(name_or_path: str | Path, options: ModelArguments) -> "LanguageModel":
    """A hooked model, in eval mode, with its tokenizer if it has one.

    Args:
        name_or_path: a built-in name ("agreement-gpt2"), a world's ("counting-gpt": its model is trained on first use
            and kept in the user's cache folder), a folder in Hugging Face format, a short name ("gpt2"), or an
            "owner/name" of the Hub; looked for in this order.
        options: as keyword arguments.

    Raises:
        UsageError: no such model, device or dtype.
        DataError: config.json, weights or tokenizer cannot be used, or the Hub does not answer.
    """
    device, dtype, seed, random_init = options.device, options.dtype, options.seed, options.random_init
    if dtype not in DTYPES:
        raise UsageError(f"unknown dtype {dtype!a}; {nearest(str(dtype), DTYPES)}")
    found = _find(str(name_or_path), options.revision, not random_init, options.progress)
    family, cfg, bos_token_id = _described(found)
    place, kind = _device(device), _dtype(dtype)
    model = _random(family, cfg, seed, place, kind) if random_init else _trained(found, family, cfg, place, kind)
    model.name = f"{found.name}-random{seed}" if random_init else found.name
    model.tokenizer = load_tokenizer(found.folder, bos_token_id, cfg.d_vocab)
    model.folder = None if random_init else found.folder
    model.source = {**_source_of(found), "random_init": random_init, "seed": seed, "dtype": dtype}
    return model.eval()


def _source_of(found: "_Found") -> dict[str, Any]:
    """What names the same model later, whatever the current folder: a commit of the Hub, or an absolute path."""
    if found.repo:
        return {"name_or_path": found.repo.id, "revision": found.folder.name}
    return {"name_or_path": found.name if found.own else str(found.folder.resolve()), "revision": None}


def outline(name_or_path: str | Path, revision: str | None = None) -> "LanguageModel":
    """The model without its weights, on the meta device: every point, and no memory; errors as in `load_model`."""
    import torch

    found = _find(str(name_or_path), revision, weights=False)
    family, cfg, _ = _described(found)
    with torch.device("meta"):
        model = family.model(cfg)
    model.name = found.name
    return model


@dataclass(frozen=True)
class _Found:
    name: str
    folder: Path  # with config.json and the tokenizer; with the weights too, unless they are still on the Hub
    repo: HubRepo | None = None
    own: bool = False  # whether the name alone says which model it is


def _find(name: str, revision: str | None, weights: bool = True, progress: bool | None = None) -> _Found:
    if name in builtin.MODELS:
        if revision is not None:
            raise UsageError(f"revision {revision!a} is for models of the Hub; {name!a} is trained here")
        return _Found(name, builtin.MODELS[name](weights, progress), own=True)
    shipped = name in BUILTIN_MODELS
    if shipped or _exists(name):
        folder = BUILTIN / name if shipped else Path(name)
        if revision is not None:
            raise UsageError(f"revision {revision!a} is for models of the Hub; {name!a} is a folder here")
        if not (folder / "config.json").is_file():
            raise DataError(f"{str(folder)!a} is no model folder: it has no config.json")
        return _Found(name if shipped else folder.resolve().name, folder, own=shipped)
    if name in HUB_ALIASES or (REPO_ID.fullmatch(name) and ".." not in name):
        repo = find_repo(name, "model", revision)
        return _Found(name, fetch(repo, ["config.json", *FILES]), repo)
    near = nearest(name, [*BUILTIN_MODELS, *builtin.MODELS, *HUB_ALIASES])
    raise UsageError(f"no model {name!a}: no folder, no owner/name; {near}")


def _exists(name: str) -> bool:
    try:
        return bool(name) and Path(name).exists()
    except OSError:  # too long for a file name
        return False


def _described(found: _Found) -> tuple[Family, Any, int | None]:
    """What config.json says: the family, the shape and the BOS id."""
    path = found.folder / "config.json"
    hf = read_json(path)
    family = _family(hf, path)
    try:
        return family, family.config.from_hf(hf), hf.get("bos_token_id")
    except DataError as error:
        raise DataError(f"{str(path)!a}: {error}") from error


def _family(hf: Mapping[str, Any], config_path: Path) -> Family:
    known = families()
    model_type = hf.get("model_type")
    if not isinstance(model_type, str) or model_type not in known:
        raise DataError(f"{str(config_path)!a}: model_type {model_type!a:.80} is not among {', '.join(known)}")
    return known[model_type]


def _trained(found: _Found, family: Family, cfg: Any, device: "torch.device", dtype: "torch.dtype") -> "LanguageModel":
    import torch

    from probekit.models.weights import choose_weights, load_weights, named_tensors, shard_names

    if found.repo and not found.repo.offline:
        repo = replace(found.repo, asked=found.folder.name)  # the commit that config.json is of
        name = choose_weights(repo.files, repo.id)
        fetch(repo, [name])
        if name.endswith(".index.json"):
            fetch(repo, shard_names(found.folder / name))
    stored = named_tensors(found.folder, family, cfg)
    with torch.device("meta"):
        model = family.model(family.hf_parts(cfg, stored))
    load_weights(model, found.folder, family, stored, device, dtype)
    return model


def _random(family: Family, cfg: Any, seed: int, device: "torch.device", dtype: "torch.dtype") -> "LanguageModel":
    return family.model(cfg).to(dtype).init_weights(seed).to(device)


def _dtype(name: str) -> "torch.dtype":
    import torch

    return getattr(torch, name)


def _device(name: str) -> "torch.device":
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError) as error:
        raise UsageError(f"unknown device {name!a}; give auto, cpu, cuda, cuda:1 or mps") from error
    count = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    if (device.index or 0) >= count.get(device.type, 0):
        raise UsageError(f"there is no device {name!a} here; give auto or cpu")
    return device
