"""Colours of curves, and names that fit next to them. Text from data is escaped."""

from probekit.text import printable

# Okabe and Ito's colours, which colour-blind readers can tell apart
BLUE, GREEN, RED, GREY, INK = "#0072B2", "#009E73", "#D55E00", "#6B6B6B", "#222222"
PINK, ORANGE, SKY, PALE_BLUE = "#CC79A7", "#E69F00", "#56B4E9", "#74B3DA"
PALETTE = (BLUE, RED, GREEN, PINK, ORANGE, SKY, INK)  # of several curves, in this order
NAME_LENGTH = 28  # longer names are cut in the middle


def short(name: object, most: int = NAME_LENGTH) -> str:
    """A name with control characters escaped, cut in the middle if it is long."""
    text = printable(name)
    half = most // 2 - 1  # one character less, for the ellipsis
    return text if len(text) <= most else f"{text[:half]}…{text[-half:]}"
