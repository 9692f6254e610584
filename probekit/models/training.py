"""A plain training loop for the small models that this project trains itself.

AdamW (Loshchilov and Hutter 2019) under a cosine schedule with a linear warm-up, gradients clipped by their norm, in
float32. A batch decides what is learned: the target at each token (the next token, or the hidden token of a masked
language model), the label of a text, or the target sequence of a source.

The loop draws nothing at random: batches are a pure function of the step. So training resumes exactly from a checkpoint
of weights, moments and losses, bit for bit on one machine. Checkpoints are the pieces of a run (`probekit.files.run`):

    FOLDER/checkpoint/plan.json                     settings, shape, first weights and first batch
                      00000100.json                 the record of step 100, with the checksum of its tensors
                      00000100-CHECKSUM.safetensors

The newest one is kept; older ones are removed once it is complete.

Axes: B batch, L position, S source position, D d_model, V vocab.
"""

import hashlib
import math
import re
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any, TypedDict

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from probekit.errors import DataError, StorageError, UsageError
from probekit.files.durable import read_plain, remove, write_as
from probekit.files.remote.path import AnyPath
from probekit.files.run import Run, begin_run, differing, question_digest, refuse_others
from probekit.machine.program import STOPPING
from probekit.models.base import LanguageModel
from probekit.models.examples import IGNORE, Example
from probekit.options import TrainingSettings

CHECKPOINT = "checkpoint"  # the folder of a run's checkpoints, in that of its model
MOMENTS = ("step", "exp_avg", "exp_avg_sq")  # AdamW's state for each weight


class CheckpointRecord(TypedDict):
    """The record of a checkpoint: what its tensors must be."""

    sha256: str
    n_bytes: int


@dataclass(frozen=True)
class TrainingBatch:
    """Examples padded on the right; masks are true at real tokens."""

    tokens: Tensor  # int64 [B, L]
    targets: Tensor  # int64 [B, L]
    attention_mask: Tensor  # bool [B, L]
    labels: Tensor | None = None  # int64 [B]
    source: Tensor | None = None  # int64 [B, S]
    source_mask: Tensor | None = None  # bool [B, S]


def collate(examples: Sequence[Example], pad_id: int = 0) -> TrainingBatch:
    """Pad examples to a batch, with `pad_id` in tokens and source and IGNORE in targets.

    Raises:
        UsageError: no examples, an empty one, more or fewer targets than tokens, or labels or sources in only some
            examples.
    """
    if not examples or not all(e.tokens and len(e.tokens) == len(e.targets) for e in examples):
        raise UsageError("a batch needs an example or more, each with tokens and as many targets; correct the examples")
    labels = _all_or_none("label", [e.label for e in examples])
    sources = _all_or_none("source", [e.source for e in examples])
    tokens, mask = _padded([e.tokens for e in examples], pad_id)
    targets, _ = _padded([e.targets for e in examples], IGNORE)
    source, source_mask = _padded(sources, pad_id) if sources else (None, None)
    return TrainingBatch(tokens, targets, mask, torch.tensor(labels) if labels else None, source, source_mask)


def _all_or_none(what: str, values: list[Any]) -> list[Any] | None:
    if all(value is None for value in values):
        return None
    if any(value is None or value == [] for value in values):
        raise UsageError(f"a batch needs a {what} in every example or in none; give it to all, or leave it out")
    return values


def _padded(rows: Sequence[Sequence[int]], value: int) -> tuple[Tensor, Tensor]:
    """Rows as int64 [B, L], padded on the right, and the mask of real places, bool [B, L]."""
    padded = pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=value)
    lengths = torch.tensor([len(row) for row in rows])
    return padded, torch.arange(padded.shape[1]) < lengths[:, None]


@dataclass(frozen=True)
class TrainingResult:
    """The loss of each step, in nats, and the number of steps that an earlier run had done."""

    losses: list[float]
    resumed_from: int = 0

    def mean_loss(self, last: int = 100) -> float:
        """The mean loss of the `last` steps."""
        return sum(self.losses[-last:]) / len(self.losses[-last:])


Draw = Callable[[int], Sequence[Example]]


def train(
    model: LanguageModel,
    draw: Draw,
    settings: TrainingSettings | None = None,
    folder: Path | None = None,
    on_progress: Callable[[int, int], object] | None = None,
    checkpoint_every: int = 100,
) -> TrainingResult:
    """Train a model in place; resume from the folder's checkpoint if it has one.

    Ctrl-C stops after the current step and writes a checkpoint; a second Ctrl-C stops at once.

    Args:
        model: in float32, with the weights to start from.
        draw: step (from 0) -> its `settings.batch_size` examples, the same at every call.
        settings: None for the defaults.
        folder: where the checkpoint is kept; None keeps none.
        on_progress: called with (steps done, steps in all) before the first step and after every one.
        checkpoint_every: steps between checkpoints; one is also written after the last step.

    Raises:
        UsageError: a model in another number type, or a batch that it cannot learn from.
        DataError: the loss is no longer finite.
        ResumeMismatch: the checkpoint belongs to another run: other settings, shape, first weights or first batch.
        StorageError: the checkpoint is damaged, or the disk refuses.
        KeyboardInterrupt: after Ctrl-C; its text gives the step.
    """
    settings = settings or TrainingSettings()
    if model.dtype != torch.float32:
        raise UsageError(f"models are trained in float32, got {model.dtype}; load the model in float32")
    training = _Training(model, settings)
    run = begin_training(folder, _identity(model, draw, settings)) if folder else None
    start = training.resume(run) if run else 0
    if on_progress:
        on_progress(start, settings.steps)
    with _interrupts_wait() as interrupted, torch.enable_grad():
        for step in range(start, settings.steps):
            training.step(draw(step))
            done = step + 1
            if on_progress:
                on_progress(done, settings.steps)
            stop = interrupted()
            if run and (stop or done == settings.steps or done % checkpoint_every == 0):
                training.save(run)
            if stop:
                kept = "; to resume, give the same command again" if run else ""
                raise KeyboardInterrupt(f"interrupted after step {done} of {settings.steps}{kept}")
    return TrainingResult(training.losses, start)


class _Training:
    """Weights, moments and losses so far."""

    def __init__(self, model: LanguageModel, settings: TrainingSettings):
        self.model, self.settings = model, settings
        self.weights = dict(model.named_parameters())
        self.optimizer = torch.optim.AdamW(
            self.weights.values(), settings.learning_rate, settings.betas, weight_decay=settings.weight_decay
        )
        self.losses: list[float] = []

    def step(self, examples: Sequence[Example]) -> None:
        if len(examples) != self.settings.batch_size:
            raise UsageError(f"expected {self.settings.batch_size} examples a batch, got {len(examples)}")
        self.optimizer.param_groups[0]["lr"] = learning_rate_at(self.settings, len(self.losses))
        loss = loss_of(self.model, collate(examples))
        if not loss.isfinite():
            raise DataError(f"step {len(self.losses) + 1}: the loss is {loss.item()}; try a smaller learning rate")
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.weights.values(), self.settings.clip_norm)
        self.optimizer.step()
        self.losses.append(loss.item())

    def save(self, run: Run) -> None:
        """Write a checkpoint."""
        tensors = {f"weights.{name}": w.detach() for name, w in self.weights.items()}
        for name, weight in self.weights.items():
            tensors |= {f"{key}.{name}": x for key, x in self.optimizer.state.get(weight, {}).items()}
        tensors["losses"] = torch.tensor(self.losses, dtype=torch.float64)
        save_checkpoint(run, len(self.losses), tensors)

    def resume(self, run: Run) -> int:
        """Load the checkpoint, if there is one, and return the number of steps done."""
        tensors = load_checkpoint(run)
        if tensors is None:
            return 0
        shapes = {f"weights.{name}": weight.shape for name, weight in self.weights.items()}
        held = {name: x.shape for name, x in tensors.items() if name in shapes}
        if held != shapes or "losses" not in tensors:
            raise StorageError(
                f"the checkpoint in {str(run.folder)!a} is of another model; remove that folder to train from the start"
            )
        self.losses = tensors["losses"].tolist()
        with torch.no_grad():
            for name, weight in self.weights.items():
                weight.copy_(tensors[f"weights.{name}"])
        state = {
            i: {key: tensors[f"{key}.{name}"] for key in MOMENTS if f"{key}.{name}" in tensors}
            for i, name in enumerate(self.weights)
        }
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": state, "param_groups": groups})
        return len(self.losses)


def learning_rate_at(settings: TrainingSettings, step: int) -> float:
    """The learning rate of a step, counted from 0: linear up to the peak, then half a cosine down to zero."""
    if step < settings.warm_up_steps:
        return settings.learning_rate * ((step + 1) / settings.warm_up_steps)
    done = (step - settings.warm_up_steps) / (settings.steps - settings.warm_up_steps)
    return settings.learning_rate * ((1 + math.cos(math.pi * done)) / 2)


def loss_of(model: LanguageModel, batch: TrainingBatch) -> Tensor:
    """The loss of a batch, in nats: the mean cross-entropy of its targets plus that of its labels.

    Raises:
        UsageError: the batch has neither targets nor labels, or has labels and the model does not classify.
    """
    losses = []
    logits_BLV, hidden_BLD = read_batch(model, batch)
    targets = batch.targets.to(logits_BLV.device)
    if (batch.targets != IGNORE).any():
        losses.append(F.cross_entropy(logits_BLV.flatten(0, 1), targets.flatten(), ignore_index=IGNORE))
    if batch.labels is not None:
        classify = getattr(model, "classify", None)
        if classify is None or hidden_BLD is None:
            raise UsageError(f"{model.name} does not classify texts; leave the label of its examples out")
        losses.append(F.cross_entropy(classify(hidden_BLD), batch.labels.to(logits_BLV.device)))
    if not losses:
        raise UsageError("the batch has neither targets nor labels to learn from; give one of them")
    return torch.stack(losses).sum() if len(losses) > 1 else losses[0]


def read_batch(model: LanguageModel, batch: TrainingBatch) -> tuple[Tensor, Tensor | None]:
    """Logits [B, L, V], and the hidden states [B, L, D] of a bidirectional model (otherwise None).

    Raises:
        UsageError: a source for a model without an encoder, or none for an encoder-decoder.
    """
    if (batch.source is not None) != hasattr(model, "decode"):
        raise UsageError("encoder-decoders need a source in each example, other models none; correct the examples")
    if batch.source is not None:
        return model(batch.source, batch.tokens, source_mask=batch.source_mask), None
    if model.causal:
        return model(batch.tokens), None  # padding on the right is never attended to
    hidden_BLD = model(batch.tokens, attention_mask=batch.attention_mask, return_logits=False)
    return model.logits(hidden_BLD), hidden_BLD  # pyright: ignore[reportCallIssue]


def _identity(model: LanguageModel, draw: Draw, settings: TrainingSettings) -> dict[str, Any]:
    """What identifies a run: settings, shape, first weights and first batch."""
    return {
        **asdict(settings),
        **{f"shape.{name}": str(value) for name, value in asdict(model.cfg).items()},
        "first weights": model.fingerprint(),
        "first batch": question_digest([asdict(example) for example in draw(0)]),
    }


@contextmanager
def _interrupts_wait() -> Iterator[Callable[[], bool]]:
    """Delay the signals that stop a command until the caller asks for them, so that no step is left half done.

    A second signal acts at once. Outside the main thread signals are not touched.
    """
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before: dict[int, Any] = {number: signal.getsignal(number) for number in STOPPING}

    def wait(number: int, frame: FrameType | None) -> None:
        received.append(number)
        if len(received) > 1:
            before[number](number, frame)

    # signals that are ignored, or whose default action ends the process, are left alone
    handled = [number for number, handler in before.items() if callable(handler)]
    try:
        for number in handled:
            signal.signal(number, wait)
        yield lambda: bool(received)
    finally:
        for number in handled:
            signal.signal(number, before[number])
        if len(received) == 1:  # the command line's handler decides the exit code by it
            with suppress(KeyboardInterrupt):
                before[received[0]](received[0], None)


def begin_training(folder: Path, identity: dict[str, Any]) -> Run:
    """The checkpoints of a training, in the folder of its model.

    Raises:
        ResumeMismatch: they are those of another training; the message names what differs.
        StorageError: the disk refused, or what identifies the training there is damaged.
    """
    checkpoints = folder / CHECKPOINT

    def check_same(found: dict[str, Any], ours: dict[str, Any]) -> None:
        if fields := differing(found, ours):
            what = f"{str(checkpoints)!a} belongs to another training"
            raise refuse_others(what, fields, found, ours, {}, "remove it, or give another folder")

    return begin_run(checkpoints, identity, "is of another training", check_same)


def save_checkpoint(run: Run, step: int, tensors: dict[str, Tensor]) -> None:
    """Write a checkpoint, and remove those of earlier steps.

    Args:
        run: the training's.
        step: how many steps are done.
        tensors: name -> tensor, everything that the training needs to resume.

    Raises:
        StorageError: the disk refused; the previous checkpoint is intact.
    """
    data = save({name: x.cpu().contiguous() for name, x in tensors.items()})
    piece, checksum = f"{step:08d}", hashlib.sha256(data).hexdigest()
    file = _tensor_file(run, piece, checksum)
    write_as(file, data)
    if not run.write(piece, {"sha256": checksum, "n_bytes": len(data)}) and not _may_name(run, piece, checksum):
        remove(file)
    for path in (*run.folder.glob("[0-9]*.json"), *run.folder.glob("[0-9]*.safetensors")):  # records first
        if path.name < piece:
            remove(path)


def load_checkpoint(run: Run) -> dict[str, Tensor] | None:
    """The tensors of the newest checkpoint; None if there is none.

    Raises:
        StorageError: it is damaged, or not a regular file.
    """
    while pieces := [piece for piece in run.done() if re.fullmatch("[0-9]{8}", piece)]:
        try:
            return _tensors_of(run, pieces[-1])
        except StorageError:
            if run.has(pieces[-1]):  # else another worker has come further, and removed it
                raise
    return None


def _tensors_of(run: Run, piece: str) -> dict[str, Tensor]:
    record = run.read(piece, CheckpointRecord)
    path = _tensor_file(run, piece, record["sha256"])
    try:
        data = read_plain(path, record["n_bytes"])
        if hashlib.sha256(data).hexdigest() == record["sha256"]:
            return load(data)
    except (FileNotFoundError, SafetensorError):
        pass
    raise StorageError(f"{str(path)!a} is damaged or missing; remove {str(run.folder)!a} to train from the start")


def _may_name(run: Run, piece: str, checksum: str) -> bool:
    """True if a record that another worker wrote names these tensors, or cannot say."""
    try:
        return run.read(piece, CheckpointRecord)["sha256"] == checksum
    except StorageError:
        return run.has(piece)


def _tensor_file(run: Run, piece: str, checksum: str) -> AnyPath:
    return run.folder / f"{piece}-{checksum[:16]}.safetensors"
