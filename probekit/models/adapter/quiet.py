"""Silence transformers, and what it calls, while it loads and runs."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from logging import CRITICAL, getLogger


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the warnings, logs and progress bars of transformers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers.utils import logging

        placing = getLogger("accelerate")
        placing_level = placing.level
        placing.setLevel(CRITICAL)
        level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
        logging.set_verbosity(CRITICAL)
        logging.disable_progress_bar()
        try:
            yield
        finally:
            placing.setLevel(placing_level)
            logging.set_verbosity(level)
            if bars:
                logging.enable_progress_bar()
