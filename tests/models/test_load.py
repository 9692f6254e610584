"""load_model: where a name leads, what random_init fixes, and what cannot be loaded."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hub_repos import byte_level_bpe, repos
from hub_server import HubServer
from transformers import GPT2LMHeadModel

from probekit.errors import DataError, UsageError
from probekit.models import load, load_model, load_tokenizer
from probekit.models.tokenizer_files import read_tokenizer

SERVED = repos()["models/openai-community/gpt2"]


@pytest.fixture
def folder(tmp_path) -> Path:
    """The served tiny GPT-2 as a folder."""
    folder = tmp_path / "my-model"
    folder.mkdir()
    for name, content in SERVED.items():
        (folder / name).write_bytes(content)
    return folder


def configure(folder: Path, **fields) -> Path:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **fields}))
    return folder


def run(code: str, env: dict[str, str]) -> str:
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_folder_equals_transformers_on_text(folder):
    ours = load_model(folder, device="cpu")
    theirs = GPT2LMHeadModel.from_pretrained(folder).eval()
    assert sum(p.numel() for p in ours.parameters()) == theirs.num_parameters() < 100_000
    assert ours.name == "my-model"
    tokens = ours.to_tokens("a dull film from start to finish .")
    assert tokens.dtype == torch.int64
    assert tokens[0].tolist() == byte_level_bpe().encode("a dull film from start to finish .").ids
    with torch.no_grad():
        assert torch.allclose(ours(tokens), theirs(tokens).logits, atol=1e-5, rtol=1e-5)


def test_a_folder_without_a_tokenizer_takes_token_ids(folder):
    for name in ("tokenizer.json", "vocab.json"):
        (folder / name).unlink()
    model = load_model(str(folder), device="cpu")
    assert model.tokenizer is None
    assert model(torch.tensor([[1, 2, 3]])).shape == (1, 3, model.cfg.d_vocab)
    with pytest.raises(UsageError, match=r"my-model has no tokenizer; give token ids"):
        model.to_tokens("warm")
    with pytest.raises(DataError, match=r"my-model' has no tokenizer; give a folder with a tokenizer\.json"):
        load_tokenizer(folder)


def test_a_tokenizer_alone_is_that_of_its_model(folder):
    wanted = load_model(folder, device="cpu").tokenizer
    assert wanted is not None
    for name in ("config.json", "model.safetensors"):  # without the weights, and then without a model
        assert load_tokenizer(folder).encode("a dull film") == wanted.encode("a dull film")
        (folder / name).unlink()
    assert load_tokenizer(str(folder)).encode("a dull film") == wanted.encode("a dull film")
    with pytest.raises(UsageError, match="neither a folder nor owner/name"):
        load_tokenizer(folder / "nowhere")


@pytest.mark.parametrize("model_type", ["gpt2", "whisper", "t5", "longformer", "no_such_type"])
def test_a_tokenizer_needs_no_model_that_loads(folder, model_type):
    """Whatever its type and its weights, which here are cut, and then an index whose shards are not there."""
    wanted = load_model(folder, device="cpu").tokenizer
    assert wanted is not None
    hf = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(hf | {"model_type": model_type}))
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:99])
    for _ in range(2):
        found = load_tokenizer(folder)
        assert found.encode("a dull film") == wanted.encode("a dull film")
        assert (found.bos_token_id, found.d_vocab) == (wanted.bos_token_id, wanted.d_vocab)
        weights.unlink(missing_ok=True)
        index = {"weight_map": {"wte.weight": "model-00001-of-00001.safetensors"}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def test_a_built_in_name_comes_first_and_goes_the_same_way(folder, tmp_path, monkeypatch):
    (tmp_path / "builtin").mkdir()
    shutil.copytree(folder, tmp_path / "builtin/small")
    monkeypatch.setattr(load, "BUILTIN", tmp_path / "builtin")
    monkeypatch.setattr(load, "BUILTIN_MODELS", ("small",))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small").mkdir()
    model = load_model("small", device="cpu")
    assert model.name == "small"
    assert model.fingerprint() == load_model(folder, device="cpu").fingerprint()
    assert load_model("small", device="cpu", random_init=True, seed=4).name == "small-random4"


def test_an_existing_folder_comes_before_the_hub(folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    monkeypatch.setattr(load, "find_repo", lambda *_: pytest.fail("asked the Hub"))
    shutil.copytree(folder, folder.parent / "gpt2")
    shutil.copytree(folder, folder.parent / "owner/name")
    with pytest.warns(UserWarning, match="^the model 'gpt2' is the one in this folder; that of the Hub is openai-c"):
        assert load_model("gpt2", device="cpu").name == "gpt2"
    assert load_model("owner/name", device="cpu").name == "name"


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("agreement-gpt", "agreement-gpt2"),
        ("gpt2-mediun", "gpt2-medium"),
        ("distilgpt", "distilgpt2"),
        ("./no/such/folder", "known are"),
        ("", "known are"),
        ("x" * 5000, "known are"),
        ("\x1b[31m", "known are"),
        ("a\x00b", "known are"),
        ("../x", "known are"),
    ],
)
def test_an_unknown_name_names_the_nearest(name, near, monkeypatch):
    monkeypatch.setattr(load, "find_repo", lambda *_: pytest.fail("asked the Hub"))
    with pytest.raises(UsageError, match=near) as caught:
        load_model(name)
    assert not re.search(r"[\x00-\x1f]", str(caught.value))


CHILD = """
import json
from probekit.errors import DataError
from probekit.models import load_model
found = {{}}
for name, random_init in {!r}:
    try:
        model = load_model(name, "cpu", random_init=random_init)
        found[name] = [model.name, model.fingerprint()]
    except DataError as error:
        found[name] = str(error)
print(json.dumps(found))
"""
UNUSABLE = {
    "pair": (
        {"config.json": b'{"model_type": "t5"}'},
        "model_type 't5' is an encoder-decoder, and of those only Marian is implemented; take a decoder or",
    ),
    "pickle": ({"config.json": SERVED["config.json"], "pytorch_model.bin": b"x"}, "a pickle, which is never read"),
    "bare": ({"model.safetensors": b"x"}, "config.json"),
}
NAMES = ["gpt2", "openai-community/gpt2", "some/random", "some/trained", "some/sharded"]


def loaded(names: list[str], env: dict[str, str]) -> dict:
    """name -> name and fingerprint of the model, or the error; in a process of its own, as the Hub's client asks."""
    return json.loads(run(CHILD.format([(name, name == "some/random") for name in names]), env))


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> tuple[HubServer, dict]:
    """A Hub that has closed, and what a process found there: these models, and repositories that cannot be used."""
    home = tmp_path_factory.mktemp("hub")
    (home / "gpt2").mkdir()
    for name, content in SERVED.items():
        (home / "gpt2" / name).write_bytes(content)
    GPT2LMHeadModel.from_pretrained(home / "gpt2").save_pretrained(home / "sharded", max_shard_size="100KB")
    sharded = {path.name: path.read_bytes() for path in (home / "sharded").iterdir()}
    assert len([name for name in sharded if name.startswith("model-")]) > 1
    more = SERVED | {"rust_model.ot": b"x", "onnx/model.onnx": b"x"}
    weights = {"model-00001-of-00002.safetensors": b"x"}
    unusable = {f"models/unusable/{name}": files | weights for name, (files, _) in UNUSABLE.items()}
    models = {"models/some/random": more, "models/some/trained": more, "models/some/sharded": sharded}
    server = HubServer({"models/openai-community/gpt2": SERVED} | models | unusable, home / "home")
    found = loaded([*NAMES, *(f"unusable/{name}" for name in UNUSABLE)], server.env)
    server.close()
    return server, found


def test_the_hub_gives_the_model_that_it_serves(served, folder):
    fingerprint = load_model(folder, device="cpu").fingerprint()
    found = served[1]
    for name in ("gpt2", "openai-community/gpt2"):
        assert found[name] == [name, fingerprint]
    assert found["some/sharded"] == ["some/sharded", fingerprint], "in shards, as the index names them"


def test_only_what_is_needed_is_fetched_and_then_nothing(served):
    server, found = served
    got = {name: set() for name in ("random", "trained")}
    for request in server.requests:
        if request.startswith(("GET /some/random/", "GET /some/trained/")):
            got[request.split("/")[2]].add(request.rpartition("/")[2])
    needed = {"config.json", "tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt"}
    assert got == {"random": needed, "trained": needed | {"model.safetensors"}}
    assert loaded(["some/trained"], server.env)["some/trained"] == found["some/trained"]


def test_a_repository_that_cannot_be_used_says_so_before_its_weights_are_fetched(served):
    server, found = served
    for name, (_, says) in UNUSABLE.items():
        assert says in found[f"unusable/{name}"]
    asked = [request for request in server.requests if "/unusable/" in request]
    assert asked
    assert not any("safetensors" in request for request in asked)


def test_a_model_that_cannot_be_found_is_answered_without_torch(tmp_path):
    code = """
import sys
from probekit.errors import UsageError
from probekit.models import load_model
try:
    load_model("no-such")
except UsageError:
    print("torch" in sys.modules)
"""
    assert run(code, {"PYTHONPATH": str(Path(__file__).parents[2])}) == "False"


@pytest.fixture
def bare(tmp_path) -> Path:
    """A folder with a config.json only."""
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare/config.json").write_bytes(SERVED["config.json"])
    return tmp_path / "bare"


def test_random_init_needs_a_config_only_and_the_seed_decides_everything(bare):
    torch.manual_seed(1)
    first = load_model(bare, device="cpu", random_init=True, seed=5)
    state = torch.random.get_rng_state()
    again = load_model(bare, device="cpu", random_init=True, seed=5)
    assert torch.equal(torch.random.get_rng_state(), state), "the global generator is left alone"
    assert again.fingerprint() == first.fingerprint()
    assert load_model(bare, device="cpu", random_init=True, seed=6).fingerprint() != first.fingerprint()
    assert (first.name, first.training) == ("bare-random5", False)
    assert torch.isfinite(torch.cat([p.flatten() for p in first.parameters()])).all()


def test_random_init_in_half_precision_is_the_same_draw_rounded(bare):
    full = load_model(bare, device="cpu", random_init=True, seed=5).state_dict()
    half = load_model(bare, device="cpu", random_init=True, seed=5, dtype="bfloat16").state_dict()
    assert all(torch.equal(half[name], full[name].bfloat16()) for name in full)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"n_layer": -1}, "\\(n_layer\\) must be a whole number in 1\\.\\.1000; got -1"),
        ({"activation_function": "gelu_nwe"}, "unknown activation .*gelu_new"),
        (
            {"scale_attn_weights": False},
            "scale_attn_weights = False is not .* only True is; leave out --via probekit to run it through",
        ),
        (
            {"model_type": "gpt3"},
            "model_type 'gpt3' is not supported, .*; take a decoder or an encoder",
        ),
        (
            {"model_type": None},
            "model_type None is not supported, .*; take a decoder or an encoder",
        ),
        (
            {"model_type": ["gpt2"]},
            "model_type .* is not supported, .*; take a decoder or an encoder",
        ),
        ({"layer_norm_epsilon": float("nan")}, "positive number below 1e.15; got nan"),
    ],
)
def test_an_impossible_config_names_file_and_field(folder, fields, says):
    with pytest.raises(DataError, match=rf"config\.json': .*{says}"):
        load_model(configure(folder, **fields), via="probekit")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"5", b"\xff\xfe{}", b"[" * 100_000])
def test_a_broken_config_is_named(folder, content):
    (folder / "config.json").write_bytes(content)
    with pytest.raises(DataError, match=r"config\.json'"):
        load_model(folder)


def test_what_is_no_model_folder_says_so(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"")
    for path in (tmp_path, tmp_path / "model.safetensors"):
        with pytest.raises(DataError, match=r"is not the folder of a model, as it has no config\.json"):
            load_model(path)


def test_dtype_device_and_revision_are_checked(folder):
    for dtype, meant in (("bf16", torch.bfloat16), ("fp32", torch.float32), ("float16", torch.float16)):
        assert next(load_model(folder, dtype=dtype).parameters()).dtype == meant
    for dtype in ("float", "int8", "fp64", "float64"):
        with pytest.raises(UsageError, match="unknown dtype"):
            load_model(folder, dtype=dtype)
    for device in ("gpu", "cuda:x", ""):
        with pytest.raises(UsageError, match="cannot be used here"):
            load_model(folder, device=device)
    for device in ("cuda:99", "meta", "cpu:3"):
        with pytest.raises(UsageError, match=r"cannot be used here.*; give auto, cpu"):
            load_model(folder, device=device)
    with pytest.raises(
        UsageError, match=r"has no checkpoint 'main' \(--revision\): it holds no folders of checkpoints"
    ):
        load_model(folder, revision="main")


GOLDEN = [f"prompt{i}.npz" for i in range(5)]


@pytest.mark.shared
def test_gpt2s_tokenizer_gives_the_ids_of_the_golden_prompts(shared_dir):
    tokenizer = read_tokenizer(shared_dir / "models/gpt2-tokenizer")
    assert tokenizer is not None
    for prompt in GOLDEN:
        golden = np.load(shared_dir / "models/gpt2-golden-outputs" / prompt)
        assert tokenizer.encode(str(golden["prompt"])) == golden["token_ids"].tolist(), prompt
        assert tokenizer.tokens(golden["token_ids"]) == golden["tokens"].tolist(), prompt
