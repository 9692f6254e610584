"""The page of the documentation: each compiled model in words, then its truths and verdicts."""

import importlib
import inspect

from probekit.battery.result import KnownAnswers
from probekit.tables import markdown_table
from probekit.worlds.compiled import compiled_model

LEAD = """# Known answers

Is what probekit says true? On trained models nobody knows. So there are models whose weights were set by hand: what
is in their activations, at which layer and token, and whether the answer depends on it, follows from a program of a
page. The battery runs `extract`, `train-probe` and `causal` on all of them, at their default settings, and compares
each verdict with the truth:

<!-- not run: takes a minute -->

    probekit known-answers

In Python, `pk.known_answers()`. This page is made by `probekit known-answers --repeats {repeats} --markdown`.

**{verdict}** The numbers are those of seed {seed}; the last column counts wrong verdicts in all {repeats} repeats,
each with other texts. A verdict on a variable that is not there is wrong in 2.5% of all curves by design: that is
what a 95% band is.

## What is in the models

Together they have variables that are read and used; read and not used; used where no linear probe can read them (an
exclusive or, half of an angle, a product); moved and then erased; carried by one head only; stored twice, so that the
answer needs neither copy; and not there at all, but readable through a cue that the data correlates with them. Some
are numbers, on a line or on a circle. Some models are causal and some are bidirectional, some have layer norms (that
change nothing) and some none.

- No variable lies on a coordinate: every residual stream is rotated by a random orthogonal matrix.
- Every text has *fillers*, words without a meaning that make most of the variance.
- A model is a task, too: `probekit extract --model compiled-xor --dataset compiled-xor`.

## How to read the tables

- **truth** follows from the program; the file of each model says why, and `tests/worlds/compiled` proves it in exact
  arithmetic, on texts that no probe has seen.
- **verdict** is the [quadrant](causal.md#four-quadrants) that `probekit causal` prints. "Not shown to be used" is all
  that an edit can say of a variable that is not used.
- **erased**: is the answer lost when the variable is erased there? With two copies it is not, at a place that has
  one.
- **head**: does [patching](causal.md#activation-patching) this head move the answer more than patches from unrelated
  texts do? Heads that carry a part of the variable alone, such as one of the two words of an exclusive or, are left
  out: what a patch does there depends on the pairs.
- **without** a cue: is anything [read beyond it](surface.md#nuisance-columns)?
- **score** is the probe's on test, **effect** that of the exchange (or the erasure, or the patch), as a share of the
  full one, **placebos** the largest effect of a placebo."""


def markdown_page(found: KnownAnswers) -> str:
    """The page, in Markdown."""
    lead = LEAD.format(repeats=len(found.seeds), seed=found.seeds[0], verdict=found.verdict)
    header, *rows = found.rows()
    parts = [lead.rstrip()]
    for model in dict.fromkeys(row[0] for row in rows):
        own = [row[1:] for row in rows if row[0] == model]
        parts.append(f"## {model}\n\n{_about(model)}\n\n{markdown_table(header[1:], own)}\n\n{_why(model)}")
    return "\n\n".join(parts)


def _about(model: str) -> str:
    """The docstring of the model's file: its title, then the example as a block of code, then the rest."""
    text = inspect.getdoc(importlib.import_module(compiled_model(model).texts.__module__)) or ""
    title = text.removeprefix(f"`{model}`: ")
    return title[0].upper() + title[1:]


def _why(model: str) -> str:
    """Why each truth is one."""
    return "\n".join(f"- `{truth.label}`: {truth.why}" for truth in compiled_model(model).truths)
