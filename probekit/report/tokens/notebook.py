"""`TokenView`: the token by layer view in a notebook, in a file and as a table."""

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from probekit.errors import UsageError
from probekit.evaluation.results.data import ProbeData
from probekit.files.durable import write_as
from probekit.models.base import LanguageModel
from probekit.options.check import check_path
from probekit.options.kinds import RATE
from probekit.report.tokens.data import TRAINED, TokenScores
from probekit.report.tokens.find import view_of_texts
from probekit.report.tokens.section import token_page
from probekit.tasks.tables.objects import task_of
from probekit.text import counted, kind_of, printable

if TYPE_CHECKING:
    import pandas as pd

HEIGHT = 560  # pixels of the frame in a notebook
# all that is left where a notebook's output may have no frames
UNTRUSTED = "The view is shown in trusted notebooks; view.save(&quot;view.html&quot;) writes it as a file."
# the page in a frame that may run its own script and reach nothing around it; the chosen token comes back as a message
WIDGET = """
export default { render({ model, el }) {
  const frame = document.createElement("iframe");
  frame.setAttribute("sandbox", "allow-scripts");
  frame.width = "100%";
  frame.height = String(model.get("height"));
  frame.srcdoc = model.get("page");
  const heard = (event) => {
    if (event.source !== frame.contentWindow || !event.data.probekit) return;
    model.set("chosen", event.data.probekit);
    model.save_changes();
  };
  addEventListener("message", heard);
  el.append(frame);
  return () => removeEventListener("message", heard);
} };
"""


class TokenView:
    """The scores of a probe at every token and layer of some texts; shows itself in a notebook.

    Args:
        data: the scores.
        title: of the page.
    """

    def __init__(self, data: TokenScores, title: str):
        self.data = data
        self.title = title

    def to_frame(self) -> "pd.DataFrame":
        """One row for each place, output and token, context tokens left out.

        Columns: text (its number), id, index (of the token, context tokens counted), token, trained (whether it is a
        token like those that the probe was trained on), place, output, score (see `TokenScores`), placebo.
        """
        import pandas as pd

        data, lengths = self.data, np.diff(self.data.offsets)
        text = np.repeat(np.arange(len(lengths)), lengths)
        shown = np.flatnonzero(np.isfinite(data.scores[0, 0]))
        tokens = pd.DataFrame(
            {
                "text": text[shown],
                "id": [data.texts[i].id for i in text[shown]],
                "index": (np.arange(len(text)) - data.offsets[text])[shown],
                "token": [data.pieces[i] for i in shown],
                "trained": (data.marks[shown] & TRAINED) > 0,
            }
        )
        each = [
            tokens.assign(place=place, output=output, score=data.scores[o, p, shown], placebo=data.placebo[o, p, shown])
            for p, place in enumerate(data.places)
            for o, output in enumerate(data.outputs)
        ]
        return pd.concat(each, ignore_index=True)

    def save(self, path: str | Path) -> Path:
        """Write the view as one HTML file, which loads nothing else; returns its path.

        Raises:
            StorageError: the disk refused.
        """
        path = check_path("path", path)
        write_as(path, self.to_html().encode())
        return path

    def to_html(self) -> str:
        """The view as a complete page."""
        return token_page(self.data, self.title)

    def widget(self, height: int = HEIGHT) -> Any:
        """The view as a Jupyter widget whose `chosen` is {"text", "place", "token"}, as it is clicked.

        Raises:
            UsageError: anywidget is not installed.
        """
        try:
            import anywidget  # pyright: ignore[reportMissingImports]  (an extra)
            import traitlets
        except ImportError:
            raise UsageError("a widget needs anywidget: pip install 'probekit[jupyter]' from the checkout") from None

        class TokenWidget(anywidget.AnyWidget):
            _esm = WIDGET
            page = traitlets.Unicode("").tag(sync=True)
            height = traitlets.Int(HEIGHT).tag(sync=True)
            chosen = traitlets.Dict({}).tag(sync=True)

        return TokenWidget(page=self.to_html(), height=height)

    def _repr_html_(self) -> str:
        page, title = (escape(text, quote=True) for text in (self.to_html(), printable(self.title)))
        frame = f'<iframe sandbox="allow-scripts" width="100%" height="{HEIGHT}" frameborder="0"'
        return f'{frame} title="{title}" srcdoc="{page}">{UNTRUSTED}</iframe>'

    def __repr__(self) -> str:
        data = self.data
        return (
            f"TokenView({counted(len(data.texts), 'text')}, {counted(len(data.pieces), 'token')}, "
            f"{counted(len(data.places), 'place')})"
        )


def token_view(data: ProbeData, model: LanguageModel, texts: Any, **how: Any) -> TokenView:
    """The view of texts that the model reads now; see `ProbeResults.tokens`.

    Args:
        data: the curve, with fitted probes.
        model: the one that the probes were trained on.
        texts: a list of texts, chats or lists of token ids, or a task, whose labels are then shown.
        how: fpr, edits and chat_template.
    """
    if how.get("fpr") is not None:
        RATE.check("fpr", how["fpr"])
    if not isinstance(model, LanguageModel):
        raise UsageError(f"expected a model, as load_model returns it, got {kind_of(model)}")
    view = view_of_texts(data, model, task_of(texts), **how)
    return TokenView(view, f"{data.meta['label']} in {data.meta['model']}: tokens by layer")
