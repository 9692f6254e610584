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

import probekit as pk
from probekit.errors import DataError
from probekit.models import load_model, quantized
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
    return (torch.rand(shape, generator=torch.Generator().manual_seed(seed)) + 0.01) / 256


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
    entries = scale.float().tolist()
    return torch.tensor([[entries[i // block[0]][j // block[1]] for j in range(columns)] for i in range(rows)])


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
    one = torch.tensor(2**-10, dtype=torch.bfloat16)
    files = {".weight": files[".weight"], ".weight_scale_inv": one}
    return {**config, "weight_block_size": None}, files, files[".weight"].float() * 2**-10


BLOCKS = {"channel": (1, 1 << 20), "group": (1, GROUP), "tensor": (1 << 20, 1 << 20), "block": (12, 24)}
OPTIONS: dict[str, dict[str, Any]] = {"group": {"group_size": GROUP}, "block": {"block_structure": [12, 24]}}


def compressed(form: str, bits: int, kind: str, strategy: str, zero: bool) -> Callable[[int, int], Any]:
    """(number - zero) * scale, where block (r, c) of the strategy says which zero and which scale."""

    def make(rows: int, columns: int) -> tuple[dict[str, Any], Files, Tensor]:
        half, block = 1 << bits - 1, BLOCKS[strategy]
        many = (-(-rows // block[0]), -(-columns // block[1]))
        numbers, zeros = ints((rows, columns), -half, half), ints(many, -half, half, 3)
        scale = scales((1,) if strategy == "tensor" else many).bfloat16()
        weights = {"num_bits": bits, "type": kind, "symmetric": not zero, "strategy": strategy}
        group = {"weights": weights | OPTIONS.get(strategy, {})}
        config = {"quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": group}}
        files, dtype = {".weight_scale": scale}, torch.int8 if kind == "int" else torch.float8_e4m3fn
        if form == "pack-quantized":
            files |= {".weight_packed": packed(numbers + half, bits, 1), ".weight_shape": torch.tensor([rows, columns])}
        else:
            files[".weight"] = numbers.to(dtype)
        if zero:
            in_words = form == "pack-quantized" and strategy in ("channel", "group")
            files[".weight_zero_point"] = packed(zeros + half, bits, 0) if in_words else zeros.to(dtype)
        shown = numbers.to(dtype).float() - (by_blocks(zeros.to(dtype), rows, columns, block) if zero else 0)
        return config, files, shown * by_blocks(scale.reshape(many), rows, columns, block)

    return make


FORMATS = [
    ("pack-quantized", 4, "int"), ("pack-quantized", 8, "int"), ("int-quantized", 4, "int"),
    ("int-quantized", 8, "int"), ("float-quantized", 8, "float"), ("naive-quantized", 4, "int"),
    ("naive-quantized", 8, "int"), ("naive-quantized", 8, "float"),
]  # fmt: skip


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
    "gptq": gptq(4, "gptq", shuffled=False),
    "gptq by activation": gptq(4, "gptq", shuffled=True),
    "gptq of 8 bits": gptq(8, "gptq_v2", shuffled=False),
    "gptq of 2 bits": gptq(2, "gptq_v2", shuffled=True),
    "awq": awq,
}
LAYOUTS |= {
    f"{form}, {bits} bits, {kind}, {strategy}{', zeros' if zero else ''}": compressed(form, bits, kind, strategy, zero)
    for form, bits, kind in FORMATS
    for strategy in BLOCKS
    for zero in (False, True)
}
TOKENS = torch.tensor([[3, 7, 1, 9, 20, 33]])
CONFIG = LlamaConfig(d_model=32, n_heads=4, n_kv_heads=2, d_head=8, d_mlp=64, n_layers=2, n_ctx=32, d_vocab=50)


IN_LAYERS = {"q": "self_attn.q_proj", "k": "self_attn.k_proj", "out": "self_attn.o_proj", "down": "mlp.down_proj"}


def written(name: str, folder: Path) -> Llama:
    """A folder with weights in a layout, and the model with the same weights in full, by the written-out formula."""
    full = Llama(CONFIG).init_weights()
    save_hf(full, folder)
    stored, state, config = load_file(folder / "model.safetensors"), full.state_dict(), {}
    for layer in range(2):
        for ours, theirs in IN_LAYERS.items():
            room = "mlp" if ours == "down" else "attn"
            weight = state[f"blocks.{layer}.{room}.{ours}.weight"]
            config, files, wide = LAYOUTS[name](*weight.shape)
            weight.copy_(wide)
            stem = f"model.layers.{layer}.{theirs}"
            del stored[f"{stem}.weight"]
            stored |= {stem + end: x.contiguous() for end, x in files.items()}
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    hf = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(hf | {"quantization_config": config}))
    return full.eval()


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_model_in_few_bits_has_the_weights_that_they_stand_for_rounded_once(name: str, tmp_path: Path) -> None:
    """Bit for bit the float32 formula, written out one entry at a time, and in bfloat16 that rounded."""
    full = written(name, tmp_path)
    for dtype in ("float32", "bfloat16"):
        model: Any = load_model(tmp_path, device="cpu", dtype=dtype)
        for ours, weight in full.state_dict().items():
            assert torch.equal(model.state_dict()[ours], weight.to(model.dtype)), ours


def test_rows_are_scaled_in_several_goes_as_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for at_once in (1, 100, 1 << 18):
        monkeypatch.setattr(quantized, "AT_ONCE", at_once)
        for name in ("fp8", "gptq by activation", "awq", "pack-quantized, 4 bits, int, block, zeros"):
            config, files, wide = LAYOUTS[name](48, 40)
            layout = few_bits_of({"quantization_config": config})
            assert layout is not None
            assert torch.equal(layout.widen(files), wide)


@pytest.mark.parametrize(
    "name", ["fp8", "fp8, one scale", "gptq by activation", "awq", "pack-quantized, 4 bits, int, group"]
)
def test_the_class_of_transformers_gets_the_same_weights(name: str, tmp_path: Path) -> None:
    """Transformers would want other packages or a GPU; the selftest compares with its class once more."""
    full = written(name, tmp_path)
    model: Any = load_model(tmp_path, device="cpu", via="transformers")
    state, inside = full.state_dict(), model.hf.state_dict()
    for layer in range(2):
        for ours, theirs in IN_LAYERS.items():
            weight = state[f"blocks.{layer}.{'mlp' if ours == 'down' else 'attn'}.{ours}.weight"]
            assert torch.equal(inside[f"model.layers.{layer}.{theirs}.weight"], weight)
    assert model.batching == "packed"
    assert model.cfg.quantize is None
    with torch.no_grad():
        torch.testing.assert_close(model(TOKENS), full(TOKENS), rtol=0, atol=1e-5)
    assert pk.selftest(model).passed
    assert load_model(tmp_path, device="cpu", via="transformers", random_init=True).batching == "packed"


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
    for via in ("probekit", "transformers"):
        few, wide = (load_model(tmp_path / name, device="cpu", via=via) for name in ("few", "full"))
        assert few.fingerprint() == wide.fingerprint() != full.fingerprint()


def of_compressed(form: str | None, **weights: Any) -> dict[str, Any]:
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": {"weights": weights}}}


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"quant_method": "bitsandbytes"}, "weights quantized by 'bitsandbytes' are not implemented"),
        ({"quant_method": ["x"]}, r"quantized by \['x'\] are not implemented"),
        ([1], "quantized by None are not implemented"),
        ({"quant_method": "gptq"}, "bits = None of gptq is not implemented; only 4, 8, 2 is"),
        ({"quant_method": "gptq", "bits": 4.0}, "bits = 4.0 of gptq"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, "weight_block_size must be two whole numbers above 0"),
        ({"quant_method": "fp8", "weight_block_size": [0, 0]}, "weight_block_size must be two whole numbers above 0"),
        ({"quant_method": "compressed-tensors", "config_groups": {"a": 5}}, "several kinds of weights"),
        ({"quant_method": "gptq", "bits": 3}, "bits = 3 of gptq is not implemented; only 4, 8, 2 is"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "version = 'gemv' of awq"),
        ({"quant_method": "compressed-tensors", "config_groups": {}}, "several kinds of weights"),
        ({"quant_method": "compressed-tensors", "config_groups": [1]}, "several kinds of weights"),
        ({"quant_method": "gptq", "bits": 4}, "group_size of gptq must be -1 or a whole number above 0; got None"),
        (
            {"quant_method": "awq", "bits": 4, "group_size": True},
            "group_size of awq must be -1 or a whole number above 0",
        ),
        (of_compressed(None), "format = None of compressed-tensors"),
        (of_compressed("nvfp4-pack-quantized", num_bits=4), "format = 'nvfp4-pack-quantized' of compressed-tensors"),
        (of_compressed("pack-quantized", type="float"), r"type = 'float' of compressed-tensors \(pack-quantized\)"),
        (of_compressed("float-quantized", type="int"), r"type = 'int' of compressed-tensors \(float-quantized\)"),
        (of_compressed("float-quantized"), r"type = 'int' of compressed-tensors \(float-quantized\)"),
        (of_compressed("naive-quantized", type="float", num_bits=4), r"num_bits = 4 of compressed-tensors \(float\)"),
        (of_compressed("pack-quantized", num_bits=3), r"num_bits = 3 of compressed-tensors \(int\)"),
        (of_compressed("int-quantized", strategy="token"), "strategy = 'token' of compressed-tensors"),
        (of_compressed("int-quantized", symmetric=1), "symmetric = 1 of compressed-tensors"),
        (
            of_compressed("int-quantized", strategy="block"),
            "block_structure must be two whole numbers above 0; got None",
        ),
        (of_compressed("pack-quantized", strategy="group"), "group_size of compressed-tensors must be"),
        (of_compressed("pack-quantized", actorder="group"), "actorder = 'group' of compressed-tensors"),
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


@pytest.mark.parametrize(
    ("name", "main", "says"),
    [
        ("fp8", ".weight", "as BF16, where quantization_config says F8_E4M3"),
        ("int-quantized, 8 bits, int, channel", ".weight", "as BF16, where quantization_config says I8"),
        ("gptq", ".qweight", "as BF16, where quantization_config says I32"),
    ],
)
def test_weights_in_full_with_scales_are_not_scaled(name: str, main: str, says: str, tmp_path: Path) -> None:
    """A file can hold both, where the tool rounded the weights and did not pack them."""
    config, files, wide = LAYOUTS[name](16, 32)
    stored = stored_in(tmp_path, {f"a{end}": x.contiguous() for end, x in (files | {main: wide.bfloat16()}).items()})
    layout = few_bits_of({"quantization_config": config})
    assert layout is not None
    with pytest.raises(DataError, match=says):
        in_full(stored, layout)


def test_zeros_that_config_json_promises_are_there(tmp_path: Path) -> None:
    config, files, _ = LAYOUTS["int-quantized, 8 bits, int, group, zeros"](16, 32)
    stored = stored_in(tmp_path, {f"a{end}": x for end, x in files.items() if "zero" not in end})
    layout = few_bits_of({"quantization_config": config})
    assert layout is not None
    with pytest.raises(DataError, match=r"holds 'a.weight', I8, without .weight_zero_point"):
        in_full(stored, layout)


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
