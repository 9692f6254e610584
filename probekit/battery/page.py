"""The page of the documentation: each compiled model in words, then its truths and verdicts."""

import importlib
import inspect

from probekit.battery.result import KnownAnswers
from probekit.tables import markdown_table
from probekit.worlds.compiled import compiled_model

LEAD = """# Known answers

Is what probekit says true? On trained models nobody knows. So there are models whose weights are set by hand: what
is in their activations, at which layer and token, and whether the answer depends on it, follows from a program of a
page. The battery runs `extract`, `train-probe` and `causal` on all of them, and compares each verdict with the truth:

<!-- not run: takes a minute or two -->

    probekit known-answers

In Python, `pk.known_answers()`. Settings are the defaults; of the methods of `causal`, steering is left out, as it
decides no verdict, and heads are patched. This page is made by `probekit known-answers --repeats {repeats} --markdown`.

**{verdict}** The numbers are those of the first run, seed {seed}. The last column counts wrong verdicts in all
{repeats} runs, each with other texts. By design 2.5% of all curves of a variable that is not there call it read: that
is what a 95% band is.

## What is in the models

Together they have variables that are

- read and used;
- read, and not used by any answer;
- used where no linear probe can read them: an exclusive or, half of an angle, a product;
- moved to the token, then erased;
- carried by one head only;
- stored twice, so that the answer needs neither copy;
- in no word, and readable through a cue that the data correlates with them;
- numbers on a line, and a point on a circle.

Some models are causal and some bidirectional; some have layer norms (that change nothing) and some none.

- No variable lies on a coordinate: every residual stream is rotated by a random orthogonal matrix.
- Every text has *fillers*, words without a meaning that make about half of the variance or more.
- Before block 0 the last token is the same word in most models, so that nothing can be read or exchanged there.
- A model is a task, too: `probekit extract --model compiled-xor --dataset compiled-xor`.

## How to read the tables

- **truth** follows from the program. `tests/worlds/test_compiled.py` checks each with a forward of its own in float64,
  by least squares on thousands of new texts, and by exchanging activations of texts that differ in one variable.
- **verdict** is the [quadrant](causal.md#four-quadrants) that `probekit causal` prints. "Not shown to be used" is all
  that an edit can say of a variable that is not used.
- **erased**: is the answer lost when the variable is erased there? With two copies it is not, at a place that has
  one.
- **head**: does [patching](causal.md#activation-patching) this head move the answer by a tenth or more, and more than
  patches from unrelated texts? Heads that carry a part of the variable alone, such as one of the two words of an
  exclusive or, are left out: what a patch does there depends on the pairs.
- **without** a cue: is anything [read beyond it](surface.md#nuisance-columns)?
- **score** is the probe's on test; **effect** that of the exchange (or the erasure, or the patch), as a share of the
  full one; **placebos** the largest effect of a placebo. Where something is used, the effect is that along what shows
  it: the probe's direction, or else DAS, or else the full vector. Where the answer itself is in the stream, placebos of
  the activations' covariance reach far.
"""


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
