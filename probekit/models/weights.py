"""Weights from safetensors files to our names, strictly: what is missing, unexpected or misshapen is listed by name.

Files of the `transformers` kind: `model.safetensors`, or `model.safetensors.index.json` and the shards that it names.
Pickles are never read. The format: https://github.com/huggingface/safetensors#format
"""

import json
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from probekit.errors import DataError, StorageError
from probekit.models.files import read_json
from probekit.safetensors_header import HeaderError, read_header

if TYPE_CHECKING:
    from probekit.models.base import LanguageModel
    from probekit.models.load import Family

ONE_FILE, INDEX = "model.safetensors", "model.safetensors.index.json"
READABLE = ("F32", "F16", "BF16")
MAX_LISTED = 1000  # names of one kind in an error
SHARD_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


class HfTensor(NamedTuple):
    """Where a weight stands in a Hugging Face file, and whether it stands there as [in, out] (their Conv1D)."""

    name: str
    transposed: bool = False


class Stored(NamedTuple):
    """A tensor as the header of its file describes it."""

    file: Path
    key: str
    dtype: str
    shape: tuple[int, ...]


def choose_weights(files: Collection[str], where: str) -> str:
    """Which of the files of a model holds or lists its weights.

    Raises:
        DataError: none does.
    """
    for name in (ONE_FILE, INDEX):
        if name in files:
            return name
    if any(name.startswith("pytorch_model") for name in files):
        raise DataError(
            f"{where!a} has its weights in pytorch_model.bin only, a pickle, which is never read; convert it with "
            f"transformers: AutoModel.from_pretrained(...).save_pretrained(..., safe_serialization=True)"
        )
    raise DataError(f"{where!a} has no {ONE_FILE} and no {INDEX}")


def shard_names(index: Path) -> list[str]:
    """The names of the files that an index spreads the weights over.

    Raises:
        DataError: the index is damaged, or names what is no plain file name.
    """
    files = _weight_map(index).values()
    for name in files:
        if not isinstance(name, str) or not SHARD_NAME.fullmatch(name):
            raise DataError(f"{str(index)!a} names {name!a}, which is no plain file name")
    return sorted(set(files))


def _weight_map(index: Path) -> dict[str, Any]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise DataError(f"{str(index)!a} has no weight_map")
    return weight_map


def stored_in(path: Path) -> dict[str, Stored]:
    """The tensors of a safetensors file by key; only its header is read.

    Raises:
        DataError: the file cannot be read, or its header is damaged.
    """
    try:
        with path.open("rb") as file:
            header = read_header(file)
    except OSError as error:
        raise DataError(f"{str(path)!a} cannot be read: {error.strerror}") from error
    except HeaderError as error:
        raise _damaged(path, str(error)) from error
    return {key: Stored(path, key, entry.dtype, entry.shape) for key, entry in header.tensors.items()}


def _damaged(path: Path, why: str) -> DataError:
    return DataError(f"{str(path)!a} is damaged or no safetensors file: {ascii(why)[1:-1]}; get it again")


def stored_tensors(folder: Path) -> dict[str, Stored]:
    """Every tensor in the weight files of a folder, by key.

    Raises:
        DataError: a file is missing or damaged, or shards and index disagree.
    """
    name = choose_weights([path.name for path in folder.iterdir()], str(folder))
    if name == ONE_FILE:
        return stored_in(folder / name)
    stored: dict[str, Stored] = {}
    for shard in shard_names(folder / name):
        if not (folder / shard).is_file():
            raise DataError(f"{str(folder / shard)!a} is missing; {INDEX} names it")
        header = stored_in(folder / shard)
        if twice := stored.keys() & header.keys():
            raise DataError(f"{str(folder / shard)!a} holds {_listed(twice)}, which another shard holds too")
        stored |= header
    weight_map = _weight_map(folder / name)
    if astray := [key for key, shard in weight_map.items() if key not in stored or stored[key].file.name != shard]:
        raise DataError(f"{str(folder / name)!a} names tensors that are not where it says: {_listed(astray)}")
    return stored


def named_tensors(folder: Path, family: "Family", cfg: Any) -> dict[str, Stored]:
    """Every weight in the files of a folder, by the name that `transformers` would give it today.

    Args:
        folder: a model folder of the `transformers` kind.
        family: whose files these are.
        cfg: its config, with all parts that a file may hold.

    Raises:
        DataError: as `stored_tensors`, or a weight stands there under two names.
    """
    theirs = [*(tensor.name for tensor in family.hf_names(cfg).values()), *family.hf_ties(cfg)]
    heads = {name.split(".")[0] for name in theirs if not name.startswith(family.hf_prefix)}
    named: dict[str, Stored] = {}
    for key, tensor in stored_tensors(folder).items():
        name = family.hf_renamed(key)
        if not name.startswith(family.hf_prefix) and name.split(".")[0] not in heads:
            name = family.hf_prefix + name  # the file of a bare model
        if name in named:
            raise DataError(f"{str(folder)!a} holds {name!a} twice, as {named[name].key!a} and as {key!a}")
        if not re.fullmatch(family.hf_buffers, name):
            named[name] = tensor
    return named


def load_weights(
    model: "LanguageModel",
    folder: Path,
    family: "Family",
    stored: Mapping[str, Stored],
    device: torch.device,
    dtype: torch.dtype,
) -> None:
    """Fill `model`, which may be on the meta device, with the weights of a folder.

    One tensor at a time is read, turned and converted, so that memory holds the model once.

    Args:
        model: gets the weights as its parameters, on `device`, in `dtype`.
        folder: a model folder of the `transformers` kind.
        family: the model's.
        stored: what `named_tensors` found there.
        device: where the weights go.
        dtype: what they become.

    Raises:
        DataError: weights are missing, unexpected, misshapen or of a type that is not read: all of them, by name; or
            a copy of a tied weight differs from it.
    """
    names, ties = family.hf_names(model.cfg), family.hf_ties(model.cfg)
    _check(model, folder, names, {name: tensor for name, tensor in stored.items() if name not in ties})
    for copy, original in ties.items():
        if copy in stored and original is not None:
            _check_tied(stored[copy], stored[original])
    state = {
        ours: _converted(_read(stored[theirs.name]), theirs.transposed, device, dtype) for ours, theirs in names.items()
    }
    model.load_state_dict(state, assign=True)


def _check(model: nn.Module, folder: Path, names: Mapping[str, HfTensor], stored: Mapping[str, Stored]) -> None:
    wanted = {names[ours].name: _turned(weight, names[ours]) for ours, weight in model.state_dict().items()}
    missing = [f"{name} {list(shape)}" for name, shape in wanted.items() if name not in stored]
    unexpected = [tensor.key for name, tensor in stored.items() if name not in wanted]
    misshapen = [
        f"{tensor.key} (expected {list(wanted[name])}, found {list(tensor.shape)})"
        for name, tensor in stored.items()
        if name in wanted and tensor.shape != wanted[name]
    ]
    unreadable = [
        f"{tensor.key} ({tensor.dtype})"
        for name, tensor in stored.items()
        if name in wanted and tensor.dtype not in READABLE
    ]
    found = {"missing": missing, "unexpected": unexpected, "misshapen": misshapen}
    found[f"not one of {', '.join(READABLE)}"] = unreadable
    if any(found.values()):
        report = "; ".join(f"{what}: {_listed(which)}" for what, which in found.items() if which)
        raise DataError(f"the weights in {str(folder)!a} are not those of its config.json; {report}")


def _turned(weight: Tensor, theirs: HfTensor) -> tuple[int, ...]:
    return tuple(weight.shape)[::-1] if theirs.transposed else tuple(weight.shape)


def _listed(names: Iterable[str]) -> str:
    names = sorted(names)
    more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    return ascii(", ".join(names[:MAX_LISTED]))[1:-1] + more


def _check_tied(copy: Stored, original: Stored) -> None:
    if copy.shape != original.shape or not torch.equal(_read(copy), _read(original)):
        raise DataError(
            f"{str(copy.file)!a}: {copy.key} is not equal to {original.key}, but config.json ties them; "
            f"set tie_word_embeddings to false there if it is a weight of its own"
        )


def _read(tensor: Stored) -> Tensor:
    """The tensor, as a view of the file."""
    try:
        with safe_open(tensor.file, framework="pt") as file:
            return file.get_tensor(tensor.key)
    except (SafetensorError, OSError, RuntimeError, ValueError) as error:
        raise _damaged(tensor.file, str(error)) from error


def _converted(weight: Tensor, transposed: bool, device: torch.device, dtype: torch.dtype) -> Tensor:
    """A copy of its own, so that the file may change afterwards."""
    view = weight.T if transposed else weight
    return torch.empty(view.shape, device=device, dtype=dtype).copy_(view)


def save_hf(model: "LanguageModel", folder: Path | str) -> None:
    """Write a model as `transformers` does: config.json, model.safetensors and, if it has one, tokenizer.json.

    Raises:
        StorageError: the disk refuses.
    """
    from probekit.models.load import family_of

    state, tensors = model.state_dict(), {}
    for ours, theirs in family_of(model).hf_names(model.cfg).items():
        weight = state[ours].detach().cpu()
        tensors[theirs.name] = (weight.T if theirs.transposed else weight).contiguous()
    config = model.cfg.to_hf() | {"dtype": str(model.dtype).removeprefix("torch.")}
    files = {
        "config.json": (json.dumps(config, indent=2, sort_keys=True) + "\n").encode(),
        ONE_FILE: save(tensors, metadata={"format": "pt"}),
    }
    if model.tokenizer is not None:
        files["tokenizer.json"] = model.tokenizer.to_json().encode()
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (Path(folder) / name).write_bytes(content)
    except OSError as error:
        raise StorageError(f"{str(folder)!a} cannot be written: {error.strerror}") from error
