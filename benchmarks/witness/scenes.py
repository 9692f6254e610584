"""What is run: every capability by its command or its Python call, on tiny models. A scene stands alone.

Each scene works in an empty folder of its own and leaves a record for every step. Only the commands and
`probekit.__all__` with its documented modules are used, so a scene means the same in any tree.
"""

import dataclasses
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import record
import samples
import torch
from samples import columns, rows, write_model, write_table

import probekit as pk

TESTS = Path(__file__).resolve().parents[2] / "tests"
QUICK = "--quick --C 0.1,1"
COMMANDS = (
    "demo extract merge import label train-probe score export push causal sweep transfer report compare "
    "points params train-model generate selftest ls verify repair"
)
SCENES: dict[str, Callable[["Steps"], None]] = {}


class Steps:
    """The records of a scene, in order."""

    def __init__(self) -> None:
        self.records: dict[str, Any] = {}

    def cmd(self, name: str, typed: str = "", keep: str | None = None, stdin: bytes | None = None) -> None:
        """Run a command as it is typed; `keep` is a file or folder whose figures are taken down too."""
        made = record.taken(record.command(*shlex.split(typed), stdin=stdin))
        if keep is not None:
            made["files"] = record.files(keep) if Path(keep).exists() else "absent"
        self.records[name] = made

    def py(self, name: str, work: Callable[[], Any]) -> None:
        """Take down what a Python call returns."""
        done = record.forked(lambda: record.clean(record.plain(work())))
        if done["code"] == 0:
            self.records[name] = done["value"]
        else:
            lines = record.said(done["err"])
            self.records[name] = {"code": done["code"], "error": lines[-1] if lines else ""}

    def store(self, name: str, path: str) -> None:
        """Take down a store as its reader sees it."""
        self.py(name, lambda: of_activations(pk.load_activations(path)))


def scene(run: Callable[[Steps], None]) -> Callable[[Steps], None]:
    """Enter a scene by its function's name."""
    SCENES[run.__name__] = run
    return run


def of_activations(acts: Any) -> dict[str, Any]:
    """Everything that activations hold: bits of every place, and the task."""

    def at(place: Any) -> Any:
        if "attn_" in place[0] and place[0] != "attn_out":
            return [record.bits(x)["bits"] for x in acts.per_text(place)]
        return record.bits(acts[place])

    return {
        "activations": {f"{place[0]}.{place[1]}": at(place) for place in acts},
        "meta": acts.meta,
        "task": of_task(acts.task),
    }


def of_task(task: Any) -> dict[str, Any]:
    """The fields of a task; long ones as bits."""
    made: dict[str, Any] = {"n": len(task.inputs), "first": list(task.inputs[:2]), "inputs": _digest(list(task.inputs))}
    for name in ("name", "target", "position", "info", "label_names"):
        made[name] = getattr(task, name, None)
    made["labels"] = {key: _column(values) for key, values in task.labels.items()}
    made["splits"] = {one: int((np.asarray(task.splits) == one).sum()) for one in ("train", "validation", "test")}
    made["split order"] = _digest([str(one) for one in task.splits])
    made["ids"] = _digest(list(task.ids))
    for name in ("groups", "spans", "token_ids", "generated", "text_of", "targets"):
        value = getattr(task, name, None)
        made[name] = None if value is None else _digest(record.plain_list(value))
    made["columns"] = {
        key: _digest(record.plain_list(value)) for key, value in (getattr(task, "columns", None) or {}).items()
    }
    labels = getattr(task, "token_labels", None) or {}
    made["token_labels"] = {key: _digest([record.plain_list(one) for one in labels[key]]) for key in labels}
    return made


def _column(values: Any) -> Any:
    return _digest(record.plain_list(values))


def _digest(values: Any) -> dict[str, str]:
    return record.digest(values)


def gpt2(folder: str = "gpt2") -> str:
    """The path of a tiny GPT-2."""
    write_model(Path(folder), samples.FAMILIES["gpt2"])
    return folder


def made_store(out: str = "store", how: str = "", table: list[dict[str, Any]] | None = None) -> None:
    """A store of the usual texts."""
    if not Path("gpt2").exists():
        gpt2()
    write_table(Path("texts.csv"), table or columns(rows(), "text", "label"))
    typed = f"extract --model gpt2 --dataset texts.csv --out {out} --quiet {how}"
    done = record.command(*shlex.split(typed))
    assert done["code"] == 0, done["err"]


def id_task(n: int = 14, vocab: int = 250, **more: Any) -> Any:
    """Texts of token ids of several lengths, some with a prefix in common."""
    ids = [[1 + (11 * (i // 3) + 3 * j * (j + i % 3)) % vocab for j in range(3 + (5 * i) % 17)] for i in range(n)]
    return pk.Task("ids", ids, labels={"odd": np.arange(n) % 2}, splits=np.array(["train", "test"] * (n // 2)), **more)


# ---- models ----------------------------------------------------------------------------------------------------------


def by_place(folder: Path, **how: Any) -> dict[str, Any]:
    """Bits of a model's activations at all points that it has, its logits, and what it writes."""
    model = pk.load_model(folder, progress=False, **how)
    made: dict[str, Any] = {"points": {}}
    listed = record.command("points", "--model", folder, "--json", *[x for k, v in how.items() for x in (f"--{k}", v)])
    made["listed"] = record.taken(listed)
    names = [one["short"] for one in made["listed"]["json"].get("points", [])] if "json" in made["listed"] else []
    task = id_task()
    for name in names:
        for position in ("all", "last"):
            try:
                acts = pk.extract(model, task, points=[name], position=position, batch_tokens=40, progress=False)
                found = of_activations(acts)["activations"]
                made["points"].update({f"{place} {position}": found[place] for place in found})
            except pk.ProbekitError as e:
                made["points"][f"{name} {position}"] = record.clean_text(f"{type(e).__name__}: {e}")
    for label, call in {
        "logits": lambda: model(torch.tensor([task.inputs[5], task.inputs[5][::-1]])),
        "generate": lambda: model.generate([3, 17, 5, 9], max_new_tokens=12, stop_tokens=[]),
        "draws": lambda: model.generate(
            [3, 17, 5, 9], 12, temperature=1.0, top_k=40, top_p=0.9, seed=4, stop_tokens=[]
        ),
    }.items():
        try:
            with torch.no_grad():
                made[label] = record.plain(call())
        except (pk.ProbekitError, TypeError, ValueError, NotImplementedError) as e:
            made[label] = record.clean_text(f"{type(e).__name__}: {e}")
    return made


@scene
def families(steps: Steps) -> None:
    for name, made in samples.FAMILIES.items():
        folder = write_model(Path(name), made)
        steps.py(name, lambda folder=folder: by_place(folder))
    for name in ("gpt2", "llama", "gemma2", "mixtral", "bert", "marian"):
        for dtype in ("bfloat16", "float16"):
            steps.py(f"{name} {dtype}", lambda name=name, dtype=dtype: by_place(Path(name), dtype=dtype))
        steps.py(f"{name} random", lambda name=name: by_random(Path(name)))


def by_random(folder: Path) -> dict[str, Any]:
    """Bits of the weights that a seed gives."""
    model = pk.load_model(folder, random_init=True, seed=3, progress=False)
    return {key: record.bits(value) for key, value in model.state_dict().items()}


@scene
def adapter(steps: Steps) -> None:
    for name, made in samples.ADAPTED.items():
        folder = write_model(Path(name), made)
        steps.py(name, lambda folder=folder: by_place(folder, via="transformers"))
    write_table(Path("texts.csv"), columns(rows(24), "text", "label"))
    job = "extract --model opt --dataset texts.csv --via transformers --json"
    steps.cmd("extract", f"{job} --points resid_pre,attn_out --out store")
    steps.store("store", "store")
    steps.cmd("refused", f"{job} --points attn_pattern")
    steps.cmd(
        "generate",
        "generate --model opt --via transformers --tokens 3,17,5 --max-new-tokens 8 --json",
    )
    steps.cmd("params", "params opt --via transformers --json")
    steps.cmd("selftest", "selftest --model opt --via transformers --json")


@scene
def hooks_and_edits(steps: Steps) -> None:
    from probekit.interventions import add, affine, project_out, replace, swap

    folder = gpt2()
    write_model(Path("gemma2"), samples.FAMILIES["gemma2"])
    draws = torch.Generator().manual_seed(2)

    def cached() -> Any:
        model = pk.load_model(folder, progress=False)
        ids = torch.tensor([[3, 17, 5, 9, 40], [8, 1, 2, 2, 7]])
        logits, cache = model.run_with_cache(ids, points=["resid_pre", "attn_pattern", "z"])
        zeroed = model.run_with_hooks(ids, fwd_hooks=[(("mlp_out", 1), lambda x, hook: x * 0)])
        return {"logits": logits, "cache": {str(key): record.bits(cache[key]) for key in cache}, "zeroed": zeroed}

    def edited(name: str) -> Any:
        model = pk.load_model(name, progress=False)
        D, task = model.cfg.d_model, id_task()
        v, w = torch.randn(D, generator=draws), torch.randn(D, 2, generator=draws)
        edits = {
            "add": add(v, scale=2.0),
            "rows": add(v, scale=torch.linspace(0, 1, 14)),
            "project_out": project_out(w, mean=v),
            "affine": affine(torch.randn(D, D, generator=draws) / D, v),
            "replace": replace(v, part=torch.arange(D) % 3 == 0),
            "swap": swap(w, v),
        }
        made = {}
        for kind, edit in edits.items():
            for where in ("all", "read"):
                acts = pk.extract(
                    model,
                    task,
                    points="resid_post",
                    position="last",
                    edits={("resid_pre", 1): edit},
                    edit_positions=where,
                    progress=False,
                )
                made[f"{kind} {where}"] = {f"{p[0]}.{p[1]}": record.bits(acts[p]) for p in acts}
        with model.edited({("resid_pre", 1): add(v, scale=4.0)}, positions="generated"):
            made["writes"] = model.generate([3, 17, 5, 9], 10, stop_tokens=[])
        return made

    steps.py("cache", cached)
    steps.py("gpt2", lambda: edited(folder))
    steps.py("gemma2", lambda: edited("gemma2"))


@scene
def commands_of_models(steps: Steps) -> None:
    folder = gpt2()
    for name in ("gpt2", "llama", "bert", "marian", "mixtral"):
        write_model(Path(name), samples.FAMILIES[name])
        steps.cmd(f"points {name}", f"points --model {name} --json")
        steps.cmd(f"params {name}", f"params {name} --json --context 40 --batch 2")
        steps.cmd(f"selftest {name}", f"selftest --model {name} --json")
    steps.cmd("points text", f"points --model {folder}")
    steps.cmd("params text", "params gpt2-xl --context 16384 --dtype bf16")
    steps.cmd("params published", "params --compare gpt2 gpt2-medium pythia-70m --json --out shares.png")
    steps.cmd(
        "generate",
        f"generate --model {folder} --prompt 'the cat' --prompt 'a dog' --max-new-tokens 12 --json",
    )
    steps.cmd(
        "draws",
        f"generate --model {folder} --prompt 'the cat' --temperature 1.5 --top-p 0.9 --seed 3 --json",
    )
    steps.cmd("tokens", f"generate --model {folder} --tokens 3,17,5 --no-stop --max-new-tokens 5")
    steps.cmd("selftest bf16", f"selftest --model {folder} --dtype bf16 --json")
    steps.cmd("selftest alone", "selftest --json")


@scene
def world_models(steps: Steps) -> None:
    for name in ("counting-gpt", "spans-bert"):
        size = "--steps 3 --batch-size 4 --warm-up-steps 1"
        steps.cmd(name, f"train-model {name} {size} --out {name} --json", keep=f"{name}/config.json")
        steps.py(
            f"{name} weights",
            lambda name=name: {
                k: record.figures(v) for k, v in pk.load_model(name, progress=False).state_dict().items()
            },
        )
    steps.cmd(
        "again",
        "train-model counting-gpt --steps 3 --batch-size 4 --warm-up-steps 1 --out counting-gpt --json",
    )


@scene
def demo(steps: Steps) -> None:
    job = "extract --model agreement-gpt2 --dataset agreement --limit 200 --out store --json"
    steps.cmd("extract", f"{job}")
    steps.store("store", "store")
    steps.cmd("train", "train-probe store --C 0.01,1 --json --out results", keep="results")
    lens = ["the keys near the old door"]
    steps.py(
        "lens",
        lambda: record.frame(pk.logit_lens(pk.load_model("agreement-gpt2"), lens[0], answers=["is", "are"]).to_frame()),
    )
    steps.py(
        "attribution",
        lambda: record.frame(
            pk.direct_logit_attribution(pk.load_model("agreement-gpt2"), lens[0], "are", "is").to_frame()
        ),
    )
    causal = "causal results --store store --answers is,are --layer 1,3 --rows 24 --placebos 2 --scale -2,2"
    steps.cmd("causal", f"{causal} --out causal --json", keep="causal")
    steps.cmd("causal all", f"{causal} --at all --out all --json", keep="all")
    steps.cmd(
        "score",
        "score --probe results --model agreement-gpt2 --text 'the keys near the door' --json",
    )


# ---- tasks -----------------------------------------------------------------------------------------------------------


@scene
def tasks(steps: Steps) -> None:
    table = rows()
    write_table(Path("all.csv"), table)
    write_table(Path("all.tsv"), table)
    write_table(Path("all.jsonl"), table)
    import pandas as pd

    pd.DataFrame(table).to_parquet("all.parquet")
    write_table(Path("plain.csv"), columns(table, "text", "label"))
    write_table(Path("chats.jsonl"), samples.chats())
    write_table(Path("spans.jsonl"), samples.spans())
    write_table(Path("tags.jsonl"), samples.stretches())
    Path("some.conllu").write_text(samples.conllu())
    Path("split").mkdir()
    for name, part in {"train": table[:60], "dev": table[50:75], "test": table[75:]}.items():
        write_table(Path(f"split/{name}.csv"), columns(part, "text", "label"))
    Path("headless.csv").write_text("\n".join(f"{row['text']},{row['label']}" for row in table))
    twice = columns(table, "text", "label") + [
        {"text": row["text"].upper(), "label": row["label"]} for row in table[:20]
    ]
    write_table(Path("twice.csv"), twice + columns(table[:9], "text", "label"))
    bad = [*columns(table, "text", "label"), {"text": "", "label": 1}, {"text": "x", "label": ""}]
    write_table(Path("bad.csv"), bad)
    kinds = [{"text": f"{i} of a kind", "topic": ["yak", "emu", "gnu", "ibex"][i % 4]} for i in range(12)]
    rare = [*columns(table, "text", "topic"), *kinds]
    write_table(Path("rare.csv"), rare)
    lists = [{"text": row["text"], "tags": [ord(c) % 3 for c in row["text"]]} for row in table[:20]]
    write_table(Path("perchar.jsonl"), lists)
    for name, (source, how) in {
        "csv": ("all.csv", {}),
        "tsv": ("all.tsv", {}),
        "jsonl": ("all.jsonl", {}),
        "parquet": ("all.parquet", {}),
        "no split column": ("plain.csv", {}),
        "seed": ("plain.csv", {"seed": 5}),
        "limit": ("plain.csv", {"limit": 10}),
        "limit topic": ("all.csv", {"limit": 10, "label_column": "topic"}),
        "several labels": ("all.csv", {"label_column": "label,topic,score"}),
        "numbers": ("all.csv", {"label_column": "score"}),
        "regression": ("all.csv", {"label_column": "label", "regression": True}),
        "groups": ("all.csv", {"group_column": "group", "split_column": "split"}),
        "groups carved": ("all.jsonl", {"group_column": "group", "id_column": "key", "keep_columns": "source,score"}),
        "no validation": ("plain.csv", {"validation": False}),
        "split files": ("split", {}),
        "headless": ("headless.csv", {"header": False, "columns": "text,label"}),
        "headless guessed": ("headless.csv", {"header": False, "text_column": "1", "label_column": "2"}),
        "duplicates": ("twice.csv", {}),
        "skip": ("bad.csv", {"on_bad_row": "skip"}),
        "rare drop": ("rare.csv", {"label_column": "topic", "rare_classes": "drop"}),
        "rare merge": ("rare.csv", {"label_column": "topic", "rare_classes": "merge"}),
        "blanks": ("plain.csv", {"keep_blanks": True}),
        "chats": ("chats.jsonl", {"position": "last@assistant"}),
        "spans": ("spans.jsonl", {"span_column": "span"}),
        "stretches": ("tags.jsonl", {"token_label_column": "tags"}),
        "by character": ("perchar.jsonl", {"token_label_column": "tags"}),
        "conllu upos": ("some.conllu", {"label_column": "upos"}),
        "conllu depth": ("some.conllu", {"label_column": "depth"}),
        "conllu feats": ("some.conllu", {"label_column": "feats.Number", "rare_classes": "drop"}),
        "conllu distance": ("some.conllu", {"label_column": "head_distance"}),
        "unlabelled": ("plain.csv", {"label_column": None, "text_column": "text"}),
        **{name: (name, {"limit": 60}) for name in ("agreement", "counting", "ranking", "spans", "dialogue")},
        **{name: (name, {"limit": 60, "seed": 2}) for name in ("brackets", "brackets-depth", "ballots", "honesty")},
    }.items():
        steps.py(name, lambda source=source, how=how: of_task(pk.load_task(source, **how)))
    steps.py("frame", lambda: of_task(pk.load_task(pd.DataFrame(table), name="frame")))
    steps.py("pairs", lambda: of_task(pk.load_task([(row["text"], row["label"]) for row in table], name="pairs")))
    steps.py("ids", lambda: of_task(id_task()))


# ---- extraction ------------------------------------------------------------------------------------------------------


@scene
def extracts(steps: Steps) -> None:
    model = gpt2()
    write_table(Path("texts.csv"), rows())
    job = f"extract --model {model} --dataset texts.csv --json"
    small = "--batch-tokens 128 --shard-bytes 6000"
    steps.cmd("dry run", f"{job} --dry-run --points resid_pre,attn_out --picture read.svg", keep="read.svg")
    steps.cmd("dry run text", f"{job} --dry-run --position last,mean".replace(" --json", ""))
    steps.cmd("default name", f"{job} --limit 10")
    for name, how in {
        "plain": "",
        "shards": f"--points resid_pre,q,attn_pattern {small}",
        "layers": "--layers 0,2 --points resid_mid,mlp_out",
        "all tokens": f"--position all {small}",
        "several positions": "--position last,first,-3",
        "mean": "--position mean",
        "slice": "--position -5:",
        "in": "--position 'in: is'",
        "bos": "--bos",
        "fp16": "--store-dtype fp16",
        "bf16": "--store-dtype bf16 --dtype bf16",
        "random": "--random-init --model-seed 2",
        "stats": f"--stats {small}",
        "stats only": f"--stats-only {small}",
        "labels": "--label-column label,topic,score --group-column group --id-column key",
        "columns": "--keep-columns source,score",
        "limit": "--limit 12 --seed 4",
        "z heads": "--points z",
        "generate": "--generate 6 --temperature 1 --generate-seed 3 --position last@generated --no-stop",
        "generate greedy": "--generate 4 --position all@generated",
    }.items():
        out = name.replace(" ", "-")
        steps.cmd(name, f"{job} {how} --out {out}")
        if name != "stats only":
            steps.store(f"{name}: store", out)
        if name.startswith("stats"):
            steps.py(f"{name}: sums", lambda out=out: of_statistics(pk.load_statistics(out)))
    steps.cmd("again", f"{job} --out plain")
    steps.cmd("another question", f"{job} --out plain --layers 1")
    steps.cmd("stats later", f"{job} --out plain --stats")
    steps.cmd("ls", "ls . --json")
    steps.cmd("ls text", "ls .")
    steps.cmd("verify", "verify shards --json")
    steps.cmd("texts out", "export generate --texts --out texts.jsonl", keep="texts.jsonl")
    steps.cmd(
        "stdin",
        f"extract --model {model} --dataset - --out stdin --json",
        stdin=Path("texts.csv").read_bytes(),
    )
    steps.store("stdin: store", "stdin")
    steps.py("random_init_of", lambda: of_activations(pk.random_init_of("plain", seed=1, progress=False)))
    steps.py(
        "in memory",
        lambda: of_activations(
            pk.extract(pk.load_model(model), ["the keys", "a key near the doors"], points="resid_pre")
        ),
    )
    steps.py("frame", lambda: record.frame(pk.load_activations("labels").to_frame()))
    steps.py(
        "per text", lambda: [record.bits(x) for x in pk.load_activations("shards").per_text(("attn_pattern", 0))[:6]]
    )
    steps.py("at", lambda: of_activations(pk.load_activations("several-positions").at("first")))
    steps.py("at all", lambda: of_activations(pk.load_activations("all-tokens").at("all")))
    steps.py(
        "concatenated",
        lambda: of_activations(pk.load_activations("plain").concatenated(["resid_pre.0", "resid_post.2"])),
    )
    steps.py(
        "show_reading", lambda: str(pk.show_reading(pk.load_model(model), pk.load_task("texts.csv"), ["last", "mean"]))
    )


def of_statistics(sums: Any) -> dict[str, Any]:
    """The sums of a store by place and split."""
    made = {}
    for key in sums:
        moments = sums[key]
        body = {"count": moments.count}
        for name in ("mean", "covariance", "mean_D", "covariance_DD", "sum_D", "scatter_DD"):
            if isinstance(getattr(moments, name, None), torch.Tensor | np.ndarray):
                body[name] = record.figures(getattr(moments, name))
        made[str(key)] = body
    return made


@scene
def parts(steps: Steps) -> None:
    model = gpt2()
    write_table(Path("texts.csv"), columns(rows(), "text", "label"))
    job = f"extract --model {model} --dataset texts.csv --points resid_pre --batch-tokens 64 --shard-bytes 1500 --json"
    steps.cmd("one", f"{job} --out one")
    steps.cmd("a", f"{job} --out a --part 1/2")
    steps.cmd("merge early", "merge a --out all --json")
    steps.cmd("b", f"{job} --out b --part 2/2")
    steps.cmd("merge", "merge a b --out all --json")
    steps.store("one: store", "one")
    steps.store("all: store", "all")
    for part in ("1/3", "3/3", "2/3"):
        steps.cmd(f"shared {part}", f"{job} --out shared --part {part}")
    steps.store("shared: store", "shared")
    steps.cmd("other parts", f"{job} --out a --part 1/3")
    steps.cmd("shares", f"{job} --out x --part 1/3 --dry-run")
    for part in ("1/2", "2/2"):
        steps.cmd(f"stats {part}", f"{job} --out s{part[0]} --part {part} --stats")
    steps.cmd("merge stats", "merge s1 s2 --out sums --json")
    steps.py("sums", lambda: of_statistics(pk.load_statistics("sums")))
    steps.cmd("ls", "ls . --json")


@scene
def devices(steps: Steps) -> None:
    model = gpt2()
    write_table(Path("texts.csv"), columns(rows(), "text", "label"))
    job = f"extract --model {model} --dataset texts.csv --batch-tokens 64 --shard-bytes 1500 --json"
    steps.cmd("two", f"{job} --devices cpu,cpu --out two")
    steps.store("two: store", "two")
    steps.cmd("absent", f"{job} --devices cuda:7 --out x")


@scene
def ray(steps: Steps) -> None:
    gpt2()
    write_table(Path("texts.csv"), columns(rows(), "text", "label"))
    probe = "import ray; ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False); print('up')"
    try:
        up = subprocess.run([sys.executable, "-c", probe], capture_output=True, timeout=60, text=True).stdout
    except subprocess.TimeoutExpired:
        up = ""
    if "up" not in up:
        steps.records["skipped"] = "Ray does not start here"
        return
    job = "extract --model gpt2 --dataset texts.csv --batch-tokens 64 --shard-bytes 1500 --json"
    steps.cmd("extract", f"{job} --engine ray --workers 1 --out store")
    steps.store("store", "store")
    steps.cmd(
        "train",
        f"train-probe store --engine ray --workers 1 {QUICK} --json --out r",
        keep="r/results.csv",
    )


@scene
def damage(steps: Steps) -> None:
    made_store("store", "--batch-tokens 64 --shard-bytes 1500")
    shards = sorted(Path("store").rglob("*.safetensors"))
    body = bytearray(shards[1].read_bytes())
    body[-5] ^= 1
    shards[1].chmod(0o644)
    shards[1].write_bytes(bytes(body))
    shards[2].unlink()
    steps.cmd("verify", "verify store --json")
    steps.cmd("train", f"train-probe store {QUICK} --json")
    steps.cmd("repair", "repair store --json")
    steps.cmd("verify again", "verify store --json")
    steps.store("store", "store")
    Path("store/manifest.json").unlink()
    steps.cmd("no manifest", "verify store --json")
    steps.cmd("repair manifest", "repair store --json")
    steps.store("store again", "store")


@scene
def labels(steps: Steps) -> None:
    table = rows()
    gpt2()
    write_table(Path("texts.csv"), columns(table, "key", "text"))
    write_table(Path("labels.csv"), [{"id": row["key"], "label": row["label"]} for row in table])
    write_table(
        Path("others.jsonl"), [{"key": row["key"], "topic": row["topic"], "group": row["group"]} for row in table[:80]]
    )
    write_table(Path("changed.csv"), [{"id": row["key"], "label": 1 - row["label"]} for row in table])
    write_table(Path("numbers.csv"), [{"id": row["key"], "label": row["score"]} for row in table])
    steps.cmd(
        "extract",
        "extract --model gpt2 --dataset texts.csv --id-column key --out store --json",
    )
    steps.cmd("no labels", f"train-probe store {QUICK} --json")
    steps.cmd("label", "label store labels.csv --json")
    steps.store("labelled", "store")
    steps.cmd("missing", "label store others.jsonl --id-column key --label-column topic --json")
    steps.cmd(
        "skip",
        "label store others.jsonl --id-column key --label-column topic --on-bad-row skip --json",
    )
    steps.cmd("numbers", "label store numbers.csv --name score --json")
    steps.cmd("other labels", "label store changed.csv --json")
    steps.cmd("replace", "label store changed.csv --replace --json")
    steps.store("all of them", "store")
    steps.cmd("train", f"train-probe store {QUICK} --label all --json --out results", keep="results")
    ids = {row["key"]: row["topic"] for row in table}
    steps.py("in memory", lambda: of_task(pk.label(pk.load_activations("store"), ids, name="byid").task))


@scene
def chats(steps: Steps) -> None:
    gpt2()
    write_table(Path("chats.jsonl"), samples.chats())
    Path("plain.jinja").write_text(samples.DIALOGUE)
    Path("other.jinja").write_text("{% for m in messages %}{{ m.content }}. {% endfor %}")
    job = "extract --model gpt2 --dataset chats.jsonl --json"
    steps.cmd("no template", f"{job}")
    steps.cmd("dry run", f"{job} --chat-template plain.jinja --dry-run --add-generation-prompt")
    for position in ("last@assistant", "mean@user", "all"):
        steps.cmd(position, f"{job} --chat-template plain.jinja --position {position} --out {position}")
        steps.store(f"{position}: store", position)
    steps.cmd(
        "other template",
        f"{job} --chat-template other.jinja --position last@assistant --out last@assistant",
    )
    steps.cmd("train", f"train-probe last@assistant {QUICK} --json --out results", keep="results/results.csv")
    steps.cmd(
        "score",
        "score --probe results --model gpt2 --chat-template plain.jinja --dataset chats.jsonl --json",
    )


@scene
def words(steps: Steps) -> None:
    gpt2()
    write_table(Path("spans.jsonl"), samples.spans())
    write_table(Path("tags.jsonl"), samples.stretches())
    Path("some.conllu").write_text(samples.conllu())
    for name, how in {
        "spans": "--dataset spans.jsonl --span-column span --position mean",
        "stretches": "--dataset tags.jsonl --token-label-column tags --position all",
        "conllu": "--dataset some.conllu --label-column upos --on-long cut",
    }.items():
        steps.cmd(name, f"extract --model gpt2 {how} --out {name} --json")
        steps.store(f"{name}: store", name)
        more = "--position all" if name == "stretches" else ""
        steps.cmd(
            f"{name}: train",
            f"train-probe {name} {QUICK} {more} --json --out r-{name}",
            keep=f"r-{name}/results.csv",
        )


# ---- imports ---------------------------------------------------------------------------------------------------------


@scene
def imports(steps: Steps) -> None:
    table = rows()
    write_table(Path("labels.csv"), columns(table, "text", "label", "split"))
    draws = np.random.default_rng(0)
    arrays = draws.normal(size=(3, len(table), 12)).astype(np.float32)
    arrays[:, np.array([row["label"] for row in table]) == 1, 0] += 1.5
    Path("acts").mkdir()
    for i, x in enumerate(arrays):
        np.save(f"acts/blocks.{i}.hook_resid_pre.npy", x)
    np.save("stack.npy", arrays)
    np.save("stack1.npy", arrays.transpose(1, 0, 2))
    np.save("y.npy", np.array([row["label"] for row in table]))
    from safetensors.numpy import save_file

    Path("hidden").mkdir()
    save_file({f"hidden_states_{i}": x.astype(np.float16) for i, x in enumerate(arrays)}, "hidden/all.safetensors")
    for name, how in {
        "folder": "acts --labels labels.csv --model-name m --position last",
        "stack": "stack.npy --labels y.npy --stack-axis 0 --point resid_post",
        "stack layers": "stack1.npy --labels y.npy --stack-axis 1 --point resid_pre --layers 0,4,8 --n-layers 12",
        "hidden": "hidden --labels labels.csv --n-layers 2",
        "fp16": "acts --labels labels.csv --store-dtype fp16",
    }.items():
        steps.cmd(f"{name}: dry run", f"import {how} --dry-run --json")
        out = "s-" + name.replace(" ", "-")
        steps.cmd(name, f"import {how} --out {out} --json")
        steps.store(f"{name}: store", out)
    steps.cmd("train", f"train-probe s-folder {QUICK} --json --out r", keep="r")
    steps.cmd("train full", "train-probe s-folder --json --C 0.01,1 --out full", keep="full")
    steps.cmd("no stack axis", "import stack.npy --labels y.npy")


@scene
def vllm(steps: Steps) -> None:
    from safetensors.torch import save_file
    from transformers import GPT2Model

    gpt2()
    table = columns(rows(24), "text", "label")
    write_table(Path("texts.csv"), table)
    hf = GPT2Model.from_pretrained("gpt2").eval()
    tokenizer = samples.tokenizer_of(Path("gpt2"))
    for order in ("TSD", "STD"):
        Path(order).mkdir()
        for number, row in enumerate(table):
            ids = tokenizer.encode(row["text"]).ids
            last: list[torch.Tensor] = []

            def keep(_: Any, args: Any, last: list[torch.Tensor] = last) -> None:
                last.append(args[0])

            hook = hf.ln_f.register_forward_pre_hook(keep)
            with torch.no_grad():
                hidden = hf(torch.tensor([ids]), output_hidden_states=True).hidden_states
            hook.remove()
            x = torch.stack([*hidden[:-1], last[0]], 2)[0][:, [0, 2, 3]]
            x = x if order == "TSD" else x.transpose(0, 1)
            body = {"token_ids": torch.tensor(ids), "hidden_states": x.contiguous()}
            save_file(body, f"{order}/req-{number * 7 % len(table):03d}.safetensors")
        job = f"import --format vllm {order} --model gpt2 --dataset texts.csv --layers 0,2,3 --json"
        steps.cmd(f"{order}: dry run", f"{job} --dry-run")
        for position in ("last", "mean", "all"):
            steps.cmd(f"{order} {position}", f"{job} --position {position} --out {order}-{position}")
            steps.store(f"{order} {position}: store", f"{order}-{position}")
    next(Path("TSD").iterdir()).unlink()
    steps.cmd(
        "a file is missing",
        "import --format vllm TSD --model gpt2 --dataset texts.csv --layers 0,2,3",
    )


@scene
def object_store(steps: Steps) -> None:
    sys.path.insert(0, str(TESTS))
    from s3_server import S3Server  # pyright: ignore[reportMissingImports]

    model = gpt2()
    write_table(Path("texts.csv"), columns(rows(), "text", "label"))
    server = S3Server()
    try:
        os.environ.update(server.env)
        made = subprocess.run(
            [sys.executable, "-c", "import s3fs; s3fs.S3FileSystem().mkdir('bucket')"], capture_output=True, text=True
        )
        assert made.returncode == 0, made.stderr
        job = f"extract --model {model} --dataset texts.csv --batch-tokens 64 --shard-bytes 3000 --json"
        steps.cmd("extract", f"{job} --out s3://bucket/store")
        steps.cmd("again", f"{job} --out s3://bucket/store")
        steps.cmd("another question", f"{job} --out s3://bucket/store --layers 1")
        steps.store("store", "s3://bucket/store")
        steps.cmd("verify", "verify s3://bucket/store --json")
        steps.cmd("label", "label s3://bucket/store texts.csv --json")
        steps.cmd("train", f"train-probe s3://bucket/store {QUICK} --json --out r", keep="r/results.csv")
        for part in ("1/2", "2/2"):
            steps.cmd(f"part {part}", f"{job} --out s3://bucket/parts --part {part}")
        steps.store("parts", "s3://bucket/parts")
        steps.cmd("stats", f"{job} --out s3://bucket/sums --stats")
        steps.py("sums", lambda: of_statistics(pk.load_statistics("s3://bucket/sums")))
        steps.cmd("ls", "ls s3://bucket --json")
        steps.cmd("absent", "train-probe s3://bucket/absent")
    finally:
        server.close()


# ---- probes ----------------------------------------------------------------------------------------------------------


@scene
def probes(steps: Steps) -> None:
    made_store(
        "store",
        "--points resid_pre,attn_out --label-column label,topic,score --keep-columns source --group-column group",
        table=rows(),
    )
    for name, how in {
        "default": "--C 0.01,1",
        "quick": QUICK,
        "ridge": "--probe ridge --C 0.01,1",
        "lda": "--probe lda --quick",
        "mean-diff": "--probe mean-diff --quick --projection",
        "mlp": "--probe mlp --layer 1 --quick",
        "k-sparse": "--probe k-sparse --set train-probe.probe.k=4 --quick",
        "several probes": f"--probe logistic,mean-diff {QUICK}",
        "all labels": f"--label all {QUICK}",
        "topic": "--label topic --C 0.1,1",
        "regression": "--label score --C 0.1,1",
        "points": f"--point all {QUICK}",
        "folds": f"--folds 4 {QUICK}",
        "folds full": "--folds 3 --C 0.1,1 --layer 1 --controls 1",
        "concatenate": f"--concatenate {QUICK}",
        "layers": f"--layer 0,2 {QUICK}",
        "nuisance": f"--nuisance source,length {QUICK}",
        "shift": f"--shift-column source --least-texts 1 {QUICK}",
        "drop leaks": f"--drop-leaks {QUICK}",
        "auroc": f"--metric auroc {QUICK}",
        "controls": "--controls 2 --control-C own --control-type text --C 0.1,1",
        "no intervals": f"--no-intervals {QUICK}",
        "seed": "--seed 3 --C 0.1,1 --layer 1",
        "random-init": f"--baseline random-init {QUICK}",
        "memory": "--memory 100KB --probe ridge --quick",
        "csv format": f"--format pdf,svg --width 3.25 --no-title {QUICK}",
    }.items():
        out = "r-" + name.replace(" ", "-")
        steps.cmd(name, f"train-probe store {how} --json --out {out}", keep=out)
    steps.cmd("text", "train-probe store --C 0.1,1 --out r-text")
    steps.cmd("again", f"train-probe store {QUICK} --out r-quick --json")
    steps.cmd("another question", f"train-probe store {QUICK} --seed 9 --out r-quick --json")
    for name, call in {
        "frame": lambda: record.frame(pk.ProbeResults.load("r-default").to_frame()),
        "curves frame": lambda: record.frame(pk.ProbeCurves.load("r-all-labels").to_frame()),
        "summary": lambda: record.said(pk.ProbeResults.load("r-default").summary()),
        "meta": lambda: pk.ProbeResults.load("r-default").meta,
        "load_probe": lambda: probe_numbers("r-default"),
        "steering": lambda: record.figures(
            pk.steering_vectors(pk.load_activations("store"), "label")["resid_pre", 1].vector_D
        ),
        "eraser": lambda: of_eraser(),
        "protocol": lambda: of_protocol(),
    }.items():
        steps.py(name, call)


def probe_numbers(folder: str) -> dict[str, Any]:
    """What the chosen probe of saved results predicts."""
    best = pk.ProbeResults.load(folder).best
    X = pk.load_activations("store")[best.place]
    return {
        "place": str(best.place),
        "predict": best.probe.predict(X),
        "labels": list(map(str, best.probe.predict_labels(X)[:6])),
        "decision": record.figures(best.probe.decision_function(X)),
        "direction": record.figures(best.probe.direction),
    }


def of_eraser() -> dict[str, Any]:
    """LEACE at a place, and what fresh probes read after it."""
    acts, model = pk.load_activations("store"), pk.load_model("gpt2", progress=False)
    eraser = pk.fit_eraser(acts, "resid_pre.1", "label")
    found = pk.read_after_edit(model, acts, "resid_pre.1", eraser.edit, "label")
    return {
        "matrix": record.figures(eraser.matrix),
        "bias": record.figures(eraser.bias),
        "change": float(eraser.change),
        "completeness": record.plain(np.asarray(found.completeness)),
        "selectivity": record.plain(np.asarray(found.selectivity)),
    }


def of_protocol() -> dict[str, Any]:
    """Least squares of several numbers at every token."""
    model = pk.load_model("gpt2", progress=False)
    ids: Any = np.array([[1 + (7 * i + 3 * j) % 250 for j in range(8)] for i in range(40)])
    labels = {"board": (ids % 3).astype(np.int64), "turn": np.sin(ids)[:, :, None] * np.array([1.0, 2.0])}
    splits = np.where(np.arange(40) < 30, "train", "test")
    task = pk.Task("games", ids, splits=splits, token_labels=labels, target="board")
    acts = pk.extract(model, task, points=["embed", "resid_post"], position="all", progress=False)
    plain = {"controls": 0, "baselines": False, "intervals": False}
    how: dict[str, Any] = {"position": "all", "probe": "ridge", "C": float("inf"), **plain}
    curves = pk.train_probes(acts, points=["embed", "resid_post"], labels=["board", "turn"], progress=False, **how)
    return record.frame(curves.to_frame())


@scene
def estimators(steps: Steps) -> None:
    from probekit import probes as room

    draws = np.random.default_rng(1)
    X = draws.normal(size=(160, 10))
    y2 = (X[:, 0] + 0.8 * draws.normal(size=160) > 0).astype(int)
    y3 = np.digitize(X[:, 1] + 0.5 * draws.normal(size=160), [-0.5, 0.5])
    t = X @ draws.normal(size=(10, 2)) + draws.normal(size=(160, 2))
    makers = {
        "logistic": lambda: room.LogisticProbe(C=0.3),
        "logistic raw": lambda: room.LogisticProbe(C=0.3, standardise=False),
        "ridge": lambda: room.RidgeProbe(C=0.3),
        "ridge raw": lambda: room.RidgeProbe(C=0.3, standardise=False),
        "lda": room.LDAProbe,
        "mean-diff": room.MeanDifferenceProbe,
        "mlp": room.MLPProbe,
        "k-sparse": lambda: room.KSparseProbe(k=3),
    }
    for name, make in makers.items():
        for classes, y in (("two", y2), ("three", y3)):

            def fit(make: Any = make, y: Any = y) -> Any:
                probe = make().fit(X, y)
                made = {"predict": record.plain(np.asarray(probe.predict(X)[:30]))}
                for field in ("coef_", "intercept_", "gap_", "loss_", "neurons_", "mean_", "scale_"):
                    value = getattr(probe, field, None)
                    if value is not None:
                        made[field] = record.figures(value)
                made["decision"] = record.figures(probe.decision_function(X))
                made["probability"] = (
                    record.figures(probe.predict_proba(X)) if hasattr(probe, "predict_proba") else None
                )
                return made

            steps.py(f"{name} {classes}", fit)
    steps.py("regression", lambda: record.figures(room.RidgeRegressionProbe(C=0.5).fit(X, t).predict(X)))
    steps.py("least squares", lambda: record.figures(room.RidgeRegressionProbe(C=float("inf")).fit(X, t).predict(X)))

    def path() -> Any:
        fits = room.fit_logistic_path(torch.tensor(X), torch.tensor(y3), C=[0.01, 1.0, 100.0])
        ranked = room.rank_neurons(torch.tensor(X), torch.tensor(y2))
        return {
            "coef": [record.figures(p.coef_) for p in fits],
            "gap small": [bool(np.max(p.gap_) < 1e-5) for p in fits],
            "ranking": str(ranked)[:300],
        }

    steps.py("path", path)
    steps.py(
        "weights",
        lambda: record.figures(room.LogisticProbe(C=1.0).fit(X, y2, sample_weight=np.linspace(0.5, 2, 160)).coef_),
    )


@scene
def positions(steps: Steps) -> None:
    made_store("all", "--position all --label-column label", table=rows())
    job = "train-probe all --json --probe mean-diff --least-texts 2"
    for name, how in {
        "by position": "--by position --position 14:",
        "from the end": "--by position-from-end --position -4:",
        "selections": "--by position --position last,first,mean",
        "each token": "--position all --controls 1",
        "last": "--position last",
        "by position quick": "--by position --position :2 --quick",
        "aggregate softmax": "--aggregate softmax --probe ridge --C 1 --layer 1",
        "aggregate mean": "--aggregate mean --probe logistic --C 1 --layer 1 --quick",
        "aggregate max": "--aggregate max --probe lda --layer 1 --quick",
        "aggregate last": "--aggregate last --probe mean-diff --layer 1 --quick",
        "attention": "--probe attention --C 0.1 --layer 0,1",
    }.items():
        out = "r-" + name.replace(" ", "-")
        steps.cmd(name, f"{job} {how} --out {out}", keep=out)
    steps.py("frame", lambda: record.frame(pk.PositionResults.load("r-by-position").to_frame()))
    steps.cmd("report", "report r-from-the-end --store all --out p.html --json", keep="p.html")


@scene
def heads(steps: Steps) -> None:
    made_store("heads", "--points z,attn_out")
    job = "train-probe heads --point z --by head --json"
    steps.cmd("heads", f"{job} --probe mean-diff --out r", keep="r")
    steps.cmd("quick", f"{job} {QUICK} --layer 1 --out q", keep="q")
    steps.py("frame", lambda: record.frame(pk.HeadResults.load("r").to_frame()))
    steps.cmd("report", "report r --store heads --out p.html --json", keep="p.html")


@scene
def scores(steps: Steps) -> None:
    made_store("store", table=rows())
    steps.cmd("train", "train-probe store --C 0.1,1 --json --out results", keep="results/results.csv")
    job = "score --probe results --model gpt2 --json"
    write_table(Path("new.csv"), columns(rows(20), "key", "text"))
    for name, how in {
        "texts": "--text 'the cat no 3 is good' --text 'the dog no 9 is bad'",
        "dataset": "--dataset new.csv --id-column key --fpr 0.2",
        "tokens": "--text 'the cat no 3 is good' --tokens",
        "picture": "--text 'the cat no 3 is good' --picture p.svg",
    }.items():
        steps.cmd(name, f"{job} {how}")
    steps.cmd("place", "score --probe results:resid_pre.1 --model gpt2 --text 'the cat' --json")
    for kind in ("csv", "jsonl", "parquet"):
        steps.cmd(kind, f"{job} --dataset new.csv --out scores.{kind}", keep=f"scores.{kind}")
    write_model(Path("other"), ("GPT2Config", "GPT2LMHeadModel", {**samples.GPT2, "layer_norm_epsilon": 1e-2}))
    steps.cmd("another model", "score --probe results --model other --text a")
    steps.cmd("any model", "score --probe results --model other --text a --any-model --json")
    for kind in ("numpy", "safetensors", "sklearn-json", "gguf-control-vector", "latex", "csv", "parquet", "card"):
        out = {"numpy": "x.npz", "card": "card", "sklearn-json": "x.json", "latex": "x.tex"}.get(
            kind, f"x-{kind}.{kind}"
        )
        place = ":resid_pre.2" if kind == "gguf-control-vector" else ""
        steps.cmd(f"export {kind}", f"export results{place} --to {kind} --out {out} --json", keep=out)

    def watched() -> Any:
        model, results = pk.load_model("gpt2", progress=False), pk.ProbeResults.load("results")
        with pk.Monitor(model, results, threshold=0.5) as one:
            written = model.generate(["the cat no 3 is", "a dog"], max_new_tokens=10, stop_tokens=[])
        with pk.Monitor(
            model,
            {"a": results, "b": (results.best.probe, "resid_pre.1")},
            threshold={"b": 0.1},
            each=True,
            prompt=True,
        ) as two:
            model.generate(["the cat no 3 is"], max_new_tokens=4, stop_tokens=[])
        return {
            "written": written,
            "frame": record.frame(one.to_frame()),
            "two": record.frame(two.to_frame()),
            "alarms": [str(a) for a in two.alarms],
        }

    steps.py("monitor", watched)


@scene
def reports(steps: Steps) -> None:
    made_store("store", "--label-column label,topic", rows())
    steps.cmd("train", "train-probe store --C 0.1,1 --quiet --projection")
    steps.cmd("train topic", f"train-probe store --label topic {QUICK} --quiet")
    steps.cmd("train ridge", "train-probe store --probe ridge --C 0.1,1 --quiet")
    steps.cmd("report", "report store --out all.html --texts 6 --json", keep="all.html")
    steps.cmd("no tokens", "report store --out none.html --no-tokens --json", keep="none.html")
    steps.cmd("ls", "ls . --json")
    found = sorted(one.parent for one in Path("store").rglob("results.json"))
    steps.records["folders"] = [record.clean_text(str(one)) for one in found]
    steps.cmd("compare", f"compare {found[0]} {found[1]} --out both --json", keep="both")
    steps.cmd(
        "depth",
        f"compare {found[0]}:resid_pre.0 {found[0]}:resid_pre.2 --axis depth --out depth --json",
        keep="depth",
    )


@scene
def several_stores(steps: Steps) -> None:
    table = rows()
    made_store("a", table=columns(table, "text", "label"))
    swapped = [{"text": row["text"].replace("is ", "was "), "label": row["label"]} for row in table]
    made_store("b", table=swapped)
    made_store("c", "--random-init")
    steps.cmd("transfer", "transfer a b --probe mean-diff --out t --json", keep="t")
    steps.cmd("transfer layer", "transfer a b --layer 1 --C 0.1,1 --out t1 --json", keep="t1")
    steps.cmd("transfer text", "transfer a b --layer 1 --probe ridge --out t2")
    steps.py("frame", lambda: record.frame(pk.TransferResults.load("t").to_frame()))
    for name in "abc":
        steps.cmd(f"train {name}", f"train-probe {name} {QUICK} --quiet")
    steps.cmd("compare", "compare a c --out ab --json", keep="ab")
    steps.cmd("compare all", "compare a b c --pairs all --out abc --json", keep="abc/comparison.json")
    steps.cmd("compare text", "compare a b --out x")
    for number in (1, 2, 4):
        write_model(
            Path(f"steps/step{number}"),
            ("GPT2Config", "GPT2LMHeadModel", {**samples.GPT2, "n_layer": 2, "layer_norm_epsilon": 0.1 * number}),
        )
    steps.cmd(
        "steps",
        "extract --model steps --revision step1,step2,step4 --dataset texts.csv --out many --json",
    )
    steps.cmd("train steps", f"train-probe many {QUICK} --json")
    steps.cmd("by step", "compare many --by step --out by --json", keep="by")


@scene
def sweeps(steps: Steps) -> None:
    gpt2()
    Path("tasks").mkdir()
    for name, (good, bad) in {"one": ("good", "bad"), "=two": ("yes", "no"), "three": ("up", "down")}.items():
        table = [{"text": f"text number {i} {[bad, good][i % 2]}", "label": i % 2} for i in range(60)]
        write_table(Path(f"tasks/{name}.csv"), table)
    Path("tasks/broken.csv").write_text("text,label\nonly one class,0\n")
    job = f"sweep --model gpt2 --dataset tasks {QUICK}"
    steps.cmd("dry run", f"{job} --dry-run --json")
    steps.cmd("sweep", f"{job} --probe logistic,mean-diff --out out --json", keep="out")
    steps.cmd("again", f"{job} --probe logistic,mean-diff --out out --json")
    steps.cmd("another question", f"{job} --out out --layer 1")
    steps.py("frame", lambda: record.frame(pk.SweepResults.load("out").to_frame()))
    steps.cmd(
        "stores",
        "sweep --model gpt2 --dataset tasks/one.csv --probe mean-diff --quick --stores --out st --json",
        keep="st/results.csv",
    )


@scene
def causal(steps: Steps) -> None:
    made_store("store")
    steps.cmd("train", f"train-probe store {QUICK} --quiet --out results")
    quick = "--rows 16 --placebos 2 --scale -1,1 --json"
    job = f"causal results --store store --answers b,g {quick}"
    for name, how in {
        "one": "--layer 1",
        "cheap": "--no-das --no-completeness --method interchange,steer",
        "patch": "--method patch --layer 1,2",
        "all tokens": "--at all --layer 1 --no-completeness",
        "answer at": "--answer-at -1 --layer 1 --method erase",
        "exact": "--method patch --exact 4 --layer 1",
    }.items():
        out = name.replace(" ", "-")
        steps.cmd(name, f"{job} {how} --out {out}", keep=out)
    steps.cmd("dry run", f"{job} --dry-run")
    steps.cmd("again", f"{job} --layer 1 --out one")
    steps.cmd("another question", f"{job} --layer 1 --seed 4 --out one")
    pairs = [
        {
            "clean": f"the cat no {i} is g",
            "corrupted": f"the dog no {i} is b",
            "clean_answer": "o",
            "corrupted_answer": "a",
        }
        for i in range(10, 18)
    ]
    write_table(Path("pairs.csv"), pairs)
    steps.cmd(
        "pairs",
        "causal store --method patch --pairs pairs.csv --out pairs --json",
        keep="pairs",
    )
    steps.py("frame", lambda: record.frame(pk.CausalResults.load("one").to_frame()))
    steps.py(
        "losses", lambda: [record.bits(x) for x in pk.token_losses(pk.load_model("gpt2"), [[3, 4, 5, 6], [7, 8, 9]])]
    )
    steps.cmd("report", "report one --store store --out c.html --json", keep="c.html")
    steps.cmd("report patch", "report patch --store store --out p.html --json", keep="p.html")


@scene
def plain_commands(steps: Steps) -> None:
    steps.cmd("version", "--version")
    steps.cmd("nothing")
    for name in COMMANDS.split():
        steps.cmd(f"help {name}", f"{name} --help")
    steps.cmd("help", "--help")
    steps.records["public"] = sorted(pk.__all__)
    from probekit import interventions, plots
    from probekit import probes as room

    for module in (interventions, plots, room):
        steps.records[module.__name__] = sorted(module.__all__)
    from probekit import options

    for kind in ("ExtractOptions", "ProbeOptions", "TrainingSettings"):
        one = getattr(options, kind, None)
        if one is not None and dataclasses.is_dataclass(one):
            steps.records[kind] = {
                f.name: record.plain(f.default) if f.default is not dataclasses.MISSING else "made"
                for f in dataclasses.fields(one)
            }
