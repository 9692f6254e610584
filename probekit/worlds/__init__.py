"""The synthetic worlds with known truth: their models' names, so that `load_model` finds them without torch."""

from pathlib import Path

from probekit.makers import MODEL_MAKERS

WORLD_MODELS = ("counting-gpt", "ranking-transformer", "spans-bert", "dialogue-gpt", "brackets-gpt")


def model_folder(name: str, weights: bool = True, progress: bool | None = None) -> Path:
    """The folder of a world's model, which is trained on first use; see `makers.ModelMaker`."""
    from probekit.models.worlds import folder_of, world  # torch and the tasks: only when a model is needed

    return folder_of(world(name), weights, progress)


MODEL_MAKERS.update(dict.fromkeys(WORLD_MODELS, model_folder))
