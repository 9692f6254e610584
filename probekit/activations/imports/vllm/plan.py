"""The plan of an import from vLLM: which file holds the states of which text. Headers and tokens are read for it.

Axes: N examples, T tokens of one of them, D width of the model.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from probekit.activations.imports.plan import STORED_AS
from probekit.activations.imports.vllm.requests import VllmRequest, find_stack_axis, read_requests
from probekit.activations.layout import row_bytes
from probekit.activations.plan.build import SHARD_BYTES, plan_extraction
from probekit.activations.plan.plan import ExtractionPlan
from probekit.errors import DataError, UsageError
from probekit.machine.dtypes import dtype_name
from probekit.models.base import LanguageModel
from probekit.models.load import check_model_name, outline
from probekit.options import ExtractOptions, ImportOptions
from probekit.options.check import check_path, is_whole
from probekit.points import Place
from probekit.tasks.base import Task
from probekit.tasks.load import load_task
from probekit.text import counted, listed

OF_ARRAYS = ("labels", "point", "n_layers")  # options that say what a file of vLLM says
_OF_TASK = ("text_column", "label_column", "group_column", "columns", "header", "regression", "max_classes", "seed")


@dataclass(frozen=True, eq=False)
class RequestsPlan:
    """One import, ready to run.

    Attributes:
        source: the folder.
        requests: the file of each example, [N]; equal texts may share one.
        stack_axis: the axis of the layers; None where there is none.
        reading: how `extract` would read the same texts: tokens, positions and rows.
        places: of the layers in the files, in their order, which is ascending.
        width: D.
        bos: whether vLLM put a BOS before the texts, which their tokens show.
        dtype: name of the type on disk.
        model: the model without its weights.
        left_aside: names of files whose tokens are those of no text.
    """

    source: Path
    requests: list[VllmRequest] = field(repr=False)
    stack_axis: int | None
    reading: ExtractionPlan = field(repr=False)
    places: list[Place]
    width: int
    bos: bool
    dtype: str
    model: LanguageModel = field(repr=False)
    left_aside: list[str]

    @property
    def task(self) -> Task:
        """The examples."""
        return self.reading.task

    @property
    def n_bytes(self) -> np.ndarray:
        """Bytes of each example on disk, int64 [N]."""
        return row_bytes(self.reading.layout, self.places, [self.width] * len(self.places), self.dtype)

    @property
    def shards(self) -> list[np.ndarray]:
        """Row indices of each shard, of about `SHARD_BYTES`."""
        number = (np.cumsum(self.n_bytes) - self.n_bytes) // SHARD_BYTES
        return np.split(np.arange(len(number)), np.flatnonzero(np.diff(number)) + 1)


def plan_requests(source: str | Path, options: ImportOptions) -> RequestsPlan:
    """The plan of `import_activations(source, format="vllm", ...)`; states are not read.

    Raises:
        UsageError: model or dataset is missing; an option that has no use; axes that no shape shows.
        DataError: a file that cannot be used, states of a part of the tokens, or a text without a file.
    """
    source, ids = check_path("source", source).expanduser(), _layer_ids(options)
    check_model_name(str(options.model))
    requests = read_requests(source)
    task = load_task(str(options.dataset), **{name: getattr(options, name) for name in _OF_TASK})
    model = outline(str(options.model), tokenizer=True)
    places = _places(range(model.n_layers + 1) if ids is None else ids, model.n_layers, options)
    width = model.cfg.d_model
    axis = find_stack_axis(requests, len(places), width, options.stack_axis)
    reading, bos = _reading(model, task, options, requests)
    found, left_aside = _match(reading, requests)
    types = {STORED_AS.get(one.states.type_name, "") for one in found}
    if "" in types:
        raise DataError(f"{found[0].states.where} is {found[0].states.type_name}, expected numbers in floating point")
    dtype = dtype_name(options.dtype) if options.dtype is not None else types.pop() if len(types) == 1 else "float32"
    return RequestsPlan(source, found, axis, reading, places, width, bos, dtype, model, left_aside)


def _layer_ids(options: ImportOptions) -> list[int] | None:
    """The layers in the files, None for all, checked with the other options before anything is loaded."""
    for name in OF_ARRAYS:
        if getattr(options, name) is not None:
            raise UsageError(f"--{name.replace('_', '-')} is for arrays; leave it out with --format vllm")
    for name, what in (("model", "the model that vLLM ran"), ("dataset", "the texts that it was given")):
        if getattr(options, name) is None:
            raise UsageError(f"--format vllm needs --{name}, {what}")
    if options.layers is None:
        return None
    ids = list(options.layers)
    if not ids or not all(map(is_whole, ids)) or ids != sorted(set(ids)):
        raise UsageError(
            f"--layers must be ascending numbers, each once; got {listed(ids, most=8) or 'none'}: vLLM's models write "
            "the layers of eagle_aux_hidden_state_layer_ids in ascending order, whatever the order in that list"
        )
    return ids


def _places(ids: Sequence[int], n_layers: int, options: ImportOptions) -> list[Place]:
    """Layer id i is the input of block i; the number of blocks is the output of the last one."""
    if wrong := [i for i in ids if not 0 <= i <= n_layers]:
        raise UsageError(
            f"--layers {wrong[0]} is out of range: {options.model!a:.60} has {counted(n_layers, 'block')}, and vLLM "
            f"counts their inputs as 0..{n_layers - 1} and the last output as {n_layers}"
        )
    return [Place("resid_pre", i) if i < n_layers else Place("resid_post", n_layers - 1) for i in ids]


def _reading(
    model: LanguageModel, task: Task, options: ImportOptions, requests: list[VllmRequest]
) -> tuple[ExtractionPlan, bool]:
    """How the texts are read, with a BOS if most of the requests begin with one and their texts do not."""
    how = ExtractOptions(points="resid_pre", layers=[0], position=options.position, on_long="error", device="cpu")
    plain = plan_extraction(model, task, replace(how, bos=False))
    bos_id = None if model.tokenizer is None else model.tokenizer.bos_token_id
    if bos_id is None:
        return plain, False
    known = {_key(one.tokens) for one in requests}
    without = _n_found(plain, known)
    if without == len(plain.task):
        return plain, False
    with_bos = plan_extraction(model, task, replace(how, bos=True))
    return (with_bos, True) if _n_found(with_bos, known) > without else (plain, False)


def _key(tokens: np.ndarray) -> bytes:
    return np.ascontiguousarray(tokens, dtype=np.int64).tobytes()


def _n_found(plan: ExtractionPlan, known: set[bytes]) -> int:
    return sum(_key(plan.sequences[i]) in known for i in range(len(plan.task)))


def _match(plan: ExtractionPlan, requests: list[VllmRequest]) -> tuple[list[VllmRequest], list[str]]:
    """The request of each example, by its tokens, and the names of files that are of no example.

    Equal texts take the files with their tokens in turn; the last of these serves those that are left.
    """
    by_tokens: dict[bytes, list[VllmRequest]] = defaultdict(list)
    for request in requests:
        by_tokens[_key(request.tokens)].append(request)
    keys = [_key(plan.sequences[i]) for i in range(len(plan.task))]
    if missing := [i for i, key in enumerate(keys) if key not in by_tokens]:
        first = missing[0]
        names = listed([ascii(str(plan.task.ids[i]))[:60] for i in missing], most=4)
        raise DataError(
            f"no file has the tokens of {counted(len(missing), 'text')} of {len(keys):,}: {names}; the first has "
            f"{len(plan.sequences[first]):,} tokens, {_shown(plan.sequences[first])}{_nearest(plan, requests)}"
        )
    wanted, taken = set(keys), defaultdict(int)
    found = []
    for key in keys:
        files = by_tokens[key]
        found.append(files[min(taken[key], len(files) - 1)])
        taken[key] += 1
    return found, [one.file.name for one in requests if _key(one.tokens) not in wanted]


def _shown(tokens: np.ndarray) -> str:
    return listed(tokens.tolist(), most=6)


def _nearest(plan: ExtractionPlan, requests: list[VllmRequest]) -> str:
    """What the first file of no text holds, for the message about a text of no file."""
    wanted = {_key(plan.sequences[i]) for i in range(len(plan.task))}
    other = next((one for one in requests if _key(one.tokens) not in wanted), None)
    if other is None:
        return "; run vLLM on it too"
    return (
        f"; {other.file.name!a}, which is of no text, has {len(other.tokens):,}, {_shown(other.tokens)}: give vLLM the "
        "same texts, without a chat template"
    )
