"""The figures of `probekit.models.accounting` as tables of text."""

from probekit.models.accounting import Account, block_parameters
from probekit.models.shapes import StackShape, equal_stacks
from probekit.tables import text_table
from probekit.text import counted, metric

_SHORT = {"weighted sum": "sum", "output projection": "output", "MLP gate": "gate", "MLP up": "up", "MLP down": "down"}


def compared(accounts: list[Account]) -> str:
    """One row for each model and context: sizes, FLOPs, and the share of each component in them."""
    shown = [name for name in accounts[0].flops if any(each.flops[name] for each in accounts)]
    rows = [["model", "parameters", "weights", "context", "KV cache", "FLOPs", *(_SHORT.get(x, x) for x in shown)]]
    last = ""
    for each in accounts:
        is_new, last = each.name != last, each.name
        sizes = [each.name, f"{each.parameters:,}", _bytes(each.weights_bytes)] if is_new else [""] * 3
        row = [*sizes, f"{each.context:,}", _bytes(each.cache_bytes), metric(sum(each.flops.values()))]
        rows.append([*row, *(_percent(each.shares[name]) for name in shown)])
    return text_table(rows)


def describe_account(account: Account) -> str:
    """Parameters, memory and FLOPs as aligned lines."""
    return "\n\n".join([_parameters(account), _memory(account), _flops(account)])


def _parameters(account: Account) -> str:
    total = account.parameters
    rows = [["parameters", f"{total:,}", ""]]
    if account.active_parameters < total:
        rows.append(_counted("computing a token", account.active_parameters, total))
    outside = account.shape.outside
    before = [name for name in outside if "embedding" in name]
    rows += [_counted(name, outside[name], total) for name in before]
    for stack in equal_stacks(account.shape):
        parts = block_parameters(stack)
        each = sum(parts.values())
        rows.append(_counted(f"{_blocks(stack)} of {each:,}", stack.n_layers * each, total))
        rows += [_counted(f"  {part}", stack.n_layers * n, total) for part, n in parts.items()]
    rows += [_counted(name, n, total) for name, n in outside.items() if name not in before]
    if outside.get("head") == 0:
        rows[-1 if list(outside)[-1] == "head" else -2][0] += " (the token embedding)"
    return text_table(rows)


def _blocks(stack: StackShape) -> str:
    """Such as "12 decoder blocks" or "24 blocks with 64 experts"."""
    blocks = counted(stack.n_layers, f"{stack.name} block".strip())
    return f"{blocks} with {stack.n_experts} experts" if stack.n_experts else blocks


def _counted(name: str, n: int, total: int) -> list[str]:
    return [f"  {name}", f"{n:,}", _percent(n / total)]


def _memory(account: Account) -> str:
    kept = account.activations
    texts = "1 text" if account.batch == 1 else f"{account.batch:,} texts"
    rows = [[f"memory: {account.dtype}, {texts} of {account.context:,} tokens", "", ""]]
    rows.append(["  weights", _bytes(account.weights_bytes), ""])
    if account.shape.cached:
        rows.append(["  keys and values of all layers (KV cache)", _bytes(account.cache_bytes), ""])
    rows.append(["  a forward that keeps nothing, about", _bytes(account.working_bytes), ""])
    rows.append(["  every point in every layer", _bytes(sum(size.bytes for size in kept)), ""])
    points = [["  point", "a layer", "layers", "all"]]
    points += [[f"  {x.point}", _bytes(x.bytes_each), str(x.layers), _bytes(x.bytes)] for x in kept]
    return f"{text_table(rows)}\n\n{text_table([['activations, if kept', '', '', ''], *points])}"


def _flops(account: Account) -> str:
    flops, shares = account.flops, account.shares
    total = sum(flops.values())
    rows = [[f"FLOPs of a forward: {metric(total)}FLOPs", f"{total:,}", ""]]
    rows += [[f"  {name}", f"{n:,}", _percent(shares[name])] for name, n in flops.items() if n]
    return text_table(rows)


def _percent(share: float) -> str:
    return "<0.1%" if 0 < share < 0.0005 else f"{share:.1%}"


def _bytes(n: int) -> str:
    return f"{metric(n)}B"
