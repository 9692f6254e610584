"""Weights: what is read equals what was written, in every layout; what does not fit is listed by name."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import GPT2Config as HfConfig
from transformers import GPT2LMHeadModel, LlamaForCausalLM
from transformers import LlamaConfig as HfLlamaConfig

from probekit.errors import DataError, StorageError
from probekit.models import weights
from probekit.models.base import LanguageModel
from probekit.models.families import family_of
from probekit.models.families.gpt2 import GPT2, GPT2Config
from probekit.models.load import load_model
from probekit.models.tokenizer_files import read_tokenizer
from probekit.models.weights import (
    INDEX,
    ONE_FILE,
    save_hf,
)

SHAPE: dict[str, Any] = {"n_embd": 16, "n_head": 2, "n_layer": 2, "vocab_size": 23, "n_positions": 12}
LLAMA: dict[str, Any] = {
    "hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2, "vocab_size": 23, "intermediate_size": 20,
    "max_position_embeddings": 12,
}  # fmt: skip
TOKENS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])


def make_oracle(tied: bool) -> GPT2LMHeadModel:
    torch.manual_seed(0)
    oracle = GPT2LMHeadModel(HfConfig(**SHAPE, bos_token_id=0, eos_token_id=0, tie_word_embeddings=tied)).eval()
    assert sum(p.numel() for p in oracle.parameters()) < 20_000
    return oracle


def oracle_of(family: str, tied: bool) -> GPT2LMHeadModel | LlamaForCausalLM:
    if family == "gpt2":
        return make_oracle(tied)
    torch.manual_seed(0)
    return LlamaForCausalLM(HfLlamaConfig(**LLAMA, tie_word_embeddings=tied)).eval()


@pytest.fixture(scope="module")
def tied_folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tied")
    make_oracle(tied=True).save_pretrained(folder)
    return folder


@pytest.fixture
def folder(tied_folder, tmp_path) -> Path:
    """A folder of this test's own."""
    return shutil.copytree(tied_folder, tmp_path / "model")


def logits(model: LanguageModel) -> Tensor:
    with torch.no_grad():
        return model(TOKENS)


def rewrite(folder: Path, change) -> Path:
    weights = load_file(folder / ONE_FILE)
    change(weights)
    save_file({name: w.contiguous() for name, w in weights.items()}, folder / ONE_FILE, {"format": "pt"})
    return folder


def refusal(folder: Path) -> str:
    with pytest.raises(DataError) as caught:
        load_model(folder, device="cpu")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_prefix_may_be_missing_and_masks_be_there(folder):
    before = load_model(folder, device="cpu").fingerprint()

    def as_the_real_file(weights: dict[str, Tensor]) -> None:
        for name in list(weights):
            weights[name.removeprefix("transformer.")] = weights.pop(name)
        for i in range(SHAPE["n_layer"]):
            weights[f"h.{i}.attn.bias"] = torch.ones(1, 1, 12, 12).tril()
            weights[f"h.{i}.attn.masked_bias"] = torch.tensor(-1e4)

    assert load_model(rewrite(folder, as_the_real_file), device="cpu").fingerprint() == before


@pytest.mark.parametrize(
    ("stored", "wanted"), [(torch.float16, "float32"), (torch.bfloat16, "float16"), (torch.float32, "bfloat16")]
)
def test_every_type_is_converted_to_every_type(folder, stored, wanted):
    def store(weights: dict[str, Tensor]) -> None:
        for name in weights:
            weights[name] = weights[name].to(stored)

    rewrite(folder, store)
    model = load_model(folder, device="cpu", dtype=wanted)
    assert model.dtype == getattr(torch, wanted)
    weights = load_file(folder / ONE_FILE)
    for ours, theirs in family_of(model.cfg).hf_names(model.cfg).items():
        expected = weights[theirs.name].to(model.dtype)
        assert torch.equal(model.state_dict()[ours], expected.T if theirs.transposed else expected)


def test_loaded_weights_do_not_change_with_the_file(folder):
    model = load_model(folder, device="cpu")
    before = model.fingerprint()
    with (folder / ONE_FILE).open("r+b") as file:
        file.seek(-2000, 2)
        file.write(bytes(2000))
    assert model.fingerprint() == before


ADVICE = "; correct the sizes in config.json, or download the weights again"


def test_all_that_is_wrong_is_said_at_once(folder):
    def spoil(weights: dict[str, Tensor]) -> None:
        del weights["transformer.h.0.ln_1.weight"], weights["transformer.wpe.weight"]
        weights["transformer.h.7.ln_1.weight"] = torch.ones(16)
        weights["surprise\x1b[31m"] = torch.ones(1)
        weights["transformer.h.1.mlp.c_fc.weight"] = torch.ones(64, 16)
        weights["transformer.ln_f.bias"] = torch.ones(16, dtype=torch.int64)

    says = refusal(rewrite(folder, spoil))
    assert "missing: transformer.h.0.ln_1.weight [16], transformer.wpe.weight [12, 16]; " in says
    assert r"unexpected: surprise\x1b[31m, transformer.h.7.ln_1.weight; " in says
    assert "misshapen: transformer.h.1.mlp.c_fc.weight (expected [16, 64], found [64, 16]); " in says
    assert says.endswith(f"not one of F32, F16, BF16: transformer.ln_f.bias (I64){ADVICE}")


def test_a_tied_head_may_be_stored_if_it_is_the_embedding(folder):
    before = load_model(folder, device="cpu").fingerprint()

    def store_head(weights: dict[str, Tensor]) -> None:
        weights["lm_head.weight"] = weights["transformer.wte.weight"].clone()

    assert load_model(rewrite(folder, store_head), device="cpu").fingerprint() == before


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_tied_file_may_hold_the_head_alone(family, tmp_path):
    """As transformers reads it: the head is the embedding."""
    oracle = oracle_of(family, tied=True)
    oracle.save_pretrained(tmp_path)
    before = load_model(tmp_path, device="cpu").fingerprint()
    embedding = "transformer.wte.weight" if family == "gpt2" else "model.embed_tokens.weight"

    def rename(weights: dict[str, Tensor]) -> None:
        weights["lm_head.weight"] = weights.pop(embedding)

    model = load_model(rewrite(tmp_path, rename), device="cpu")
    assert model.fingerprint() == before
    with torch.no_grad():
        theirs = type(oracle).from_pretrained(tmp_path).eval()(TOKENS).logits
        assert (model(TOKENS) - theirs).abs().max() <= 1e-5 * theirs.abs().max()


@pytest.mark.parametrize(("family", "tied"), [("gpt2", True), ("llama", False)])
def test_the_bias_of_a_head_is_added_where_a_file_has_one(family, tied, tmp_path):
    sizes = (
        HfConfig(**SHAPE, tie_word_embeddings=tied)
        if family == "gpt2"
        else HfLlamaConfig(**LLAMA, tie_word_embeddings=tied)
    )
    oracle = (GPT2LMHeadModel if family == "gpt2" else LlamaForCausalLM)(sizes).eval()  # pyright: ignore[reportArgumentType]
    oracle.save_pretrained(tmp_path)
    plain, bias = load_model(tmp_path, device="cpu"), torch.randn(23, generator=torch.Generator().manual_seed(3))

    def add_bias(weights: dict[str, Tensor]) -> None:
        weights["lm_head.bias"] = bias

    model = load_model(rewrite(tmp_path, add_bias), device="cpu")
    with torch.no_grad():
        assert torch.allclose(model(TOKENS), plain(TOKENS) + bias, atol=1e-6)
    assert model.cfg.head_bias
    assert not plain.cfg.head_bias
    save_hf(model, tmp_path / "again")
    assert load_model(tmp_path / "again", device="cpu").fingerprint() == model.fingerprint()
    assert load_model(tmp_path / "again", random_init=True, device="cpu").cfg.head_bias  # config.json says so
    assert family_of(model.cfg).hf_model(model.cfg) is None  # transformers would leave the bias out
    with pytest.raises(DataError, match=r"lm_head\.bias, which \w+ does not add"):
        load_model(tmp_path, via="transformers", device="cpu")


@pytest.mark.parametrize("head", [torch.zeros(23, 16), torch.zeros(22, 16)])
def test_a_tied_head_that_differs_is_refused(folder, head):
    says = refusal(rewrite(folder, lambda weights: weights.update({"lm_head.weight": head})))
    assert "lm_head.weight is not equal to transformer.wte.weight" in says
    assert "tie_word_embeddings" in says


def test_a_weight_with_and_without_prefix_is_ambiguous(folder):
    says = refusal(rewrite(folder, lambda weights: weights.update({"wpe.weight": torch.zeros(12, 16)})))
    assert "'transformer.wpe.weight' twice" in says


@pytest.mark.parametrize("keep", [0, 8, 100, -1])
def test_a_cut_file_is_named(folder, keep):
    path = folder / ONE_FILE
    path.write_bytes(path.read_bytes()[:keep])
    assert re.search(r"model\.safetensors' is damaged", refusal(folder))


def test_a_great_many_names_are_counted(folder):
    says = refusal(rewrite(folder, lambda weights: weights.update({f"x{i}": torch.ones(1) for i in range(1500)})))
    assert says.endswith(f"unexpected: x0, x1, x2, x3, x4, x5, x6, x7, x8, x9 and 1,490 more{ADVICE}")


@pytest.fixture
def sharded(tmp_path) -> Path:
    make_oracle(tied=True).save_pretrained(tmp_path / "model", max_shard_size="9KB")
    return tmp_path / "model"


def reindexed(folder: Path, shard: Any) -> Any:
    """The index, in which the embedding is said to be in another shard."""
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"]["transformer.wte.weight"] = shard
    (folder / INDEX).write_text(json.dumps(index))


@pytest.mark.parametrize("name", ["../../secret", "/etc/passwd", "", 5, "a\x00b"])
def test_an_index_may_name_only_files_beside_it(sharded, name):
    reindexed(sharded, name)
    assert f"{INDEX}' names {name!a}, which is not a plain file name" in refusal(sharded)


def test_shards_are_all_there_and_hold_what_the_index_says_once(sharded):
    first, second = sorted(sharded.glob("model-*.safetensors"))[:2]
    own, others, index = load_file(first), load_file(second), (sharded / INDEX).read_bytes()
    reindexed(sharded, (second if "transformer.wte.weight" in own else first).name)
    assert "not in the named file (transformer.wte.weight)" in refusal(sharded)
    (sharded / INDEX).write_bytes(index)
    save_file(own | others, second)
    assert f"{second.name}' holds " in refusal(sharded)
    second.unlink()
    assert f"{second.name}' is missing" in refusal(sharded)
    for content in ("", "{}", '{"weight_map": [1]}'):
        (sharded / INDEX).write_text(content)
        assert INDEX in refusal(sharded)


def test_pickles_are_never_read(folder):
    (folder / ONE_FILE).rename(folder / "pytorch_model.bin")
    says = refusal(folder)
    assert "pickle" in says
    assert "save_pretrained" in says
    (folder / "pytorch_model.bin").unlink()
    assert refusal(folder).endswith(
        "has neither model.safetensors nor model.safetensors.index.json; put the weights there"
    )


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_saved_comes_back_here_and_in_transformers(hub, tmp_path, tied, dtype):
    source = tmp_path / "tokenizer"
    source.mkdir()
    for name in ("vocab.json", "merges.txt"):
        (source / name).write_bytes(hub.repos["models/openai-community/gpt2"][name])
    tokenizer = read_tokenizer(source)
    assert tokenizer is not None
    cfg = GPT2Config(16, 2, 40, 2, 12, len(tokenizer), "gelu", 1e-4, tied, 0.3, bos_token_id=7)
    model = GPT2(cfg).init_weights(seed=3).to(dtype)
    model.tokenizer = tokenizer
    save_hf(model, tmp_path / "new/model")
    again = load_model(tmp_path / "new/model", device="cpu", dtype=str(dtype).removeprefix("torch."))
    assert again.cfg == cfg
    assert again.fingerprint() == model.fingerprint()
    assert again.tokenizer is not None
    assert (again.tokenizer.fingerprint, again.tokenizer.bos_token_id) == (tokenizer.fingerprint, 7)
    loaded: Any = GPT2LMHeadModel.from_pretrained(tmp_path / "new/model", output_loading_info=True)
    theirs, report = loaded
    assert not any(report.values())
    with torch.no_grad():
        assert torch.allclose(theirs(TOKENS).logits, again(TOKENS), atol=1e-5 if dtype == torch.float32 else 0.05)


def test_a_disk_that_refuses_is_a_storage_error(tmp_path):
    (tmp_path / "file").write_text("in the way")
    model = GPT2(GPT2Config(16, 2, 40, 1, 12, 9)).init_weights()
    with pytest.raises(StorageError, match="file"):
        save_hf(model, tmp_path / "file")


@pytest.mark.parametrize("stopped_at", ["model.safetensors", "config.json"])
def test_a_save_that_is_interrupted_leaves_no_folder_that_loads_as_a_mixture(tmp_path, monkeypatch, stopped_at):
    cfg = GPT2Config(16, 2, 40, 1, 12, 9)
    save_hf(GPT2(cfg).init_weights(seed=0), tmp_path)
    write = weights.write_as

    def interrupted(path, data):
        if path.name == stopped_at:
            raise KeyboardInterrupt
        write(path, data)

    with monkeypatch.context() as patch:
        patch.setattr(weights, "write_as", interrupted)
        with pytest.raises(KeyboardInterrupt):
            save_hf(GPT2(cfg).init_weights(seed=1), tmp_path)
    with pytest.raises(DataError, match=r"config\.json"):
        load_model(tmp_path, device="cpu")
    model = GPT2(cfg).init_weights(seed=1)
    save_hf(model, tmp_path)
    assert load_model(tmp_path, device="cpu").fingerprint() == model.fingerprint()
