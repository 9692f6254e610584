"""What results record of themselves: the keys of `meta` that are read again, with their types.

Other keys may stand beside them. A reader may rely on what is written here: `probekit.files.records` checks it when
results are loaded. What older versions did not write is not required.
"""

from typing import Annotated, Any, Literal, NotRequired, Required, TypedDict

from probekit.evaluation.scores.metrics import HEADLINES, METRICS
from probekit.files.records import INFINITE, As, Count, Ends, Must, Plain, Share
from probekit.points import is_point_name

MOST_LAYERS = 100_000  # of a model, and of the axis of a picture
NOT_SHARES = ("r2", "spearman", "mae", "brier")  # metrics that are no number from 0 to 1
CODE = ("bits", "uniform_bits", "prior_bits", "compression", "gain")


def _are_scores(metrics: dict[str, float]) -> bool:
    return all(name in NOT_SHARES or -1e-9 <= x <= 1 + 1e-9 for name, x in metrics.items() if name in METRICS)


def _are_rates(rates: dict[str, float]) -> bool:
    needed = {"fpr", "negatives", "least"}
    needed |= {f"{name}_{end}" for name in ("tpr", "test_fpr") if name in rates for end in ("low", "high")}
    return needed <= rates.keys() and all(0 <= x <= 1 for name, x in rates.items() if name[:3] in ("fpr", "tpr", "tes"))


def _is_code(code: dict[str, float]) -> bool:
    return all(code.get(name, 0.0) > 0 for name in CODE)


PointName = Annotated[str, Must("the name of a point", is_point_name)]  # it becomes a path
Layer = Annotated[int, Must("the number of a layer", lambda layer: 0 <= layer < MOST_LAYERS)]
LayerCount = Annotated[int, Must("the number of layers", lambda n: 1 <= n <= MOST_LAYERS)]
Penalty = Annotated[float, INFINITE, Must("a number above 0", lambda C: C > 0)]
Scores = Annotated[dict[str, float], Must("scores from 0 to 1", _are_scores)]
Loss = Annotated[float, Must("a loss, not below 0", lambda loss: loss >= 0)]
Cost = Annotated[float, Must("a mean number of tokens, not below 0", lambda tokens: tokens >= 0)]
Metrics = dict[str, Scores]
Headline = Annotated[str, Must(f"one of {', '.join(HEADLINES)}", lambda name: name in HEADLINES)]
Rates = Annotated[dict[str, float], Must("rates from 0 to 1 with their ends", _are_rates)]
Code = Annotated[dict[str, float], Must(f"{', '.join(CODE)}, each above 0", _is_code)]


class SavedPart(TypedDict):
    """A file of results, with its hash."""

    sha256: str


class _Lead(TypedDict):
    """How far the quoted score is ahead of a baseline."""

    baseline: str
    over: float
    interval: Ends | None


class _Optimism(TypedDict):
    """What selecting the layer on test would have claimed."""

    layer: str
    value: float
    over: float


class _Control(TypedDict, total=False):
    """The control task."""

    type: Required[str | None]
    draws: Required[Count]
    unit: str | None
    seen: Share
    ceiling: float


class _Alone(TypedDict):
    """The score of the nuisances alone."""

    value: float | None
    interval: Ends | None


class _Change(TypedDict):
    """How far a place changes without the nuisances."""

    place: str
    change: float
    interval: Ends | None


class _ProcedureChange(TypedDict):
    """How far the procedure of nested folds changes without the nuisances."""

    change: float
    interval: Ends | None


class _NuisanceRecord(TypedDict):
    """Columns that were regressed out."""

    names: list[str]
    alone: _Alone
    changes: list[_Change]
    procedure: NotRequired[_ProcedureChange]


class _OverPooled(TypedDict):
    """How far a probe over a sequence is ahead of one row for each text."""

    place: str | None
    value: float
    over: float
    interval: Ends | None


class _BlackBox(TypedDict):
    """How far the quoted score is ahead of a black box, what it costs, and how it was made; `reversed` is its AUROC."""

    over: float | None
    interval: Ends | None
    tokens: Cost | None
    total_tokens: Count | None
    calibrated_on: Count
    reversed: NotRequired[Share | None]
    record: dict[str, Any]


class _EnsembleRecord(TypedDict):
    """The members of the ensemble, of how many, and how far it is ahead of the quoted score."""

    members: list[str]
    of: Count
    over: float | None
    interval: Ends | None


class _Procedure(TypedDict):
    """The score of nested folds."""

    metrics: Scores
    intervals: dict[str, Ends]
    n: NotRequired[Count]
    chance: NotRequired[float | None]


class _TestLeak(TypedDict):
    """Test texts and rows that are in another split too."""

    texts: Count
    near: NotRequired[Count]
    of_texts: Count
    also_in: list[str]
    group_rows: Count
    of_rows: Count
    removed: bool


class _TextsCut(TypedDict):
    """Texts that were cut at the context."""

    texts: Count
    of: Count
    read: str


class _SplitAudit(TypedDict, total=False):
    """The audit of a split."""

    n: Required[Count]
    leaks: Count
    unit: str
    median_length: float | None
    classes: dict[str, Count]
    mean: float
    std: float


class _SharedTexts(TypedDict):
    """Texts of one split that are in another one."""

    exact: Count
    near: Count | None


class _Conflicts(TypedDict):
    """Texts with several labels."""

    texts: Count


class _Values(TypedDict):
    """What the audit found to differ between a split and train."""

    split: str
    what: str
    values: tuple[float, float]


# what differs -> the further entry that says of which class or label, or in which unit
_DIFFERENCES = {"length": "unit", "label": "class", "target": "label", "repeated texts": "split"}
_Difference = Annotated[
    _Values,
    Must(
        f"one of {', '.join(_DIFFERENCES)}, with its unit, class or label",
        lambda one: one["what"] in _DIFFERENCES and isinstance(one.get(_DIFFERENCES[one["what"]]), str),
    ),
]


class _AuditRecord(TypedDict, total=False):
    """The audit of the data."""

    lines: list[str]
    differences: list[_Difference]
    findings: list[str]
    splits: dict[str, _SplitAudit]
    shared: dict[str, _SharedTexts]
    conflicts: _Conflicts
    near: float | None
    no_texts: bool


class _Chat(TypedDict, total=False):
    """How chats became texts."""

    template: Any
    add_generation_prompt: bool


class _Reading(TypedDict, total=False):
    """How texts were read."""

    selection: str | int | list[str]
    each_token: bool
    words: bool
    generated: bool
    keep_blanks: bool
    skip_special: bool
    on_long: str | None
    chat: _Chat | None
    places: list[tuple[PointName, Layer | None]] | None


class BestLatent(TypedDict):
    """A latent, how well it does alone on test, and where it is strongest."""

    latent: Count
    score: float
    interval: list[float] | None
    active: Share
    rows: list[tuple[str, float]]


class _BestLatents(TypedDict):
    place: str
    latents: list[BestLatent]


class ActivationsRecord(TypedDict, total=False):
    """The activations that were probed."""

    model_fingerprint: str | None
    tokenizer_fingerprint: str | None
    task_fingerprint: str | None
    source_fingerprint: str | None
    verified: Any
    dtype: str
    compute_dtype: str
    bos: bool | None
    revision: str | None
    edited: str | None
    edit_positions: Any
    via: str | None
    quantize: str | None


class _Estimator(TypedDict, total=False):
    """The class of the probe."""

    parameters: dict[str, Any]
    certified: Required[bool]
    saved: Required[bool]
    state: str


class _IntervalRecord(TypedDict, total=False):
    """How intervals were made."""

    resamples: Required[Count]
    unit: Required[str]
    level: float


class _NamedProbe(TypedDict):
    """A probe with parameters, as a command named it."""

    name: str


Asked = dict[str, Plain | list[Plain] | list[_NamedProbe | list[Plain]] | _NamedProbe]
"""The options of a command."""


class RunMeta(TypedDict, total=False):
    """What every kind of results records."""

    model: Required[str]
    seed: int | None
    versions: dict[str, str]
    asked: Asked
    interval: _IntervalRecord | None


class Within(TypedDict):
    """The value of a column that all rows of a curve have, and the values that have no curve."""

    column: str
    value: str
    left_out: dict[str, str]


class _CurveMeta(RunMeta, total=False):
    """What results of probes record."""

    task: Required[str]
    label: Required[str]
    classes: Required[list[str]]
    n_classes: Required[Count]
    point: Required[PointName]
    probe: Required[str]
    position: Required[str | int | list[str]]
    headline: Required[Headline]
    n: Required[dict[str, Count]]
    n_layers: Required[LayerCount]
    within: Within
    output: str | None
    C: list[Penalty | str | None] | None
    metric: str | None
    chosen_on: str | None
    n_texts: dict[str, Count] | None
    test_groups: Count | None
    test_rarest: Count | None
    unlabelled: Count
    unread: Count
    folds: Annotated[int, Must("2 folds or more", lambda n: n >= 2)] | None
    drop_leaks: bool
    no_texts: bool
    counts: dict[str, dict[str, Count]]
    left_out: list[str]
    p_max: Share | None
    estimator: _Estimator
    control: _Control | None
    audit: _AuditRecord | None
    test_leak: _TestLeak | None
    texts_cut: _TextsCut | None
    reading: _Reading | None
    activations: ActivationsRecord
    nuisance: _NuisanceRecord
    pooled: dict[str, _OverPooled]
    best_latents: _BestLatents
    black_boxes: dict[str, _BlackBox]
    ensemble: _EnsembleRecord
    procedure: _Procedure | None
    lead: _Lead | None
    optimism: _Optimism | None


class _OverRandom(TypedDict):
    """What random weights score at the cells selected for them, and how far the quoted score is ahead of it."""

    value: float
    over: float | None
    interval: Ends | None
    n: Count
    cell: NotRequired[list[str]]


class _GridMeta(_CurveMeta, total=False):
    """What results by position or by head record."""

    by: Required[Literal["position", "position-from-end", "head"]]
    least_texts: Required[Count]
    kept: Required[list[str]]
    few_texts: Required[dict[str, str]]
    no_p_values: Required[str | None]
    above_chance: Share
    key_value: bool
    over_random: _OverRandom | None


class _ShiftRecord(TypedDict):
    """What is lost between values of a column."""

    column: str
    several: bool
    same: float | None
    others: float | None
    change: float | None
    interval: Ends | None
    n: NotRequired[dict[str, int]]


class _TransferMeta(RunMeta, total=False):
    """What results of transfer or of a shift record."""

    tasks: Required[list[str]]
    rows: list[str]
    task: str
    label: str
    within: Within
    labels: list[str]
    n: dict[str, Count] | list[dict[str, Count]]
    n_layers: LayerCount
    point: Required[str]
    probe: Required[str]
    position: Required[str | int | list[str]]
    headline: Required[Headline]
    chance: Required[float]
    majority: list[Share] | None
    negatives: NotRequired[list[Count] | None]
    C: Required[list[Penalty | str | None] | None]
    notes: Required[list[str]]
    shift: _ShiftRecord
    activations: ActivationsRecord | list[ActivationsRecord]


CurveRecord = Annotated[dict[str, Any], As(_CurveMeta)]
GridRecord = Annotated[dict[str, Any], As(_GridMeta)]
TransferRecord = Annotated[dict[str, Any], As(_TransferMeta)]
