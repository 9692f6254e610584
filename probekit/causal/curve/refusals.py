"""What the record of probes says against a causal run; nothing here needs torch."""

from collections.abc import Mapping, Sequence
from typing import Any

from probekit.errors import DataError, UsageError
from probekit.text import listed

_NEEDED = ("label", "classes", "n_classes", "n", "position", "point", "probe", "seed")


def check_curve(meta: Mapping[str, Any]) -> None:
    """Check the record of a curve: activations of the model as it is, classes, splits, one token of each text.

    Raises:
        UsageError: an edited model, imported activations, nested folds, no validation rows, several tokens.
        DataError: an incomplete record.
    """
    if missing := [name for name in _NEEDED if name not in meta]:
        raise DataError(f"the results lack {missing[0]!a}; train the probes again")
    _check_activations(meta.get("activations", {}))
    if meta.get("folds"):
        raise UsageError("these probes were trained with nested folds, so no row is new to them; train without --folds")
    if within := meta.get("within"):
        raise UsageError(
            f"these probes are of the rows with {within['column']!a:.40} {within['value']!a:.40} alone, and causal "
            "edits rows of all values; train without --within"
        )
    if "validation" not in meta["n"]:
        raise UsageError("these results have no validation rows to choose the layer on; train with several values of C")
    if meta["position"] in ("all", "mean"):
        raise UsageError(
            f"the probes read {meta['position']} tokens, and an edit needs one token of each text; train with "
            "--position last"
        )


def _check_activations(known: Mapping[str, Any]) -> None:
    """Refuse activations that the model does not have where it runs unedited."""
    if known.get("edits"):
        raise UsageError(
            f"the activations are of a model under edits ({known.get('edited', 'extract(edits=...)')!s:.100}), and "
            "causal compares with the unedited one; take a store without edits"
        )
    if known and "model_fingerprint" not in known:
        raise UsageError(
            "the activations were imported, and causal runs the model that they are of; make a store with probekit "
            "extract"
        )


def check_numbers(label: str, options: Any) -> None:
    """Raise a UsageError unless the options are for a label of numbers."""
    if options.answers is None and options.readout is None:
        raise UsageError(
            f"{label!a} holds numbers: name the words of numbers that the model may answer, such as --answers 0,1,2,3 "
            "(in Python also a linear readout=)"
        )
    if options.answers_label is not None:
        raise UsageError(f"{label!a} holds numbers, whose answers are numbers; leave --answers-label out")
    if "patch" in options.method_names:
        raise UsageError(
            f"patch compares answers of two classes, and {label!a} holds numbers; leave it out of --method"
        )


def check_answers(label: str, classes: Sequence[str], answers: Sequence[str | int] | None) -> None:
    """Raise a UsageError unless there is one answer for each class."""
    names = listed([ascii(name) for name in classes])
    if answers is None:
        raise UsageError(
            f"name the next word of each class of {label!a}, such as --answers is,are; the classes are {names}"
        )
    if len(answers) != len(classes):
        raise UsageError(
            f"expected --answers with a word for each of the {len(classes)} classes {names}, got {len(answers)}; give "
            "them in this order"
        )
