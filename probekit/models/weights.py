"""Load and save weights as `transformers` does; missing, unexpected and misshapen weights are named.

Files: `model.safetensors`, or `model.safetensors.index.json` and the shards that it lists. Pickles are never read.
The format: https://github.com/huggingface/safetensors#format
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from einops import rearrange
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from probekit.errors import DataError
from probekit.files.durable import make_folder, remove, write_as
from probekit.files.plain_files import open_regular
from probekit.files.safetensors_header import HeaderError, read_header
from probekit.models.base import LanguageModel
from probekit.models.families import family_of
from probekit.models.family import Family, HfTensor
from probekit.models.files import read_json
from probekit.models.packaging import of_further_heads
from probekit.models.tokenizer_files import tokenizer_files
from probekit.text import by_numbers, listed, printable

ONE_FILE, INDEX = "model.safetensors", "model.safetensors.index.json"
READABLE = ("F32", "F16", "BF16")
SHARD_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


class TensorInFile(NamedTuple):
    """A tensor as its file's header describes it.

    Attributes:
        file: that holds it.
        key: its name there.
        dtype: of its numbers.
        shape: of the tensor.
        parts: of a weight in few bits (`quantized.py`), the tensors that hold it, by the ends of their names.
        widen: what makes the weight of them.
    """

    file: Path
    key: str
    dtype: str
    shape: tuple[int, ...]
    parts: "Mapping[str, TensorInFile] | None" = None
    widen: Callable[[Mapping[str, Tensor]], Tensor] | None = None


def choose_weights(files: Collection[str], where: str) -> str:
    """The name of the file that holds or lists a model's weights.

    Args:
        files: names of the files in the model's folder or repository.
        where: that place, for the error.

    Raises:
        DataError: there is no such file.
    """
    for name in (ONE_FILE, INDEX):
        if name in files:
            return name
    if any(name.startswith("pytorch_model") for name in files):
        raise DataError(
            f"{where!a} has its weights only in pytorch_model.bin, a pickle, which is never read; convert it with "
            f"transformers: AutoModel.from_pretrained(...).save_pretrained(..., safe_serialization=True)"
        )
    raise DataError(f"{where!a} has neither {ONE_FILE} nor {INDEX}; put the weights there")


def shard_names(index: Path) -> list[str]:
    """The names of the shards that an index lists.

    Raises:
        DataError: the index is damaged, or lists something other than a plain file name.
    """
    files = _weight_map(index).values()
    for name in files:
        if not isinstance(name, str) or not SHARD_NAME.fullmatch(name):
            raise DataError(f"{str(index)!a} names {name!a}, which is not a plain file name; download it again")
    return sorted(set(files))


def _weight_map(index: Path) -> dict[str, Any]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise DataError(f"{str(index)!a} has no weight_map; download it again")
    return weight_map


def stored_in(path: Path) -> dict[str, TensorInFile]:
    """The tensors of a safetensors file by key; only its header is read.

    Raises:
        DataError: the file cannot be read, or its header is damaged.
    """
    try:
        with open_regular(path) as file:
            header = read_header(file)
    except OSError as error:
        raise DataError(f"{str(path)!a} cannot be read: {error.strerror}") from None
    except HeaderError as error:
        raise _damaged(path, str(error)) from None
    return {key: TensorInFile(path, key, entry.dtype, entry.shape) for key, entry in header.tensors.items()}


def _damaged(path: Path, why: str) -> DataError:
    return DataError(f"{str(path)!a} is damaged or not a safetensors file: {ascii(why)[1:-1]}; download it again")


def stored_tensors(folder: Path) -> dict[str, TensorInFile]:
    """Every tensor in the weight files of a folder, by key.

    Raises:
        DataError: a file is missing or damaged, or shards and index disagree.
    """
    name = choose_weights([path.name for path in folder.iterdir()], str(folder))
    if name == ONE_FILE:
        return stored_in(folder / name)
    stored: dict[str, TensorInFile] = {}
    for shard in shard_names(folder / name):
        if not (folder / shard).is_file():
            raise DataError(f"{str(folder / shard)!a} is missing, and {INDEX} names it; download it")
        header = stored_in(folder / shard)
        if twice := stored.keys() & header.keys():
            raise DataError(
                f"{str(folder / shard)!a} holds {listed_weights(twice)}, which another shard holds too; download the "
                "model again"
            )
        stored |= header
    weight_map = _weight_map(folder / name)
    if misplaced := [key for key, shard in weight_map.items() if key not in stored or stored[key].file.name != shard]:
        raise DataError(
            f"{str(folder / name)!a} names tensors that are not in the named file ({listed_weights(misplaced)}); "
            "download the model again"
        )
    return stored


def named_tensors(
    folder: Path, stored: Mapping[str, TensorInFile], family: Family, cfg: Any
) -> dict[str, TensorInFile]:
    """Every weight in the files of a folder, by the name that `transformers` gives it today.

    Args:
        folder: a model folder in Hugging Face format.
        stored: its tensors by key.
        family: the model's.
        cfg: its config, with all parts that a file may hold.

    Raises:
        DataError: a weight is stored under two names.
    """
    heads = {name.split(".")[0] for name in family.modules(cfg).values() if not name.startswith(family.hf_prefix)}
    unread = of_further_heads(stored, cfg.n_layers)
    named: dict[str, TensorInFile] = {}
    for key, tensor in stored.items():
        name = family.hf_renamed(key)
        if not name.startswith(family.hf_prefix) and name.split(".")[0] not in heads:
            name = family.hf_prefix + name  # the file of a bare model
        if name in named:
            raise DataError(f"{str(folder)!a} holds {name!a} twice, as {named[name].key!a} and as {key!a}")
        if key not in unread and not re.fullmatch(family.hf_buffers, name):
            named[name] = tensor
    return named


def load_weights(
    model: LanguageModel,
    folder: Path,
    family: Family,
    stored: Mapping[str, TensorInFile],
    device: torch.device | Callable[[str], torch.device],
    dtype: torch.dtype,
) -> None:
    """Fill `model`, which may be on the meta device, with the weights of a folder.

    Tensors are read, transposed and converted one at a time, and those of all experts one expert at a time, so memory
    holds the model once.

    Args:
        model: gets the weights as its parameters, on `device`, in `dtype`.
        folder: a model folder in Hugging Face format.
        family: the model's.
        stored: the tensors there, from `named_tensors`.
        device: the device of the weights, or a function from our name of a weight to its device.
        dtype: the type of the weights.

    Raises:
        DataError: as `check_weights`; or a copy of a tied weight differs from the original.
    """
    names, ties = family.hf_names(model.cfg, stored), family.hf_ties(model.cfg)
    stored = check_weights(model, folder, family, stored)
    for copy, original in ties.items():
        if copy in stored and original is not None:
            _check_tied(stored[copy], stored[original])
    within: dict[tuple[str, int | None], list[str]] = {}
    for ours, there in names.items():
        within.setdefault((there.name, there.entry), []).append(ours)
    state: dict[str, Tensor] = {}
    # all of them before any is read: what reading needs then lies above them in the heap, which shrinks from its end
    for ours, weight in model.state_dict().items():
        home = device if isinstance(device, torch.device) else device(ours)
        kind = torch.float32 if ours.endswith(model.in_float32) else dtype
        state[ours] = torch.empty(weight.shape, device=home, dtype=kind)
    for (name, entry), several in within.items():
        whole = read_weight(stored[name], entry)
        for ours in several:
            state[ours].copy_(_own_rows(whole, names[ours]))  # the file may change later
    model.load_state_dict(state, assign=True)


def check_weights(
    model: LanguageModel, folder: Path, family: Family, stored: Mapping[str, TensorInFile]
) -> dict[str, TensorInFile]:
    """The tensors of a folder, with the originals of tied weights, if their names and shapes are the model's.

    Arguments are as in `load_weights`; only headers were read.

    Raises:
        DataError: weights are missing, unexpected, misshapen or of an unreadable type.
    """
    ties = family.hf_ties(model.cfg)
    whole = _with_originals(stored, ties)
    untied = {name: tensor for name, tensor in whole.items() if name not in ties}
    _check(model, folder, family.hf_names(model.cfg, stored), untied)
    return whole


def _check(model: nn.Module, folder: Path, names: Mapping[str, HfTensor], stored: Mapping[str, TensorInFile]) -> None:
    wanted = {name: tuple(tensor.shape) for name, tensor in as_stored(model.state_dict(), names)}
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
        raise unfitting(folder, "its config.json", found)


def unfitting(folder: Path, model: str, found: Mapping[str, list[str]]) -> DataError:
    """The error for a folder whose weights are not those of a model.

    Args:
        folder: of the weights.
        model: which, in words.
        found: what is wrong ("missing") -> the weights with that.
    """
    report = "; ".join(f"{what}: {listed_weights(which)}" for what, which in found.items() if which)
    return DataError(
        f"the weights in {str(folder)!a} are not those of {model}; {report}; correct the sizes in config.json, or "
        "download the weights again"
    )


def our_part(tensor: Tensor, where: HfTensor) -> Tensor:
    """Our weight in the tensor of a file, as a view unless it has another layout."""
    return _own_rows(tensor if where.entry is None else tensor[where.entry], where)


def _own_rows(tensor: Tensor, where: HfTensor) -> Tensor:
    """Our weight in a tensor of a file, or in its entry `where.entry`, as a view unless it has another layout."""
    if where.layout:
        return rearrange(tensor, where.layout)
    whole = tensor.T if where.transposed else tensor
    return whole if where.rows is None else whole[where.rows]


def as_stored(weights: Mapping[str, Tensor], names: Mapping[str, HfTensor]) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a file, made of our weights; views, but for those of several weights.

    Args:
        weights: our name -> weight.
        names: our name of every weight -> where a file holds it.
    """
    within: dict[str, dict[int | None, list[str]]] = {}
    for ours, where in names.items():
        within.setdefault(where.name, {}).setdefault(where.entry, []).append(ours)
    for name, entries in within.items():
        wholes = [_joined([(weights[ours], names[ours]) for ours in parts]) for parts in entries.values()]
        yield name, wholes[0] if None in entries else torch.stack(wholes)


def _joined(parts: list[tuple[Tensor, HfTensor]]) -> Tensor:
    """The tensor that holds these weights, each in its rows."""
    (whole, first), *more = parts
    if more:
        whole = whole.new_empty(sum(len(weight) for weight, _ in parts), *whole.shape[1:])
        for weight, where in parts:
            whole[where.rows] = weight
    if first.layout:
        ours, theirs = reversed(first.layout.split(" -> "))
        return rearrange(whole, f"{ours} -> {theirs}", h=first.n_heads)
    return whole.T if first.transposed else whole


def listed_weights(names: Iterable[str]) -> str:
    """Names of weights for a message: layer 2 before layer 10, the first of many."""
    return listed([printable(name) for name in sorted(names, key=by_numbers)])


def _with_originals(stored: Mapping[str, TensorInFile], ties: Mapping[str, str | None]) -> dict[str, TensorInFile]:
    """The tensors, each tied weight under the name of its original: a file may hold the copy alone."""
    alone = {original: stored[copy] for copy, original in ties.items() if copy in stored and original is not None}
    return {**alone, **stored}


def _check_tied(copy: TensorInFile, original: TensorInFile) -> None:
    if copy.shape != original.shape or not torch.equal(read_weight(copy), read_weight(original)):
        raise DataError(
            f"{str(copy.file)!a}: {copy.key} is not equal to {original.key}, but config.json ties them; "
            f"set tie_word_embeddings to false there if it is a separate weight"
        )


def read_weight(tensor: TensorInFile, entry: int | None = None) -> Tensor:
    """The tensor, or one entry of it, as a view of the file; one in few bits is widened."""
    if tensor.parts is not None and tensor.widen is not None:
        try:
            return tensor.widen({end: read_weight(part, entry) for end, part in tensor.parts.items()})
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            raise _damaged(tensor.file, f"{tensor.key}: {error}") from None
    try:
        with safe_open(tensor.file, framework="pt") as file:
            whole = file.get_tensor(tensor.key)
            return whole if entry is None else whole[entry]
    except (SafetensorError, OSError, RuntimeError, ValueError) as error:
        raise _damaged(tensor.file, str(error)) from None


def save_hf(model: LanguageModel, folder: Path | str) -> None:
    """Write a model as `transformers` does: model.safetensors, its tokenizer's files, and, last, config.json.

    An earlier config.json is removed first, so that a folder that was left half written is no model.

    Raises:
        StorageError: the files cannot be written.
    """
    stored = as_stored(model.state_dict(), family_of(model.cfg).hf_names(model.cfg))
    tensors = {name: tensor.cpu().contiguous() for name, tensor in stored}
    config = model.cfg.to_hf() | {"dtype": str(model.dtype).removeprefix("torch.")}
    weights, folder = save(tensors, metadata={"format": "pt"}), Path(folder)
    make_folder(folder)
    remove(folder / "config.json")
    write_as(folder / ONE_FILE, weights)
    if model.tokenizer is not None:
        for name, content in tokenizer_files(model.tokenizer).items():
            write_as(folder / name, content)
    write_as(folder / "config.json", (json.dumps(config, indent=2, sort_keys=True) + "\n").encode())
