"""Memory and seconds of loading a sharded checkpoint, in full and in few bits: python benchmarks/load.py --help

    python benchmarks/load.py

A random Qwen3 (12 layers of d_model 1,024) is written as several shards: float32; float8 with a scale for each block of
128 x 128; int4 in groups of 128 (compressed-tensors); and packaged as multimodal, with a vision tower that is as large.
The family of this project loads each, and the class of transformers, wrapped here, that in float8 (`via transformers`).
Each load is several processes of their own, whose memory is read from /proc every few milliseconds. Counted is RssAnon,
the memory that the process made itself: pages of the mapped files, which the kernel can drop, are not. It is divided by
the weights in the type that computes. The allocator lays out its heap anew in each process, so the worst peak counts;
of the seconds, the median. transformers loads the first for comparison.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from probekit.models.families import families
from probekit.models.families.llama import Llama, LlamaConfig
from probekit.models.weights import as_stored

CONFIG = LlamaConfig(
    d_model=1024, n_heads=16, n_kv_heads=8, d_head=64, d_mlp=3072, n_layers=12, n_ctx=1024, d_vocab=20_000,
    model_type="qwen3",
)  # fmt: skip
SHARD_BYTES = 120_000_000
Tensors = dict[str, Tensor]


def float8(name: str, weight: Tensor) -> Tensors:
    rows, columns = (-(-size // 128) for size in weight.shape)
    scale = torch.rand(rows, columns) + 0.5
    return {name: weight.to(torch.float8_e4m3fn), f"{name}_scale_inv": scale}


def int4(name: str, weight: Tensor) -> Tensors:
    rows, columns = weight.shape
    packed = torch.randint(-(1 << 31), (1 << 31) - 1, (rows, columns // 8), dtype=torch.int32)
    scale, shape = torch.rand(rows, columns // 128, dtype=torch.bfloat16), torch.tensor([rows, columns])
    return {f"{name}_packed": packed, f"{name}_scale": scale, f"{name}_shape": shape}


INT4: dict[str, Any] = {"quant_method": "compressed-tensors", "format": "pack-quantized"}
INT4["config_groups"] = {"group_0": {"weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}}}
KINDS: dict[str, tuple[Any, dict[str, Any] | None]] = {
    "float32": (None, None),
    "float8": (float8, {"quant_method": "fp8", "weight_block_size": [128, 128]}),
    "int4": (int4, INT4),
    "packaged as multimodal": (None, None),
}

VIA = "probekit, via transformers"
LOADED_BY = {"float32": ("probekit", "transformers"), "float8": ("probekit", VIA)}


def write(kind: str, folder: Path) -> None:
    """The checkpoint in shards of 120 MB, with its index and config.json."""
    pack, quantization = KINDS[kind]
    model = Llama(CONFIG).init_weights()
    stored = dict(as_stored(model.state_dict(), families()["qwen3"].hf_names(CONFIG)))
    tensors: Tensors = {}
    for name, weight in stored.items():
        inside = weight.dim() == 2 and "embed" not in name and "lm_head" not in name
        tensors |= pack(name, weight) if pack is not None and inside else {name: weight}
    hf = CONFIG.to_hf() | ({} if quantization is None else {"quantization_config": quantization})
    if kind == "packaged as multimodal":
        tensors = {f"language_model.{name}": x for name, x in tensors.items()}
        tensors |= {f"vision_tower.layers.{i}.weight": torch.zeros(1024, 3072) for i in range(40)}
        hf = {"model_type": "internvl", "text_config": hf, "vision_config": {"model_type": "internvl_vision"}}
    shards: list[Tensors] = [{}]
    for name, x in tensors.items():
        if sum(y.nbytes for y in shards[-1].values()) + x.nbytes > SHARD_BYTES and shards[-1]:
            shards.append({})
        shards[-1][name] = x.contiguous()
    names = [f"model-{i:05}.safetensors" for i in range(len(shards))]
    for name, shard in zip(names, shards, strict=True):
        save_file(shard, folder / name, metadata={"format": "pt"})
    index = {name: file for file, shard in zip(names, shards, strict=True) for name in shard}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    (folder / "config.json").write_text(json.dumps(hf))


def own_memory() -> int:
    """RssAnon of this process in bytes."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


def load(folder: Path, by: str, dtype: str) -> dict[str, float]:
    """Load in this process; the peak above what it had before, the weights' bytes, and seconds of processor."""
    import transformers

    from probekit.models import load_model

    torch.set_num_threads(1)
    peaks, done, before = [own_memory()], threading.Event(), own_memory()

    def watch() -> None:
        while not done.wait(0.003):
            peaks.append(own_memory())

    watcher = threading.Thread(target=watch)
    watcher.start()
    start = time.process_time()
    try:
        if by == "probekit":
            model: Any = load_model(folder, device="cpu", dtype=dtype)
        elif by == VIA:
            model = load_model(folder, device="cpu", dtype=dtype, via="transformers")
        else:
            model = transformers.Qwen3ForCausalLM.from_pretrained(folder, dtype=dtype)
    finally:
        seconds = time.process_time() - start
        done.set()
        watcher.join()
    weights = sum(x.nbytes for x in model.parameters())
    return {"peak": max(peaks) - before, "weights": weights, "seconds": seconds}


def main() -> None:
    """Write each checkpoint, and load it in processes of their own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3, help="processes of each load")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="checkpoints; all by default")
    parser.add_argument("--child", nargs=3, metavar=("FOLDER", "BY", "DTYPE"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        folder, by, dtype = given.child
        print(json.dumps(load(Path(folder), by, dtype)))
        return
    print("| checkpoint | loaded by | type | weights | peak / weights | CPU seconds |\n|---|---|---|---|---|---|")
    for kind in given.kinds:
        with tempfile.TemporaryDirectory() as folder:
            write(kind, Path(folder))
            for by in LOADED_BY.get(kind, ("probekit",)):
                for dtype in ("float32", "bfloat16"):
                    command = [sys.executable, __file__, "--child", folder, by, dtype]
                    runs = [json.loads(subprocess.check_output(command, text=True)) for _ in range(given.runs)]
                    size = f"{runs[0]['weights'] / 1e6:,.0f} MB"
                    above = max(run["peak"] / run["weights"] for run in runs)
                    seconds = statistics.median(run["seconds"] for run in runs)
                    print(f"| {kind} | {by} | {dtype} | {size} | {above:.2f} | {seconds:.1f} |", flush=True)


if __name__ == "__main__":
    main()
