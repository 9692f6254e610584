"""Text that comes from data, made safe to show."""


def printable(text: object) -> str:
    """`text` with everything that a terminal would act on, or that would not show, written as an escape.

    Names of files, labels and texts may carry ANSI sequences, or characters that reorder a line.
    """
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(text))
