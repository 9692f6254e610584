"""A fitted probe with all that scoring new texts needs, taken from results."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from probekit.errors import DataError, ResumeMismatch, UsageError, nearest
from probekit.evaluation.results.data import LayerResult, ProbeData
from probekit.evaluation.results.spread import TrainingSpread
from probekit.interventions import record_of_edits
from probekit.models.base import LanguageModel
from probekit.options import ExtractOptions, ScoreOptions
from probekit.options.check import is_whole
from probekit.points import Place
from probekit.scoring.calibrate import Calibration, calibration_of
from probekit.scoring.encoded import applied_to_model
from probekit.scoring.threshold import ChosenThreshold, choose_threshold
from probekit.selections import ALL, PER_EXAMPLE
from probekit.tasks.base import Task
from probekit.tasks.fields import CHAT
from probekit.text import listed, printable

OLDER = (
    "these results are of an older version, which recorded neither the chat template nor --skip-special: the defaults "
    "are taken"
)


@dataclass(frozen=True, eq=False)
class ScoringProbe:
    """A fitted probe, where it reads, and what its scores mean.

    Attributes:
        probe: the fitted probe.
        place: "resid_pre.5".
        places: whose activations it reads, one or several side by side.
        selection: the tokens that it reads.
        each_token: whether it was trained on every selected token, so that each is a row.
        classes: names; none for a regression.
        calibration: what its scores mean as probabilities; None without validation rows, and for a regression.
        threshold: for the wanted false-positive rate, if one is wanted.
        spread: of its training activations; None where the results do not have it.
        reading: how texts were read, as the results record it.
        origin: of the activations: fingerprints, types, edits.
    """

    probe: Any
    place: str
    places: list[Place]
    selection: str
    each_token: bool
    classes: list[str]
    calibration: Calibration | None
    threshold: ChosenThreshold | None
    spread: TrainingSpread | None
    reading: dict[str, Any]
    origin: dict[str, Any]


def probe_of(results: ProbeData, place: str | None, options: ScoreOptions | None = None) -> ScoringProbe:
    """The probe of a place of results, None is the place that validation chose.

    Args:
        results: of the probe.
        place: "resid_pre.5"; None is the best.
        options: which threshold is chosen, and the autoencoder of a probe of latents.

    Raises:
        UsageError: no such place; none that was chosen; a rate that validation cannot hold.
        DataError: the probe was not saved, or read a token that new texts do not have.
    """
    options = options or ScoreOptions()
    layer = results.best if place is None else result_at(results, place)
    meta, reading = results.meta, results.meta.get("reading") or {}
    if layer.probe is None:
        raise DataError(
            f"the results hold no fitted probe of {layer.place}, as those of other packages are not saved; train one "
            "of probekit's own probes, or score in the Python session that trained it"
        )
    selection = str(reading.get("selection", meta["position"]))
    if selection == PER_EXAMPLE:
        raise DataError("the probe was trained on a token of each text's own, which new texts do not name; train again")
    if reading.get("generated"):
        raise DataError(
            "the probe was trained on texts that the model continued itself; write them first (extract --generate, "
            "Monitor in Python)"
        )
    spread = results.spread if results.spread is not None and results.spread.place == layer.place else None
    joined = reading.get("places")
    probe, read = applied_to_model(results, layer.place, layer.probe, options.sae)
    each_token, threshold = is_each_token(meta, layer.probe), None
    if options.fpr is not None:
        how = options.fpr, options.base_rate, each_token, options.fpr_of
        threshold = choose_threshold(results.rows, layer.place, *how)
    return ScoringProbe(
        probe=probe,
        place=layer.place,
        places=[Place.of(read)] if joined is None else [Place(point, number) for point, number in joined],
        selection=selection,
        each_token=each_token,
        classes=list(meta["classes"]),
        calibration=calibration_of(results.rows, layer.place, layer.probe.log_odds),
        threshold=threshold,
        spread=spread,
        reading=reading,
        origin=meta.get("activations", {}),
    )


def is_each_token(meta: dict[str, Any], probe: Any) -> bool:
    """Whether the rows of results are tokens, which older ones do not record."""
    reading = meta.get("reading") or {}
    selection = str(reading.get("selection", meta["position"]))
    return bool(reading.get("each_token", selection == ALL and not probe.of_sequences))


def result_at(results: ProbeData, place: Any) -> LayerResult:
    """The result of a place: "resid_pre.5", ("resid_pre", 5), or its layer alone where the curve has it once.

    Raises:
        UsageError: no such place.
    """
    if not isinstance(place, str):
        place = str(place) if is_whole(place) else str(Place.of(place))
    known = {layer.place: layer for layer in results.layers}
    short = {name.removeprefix("encoder."): layer for name, layer in known.items()}
    of_point = {str(layer.layer): layer for layer in results.layers if layer.point == results.meta["point"]}
    found = known.get(place) or short.get(place) or of_point.get(place)
    if found is None:
        raise UsageError(f"no probe of {place!a} in these results; {nearest(place, known)}")
    return found


def compare_models(probe: ScoringProbe, model: LanguageModel, options: ScoreOptions, with_texts: bool) -> list[str]:
    """Compare a model, its tokenizer and the edits with those of the probe's training.

    Args:
        probe: the probe.
        model: the model that will run.
        options: with the edits, and whether another model is allowed.
        with_texts: whether the inputs are texts, which the tokenizer reads.

    Returns:
        Notes: what differs, where that is allowed, and what could not be compared.

    Raises:
        ResumeMismatch: something differs, and `any_model` is not set.
    """
    different, notes = differences(probe.origin, model, options.edits, with_texts)
    notes += [] if probe.reading else [OLDER]
    if different and not options.any_model:
        raise ResumeMismatch(
            f"{printable(model.name)} is not the model that the probe was trained on: different {listed(different)}"
            "; give that model, or score with this one all the same (--any-model, any_model=True)"
        )
    notes += [f"not the model that the probe was trained on: different {listed(different)}"] if different else []
    return notes


def differences(
    origin: dict[str, Any], model: LanguageModel, edits: Any, with_texts: bool
) -> tuple[list[str], list[str]]:
    """What differs from the model of the probe's training, and what could not be compared.

    Args:
        origin: the record of the activations that the probe was trained on.
        model: the model that will run.
        edits: those that it will run under.
        with_texts: whether the inputs are texts, which the tokenizer reads.
    """
    different, notes = model_differences(origin, model, with_texts)
    record = None if edits is None else record_of_edits(model, edits)
    if record != origin.get("edits"):
        trained = origin.get("edited")
        different.append(f"edits (trained {f'under: {trained}' if trained else 'without any'}; edits= in Python)")
    return different, notes


def model_differences(origin: dict[str, Any], model: LanguageModel, with_texts: bool) -> tuple[list[str], list[str]]:
    """What of a model differs from the record `origin` of activations, and what could not be compared.

    Args:
        origin: `meta["activations"]` of results.
        model: the model that will run.
        with_texts: whether its tokenizer is compared too.

    Returns:
        The first difference, such as "weights", or none; and a note for each entry that the record lacks.
    """
    own: dict[str, tuple[str, Callable[[], Any]]] = {
        "compute_dtype": ("type", lambda: str(model.dtype).removeprefix("torch.")),
        "model_fingerprint": ("weights", model.fingerprint),
    }
    if with_texts and model.tokenizer is not None:
        tokenizer = model.tokenizer
        own["tokenizer_fingerprint"] = "tokenizer", lambda: tokenizer.fingerprint
    different, notes = [], []
    for key, (what, value) in own.items():
        if origin.get(key) is None:
            notes.append(f"the results do not record the model's {what}, so it was not compared")
        elif not different and value() != origin[key]:
            more = f" (trained in {origin[key]}, loaded in {value()}: --dtype)" if what == "type" else ""
            different.append(f"{what}{more}")
    return different, notes


def extraction_of(probe: ScoringProbe, options: ScoreOptions, tokens: bool) -> ExtractOptions:
    """The options of the extraction that reads texts as for training; with `tokens`, every token of them."""
    as_trained = options_as_trained(probe.reading, probe.origin)
    as_trained["skip_special"] &= not tokens
    points = list(dict.fromkeys(point for point, _ in probe.places))
    layers = sorted({layer for _, layer in probe.places if layer is not None})
    return ExtractOptions(
        points=points,
        layers=layers or "all",
        position=ALL if tokens else probe.selection,
        device=options.device,
        batch_tokens=options.batch_tokens,
        on_bad_row=options.on_bad_row,
        chat_template=options.chat_template,
        edits=options.edits,
        **as_trained,
    )


def options_as_trained(reading: dict[str, Any], origin: dict[str, Any]) -> dict[str, Any]:
    """Options of the extraction for training that new texts repeat, by name; defaults where nothing is recorded."""
    return {
        "skip_special": bool(reading.get("skip_special")),
        "dtype": origin.get("dtype") or "float32",
        "bos": origin.get("bos"),
        "on_long": reading.get("on_long") or "cut",
        "add_generation_prompt": bool((reading.get("chat") or {}).get("add_generation_prompt")),
        "edit_positions": origin.get("edit_positions") or "all",
    }


def template_difference(reading: dict[str, Any], task: Task) -> str | None:
    """What is wrong where chats became texts by another template than those of the probe's training."""
    trained, own = (reading.get("chat") or {}).get("template"), task.info.get(CHAT, {})
    if trained is None or own.get("template") == trained:
        return None
    return (
        f"the chat template of {own.get('from')!a} is not the one that the probe was trained with; give that one "
        "(--chat-template, chat_template=)"
    )
