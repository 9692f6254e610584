"""Read every file of an import once: its checksum, and values that cannot be stored.

Axes: N examples, D width of a place.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from probekit.activations.imports.array_files import FileArray, arrays_in, file_state, scan
from probekit.activations.imports.plan import ImportPlan
from probekit.activations.imports.sources import Source, source_rows
from probekit.errors import DataError
from probekit.machine.devices import DTYPES
from probekit.points import Place


def read_checksums(plan: ImportPlan, advance: Callable[[int], object] = lambda n: None) -> dict[str, str]:
    """Name of each file -> sha256 of its bytes; every value is checked on the way.

    Args:
        plan: the import.
        advance: called with bytes that were read.

    Raises:
        DataError: NaN, infinity or a value that the type on disk cannot hold; a file that cannot be read.
    """
    by_array = {(source.array.file, source.array.key): source for source in plan.sources}

    def check(array: FileArray, values: Tensor) -> None:
        source = by_array.get((array.file, array.key))
        if source is not None and not _all_finite(values.to(DTYPES[plan.dtype])):
            raise _not_finite(plan, source)

    checksums = {ascii(path.name)[1:-1]: scan(path, arrays_in(path), check, advance) for path in plan.states}
    check_unchanged(plan)
    return checksums


def check_unchanged(plan: ImportPlan) -> None:
    """Raise a DataError if a file was written since the plan was made."""
    for path, state in plan.states.items():
        if file_state(path) != state:
            raise DataError(f"{str(path)!a} was written while it was imported; run the same command again")


def _all_finite(values: Tensor) -> bool:
    """True if no value is NaN or infinite; minimum and maximum show it."""
    return all(bool(end.isfinite()) for end in values.aminmax())


def _not_finite(plan: ImportPlan, source: Source) -> DataError:
    """The error for the first row of an array that cannot be stored, at its first place."""
    for rows in plan.shards:
        values = source_rows(source, int(rows[0]), int(rows[-1]) + 1)
        bad = torch.stack([~x.to(DTYPES[plan.dtype]).isfinite().all(1) for x in values.values()])
        if bad.any():
            row = int(bad.any(0).int().argmax())
            place = source.places[int(bad[:, row].int().argmax())]
            return _why(plan, source, place, int(rows[row]), values[place][row])
    return DataError(f"{source.array.where} changed while it was read; run the same command again")


def _why(plan: ImportPlan, source: Source, place: Place, row: int, x: Tensor) -> DataError:
    where = f"{source.array.where} ({place}), first in row {row} (example {plan.task.ids[row]!a})"
    if x.isfinite().all():
        most = torch.finfo(DTYPES[plan.dtype]).max
        return DataError(
            f"{x.abs().max():.3g} in {where} is more than {plan.dtype} holds ({most:.3g}); "
            "choose a wider type (--store-dtype), or find out what made it so large"
        )
    what = "NaN" if x.isnan().any() else "infinity"
    return DataError(f"{what} in {where}; correct the activations where they were taken")
