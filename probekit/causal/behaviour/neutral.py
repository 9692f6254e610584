"""Neutral texts: their loss says what else an edit harms."""

from pathlib import Path

from probekit.errors import DataError
from probekit.files.plain_files import MAX_TABLE, read_bytes
from probekit.models.base import LanguageModel
from probekit.tasks.tables.columns import TOKEN_COLUMNS
from probekit.tasks.tables.readers import TXT, read_table
from probekit.tasks.tables.rows import tokens_flaw
from probekit.text import listed

COLUMNS = ("text", "sentence")
MOST = 200  # texts; a choice, not measured


def load_neutral(path: str | Path, model: LanguageModel, bos: bool | None = None, most: int = MOST) -> list[list[int]]:
    """The first texts of a file as token ids, cut at the model's context.

    Args:
        path: a text file with a text in each line, or a table (CSV, TSV, JSONL, Parquet) with a column "text" or
            "sentence", or "ids" (or "input_ids") of token ids.
        model: the model that will read them.
        bos: whether texts get context tokens; None: only for models that were never trained without, such as BERT.
        most: how many texts to take.

    Raises:
        DataError: the file cannot be read, has no such column or no text of two tokens or more.
        UsageError: a file of an unknown format.
    """
    path = Path(path)
    texts = _lines(path) if path.suffix.lower() == TXT else _column(path)
    given = [list(ids) for ids in texts[:most] if not isinstance(ids, str)]
    if given:
        return _checked(model, path, [ids[: model.cfg.n_ctx] for ids in given])
    tokenizer = model.need_tokenizer()
    around = tokenizer.sep_token_id is not None and not model.causal if bos is None else bos
    encoded = tokenizer.encode_batch([str(text) for text in texts[:most]], bos=around)
    return _checked(model, path, [each[: model.cfg.n_ctx] for each in encoded])


def _checked(model: LanguageModel, path: Path, ids: list[list[int]]) -> list[list[int]]:
    if wrong := [one for each in ids for one in each if one >= model.cfg.d_vocab]:
        raise DataError(f"{path.name}: token ids of {model.name!a} are 0..{model.cfg.d_vocab - 1}, got {wrong[0]}")
    if not any(len(each) > 1 for each in ids):
        raise DataError(f"{path.name} has no text of two tokens or more, which a loss needs; give running text")
    return ids


def _lines(path: Path) -> list[str]:
    try:
        data = read_bytes(path, MAX_TABLE)
    except OSError as error:
        raise DataError(f"cannot read {str(path)!a}: {error.strerror}") from None
    try:
        lines = data.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise DataError(f"{path.name} is not UTF-8 at byte {error.start}; save it again as UTF-8") from None
    if not (texts := [line for line in lines if line.strip()]):
        raise DataError(f"{path.name} is empty; expected a text in each line")
    return texts


def _column(path: Path) -> list[str] | list[list[int]]:
    """The texts of a table that are not empty, or its lists of token ids."""
    table = read_table(path)
    name = next((name for name in (*COLUMNS, *TOKEN_COLUMNS) if name in table.columns), None)
    if name is None:
        raise DataError(f"{table.name} has the columns {listed(table.columns)}; expected {' or '.join(COLUMNS)}")
    if name in COLUMNS:
        return [text for text in table.column(name) if isinstance(text, str) and text.strip()]
    for row, cell in enumerate(table.column(name)):
        if flaw := tokens_flaw(cell):
            raise DataError(f"{table.where(row)}: {flaw[1]}")
    return [*table.column(name)]
