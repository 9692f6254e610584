"""Verified imports: states of transformers pass in every type, and each kind of wrong state is refused, and named.

vLLM itself is not run here. Its files, and arrays, are made of what transformers computes.
"""

import csv
import json
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hub_repos import N_EMBD, N_LAYER, sentences, tiny_gpt2
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import GPT2Model
from vllm_files import run, token_lists

import probekit as pk
from probekit.activations.imports.verify import verified_text
from probekit.cli.main import run as cli_run
from probekit.errors import DataError, ProbekitError, UsageError

States = list[tuple[list[int], Tensor]]  # tokens, and [T, n_layers + 1, D]
LAYERS = [*range(N_LAYER + 1)]
OUTPUT = f"resid_post.{N_LAYER - 1}"


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GPT-2 whose final norm is no plain one."""
    folder = tmp_path_factory.mktemp("gpt2")
    for name, data in tiny_gpt2().items():
        (folder / name).write_bytes(data)
    weights = load_file(folder / "model.safetensors")
    weights["ln_f.weight"] = 1 + torch.linspace(-0.5, 0.5, N_EMBD)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("task") / "films.csv"
    with path.open("w", newline="") as file:
        rows = [(text.strip(), label) for text, label in sentences(seed=2, n=24)]
        csv.writer(file).writerows([("text", "label"), *rows])
    return path


@pytest.fixture(scope="module")
def of_type(model_folder: Path, table: Path) -> Callable[..., States]:
    """The states that transformers computes in a type, with one of its attentions; `bos` puts one before each text."""

    def states(dtype: str, attention: str = "eager", bos: bool = False, folder: Path = model_folder) -> States:
        hf = GPT2Model.from_pretrained(folder, dtype=getattr(torch, dtype), attn_implementation=attention).eval()
        first = [int(hf.config.eos_token_id)] if bos else []  # pyright: ignore[reportArgumentType]
        return [run(hf, [*first, *ids]) for ids in token_lists(model_folder, table)]

    return states


@pytest.fixture(scope="module")
def states(of_type: Callable[..., States]) -> States:
    return of_type("float32")


@pytest.fixture
def vllm(tmp_path: Path, model_folder: Path, table: Path) -> Callable[..., Any]:
    """Imports states as the files of vLLM, which the model computed in this type."""

    def imported(states: States, layers: list[int] = LAYERS, **options: Any) -> Any:
        folder = tmp_path / f"requests{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        for number, (ids, x) in enumerate(states):
            body = {"token_ids": torch.tensor(ids), "hidden_states": x[:, layers].contiguous()}
            save_file(body, folder / f"{number}.safetensors")
        how = {"format": "vllm", "model": str(model_folder), "dataset": str(table), "layers": layers}
        return pk.import_activations(folder, **{**how, "out": folder / "store", **options})

    return imported


@pytest.fixture
def arrays(tmp_path: Path, model_folder: Path, table: Path) -> Callable[..., Any]:
    """Imports one row of each text as arrays, by the names of their places."""

    def imported(rows: dict[str, Tensor], **options: Any) -> Any:
        source = tmp_path / f"arrays{len(list(tmp_path.iterdir()))}.safetensors"
        save_file({name: x.contiguous() for name, x in rows.items()}, source)
        how = {"labels": table, "model": str(model_folder), "position": "last"}
        return pk.import_activations(source, **{**how, "out": source.with_suffix(""), **options})

    return imported


def rows_of(states: States, token: Callable[[Tensor], Tensor] = lambda x: x[-1]) -> dict[str, Tensor]:
    """One row of each text at each place."""
    names = [*(f"resid_pre.{i}" for i in range(N_LAYER)), OUTPUT]
    return dict(zip(names, torch.stack([token(x) for _, x in states]).unbind(1), strict=True))


def changed(states: States, change: Callable[[Tensor], Tensor]) -> States:
    return [(ids, change(x)) for ids, x in states]


@pytest.mark.parametrize(("position", "attention"), [("last", "sdpa"), ("mean", "eager"), ("all", "eager")])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_honest_states_of_every_type_are_verified(
    of_type: Any, vllm: Any, model_folder: Path, dtype: str, attention: str, position: str
):
    states = of_type(dtype, attention)
    record = vllm(states, position=position).meta["verified"]
    assert record["rows"] == 20
    assert record["model_fingerprint"] == pk.load_model(model_folder).fingerprint()
    assert [*record["errors"]] == [*rows_of(states)]
    assert all(error <= most < 0.1 for error, most in record["errors"].values())
    assert "20 rows against" in verified_text(record)


def test_the_errors_are_those_of_the_rows(of_type: Any, vllm: Any, states: States):
    """Every row is drawn, so that transformers in float32 says what was to be found."""
    low = of_type("bfloat16")
    record = vllm(low, verify=len(states)).meta["verified"]
    for place, x in rows_of(low).items():
        exact = rows_of(states)[place]
        wanted = ((x.double() - exact.double()).norm(dim=1) / exact.double().norm(dim=1)).max()
        assert record["errors"][place][0] == pytest.approx(float(wanted), rel=1e-3, abs=1e-6)


def test_a_run_in_bfloat16_that_was_saved_as_float32_is_known(of_type: Any, vllm: Any, arrays: Any):
    low = changed(of_type("bfloat16"), lambda x: x.float())
    assert vllm(low).meta["verified"]["rows"] == 20
    mean = rows_of(low, lambda x: x.mean(0))  # which bfloat16 does not hold
    with pytest.raises(DataError, match="agree to the precision of bfloat16 only, so store them in it"):
        arrays(mean, position="mean")
    assert arrays(mean, position="mean", dtype="bf16").meta["verified"]["rows"] == 20


def normed(hf: Any) -> Callable[[Tensor], Tensor]:
    def change(x: Tensor) -> Tensor:
        with torch.no_grad():
            return torch.cat([x[:, :-1], hf.ln_f(x[:, -1:])], 1)

    return change


def test_each_kind_of_wrong_state_is_named(of_type: Any, vllm: Any, states: States, model_folder: Path, tmp_path: Path):
    hf = GPT2Model.from_pretrained(model_folder).eval()
    other = tmp_path / "other"
    other.mkdir()
    for name, data in tiny_gpt2().items():
        (other / name).write_bytes(data)
    weights = load_file(model_folder / "model.safetensors")
    weights["h.1.mlp.c_fc.weight"] = weights["h.1.mlp.c_fc.weight"] * 1.3
    save_file(weights, other / "model.safetensors", metadata={"format": "pt"})
    weights = {name: x.flip(0) if name.startswith("wte") else x for name, x in weights.items()}
    wrong: list[tuple[States, str, dict[str, Any]]] = [
        (changed(states, lambda x: x.roll(-1, 1)), "the layers are shifted by one", {"layers": [0, 1]}),
        (changed(states, lambda x: x.roll(1, 1)), "the layers are shifted by one", {"layers": [1, 2]}),
        (changed(states, normed(hf)), "they are the output of the final norm", {}),
        (changed(states, lambda x: x.roll(1, 0)), "they are those of token", {}),
        (of_type("float32", folder=other), "they agree before resid_pre.2", {}),
        (changed(states, lambda x: x.flip(2)), "even the embeddings differ", {}),
        (changed(states, lambda x: x.flip(2)), "another model, other weights", {"layers": [1, 2]}),
    ]
    save_file(weights, other / "model.safetensors", metadata={"format": "pt"})
    wrong.append((of_type("float32", folder=other), "even the embeddings differ", {}))
    for number, (given, reason, options) in enumerate(wrong):
        out = tmp_path / f"refused{number}"
        with pytest.raises(DataError, match=r"of 20 rows( differ|: )") as caught:
            vllm(given, out=out, **options)
        assert reason in str(caught.value), number
        assert "\n" not in str(caught.value)
        assert not out.exists()
        assert vllm(given, verify=0, **options).meta["verified"] == {"rows": 0, "why_not": ""}


def test_one_wrong_row_is_found_if_it_is_drawn(vllm: Any, states: States, table: Path):
    given = list(states)
    given[7] = (given[7][0], given[7][1] * 1.01)
    with pytest.raises(DataError, match=r"example 'films:7' is 0\.01 .*1 of 24 rows differ"):
        vllm(given, verify=1000)
    drawn = [np.random.default_rng(seed).choice(len(states), 5, replace=False) for seed in range(9)]
    missed = next(seed for seed, rows in enumerate(drawn) if 7 not in rows)
    assert vllm(given, verify=5, seed=missed).meta["verified"]["rows"] == 5


def test_layers_that_change_less_than_rounding_are_told_apart(
    of_type: Any, vllm: Any, model_folder: Path, table: Path, tmp_path: Path
):
    """Blocks that add little: a shift by one is within the tolerance of bfloat16."""
    flat = tmp_path / "flat"
    flat.mkdir()
    for path in model_folder.iterdir():
        (flat / path.name).write_bytes(path.read_bytes())
    weights = load_file(flat / "model.safetensors")
    small = {name: x * 0.003 for name, x in weights.items() if name.endswith(("c_proj.weight", "c_proj.bias"))}
    save_file({**weights, **small}, flat / "model.safetensors", metadata={"format": "pt"})
    honest = of_type("bfloat16", folder=flat)
    assert vllm(honest, model=str(flat)).meta["verified"]["rows"] == 20
    with pytest.raises(DataError, match=r"are nearer to resid_pre\.2 of .* in \d+ of 20 rows: .* shifted by one"):
        vllm(changed(honest, lambda x: x.roll(-1, 1)), [1], model=str(flat))


def test_arrays_are_verified_against_a_named_model(of_type: Any, arrays: Any, states: States, model_folder: Path):
    store = arrays(rows_of(states))
    assert store.meta["verified"]["rows"] == 20
    assert (store.meta["model"], store.n_layers) == (model_folder.name, N_LAYER)
    hidden = {f"hidden_states_{i}": x for i, x in enumerate(rows_of(states).values())}
    with pytest.raises(DataError, match=rf"they are those of {OUTPUT}, before the final norm"):
        arrays(hidden)
    with pytest.raises(DataError, match="they were computed with a BOS"):
        arrays(rows_of(of_type("float32", bos=True)))
    with pytest.raises(DataError, match="they are those of token 0 of the text"):
        arrays(rows_of(states, lambda x: x[0]))
    with pytest.raises(DataError, match="in another order"):
        arrays({name: x.roll(1, 0) for name, x in rows_of(states, lambda x: x.mean(0)).items()}, position="mean")


def test_noise_at_the_first_layer_is_not_another_token(arrays: Any, states: States):
    """Later layers may be off by more, and a token is not mistaken for itself."""
    rows = rows_of(states)
    allowed = {place: most for place, (_, most) in arrays(rows).meta["verified"]["errors"].items()}
    assert allowed["resid_pre.0"] < max(allowed.values())
    first = rows["resid_pre.0"]
    noise = torch.randn(first.shape, generator=torch.Generator().manual_seed(0))
    noise = 1.2 * allowed["resid_pre.0"] * noise * (first.norm(dim=1) / noise.norm(dim=1))[:, None]
    with pytest.raises(DataError, match=r"resid_pre\.0 of example .* of 20 rows differ: ") as caught:
        arrays({**rows, "resid_pre.0": first + noise})
    assert "they are those of" not in str(caught.value)


def test_what_arrays_need_to_be_verified_is_asked_for(arrays: Any, states: States, table: Path):
    rows = rows_of(states)
    wrong: list[tuple[type[ProbekitError], str, dict[str, Any]]] = [
        (UsageError, "name the model with --model", {"model": None, "verify": 3}),
        (UsageError, "say which with --position", {"position": None}),
        (UsageError, "leaves nothing for it to do", {"verify": 0}),
        (UsageError, "has 3; leave it out", {"n_layers": 5}),
        (UsageError, "verify with the --position of one token", {"position": "all"}),
    ]
    for kind, words, options in wrong:
        with pytest.raises(kind, match=words):
            arrays(rows, **options)
    with pytest.raises(DataError, match=r"resid_pre\.0 is 31 wide in the arrays and 32 in"):
        arrays({"resid_pre.0": rows["resid_pre.0"][:, 1:]})


def test_without_the_weights_nothing_is_verified_unless_asked(
    vllm: Any, states: States, model_folder: Path, tmp_path: Path
):
    bare = tmp_path / "bare"
    bare.mkdir()
    for path in model_folder.iterdir():
        if path.suffix not in (".safetensors", ".bin"):
            (bare / path.name).write_bytes(path.read_bytes())
    record = vllm(states, model=str(bare)).meta["verified"]
    assert record["rows"] == 0
    assert "model.safetensors" in record["why_not"]
    assert verified_text(record).startswith("no (")
    with pytest.raises(DataError, match=r"model\.safetensors"):
        vllm(states, model=str(bare), verify=2)


def test_the_command_and_the_report_say_what_was_verified(
    vllm: Any, states: States, model_folder: Path, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    folder = Path(vllm(states).path).parent
    args = ["import", str(folder), "--format", "vllm", "--model", str(model_folder), "--dataset", str(table)]
    args += ["--verify", "4", "--out", str(tmp_path / "store")]
    assert cli_run([*args, "--dry-run"]) == 0
    assert "4 rows against the forward pass of" in capsys.readouterr().out
    assert cli_run([*args, "--json"]) == 0
    said = capsys.readouterr()
    record = json.loads(said.out)["verified"]
    assert (record["rows"], record["seed"]) == (4, 0)
    assert verified_text(record) in said.err
    assert cli_run(["ls", str(tmp_path / "store")]) == 0
    assert "; 4 rows verified" in capsys.readouterr().out
    results = pk.train_probes(pk.load_activations(tmp_path / "store"), random_init=None)
    assert results.meta["activations"]["verified"] == record
    results.save(tmp_path / "store" / "results")
    assert cli_run(["report", str(tmp_path / "store" / "results"), "--out", str(tmp_path / "page.html")]) == 0
    assert verified_text(record) in unescape((tmp_path / "page.html").read_text())
    assert cli_run(["import", str(folder), *args[2:-4], "--verify", "5", "--out", str(tmp_path / "store")]) == 5
