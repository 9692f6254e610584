"""The contestants of benchmarks/extract.py; each runs in a worker, and imports its library there.

A contestant is made from a model folder in Hugging Face format. `run(texts)` takes N lists of token ids and returns
what it kept of all of them; a sample of that can be asked for later, outside the timing. The residual stream is kept at
the last token of each text, before each block and after the last (before the final norm); attention patterns are kept
whole, a tensor for each text and layer.

Axes: N texts, B texts of a batch, L tokens of the longest, D d_model, H heads.
"""

import importlib
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from workers import resident, serve, timed

BATCH = 32
PACKAGES = ("torch", "transformers", "transformer_lens", "nnsight")
Texts = list[list[int]]


class Kept(NamedTuple):
    """What a run ends in: tokens that were computed, and place -> values of the texts of these rows."""

    computed: int
    sample: Callable[[list[int]], dict[str, Tensor]]


def batches_of(texts: Texts, by_length: bool, size: int = BATCH) -> Iterator[tuple[list[int], Tensor, Tensor]]:
    """Rows, ids [B, L] padded on the right with 0, and lengths [B] of one batch after the other."""
    order = sorted(range(len(texts)), key=lambda i: -len(texts[i])) if by_length else range(len(texts))
    for start in range(0, len(texts), size):
        rows = list(order[start : start + size])
        lengths = torch.tensor([len(texts[i]) for i in rows])
        ids = torch.zeros(len(rows), int(lengths.max()), dtype=torch.long)
        for b, i in enumerate(rows):
            ids[b, : len(texts[i])] = torch.tensor(texts[i])
        yield rows, ids, lengths


class Batched:
    """Batches, padded; a subclass says what the residual stream of one is."""

    by_length = False
    batch = BATCH
    bf16 = False
    n_points: int
    width: int

    def residuals(self, ids_BL: Tensor, mask_BL: Tensor) -> list[Tensor]:
        """[B, L, D] of every point."""
        raise NotImplementedError

    def run(self, texts: Texts) -> Kept:
        kept = torch.empty(len(texts), self.n_points, self.width)
        computed = 0
        for rows, ids, lengths in batches_of(texts, self.by_length, self.batch):
            mask = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
            last = torch.arange(len(rows)), lengths - 1
            kept[rows] = torch.stack([x[last] for x in self.residuals(ids, mask)], 1).float()
            computed += ids.numel()
        return Kept(computed, lambda rows: {str(i): kept[rows, i].clone() for i in range(self.n_points)})


def hf_model(folder: Path, attention: str = "sdpa", dtype: torch.dtype = torch.float32) -> Any:
    from transformers import GPT2Model, LlamaModel

    kind = {"gpt2": GPT2Model, "llama": LlamaModel}[json.loads((folder / "config.json").read_text())["model_type"]]
    return kind.from_pretrained(folder, attn_implementation=attention, dtype=dtype).eval()


def blocks_of(model: Any) -> Any:
    """The blocks of a GPT-2 or a Llama."""
    return model.h if hasattr(model, "h") else model.layers


def tensor(output: Any) -> Tensor:
    """What a block returned: the residual stream, which older versions put into a tuple."""
    return output[0] if isinstance(output, tuple) else output


class HuggingFace(Batched):
    """The model without a head. Its last hidden state would be normed; here the final norm is left out altogether."""

    def __init__(
        self,
        folder: Path,
        by_length: bool = False,
        autocast: bool = False,
        bf16_weights: bool = False,
        batch: int = BATCH,
    ):
        self.model = hf_model(folder, dtype=torch.bfloat16 if bf16_weights else torch.float32)
        setattr(self.model, "ln_f" if hasattr(self.model, "ln_f") else "norm", torch.nn.Identity())
        self.n_points, self.width = self.model.config.num_hidden_layers + 1, self.model.config.hidden_size
        self.by_length, self.autocast, self.batch = by_length, autocast, batch
        self.bf16 = autocast or bf16_weights

    def run(self, texts: Texts) -> Kept:
        # no_grad and one autocast around all batches: only so does autocast keep the weights that it has cast
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
            return super().run(texts)

    def residuals(self, ids_BL: Tensor, mask_BL: Tensor) -> list[Tensor]:
        out = self.model(ids_BL, attention_mask=mask_BL, output_hidden_states=True, use_cache=False)
        return list(out.hidden_states)


class TransformerLens(Batched):
    """HookedTransformer 3.x, weights as they are, stopped before the head."""

    def __init__(self, folder: Path):
        from transformers import GPT2LMHeadModel

        lens: Any = importlib.import_module("transformer_lens")
        conversions: Any = importlib.import_module("transformer_lens.pretrained.weight_conversions")
        hf: Any = GPT2LMHeadModel.from_pretrained(folder)
        c = hf.config
        cfg = lens.HookedTransformerConfig(
            n_layers=c.n_layer, d_model=c.n_embd, n_heads=c.n_head, d_head=c.n_embd // c.n_head, d_mlp=4 * c.n_embd,
            n_ctx=c.n_positions, d_vocab=c.vocab_size, act_fn="gelu_new", normalization_type="LN",
        )  # fmt: skip
        self.model = lens.HookedTransformer(cfg)
        as_they_are = {"fold_ln": False, "center_writing_weights": False, "center_unembed": False}
        weights = conversions.convert_gpt2_weights(hf, cfg)
        self.model.load_and_process_state_dict(weights, fold_value_biases=False, **as_they_are)
        self.model.eval()
        self.n_points, self.width = c.n_layer + 1, c.n_embd
        self.names = [f"blocks.{i}.hook_resid_pre" for i in range(c.n_layer)]
        self.names.append(f"blocks.{c.n_layer - 1}.hook_resid_post")

    def residuals(self, ids_BL: Tensor, mask_BL: Tensor) -> list[Tensor]:
        # no mask: what is padded on the right is seen by no real token
        stop = {"stop_at_layer": len(self.names) - 1, "return_type": None}
        _, cache = self.model.run_with_cache(ids_BL, names_filter=self.names, return_cache_object=False, **stop)
        return [cache[name] for name in self.names]


class NNsight(Batched):
    """NNsight around GPT2Model: the first block's input and the output of each."""

    def __init__(self, folder: Path):
        self.nnsight: Any = importlib.import_module("nnsight")
        hf = hf_model(folder)
        self.model = self.nnsight.NNsight(hf)
        self.n_points, self.width = hf.config.n_layer + 1, hf.config.n_embd

    def residuals(self, ids_BL: Tensor, mask_BL: Tensor) -> list[Tensor]:
        with self.model.trace(ids_BL, attention_mask=mask_BL):
            points = [self.model.h[0].input]
            for block in self.model.h:
                points.append(block.output)
            self.nnsight.save(points)
        return [tensor(x) for x in points]


class HuggingFacePattern:
    """Eager attention with output_attentions; the padding is cut off."""

    bf16 = False

    def __init__(self, folder: Path, by_length: bool = False):
        self.model, self.by_length = hf_model(folder, "eager"), by_length

    def run(self, texts: Texts) -> Kept:
        kept: dict[int, list[Tensor]] = {}
        computed = 0
        for rows, ids, lengths in batches_of(texts, self.by_length):
            mask = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
            layers = self.model(ids, attention_mask=mask, output_attentions=True, use_cache=False).attentions
            for b, (row, n) in enumerate(zip(rows, lengths.tolist(), strict=True)):
                kept[row] = [x[b, :, :n, :n].clone() for x in layers]
            computed += ids.numel()
        return Kept(computed, lambda rows: ragged([kept[row] for row in rows]))


def ragged(texts: list[list[Tensor]]) -> dict[str, Tensor]:
    """Tensors of each text and layer, as one flat tensor a layer."""
    return {str(i): torch.cat([x.flatten() for x in layer]) for i, layer in enumerate(zip(*texts, strict=True))}


class Probekit:
    """plan and run_plan: what `extract` is made of, so that the plan can be asked how many tokens were computed."""

    def __init__(self, folder: Path, dtype: str = "float32", store: str | None = None, **options: Any):
        from probekit import load_model

        self.model, self.bf16 = load_model(folder, device="cpu", dtype=dtype), dtype == "bfloat16"
        self.options = {"points": "resid_pre", "position": "last", "dtype": store or "float32", **options}
        self.scratch = folder.parent if store else None

    def run(self, texts: Texts) -> Kept:
        from probekit.activations import plan_extraction, run_plan
        from probekit.activations.plan.packing import filled_nodes
        from probekit.options import ExtractOptions

        planned = plan_extraction(self.model, task_of(texts), ExtractOptions(**self.options))
        computed = filled_nodes(planned.packing.sizes, planned.batches)
        if self.scratch is None:
            return Kept(computed, partial(self.sample, run_plan(planned, progress=False)))
        folder = tempfile.TemporaryDirectory(dir=self.scratch)  # removed when nobody holds it any more
        kept = run_plan(planned, Path(folder.name, "store"), progress=False)
        return Kept(computed, lambda rows: folder and self.sample(kept, rows))

    def sample(self, kept: Any, rows: list[int]) -> dict[str, Tensor]:
        if self.options["points"] == "attn_pattern":
            places = [kept.per_text(place) for place in kept]
            return ragged([[place[row] for place in places] for row in rows])
        return {str(i): kept[place][rows].float() for i, place in enumerate(kept)}


def task_of(texts: Texts) -> Any:
    from probekit.tasks import Task

    labels = {"none": np.zeros(len(texts), dtype=np.int64)}
    return Task("texts", texts, labels, {"none": ["none"]}, np.full(len(texts), "train"), "none")


class Reference:
    """Hugging Face, one text at a time, eager attention, the residual stream caught by hooks on the blocks."""

    bf16 = False

    def __init__(self, folder: Path, pattern: bool = False):
        self.model, self.pattern = hf_model(folder, "eager"), pattern
        self.caught: list[Tensor] = []
        blocks_of(self.model)[0].register_forward_pre_hook(lambda _, args: self.caught.append(args[0]))
        for block in blocks_of(self.model):
            block.register_forward_hook(lambda _, args, out: self.caught.append(tensor(out)))

    def run(self, texts: Texts) -> Kept:
        return Kept(0, lambda rows: self.sample([texts[row] for row in rows]))

    def sample(self, texts: Texts) -> dict[str, Tensor]:
        patterns, residuals = [], []
        for text in texts:
            self.caught.clear()
            out = self.model(torch.tensor([text]), output_attentions=self.pattern, use_cache=False)
            patterns.append([x[0] for x in out.attentions or ()])
            residuals.append(torch.stack([x[0, -1] for x in self.caught]))
        return ragged(patterns) if self.pattern else {str(i): x for i, x in enumerate(torch.stack(residuals, 1))}


class Limit:
    """No contestant: the fastest matrix products of this machine, GFLOP/s, each the best of many."""

    SHAPES = ((2048, 768, 3072), (2048, 3072, 768), (4096, 1024, 4096), (2048, 2048, 2048))
    bf16 = False

    def __init__(self, folder: Path):
        pass

    def run(self, texts: Texts) -> Kept:
        from probekit.models.kernels import multiplies

        best = {"fp32": torch.tensor(max(self.products(torch.float32)))}
        bf16 = multiplies(torch.bfloat16)  # where the processor cannot, float32 is the fastest way
        best["bf16"] = torch.tensor(max(self.products(torch.bfloat16))) if bf16 else best["fp32"].clone()
        return Kept(0, lambda rows: best)

    def products(self, dtype: torch.dtype) -> Iterator[float]:
        for n, d_in, d_out in self.SHAPES:
            x, w, b = (torch.randn(*shape).to(dtype) for shape in ((n, d_in), (d_out, d_in), (d_out,)))
            for product in (torch.nn.functional.linear, onednn):
                for _ in range(5):
                    start = clock()
                    product(x, w, b)
                    yield 2 * n * d_in * d_out / (clock() - start) / 1e9


def onednn(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, w, b, "none", [], "")


CONTESTANTS: dict[str, Callable[[Path], Any]] = {
    "hf-order": HuggingFace,
    "hf-sorted": partial(HuggingFace, by_length=True),
    "hf-alone": partial(HuggingFace, batch=1),
    "hf-sorted-bf16": partial(HuggingFace, by_length=True, autocast=True),
    "hf-sorted-bf16-weights": partial(HuggingFace, by_length=True, bf16_weights=True),
    "transformerlens": TransformerLens,
    "nnsight": NNsight,
    "probekit-packed": partial(Probekit, share=False),
    "probekit": Probekit,
    "probekit-bf16": partial(Probekit, dtype="bfloat16"),
    "probekit-store": partial(Probekit, store="float32"),
    "hf-pattern": HuggingFacePattern,
    "hf-pattern-sorted": partial(HuggingFacePattern, by_length=True),
    "probekit-pattern": partial(Probekit, points="attn_pattern"),
    "reference": Reference,
    "reference-pattern": partial(Reference, pattern=True),
    "limit": Limit,
}


def clock() -> float:
    """Seconds; with one thread those of the processor, since other jobs change them less."""
    return time.process_time() if torch.get_num_threads() == 1 else time.perf_counter()


def work(name: str, folder: Path, threads: int) -> None:
    """Be the worker of one contestant: load it, and run it when asked."""
    torch.set_num_threads(threads)
    state: dict[str, Any] = {}

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        if request["do"] == "load":
            state["contestant"] = CONTESTANTS[name](folder)
            return {"versions": {package: version(package) for package in PACKAGES if package in sys.modules}}
        return run_once(state, request)

    serve(answer)


@torch.inference_mode()
def run_once(state: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    held, contestant = load_file(request["texts"]), state["contestant"]
    texts = [x.tolist() for x in held["ids"].split(held["lengths"].tolist())]
    del held
    if "resident" not in state:
        contestant.run(texts[:BATCH])  # the first run of a library is not like the others
        state["resident"] = resident()
    seconds, peak, kept = timed(lambda: contestant.run(texts), clock)
    save_file({key: x.contiguous() for key, x in kept.sample(request["rows"]).items()}, request["values"])
    told = {"seconds": seconds, "peak": max(0, peak - state["resident"]), "computed": kept.computed}
    return {**told, "bf16": contestant.bf16}
