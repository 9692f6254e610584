"""The view as a section of the report of a run; where it cannot be made, the section says what it needs."""

from markupsafe import Markup

from probekit.activations.activations import Activations
from probekit.errors import ProbekitError
from probekit.evaluation.results.data import ProbeData
from probekit.machine.progress import SILENT, Steps
from probekit.models.base import LanguageModel
from probekit.options.report import TokenOptions
from probekit.report.section import Section
from probekit.report.tokens.find import Shown, view_of_results
from probekit.report.tokens.section import TITLE, token_section
from probekit.text import printable


def tokens_of_run(
    data: ProbeData, acts: Activations | None, options: TokenOptions, parts: Steps = SILENT
) -> Section | None:
    """The section of one curve.

    Args:
        data: the curve.
        acts: the activations that it was trained on; None where they were not found.
        options: which texts, and the model.
        parts: says what is being done.

    Returns:
        The section; None if it was not asked for.
    """
    if not options.tokens:
        return None
    try:
        if acts is None:
            return _without("the store with the texts of the probes was not found; name it with --store")
        model = None if options.model is None else _loaded(options.model, data)
        shown = Shown(options.texts, int(data.meta.get("seed") or 0), options.fpr)
        return token_section(view_of_results(data, acts, model, shown, parts))
    except ProbekitError as error:
        return _without(str(error))


def _loaded(name: str, data: ProbeData) -> LanguageModel:
    """The model, in the type and by the code that computed the probes' activations."""
    from probekit.models import load_model

    origin = data.meta.get("activations", {})
    known = {"dtype": origin.get("compute_dtype"), "via": origin.get("via"), "quantize": origin.get("quantize")}
    return load_model(name, **{key: value for key, value in known.items() if value}, progress=False)


def _without(why: str) -> Section:
    return Section("tokens", TITLE, Markup("<p>No scores of single tokens here: {}.</p>").format(printable(why)))
