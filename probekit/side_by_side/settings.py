"""The settings of a run that decide its scores: how the activations were extracted, and how the probe was trained.

What is at its default in every version of probekit is left out, since older results do not list it.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

# options that another fact of the results names, or that decide no score
_NO_SETTING = {"label", "point", "probe", "position", "seed", "layers", "by", "check", "title", "random_init"}
_NO_SETTING |= {"aggregate", "C", "quick", "controls", "control_type", "control_C", "codelength", "intervals"}
_NO_SETTING |= {"baselines", "least_texts", "nuisance", "shift_column", "on_bad_row"}
OF_PROBE = "probe."  # begins the names of settings that other kinds of probes do not have, or mean differently
_SEEDS = ("random_state", "seed")  # parameters of estimators
_EXTRACTION = {"compute_dtype": "dtype", "dtype": "store_dtype", "bos": "bos", "via": "via", "quantize": "quantize"}
"""Entry of the activations' record -> the option that sets it."""


def settings_of(meta: Mapping[str, Any]) -> dict[str, str]:
    """Setting, such as "--bos" or "--probe.C" -> its name and value in words, such as "bos True".

    Args:
        meta: of the results.
    """
    known, estimator = meta.get("activations") or {}, meta.get("estimator") or {}
    given = {name: known.get(entry) for entry, name in _EXTRACTION.items()}
    given |= {"edits": _edits(known), **_reading(meta.get("reading") or {})}
    parameters = estimator.get("parameters") or {}
    given |= {f"{OF_PROBE}{name}": value for name, value in parameters.items() if name not in _SEEDS}
    given |= {f"{OF_PROBE}C": meta.get("C")}
    given |= {name: value for name, value in (meta.get("asked") or {}).items() if name not in _NO_SETTING}
    given |= {name: meta[name] for name in ("folds", "drop_leaks") if meta.get(name)}
    shown = {name: name.removeprefix(OF_PROBE) for name in given}
    return {f"--{name}": f"{shown[name]} {_text(one)}" for name, one in given.items() if one not in (None, False)}


def _edits(known: Mapping[str, Any]) -> str | None:
    """The edits of the model in words, with a digest that tells two directions from one another."""
    edits = known.get("edits")
    return None if not edits else f"{known.get('edited', '')} ({_digest([edits, known.get('edit_positions')])})".strip()


def _reading(reading: Mapping[str, Any]) -> dict[str, Any]:
    chat, long = reading.get("chat"), reading.get("on_long")
    found = {name: reading.get(name) for name in ("keep_blanks", "skip_special")}
    return found | {"on_long": None if long == "cut" else long, "chat_template": _digest(chat) if chat else None}


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:6]


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
