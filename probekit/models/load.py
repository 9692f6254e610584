"""load_model: a built-in model, a folder, or a model of the Hub, as our own hooked model.

torch and the families are imported once the model is found, so a wrong name is answered without them.
"""

import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probekit import registries
from probekit.errors import DataError, ProbekitError, UsageError, nearest
from probekit.files.hub import ALIASES, REPO_ID, HubRepo, cached_model, fetch, find_repo, warn_of_local
from probekit.machine.dtypes import dtype_name
from probekit.models.adapter.config import checked_fields
from probekit.models.config_fields import Unimplemented
from probekit.models.families import families, model_types
from probekit.models.files import read_json
from probekit.models.model_types import check_adaptable, check_packages
from probekit.models.packaging import all_left_out, is_packaged, parts_left_out, text_fields, text_tensors
from probekit.models.quantized import FewBits, few_bits_of, in_full
from probekit.models.tokenizer import Tokenizer
from probekit.models.tokenizer_files import FILES, read_tokenizer, template_files
from probekit.options import DeviceOptions, ModelArguments, ModelOptions
from probekit.options.check import check_path, is_whole
from probekit.options.load import Via
from probekit.options.option import keywords
from probekit.text import by_numbers, listed

if TYPE_CHECKING:
    from probekit.models.base import LanguageModel
    from probekit.models.family import Family
    from probekit.models.weights import TensorInFile

_CHECKPOINT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+=-]*")  # a folder in the model's folder, and never outside it
OWN_FILE = re.compile(r"(.+\.py):([A-Za-z_][A-Za-z0-9_]*)")  # a file of the user's own, and a function in it
BUILTIN_MODELS = ("agreement-gpt2",)
BUILTIN = Path(__file__).parent / "builtin"
HUB_ALIASES = ALIASES["model"]
GENERATION_CONFIG = "generation_config.json"
_BATCHES = {
    "packed": "in packed batches",
    "padded": "in padded batches of texts of similar length",
    "one length": "in batches of texts of one length",
}


@keywords(ModelArguments)
def load_model(name_or_path: str | Path, options: ModelArguments) -> "LanguageModel":
    """A hooked model, in eval mode, with its tokenizer if it has one.

    Args:
        name_or_path: a built-in name ("agreement-gpt2"), a world's ("counting-gpt": its model is trained on first use
            and kept in the user's cache folder), a folder in Hugging Face format, a short name ("gpt2"), or an
            "owner/name" of the Hub; looked up in this order. Or "module.py:make_model", a file of your own, which is
            run, and a function in it that returns a module (see `wrap`).
        options: as keyword arguments.

    Raises:
        UsageError: there is no such model, device or dtype.
        DataError: config.json, weights or tokenizer cannot be used, or the Hub does not answer.
    """
    check_path("the model", name_or_path)
    dtype, seed, random_init = dtype_name(options.dtype), options.seed, options.random_init
    _check_via(str(name_or_path), options)
    if (own := OWN_FILE.fullmatch(str(name_or_path))) is not None:
        return _of_own_file(Path(own[1]), own[2], options)
    found = _find(str(name_or_path), options.revision, not random_init, options.progress)
    described = _described(found, options)
    if described.family is None:
        check_packages(options.quantize, options.device_map)
    model = _adapted(found, described, options) if described.family is None else _own(found, described, options)
    hf, via = described.hf, "transformers" if described.family is None else "probekit"
    model.name = f"{found.name}-random{seed}" if random_init else found.name
    model.tokenizer = read_tokenizer(found.folder, hf.get("bos_token_id"), model.cfg.d_vocab, model.causal)
    model.end_ids = end_ids(found.folder, model.cfg.d_vocab)
    model.folder = None if random_init else found.folder
    model.revision = found.requested
    model.source = {**_source(found), "random_init": random_init, "seed": seed, "dtype": dtype}
    chosen = {"via": via, "device_map": options.device_map, "quantize": options.quantize}
    # older stores have none of these
    model.source |= {name: value for name, value in chosen.items() if value not in (None, "probekit")}
    return model.eval()


def source_here(source: Mapping[str, Any]) -> dict[str, Any] | None:
    """Arguments of `load_model` that load a recorded `model.source` without a network; None if it is not here."""
    name, revision = str(source["name_or_path"]), source.get("revision")
    if name in BUILTIN_MODELS or name in registries.MODELS or Path(name).is_dir():
        return dict(source)
    cached = cached_model(name, revision) if REPO_ID.fullmatch(name) else None
    return None if cached is None else {**source, "name_or_path": str(cached), "revision": None}


def outline(
    name_or_path: str | Path, revision: str | None = None, via: Via | None = None, tokenizer: bool = False
) -> "LanguageModel":
    """The model without its weights, on the meta device: every point, and no memory; errors as in `load_model`.

    A folder needs no weights; if it has some for a family of this project, their names and shapes are checked. A
    function of a file of your own is run, and gives the model with its weights.
    """
    options = ModelOptions(via=via)
    _check_via(str(name_or_path), options)
    if (own := OWN_FILE.fullmatch(str(name_or_path))) is not None:
        return _of_own_file(Path(own[1]), own[2], ModelOptions(revision=revision, via=via))
    found = _find(str(name_or_path), revision, weights=False)
    described = _described(found, options)
    import torch  # not before the model is found

    from probekit.models.weights import INDEX, ONE_FILE, check_weights

    if described.family is None:
        from probekit.models.adapter.load import load_adapted

        where = {"device": torch.device("meta"), "dtype": torch.float32, "device_map": None}
        with _saying_why(found, described):
            model = load_adapted(found.folder, described.hf, **where, seed=0, quantize=None)
    elif found.repo is None and any((found.folder / name).is_file() for name in (ONE_FILE, INDEX)):
        model, stored = _with_files(found, described)
        check_weights(model, found.folder, described.family, stored)
    else:
        with torch.device("meta"):
            model = described.family.model(described.cfg)
    model.name = found.name
    if tokenizer:
        bos = described.hf.get("bos_token_id")
        model.tokenizer = read_tokenizer(found.folder, bos, model.cfg.d_vocab, model.causal)
    return model


def load_tokenizer(name_or_path: str | Path, revision: str | None = None) -> Tokenizer:
    """The tokenizer alone, of a model or of a folder that holds a tokenizer.json and no model.

    The model need not be one that loads, and its weights are not looked at.

    Args:
        name_or_path: a folder, or a model as in `load_model`.
        revision: of a model of the Hub.

    Raises:
        UsageError: there is no such model.
        DataError: it has no tokenizer, or one that cannot be used.
    """
    check_path("the tokenizer", name_or_path)
    folder = Path(name_or_path)
    if OWN_FILE.fullmatch(str(name_or_path)):
        found = outline(name_or_path, revision).tokenizer
    elif folder.is_dir() and revision is None and not (folder / "config.json").is_file():
        found = read_tokenizer(folder)
    else:
        folder = _find(str(name_or_path), revision, weights=False).folder
        found = read_tokenizer(folder, *_for_tokenizer(read_json(folder / "config.json")))
    if found is None:
        raise DataError(f"{str(name_or_path)!a:.200} has no tokenizer; give a folder with a tokenizer.json")
    return found


def _for_tokenizer(hf: Mapping[str, Any]) -> tuple[int | None, int | None, bool]:
    """The BOS, the size of the vocabulary, and whether the model is causal, as far as config.json says them."""
    try:
        hf = text_fields(hf, _default_fields) if is_packaged(hf) else hf
        family, cfg, _ = _implemented(hf)
        return hf.get("bos_token_id"), cfg.d_vocab, getattr(cfg, "causal", family.model.causal)
    except ProbekitError:  # no model of this project
        numbers = (hf.get("bos_token_id"), hf.get("vocab_size"))
        bos, d_vocab = (number if type(number) is int and number >= 0 else None for number in numbers)
        classes = hf.get("architectures")
        masked = isinstance(classes, list) and any(str(name).endswith("ForMaskedLM") for name in classes)
        return bos, d_vocab, not masked


def end_ids(folder: Path, d_vocab: int) -> tuple[int, ...] | None:
    """The ids that end a text, of generation_config.json; None without one, or if it names none of the vocabulary.

    Chat models often list the token that ends a turn there alone: Llama 3's <|eot_id|>, where config.json has the end
    of a document.

    Args:
        folder: of the model.
        d_vocab: size of the model's vocabulary.

    Raises:
        DataError: the file cannot be read, or eos_token_id is neither an id nor a list of ids.
    """
    if not (folder / GENERATION_CONFIG).is_file():
        return None
    given = read_json(folder / GENERATION_CONFIG).get("eos_token_id")
    ids = given if isinstance(given, list) else [] if given is None else [given]
    if not all(is_whole(i) and i >= 0 for i in ids):
        raise DataError(
            f"{str(folder / GENERATION_CONFIG)!a}: eos_token_id must be the id of a token, or a list of them; got "
            f"{given!a:.60}; correct it, or remove the file"
        )
    # small models saved by transformers often name GPT-2's 50256, which they cannot write
    return tuple(i for i in ids if i < d_vocab) or None


@dataclass(frozen=True)
class _Found:
    """Where a model is.

    Attributes:
        name: the model's name.
        folder: has config.json and the tokenizer; the weights too, unless they are still on the Hub.
        repo: the repository of the Hub that it comes from.
        has_own_name: whether the name identifies the model without a path, as for built-in ones.
        requested: the revision that was asked for: a branch, tag or commit of the Hub, or a checkpoint in a folder.
    """

    name: str
    folder: Path
    repo: HubRepo | None = None
    has_own_name: bool = False
    requested: str | None = None


def _source(found: _Found) -> dict[str, Any]:
    """What identifies the same model from any current folder: a name, a commit of the Hub, or an absolute path."""
    if found.repo:
        return {"name_or_path": found.repo.id, "revision": found.folder.name}
    if found.requested is not None:
        return {"name_or_path": str(found.folder.parent.resolve()), "revision": found.requested}
    return {"name_or_path": found.name if found.has_own_name else str(found.folder.resolve()), "revision": None}


def _not_a_model(folder: Path) -> str:
    inside = _checkpoints(folder)
    what = f"; it holds {listed(inside)}, name one with --revision" if inside else "; name another"
    return f"{str(folder)!a} is not the folder of a model, as it has no config.json{what}"


def _checkpoints(folder: Path) -> list[str]:
    """The names of the folders in it that hold a model, step2 before step10, escaped."""
    names = [each.parent.name for each in folder.glob("*/config.json")]
    return [ascii(name) for name in sorted(names, key=by_numbers)]


def checkpoint_folder(folder: Path, revision: str) -> Path:
    """The checkpoint of this name in a folder that holds several, such as step1000/ or checkpoint-500/.

    Raises:
        UsageError: there is none; the message names those that there are.
    """
    inside = folder / revision
    if _CHECKPOINT.fullmatch(revision) and (inside / "config.json").is_file():
        return inside
    known = _checkpoints(folder)
    why = f"it holds {listed(known)}" if known else "it holds no folders of checkpoints, each with a config.json"
    raise UsageError(f"{str(folder)!a} has no checkpoint {revision!a:.80} (--revision): {why}")


def check_model(name: str, options: DeviceOptions) -> None:
    """Raise unless a model may have this name, and its device and revision can be had; asks no network.

    Raises:
        UsageError: neither a built-in name nor a folder nor owner/name; a device that torch cannot use here; a revision
            of a model that is not of the Hub; `via` of a model that is made here.
        DataError: a folder without a config.json.
    """
    check_model_name(name, options.revision)
    if name in registries.MODELS or name in BUILTIN_MODELS:
        _check_no_revision(name, options.revision, "is built in")
    _check_via(name, options)
    if options.device not in ("auto", "cpu"):
        from probekit.machine.devices import find_device  # torch

        find_device(options.device)


def check_model_name(name: str, revision: str | None = None) -> None:
    """Raise unless there is such a model here, or the name is one of the Hub's; asks no network.

    Raises:
        UsageError: neither a built-in name nor a folder nor owner/name; a folder without this revision.
        DataError: a folder without a config.json.
    """
    if name in registries.MODELS or name in BUILTIN_MODELS:
        return
    if (own := OWN_FILE.fullmatch(name)) is not None:
        if not Path(own[1]).is_file():
            raise UsageError(f"no model {name!a:.200}: there is no file {own[1]!a:.200}")
        return
    if name.endswith((".py", ".py:")) and Path(name.removesuffix(":")).is_file():
        raise UsageError(f"{name!a:.200} names no function; give it after a colon: {name.removesuffix(':')}:make_model")
    if _exists(name):
        if revision is not None:
            checkpoint_folder(Path(name), revision)
        elif not (Path(name) / "config.json").is_file():
            raise DataError(_not_a_model(Path(name)))
    elif not (name in HUB_ALIASES or (REPO_ID.fullmatch(name) and ".." not in name)):
        near = nearest(name, [*BUILTIN_MODELS, *registries.MODELS, *HUB_ALIASES])
        raise UsageError(f"no model {name!a}: neither a folder nor owner/name on the Hub; {near}")


def _find(name: str, revision: str | None, weights: bool = True, progress: bool | None = None) -> _Found:
    check_model_name(name, revision)
    if name in registries.MODELS:
        _check_no_revision(name, revision, "is trained here")
        return _Found(name, registries.MODELS[name](weights, progress), has_own_name=True)
    is_shipped = name in BUILTIN_MODELS
    if is_shipped or _exists(name):
        folder = BUILTIN / name if is_shipped else Path(name)
        if is_shipped:
            _check_no_revision(name, revision, "is built in")
            return _Found(name, folder, has_own_name=True)
        warn_of_local(name, "model")
        inside = folder if revision is None else checkpoint_folder(folder, revision)
        return _Found(folder.resolve().name, inside, requested=revision)
    repo = find_repo(name, "model", revision)
    files = ["config.json", GENERATION_CONFIG, *FILES, *template_files(repo.files)]
    return _Found(name, fetch(repo, files), repo, requested=revision)


def _check_no_revision(name: str, revision: str | None, why: str) -> None:
    if revision is not None:
        raise UsageError(f"revision {revision!a} is for models of the Hub; {name!a} {why}")


def _check_via(name: str, options: DeviceOptions) -> None:
    adapted = options.via == "transformers" or options.quantize is not None
    if adapted and (name in registries.MODELS or name in BUILTIN_MODELS):
        option = "--via transformers" if options.via else f"--quantize {options.quantize}"
        raise UsageError(f"{name!a} is probekit's own model; leave out {option}, which is for folders and the Hub")
    if adapted:
        check_packages(options.quantize, options.device_map)


def _of_own_file(path: Path, function: str, options: ModelOptions) -> "LanguageModel":
    """The model of a file of the user's own; it has no `source`, so that no store's record ever runs a file."""
    check_model_name(f"{path}:{function}")
    given = {"--revision": options.revision, "--via": options.via, "--quantize": options.quantize}
    given |= {"--device-map": options.device_map, "--random-init": options.random_init or None}
    if wrong := [name for name, value in given.items() if value is not None]:
        raise UsageError(
            f"{wrong[0]} is for models of folders and the Hub; leave it out, or see to it in {path.name!a}"
        )
    from probekit.machine.devices import DTYPES, find_device
    from probekit.models.wrapped.own_file import model_of_file

    warnings.warn(f"{str(path)!a} is run: it is your own code", stacklevel=4)
    return model_of_file(path, function, find_device(options.device), DTYPES[dtype_name(options.dtype)])


def _exists(name: str) -> bool:
    try:
        return bool(name) and Path(name).exists()
    except OSError:  # too long for a file name
        return False


@dataclass(frozen=True)
class _Described:
    """The model that a config.json describes, and whose code computes it.

    Attributes:
        hf: the fields; of a model packaged as multimodal, those of its text model.
        family: the family of this project; None where transformers' class is taken.
        cfg: the family's config.
        layout: how the files hold weights in few bits; None for weights in full.
        why: why transformers' class is taken, if nobody asked for it.
        left_out: the parts of a model packaged as multimodal that are not loaded; empty for others.
    """

    hf: Mapping[str, Any]
    family: "Family | None" = None
    cfg: Any = None
    layout: FewBits | None = None
    why: str | None = None
    left_out: tuple[str, ...] = ()


def _described(found: _Found, options: ModelOptions) -> _Described:
    """What config.json describes: by our own family where one implements it, else by the class of transformers.

    Raises:
        DataError: neither can be had, or not the one that `options.via` names.
        UsageError: `options.via` names our families, and none of them has this type.
    """
    given = read_json(found.folder / "config.json")
    with _naming(found):
        outside = parts_left_out(given) if is_packaged(given) else ()
        hf = text_fields(given, _default_fields) if outside else given
        named = _inner_type(given, hf) if outside else None
        if options.via == "transformers" or options.quantize is not None:
            check_adaptable(hf, model_types(), named)
            return _Described(checked_fields(hf), left_out=outside)
        try:
            family, cfg, layout = _implemented(hf)
        except Unimplemented as error:
            has_family = hf.get("model_type") in model_types()
            try:
                check_adaptable(hf, named=named)
            except DataError as neither:
                raise (error if has_family else neither) from None
            if options.via == "probekit":
                kind = DataError if has_family else UsageError  # no folder of this type could do with the option
                raise kind(f"{error}; leave out --via probekit to run it through transformers' class") from None
            return _Described(checked_fields(hf), why=str(error), left_out=outside)
        return _Described(hf, family, cfg, layout, left_out=outside)


def _inner_type(given: Mapping[str, Any], hf: Mapping[str, Any]) -> str:
    """The field that gives a packaged model's text model its type, and its value, for messages."""
    text = given.get("text_config")
    stated = text.get("model_type") if isinstance(text, Mapping) else None
    read = "" if stated == hf["model_type"] else f" (read as {hf['model_type']!a:.80})"
    return f"text_config.model_type = {stated!a:.80}{read}"


def _default_fields(model_type: str) -> Mapping[str, Any]:
    from probekit.models.adapter.load import default_fields  # transformers

    return default_fields(model_type)


def _implemented(hf: Mapping[str, Any]) -> "tuple[Family, Any, FewBits | None]":
    """The family and the config of these fields, and how the files hold weights in few bits, if they do.

    Raises:
        Unimplemented: none of the families has this arithmetic.
        DataError: a field out of its range.
    """
    model_type = hf.get("model_type")
    if not isinstance(model_type, str) or model_type not in model_types():
        raise Unimplemented(f"model_type {model_type!a:.80} has no file here")
    family, layout = families()[model_type], few_bits_of(hf)
    plain = hf if layout is None else {name: value for name, value in hf.items() if name != "quantization_config"}
    return family, family.config.from_hf(plain), layout


@contextmanager
def _naming(found: _Found) -> Iterator[None]:
    """Put the path of config.json before an error about its fields."""
    try:
        yield
    except (DataError, UsageError) as error:
        raise type(error)(f"{str(found.folder / 'config.json')!a}: {error}") from None


@contextmanager
def _saying_why(found: _Found, described: _Described) -> Iterator[None]:
    """Put before an error of transformers' class why it was taken, if nobody asked for it."""
    try:
        yield
    except DataError as error:
        if described.why is None:
            raise
        config = str(found.folder / "config.json")
        raise DataError(f"{config!a}: {described.why}, and transformers' class fails: {error}") from None


def _own(found: _Found, described: _Described, options: ModelOptions) -> "LanguageModel":
    """The family's own model."""
    family, cfg = described.family, described.cfg
    assert family is not None
    from probekit.machine.devices import DTYPES, find_device
    from probekit.models.spread import choose_placement, home_of, spread_over
    from probekit.models.weights import load_weights

    dtype = DTYPES[dtype_name(options.dtype)]
    device = None if options.device_map else find_device(options.device)
    if options.random_init:
        model = family.model(cfg).to(dtype).init_weights(options.seed)
        model.left_out = described.left_out
        return spread_over(model, choose_placement(model, dtype)) if device is None else model.to(device)
    _fetch_weights(found)
    model, stored = _with_files(found, described)
    if device is not None:
        load_weights(model, found.folder, family, stored, device, dtype)
        return model
    placement = choose_placement(model, dtype)
    load_weights(model, found.folder, family, stored, home_of(model, placement), dtype)
    return spread_over(model, placement)


def _with_files(found: _Found, described: _Described) -> "tuple[LanguageModel, Mapping[str, TensorInFile]]":
    """The family's model on the meta device, with the parts that the files hold, and their tensors by name."""
    import torch

    from probekit.models.weights import named_tensors, stored_tensors

    family, cfg, stored = described.family, described.cfg, stored_tensors(found.folder)
    assert family is not None
    left_out = all_left_out(described.left_out, stored, cfg.n_layers)
    if described.left_out:
        stored = text_tensors(stored)
    if described.layout is not None:
        stored = in_full(stored, described.layout)
    stored = named_tensors(found.folder, stored, family, cfg)
    with torch.device("meta"):
        model = family.model(family.hf_parts(cfg, stored))
    model.left_out = left_out
    return model, stored


def _adapted(found: _Found, described: _Described, options: ModelOptions) -> "LanguageModel":
    """The class of transformers for this config, wrapped."""
    from probekit.machine.devices import DTYPES, find_device
    from probekit.models.adapter.load import load_adapted
    from probekit.models.weights import stored_tensors

    if not options.random_init:
        _fetch_weights(found)
        stored_tensors(found.folder)  # damaged files are called that, and not a failure of the class
    with _saying_why(found, described):
        model = load_adapted(
            found.folder,
            described.hf,
            device=find_device(options.device),
            dtype=DTYPES[dtype_name(options.dtype)],
            seed=options.seed if options.random_init else None,
            device_map=options.device_map,
            quantize=options.quantize,
            outside=described.left_out,
        )
    if described.why is not None:
        warnings.warn(
            f"{described.why}; it is run through {model.cfg.model_class} of transformers, {_BATCHES[model.batching]}",
            stacklevel=4,
        )
    return model


def _fetch_weights(found: _Found) -> None:
    """Download the weights of the same commit as config.json."""
    if found.repo is None or found.repo.offline:
        return
    from probekit.models.weights import choose_weights, shard_names

    repo = replace(found.repo, requested=found.folder.name)
    name = choose_weights(repo.files, repo.id)
    fetch(repo, [name])
    if name.endswith(".index.json"):
        fetch(repo, shard_names(found.folder / name))
