"""Escape text that comes from data before it is shown, and shorten numbers."""


def printable(text: object) -> str:
    """`text` with control and invisible characters written as escapes.

    Names of files, labels and texts may hold ANSI sequences, or characters that reorder a line.
    """
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(text))


def metric(n: float) -> str:
    """292_000_000_000 -> "292 G": three digits and the prefix of the unit; the largest prefix is Q (1e30)."""
    prefixes = list("QRYZEPTGMk ")
    while n >= 999.5 and len(prefixes) > 1:
        n, _ = n / 1000, prefixes.pop()
    prefix = prefixes[-1].strip()
    decimals = 0 if n >= 99.95 or not prefix else 1 if n >= 9.995 else 2
    return f"{n:.{decimals}f} {prefix}"
