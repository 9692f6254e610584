"""Save a fitted probe as two files: arrays in safetensors, everything else in JSON. No pickle."""

import hashlib
import io
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import numpy as np
import safetensors
import safetensors.numpy

from probekit.errors import DataError, nearest
from probekit.files.durable import write_as
from probekit.files.plain_files import MAX_RESULTS, MAX_WEIGHTS, read_bytes
from probekit.files.records import INFINITY, Plain, describing, parse_record, read_as
from probekit.files.safetensors_header import read_header
from probekit.text import listed, printable

FORMAT = "probekit.probe/1"
LARGEST_WEIGHT = 1e150  # whose square is finite; the smallest feature that can be fitted is 1e-150


class _ProbeFile(TypedDict):
    probe: str
    parameters: dict[str, Plain]
    classes: NotRequired[list[bool | int | float | str]]
    classes_dtype: NotRequired[str]
    converged: bool
    n_iter: int
    facts: dict[str, float | None]
    sha256: str
    feature_names: NotRequired[list[str]]
    label_names: NotRequired[list[str]]


def write_probe(probe: Any, path: str | Path) -> tuple[Path, bytes]:
    """Write the fitted probe as `path`.safetensors and `path`.json; returns the latter and what is in it."""
    stem, (text, weights) = _stem(path), probe_bytes(probe)
    write_as(Path(f"{stem}.safetensors"), weights)
    write_as(Path(f"{stem}.json"), text)
    return Path(f"{stem}.json"), text


def probe_bytes(probe: Any) -> tuple[bytes, bytes]:
    """The content of the two files of a fitted probe: JSON and safetensors.

    Raises:
        DataError: class labels or parameters that are not numbers, booleans or strings.
    """
    # safetensors writes the raw buffer, so an array in Fortran order would come back scrambled
    arrays = {name.removesuffix("_"): np.array(getattr(probe, name), order="C") for name in probe.ARRAYS}
    weights, classes = safetensors.numpy.save(arrays), {}
    if hasattr(probe, "classes_"):
        plain = probe.classes_.tolist()
        if probe.classes_.dtype.kind not in "iufbU" and not all(isinstance(c, str) for c in plain):
            raise DataError(f"class labels must be numbers, booleans or strings to be saved; got {plain[0]!a}")
        classes = {"classes": plain, "classes_dtype": probe.classes_.dtype.str}
    facts = {name: getattr(probe, name, None) for name in probe.FACTS}
    facts = {name: math.inf if value is None else value for name, value in facts.items()}  # JSON has no infinity
    about = {
        "format": FORMAT,
        "probe": type(probe).__name__,
        "parameters": {name: _plain(name, value) for name, value in probe.get_params(deep=False).items()},
        **classes,
        "converged": bool(probe.converged_),
        "n_iter": int(probe.n_iter_),
        "facts": {name: float(value) if math.isfinite(value) else None for name, value in facts.items()},
        "sha256": hashlib.sha256(weights).hexdigest(),
    }
    if getattr(probe, "_names", None) is not None:
        about["label_names"] = list(probe.label_names_)
    if hasattr(probe, "feature_names_in_"):
        about["feature_names"] = list(probe.feature_names_in_)
    return json.dumps(about, indent=1, allow_nan=False).encode(), weights


def read_probe(path: str | Path, known: Mapping[str, Callable[[], Any]]) -> Any:
    """Load the probe at `path`.safetensors and `path`.json, of one of the classes `known` (name -> class).

    Raises:
        DataError: missing or damaged files, or files that are not a complete probe.
    """
    stem = _stem(path)
    try:
        text = read_bytes(f"{stem}.json", MAX_RESULTS)
        weights = read_bytes(f"{stem}.safetensors", MAX_WEIGHTS)
        about = parse_record(text)
    except FileNotFoundError as error:
        raise DataError(
            f"no probe here: {str(error.filename)!a} is missing; give the path that it was saved to, or train again"
        ) from None
    except (OSError, ValueError) as error:
        raise DataError(f"could not read the probe {stem!a}: {printable(error)}; train or save it again") from None
    return probe_from(about, weights, stem, known)


def probe_from(about: Any, weights: bytes, stem: str, known: Mapping[str, Callable[[], Any]]) -> Any:
    """The probe of two files' parsed and raw content; `stem` names them in messages.

    Raises:
        DataError: as `read_probe`.
    """
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise DataError(f"{stem + '.json'!a} is not a probe's file of format {FORMAT}; train or save the probe again")
    with describing(Path(f"{stem}.json"), "train or save the probe again"):
        about = read_as(_ProbeFile, about)
    if about["probe"] not in known:
        raise DataError(f"{stem + '.json'!a}: unknown probe; {nearest(about['probe'], known)}")
    if about["sha256"] != hashlib.sha256(weights).hexdigest():
        raise DataError(
            f"{stem + '.safetensors'!a} is damaged or does not belong to its .json; train or save the probe again"
        )
    try:
        return _restored(known[about["probe"]](), about, _arrays(weights))
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError, safetensors.SafetensorError) as error:
        raise DataError(
            f"{stem + '.json'!a} is not a complete probe ({printable(error):.300}); train or save it again"
        ) from None


def _arrays(weights: bytes) -> dict[str, np.ndarray]:
    """The arrays of a file, once its header is known to describe it; all finite.

    Raises:
        ValueError: they are not.
    """
    read_header(io.BytesIO(weights))
    arrays = safetensors.numpy.load(weights)
    for name, x in arrays.items():
        if x.dtype not in ("f4", "f8", "i8") or not (np.abs(x.astype(np.float64)) <= LARGEST_WEIGHT).all():
            raise ValueError(f"{name} is not of finite numbers of 4 or 8 bytes, of at most {LARGEST_WEIGHT:g}")
    return arrays


def _restored(probe: Any, about: _ProbeFile, arrays: dict[str, np.ndarray]) -> Any:
    given = about["parameters"]
    probe.set_params(**{name: math.inf if value == INFINITY else value for name, value in given.items()})
    expected = [name.removesuffix("_") for name in probe.ARRAYS]
    if sorted(arrays) != sorted(expected):
        raise ValueError(f"expected the arrays {listed(expected)}, got {listed(sorted(arrays))}")
    for name in probe.ARRAYS:
        array = arrays[name.removesuffix("_")]
        if (array.dtype.kind == "i") != (name in probe.WHOLE):
            raise ValueError(f"{name.removesuffix('_')} of type {array.dtype}")
        setattr(probe, name, array)
    if "classes" in about:
        probe.classes_ = _class_array(about["classes"], about.get("classes_dtype", ""))
    if "label_names" in about:
        probe.label_names_ = about["label_names"]
    probe._check_arrays()
    if "feature_names" in about:
        names = about["feature_names"]
        if len(names) != probe.n_features_in_:
            raise ValueError(f"{len(names)} names for {probe.n_features_in_} features")
        probe.feature_names_in_ = np.array(names, dtype=object)
    probe.converged_, probe.n_iter_ = about["converged"], about["n_iter"]
    for name in probe.FACTS:
        value = about["facts"][name]
        setattr(probe, name, math.inf if value is None else value)
    return probe


def _class_array(given: list[Any], named: str) -> np.ndarray:
    """The class labels, each once and in their order, exactly as they were written.

    A text type has room for the longest, and no more.
    """
    dtype, longest = np.dtype(named), max((len(one) for one in given if isinstance(one, str)), default=0)
    if dtype.kind not in "iufbUO" or dtype.itemsize > max(16, 4 * longest):
        raise ValueError(f"classes of type {dtype}")
    classes = np.array(given, dtype=dtype)
    if classes.tolist() != given or len(given) < 2 or sorted(set(given)) != given:
        raise ValueError("classes are not two or more labels of one type, in their order")
    return classes


def _plain(name: str, value: Any) -> Any:
    value = value.item() if isinstance(value, np.generic) else value
    if value == math.inf:
        return INFINITY  # JSON has no infinity
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise DataError(f"{name} must be a number, a string or None to be saved; got {value!a}")


def _stem(path: str | Path) -> str:
    text = str(path)
    for ending in (".safetensors", ".json"):
        text = text.removesuffix(ending)
    return text
