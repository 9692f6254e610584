"""Inputs of an attacker, or of a bad day: each is given to a command in a child of bounded memory and time.

Every outcome is success or an error of probekit in one line that is not long: never a traceback, a hang or a signal.
"""

import importlib
import itertools
import json
import os
import resource
import shutil
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from children import Child, End
from small import given, run, run_cli
from tokenizers import Tokenizer, models, pre_tokenizers

from probekit.cli import main as program
from probekit.errors import ProbekitError
from probekit.models import tokenizer_trial
from probekit.models.families.gpt2 import GPT2, GPT2Config
from probekit.models.tokenizer import Tokenizer as OurTokenizer
from probekit.models.weights import save_hf

MEMORY = 3 << 30  # bytes that a child may add to those of the process that it is forked from
PATIENCE = 60  # seconds; a child of a busy machine takes 2
LONGEST = 1500  # characters of a message
# imported before children are forked
WARM = (
    "yaml",
    "pandas",
    "pyarrow.parquet",
    "matplotlib.pyplot",
    "sklearn.linear_model",
    "probekit.plots",
)  # before forks
CODES = (0, 2, 3, 4, 5)
DEEP = "[" * 100_000
VALUES = ["null", "true", "5", "-1", "0.5", "1" + "0" * 25, "1" * 5000, "1e308", "1e999", "NaN", str(2**200)]
VALUES += ['""', '"x"', '"\\u001b[2J"', '"resid_pre"', '"' + "y" * 100_000 + '"']
VALUES += ["[]", "{}", '["a"]', "[[1, 2], [3]]", '{"a": {"a": 1}}', DEEP]

Work = Callable[[], int]


class Case(NamedTuple):
    """What is done to which file, and the command that meets it."""

    what: str
    work: Work


class Bench:
    """Good inputs of every kind, and a copy of them for each case."""

    def __init__(self, folder: Path, rng: np.random.Generator):
        self.folder, self.rng, self.good = folder, rng, folder / "good-inputs"
        self.good.mkdir()
        tokenizer_trial.SECONDS = 2
        for name in WARM:
            importlib.import_module(name)
        _write_inputs(self.good)
        run(self.good / "store")
        end = Child(partial(_train, self.good)).end(PATIENCE)
        assert end.is_done, end
        assert end.value == 0, end

    def copy(self) -> Path:
        """The inputs again, where the working folder of the child is."""
        place = self.folder / "inputs"
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(self.good, place)
        return place

    def pick(self, values: Any) -> Any:
        """One of them by chance."""
        return list(values)[int(self.rng.integers(len(values)))]


def _write_inputs(folder: Path) -> None:
    words = ["good", "bad", "film", "a", "the", "?"]
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, "?"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    model = GPT2(GPT2Config(d_model=8, n_heads=2, d_mlp=8, n_layers=2, n_ctx=12, d_vocab=len(words))).init_weights(0)
    model.tokenizer = OurTokenizer(backend)
    save_hf(model, folder / "model")
    (folder / "model/tokenizer_config.json").write_text(json.dumps({"bos_token": "a"}))
    pairs = [(label, word) for label in words[:2] for word in words[:2]]
    rows = [(f"the {label} film {'a ' * i}{word}", label) for i in range(8) for label, word in pairs]
    (folder / "data.csv").write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in rows))
    lines = [json.dumps({"text": text, "label": label}) for text, label in rows]
    (folder / "data.jsonl").write_text("\n".join(lines))
    (folder / "config.yaml").write_text("extract: {layers: all, points: [resid_pre, q], limit: 20, batch-tokens: 64}\n")
    (folder / "acts").mkdir()
    for layer in (0, 1):
        np.save(folder / f"acts/resid_pre.{layer}.npy", np.random.default_rng(layer).normal(size=(30, 4)).astype("f4"))
    (folder / "labels.csv").write_text("label\n" + "yes\nno\n" * 15)


def _train(folder: Path) -> int:
    os.chdir(folder)
    return _command("train-probe", "store", "--layer", "0", "--probe", "ridge", "--quiet", "--out", "results")


def _command(*args: str) -> int:
    return program.run(list(args))


# what is done to a file -----------------------------------------------------------------------------------------------


def _no_file(path: Path, how: str) -> None:
    path.unlink()
    if how == "pipe":
        os.mkfifo(path)
    elif how == "folder":
        path.mkdir()
    elif how == "sparse":
        with path.open("wb") as file:
            file.truncate(1 << 40)
    elif how == "empty":
        path.write_bytes(b"")
    elif how != "missing":
        path.symlink_to({"device": "/dev/zero", "nowhere": "nowhere", "itself": path.name, "tty": "/dev/ptmx"}[how])


NO_FILES = ("pipe", "device", "tty", "nowhere", "itself", "folder", "sparse", "empty", "missing")


def _value_in_json(text: str, rng: np.random.Generator) -> str:
    """The JSON with one value, however deep, replaced by one that nobody expects."""
    content = json.loads(text)
    places: list[tuple[Any, Any]] = []
    nodes = [content]
    while nodes:
        node = nodes.pop()
        if isinstance(node, dict | list):
            places += [(node, key) for key in (node if isinstance(node, dict) else range(len(node)))]
            nodes += node.values() if isinstance(node, dict) else node
    value = VALUES[int(rng.integers(len(VALUES)))]
    if not places or rng.random() < 0.05:
        return value
    node, key = places[int(rng.integers(len(places)))]
    if rng.random() < 0.15:
        del node[key]
        return json.dumps(content)
    node[key] = "here stands the value"
    return json.dumps(content).replace('"here stands the value"', value)


def _bytes_in(data: bytes, rng: np.random.Generator) -> bytes:
    """Bits flipped, cut short, or repeated."""
    how, bad = int(rng.integers(3)), bytearray(data)
    for _ in range(int(rng.integers(1, 9)) if how == 0 else 0):
        bad[int(rng.integers(len(bad)))] ^= 1 << int(rng.integers(8))
    at = int(rng.integers(len(bad)))
    return bytes(bad) if how == 0 else bytes(bad[:at]) if how == 1 else bytes(bad[at:] + bad)


def _alter(path: Path, rng: np.random.Generator) -> str:
    """Do one of these to a file; in words."""
    how = int(rng.integers(3))
    if how == 0:
        kind = NO_FILES[int(rng.integers(len(NO_FILES)))]
        _no_file(path, kind)
        return f"{path.name} is {kind}"
    if how == 1 and path.suffix == ".json":
        path.write_text(_value_in_json(path.read_text(), rng))
        return f"a value in {path.name}"
    if how == 1 and path.suffix == ".safetensors":
        data = path.read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        head = _value_in_json(data[8 : 8 + length].decode(), rng).encode()
        path.write_bytes(struct.pack("<Q", len(head)) + head + data[8 + length :])
        return f"a value in the header of {path.name}"
    path.write_bytes(_bytes_in(path.read_bytes(), rng))
    return f"bytes of {path.name}"


# the commands ---------------------------------------------------------------------------------------------------------

EXTRACT = ["extract", "--model", "model", "--dataset", "data.csv", "--quiet", "--out", "new"]


def _model(bench: Bench) -> Case:
    place = bench.copy()
    name = bench.pick(["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"])
    return Case(f"model: {_alter(place / 'model' / name, bench.rng)}", partial(_command, *EXTRACT))


NUMBERS = ("layer_norm_epsilon", "n_embd", "n_head", "n_layer", "n_positions", "vocab_size", "n_inner", "bos_token_id")
ODD = (2**200, 10**30, -1, 0, 1e308, 1e-320, True, "8", [8], None, 10**9, 2**31)


def _config_number(bench: Bench) -> Case:
    place, name, value = bench.copy(), bench.pick(NUMBERS), bench.pick(ODD)
    config = json.loads((place / "model/config.json").read_text()) | {name: value}
    (place / "model/config.json").write_text(json.dumps(config))
    command = bench.pick(
        [EXTRACT, ["params", "--model", "model"], ["params", "--model", "model", "--batch", str(10**12)]]
    )
    return Case(f"config.json: {name} = {value}", partial(_command, *command))


def _split(regex: str) -> dict[str, Any]:
    return {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}}


def _template(single: Any, special: Any) -> dict[str, Any]:
    kind = {"type": "TemplateProcessing", "single": single, "pair": [], "special_tokens": special}
    return {"post_processor": kind}


_REPLACE = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 1000}
TOKENIZERS = [
    _split("(\\w+)+$"),
    _split("\\w*\\w*\\w*[^\\w]"),
    _split("("),
    _split("(?<=a+)b"),
    {"normalizer": {"type": "Sequence", "normalizers": [_REPLACE] * 5}},
    {"normalizer": {"type": "Prepend", "prepend": "x" * 1_000_000}},
    _template([{"SpecialToken": {"id": "[X]", "type_id": 0}}], {}),
    _template([{"Sequence": {"id": "B", "type_id": 0}}], {}),
    _template([], {"[X]": {"id": "[X]", "ids": [10**9], "tokens": ["a"]}}),
    _template(5, 5),
    {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": 5}},
    {"model": {"type": "BPE", "vocab": {"a": 0, "b": 5_000_000}, "merges": []}},
    {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}},
    {"model": {"type": "Unigram", "vocab": [], "unk_id": 7}},
    {"model": {"type": "Unigram", "vocab": [["a", -1e308]], "unk_id": 0, "byte_fallback": True}},
    {"model": {"type": "WordPiece", "vocab": {}, "unk_token": "[UNK]", "continuing_subword_prefix": "##"}},
    {"added_tokens": [{"id": -1, "content": "x"}]},
    {"added_tokens": 5},
    {"padding": {"strategy": {"Fixed": 1_000_000_000}}},
    {"truncation": {"max_length": 0}},
]


def _tokenizer(bench: Bench) -> Case:
    place, changes = bench.copy(), bench.pick(TOKENIZERS)
    path = place / "model/tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    if bench.rng.random() < 0.3:
        settings = {bench.pick(["bos_token", "eos_token", "unk_token"]): bench.pick([["a"], 5, {"content": 5}, "zzz"])}
        (place / "model/tokenizer_config.json").write_text(json.dumps(settings))
    return Case(f"tokenizer.json: {json.dumps(changes)[:80]}", partial(_command, *EXTRACT))


def _bomb(text: str) -> str:
    names = "abcdefghij"
    lines = [f"a: &a {text}"]
    lines += [f"{one}: &{one} [{', '.join([f'*{other}'] * 10)}]" for other, one in itertools.pairwise(names)]
    return "\n".join([*lines, "extract: {points: *j}"])


def _merged() -> str:
    names = "abcdefghij"
    lines = ["a: &a {layers: all}"]
    for other, one in itertools.pairwise(names):
        lines.append(f"{one}: &{one} {{<<: [{', '.join([f'*{other}'] * 10)}]}}")
    return "\n".join([*lines, "extract: *j"])


CONFIGS = [
    _bomb("lol"),
    _bomb("[lol, lol]"),
    _merged(),
    "extract: &a [*a]",
    "extract: &a {points: *a}",
    "&a [*a]",
    "extract: {limit: !!float x}",
    "extract: {limit: !!int ''}",
    "extract: {limit: !!timestamp 99999}",
    "extract: {limit: !!binary 5}",
    "extract: {limit: !!bool 7}",
    "extract: {limit: !!python/object/apply:os.system [ls]}",
    "extract: {limit: !!omap 5}",
    "extract: {limit: !!set [1]}",
    "extract: {limit: " + "9" * 5000 + "}",
    "extract: {limit: 0x" + "f" * 5000 + "}",
    "extract: {limit: " + "1:" * 5000 + "1}",
    "extract: {limit: 99999999999999999999}",
    "extract: {batch-tokens: 99999999999999999999}",
    "extract: {seed: -5}",
    "extract: {layers: 0-999999999999}",
    "extract: {layers: " + "9" * 5000 + "}",
    "extract: {points: [[[[resid_pre]]]]}",
    "extract: {? [a, b] : c}",
    "extract: {? {a: b} : c}",
    "extract: {2026-01-01: 5, 1.5: 6}",
    "extract: {limit: 2026-01-01}",
    "extract: " + "[" * 100_000,
    "extract: " + "{a: " * 10_000,
    "- " * 100_000,
    "\x00",
    "\ufeff\ufeffextract: 5",
    "extract: 'open",
    "%YAML 9.9\n---\nextract: {}",
    "--- 1\n--- 2",
    "extract: {" + ", ".join(f"k{i}: 1" for i in range(20_000)) + "}",
    "\x1b[2J: 5",
    "x" * 3_000_000,
]


def _config(bench: Bench) -> Case:
    place = bench.copy()
    text = bench.pick(CONFIGS)
    (place / "config.yaml").write_text(text)
    what = f"config {text[:60]!a}" if bench.rng.random() < 0.7 else _alter(place / "config.yaml", bench.rng)
    return Case(what, partial(_command, "extract", "--config", "config.yaml", *EXTRACT[1:]))


TABLES = [
    b"text,label\n" + b'"open,a\n' * 5,
    b"text,label\n" + b"\x00,a\n" * 30,
    b"text,label\n" + b"\xff\xfe,a\n" * 30,
    b",".join(b"c%d" % i for i in range(100_000)) + b"\n" + b",".join([b"x"] * 100_000) + b"\n",
    b"text,label\n" + b"x" * 2_000_000 + b",a\n",
    b"text,text\na,b\n",
    b"\xef\xbb\xbf",
    b"\n" * 100_000,
    b"text,label\n" + b"\x1b[2J,\x1b[31m\n" * 30,
    b"text,label\n" + b",\n" * 30,
]
ROWS = ["[1]", "5", "null", "{}", DEEP, '{"text": ' + "9" * 5000 + "}", '{"text": {"a": 1}, "label": []}', "{" * 5000]
ROWS += ['{"text": "a", "label": 1e999}', '{"text": "a", "label": NaN}', '{"text": "\\ud800", "label": "a"}']


def _table(bench: Bench) -> Case:
    place, kind = bench.copy(), bench.pick([".csv", ".tsv", ".jsonl", ".parquet", ".conllu", "altered"])
    path = place / f"data{kind if kind != 'altered' else '.csv'}"
    if kind == "altered":
        what = _alter(path, bench.rng)
    elif kind == ".jsonl":
        row = bench.pick(ROWS)
        what = f"row {row[:40]!a}"
        path.write_text(f"{path.read_text()}\n{row}\n" if bench.rng.random() < 0.5 else f"{row}\n" * 30)
    else:
        data = bench.pick(TABLES)
        what = f"{path.name} {data[:40]!a}"
        path.write_bytes(data)
    command = [path.name if part == "data.csv" else part for part in EXTRACT]
    return Case(f"table: {what}", partial(_command, *command))


HEADERS = [
    "{'descr': '<f4', 'fortran_order': False, 'shape': (30, 4), ",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (30, 4",
    "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (30,)}",
    "{'descr': [[[]]], 'fortran_order': False, 'shape': (30,)}",
    "{'descr': '|O', 'fortran_order': False, 'shape': (30,)}",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 4)}",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (" + "9" * 4000 + ", 4)}",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (" + "2, " * 3000 + ")}",
    "{'descr': '<f4', 'fortran_order': 5, 'shape': 'x'}",
    "{'descr': '<U1000000000', 'fortran_order': False, 'shape': (30,)}",
    "{'descr': {}, 'fortran_order': False, 'shape': (30L, 4L)}",
    "__import__('os')",
    "[" * 5000,
    "'''",
    "\x00" * 50,
    "",
    "{1: 2}",
    "-" * 9000 + "1",
]
NAMES = (
    "resid_pre.99999999999",
    "resid_pre.5",
    "resid_pre." + "9" * 200,
    "hidden_states_9999",
    "7777",
    "\x1b[2J",
    "embed.3",
)


def _arrays(bench: Bench) -> Case:
    place, how = bench.copy(), bench.pick(["header", "header", "name", "altered"])
    path = place / "acts/resid_pre.0.npy"
    if how == "header":
        text = bench.pick(HEADERS).encode()
        data = path.read_bytes()[128:]
        path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data)
        what = f"header {text[:60]!a}"
    elif how == "name":
        what = bench.pick(NAMES)
        path.rename(path.with_name(f"{what}.npy"))
    else:
        what = _alter(path, bench.rng)
    command = ("import", "acts", "--labels", "labels.csv", "--point", "resid_pre", "--out", "new", "--quiet")
    return Case(f"arrays: {what}", partial(_command, *command))


def _store(bench: Bench) -> Case:
    place = bench.copy()
    files = sorted(path for path in (place / "store").rglob("*") if path.is_file())
    what = _alter(bench.pick(files), bench.rng)
    commands = [
        ("verify", "store"),
        ("ls", "."),
        ("train-probe", "store", "--layer", "0", "--probe", "ridge", "--quiet"),
    ]
    command = bench.pick([*commands, None, "repair"])
    if command is None:
        return Case(f"store: {what}; extract again", partial(run_cli, Path("store")))
    return Case(f"store: {what}; {command}", _repaired if command == "repair" else partial(_command, *command))


def _repaired() -> int:
    """Repair says that a store is complete only where it then verifies and loads."""
    from probekit.activations import load_activations, repair, verify

    try:
        done = repair("store", given()[0])
    except ProbekitError as error:
        return _told(error)
    if done.complete and not done.left:
        assert verify("store").is_sound
        load_activations("store")
    return 0


def _told(error: ProbekitError) -> int:
    os.write(2, f"probekit: error: {error}\n".encode())
    return error.exit_code


def _results(bench: Bench) -> Case:
    place = bench.copy()
    files = sorted(path for path in (place / "results").rglob("*") if path.suffix in (".json", ".safetensors"))
    what = _alter(bench.pick(files), bench.rng)
    if bench.rng.random() < 0.3:
        again = ("train-probe", "store", "--layer", "0", "--probe", "ridge", "--quiet", "--out", "results")
        return Case(f"results: {what}; train again", partial(_command, *again))
    return Case(f"results: {what}", _loaded)


def _loaded() -> int:
    from probekit import ProbeResults, load_probe

    code = 0
    for load in (lambda: ProbeResults.load("results").summary(), lambda: load_probe("results/probes/resid_pre.0")):
        try:
            load()
        except ProbekitError as error:
            code = _told(error)
    return code


OPTIONS = [
    "--layers",
    "--limit",
    "--batch-tokens",
    "--seed",
    "--position",
    "--points",
    "--dtype",
    "--device",
    "--split",
]
WORDS = [
    "0-999999999999",
    "9" * 5000,
    "-1",
    "0",
    "all," * 5000,
    "\x1b[2J",
    "",
    "1e308",
    "resid_pre." + "9" * 5000,
    "0-1," * 9000,
]
WORDS += ["resid_pre." + "9" * 5000, str(2**63), str(10**25), "nan", "\udcff", "../../../etc/passwd", "٣"]


def _options(bench: Bench) -> Case:
    place, option, word = bench.copy(), bench.pick(OPTIONS), bench.pick(WORDS)
    assert place.is_dir()
    return Case(f"option {option} {word[:40]!a}", partial(_command, *EXTRACT, f"{option}={word}"))


KINDS = (_model, _config_number, _tokenizer, _config, _table, _arrays, _store, _results, _options)


def one_case(bench: Bench, k: int) -> tuple[str, list[str], End]:
    """Make one case and meet it: in words, what was wrong with the outcome, and how the child ended."""
    case = KINDS[k % len(KINDS)](bench)
    end = Child(partial(_bounded, case.work, bench.folder / "inputs")).end(PATIENCE)
    return case.what, _flaws(end), end


def _bounded(work: Work, place: Path) -> int:
    os.chdir(place)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY, resource.RLIM_INFINITY))
    return work()


def _flaws(end: End) -> list[str]:
    if not end.is_done or end.value not in CODES:
        return [f"ended with {end.code}, {end.value}: {end.stderr[-1500:]}"]
    lines = [line for line in end.stderr.splitlines() if line.startswith("probekit: error:")]
    if "Traceback" in end.stderr or (end.value and not lines):
        return [f"exit {end.value}: {end.stderr[-1500:]}"]
    return [f"a message of {len(line):,} characters: {line[:200]}" for line in lines if len(line) > LONGEST]
