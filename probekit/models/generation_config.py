"""Read generation_config.json, which in a model's folder says where its texts end.

Chat models often list the token that ends a turn there alone: Llama 3's <|eot_id|>, where config.json has the end of a
document.
"""

from pathlib import Path

from probekit.errors import DataError
from probekit.models.files import read_json
from probekit.options.check import is_whole

FILE = "generation_config.json"


def end_ids(folder: Path, d_vocab: int) -> tuple[int, ...] | None:
    """The ids that end a text; None if the folder has no such file, or the file names none of the vocabulary.

    Args:
        folder: of the model.
        d_vocab: size of the model's vocabulary.

    Raises:
        DataError: the file cannot be read, or eos_token_id is neither an id nor a list of ids.
    """
    if not (folder / FILE).is_file():
        return None
    given = read_json(folder / FILE).get("eos_token_id")
    ids = given if isinstance(given, list) else [] if given is None else [given]
    if not all(is_whole(i) and i >= 0 for i in ids):
        raise DataError(
            f"{str(folder / FILE)!a}: eos_token_id must be the id of a token, or a list of them; got {given!a:.60}; "
            "correct it, or remove the file"
        )
    # small models saved by transformers often name GPT-2's 50256, which they cannot write
    return tuple(i for i in ids if i < d_vocab) or None
