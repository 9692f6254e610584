"""Bad input: one table of (what is typed, what must be there first). Each row has an exit code and one line of error.

Rows work in a folder with a model `gpt2`, a table `texts.csv`, complete stores `store` (resid_pre, attn_out), `all`
(every token), `heads` (z) and `sums`, results `results` of `store`, and files that imports read.
"""

import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import record
import samples
import torch
from samples import columns, rows, with_weights, write_model, write_table
from scenes import Steps, gpt2, made_store, scene

Setup = Callable[[], object] | dict[str, str | bytes] | None
GOOD = [f"text {i},{i % 2}" for i in range(40)]


def table(*lines: str, header: str = "text,label") -> str:
    """A CSV file."""
    return "\n".join([header, *lines]) + "\n"


def config(**fields: Any) -> Setup:
    """A folder `m` with a model whose config.json has other fields."""

    def make() -> None:
        copy_model()
        file = Path("m/config.json")
        file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))

    return make


def copy_model() -> None:
    shutil.rmtree("m", ignore_errors=True)
    shutil.copytree("gpt2", "m")


def broken(name: str, content: bytes | None) -> Setup:
    """A folder `m` with a model of which one file is something else, or missing."""

    def make() -> None:
        copy_model()
        Path("m", name).unlink()
        if content is not None:
            Path("m", name).write_bytes(content)

    return make


def weights(change: Callable[[dict[str, Any]], object]) -> Setup:
    """A folder `m` with a model with other weights."""

    def make() -> None:
        copy_model()
        with_weights(Path("m"), change)

    return make


def cut_weights() -> None:
    copy_model()
    file = Path("m/model.safetensors")
    file.write_bytes(file.read_bytes()[:-100])


def family(name: str, **fields: Any) -> Setup:
    """A folder `m` with a model of this family and other fields in its config.json."""

    def make() -> None:
        shutil.rmtree("m", ignore_errors=True)
        write_model(Path("m"), samples.FAMILIES[name])
        file = Path("m/config.json")
        file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))

    return make


def copied(of: str, spoil: Callable[[], object]) -> Setup:
    """A copy `c` of a store or of results, spoilt."""

    def make() -> None:
        shutil.rmtree("c", ignore_errors=True)
        shutil.copytree(of, "c")
        for one in Path("c").rglob("*"):
            one.chmod(0o755 if one.is_dir() else 0o644)
        spoil()

    return make


def spoilt(pattern: str, content: bytes | None) -> Callable[[], None]:
    """Other content for the first file that fits, or none."""

    def change() -> None:
        file = sorted(Path("c").rglob(pattern))[0]
        file.unlink()
        if content is not None:
            file.write_bytes(content)

    return change


def shortened(pattern: str) -> Callable[[], None]:
    """The first file that fits without its last byte."""

    def change() -> None:
        file = sorted(Path("c").rglob(pattern))[0]
        file.write_bytes(file.read_bytes()[:-1])

    return change


def flipped(pattern: str) -> Callable[[], None]:
    """The first file that fits with another byte near its end."""

    def change() -> None:
        file = sorted(Path("c").rglob(pattern))[0]
        body = bytearray(file.read_bytes())
        body[-3] ^= 4
        file.write_bytes(bytes(body))

    return change


def without(name: str) -> Callable[[dict[str, Any]], object]:
    return lambda found: found.pop(next(key for key in found if key.endswith(name)))


def added(found: dict[str, Any]) -> None:
    found["transformer.h.9.extra.weight"] = torch.zeros(2)


def reshaped(found: dict[str, Any]) -> None:
    found["transformer.ln_f.bias"] = torch.zeros(17)


def not_a_number(found: dict[str, Any]) -> None:
    found["transformer.h.1.mlp.c_proj.bias"][0] = float("nan")


def too_large(found: dict[str, Any]) -> None:
    found["transformer.h.1.mlp.c_proj.bias"][0] = 1e6


def arrays(**files: Any) -> Setup:
    """A folder `a` of .npy files."""

    def make() -> None:
        shutil.rmtree("a", ignore_errors=True)
        Path("a").mkdir()
        for name, x in files.items():
            np.save(f"a/{name}.npy", x)

    return make


def split_files(**classes: int) -> Setup:
    """A folder `d` with a file for each split of so many classes."""

    def make() -> None:
        shutil.rmtree("d", ignore_errors=True)
        Path("d").mkdir()
        for split, n in classes.items():
            Path(f"d/{split}.csv").write_text(table(*(f"{split} {i},{i % n}" for i in range(10))))

    return make


E = "extract --model gpt2 --dataset texts.csv"
T = "train-probe store --quick"
M = "extract --model m --dataset texts.csv"
D = "extract --model gpt2 --dataset"
C = "causal results --store store"
X = np.zeros((96, 4), np.float32)
TABLE: list[tuple[str, Setup]] = [
    # names
    ("extract", None),
    ("extract --model gpt2", None),
    ("extrct --model gpt2", None),
    ("extract --model gpt3 --dataset texts.csv", None),
    ("extract --model agrement-gpt2 --dataset texts.csv", None),
    (f"{D} sst3", None),
    (f"{D} absent.csv", None),
    (f"{E} --points resid_per", None),
    (f"{E} --points resid_pre.1", None),
    (f"{E} --points ,", None),
    (f"{E} --points resid_pre,resid_pre", None),
    (f"{E} --points cross_attn_pattern", None),
    (f"{E} --layers 12", None),
    (f"{E} --layers 0,3", None),
    (f"{E} --layers some", None),
    (f"{E} --layers 2-1", None),
    (f"{E} --text-column texts", None),
    (f"{E} --label-column lable", None),
    (f"{E} --device tpu7", None),
    (f"{E} --device cuda", None),
    (f"{E} --nonsense", None),
    (f"{E} extra", None),
    # values
    (f"{E} --limit few", None),
    (f"{E} --limit -1", None),
    (f"{E} --limit 0", None),
    (f"{E} --batch-tokens 0", None),
    (f"{E} --on-long wrap", None),
    (f"{E} --via transfomers", None),
    (f"{E} --device-map atuo", None),
    (f"{E} --dtype bf32", None),
    (f"{E} --store-dtype int8", None),
    (f"{E} --position middle", None),
    (f"{E} --position 3:1", None),
    (f"{E} --position last@asistant", None),
    (f"{E} --position in:zebra", None),
    (f"{E} --position 60", None),
    (f"{E} --position last,all", None),
    (f"{E} --shard-bytes 0", None),
    (f"{E} --part 3/2", None),
    (f"{E} --part 0/2", None),
    (f"{E} --part one", None),
    (f"{E} --part 1/2 --devices cpu,cpu", None),
    (f"{E} --devices cpu,tpu", None),
    (f"{E} --devices cuda:5", None),
    (f"{E} --engine spark", None),
    (f"{E} --workers 2", None),
    (f"{E} --quantize 8bit", None),
    (f"{E} --revision main", None),
    (f"{E} --check sometimes", None),
    (f"{E} --temperature 1", None),
    (f"{E} --generate 0", None),
    (f"{E} --generate 3 --temperature -1", None),
    (f"{E} --generate 3 --top-p 2 --temperature 1", None),
    (f"{E} --generate 3 --stop nosuchtoken", None),
    (f"{E} --generate 500", None),
    (f"{E} --position last@generated", None),
    (f"{E} --chat-template nosuch.jinja", None),
    (f"{E} --add-generation-prompt", None),
    (f"{E} --messages-column text", None),
    (f"{E} --span-column text", None),
    (f"{E} --token-label-column text", None),
    (f"{E} --id-column label", None),
    (f"{E} --group-column nosuch", None),
    (f"{E} --split-column source", None),
    (f"{E} --keep-columns nosuch", None),
    (f"{E} --max-classes 1", None),
    (f"{E} --label-column key --max-classes 5", None),
    (f"{E} --stats --stats-only", None),
    (f"{E} --picture p.png", None),
    (f"{E} --seed x", None),
    (f"{E} --out texts.csv", None),
    (f"{E} --out store", None),
    (f"{E} --out ftp://host/x", None),
    (f"{E} --out s3://", None),
    (f"{E} --config nosuch.yaml", None),
    (f"{E} --config c.yaml", {"c.yaml": "extract:\n  nosuch: 3\n"}),
    (f"{E} --config c.yaml", {"c.yaml": "extract: [\n"}),
    (f"{E} --set extract.nosuch=3", None),
    (f"{E} --set nonsense", None),
    # models
    (M, config(n_layer=-1)),
    (M, config(n_head=3)),
    (M, config(activation_function="geluu")),
    (M, config(n_embd="16")),
    (M, config(vocab_size=None)),
    (M, config(model_type="nosuch")),
    (M, config(n_positions=10**9)),
    ("points --model m", config(n_head=3)),
    ("params m", config(n_layer=-1)),
    (M, family("llama", rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4})),
    (M, family("llama", hidden_act="nosuch")),
    (M, family("llama", num_key_value_heads=3)),
    (M, family("mixtral", num_experts_per_tok=9)),
    (M, family("gemma2", final_logit_softcapping="x")),
    (M, family("bert", position_embedding_type="relative_key")),
    (M, weights(without("h.0.ln_1.weight"))),
    (M, weights(added)),
    (M, weights(reshaped)),
    (M, weights(not_a_number)),
    (f"{M} --store-dtype fp16", weights(too_large)),
    (M, cut_weights),
    (M, broken("config.json", b"{ no")),
    (M, broken("config.json", None)),
    (M, broken("model.safetensors", b"{ no")),
    (M, broken("model.safetensors", None)),
    (M, broken("tokenizer.json", b"{ no")),
    (M, broken("tokenizer.json", None)),
    ("generate --model gpt2", None),
    ("generate --model gpt2 --prompt a --tokens 3", None),
    ("generate --model gpt2 --tokens 3,x", None),
    ("generate --model gpt2 --tokens 999", None),
    ("generate --model gpt2 --prompt a --max-new-tokens 0", None),
    ("generate --model gpt2 --prompt a --top-k 0", None),
    ("selftest --model nosuch/folder", None),
    ("params nosuch-model", None),
    ("params gpt2-xl --context 0", None),
    ("train-model nosuch", None),
    ("train-model counting-gpt --steps 0", None),
    # data
    (f"{D} t.csv", {"t.csv": b""}),
    (f"{D} t.csv", {"t.csv": "text,label\n"}),
    (f"{D} t.csv", {"t.csv": 'text,label\n"never closed,1\nb,0\n'}),
    (f"{D} t.csv", {"t.csv": "text,label\na,1\né,0\n".encode("latin-1")}),
    (f"{D} t.jsonl", {"t.jsonl": '{"text": "a", "label": 1}\n{"text": \n'}),
    (f"{D} t.jsonl", {"t.jsonl": '{"text": "a", "label": 1}\n{"text": 5, "label": 0}\n'}),
    (f"{D} t.jsonl", {"t.jsonl": '[1, 2]\n"x"\n'}),
    (f"{D} t.parquet", {"t.parquet": b"PAR1nonsense"}),
    (f"{D} t.conllu", {"t.conllu": "1\tonly\tthree\n"}),
    (f"{D} t.csv", {"t.csv": table(*GOOD, "NA,1")}),
    (f"{D} t.csv", {"t.csv": table(*GOOD, ",1")}),
    (f"{D} t.csv", {"t.csv": table(*GOOD, "t,")}),
    (f"{D} t.csv", {"t.csv": table(*GOOD, "a,b,c")}),
    (f"{D} t.csv", {"t.csv": table(*GOOD, "t,-1")}),
    (f"{D} t.csv", {"t.csv": table(*(f"t {i},1" for i in range(40)))}),
    (f"{D} t.csv", {"t.csv": table(*(f"t {i},0" for i in range(40)), "a,1", "b,1")}),
    (f"{D} t.csv", {"t.csv": table("a,0", "b,1")}),
    (f"{D} t.csv", {"t.csv": table(*GOOD, header="text,text")}),
    (f"{D} t.csv --label-column label", {"t.csv": table(*(f"t {i},nan" for i in range(30)))}),
    (f"{D} t.csv --on-long error", {"t.csv": table(*GOOD, f"{'long ' * 40},1")}),
    (f"{D} t.csv --no-header", {"t.csv": table(*GOOD)}),
    (f"{D} t.csv --columns a,b,c", {"t.csv": table(*GOOD)}),
    (f"{D} t.xlsx", {"t.xlsx": "x"}),
    (f"{D} t.jsonl", {"t.jsonl": '{"messages": [{"role": "user"}], "label": 1}\n'}),
    (f"{D} d", split_files(train=2, dev=2, test=1)),
    (f"{D} d", split_files(nonsense=2)),
    (f"{D} .", None),
    # stores
    ("train-probe absent", None),
    ("train-probe texts.csv", None),
    ("train-probe sums --quick", None),
    ("train-probe c --quick", copied("store", spoilt("plan.json", b"{}"))),
    ("train-probe c --quick", copied("store", spoilt("plan.json", None))),
    ("train-probe c --quick", copied("store", spoilt("manifest.json", None))),
    ("train-probe c --quick", copied("store", spoilt("*.safetensors", None))),
    ("train-probe c --quick", copied("store", shortened("*.safetensors"))),
    ("train-probe c --quick", copied("store", flipped("*.safetensors"))),
    ("train-probe c --quick", copied("store", spoilt("records/*.json", b"[]"))),
    ("train-probe c --quick", copied("store", spoilt("records/*.json", None))),
    ("verify c", copied("store", flipped("*.safetensors"))),
    ("verify c", copied("store", spoilt("records/*.json", b"{}"))),
    ("verify absent", None),
    ("repair absent", None),
    ("repair c --model m", copied("store", lambda: (flipped("*.safetensors")(), config(n_head=1)()))),  # type: ignore
    ("repair c --model agreement-gpt2", copied("store", flipped("*.safetensors"))),
    ("merge store --out x", None),
    ("merge store all --out x", None),
    ("merge absent --out x", None),
    ("ls absent", None),
    ("label store absent.csv", None),
    ("label store l.csv", {"l.csv": "id,label\nnosuch,1\n"}),
    ("label store l.csv", {"l.csv": "id,label\ntexts:0,1\ntexts:0,0\n"}),
    ("label store l.csv", {"l.csv": "key,label\ntexts:0,1\n"}),
    ("export store --texts --out texts.csv/x", None),
    # probes
    (f"{T} --layer 12", None),
    (f"{T} --point resid_mid", None),
    (f"{T} --point resid_per", None),
    (f"{T} --probe logistc", None),
    (f"{T} --label lable", None),
    (f"{T} --position first", None),
    (f"{T} --C 1,x", None),
    (f"{T} --C 1,-2", None),
    (f"{T} --C nan", None),
    (f"{T} --C 0", None),
    (f"{T} --metric acuracy", None),
    (f"{T} --metric r2", None),
    (f"{T} --folds 2", None),
    (f"{T} --folds 500", None),
    (f"{T} --controls -1", None),
    (f"{T} --nuisance nosuch", None),
    (f"{T} --shift-column nosuch", None),
    (f"{T} --shift-column source --folds 3", None),
    (f"{T} --by position", None),
    (f"{T} --by nosuch", None),
    (f"{T} --by head", None),
    ("train-probe heads --by head --concatenate", None),
    ("train-probe heads --by head --probe attention", None),
    ("train-probe all --by position --folds 3", None),
    ("train-probe all --by position --least-texts 1000", None),
    ("train-probe all --quick", None),
    ("train-probe all --aggregate softmx --quick", None),
    ("train-probe all --aggregate mean --probe mlp --quick", None),
    ("train-probe all --probe attention --position last --quick", None),
    (f"{T} --aggregate mean", None),
    (f"{T} --probe attention", None),
    (f"{T} --memory lots", None),
    (f"{T} --memory 10", None),
    (f"{T} --log-to nosuch", None),
    (f"{T} --format gif", None),
    (f"{T} --width 0", None),
    (f"{T} --title a --no-title", None),
    (f"{T} --baseline nosuch", None),
    (f"{T} --set train-probe.probe.nosuch=3", None),
    (f"{T} --probe k-sparse --set train-probe.probe.k=0", None),
    (f"{T} --out texts.csv", None),
    (f"{T} --out store", None),
    (f"{T} --seed 4 --out results", None),
    ("train-probe store all", None),
    # what reads results
    ("score --probe absent --model gpt2 --text a", None),
    ("score --probe results --model gpt2", None),
    ("score --probe results:resid_pre.9 --model gpt2 --text a", None),
    ("score --probe results:nosuch --model gpt2 --text a", None),
    ("score --probe results --model gpt2 --text a --fpr 2", None),
    ("score --probe results --model gpt2 --text a --fpr 0.0001", None),
    ("score --probe results --model gpt2 --text a --out x.doc", None),
    ("score --probe results --model gpt2 --text ''", None),
    ("score --probe c --model gpt2 --text a", copied("results", spoilt("results.json", b'{"x": 1}'))),
    ("score --probe c --model gpt2 --text a", copied("results", spoilt("results.json", None))),
    ("score --probe c --model gpt2 --text a", copied("results", flipped("*.safetensors"))),
    ("export results --to nosuch", None),
    ("export results:resid_pre.9 --to numpy", None),
    ("export store --to numpy", None),
    ("export results --to latex --out texts.csv/z.tex", None),
    ("transfer store", None),
    ("transfer store all", None),
    ("transfer store absent", None),
    ("transfer store store --layer 9", None),
    ("compare store", None),
    ("compare results absent", None),
    ("compare results results --by step", None),
    ("compare results:resid_pre.9 results", None),
    ("report absent", None),
    ("report sums", None),
    ("report results --out texts.csv/x.html --store store", None),
    ("report results --texts 0", None),
    ("push results nosuch", None),
    (f"{C}", None),
    (f"{C} --answers g", None),
    (f"{C} --answers g,zebra", None),
    (f"{C} --answers g,g", None),
    (f"{C} --answers g,b --method nosuch", None),
    (f"{C} --answers g,b --method interchange --at all", None),
    (f"{C} --answers g,b --layer 9", None),
    (f"{C} --answers g,b --scale 0", None),
    (f"{C} --answers g,b --rows 1", None),
    (f"{C} --answers g,b --answer-at 70", None),
    (f"{C} --answers g,b --answers-label nosuch", None),
    (f"{C} --answers g,b --neutral absent.txt", None),
    ("causal absent --answers g,b", None),
    ("causal store --method patch --pairs p.csv", {"p.csv": "clean,corrupted\na,b\n"}),
    (
        "causal store --method patch --pairs p.csv",
        {"p.csv": "clean,corrupted,clean_answer,corrupted_answer\nab,abc,x,y\n"},
    ),
    ("sweep --model gpt2 --dataset absent", None),
    ("sweep --model gpt2 --dataset d --quick", split_files(train=1)),
    ("sweep --model gpt2 --dataset texts.csv --probe nosuch", None),
    # imports
    ("import absent --labels y.npy", None),
    ("import a --labels y.npy", arrays(nonsense=X)),
    ("import a --labels y.npy", arrays(resid_pre_0=X[:5])),
    ("import a --labels y.npy", arrays(resid_pre_0=X, resid_pre_1=X[:, :3])),
    ("import a --labels y.npy", arrays(resid_pre_0=np.full((96, 4), np.nan, np.float32))),
    ("import a --labels y.npy", arrays(resid_pre_0=X.astype(complex))),
    ("import a --labels y.npy", arrays(resid_pre_0=np.array([["a"] * 4] * 96))),
    ("import a --labels absent.csv", arrays(resid_pre_0=X)),
    ("import a --labels y.npy --store-dtype fp16", arrays(resid_pre_0=X + 1e6)),
    ("import a --labels y.npy --stack-axis 0", arrays(resid_pre=np.zeros((2, 96, 4), np.float32))),
    ("import a --labels y.npy --n-layers 1", arrays(resid_pre_3=X)),
    ("import a --labels y.npy", {"a.npy": b"\x93NUMPY nonsense"}),
    ("import a.npy --labels y.npy --point resid_pre", {"a.npy": b"\x93NUMPY nonsense"}),
    ("import --format vllm a --model gpt2", arrays(resid_pre_0=X)),
    ("import --format vllm a --model gpt2 --dataset texts.csv", arrays(resid_pre_0=X)),
]


def take(steps: Steps, part: int, of: int) -> None:
    """Run every `of`-th row of the table from `part` on; the exit code, the number of lines on stderr, and the line."""
    gpt2()
    usual = rows()
    made_store("store", "--points resid_pre,attn_out --keep-columns source", usual)
    made_store("all", "--position all --layers 1", usual)
    made_store("heads", "--points z --layers 1", usual)
    made_store("sums", "--stats-only", usual)
    assert record.command("train-probe", "store", "--quick", "--C", "1", "--quiet", "--out", "results")["code"] == 0
    np.save("y.npy", np.array([row["label"] for row in usual]))
    write_table(Path("texts.csv"), columns(usual, "key", "text", "label", "source"))
    every = [typed for typed, _ in TABLE]
    for number, (typed, setup) in list(enumerate(TABLE))[part::of]:
        done = attempt(typed, setup)
        lines = [line for line in done["err"].splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("probekit: error: ")]
        steps.records[f"{typed} #{every[:number].count(typed)}"] = {
            "code": done["code"],
            "one line": len(errors) == 1
            and lines[-1] == errors[0]
            and not done["out"]
            and "Traceback" not in done["err"],
            "message": record.clean_text(errors[0] if errors else (lines[-1] if lines else "")),
        }


def attempt(typed: str, setup: Setup) -> dict[str, Any]:
    """One row of the table."""
    if isinstance(setup, dict):
        for name, content in setup.items():
            Path(name).write_bytes(content.encode() if isinstance(content, str) else content)
    elif setup is not None:
        setup()
    try:
        return record.command(*shlex.split(typed))
    finally:
        names = [*setup] if isinstance(setup, dict) else ["m", "c", "d", "a"]
        for name in [*names, "x", "runs", "causal", "comparison.png", "report.html"]:
            shutil.rmtree(name, ignore_errors=True) if Path(name).is_dir() else Path(name).unlink(missing_ok=True)


@scene
def errors_even(steps: Steps) -> None:
    take(steps, 0, 2)


@scene
def errors_odd(steps: Steps) -> None:
    take(steps, 1, 2)
