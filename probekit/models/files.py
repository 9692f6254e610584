"""Read the small text and JSON files of a model folder."""

from pathlib import Path
from typing import Any

from probekit.errors import DataError
from probekit.files.plain_files import MAX_MODEL_JSON, parse_json, read_bytes


def read_text(path: Path) -> str:
    """The text of a UTF-8 file.

    Raises:
        DataError: it is missing, cannot be read or is not UTF-8.
    """
    try:
        return read_bytes(path, MAX_MODEL_JSON).decode().replace("\r\n", "\n")
    except OSError as error:
        raise DataError(f"{str(path)!a} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{str(path)!a} is not UTF-8 (byte {error.start:,}); download or save it again") from None


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        DataError: it cannot be read, is not JSON, or is not an object.
    """
    try:
        content = parse_json(read_text(path))
    except DataError:
        raise
    except ValueError as error:
        raise DataError(f"{str(path)!a} is not JSON: {ascii(str(error))[1:-1]}") from None
    if not isinstance(content, dict):
        raise DataError(f"{str(path)!a} must hold a JSON object; got {type(content).__name__}")
    return content
