"""Edits: changes of the activations at a point while the model runs."""

from probekit.interventions.attach import (
    check_edits,
    editing,
    editing_at,
    editing_texts,
    edits_in_words,
    one_place_in_words,
    record_of_edits,
)
from probekit.interventions.edits import (
    Add,
    Affine,
    Edit,
    Edits,
    ProjectOut,
    Replace,
    Swap,
    apply_edit,
    check_width,
    edit_rows,
    is_identity,
)
from probekit.interventions.make import add, affine, project_out, replace, swap
from probekit.interventions.where import Positions, TextTokens, Writing, check_positions, texts_in, tokens_at

__all__ = [
    "Add",
    "Affine",
    "Edit",
    "Edits",
    "Positions",
    "ProjectOut",
    "Replace",
    "Swap",
    "TextTokens",
    "Writing",
    "add",
    "affine",
    "apply_edit",
    "check_edits",
    "check_positions",
    "check_width",
    "edit_rows",
    "editing",
    "editing_at",
    "editing_texts",
    "edits_in_words",
    "is_identity",
    "one_place_in_words",
    "project_out",
    "record_of_edits",
    "replace",
    "swap",
    "texts_in",
    "tokens_at",
]
