"""What a quick look leaves out: whatever takes long, unless it was asked for by name."""

from probekit.evaluation.request import Request
from probekit.options import ProbeOptions
from probekit.tasks.base import Task

NO_P_VALUES = "a quick look leaves them out"


def reads_texts(task: Task) -> bool:
    """Whether a bag of words and the length are baselines: each example is one text."""
    return task.has_texts and task.text_of is None and task.words is None


def searches_near_duplicates(options: ProbeOptions) -> bool:
    """Whether splits are searched for near-duplicates; a quick look does so only where leaks are dropped."""
    return not options.quick or options.drop_leaks


def left_out(request: Request, options: ProbeOptions) -> list[str]:
    """What was left out, in words for a reader, of all that would have been computed otherwise."""
    if not options.quick:
        return []
    task, splits = request.acts.task, options.folds is None
    parts = {
        "control tasks": options.controls == 0,
        "code length": not options.codelength and request.probe.for_codelength,
        "bag-of-words and length baselines": options.baselines is None and reads_texts(task),
        "near-duplicate search": task.has_texts and splits and not searches_near_duplicates(options),
        "p-values": options.intervals and splits,
    }
    return [name for name, is_out in parts.items() if is_out]
