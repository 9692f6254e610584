"""Modules of one's own: their points are what the names say, or one line says why not."""

import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

import probekit as pk
from probekit.errors import DataError, UsageError
from probekit.interventions import add
from probekit.models import load_model
from probekit.models.adapter.model import AdaptedModel
from probekit.models.base import LanguageModel
from probekit.points import POINTS as NAMES
from probekit.points import Place

IDS = torch.tensor([[3, 7, 1, 9, 20, 33], [5, 5, 2, 8, 11, 40]])


class Block(nn.Module):
    def __init__(self, d: int):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.attn, self.mlp = CausalMean(d), nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class CausalMean(nn.Module):
    """The mean of what came so far, through a matrix: the plainest mixer of tokens."""

    def __init__(self, d: int):
        super().__init__()
        self.out = nn.Linear(d, d)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x.cumsum(1) / torch.arange(1, x.shape[1] + 1)[:, None])


class Attention(nn.Module):
    """One head, whose scores and pattern are the outputs of modules."""

    def __init__(self, d: int, masked: float):
        super().__init__()
        self.inputs, self.out, self.masked = nn.Linear(d, 3 * d), nn.Linear(d, d), masked
        self.scores, self.pattern = nn.Identity(), nn.Softmax(-1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.inputs(x).chunk(3, -1)
        later = torch.ones(x.shape[1], x.shape[1]).triu(1).bool()
        scores = self.scores((q @ k.mT).masked_fill(later, self.masked)[:, None])
        return self.out((self.pattern(scores) @ v[:, None])[:, 0])


class Toy(nn.Module):
    """A decoder in plain PyTorch; what a test changes in it is an attribute."""

    def __init__(self, d_vocab: int = 50, d: int = 16, n_layers: int = 3, n_ctx: int = 24):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.places = nn.Embedding(d_vocab, d), nn.Embedding(n_ctx, d)
        self.blocks = nn.ModuleList(Block(d) for _ in range(n_layers))
        self.ln_f, self.head = nn.LayerNorm(d), nn.Linear(d, d_vocab)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln_f(x))


def two_texts() -> pk.Task:
    labels: Any = [0, 1]
    return pk.Task("texts", IDS.tolist(), labels=labels)


POINTS = {
    "embed": "embed",
    "resid_pre": "blocks.{layer}",
    "attn_out": "blocks.{layer}.attn",
    "resid_mid": "blocks.{layer}.ln_2",
    "mlp_out": "blocks.{layer}.mlp",
    "resid_post": "blocks.{layer}",
    "ln_final": "ln_f",
}


def by_hand(toy: Toy, ids: Tensor) -> dict[str, Tensor]:
    """Every point, written out."""
    x = toy.embed(ids)
    found = {"embed": x}
    x = x + toy.places(torch.arange(ids.shape[1]))
    for i, block in enumerate(toy.blocks):
        found[f"resid_pre.{i}"] = x
        found[f"attn_out.{i}"] = block.attn(block.ln_1(x))  # pyright: ignore
        found[f"resid_mid.{i}"] = x = x + found[f"attn_out.{i}"]
        found[f"mlp_out.{i}"] = block.mlp(block.ln_2(x))  # pyright: ignore
        found[f"resid_post.{i}"] = x = x + found[f"mlp_out.{i}"]
    return {**found, "ln_final": toy.ln_f(x), "logits": toy.head(toy.ln_f(x))}


def test_every_point_is_what_its_name_says_and_selftest_agrees() -> None:
    toy = Toy().eval()
    model = pk.wrap(toy, POINTS)
    with torch.no_grad():
        wanted = by_hand(toy, IDS)
        logits, cache = model.run_with_cache(IDS)
        for name in wanted.keys() - {"logits"}:
            assert torch.equal(cache[name], wanted[name]), name
        assert torch.equal(logits, wanted["logits"])
        assert torch.equal(model(IDS, stop_at_layer=2), wanted["resid_pre.2"])
        assert torch.equal(model(IDS, stop_at_layer=3), wanted["resid_post.2"])
        assert torch.equal(model(IDS, return_logits=False), wanted["ln_final"])
        assert torch.equal(model.logits(wanted["ln_final"]), wanted["logits"])
    assert (model.batching, model.n_layers, model.cfg.d_model, model.cfg.n_ctx) == ("padded", 3, 16, 24)
    assert pk.selftest(model).passed


def test_an_edit_and_generation_are_those_of_the_module_itself() -> None:
    toy = Toy().eval()
    model, direction = pk.wrap(toy, POINTS), torch.randn(16, generator=torch.Generator().manual_seed(1))
    handle = toy.blocks[1].mlp.register_forward_hook(lambda _, args, out: out + 3 * direction)  # pyright: ignore
    with torch.no_grad():
        wanted = toy(IDS)
    handle.remove()
    with torch.no_grad(), model.edited({("mlp_out", 1): add(direction, scale=3)}):
        torch.testing.assert_close(model(IDS), wanted)
    text = IDS[:1]
    for _ in range(4):
        text = torch.cat([text, toy(text)[:, -1:].argmax(-1)], 1)
    assert model.generate([IDS[0].tolist()], max_new_tokens=4) == [text[0, 6:].tolist()]


def test_extraction_probes_and_a_causal_curve() -> None:
    model = pk.wrap(Toy(), POINTS)
    draw = torch.Generator().manual_seed(0)
    lengths = torch.randint(3, 9, (240,), generator=draw).tolist()
    texts = [torch.randint(50, (n,), generator=draw).tolist() for n in lengths]
    labels: Any = {"labels": [ids[-1] % 2 for ids in texts], "label_names": ["even", "odd"]}
    task = pk.Task("parity", texts, **labels)
    acts = pk.extract(model, task, points=["resid_pre", "mlp_out"])
    assert acts.meta["family"] == "WrappedModule"
    probes = pk.train_probes(acts, point="resid_pre", C=1.0, baselines=False)
    quick: dict[str, Any] = {"das": False, "completeness": False, "placebos": 2, "rows": 20}
    curve = pk.causal_curve(model, acts, probes, answers=[2, 3], methods="interchange", **quick)
    assert [layer.layer for layer in curve.layers][:3] == [0, 1, 2]


class Config:
    block_size, vocab_size = 24, 50


class NanoGPT(nn.Module):
    """The parts of nanoGPT's GPT, and what its forward returns."""

    def __init__(self) -> None:
        super().__init__()
        toy = Toy()
        self.config = Config()
        self.transformer = nn.ModuleDict({"wte": toy.embed, "wpe": toy.places, "h": toy.blocks, "ln_f": toy.ln_f})
        self.lm_head = toy.head

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        parts: Any = self.transformer
        x = parts.wte(idx) + parts.wpe(torch.arange(idx.shape[1]))
        for block in parts.h:
            x = block(x)
        x = parts.ln_f(x)
        if targets is None:
            return self.lm_head(x[:, [-1]]), None
        logits = self.lm_head(x)
        return logits, nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def test_nanogpt_is_known_and_gives_the_logits_of_every_token() -> None:
    model = pk.wrap(NanoGPT())
    with torch.no_grad():
        wanted = by_hand(Toy().eval(), IDS)
        logits, cache = model.run_with_cache(IDS)
    for name in wanted.keys() - {"logits"}:
        assert torch.equal(cache[name], wanted[name]), name
    assert torch.equal(logits, wanted["logits"])
    assert pk.selftest(model).passed


def test_a_model_of_transformers_goes_to_the_adapter_also_from_nnsight() -> None:
    config = GPT2Config(n_layer=2, n_embd=16, n_head=2, vocab_size=50, n_positions=32, bos_token_id=0, eos_token_id=0)
    torch.manual_seed(0)
    hf = GPT2LMHeadModel(config).eval()
    model = pk.wrap(hf, name="mine")
    assert isinstance(model, AdaptedModel)
    assert (model.name, model.batching) == ("mine", "packed")
    assert pk.selftest(model).passed
    of_nnsight = type("LanguageModel", (nn.Module,), {"__module__": "nnsight.modeling.language"})()
    of_nnsight._model = GPT2LMHeadModel(config).eval()
    of_nnsight._model.load_state_dict(hf.state_dict())
    with torch.no_grad():
        assert torch.equal(pk.wrap(of_nnsight)(IDS), hf(IDS).logits)


def hooked_transformers() -> list[Callable[[], Any]]:
    """Makers of TransformerLens's models, of the version that is installed."""
    lens = pytest.importorskip("transformer_lens")
    makers: list[Callable[[], Any]] = []
    if version("transformer_lens") < "4":
        sizes: dict[str, Any] = {"n_layers": 2, "d_model": 16, "n_ctx": 32, "d_head": 4, "n_heads": 4, "d_vocab": 50}
        plain, rotary = {"d_mlp": 32, "act_fn": "gelu"}, {"positional_embedding_type": "rotary", "rotary_dim": 4}
        gated = {**rotary, "normalization_type": "RMS", "gated_mlp": True, "act_fn": "silu", "n_key_value_heads": 2}
        parallel = {**plain, **rotary, "parallel_attn_mlp": True, "use_attn_result": True}
        folded = {**plain, "normalization_type": "LNPre"}
        for kind in (plain, {**gated, "d_mlp": 32}, parallel, {"attn_only": True}, folded):
            config = lens.HookedTransformerConfig(**sizes, **kind)
            makers.append(lambda config=config: with_gains(lens.HookedTransformer(config)))
    return makers


@torch.no_grad()
def with_gains(module: nn.Module) -> Any:
    """The module, with norms whose gains and biases are not 1 and 0."""
    draw = torch.Generator().manual_seed(3)
    for name, weight in module.named_parameters():
        if "ln" in name:
            weight += torch.randn(weight.shape, generator=draw)
    return module


def check_its_own_cache(theirs: Any, absent: set[str]) -> LanguageModel:
    """Every point of TransformerLens that has a name here, but for those of `absent`, in every layer.

    Its `hook_normalized` are before the gain and the bias, so norms are compared with the output of its norm.
    """
    model = pk.wrap(theirs)
    with torch.no_grad():
        wanted, their_cache = theirs.run_with_cache(IDS)
        logits, cache = model.run_with_cache(IDS)
        paths = {id(part): path for path, part in theirs.named_modules()}
        norms = {name: paths[id(theirs.hook_dict[name])].rpartition(".")[0] for name in cache if "normalized" in name}
        their_cache = {**their_cache, **outputs_of(theirs, norms)}
        last = model.final_norm()(cache["resid_post", model.n_layers - 1])
        torch.testing.assert_close(model.logits(last), wanted)
    assert norms
    assert torch.equal(logits, wanted)
    assert abs(pk.logit_lens(model, IDS[0].tolist(), k=1).kl[-1]).max() < 1e-5
    named = {short: [name.format(layer=i) for i in range(2)] for short, name in NAMES.items() if short not in absent}
    assert set(cache) == {name for names in named.values() for name in names} & set(their_cache)
    for name in cache:
        assert torch.equal(cache[name], their_cache[name]), name
    assert pk.selftest(model).passed
    return model


def outputs_of(module: Any, paths: dict[str, str]) -> dict[str, Tensor]:
    """What the modules at these paths return."""
    found: dict[str, Tensor] = {}
    handles = [
        module.get_submodule(path).register_forward_hook(lambda _, args, out, name=name: found.__setitem__(name, out))
        for name, path in paths.items()
    ]
    module(IDS)
    for handle in handles:
        handle.remove()
    return found


@pytest.mark.filterwarnings("ignore:HookedTransformer is deprecated:DeprecationWarning")
def test_a_hooked_transformer_equals_its_own_cache() -> None:
    makers = hooked_transformers()
    if not makers:
        pytest.skip("TransformerLens 4 has no HookedTransformer")
    seen: set[str] = set()
    for make in makers:
        model = check_its_own_cache(
            make(), {"ln1_normalized", "ln1_scale"}
        )  # it runs once each for queries, keys and values
        seen |= {Place.of(name).point for name in model.points}
    assert {"rot_q", "k", "attn_scores", "attn_pattern", "result", "mlp_pre_linear", "resid_mid", "pos_embed"} <= seen


def test_a_transformer_bridge_equals_its_own_cache(tmp_path: Path) -> None:
    bridge = pytest.importorskip("transformer_lens.model_bridge").TransformerBridge
    config = GPT2Config(n_layer=2, n_embd=16, n_head=4, vocab_size=50, n_positions=32, bos_token_id=0, eos_token_id=0)
    hf = with_gains(GPT2LMHeadModel(config).eval())
    hf.save_pretrained(tmp_path)
    model = check_its_own_cache(bridge.boot_transformers(str(tmp_path), hf_model=hf), set())
    assert {"blocks.0.attn.hook_q", "blocks.1.hook_resid_mid", "ln_final.hook_normalized"} <= set(model.points)


def changed(**attributes: Any) -> Toy:
    toy = Toy()
    for path, value in attributes.items():
        stem, _, last = path.replace("__", ".").rpartition(".")
        setattr(toy.get_submodule(stem), last, value)
    return toy


def unlike(toy: Toy, forward: Callable[[Toy, Tensor], Tensor]) -> Toy:
    toy.forward = lambda ids: forward(toy, ids)  # pyright: ignore[reportAttributeAccessIssue]
    return toy


def mixing(toy: Toy, ids: Tensor) -> Tensor:
    x = toy.embed(ids) + toy.embed(ids).mean((0, 1))
    for block in toy.blocks:
        x = block(x)
    return toy.head(x)


def reading_the_text_before(toy: Toy, ids: Tensor) -> Tensor:
    x = toy.embed(ids)
    x = x + torch.cat([torch.zeros_like(x[:1]), x[:-1]])
    for block in toy.blocks:
        x = block(x)
    return toy.head(x)


def seeing_ahead(toy: Toy, ids: Tensor) -> Tensor:
    x = toy.embed(ids) + toy.embed(ids).mean(1, keepdim=True)
    for block in toy.blocks:
        x = block(x)
    return toy.head(x)


def seeing_far_ahead(toy: Toy, ids: Tensor) -> Tensor:
    x = toy.embed(ids)
    x = x + nn.functional.pad(x, (0, 0, 0, 9))[:, 9:]
    for block in toy.blocks:
        x = block(x)
    return toy.head(x)


def last_alone(toy: Toy, ids: Tensor) -> Tensor:
    return toy.head(toy.embed(ids)[:, -1])


def nothing(toy: Toy, ids: Tensor) -> Any:
    return None


def filled(toy: Toy, path: str) -> Toy:
    nn.init.constant_(toy.get_submodule(path).weight, float("nan"))  # pyright: ignore[reportArgumentType]
    return toy


def noisy(toy: Toy, ids: Tensor) -> Tensor:
    x = toy.embed(ids)
    for block in toy.blocks:
        x = block(x + torch.rand(1))
    return toy.head(x)


def changing_between(toy: Toy, ids: Tensor) -> Tensor:
    x = toy.embed(ids)
    for block in toy.blocks:
        x = block(x) * 2
    return toy.head(x)


POINTS_MIN = {"resid_pre": "blocks.{layer}", "resid_post": "blocks.{layer}"}
REFUSED: list[tuple[Any, Any, type[Exception], str]] = [
    (lambda: 5, POINTS, UsageError, "wrap takes a torch module; got int"),
    (Toy, None, UsageError, "the points of Toy are not known; give them"),
    (Toy, {"resid_pre": "layers.{layer}"}, UsageError, "no module at 'layers.{layer}' in Toy; it has embed, places"),
    (Toy, {"resid_pre": "blocks.0"}, UsageError, "the layer of point 'resid_pre': give a layer"),
    (Toy, {"embed.0": "embed"}, UsageError, "the layer of point 'embed.0': has none"),
    (Toy, {"resid_prre": "blocks.{layer}"}, UsageError, "resid_pre"),
    (Toy, [1], UsageError, "names of points and paths; got"),
    (Toy, POINTS | {"resid_pre.0": "embed.weight"}, UsageError, "no module at 'embed.weight'"),
    (Toy, {"resid_post": "blocks.{layer}"}, DataError, "has no resid_pre in every layer from 0 on"),
    (lambda: changed(unused=nn.Linear(2, 2)), POINTS | {"ln_final": "unused"}, DataError, "is reached 0 times"),
    (Toy, POINTS | {"attn_out": "blocks.{layer}.mlp.1"}, DataError, "attn_out.0 at 'blocks.0.mlp.1' is [1, 7, 32]"),
    (Toy, POINTS | {"attn_out": "blocks.{layer}.mlp"}, DataError, "resid_pre + attn_out = resid_mid does not hold in"),
    (
        lambda: unlike(Toy(), mixing),
        POINTS_MIN,
        DataError,
        "other texts of its batch",
    ),
    (lambda: unlike(Toy(), seeing_ahead), POINTS_MIN, DataError, "depends on the tokens after it; give causal=False"),
    (lambda: unlike(Toy(), noisy), POINTS_MIN, DataError, "differs when the same text is run again"),
    (
        lambda: unlike(Toy(), changing_between),
        POINTS_MIN,
        DataError,
        "resid_post = resid_pre of the next layer does not hold in layer 0",
    ),
    (
        lambda: unlike(Toy(), seeing_far_ahead),
        POINTS_MIN,
        DataError,
        "depends on the tokens after it; give causal=False",
    ),
    (lambda: filled(Toy(), "embed"), POINTS_MIN, DataError, "Toy has NaN or infinity at resid_pre.0"),
    (lambda: unlike(Toy(), reading_the_text_before), POINTS_MIN, DataError, "other texts of its batch"),
    (Toy, lambda toy: toy.nothing, DataError, "has no attribute 'nothing'"),
    (Toy, {"resid_pre": "blocks.{layer}"}, DataError, "has no resid_post in layer 2, where the stream ends"),
    (Toy, POINTS | {"ln_final": "blocks.0.ln_1"}, DataError, "is not reached in its turn"),
    (
        Toy,
        POINTS_MIN | {"attn_pattern.0": "blocks.0.attn"},
        DataError,
        "attn_pattern.0 at 'blocks.0.attn' is [1, 7, 16]",
    ),
    (lambda: unlike(Toy(), last_alone), POINTS_MIN, DataError, "returns [1, 50] for tokens [1, 2]; expected logits"),
    (lambda: unlike(Toy(), nothing), POINTS_MIN, DataError, "returns no tensor for tokens [1, 2]"),
    (Toy, {"resid_pre": "blocks.{layer}.{x}"}, UsageError, "no module at 'blocks.{layer}.{x}'"),
    (nn.GELU, POINTS_MIN, UsageError, "GELU has no weights"),
    (lambda: nn.Linear(3, 3), {"resid_pre.0": "0"}, UsageError, "no module at '0' in Linear"),
    (lambda: nn.Sequential(nn.Linear(3, 3)), {"resid_pre.0": "0"}, DataError, "cannot be run on token ids"),
]


@pytest.mark.parametrize(("make", "points", "kind", "says"), REFUSED, ids=[says[:40] for *_, says in REFUSED])
def test_what_cannot_be_proved_is_refused_in_one_line(make: Any, points: Any, kind: Any, says: str) -> None:
    with pytest.raises(kind) as error:
        pk.wrap(make(), points)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


class Encoder(Toy):
    """Each token sees the mean of its text, and of the text before if it `mixes`."""

    mixes = False

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids) + self.embed(ids).mean(1, keepdim=True)
        x = x + x.roll(1, 0) * (self.mixes and len(x) > 1)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def test_an_encoder_runs_in_batches_of_one_length() -> None:
    model = pk.wrap(toy := Encoder(), POINTS_MIN, causal=False)
    assert model.batching == "one length"
    with pytest.raises(UsageError, match="padding changes the activations of Encoder"):
        model(IDS, attention_mask=torch.tensor([[1] * 6, [1] * 5 + [0]]))
    assert pk.selftest(model).passed
    toy.mixes = True
    figures = [one for row in pk.selftest(model).rows for one in row.figures.values()]
    assert {one.check for one in figures if not one.passed} == {"packed", "shuffled"}


@pytest.mark.parametrize("masked", [float("-inf"), -1e9])
def test_scores_are_compared_where_a_token_sees_another(masked: float) -> None:
    toy = Toy()
    for block in toy.blocks:
        block.attn = Attention(16, masked)
    inside = {f"attn_{what}": f"blocks.{{layer}}.attn.{what}" for what in ("scores", "pattern")}
    model = pk.wrap(toy, POINTS | inside)
    acts = pk.extract(model, two_texts(), points="attn_scores", position="all")
    _, cache = model.run_with_cache(IDS)
    torch.testing.assert_close(acts.per_text(("attn_scores", 1))[0], cache["attn_scores", 1][0])
    right = pk.selftest(model)
    assert right.passed
    assert right.softmax < 100
    scores: Any = toy.blocks[1].attn.scores  # pyright: ignore[reportAttributeAccessIssue]
    scores.register_forward_hook(lambda _, args, x: x * (1 + 1e-4 * (len(x) > 1)))
    wrong = pk.selftest(model)
    assert (wrong.first.point, wrong.first.layer) == ("attn_scores", 1) if wrong.first else False


def test_float64_passes_by_the_bounds_of_what_is_kept() -> None:
    model = pk.wrap(Toy().double(), POINTS)
    assert pk.selftest(model).passed
    model.module.head.register_forward_hook(lambda _, args, x: x * (1 + 1e-12 * (len(x) > 1)))  # pyright: ignore
    assert not pk.selftest(model).passed


def test_training_mode_is_refused_and_the_repr_is_short() -> None:
    model = pk.wrap(Toy(), POINTS)
    names = "embed, resid_pre, attn_out, resid_mid, mlp_out, resid_post, ln_final"
    assert repr(model) == f"Toy: 3 layers of 16, 50 token ids; points {names}"
    with pytest.raises(UsageError, match=r"Toy is in training mode, where dropout .* call \.eval\(\)"):
        model.train()(IDS)
    model.eval()(IDS)


def test_the_baseline_of_random_weights_is_made_in_python(tmp_path: Path) -> None:
    task = two_texts()
    pk.extract(pk.wrap(Toy(), POINTS), task, points="resid_pre", out=tmp_path / "store")
    with pytest.raises(UsageError, match=r"random_init=extract\(wrap\(module, points\), task, \.\.\.\)\)"):
        pk.random_init_of(tmp_path / "store")


FILE = """
import torch
import probekit as pk
from test_wrapped_parts import POINTS, Toy

def make_model():
    return pk.wrap(Toy(), POINTS)

def broken():
    return 1 / 0

def number():
    return 5

def stopping():
    raise SystemExit(7)
"""


@pytest.fixture
def own_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(sys.modules, "test_wrapped_parts", SimpleNamespace(POINTS=POINTS, Toy=Toy))  # pyright: ignore
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "toy.py").write_text(FILE)
    return tmp_path / "toy.py"


def test_the_command_line_takes_a_function_of_ones_own_file(own_file: Path) -> None:
    with pytest.warns(UserWarning, match=r"toy.py' is run: it is your own code"):
        model = load_model(f"{own_file}:make_model", device="cpu")
    assert (model.name, model.source) == ("toy.make_model", None)  # a store's record never runs a file
    with torch.no_grad():
        assert torch.equal(model(IDS), Toy().eval()(IDS))


@pytest.mark.parametrize(
    ("function", "options", "says"),
    [
        ("nothing", {}, "has no function nothing; it has Toy, make_model, broken, number, stopping"),
        ("stopping", {}, "fails in stopping: 'SystemExit: 7'; correct the file"),
        ("broken", {}, "toy.py', line 10 fails in broken: 'ZeroDivisionError: division by zero'; correct the file"),
        ("number", {}, "number of .* returned int; expected pk.wrap"),
        ("make_model", {"revision": "main"}, "--revision is for models of folders and the Hub"),
        ("make_model", {"random_init": True}, "--random-init is for models of folders and the Hub"),
        ("make_model", {"via": "probekit"}, "--via is for models of folders and the Hub"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*is run")
def test_what_ones_own_file_does_wrong_is_one_line(
    own_file: Path, function: str, options: dict[str, Any], says: str
) -> None:
    with pytest.raises((UsageError, DataError), match=says):
        load_model(f"{own_file}:{function}", device="cpu", **options)


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(UsageError, match=r"no model 'nowhere.py:make': there is no file 'nowhere.py'"):
        load_model("nowhere.py:make")


def test_a_file_without_its_function_and_a_foreign_tokenizer(own_file: Path) -> None:
    with pytest.raises(UsageError, match=r"names no function; give it after a colon: .*toy\.py:make_model"):
        load_model(str(own_file))
    tokenizer: Any = "gpt2"
    with pytest.raises(UsageError, match=r"tokenizer is one of probekit.*; got str"):
        pk.wrap(Toy(), POINTS, tokenizer=tokenizer)
