"""`probekit params`: parameters, memory and FLOPs of a model by component, from its shape alone."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from probekit.cli import console, options
from probekit.cli.points import table
from probekit.errors import UsageError
from probekit.text import metric, printable

if TYPE_CHECKING:
    from probekit.models.accounting import Account
    from probekit.models.shapes import ModelShape

CONTEXTS = (1024, 2048, 4096, 8192, 16384)
PICTURE = Path("runs/flop_shares.png")

Names = Annotated[
    list[str],
    typer.Argument(
        metavar="MODEL...",
        help="gpt2, gpt2-medium, gpt2-large, gpt2-xl, another Hub name, a folder, or a "
        "world's model such as counting-gpt.",
    ),
]
Compare = Annotated[bool, typer.Option("--compare", help="Several models: one table, and a picture of the shares.")]
Context = Annotated[
    int | None,
    typer.Option(
        metavar="L", help="Tokens of a text.  [default: the model's own context; with --compare 1,024 to 16,384]"
    ),
]
Batch = Annotated[int, typer.Option(metavar="B", help="Texts at once.")]
Dtype = Annotated[str, typer.Option(metavar="TYPE", help="Type of weights and activations: fp32, bf16 or fp16.")]
Out = Annotated[Path | None, typer.Option(metavar="PATH", help=f"The picture of --compare.  [default: {PICTURE}]")]


def params(
    models: Names,
    compare: Compare = False,
    context: Context = None,
    batch: Batch = 1,
    dtype: Dtype = "fp32",
    revision: options.Revision = None,
    out: Out = None,
    json_: options.Json = False,
    quiet: options.Quiet = False,
    config: options.Config = None,
    set_: options.Set = None,
) -> None:
    """Count a model: parameters, memory and forward FLOPs by component. Reads config.json at most, and no weights.

    \b
    Examples:
        probekit params gpt2-xl --context 16384 --dtype bf16
        probekit params --compare gpt2 gpt2-medium gpt2-large gpt2-xl
    """
    from probekit.models.accounting import account

    names = _names(models, compare, out, revision)
    console.hush_downloads(quiet)
    kind = options.dtype_name(dtype)
    for size, name in ((batch, "--batch"), (1 if context is None else context, "--context")):
        if size < 1:
            raise UsageError(f"{name} is a whole number above 0; got {size}")
    shapes = {name: _shape(name, revision) for name in names}
    contexts = CONTEXTS if compare and context is None else (context,)
    titles = _titles(names)
    accounts = [account(titles[name], shape, n, batch, kind) for name, shape in shapes.items() for n in contexts]
    if not quiet:
        _note_long(accounts)
    if compare:
        _show_compared(accounts, out or PICTURE, json_)
    elif json_:
        console.result_json(accounts[0].as_dict())
    else:
        console.result(describe(accounts[0]))


def _names(models: list[str], compare: bool, out: Path | None, revision: str | None) -> list[str]:
    """The models that were named, each once.

    Raises:
        UsageError: several without --compare, one with it, or options that have no use.
    """
    names = list(dict.fromkeys(name for text in models for name in options.names(text)))
    if compare and len(names) < 2:
        raise UsageError(f"--compare takes two or more models; got {', '.join(map(repr, names)) or 'none'}")
    if not compare and len(names) != 1:
        raise UsageError(f"one model, or several with --compare; got {', '.join(map(repr, names)) or 'none'}")
    if compare and revision is not None:
        raise UsageError("--revision is of one model; give folders to compare others")
    if out is not None and not compare:
        raise UsageError("--out is for the picture of --compare")
    return names


def _titles(names: list[str]) -> dict[str, str]:
    """What each model is called: a folder by its own name, unless another model has that name too."""
    own = {name: Path(name).resolve().name if Path(name).is_dir() else name for name in names}
    return {name: title if list(own.values()).count(title) == 1 else name for name, title in own.items()}


def _shape(name: str, revision: str | None) -> "ModelShape":
    """The shape of a model; a size of GPT-2 is known without network or torch, unless a folder has its name.

    That of a world's model is known without its being trained, or anything written.
    """
    from probekit.models.families import named_shape, shape_of

    known = None if revision is not None or Path(name).exists() else named_shape(name)
    if known:
        return known
    from probekit.models import outline
    from probekit.worlds import MODELS, world

    return shape_of(world(name).make_config() if name in MODELS and revision is None else outline(name, revision).cfg)


def _note_long(accounts: "list[Account]") -> None:
    """Which contexts are longer than the model's own."""
    contexts = {each.name: each.shape.n_ctx for each in accounts if each.context > each.shape.n_ctx}
    for name, n_ctx in contexts.items():
        console.note(f"{name} was made for {n_ctx:,} tokens; longer contexts are counted as if it read them")


def _show_compared(accounts: "list[Account]", path: Path, as_json: bool) -> None:
    from probekit.models.accounting import forward_flops
    from probekit.plots import save_flop_shares

    flops: dict[str, dict[int, dict[str, int]]] = {}
    for each in accounts:
        flops.setdefault(each.name, {})[each.context] = forward_flops(each.shape, each.context)
    picture = save_flop_shares(flops, path)
    if as_json:
        console.result_json({"models": [each.as_dict() for each in accounts], "picture": str(picture)})
    else:
        console.result(f"{compared(accounts)}\n\nPicture: {picture}")


def compared(accounts: "list[Account]") -> str:
    """One row for each model and context: sizes, FLOPs, and the share of each component in them."""
    shown = [name for name in accounts[0].flops if any(each.flops[name] for each in accounts)]
    rows = [["model", "parameters", "weights", "context", "KV cache", "FLOPs", *(_SHORT.get(x, x) for x in shown)]]
    last = ""
    for each in accounts:
        is_new, last = each.name != last, each.name
        sizes = [printable(each.name), f"{each.parameters:,}", _bytes(each.weights_bytes)] if is_new else [""] * 3
        row = [*sizes, f"{each.context:,}", _bytes(each.cache_bytes), metric(sum(each.flops.values()))]
        rows.append([*row, *(_percent(each.shares[name]) for name in shown)])
    return _aligned(rows)


_SHORT = {"weighted sum": "sum", "output projection": "output", "MLP gate": "gate", "MLP up": "up", "MLP down": "down"}


def describe(found: "Account") -> str:
    """Parameters, memory and FLOPs as aligned lines."""
    return "\n\n".join([_parameters(found), _memory(found), _flops(found)])


def _parameters(found: "Account") -> str:
    from probekit.models.accounting import block_parameters

    total = found.parameters
    rows = [["parameters", f"{total:,}", ""]]
    outside = found.shape.outside
    before = [name for name in outside if "embedding" in name]
    rows += [_counted(name, outside[name], total) for name in before]
    for stack in found.shape.stacks:
        parts = block_parameters(stack)
        each = sum(parts.values())
        blocks = f"{stack.n_layers} {stack.name} blocks of {each:,}".replace("  ", " ")
        rows.append(_counted(blocks, stack.n_layers * each, total))
        rows += [_counted(f"  {part}", stack.n_layers * n, total) for part, n in parts.items()]
    rows += [_counted(name, n, total) for name, n in outside.items() if name not in before]
    if outside.get("head") == 0:
        rows[-1 if list(outside)[-1] == "head" else -2][0] += " (the token embedding)"
    return _aligned(rows)


def _counted(name: str, n: int, total: int) -> list[str]:
    return [f"  {name}", f"{n:,}", _percent(n / total)]


def _memory(found: "Account") -> str:
    kept = found.activations
    texts = "1 text" if found.batch == 1 else f"{found.batch:,} texts"
    rows = [[f"memory: {found.dtype}, {texts} of {found.context:,} tokens", "", ""]]
    rows.append(["  weights", _bytes(found.weights_bytes), ""])
    if found.shape.cached:
        rows.append(["  keys and values of all layers (KV cache)", _bytes(found.cache_bytes), ""])
    rows.append(["  a forward that keeps nothing, about", _bytes(found.working_bytes), ""])
    rows.append(["  every point in every layer", _bytes(sum(size.bytes for size in kept)), ""])
    points = [["  point", "a layer", "layers", "all"]]
    points += [[f"  {x.point}", _bytes(x.bytes_each), str(x.layers), _bytes(x.bytes)] for x in kept]
    return f"{_aligned(rows)}\n\n{_aligned([['activations, if kept', '', '', ''], *points])}"


def _flops(found: "Account") -> str:
    flops, shares = found.flops, found.shares
    total = sum(flops.values())
    rows = [[f"FLOPs of a forward: {metric(total)}FLOPs", f"{total:,}", ""]]
    rows += [[f"  {name}", f"{n:,}", _percent(shares[name])] for name, n in flops.items() if n]
    return _aligned(rows)


def _aligned(rows: list[list[str]]) -> str:
    """The first column to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return table([[row[0], *map(str.rjust, row[1:], widths[1:])] for row in rows])


def _percent(share: float) -> str:
    return "<0.1%" if 0 < share < 0.0005 else f"{share:.1%}"


def _bytes(n: int) -> str:
    return f"{metric(n)}B"
