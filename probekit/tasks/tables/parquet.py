"""Read Parquet files, whose few bytes may stand for very many.

A page of a few bytes can say "this text, a million times" (run lengths of a dictionary). So the columns are read in
batches as dictionaries, in which each text occurs once, and the lengths are summed before any Python object is made.

Of the metadata, only the number of rows is used: pyarrow 26 ends the process on damaged metadata of column chunks.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probekit.errors import DataError
from probekit.files.scratch import DiskList
from probekit.tasks.tables.data_table import DataTable, quote

if TYPE_CHECKING:
    import pyarrow as pa

MAX_BYTES = 1 << 30  # a column may always unfold to this
MAX_FACTOR = 50  # or to this many times the size of its file, if that is more
ROW_BYTES = 100  # of Python objects that come with every row
BATCH_ROWS = 1 << 14  # that are Python objects at one time


def read_parquet(path: Path, data: Any, sha256: str) -> DataTable:
    """The table of a file's bytes.

    Raises:
        DataError: it is damaged, or a column unfolds to far more bytes than the file has.
    """
    import pyarrow as pa  # a dependency of datasets
    import pyarrow.parquet as pq

    try:
        plain = pq.ParquetFile(pa.BufferReader(data))
        names, n = plain.schema_arrow.names, plain.metadata.num_rows
        file = pq.ParquetFile(pa.BufferReader(data), read_dictionary=_text_leaves(plain))
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path.name} is not a readable Parquet file ({_first_line(error)}); write it again") from None
    most = max(MAX_BYTES, MAX_FACTOR * len(data))
    if n * ROW_BYTES > most:
        raise _too_large(path, f"{n:,} rows", data)

    def column(name: str) -> DiskList:
        try:
            cells = DiskList(cell for batch in _bounded(file, name, most) for cell in _cells(batch))
        except OverflowError:
            raise _too_large(path, f"more than {most / 2**30:,.1f} GiB in column {name!a}", data) from None
        except MemoryError:
            raise _too_large(path, f"more than the memory that is left in column {name!a}", data) from None
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise DataError(f"{path.name}: column {name!a} is damaged ({_first_line(error)}); write it again") from None
        if len(cells) != n:
            raise DataError(f"{path.name}: column {name!a} has {len(cells):,} of {n:,} rows; write it again")
        return cells

    return DataTable(path.name, path.stem, names, column, range(1, n + 1), typed=True, unit="row", sha256=sha256)


def _text_leaves(file: Any) -> list[str]:
    """The paths of the columns, nested ones included, that hold texts or bytes."""
    leaves = [file.schema.column(i) for i in range(len(file.schema))]
    is_text = {"STRING", "NONE", "JSON", "ENUM"}
    return [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY" and leaf.logical_type.type in is_text]


def _bounded(file: Any, name: str, most: int) -> "Iterator[pa.Array]":
    """The batches of a column. Raises OverflowError where their texts are longer than `most` in all."""
    total = 0
    for group in range(file.num_row_groups):  # a batch of two groups cannot have nested dictionaries
        for batch in file.iter_batches(BATCH_ROWS, row_groups=[group], columns=[name]):
            total += _text_bytes(batch.column(0))
            if total > most:
                raise OverflowError
            yield batch.column(0)


def _text_bytes(array: Any) -> int:
    """The bytes of an array's texts, each as often as it occurs; items of lists count as rows do."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_dictionary(array.type):
        if not pa.types.is_string(array.type.value_type) and not pa.types.is_binary(array.type.value_type):
            return array.nbytes
        lengths = pc.binary_length(array.dictionary).cast("int64")  # pyright: ignore[reportAttributeAccessIssue]
        return pc.sum(lengths.take(array.indices)).as_py() or 0  # pyright: ignore[reportAttributeAccessIssue]
    if pa.types.is_struct(array.type):
        return sum(map(_text_bytes, array.flatten()))
    if pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        values = array.flatten()
        return len(values) * ROW_BYTES + _text_bytes(values)
    return array.nbytes


def _cells(array: Any) -> list[Any]:
    """The cells as Python objects; equal texts are one object."""
    import pyarrow as pa

    if not pa.types.is_dictionary(array.type):
        return array.to_pylist()
    used = array.indices.unique().drop_null()
    text_of = dict(zip(used.to_pylist(), array.dictionary.take(used).to_pylist(), strict=True))
    return [text_of.get(i) for i in array.indices.to_pylist()]


def _too_large(path: Path, what: str, data: Any) -> DataError:
    return DataError(
        f"{path.name} has {len(data):,} bytes that unfold to {what}; expected at most 1 GiB, or {MAX_FACTOR} times the "
        "size of the file; write it again with fewer or shorter rows"
    )


def _first_line(error: BaseException) -> str:
    return quote((str(error).splitlines() or [""])[0], most=100)
