"""Weights in few bits: every layout gives back the numbers that it was made of, and models load by it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from probekit.errors import DataError
from probekit.models import load_model
from probekit.models.config_fields import Unimplemented
from probekit.models.families.gptoss import GptOss, GptOssConfig
from probekit.models.families.llama import Llama, LlamaConfig
from probekit.models.quantized import few_bits_of, in_full
from probekit.models.weights import TensorInFile, save_hf

Files = dict[str, Tensor]
GROUP = 8  # columns that share a scale


def ints(shape: tuple[int, ...], low: int, high: int, seed: int = 0) -> Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed))


def scales(shape: tuple[int, ...], seed: int = 1) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) + 0.01


def packed(numbers: Tensor, bits: int, axis: int, order: tuple[int, ...] | None = None) -> Tensor:
    """Unsigned numbers in int32, one at a time: the one of place i goes to the bits from i * bits on."""
    n = 32 // bits
    numbers = numbers.movedim(axis, -1)
    words = torch.zeros(*numbers.shape[:-1], numbers.shape[-1] // n, dtype=torch.int64)
    for place, column in enumerate(order or range(n)):
        words |= numbers[..., column::n].long() << (bits * place)
    words = torch.where(words >= 1 << 31, words - (1 << 32), words)
    return words.to(torch.int32).movedim(-1, axis)


def by_blocks(scale: Tensor, rows: int, columns: int, block: tuple[int, int]) -> Tensor:
    """Each scale over its block, entry by entry."""
    return torch.tensor([[scale[i // block[0], j // block[1]] for j in range(columns)] for i in range(rows)])


def fp8(rows: int, columns: int) -> tuple[dict[str, Any], Files, Tensor]:
    block = (16, 8)
    numbers = (torch.rand(rows, columns, generator=torch.Generator().manual_seed(2)) * 400 - 200).to(
        torch.float8_e4m3fn
    )
    scale = scales((-(-rows // block[0]), -(-columns // block[1])))
    files = {".weight": numbers, ".weight_scale_inv": scale, ".activation_scale": torch.ones(())}
    config = {"quant_method": "fp8", "weight_block_size": list(block)}
    return config, files, numbers.float() * by_blocks(scale, rows, columns, block)


def fp8_one_scale(rows: int, columns: int) -> tuple[dict[str, Any], Files, Tensor]:
    config, files, _ = fp8(rows, columns)
    one = torch.tensor(0.25, dtype=torch.bfloat16)
    files = {".weight": files[".weight"], ".weight_scale_inv": one}
    return {**config, "weight_block_size": None}, files, files[".weight"].float() * 0.25


def compressed(form: str, bits: int, kind: str, zero: bool) -> Callable[[int, int], Any]:
    def make(rows: int, columns: int) -> tuple[dict[str, Any], Files, Tensor]:
        group = GROUP if form == "pack-quantized" else columns
        half, scale = 1 << bits - 1, scales((rows, columns // group))
        numbers = ints((rows, columns), -half, half)
        zeros = ints((rows, columns // group), -half, half, 3) if zero else torch.zeros(rows, columns // group).long()
        strategy = {"strategy": "group", "group_size": group} if group == GROUP else {"strategy": "channel"}
        weights = {"num_bits": bits, "type": kind, "symmetric": not zero, **strategy}
        config = {
            "quant_method": "compressed-tensors",
            "format": form,
            "config_groups": {"group_0": {"weights": weights}},
        }
        files = {".weight_scale": scale.bfloat16()}
        if form == "pack-quantized":
            files |= {".weight_packed": packed(numbers + half, bits, 1), ".weight_shape": torch.tensor([rows, columns])}
            files |= {".weight_zero_point": packed(zeros + half, bits, 0)} if zero else {}
        else:
            files[".weight"] = numbers.to(torch.int8 if kind == "int" else torch.float8_e4m3fn)
            numbers = files[".weight"].float()
        wide = (numbers - zeros.repeat_interleave(group, 1)) * scale.bfloat16().float().repeat_interleave(group, 1)
        return config, files, wide

    return make


def gptq(bits: int, version: str, shuffled: bool) -> Callable[[int, int], Any]:
    def make(rows: int, columns: int) -> tuple[dict[str, Any], Files, Tensor]:
        n_groups, which = columns // GROUP, torch.arange(columns) // GROUP
        which = which[torch.randperm(columns, generator=torch.Generator().manual_seed(5))] if shuffled else which
        numbers, scale = ints((columns, rows), 0, 1 << bits), scales((n_groups, rows)).half()
        zeros = ints((n_groups, rows), 1, (1 << bits) - 1, 3)
        stored = zeros - int(version == "gptq")  # files of the first version hold one less
        files = {".qweight": packed(numbers, bits, 0), ".qzeros": packed(stored, bits, 1), ".scales": scale}
        config = {"quant_method": "gptq", "bits": bits, "group_size": GROUP, "checkpoint_format": version}
        wide = ((numbers - zeros[which]) * scale.float()[which]).T
        return config, files | ({".g_idx": which.int()} if shuffled else {}), wide

    return make


def awq(rows: int, columns: int) -> tuple[dict[str, Any], Files, Tensor]:
    order = (0, 2, 4, 6, 1, 3, 5, 7)  # the column at each place of an int32
    n_groups = columns // GROUP
    numbers, zeros = ints((columns, rows), 0, 16), ints((n_groups, rows), 0, 16, 3)
    scale = scales((n_groups, rows)).half()
    files = {".qweight": packed(numbers, 4, 1, order), ".qzeros": packed(zeros, 4, 1, order), ".scales": scale}
    wide = (numbers - zeros.repeat_interleave(GROUP, 0)) * scale.float().repeat_interleave(GROUP, 0)
    return {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm"}, files, wide.T


LAYOUTS: dict[str, Callable[[int, int], tuple[dict[str, Any], Files, Tensor]]] = {
    "fp8": fp8,
    "fp8, one scale": fp8_one_scale,
    "int4": compressed("pack-quantized", 4, "int", zero=False),
    "int4 with zeros": compressed("pack-quantized", 4, "int", zero=True),
    "int8 packed": compressed("pack-quantized", 8, "int", zero=False),
    "int8": compressed("int-quantized", 8, "int", zero=False),
    "float8": compressed("float-quantized", 8, "float", zero=False),
    "gptq": gptq(4, "gptq", shuffled=False),
    "gptq by activation": gptq(4, "gptq", shuffled=True),
    "gptq of 8 bits": gptq(8, "gptq_v2", shuffled=False),
    "gptq of 2 bits": gptq(2, "gptq_v2", shuffled=True),
    "awq": awq,
}
CONFIG = LlamaConfig(d_model=32, n_heads=4, n_kv_heads=2, d_head=8, d_mlp=64, n_layers=2, n_ctx=32, d_vocab=50)


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_model_in_few_bits_computes_with_the_numbers_that_they_stand_for(name: str, tmp_path: Path) -> None:
    """The same model with its weights in full, made of the same integers one at a time, has the same logits."""
    full = Llama(CONFIG).init_weights()
    save_hf(full, tmp_path)
    stored, state, config = load_file(tmp_path / "model.safetensors"), full.state_dict(), {}
    names = {"q": "self_attn.q_proj", "k": "self_attn.k_proj", "out": "self_attn.o_proj", "down": "mlp.down_proj"}
    for layer in range(2):
        for ours, theirs in names.items():
            room = "mlp" if ours == "down" else "attn"
            weight = state[f"blocks.{layer}.{room}.{ours}.weight"]
            config, files, wide = LAYOUTS[name](*weight.shape)
            weight.copy_(wide)
            stem = f"model.layers.{layer}.{theirs}"
            del stored[f"{stem}.weight"]
            stored |= {stem + end: x.contiguous() for end, x in files.items()}
    save_file(stored, tmp_path / "model.safetensors", metadata={"format": "pt"})
    hf = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(hf | {"quantization_config": config}))
    tokens = torch.tensor([[3, 7, 1, 9, 20, 33]])
    model: Any = load_model(tmp_path, device="cpu")
    for ours, weight in model.state_dict().items():
        torch.testing.assert_close(weight, state[ours], rtol=1e-6, atol=0)
    with torch.no_grad():
        assert torch.equal(model(tokens), full.eval()(tokens))


def stored_in(folder: Path, files: Files) -> dict[str, TensorInFile]:
    save_file(files, folder / "model.safetensors")
    from probekit.models.weights import stored_in

    return stored_in(folder / "model.safetensors")


def test_the_last_blocks_of_float8_are_cut_off() -> None:
    layout = few_bits_of({"quantization_config": fp8(48, 16)[0]})
    assert layout is not None
    for rows, columns in ((50, 20), (1, 8), (16, 9)):
        _, files, wide = fp8(rows, columns)
        assert torch.equal(layout.widen(files), wide)


def mxfp4(experts: int, rows: int, columns: int, seed: int) -> tuple[Tensor, Tensor]:
    return (
        ints((experts, rows, columns // 32, 16), 0, 256, seed).to(torch.uint8),
        ints((experts, rows, columns // 32), 110, 130, seed + 1).to(torch.uint8),
    )


def test_gpt_oss_loads_from_its_published_layout(tmp_path: Path) -> None:
    """Experts in MXFP4 equal those that transformers makes of the same blocks."""
    cfg = GptOssConfig(
        d_model=64, n_heads=4, n_kv_heads=2, d_head=8, d_mlp=32, n_layers=2, n_ctx=64, d_vocab=50, n_experts=4,
        n_active_experts=2, sliding_window=8, layer_types=("sliding_attention", "full_attention"),
    )  # fmt: skip
    full = GptOss(cfg).init_weights()
    save_hf(full, tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    in_full = dict(stored)
    for layer in range(2):
        for number, (name, rows, columns) in enumerate((("gate_up_proj", 64, 64), ("down_proj", 64, 32))):
            stem = f"model.layers.{layer}.mlp.experts.{name}"
            blocks, exponents = mxfp4(4, rows, columns, 10 * layer + number)
            in_full[stem] = convert_moe_packed_tensors(blocks, exponents, dtype=torch.float32).contiguous()
            assert in_full[stem].shape == stored[stem].shape
            del stored[stem]
            stored |= {f"{stem}_blocks": blocks, f"{stem}_scales": exponents}
    hf = json.loads((tmp_path / "config.json").read_text())
    for folder, files, more in (
        (tmp_path / "few", stored, {"quantization_config": {"quant_method": "mxfp4"}}),
        (tmp_path / "full", in_full, {}),
    ):
        folder.mkdir()
        save_file(files, folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "config.json").write_text(json.dumps(hf | more))
    few, wide = load_model(tmp_path / "few", device="cpu"), load_model(tmp_path / "full", device="cpu")
    assert few.fingerprint() == wide.fingerprint() != full.fingerprint()


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"quant_method": "bitsandbytes"}, "weights quantized by 'bitsandbytes' are not implemented"),
        ({"quant_method": ["x"]}, r"quantized by \['x'\] are not implemented"),
        ([1], "quantized by None are not implemented"),
        ({"quant_method": "gptq"}, "gptq without bits"),
        ({"quant_method": "gptq", "bits": 4.0}, "bits = 4.0 of gptq"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, "weight_block_size must be two whole numbers above 0"),
        ({"quant_method": "fp8", "weight_block_size": [0, 0]}, "weight_block_size must be two whole numbers above 0"),
        ({"quant_method": "compressed-tensors", "config_groups": {"a": 5}}, "several kinds of weights"),
        ({"quant_method": "gptq", "bits": 3}, "bits = 3 of gptq is not implemented; only 4, 8, 2 is"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "version = 'gemv' of awq"),
        ({"quant_method": "compressed-tensors", "config_groups": {}}, "several kinds of weights"),
        ({"quant_method": "compressed-tensors", "config_groups": [1]}, "several kinds of weights"),
        (
            {
                "quant_method": "compressed-tensors",
                "format": "nvfp4-pack-quantized",
                "config_groups": {"group_0": {"weights": {"num_bits": 4}}},
            },
            "format = 'nvfp4-pack-quantized' of compressed-tensors",
        ),
    ],
)
def test_layouts_that_are_not_known_are_refused_by_name(config: Any, says: str) -> None:
    with pytest.raises(Unimplemented, match=says):
        few_bits_of({"quantization_config": config})


def test_a_tensor_without_its_scales_is_named(tmp_path: Path) -> None:
    config, files, _ = fp8(16, 8)
    stored = stored_in(tmp_path, {"a.weight": files[".weight"], "b.weight": torch.ones(2), "c.bias": torch.ones(2)})
    layout = few_bits_of({"quantization_config": config})
    assert layout is not None
    with pytest.raises(DataError, match=r"holds 'a.weight', F8_E4M3, without .weight_scale_inv or .weight_scale"):
        in_full(stored, layout)
    del stored["a.weight"]
    assert in_full(stored, layout) == stored


def test_scales_that_do_not_fit_name_the_tensor(tmp_path: Path) -> None:
    """Groups of 64 do not share 96 columns equally: the last is cut off, and a third of a scale is no scale."""
    config, files, _ = awq(8, 24)
    layout = few_bits_of({"quantization_config": config | {"group_size": 16}})
    assert layout is not None
    with pytest.raises(ValueError, match="3 scales do not fit 24 numbers in blocks of 16"):
        layout.widen(files)
    stored = stored_in(tmp_path, {f"a{end}": x for end, x in files.items() if end != ".qzeros"})
    with pytest.raises(DataError, match=r"holds 'a.qweight', I32, without .qzeros"):
        in_full(stored, layout)
