"""Check the edits of an extraction against what it runs and keeps."""

from collections.abc import Iterable
from dataclasses import replace

from probekit.activations.plan.places import is_reached, width_of
from probekit.errors import UsageError
from probekit.interventions import check_edits, check_width, edit_rows, is_identity
from probekit.models.base import LanguageModel
from probekit.options import ExtractOptions
from probekit.points import Place, place_name, split_point
from probekit.text import counted


def check_planned_edits(
    model: LanguageModel, options: ExtractOptions, places: Iterable[Place], stack: str, n_examples: int
) -> ExtractOptions:
    """Check every edit before anything runs.

    Args:
        model: the model that will run.
        options: with the edits.
        places: whose activations are kept.
        stack: whose points are kept: "encoder", "decoder" or "".
        n_examples: of the task.

    Returns:
        The options; nothing is shared if equal tokens after equal prefixes may be edited differently in two texts.

    Raises:
        UsageError: an edit of another width, for another number of examples, or that changes nothing that is kept.
    """
    if options.edits is None:
        return options
    pairs = check_edits(model, options.edits)
    if not pairs:
        return replace(options, edits=None)
    for name, edit in pairs:
        place = split_point(name)
        check_width(edit, name, width_of(model, place))
        if (n := edit_rows(edit)) not in (None, n_examples):
            raise UsageError(
                f"the edit at {place_name(place)} has tensors for {counted(n or 0, 'example')}, and the task has "
                f"{n_examples:,}; give one row for each example"
            )
        of_source = stack == "decoder" and place[0].startswith("encoder.")
        if of_source and options.edit_positions == "read":
            raise UsageError(
                f"the tokens that are read are the decoder's, and {place_name(place)} is the encoder's; edit all its "
                'tokens (edit_positions="all")'
            )
        if not of_source and not is_reached(place, stack, places):
            raise UsageError(
                f"the edit at {place_name(place)} comes after everything that is kept, and changes nothing; keep later "
                "layers, or leave it out"
            )
    each = [edit for _, edit in pairs if not is_identity(edit)]
    has_rows = any(edit_rows(edit) is not None for edit in each)
    of_text = bool(each) and (has_rows or options.edit_positions == "read")
    return replace(options, share=options.share and not of_text)
