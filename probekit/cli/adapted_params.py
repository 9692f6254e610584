"""`probekit params --via transformers`: the parameters of a class of transformers, counted on the meta device."""

from typing import TYPE_CHECKING, Any

from probekit.cli import console
from probekit.machine.dtypes import BYTES
from probekit.tables import text_table
from probekit.text import metric

if TYPE_CHECKING:
    from probekit.models.adapter.model import AdaptedModel


def show_adapted_params(name: str, revision: str | None, dtype: str, as_json: bool, quiet: bool) -> None:
    """Print the parameters and the bytes of a model's parts; errors as in `outline`."""
    from probekit.models import outline

    model: Any = outline(name, revision, "transformers")
    parts = _counts(model)
    rows = {**parts, "total": sum(parts.values())}
    if as_json:
        found = {part: {"parameters": n, "bytes": n * BYTES[dtype]} for part, n in rows.items()}
        console.result_json({"model": name, "class": model.cfg.model_class, "dtype": dtype, "parts": found})
        return
    cells = [[part, f"{n:,}", f"{metric(n * BYTES[dtype])}B"] for part, n in rows.items()]
    console.result(
        f"{name}, {model.cfg.model_class} in {dtype}\n\n" + text_table([["", "parameters", "memory"], *cells])
    )
    if not quiet:
        console.note("activations and FLOPs are counted for probekit's own families alone")


def _counts(model: "AdaptedModel") -> dict[str, int]:
    """The parameters of each part; a tied weight, or a block that layers share, counts once."""
    base: Any = model.hf.base_model
    sizes = {id(weight): weight.numel() for weight in model.hf.parameters()}
    embedding = {id(weight) for weight in base.get_submodule(model.layout.embed).parameters()}
    blocks = {id(weight) for path in model.layout.blocks for weight in base.get_submodule(path).parameters()}
    groups = {"token embedding": embedding, "blocks": blocks, "other": sizes.keys() - embedding - blocks}
    return {part: sum(sizes[key] for key in keys) for part, keys in groups.items()}
