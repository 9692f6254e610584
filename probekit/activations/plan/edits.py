"""Check the edits of an extraction against what it runs and keeps."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import torch

from probekit.activations.plan.places import is_reached, width_of
from probekit.activations.plan.token_ids import Sequences
from probekit.errors import UsageError
from probekit.interventions import (
    Edits,
    TextTokens,
    check_edits,
    check_positions,
    check_width,
    edit_rows,
    is_identity,
    tokens_at,
)
from probekit.models.base import LanguageModel
from probekit.options import ExtractOptions
from probekit.points import Place
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
        place = Place.of(name)
        check_width(edit, name, width_of(model, place))
        if (n := edit_rows(edit)) not in (None, n_examples):
            raise UsageError(
                f"the edit at {place} has tensors for {counted(n or 0, 'example')}, and the task has "
                f"{n_examples:,}; give one row for each example"
            )
        of_source = stack == "decoder" and place[0].startswith("encoder.")
        if of_source and options.edit_positions == "read" and edit.positions is None:
            raise UsageError(
                f"the tokens that are read are the decoder's, and {place} is the encoder's; edit all its "
                'tokens (edit_positions="all")'
            )
        if not of_source and not is_reached(place, stack, places):
            raise UsageError(
                f"the edit at {place} comes after everything that is kept, and changes nothing; keep later "
                "layers, or leave it out"
            )
    each = [edit for _, edit in pairs if not is_identity(edit)]
    has_rows = any(edit_rows(edit) is not None for edit in each)
    of_text = bool(each) and (
        has_rows or options.edit_positions == "read" or any(edit.positions is not None for edit in each)
    )
    return replace(options, share=options.share and not of_text)


def check_edited_tokens(
    model: LanguageModel, edits: Edits | None, sequences: Sequences, sources: Sequences | None
) -> None:
    """Check that the texts have the positions of the edits that have their own.

    Raises:
        UsageError: a position outside a text, a mask or a list for another number of texts, or generated tokens.
    """
    for name, edit in () if edits is None else check_edits(model, edits):
        if edit.positions is None:
            continue
        texts = sources if sources is not None and name.startswith("encoder.") else sequences
        length_N, row_N = torch.from_numpy(np.array(texts.lengths)), torch.arange(len(texts))
        column_N0 = torch.empty(len(texts), 0, dtype=torch.long)
        positions = check_positions(edit.positions)
        if isinstance(positions, str) and positions == "generated":
            raise UsageError(
                f"the edit at {Place.of(name)} is for generated tokens, and extract writes none; "
                "give the whole texts, and the positions in them"
            )
        if not isinstance(positions, slice):
            tokens_at(positions, TextTokens(column_N0, length_N, row_N, len(texts), column_N0))
