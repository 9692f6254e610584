"""Check the edits of an extraction against what it runs and keeps."""

from collections.abc import Iterable

from probekit.activations.plan.places import is_reached, width_of
from probekit.errors import UsageError
from probekit.interventions import Edits, check_edits, check_width, edit_rows, is_identity
from probekit.models.base import LanguageModel
from probekit.points import Place, place_name, split_point
from probekit.text import counted


def check_planned_edits(
    model: LanguageModel, edits: Edits, at_read: bool, places: Iterable[Place], stack: str, n_examples: int
) -> None:
    """Check every edit before anything runs.

    Args:
        model: the model that will run.
        edits: the edits.
        at_read: whether they are done at the tokens that are read.
        places: what is kept.
        stack: whose points are kept: "encoder", "decoder" or "".
        n_examples: of the task.

    Raises:
        UsageError: an edit of another width, for another number of examples, or that changes nothing that is kept.
    """
    for name, edit in check_edits(model, edits):
        place = split_point(name)
        check_width(edit, name, width_of(model, place))
        if (n := edit_rows(edit)) not in (None, n_examples):
            raise UsageError(
                f"the edit at {place_name(place)} has tensors for {counted(n or 0, 'example')}, and the task has "
                f"{n_examples:,}; give one row for each example"
            )
        of_source = stack == "decoder" and place[0].startswith("encoder.")
        if of_source and at_read:
            raise UsageError(
                f"the tokens that are read are the decoder's, and {place_name(place)} is the encoder's; edit all its "
                'tokens (edit_positions="all")'
            )
        if not of_source and not is_reached(place, stack, places):
            raise UsageError(
                f"the edit at {place_name(place)} comes after everything that is kept, and changes nothing; keep later "
                "layers, or leave it out"
            )


def depends_on_text(edits: Edits | None, at_read: bool) -> bool:
    """Whether equal tokens after equal prefixes may be edited differently in different texts."""
    if edits is None:
        return False
    each = [edit for some in edits.values() for edit in (some if isinstance(some, list | tuple) else [some])]
    return any((at_read or edit_rows(edit) is not None) and not is_identity(edit) for edit in each)
