"""The second table of `docs/model-types.md`: which checkpoints packaged as multimodal load, compared with their class.

A tiny model of the complete class is saved, under the names that files of the Hub have and under those that its tensors
have in memory, and loaded as users load it. The stream in every layer and the logits must be those that the complete
class computes of text alone.
"""

import re
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from probekit.errors import ProbekitError
from probekit.models import load_model
from probekit.models.adapter.config import active_stream
from probekit.models.adapter.load import error_line
from probekit.models.adapter.model import AdaptedModel, quiet
from probekit.models.adapter.proof import FLOAT32_BOUND, accepted, relative, residual_stream
from probekit.models.base import LanguageModel
from probekit.models.families import SAME_ON_TEXT
from probekit.models.packaging import PACKAGED, measured
from probekit.text import listed
from probekit.verification.packaged_models import NAMES, TIMM, complete_model, config_class, save_packaged
from probekit.verification.tiny_configs import VOCABULARY

BY_HAND, WRAPPED = "hand", "transformers"
EXACT, EXACT_TEXT, REFUSED, UNTRIED = "exact", "exact against the text class", "refused", "not tried"
VERDICTS = (EXACT, EXACT_TEXT, REFUSED, UNTRIED)
LONGEST = 180  # characters of a reason
N_TOKENS = 40  # more than windows, chunks and convolutions reach
LOWEST_ID = 6  # the special ids of classes are below it, or at the end of the vocabulary
KINDS_OF_TOKENS = ("token_type_ids", "mm_token_type_ids")  # 0 for text, as the processors give them
_WHERE = r"^'[^']*config.json': (model_type '[^']*' has no file here, and transformers' class fails: )?"


@dataclass(frozen=True)
class PackagedRow:
    """What was measured of one model type that reads more than text.

    Attributes:
        model_type: in config.json.
        by: whose code computes the text model, `BY_HAND` or `WRAPPED`; "" where it does not load.
        text_type: the `model_type` of its text model.
        verdict: one of `VERDICTS`.
        note: what is not loaded, or not compared; the reason where it is refused.
    """

    model_type: str
    by: str
    text_type: str
    verdict: str
    note: str

    @property
    def cells(self) -> tuple[str, ...]:
        """The row of the table."""
        same = SAME_ON_TEXT.get(self.text_type)
        text = f"`{self.text_type}`" if self.text_type else ""
        text += f", as `{same}`" if self.by and same else ""
        return (f"`{self.model_type}`", self.by, text, self.verdict, as_cell(self.note))


@dataclass(frozen=True)
class OnText:
    """What a complete model computes of text alone.

    Attributes:
        streams: before each block, [1, L, D].
        last: the last of transformers' `hidden_states`, [1, L, D]; in most classes after the last norm.
        logits: [1, L, V].
        why_alone: why its text model had to be run by itself; "" where the complete one was.
    """

    streams: tuple[Tensor, ...]
    last: Tensor
    logits: Tensor
    why_alone: str = ""


def as_cell(text: str) -> str:
    """Text without what Markdown reads as a mark."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


def short_reason(text: str) -> str:
    """The reason of an error without what to do about it, which its last part says, in one line."""
    line = re.sub(_WHERE, "", " ".join((text.rpartition("; ")[0] or text).split()))
    line = re.sub(r"'/[^']*'", "its folder", line)
    return line if len(line) <= LONGEST else f"{line[:LONGEST]}..."


def packaged_rows(types: Iterable[str]) -> Iterator[PackagedRow]:
    """The rows of these types, in their order."""
    for model_type in types:
        with quiet(), torch.no_grad(), measured(model_type):
            row = _row(model_type)
        yield row


def text_ids() -> Tensor:
    """Token ids [1, L] without special ones."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(LOWEST_ID, VOCABULARY - 2, (1, N_TOKENS), generator=generator)


@torch.no_grad()
def on_text(complete: Any, ids: Tensor) -> OnText:
    """What a complete model computes of token ids [1, L] alone.

    Raises:
        Exception: whatever it raises without images or sound.
    """
    why = ""
    given = {"input_ids": ids, "output_hidden_states": True}
    try:
        out = complete(**given, **accepted(complete, dict.fromkeys(KINDS_OF_TOKENS, torch.zeros_like(ids))))
    except Exception as error:  # Llama 4's complete class asks for images, its text model does not
        if complete.config.model_type not in PACKAGED:
            raise
        why = error_line(error)
        out = complete.language_model(**given)
    active = active_stream(complete.config.text_config)
    *streams, last = [residual_stream(x, active) for x in out.hidden_states]
    return OnText(tuple(streams), last, out.logits, why)


def difference(model: LanguageModel, wanted: OnText, ids: Tensor) -> tuple[str, float]:
    """Where a model differs most from the complete one, and by how much relative to the largest value there."""
    with torch.no_grad():
        got, cache = model.run_with_cache(ids, points="resid_pre")
    found = {f"resid_pre.{i}": relative(cache["resid_pre", i], stream) for i, stream in enumerate(wanted.streams)}
    if model.has_logits:
        found["the logits"] = relative(got, wanted.logits)
    else:
        found["the last norm"] = relative(got, wanted.last)
    return max(found.items(), key=lambda item: item[1])


def _row(model_type: str) -> PackagedRow:
    default = config_class(model_type)()
    text = getattr(default, "text_config", None)
    inner = getattr(text, "model_type", "")

    def failed(why: str, verdict: str = REFUSED) -> PackagedRow:
        return PackagedRow(model_type, "", inner, verdict, short_reason(why))

    if default.is_encoder_decoder:
        return failed("an encoder-decoder")
    if text is None:
        return failed("its config.json has no text_config")
    try:
        complete = complete_model(model_type)
    except Exception as error:  # whatever its class raises is the reason
        return failed(f"its class could not be made small: {error_line(error)}", UNTRIED)
    try:
        wanted = on_text(complete, text_ids())
    except Exception as error:
        return failed(f"the complete class cannot be run on text alone: {error_line(error)}")
    model: Any = None
    for names in NAMES:
        with tempfile.TemporaryDirectory() as folder:
            try:
                model = load_model(save_packaged(complete, Path(folder), names), device="cpu")
            except ProbekitError as error:
                why = str(error).replace(f"the weights in '{folder}'", f"tensors with names {names}")
                return failed(why.replace(f"'{folder}'", f"a file with names {names}"))
            where, apart = difference(model, wanted, text_ids())
        if apart > FLOAT32_BOUND:
            return failed(f"its text model alone differs from the complete class, most at {where}")
    if model_type not in PACKAGED:
        return failed("as the complete class, but not entered in PACKAGED")
    by = WRAPPED if isinstance(model, AdaptedModel) else BY_HAND
    note = f"without {listed(model.left_out)}" + ("" if model.has_logits else "; no logits")
    if any(type(module).__name__ == TIMM for module in complete.modules()):
        note += "; compared without the tower, which needs timm"
    if wanted.why_alone:
        note += f"; the complete class fails on text alone: {wanted.why_alone}"
    return PackagedRow(model_type, by, inner, EXACT_TEXT if wanted.why_alone else EXACT, note)
