"""Train the model of a world, and test it on held-out examples.

The model learns from the training split alone. In the exam every word that it has to say must be the likeliest one,
given the words before it. One forward pass decides that, and it is exactly greedy generation: generation goes wrong at
the first word that is not the likeliest, and nowhere else.
"""

import contextlib
import json
import os
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import platformdirs
import torch

from probekit.errors import StorageError
from probekit.files.durable import TEMPORARY, make_folder, refused, sync_names, write_as
from probekit.machine.progress import Progress, progress_bar
from probekit.machine.threads import one_thread
from probekit.models.base import LanguageModel
from probekit.models.examples import IGNORE, Example
from probekit.models.families import family_of
from probekit.models.tokenizer_files import tokenizer_files
from probekit.models.training import TrainingResult, collate, read_batch, train
from probekit.models.weights import save_hf
from probekit.worlds.definition import World, key_of, tokenizer_of
from probekit.worlds.grammar import Seed

EXAM_SIZE = 2000  # held-out examples
EXAM_BATCH = 500
LEARNED = 0.99  # share of right examples that every world reaches with its own settings

ABOUT_A_MINUTE = range(400 * 64, 1800 * 64 + 1)  # examples: the worlds' own settings take 10 to 67 s on one core

STALE_SECONDS = 24 * 3600  # no training takes that long

ShowProgress = Callable[[int, int], object]


class Trained(NamedTuple):
    """A model of a world, its losses, and what `examine` found."""

    model: LanguageModel
    result: TrainingResult
    figures: dict[str, float]


def untrained(world: World, seed: int) -> LanguageModel:
    """The model with the weights that training starts from, and its tokenizer."""
    config = world.make_config()
    model = family_of(config).model(config).init_weights(seed)
    model.name, model.tokenizer = world.name, tokenizer_of(world)
    return model


def train_world(
    world: World, folder: Path | None = None, on_progress: ShowProgress | None = None, checkpoints: Path | None = None
) -> Trained:
    """Train a world's model and examine it.

    Args:
        world: to train with other settings, pass `dataclasses.replace(world, settings=...)`.
        folder: where to save the model as `transformers` would, with `training.json` (settings and figures).
        on_progress: called with (steps done, steps in all) before the first step and after every one.
        checkpoints: a folder for the checkpoint, from which an interrupted training resumes; None keeps none.

    Raises:
        ProbekitError: see `train` and `save_hf`.
    """
    settings = world.settings
    model = untrained(world, settings.seed)
    with one_thread():  # more gain little at this size, and the bits would depend on the number of cores
        result = train(
            model,
            lambda step: world.examples("train", settings.batch_size, [settings.seed, step]),
            settings,
            checkpoints,
            on_progress,
        )
    trained = Trained(model.eval(), result, examine(model, world))
    if folder is not None:
        save_hf(model, folder)
        facts = {
            "world": world.task,
            "settings": asdict(settings),
            "loss_nats": round(result.mean_loss(), 4),
            "held_out": {name: round(value, 4) for name, value in trained.figures.items()},
        }
        write_as(folder / "training.json", (json.dumps(facts, indent=2) + "\n").encode())
    return trained


def cache_folder() -> Path:
    """The folder for models that are trained on first use.

    It is PROBEKIT_CACHE, or else the platform's own place: on Linux `probekit` in XDG_CACHE_HOME or ~/.cache.
    """
    if own := os.environ.get("PROBEKIT_CACHE"):
        return Path(own).expanduser()
    return platformdirs.user_cache_path("probekit", appauthor=False)


def make_once(folder: Path, make: Callable[[Path], object]) -> Path:
    """The folder, made first if it is not there. It is either complete or absent, whatever happens.

    If two processes make it at once, the first one's folder stays and the other's is removed.

    Args:
        folder: its name identifies its content: the same name, the same content.
        make: writes the files into the empty folder that it is given.

    Raises:
        StorageError: the disk refused.
    """
    if folder.is_dir():
        return folder
    temporary = folder.parent / f"{TEMPORARY}{folder.name}-{uuid.uuid4().hex}"
    try:
        make_folder(folder.parent)
        temporary.mkdir()  # fails before the work if the place cannot be written
        for path in folder.parent.glob(f"{TEMPORARY}*"):  # what killed runs left behind, but for runs in progress
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > STALE_SECONDS:
                    shutil.rmtree(path)
        make(temporary)
        for path in temporary.iterdir():
            with path.open("rb+") as file:
                os.fsync(file.fileno())
        sync_names(temporary)
        temporary.rename(folder)
        sync_names(folder.parent)
    except (OSError, StorageError) as error:
        if not folder.is_dir():
            why = refused(folder, error) if isinstance(error, OSError) else error
            raise StorageError(f"{why}; set PROBEKIT_CACHE to another folder for models") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def trained_folder(world: World, weights: bool = True, progress: bool | None = None) -> Path:
    """The folder of a world's model in the user's cache; the model is trained first if it is not there.

    Args:
        world: whose model.
        weights: False trains nothing and returns another folder, with config.json and the tokenizer alone.
        progress: show progress on stderr: None on a terminal and in a notebook, True always, False never.

    Raises:
        StorageError: the disk refused.
    """
    models = cache_folder() / "models"
    final = models / key_of(world)

    def write_shape(folder: Path) -> None:
        config = json.dumps(world.make_config().to_hf()).encode()
        for name, content in {"config.json": config, **tokenizer_files(tokenizer_of(world))}.items():
            write_as(folder / name, content)

    def write_trained(folder: Path) -> None:
        with training_shown(world, final, progress) as show:
            try:
                trained = train_world(world, folder, show)
            except KeyboardInterrupt:
                raise KeyboardInterrupt(
                    f"nothing of the unfinished {world.name} was kept; run the same command again, or train it with "
                    f"probekit train-model {world.name}, which resumes"
                ) from None
        if progress is not False and (short := shortfall(trained)):
            _say(short)

    return make_once(final, write_trained) if weights else make_once(models / f"{final.name}-shape", write_shape)


@contextmanager
def training_shown(world: World, folder: Path, progress: bool | None) -> Iterator[ShowProgress | None]:
    """Show a training on stderr: a line before it, one where it resumes, and on a terminal a bar with the time left.

    Yields:
        A function to call with (steps done, steps in all); None if nothing is shown.
    """
    if progress is False:
        yield None
        return
    settings = world.settings
    is_usual = settings.steps * settings.batch_size in ABOUT_A_MINUTE
    how_long = "about a minute" if is_usual else f"{settings.steps:,} steps"
    _say(f"training {world.name}, {how_long}; the trained model is kept in {str(folder)!a}")
    bars: list[Progress] = []
    with ExitStack() as stack:

        def show(done: int, total: int) -> None:
            if not bars:
                if done:
                    _say(f"resuming after step {done:,} of {total:,}")
                bars.append(stack.enter_context(progress_bar(world.name, "steps", show=progress)))
            bars[0].set(done, total)

        yield show


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def shortfall(trained: Trained) -> str | None:
    """One line about a model that has not learned its world; None if it has."""
    low = [f"{name} {share:.2%}" for name, share in trained.figures.items() if name != "n" and share < LEARNED]
    if not low:
        return None
    n = trained.figures["n"]
    return f"{trained.model.name} has not learned its world: {', '.join(low)} of {n:.0f} held-out examples, below 99%"


@torch.no_grad()
def examine(model: LanguageModel, world: World, n: int = EXAM_SIZE, seed: Seed = (0, 0)) -> dict[str, float]:
    """The shares of held-out examples that the model gets right.

    Returns:
        "exact": examples whose every target is the likeliest token; "label", where there are labels: examples whose
        class is right; "n": how many examples.
    """
    examples = world.examples("test", n, seed)
    batches = [examples[start : start + EXAM_BATCH] for start in range(0, len(examples), EXAM_BATCH)]
    right = [_count_right(model, batch) for batch in batches]
    return {name: sum(one[name] for one in right) / len(examples) for name in right[0]} | {"n": len(examples)}


def _count_right(model: LanguageModel, examples: Sequence[Example]) -> dict[str, int]:
    batch = collate(examples)
    logits_BLV, hidden_BLD = read_batch(model, batch)
    exact_B = ((logits_BLV.argmax(-1) == batch.targets) | (batch.targets == IGNORE)).all(1)
    right = {"exact": int(exact_B.sum())}
    if batch.labels is not None:
        right["label"] = int((model.classify(hidden_BLD).argmax(-1) == batch.labels).sum())  # pyright: ignore[reportCallIssue]
    return right
