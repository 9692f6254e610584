"""`probekit known-answers`: are the tool's verdicts right where the truth is known?"""

from dataclasses import dataclass

from probekit.cli import console
from probekit.cli.derive import command
from probekit.cli.fields import Output
from probekit.errors import DataError, UsageError
from probekit.options.known_answers import KnownAnswersOptions
from probekit.options.option import OUTPUT, option


@dataclass(frozen=True, kw_only=True)
class KnownAnswersJob(Output):
    """How the result is printed."""

    markdown: bool = option(False, "Print the page of the documentation.", heading=OUTPUT)


@command("only train_texts seed repeats markdown")
def known_answers(job: KnownAnswersJob, options: KnownAnswersOptions) -> None:
    """Compare verdicts with the truth, on models made by hand.

    Runs extract, train-probe and causal, without steering and with patching, on transformers whose weights were written
    down: what is in them, where, and whether they use it, follows from their programs. Prints the truth of each
    variable and place next to the verdict. A wrong verdict gives exit code 3; with other texts (--seed) a few are wrong
    by chance, as 95% intervals are. No download; a minute or two.

    \b
    Examples:
        probekit known-answers
        probekit known-answers --only xor,copies --seed 3
        probekit known-answers --repeats 10        # how often each verdict is wrong
    """
    if job.json and job.markdown:
        raise UsageError("--json and --markdown are two forms of one result; give one")
    from probekit import battery

    with console.interrupt_says("nothing was saved, and nothing needs to be; run the same command again"):
        found = battery.known_answers(**vars(options), progress=console.bars(job.quiet))
    if job.json:
        console.result_json(found.as_dict())
    elif job.markdown:
        console.result(battery.markdown_page(found))
    else:
        console.result(found.verdict if job.quiet else found.describe())
    if found.wrong:
        raise DataError(found.verdict)
