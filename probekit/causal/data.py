"""Causal results as data. Tables, files and pictures are made from these."""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Required, TypedDict, get_args

import numpy as np

from probekit.evaluation.results.meta import ActivationsRecord, Headline, LayerCount, RunMeta
from probekit.files.records import As, Count, Ends, Must, Share
from probekit.points import Place

Method = Literal["interchange", "erase", "steer"]
Quadrant = Literal["read and used", "read, not shown to be used", "used, not read", "neither"]


class BaseRecord(TypedDict):
    """The behaviour without edits; numbers have no probability."""

    logit_difference: float
    interval: Ends | None
    probability: float | None
    preferred: float


class NoShareRecord(TypedDict):
    """The gap of a method whose effects are shares of nothing."""

    split: str
    gap: float
    interval: Ends | None


class SelectedRecord(TypedDict, total=False):
    """What validation chose for a method."""

    place: Required[str | None]
    scale: float | None
    direction: str | None
    passed_over: str | None


class BaselineRecord(TypedDict):
    """What the probes' scores are compared with."""

    name: str
    value: float


class SearchRecord(TypedDict, total=False):
    """How far a search for a direction can be trusted."""

    control_recovery: float | None
    cosines: list[float] | None


class PatchedRecord(TypedDict, total=False):
    """Pairs that were patched, and rows that were left out."""

    pairs: Count
    unequal: Count
    same: Count
    more: Count


class CausalMeta(RunMeta, total=False):
    """What causal results record; see `CausalData`."""

    methods: Required[list[str]]
    task: str
    label: str
    probe: str
    headline: Headline
    n_layers: LayerCount
    point: str
    output: str | None
    position: str | int | list[str]
    answer_token: str
    at: str
    behaviour: str
    answers_label: str | None
    association: Share | None
    answers: dict[str, str] | None
    n: dict[str, Count]
    base: dict[str, BaseRecord]
    selected: dict[str, SelectedRecord]
    directions: dict[str, Any]
    baseline: BaselineRecord | None
    no_direction: list[str]
    resampled_by: str
    test_groups: Count | None
    left_out: dict[str, Count]
    no_share: Annotated[
        dict[str, NoShareRecord], Must("an entry for methods alone", lambda found: found.keys() <= {*get_args(Method)})
    ]
    files: dict[str, str]
    neutral: str | None
    das: dict[str, SearchRecord]
    patched: PatchedRecord
    activations: ActivationsRecord


@dataclass(frozen=True)
class Effect:
    """What one edit at one place does to the behaviour: means over the rows of a split.

    The headline is `effect`, a share of the logit difference:

    - interchange: of the way from the text's own logit difference to its counterpart's;
    - erase: of the text's own logit difference that is lost (1: none is left);
    - steer: of the gap between the logit differences of the two classes, towards the other class.

    0 is no effect; no value is clipped.

    Attributes:
        method: which edit.
        direction: whose direction or map: "probe", "mean-difference", "lda", "das", "leace"; "full vector", all
            activations of the counterpart; "full vector, own class", those of another text of the own class, a control;
            or a placebo ("random", "covariance", "shuffled labels", "label NAME").
        point: short name.
        layer: of the point.
        scale: of a steering vector, in standard deviations of the activations along it; None for other methods.
        split: "validation" or "test".
        n: rows.
        effect: the headline.
        interval: (low, high), 95%, resampled by pair or group; None for placebos.
        logit_difference: after the edit, of each text's own answer.
        flip_rate: share of the rows whose preferred answer changes.
        probability: mean of the own answer's, after the edit; None for placebos, whose two answers alone are computed.
        kl: mean KL divergence from the unedited next-token distribution, in nats; None for placebos.
        size: median size of the edit, relative to the activation's.
        placebo_band: (low, high) of the placebos' effects at this place; None where there are none.
        full_vector: whether the full vector's interchange at this place does more than the same with a text of the own
            class and answer: by enough to matter, and by a 95% interval on the same rows; None if it was not measured.
        p_value: against the placebos: (1 + how many are at least as large) / (1 + how many there are).
        p_adjusted: the same, corrected over layers and scales (largest effect of each placebo; Westfall and Young).
    """

    method: Method
    direction: str
    point: str
    layer: int | None
    scale: float | None
    split: str
    n: int
    effect: float
    interval: tuple[float, float] | None
    logit_difference: float
    flip_rate: float
    probability: float | None
    kl: float | None
    size: float
    placebo_band: tuple[float, float] | None = None
    full_vector: bool | None = None
    p_value: float | None = None
    p_adjusted: float | None = None

    @property
    def place(self) -> str:
        """Point and layer in one word: "resid_pre.5"."""
        return str(Place(self.point, self.layer))


@dataclass(frozen=True)
class CausalLayer:
    """One layer of the curve: what can be read there, and what is used.

    Attributes:
        point: short name.
        layer: of the point.
        score: the probe's headline on test.
        interval: of the score: its part of the simultaneous band of the curve, or without one its own interval.
        is_read: whether that lies above the baseline.
        is_used: method -> whether the effect along the method's direction shows use (`effect_shows_use`).
        quadrant: of `is_read`, and of whether `used_by` names a direction.
        collateral: method -> the loss on neutral text with the edit minus without, nats a token. The edit is done at
            all tokens. The interchanged coordinates are those of train rows; steering pushes every text from one class
            to another, each class in turn.
        completeness: method -> of the erasure, 1 minus what fresh probes on other rows can still read after it, above
            chance, as a share of what they read before. Of interchange and steering, how well probes of the unedited
            activations read the other class, as a share of how well they read the own one before. At this place, then
            at each later layer. Of several directions and scales those with the largest effect on validation here.
        selectivity: method -> what these probes of the other label sets still read, as a share of before; their mean.
        reliability: method -> harmonic mean of completeness (here) and selectivity (Canby et al. 2024).
        completeness_interval: method -> [low, high], 95%, of completeness here.
        angles: name of a direction -> its angle to the probe's, in degrees; "random 5%" is the smallest that 5% of
            random directions reach (Haar).
        directions: method -> the direction that validation chose here, that of the curve.
        used_by: the directions that say that the place is used: the first method's, and "das", the one that a search
            found on train rows, which needs no linear probe. "full vector" where nothing is read and neither of these
            shows use, but the exchange of all activations does.
    """

    point: str
    layer: int | None
    score: float
    interval: tuple[float, float] | None
    is_read: bool
    is_used: dict[str, bool]
    quadrant: Quadrant
    collateral: dict[str, float] = field(default_factory=dict)
    completeness: dict[str, list[float]] = field(default_factory=dict)
    selectivity: dict[str, float] = field(default_factory=dict)
    reliability: dict[str, float] = field(default_factory=dict)
    completeness_interval: dict[str, list[float]] = field(default_factory=dict)
    angles: dict[str, float] = field(default_factory=dict)
    directions: dict[str, str] = field(default_factory=dict)
    used_by: list[str] = field(default_factory=list)

    @property
    def place(self) -> str:
        """Point and layer in one word: "resid_pre.5"."""
        return str(Place(self.point, self.layer))


@dataclass(frozen=True, eq=False)
class PatchGrid:
    """Activation patching at one point: layer x position, or layer x head.

    Recovery is (patched - corrupted) / (clean - corrupted) of the mean logit difference over pairs: 0 the corrupted
    run, 1 the clean one; not clipped.

    Attributes:
        point: "resid_pre", "attn_out", "mlp_out" or "z".
        layers: of each line.
        columns: the token of each position, of the first pair ("clean/corrupted" where its texts differ); "-2", "-1"
            where texts differ in length; "answer token" where only these align; or the heads.
        by: "position" or "head".
        recovery: float64 [layers, columns].
        interval: (low, high), float64 [layers, columns, 2], resampled by pair.
        attribution: the fast approximation of `recovery` by one backward pass; None if it was not computed.
        within_placebo: whether a cell is inside the placebos' band, bool [layers, columns]; None without placebos.
        logit_differences: mean of the clean runs and of the corrupted ones, for the clean text's answer.
        n: pairs.
        n_exact: pairs that were patched one cell at a time; fewer than `n`: `recovery` is the attribution's.
        correlation: Pearson's, over the cells, of attribution and exact recovery of these pairs; None if unknown.
    """

    point: str
    layers: list[int]
    columns: list[str]
    by: Literal["position", "head"]
    recovery: np.ndarray
    interval: np.ndarray
    attribution: np.ndarray | None = None
    within_placebo: np.ndarray | None = None
    logit_differences: tuple[float, float] | None = None
    n: int | None = None
    n_exact: int | None = None
    correlation: float | None = None


@dataclass(frozen=True)
class ChecklistItem:
    """A reviewer's question, and what this run says to it; `is_answered` False says what to run."""

    question: str
    answer: str
    is_answered: bool


@dataclass(frozen=True)
class CausalData:
    """All that a causal run found.

    Attributes:
        layers: in the order of the curve; empty if no labelled task was given.
        effects: of every method, direction, place, scale and split, placebos included.
        grids: activation patching; empty if it was not asked for.
        checklist: the reviewer's questions.
        meta: JSON-able. "model", "task", "label", "headline" (metric of the scores), "n_layers", "point", "seed",
            "versions"; "answers" (class -> text of its token); "position" (token that is read), "answer_token" ("last
            token", "[MASK]" or another: after which the model answers) and "at" ("read" or "all": where edits act);
            "methods" (the first is the headline); "n" (split -> rows);
            "behaviour" (the number that is measured, where labels are numbers);
            "left_out" (split -> rows without a counterpart);
            "no_share" (method -> the gap that does not differ from 0, so that its effects are nan);
            "base" (split -> {"logit_difference", "interval", "probability", "preferred" (share of rows that prefer
            their own answer)}), the behaviour without edits; "selected" (method -> {"place", "scale", "direction",
            "passed_over"}, chosen on validation; "passed_over" is the output of the last block where it has the largest
            effect and is not chosen, else None); "baseline" ({"name", "value"}, what scores are compared with);
            "no_direction" (places where the class means do not differ, so that no edit of the label changes anything);
            "resampled_by" ("group", "pair" or "row"); "neutral" (the text of the collateral loss);
            "patched" ("pairs", rows left out, and "varied": positions whose word differs by pair). All but "model" and
            "methods" may be missing.
    """

    layers: list[CausalLayer]
    effects: list[Effect]
    grids: list[PatchGrid]
    checklist: list[ChecklistItem]
    meta: Annotated[dict[str, Any], As(CausalMeta)]
