"""`probekit import`: from files of other programs to the picture, what is printed, and what each error ends with."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from probekit.activations import load_activations
from probekit.activations.imports import plan as import_plan
from probekit.activations.imports import run as imports
from probekit.cli.main import run
from probekit.errors import UsageError
from probekit.models import load_model
from probekit.options.kinds import stacked_layers
from probekit.tasks import load_task
from probekit.verbs.extract import extract

Capture = pytest.CaptureFixture[str]
N, D = 120, 5


@pytest.fixture
def acts(here: Path) -> Path:
    """Three layers in which a class is written more and more strongly, and a CSV of labels."""
    rng = np.random.default_rng(0)
    y = np.arange(N) % 2
    (here / "acts").mkdir()
    for layer in range(3):
        x = rng.normal(size=(N, D)) + 2 * layer * y[:, None]
        np.save(here / "acts" / f"blocks.{layer}.hook_resid_pre.npy", x.astype(np.float32))
    (here / "y.csv").write_text("label\n" + "".join(f"{'yes' if k else 'no'}\n" for k in y))
    return here / "acts"


JOB = ["import", "acts", "--labels", "y.csv", "--model-name", "theirs"]


def test_imported_activations_are_probed_as_any_others(acts: Path, capsys: Capture) -> None:
    assert run(JOB) == 0
    out, err = capsys.readouterr()
    path = Path(out.strip())
    assert path.parent == Path("runs")
    assert path.name.startswith("theirs-y-resid_pre-import-")
    assert "theirs: 3 layers" in err
    assert "no bag-of-words baseline" in err.replace("there will be ", "")
    assert run(["train-probe", "--probe", "mean-diff"]) == 0
    out = capsys.readouterr().out
    assert "Decoding y labels from theirs: resid_pre, token not recorded" in out
    assert "No bag-of-words baseline" in out
    assert (path / "results/label-resid_pre-mean-diff/accuracy_by_layer.png").exists()
    results = json.loads((path / "results/label-resid_pre-mean-diff/results.json").read_text())
    assert results["meta"]["activations"]["kind"] == "import"
    assert run(["ls"]) == 0
    assert "complete: theirs on y, resid_pre 0-2, 120 texts" in capsys.readouterr().out


def test_the_same_command_finds_its_store_and_a_changed_file_makes_another(acts: Path, capsys: Capture) -> None:
    paths = []
    for _ in range(2):
        assert run([*JOB, "--quiet"]) == 0
        out, err = capsys.readouterr()
        assert err == ""
        paths.append(out)
    np.save(acts / "blocks.1.hook_resid_pre.npy", np.ones((N, D), dtype=np.float32))
    assert run([*JOB, "--quiet"]) == 0
    assert paths[0] == paths[1] != capsys.readouterr().out


def test_a_dry_run_says_what_each_file_becomes_and_writes_nothing(acts: Path, capsys: Capture) -> None:
    assert run([*JOB, "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "'blocks.2.hook_resid_pre.npy' -> resid_pre 2, [120, 5] float32" in out
    assert run([*JOB, "--dry-run", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert [array["places"] for array in plan["arrays"]] == [[["resid_pre", layer]] for layer in range(3)]
    assert plan["arrays"][0] | {"shape": [N, D], "dtype": "float32"} == plan["arrays"][0]
    assert not Path("runs").exists()


def test_every_option_reaches_the_store(acts: Path, capsys: Capture) -> None:
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(N, 2, D)))
    save_file({"stack": x}, "x.safetensors")
    rows = [f"words {i}\t{'a' if i % 2 else 'b'}\t{i // 4}" for i in range(N)]
    Path("y.tsv").write_text("\n".join(["said\tkind\tcity", *rows]) + "\n")
    job = ["import", "x.safetensors", "--labels", "y.tsv", "--stack-axis", "1", "--point", "resid_mid"]
    job += ["--layers", "7,3", "--n-layers", "9", "--position", "-2", "--store-dtype", "fp16", "--task-name", "cities"]
    job += ["--text-column", "said", "--label-column", "kind", "--group-column", "city", "--seed", "3"]
    assert run([*job, "--out", "there", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["store"] == "there"
    store = load_activations("there")
    assert torch.equal(store["resid_mid", 7], x[:, 0].half())
    assert torch.equal(store["resid_mid", 3], x[:, 1].half())
    assert (store.n_layers, store.meta["position"], store.task.name, store.target) == (9, -2, "cities", "kind")
    assert store.inputs[5] == "words 5"
    assert store.groups is not None
    assert len(set(store.groups.tolist())) == N // 4
    assert store.meta["seed"] == 3


def test_values_may_come_from_a_config(acts: Path, capsys: Capture) -> None:
    Path("c.yaml").write_text("import: {labels: y.csv, model-name: theirs, out: there}\n")
    assert run(["import", "acts", "--config", "c.yaml", "--set", "import.task-name=mine", "--quiet"]) == 0
    assert capsys.readouterr().out == "there\n"
    assert load_activations("there").meta["task"] == "mine"


def test_another_import_in_its_place_is_refused(acts: Path, capsys: Capture) -> None:
    assert run([*JOB, "--out", "there", "--quiet"]) == 0
    assert run([*JOB, "--out", "there", "--store-dtype", "bf16", "--quiet"]) == 5
    assert "dtype: 'float32' there, 'bfloat16' here" in capsys.readouterr().err


def test_ctrl_c_says_what_is_kept(acts: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_plan, "SHARD_BYTES", 50 * 3 * D * 4)
    write = imports.StoreWriter.write

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    def once(self: imports.StoreWriter, number: int, rows: np.ndarray, tensors: dict) -> None:
        write(self, number, rows, tensors)
        monkeypatch.setattr(imports.StoreWriter, "write", interrupt)

    monkeypatch.setattr(imports.StoreWriter, "write", once)
    assert run([*JOB, "--out", "there", "--quiet"]) == 130
    assert "saved 50 of 120 rows in there; run the same command again to resume" in capsys.readouterr().err
    monkeypatch.setattr(imports.StoreWriter, "write", write)
    assert run([*JOB, "--out", "there", "--quiet"]) == 0
    assert load_activations("there").n_examples == N
    monkeypatch.setattr("probekit.activations.imports.check.scan", interrupt)
    assert run([*JOB, "--out", "other", "--quiet"]) == 130
    assert "nothing was written" in capsys.readouterr().err


def test_hidden_states_of_transformers_are_what_extract_reads(here: Path, gpt2_folder: Path, texts: Path) -> None:
    from transformers import AutoModel

    task, model = load_task(texts), load_model(str(gpt2_folder))
    ours = extract(model, task, points=["resid_pre", "ln_final"])
    theirs = AutoModel.from_pretrained(gpt2_folder, attn_implementation="eager").eval()
    with torch.no_grad():
        runs = [theirs(model.to_tokens(str(text)), output_hidden_states=True).hidden_states for text in task.inputs]
    states = {f"hidden_states_{i}": torch.stack([run[i][0, -1] for run in runs]) for i in range(len(runs[0]))}
    save_file(states, "acts.safetensors")
    assert run(["import", "acts.safetensors", "--labels", str(texts), "--n-layers", "3", "--out", "there"]) == 0
    store = load_activations("there")
    assert set(store) == set(ours) - {("resid_post", 2)}
    for place, x in store.items():
        torch.testing.assert_close(x, ours[place], rtol=1e-4, atol=1e-5)


def test_layers_keep_their_order() -> None:
    assert stacked_layers("8, 2-4,0") == [8, 2, 3, 4, 0]
    for text in ("", "a", "3-", "-3", "1,,2", "99999"):
        with pytest.raises(UsageError, match="--layers"):
            stacked_layers(text)
