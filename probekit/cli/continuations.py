"""`extract --generate`: the model continues the texts first, and the whole texts are then planned."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from probekit.cli import console
from probekit.cli.stores import make_store
from probekit.errors import ProbekitError
from probekit.files.remote.path import AnyPath
from probekit.options import ExtractArguments

NO_STOP = "Do not stop at any token; continue as far as the other options allow."

if TYPE_CHECKING:
    from probekit.activations import ExtractionPlan
    from probekit.models.base import LanguageModel
    from probekit.tasks import Task


def stops_of(given: Sequence[int | str] | None, no_stop: bool) -> Sequence[int | str] | None:
    """The stop tokens for `generation.stop_ids`: those of --stop, none with --no-stop, None for the model's own."""
    return [] if no_stop else given or None


def continued_plan(model: "LanguageModel", task: "Task", options: ExtractArguments, quiet: bool) -> "ExtractionPlan":
    """The plan of an extraction of texts that the model continues now, or has continued in an earlier run."""
    from probekit.activations import plan_extraction
    from probekit.activations.continuations.plan import of_continued, plan_continuations
    from probekit.activations.continuations.write import describe_continuations, folder_of, write_continuations

    plan = plan_continuations(model, task, options)
    folder = folder_of(plan, options.out)
    write = partial(write_continuations, plan, folder, console.bars(quiet))
    whole = make_store(describe_continuations(plan), write, partial(_saved, folder, len(task)), quiet)
    return plan_extraction(model, whole, of_continued(options))


def sketched_plan(
    model: "LanguageModel", task: "Task", options: ExtractArguments
) -> "tuple[ExtractionPlan, str, dict[str, Any]]":
    """The plan if every text is continued as far as it can be, and the continuations in words and in numbers."""
    from probekit.activations import plan_extraction
    from probekit.activations.continuations.plan import of_continued, plan_continuations
    from probekit.activations.continuations.write import (
        continuations_as_dict,
        describe_continuations,
        sketched_task,
        writing_seconds,
    )

    plan = plan_continuations(model, task, options)
    seconds = writing_seconds(plan)
    whole = plan_extraction(model, sketched_task(plan), of_continued(options))
    return whole, describe_continuations(plan, seconds), {**continuations_as_dict(plan), "seconds": seconds}


def _saved(folder: AnyPath, total: int) -> str:
    """How many texts were written and saved, and how to resume."""
    from probekit.activations.continuations.write import texts_written

    try:
        saved = texts_written(folder)
    except (ProbekitError, OSError):
        saved = 0
    if not saved:
        return f"no batch of texts was complete yet in {folder}; run the same command again"
    return f"saved what the model wrote after {saved:,} of {total:,} texts in {folder}; run the same command again"
