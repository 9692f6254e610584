"""Import of vLLM's requests: files with the hidden states of transformers give what `extract` gives.

vLLM itself is not run here. The files are written as it writes them, in both orders of the axes.
"""

import csv
import json
from collections.abc import Callable
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hub_repos import N_LAYER, sentences, tiny_gpt2
from safetensors.torch import save_file
from transformers import GPT2Model
from vllm_files import run, token_lists

import probekit as pk
from probekit.activations.imports import run as array_imports
from probekit.activations.imports import vllm as planning
from probekit.cli.main import run as cli_run
from probekit.errors import DataError, ProbekitError, ResumeMismatch, UsageError

LAYERS = [0, 2, N_LAYER]
Folder = Callable[..., Path]


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gpt2")
    for name, data in tiny_gpt2().items():
        (folder / name).write_bytes(data)
    return folder


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts of several lengths, two of them equal."""
    rows = sentences(seed=1, n=24)
    path = tmp_path_factory.mktemp("task") / "films.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *((text.strip(), label) for text, label in [*rows, rows[3]])])
    return path


@pytest.fixture(scope="module")
def states(model_folder: Path, table: Path) -> list[tuple[list[int], torch.Tensor]]:
    """(tokens, [T, n_layers + 1, D]) of each text: inputs of the blocks and the last output, by transformers."""
    hf = GPT2Model.from_pretrained(model_folder).eval()
    return [run(hf, ids) for ids in token_lists(model_folder, table)]


@pytest.fixture
def write(tmp_path: Path) -> Folder:
    """Writes a file for each request, under names that say nothing of the texts."""

    def files(requests: list[tuple[list[int], torch.Tensor]], order: str = "TSD", layers: Any = LAYERS) -> Path:
        folder = tmp_path / f"requests{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        for number, (ids, x) in enumerate(requests):
            chosen = x[:, layers] if order == "TSD" else x[:, layers].transpose(0, 1)
            body = {"token_ids": torch.tensor(ids), "hidden_states": chosen.contiguous()}
            save_file(body, folder / f"req-{(number * 7) % len(requests):03d}.safetensors")
        return folder

    return files


def imported(source: Path, model: Path, table: Path, out: Path, **options: Any) -> Any:
    how = {"format": "vllm", "model": str(model), "dataset": str(table), "layers": LAYERS, **options}
    return pk.import_activations(source, out=out, **how)


@pytest.mark.parametrize(
    ("order", "position"), [("TSD", "last"), ("STD", "mean"), ("TSD", "all"), ("STD", "all"), ("TSD", 1)]
)
def test_the_rows_are_those_of_extract(
    states: Any,
    write: Folder,
    model_folder: Path,
    table: Path,
    tmp_path: Path,
    order: str,
    position: Any,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(planning, "SHARD_BYTES", 2000)
    store = imported(write(states, order), model_folder, table, tmp_path / "store", position=position)
    model, task = pk.load_model(model_folder), pk.load_task(str(table))
    wanted = pk.extract(model, task, points=["resid_pre", "resid_post"], position=position)
    assert [*store] == [("resid_pre", 0), ("resid_pre", 2), ("resid_post", N_LAYER - 1)]
    for place in store:
        assert store[place].shape == wanted[place].shape
        torch.testing.assert_close(store[place], wanted[place], rtol=1e-4, atol=1e-5)
    assert store.task.ids == wanted.task.ids
    assert store.layout.tokens is not None
    assert np.array_equal(store.layout.tokens, wanted.layout.tokens if wanted.layout.tokens is not None else [])
    store.verify()
    assert len(list((tmp_path / "store" / "shards").iterdir())) > 1
    with pytest.raises(ResumeMismatch, match="position"):
        imported(write(states, order), model_folder, table, tmp_path / "store", position="first")


def test_all_layers_need_no_list(states: Any, write: Folder, model_folder: Path, table: Path, tmp_path: Path):
    everything = write(states, layers=[*range(N_LAYER + 1)])
    store = imported(everything, model_folder, table, tmp_path / "store", layers=None)
    some = imported(write(states), model_folder, table, tmp_path / "some")
    assert [*store] == [*(("resid_pre", i) for i in range(N_LAYER)), ("resid_post", N_LAYER - 1)]
    for place in some:
        assert torch.equal(store[place], some[place])


def test_a_bos_is_found_from_the_tokens(states: Any, write: Folder, model_folder: Path, table: Path, tmp_path: Path):
    hf = GPT2Model.from_pretrained(model_folder).eval()
    end: Any = hf.config.eos_token_id
    with_bos = [run(hf, [end, *ids]) for ids, _ in states]
    store = imported(write(with_bos), model_folder, table, tmp_path / "store", position="mean")
    wanted = pk.extract(
        pk.load_model(model_folder), pk.load_task(str(table)), points="resid_pre", position="mean", bos=True
    )
    assert store.meta["bos"] is True
    torch.testing.assert_close(store["resid_pre", 2], wanted["resid_pre", 2], rtol=1e-4, atol=1e-5)


def test_equal_texts_share_a_file_or_have_their_own(
    states: Any, write: Folder, model_folder: Path, table: Path, tmp_path: Path
):
    assert states[3][0] == states[-1][0]
    one = imported(write(states[:-1]), model_folder, table, tmp_path / "one")
    assert torch.equal(one["resid_pre", 2][3], one["resid_pre", 2][-1])
    other = [*states[:-1], (states[-1][0], states[-1][1] + 1)]
    both = imported(write(other), model_folder, table, tmp_path / "both", verify=0)
    shift = both["resid_pre", 2][3] - both["resid_pre", 2][-1]
    assert torch.allclose(shift.abs(), torch.ones_like(shift), atol=1e-4)


def test_files_of_no_text_are_named_and_texts_without_a_file_are_refused(
    states: Any, write: Folder, model_folder: Path, table: Path, tmp_path: Path
):
    options = {"format": "vllm", "model": str(model_folder), "dataset": str(table), "layers": LAYERS}
    extra = [*states, ([5, 6], states[0][1][:2])]
    plan = planning.plan_requests(write(extra), pk.options.ImportArguments(**options))  # pyright: ignore
    assert len(plan.left_aside) == 1
    with pytest.raises(DataError, match=r"no file has the tokens of 2 texts of 25: 'films:1', 'films:2'; the first"):
        imported(write([states[0], *states[3:]]), model_folder, table, tmp_path / "store")


def refused(kind: type[ProbekitError], words: str, folder: Path, model: Path, table: Path, **options: Any) -> None:
    with pytest.raises(kind, match=words) as caught:
        imported(folder, model, table, folder / "nowhere", **options)
    assert "\n" not in str(caught.value)
    assert not (folder / "nowhere").exists()


def test_states_of_a_part_of_the_tokens_are_refused(states: Any, write: Folder, model_folder: Path, table: Path):
    for order in ("TSD", "STD"):
        part = [*states[:-2], (states[-2][0], states[-2][1][4:]), states[-1]]
        words = r"took the others from its prefix cache; run vLLM again with enable_prefix_caching=False"
        refused(DataError, words, write(part, order), model_folder, table)
    longer = [*states[:-1], (states[-1][0][:-1], states[-1][1])]
    refused(DataError, "more than its .* tokens; run vLLM again with max_tokens=1", write(longer), model_folder, table)


def test_an_order_that_no_shape_shows_is_asked_for(model_folder: Path, tmp_path: Path, write: Folder):
    """Three tokens in each text and three layers: both orders fit, and only one is right."""
    table = tmp_path / "three.csv"
    words = [f"{a} {b} {c},{i % 2}" for i, (a, b, c) in enumerate(permutations("abcd", 3))]
    table.write_text("\n".join(["text,label", *words]))
    hf = GPT2Model.from_pretrained(model_folder).eval()
    requests = [run(hf, ids) for ids in token_lists(model_folder, table)]
    assert {len(ids) for ids, _ in requests} == {3}
    folder = write(requests, "STD")
    with pytest.raises(UsageError, match="say it with --stack-axis"):
        imported(folder, model_folder, table, tmp_path / "no")
    store = imported(folder, model_folder, table, tmp_path / "store", stack_axis=0)
    wanted = pk.extract(pk.load_model(model_folder), pk.load_task(str(table)), points="resid_pre")
    torch.testing.assert_close(store["resid_pre", 2], wanted["resid_pre", 2], rtol=1e-4, atol=1e-5)


def test_what_does_not_fit_is_one_line(states: Any, write: Folder, model_folder: Path, table: Path, tmp_path: Path):
    folder = write(states)
    for wrong in ([2, 0, 3], [0, 0, 2], [], ["a"]):
        refused(UsageError, "--layers must be ascending numbers", folder, model_folder, table, layers=wrong)
    refused(UsageError, "--layers 4 is out of range", folder, model_folder, table, layers=[0, 1, 4])
    refused(DataError, "expected .* tokens and 2 layers in either order", folder, model_folder, table, layers=[0, 1])
    refused(UsageError, "--stack-axis 0 does not fit", folder, model_folder, table, stack_axis=0)
    refused(UsageError, "--point is for arrays", folder, model_folder, table, point="resid_pre")
    refused(UsageError, "--format vllm needs --dataset", folder, model_folder, table, dataset=None)
    joined = [(ids, x[:, LAYERS].flatten(1).unsqueeze(1)) for ids, x in states]
    refused(DataError, "3 layers in one row; write it as", write(joined, layers=0), model_folder, table)
    refused(DataError, r"expected .* tokens and 4 layers .* name the layers", folder, model_folder, table, layers=None)
    narrow = [(ids, x[..., :-1]) for ids, x in states]
    refused(DataError, "the model is 32 wide", write(narrow), model_folder, table)
    mixed = write(states)
    name = sorted(mixed.iterdir())[0]
    save_file(
        {
            "token_ids": torch.tensor(states[0][0]),
            "hidden_states": states[0][1][:, LAYERS].transpose(0, 1).contiguous(),
        },
        name,
    )
    refused(DataError, "in different orders", mixed, model_folder, table)
    save_file({"token_ids": torch.tensor([1, 2])}, name)
    refused(DataError, "expected hidden_states and token_ids as vLLM writes them", mixed, model_folder, table)
    bad = [*states[:-2], (states[-2][0], states[-2][1] * float("nan")), states[-1]]
    refused(DataError, "holds NaN or infinity", write(bad), model_folder, table)
    with pytest.raises(UsageError, match="--dataset is for --format vllm"):
        pk.import_activations(folder, dataset=str(table))


def test_half_precision_is_stored_as_it_came(
    states: Any, write: Folder, model_folder: Path, table: Path, tmp_path: Path
):
    half = [(ids, x.bfloat16()) for ids, x in states]
    store = imported(write(half), model_folder, table, tmp_path / "store")
    assert store["resid_pre", 2].dtype == torch.bfloat16
    assert torch.equal(store["resid_pre", 2][0], states[0][1][-1, 2].bfloat16())
    assert array_imports.import_activations is pk.import_activations


def test_the_command_says_what_it_found(
    states: Any, write: Folder, model_folder: Path, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    extra = [*states, ([5, 6], states[0][1][:2])]
    args = ["import", str(write(extra)), "--format", "vllm", "--model", str(model_folder), "--dataset", str(table)]
    args += ["--layers", "0,2,3", "--out", str(tmp_path / "store")]
    assert cli_run([*args, "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "[tokens, layers, width]" in said
    assert "1 file of no text" in said
    assert not (tmp_path / "store").exists()
    assert cli_run([*args, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["files"], found["stack_axis"], found["texts"]) == (25, 1, 25)
    assert pk.load_activations(found["store"]).n_examples == 25
