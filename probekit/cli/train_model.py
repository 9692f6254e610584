"""`probekit train-model`: train the tiny model of a synthetic world."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from probekit.cli import console, options
from probekit.errors import ResumeMismatch, UsageError

if TYPE_CHECKING:
    from probekit.worlds.train import Trained

Name = Annotated[
    str | None,
    typer.Argument(
        metavar="NAME",
        help="counting-gpt, ranking-transformer, spans-bert, dialogue-gpt or brackets-gpt; or its task: counting, ...",
    ),
]
Steps = Annotated[int | None, typer.Option(metavar="N", help="Batches in all.  [default: the world's]")]
BatchSize = Annotated[int | None, typer.Option(metavar="N", help="Examples a batch.  [default: the world's]")]
LearningRate = Annotated[float | None, typer.Option(metavar="RATE", help="At its peak.  [default: the world's]")]
WarmUpSteps = Annotated[int | None, typer.Option(metavar="N", help="Steps until the peak.  [default: the world's]")]
Seed = Annotated[int | None, typer.Option(metavar="N", help="Of weights and batches.  [default: the world's]")]
Out = Annotated[Path | None, typer.Option(metavar="DIR", help="Where the model goes.  [default: models/NAME]")]


def train_model(
    name: Name = None,
    steps: Steps = None,
    batch_size: BatchSize = None,
    learning_rate: LearningRate = None,
    warm_up_steps: WarmUpSteps = None,
    seed: Seed = None,
    out: Out = None,
    json_: options.Json = False,
    quiet: options.Quiet = False,
    config: options.Config = None,
    set_: options.Set = None,
) -> None:
    """Train the model of a synthetic world, and judge it on held-out examples.

    Writes the model as a folder that --model takes, its loss curve, and a checkpoint: when it is interrupted, the same
    command goes on from there.

    \b
    Examples:
        probekit train-model counting-gpt
        probekit train-model --config configs/counting.yaml
    """
    if name is None:
        raise UsageError("which model? give its name, such as counting-gpt, or --config configs/counting.yaml")
    asked = {"steps": steps, "batch_size": batch_size, "learning_rate": learning_rate, "seed": seed}
    asked |= {"warm_up_steps": warm_up_steps}
    asked = {key: value for key, value in asked.items() if value is not None}
    from probekit.worlds import world as world_named

    world = world_named(name)
    usual = world.settings
    if steps is not None and warm_up_steps is None:
        asked["warm_up_steps"] = min(usual.warm_up_steps, max(steps, 0))
    replace(usual, **asked)  # what cannot be is said before anything is loaded
    from probekit.worlds.train import shortfall, train_world, training_shown

    world = replace(world, settings=replace(world.settings, **asked))
    folder = out or Path("models") / world.name
    _check_out(folder)
    with training_shown(world, folder, False if quiet else None) as progress:
        trained = train_world(world, folder, progress, checkpoints=folder)
    if not quiet and (short := shortfall(trained)):
        console.note(f"{short}; more --steps or another --learning-rate may help")
    from probekit.plots import save_loss_plot

    picture = save_loss_plot(trained.result.losses, world.name, folder)
    if json_:
        console.result_json(_facts(trained, folder, picture) | {"world": world.task, "settings": vars(world.settings)})
    elif quiet:
        console.result(folder)
    else:
        console.result(_summary(trained, folder, picture))


def _check_out(folder: Path) -> None:
    """A folder with a model that no checkpoint belongs to is somebody else's."""
    from probekit.models.training import CHECKPOINT

    if (folder / "config.json").exists() and not (folder / CHECKPOINT).exists():
        raise ResumeMismatch(
            f"{str(folder)!a} holds a model that was not trained there; give another folder (--out), or remove that one"
        )


def _facts(trained: "Trained", folder: Path, picture: Path) -> dict[str, Any]:
    return {
        "model": trained.model.name,
        "folder": str(folder),
        "picture": str(picture),
        "loss_nats": trained.result.mean_loss(),
        "resumed_from": trained.result.resumed_from,
        "held_out": trained.figures,
    }


def _summary(trained: "Trained", folder: Path, picture: Path) -> str:
    shares = {name: share for name, share in trained.figures.items() if name != "n"}
    held_out = ", ".join(f"{name} {share:.2%}" for name, share in shares.items())
    return "\n".join(
        [
            f"{trained.model.name}: {len(trained.result.losses)} steps, loss {trained.result.mean_loss():.4f} nats",
            f"On {trained.figures['n']:.0f} held-out examples: {held_out}",
            f"Model: {folder}",
            f"Loss:  {picture}",
        ]
    )
