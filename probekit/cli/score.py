"""`probekit score`: what a trained probe gives for new texts."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probekit.cli import console
from probekit.cli.derive import command
from probekit.cli.extract import DATASET, MODEL
from probekit.cli.fields import Output, required
from probekit.errors import UsageError
from probekit.options import ScoreOptions, TaskOptions
from probekit.options.option import option
from probekit.options.picture import PictureOptions
from probekit.options.score import ProbeDeviceOptions, TextOptions
from probekit.text import counted

if TYPE_CHECKING:
    from probekit.evaluation import ProbeResults
    from probekit.models.base import LanguageModel
    from probekit.scoring.rows import ScoreRows
    from probekit.scoring.score import Scoring
    from probekit.tasks import Task

ORDER = """
    probe model dataset text tokens fpr out
    text_column messages_column id_column base_rate fpr_of span_column columns header data_format on_bad_row
    chat_template any_model picture title no_title width format batch_tokens device dtype revision via device_map
    quantize
"""


@dataclass(frozen=True, kw_only=True)
class ScoreJob(Output):
    """The probe, the model, the texts, and where the scores go."""

    probe: str = required(
        "A folder of results, and a place in it; without one the best. Of several curves LABEL/POINT.LAYER.",
        "RESULTS[:PLACE]",
    )
    model: str = required(MODEL, "NAME|FOLDER")
    dataset: str | None = option(None, f"The texts; labels are not needed: {DATASET}", metavar="NAME|PATH")
    text: list[str] | None = option(
        None,
        "A text; may be repeated. For a probe of chats, the message of a user.",
        metavar="TEXT",
        repeats=True,
    )
    out: Path | None = option(
        None, "File of the scores: .csv, .jsonl or .parquet.  [default: a table on stdout]", metavar="FILE"
    )
    picture: Path | None = option(
        None, "Draw the scores below those of the test rows by class; for two classes or one number.", metavar="PATH"
    )


@command(ORDER)
def score(
    job: ScoreJob, where: ProbeDeviceOptions, data: TextOptions, options: ScoreOptions, picture: PictureOptions
) -> None:
    """Score new texts with a trained probe.

    The model runs as it did for the probe: same tokens, BOS, chat template and type. Nothing is kept but the scores.
    Probabilities are calibrated on the validation rows of the results. Texts far from the training activations are
    marked as unusual.

    \b
    Examples:
        probekit score --probe runs/STORE/results/label-resid_pre-logistic --model gpt2 --text "The sky is green."
        probekit score --probe RESULTS:resid_pre.5 --model gpt2 --dataset new.csv --fpr 0.01 --out scores.csv
        probekit score --probe RESULTS --model gpt2 --dataset new.csv --fpr 0.01 --base-rate 0.001
        probekit score --probe RESULTS --model gpt2 --text "The sky is green." --tokens
    """
    if job.dataset is None and not job.text:
        raise UsageError("give either --dataset with a file of texts, or --text with a text")
    from probekit.scoring.find import find_results, split_name
    from probekit.scoring.write import check_table_file

    if job.out is not None:
        check_table_file(job.out)
    console.hush_downloads(job.quiet)
    results, place = find_results(*split_name(job.probe))
    from probekit.scoring.probe import probe_of

    known = probe_of(results, place, options)  # before the texts and the model are loaded
    if job.picture is not None:
        from probekit.plots.scores import check_scores_picture

        check_scores_picture(results, known.place)
    task, model = _load(job, where, data, results)
    from probekit.scoring.score import plan_scoring

    options = replace(options, place=place, on_bad_row=data.on_bad_row, progress=console.bars(job.quiet))
    scoring = plan_scoring(results, model, task, options)
    if job.out is not None:
        _write(job, job.out, scoring, results, picture)
    else:
        _show(job, scoring, results, picture)


def _load(
    job: ScoreJob, where: ProbeDeviceOptions, data: TextOptions, results: "ProbeResults"
) -> "tuple[Task, LanguageModel]":
    """The texts, and the model as the probe's activations were computed; its name is looked up first."""
    from probekit.models.load import check_model, load_model
    from probekit.tasks.load import load_texts, typed_texts

    origin, reading = results.meta.get("activations", {}), results.meta.get("reading") or {}
    dtype = where.dtype or origin.get("compute_dtype") or "float32"
    chosen = {"via": origin.get("via", where.via), "quantize": where.quantize or origin.get("quantize")}
    where = replace(where, dtype=dtype, **chosen)
    check_model(job.model, where)
    keep_blanks = bool(reading.get("keep_blanks"))
    if job.text:
        typed = job.text if keep_blanks else [text.rstrip() for text in job.text]
        task = typed_texts(typed, as_chats=bool(reading.get("chat")))
        if task.chats is not None and not job.quiet:
            console.note("the probe was trained on chats: each --text is taken as the message of a user")
    else:
        task = load_texts(job.dataset, TaskOptions(**vars(data), keep_blanks=keep_blanks))
    return task, load_model(job.model, **vars(where), progress=console.bars(job.quiet))


def _write(job: ScoreJob, out: Path, scoring: "Scoring", results: "ProbeResults", picture: PictureOptions) -> None:
    """Write the scores as they come; for a picture they are kept too."""
    from probekit.scoring.rows import ScoreTally
    from probekit.scoring.score import score_parts, scoring_notes
    from probekit.scoring.write import write_scores

    tally, kept = ScoreTally(), list["ScoreRows"]()

    def parts() -> "Iterator[ScoreRows]":
        for part in tally.each(score_parts(scoring)):
            kept.extend([part] * (job.picture is not None))
            yield part

    try:
        write_scores(out, parts())
    except KeyboardInterrupt:
        unit = "token" if scoring.by_token else "text"
        raise KeyboardInterrupt(
            f"{counted(tally.rows, unit)} scored, and nothing was written to {out}; run the same command again"
        ) from None
    _draw(job, kept, scoring, results, picture)
    body = {"out": str(out), **vars(tally), **scoring.meta}
    console.answer(job, lambda: body, out, scoring_notes(scoring, tally))


def _show(job: ScoreJob, scoring: "Scoring", results: "ProbeResults", picture: PictureOptions) -> None:
    from probekit.scoring.results import Scores
    from probekit.scoring.rows import ScoreTally, joined_rows, score_columns
    from probekit.scoring.score import score_parts, scoring_notes
    from probekit.scoring.table import MOST_ROWS, scores_table

    tally = ScoreTally()
    with console.interrupt_says("nothing was written; run the same command again"):
        parts = list(tally.each(score_parts(scoring)))
    _draw(job, parts, scoring, results, picture)
    found = Scores(**joined_rows(parts, scoring.meta))

    def body() -> dict[str, Any]:
        columns = score_columns(found)
        rows = zip(*(values.tolist() for values in columns.values()), strict=True)
        return {**vars(tally), **scoring.meta, "scores": [dict(zip(columns, row, strict=True)) for row in rows]}

    console.answer(job, body, "\n".join(scores_table(found)))
    if job.json or job.quiet:
        return
    console.note(scoring_notes(scoring, tally))
    if len(found) > MOST_ROWS:
        console.note(f"{counted(MOST_ROWS, 'row')} of {len(found):,} are shown; --out scores.csv writes all of them")


def _draw(
    job: ScoreJob, parts: "list[ScoreRows]", scoring: "Scoring", results: "ProbeResults", picture: PictureOptions
) -> None:
    """Draw the scores if a picture is wanted."""
    if job.picture is None:
        return
    from probekit.plots import save_scores_plot
    from probekit.scoring.results import Scores
    from probekit.scoring.rows import joined_rows

    found = Scores(**joined_rows(parts, scoring.meta))
    drawn = save_scores_plot(results, found, job.picture, **vars(picture))
    if not job.quiet and not job.json:
        console.note(f"picture: {drawn}")
