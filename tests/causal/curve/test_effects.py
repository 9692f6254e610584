"""A causal run on a model whose answer is known to be a linear function of one direction."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

import probekit as pk
from probekit.activations import ActivationSet
from probekit.causal.curve import problem
from probekit.causal.curve.causal_curve import causal_curve
from probekit.causal.curve.edits import choose_edits
from probekit.causal.curve.estimate import describe_causal, plan_causal
from probekit.causal.curve.question import CHOICES, _check_classes, _classes_first, causal_question
from probekit.causal.data import Effect
from probekit.causal.results.report import causal_summary
from probekit.causal.results.results import CausalResults
from probekit.causal.results.view import curve_effects, effect_shows_use
from probekit.errors import DataError, UsageError
from probekit.models.families.gpt2 import GPT2, GPT2Config
from probekit.options import CausalOptions
from probekit.probes.lda import LDAProbe

D, WORDS = 16, 240
OWN, OTHER = WORDS, WORDS + 1


def contrast(i: int) -> Tensor:
    """A direction of mean 0, so that the final norm keeps it."""
    direction = torch.zeros(D)
    direction[i], direction[i + 1] = 0.5**0.5, -(0.5**0.5)
    return direction


READ, IDLE = contrast(4), contrast(9)  # what the head reads, and what is there as clearly and is never read


def linear_gpt2() -> GPT2:
    """A GPT-2 whose block adds nothing and whose norm divides by a constant: the logit difference is linear.

    Two large coordinates hold the variance at 125,000, beside which that of the others is 1e-4 of it at most.
    """
    model = GPT2(GPT2Config(d_model=D, n_heads=2, n_layers=1, n_ctx=4, d_mlp=8, d_vocab=WORDS + 2)).eval()
    assert sum(p.numel() for p in model.parameters()) < 10_000
    number = torch.arange(WORDS)
    used, idle = (1.0 - 2 * (number // unit % 2) for unit in (1, 2))
    noise = 0.3 * torch.randn(WORDS, D, generator=torch.Generator().manual_seed(0))
    noise -= (noise @ READ)[:, None] * READ
    noise[:, :2] = 0
    noise[:, 2:] -= noise[:, 2:].mean(dim=1, keepdim=True)
    words = used[:, None] * READ + 2 * idle[:, None] * IDLE + noise
    words[:, :2] = torch.tensor([1000.0, -1000.0])
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
        model.embed.weight[:WORDS] = words
        model.ln_final.get_parameter("weight").fill_(353.0)
        model.embed.weight[OWN], model.embed.weight[OTHER] = READ, -READ
    return model


@pytest.fixture(scope="module")
def parts():
    model = linear_gpt2()
    rng = np.random.default_rng(1)
    words = rng.permutation(WORDS)
    splits = np.repeat(["train", "validation", "test"], [120, 60, 60])
    task = pk.Task(
        name="planted",
        inputs=[[int(i)] for i in words],
        labels={"used": words % 2, "idle": words // 2 % 2},
        label_names={"used": ["up", "down"], "idle": ["in", "out"]},
        target="used",
        splits=splits,
    )
    return model, pk.extract(model, task, points=["resid_pre"])


PROBES = {}  # task and label -> results


def trained(acts, label):
    if (known := (acts.task.name, label)) not in PROBES:
        PROBES[known] = pk.train_probes(acts, label=label, quick=True, C=[0.1, 1.0])
    return PROBES[known]


def run(parts, label="used", **changes) -> CausalResults:
    model, acts = parts
    results = trained(acts, label)
    how = {"answers": [str(OWN), str(OTHER)], "answers_label": "used", "das": False, "completeness": False, "rows": 60}
    return causal_curve(model, acts, results, **{**how, **changes})


@pytest.fixture(scope="module")
def used(parts) -> CausalResults:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(problem, "STEPS", 40)
        return run(parts, das=True, completeness=True)


@pytest.fixture(scope="module")
def idle(parts) -> CausalResults:
    return run(parts, "idle")


def effects(results: CausalResults, method: str, direction: str, split: str = "test") -> list[Effect]:
    return [e for e in results.effects if (e.method, e.direction, e.split) == (method, direction, split)]


def test_what_is_read_and_used_is_called_so(used):
    assert [layer.quadrant for layer in used.layers] == ["read and used"] * 2
    for effect in effects(used, "interchange", "mean-difference") + effects(used, "interchange", "full vector"):
        assert effect.effect == pytest.approx(1, abs=0.1)
        assert effect.flip_rate == 1
    assert all(effect.effect == pytest.approx(1, abs=0.15) for effect in effects(used, "erase", "leace"))


def test_the_output_is_chosen_only_if_no_place_before_it_acts(used, same_end_results):
    assert all(chosen["place"] == "resid_pre.0" for chosen in used.meta["selected"].values())
    assert all(chosen["place"] == "resid_post.0" for chosen in same_end_results.meta["selected"].values())
    assert not any(chosen["passed_over"] for chosen in same_end_results.meta["selected"].values())


def test_the_full_vector_swap_is_the_counterparts_run(used):
    """A replaced last token at the model's only block leaves nothing of the text's own."""
    for effect in effects(used, "interchange", "full vector"):
        assert effect.effect == pytest.approx(1, abs=1e-5)
        assert effect.interval == pytest.approx((1, 1), abs=1e-5)


def test_what_is_read_and_never_used_is_called_so(idle):
    assert [layer.quadrant for layer in idle.layers] == ["read, not shown to be used"] * 2
    assert all(layer.score > 0.95 for layer in idle.layers)
    for method, direction in (("erase", "leace"), ("steer", "mean-difference")):
        found = effects(idle, method, direction)
        assert found
        assert all(abs(e.effect) < 0.1 for e in found)


def test_a_search_for_what_moves_the_answer_says_nothing_of_another_label(parts, monkeypatch):
    monkeypatch.setattr(problem, "STEPS", 40)
    found = run(parts, "idle", das=True, methods="interchange", layers=0)
    assert all(effect_shows_use(effect) for effect in effects(found, "interchange", "das"))
    assert [layer.quadrant for layer in found.layers] == ["read, not shown to be used"] * len(found.layers)
    assert not any(layer.used_by for layer in found.layers)


def test_steering_a_linear_model_is_linear_in_the_scale(used):
    found = [e for e in effects(used, "steer", "mean-difference") if e.layer == 0 and e.point == "resid_pre"]
    assert [e.scale for e in found] == [-4, -2, -1, 1, 2, 4]
    one = found[3].effect
    assert [e.effect / one for e in found] == pytest.approx([-4, -2, -1, 1, 2, 4], rel=1e-3)
    assert [e.size / found[3].size for e in found] == pytest.approx([4, 2, 1, 1, 2, 4], rel=1e-3)


def test_every_effect_on_test_has_its_placebos(used):
    for effect in used.effects:
        is_own = effect.interval is not None
        assert (effect.placebo_band is not None) == (effect.split == "test")
        assert (effect.p_adjusted is not None) == (effect.split == "test" and is_own)
        assert (effect.kl is None) == (effect.probability is None) == (not is_own)
        if effect.p_adjusted is not None:
            assert effect.p_adjusted >= effect.p_value
    names = [e.direction for e in used.effects if e.split == "test" and e.method == "erase" and e.layer == 0]
    assert names.count("random") == names.count("covariance") == 40  # at two places
    assert names.count("shuffled labels") == names.count("label idle") == 2


def test_the_search_finds_no_less_than_the_directions(used):
    learned = effects(used, "interchange", "das")
    assert [e.effect for e in learned] == pytest.approx([1, 1], abs=0.1)
    assert set(used.meta["das"]) == {"resid_pre.0", "resid_post.0"}


def test_fresh_probes_read_little_of_what_was_erased(used):
    for layer in used.layers:
        assert layer.completeness["erase"][0] > 0.8
        assert layer.selectivity["erase"] == pytest.approx(1, abs=0.1)  # the other label set is as clear as before
        low, high = layer.completeness_interval["erase"]
        assert low < layer.completeness["erase"][0] < high


def test_a_swap_and_a_step_read_as_the_other_class_and_leave_the_other_label(used):
    for layer in used.layers:
        for method in ("interchange", "steer"):
            assert layer.completeness[method] == pytest.approx([1] * len(layer.completeness[method]), abs=0.1)
            assert layer.selectivity[method] == pytest.approx(1, abs=0.1)
            assert layer.reliability[method] == pytest.approx(1, abs=0.1)
        assert not layer.collateral  # a text of one token has nothing to predict


def test_rows_that_fitted_a_direction_measure_nothing(parts, used):
    acts = parts[1]
    assert used.meta["n"] == {"train": 120, "validation": 60, "test": 60}
    assert (acts.splits == "train").sum() == 120


def test_the_same_run_gives_the_same_numbers(parts, idle):
    again = run(parts, "idle")
    assert again.effects == idle.effects
    assert again.layers == idle.layers


def test_edits_of_all_tokens_of_one_token_texts_are_those_of_the_read_token(parts, idle):
    everywhere = run(parts, "idle", at="all", methods="erase,steer")
    there = [e for e in idle.effects if e.method != "interchange"]
    assert [e.effect for e in everywhere.effects] == pytest.approx([e.effect for e in there], abs=1e-6)


def test_layers_are_those_that_were_asked_for(parts):
    found = run(parts, layers=0, methods="erase", placebos=0)
    assert [layer.place for layer in found.layers] == ["resid_pre.0"]
    assert found.layers[0].quadrant == "read, not shown to be used"  # nothing is called used without placebos
    assert all(e.p_value is None and e.placebo_band is None for e in found.effects)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"answers": None}, "name the next word of each class"),
        ({"answers": ["1", "2", "3"]}, "got 3"),
        ({"answers_label": "nothing"}, "nothing"),
        ({"layers": 7}, "layer 7"),
        ({"methods": "erase,stare"}, "steer"),
        ({"at": "all", "methods": "interchange,erase"}, "interchange"),
        ({"scales": [0]}, "other than 0"),
        ({"pairs": "pairs.csv"}, "needs methods with patch"),
    ],
)
def test_wrong_options_are_refused(parts, changes, message):
    with pytest.raises(UsageError, match=message):
        run(parts, **changes)


def test_results_that_cannot_say_it_are_refused(parts):
    model, acts = parts
    folds = pk.train_probes(acts, quick=True, C=1.0, folds=3, layers=0)
    with pytest.raises(UsageError, match="nested folds"):
        causal_curve(model, acts, folds, answers="1,2")
    curved = pk.train_probes(acts, quick=True, probe="mlp", layers=0)
    with pytest.raises(UsageError, match="has no direction"):
        causal_curve(model, acts, curved, answers="1,2")
    results = pk.train_probes(acts, quick=True, C=1.0, layers=0)
    with pytest.raises(UsageError, match="other weights"):
        causal_curve(linear_gpt2().init_weights(1), acts, results, answers="1,2")
    with pytest.raises(UsageError, match="expected results"):
        causal_curve(model, acts, "results", answers="1,2")  # pyright: ignore[reportArgumentType]


@pytest.fixture(scope="module")
def same_end():
    """Texts that end in the same token, to which the block's attention brings the word before it."""
    model = linear_gpt2()
    with torch.no_grad():
        model.embed.weight[0] -= model.embed.weight[0] @ READ * READ
        weights = dict(model.named_parameters())
        weights["blocks.0.ln1.weight"][2:] = 353.0
        weights["blocks.0.attn.qkv.weight"][2 * D :] = 2 * torch.eye(D)
        weights["blocks.0.attn.out.weight"].copy_(torch.eye(D))
    words = 1 + np.random.default_rng(2).permutation(WORDS - 1)[:200]
    splits = np.repeat(["train", "validation", "test"], [100, 50, 50])
    labels = {"used": words % 2, "idle": words // 2 % 2}
    names = {"used": ["up", "down"], "idle": ["in", "out"]}
    inputs = [[int(i), 0] for i in words]
    task = pk.Task(name="end", inputs=inputs, labels=labels, label_names=names, target="used", splits=splits)
    return model, pk.extract(model, task, points=["resid_pre"])


@pytest.fixture(scope="module")
def same_end_results(same_end) -> CausalResults:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(problem, "STEPS", 40)
        return run(same_end, das=True, completeness=True, rows=50)


def test_a_place_whose_classes_do_not_differ_has_no_direction_and_ends_no_run(same_end_results):
    found = same_end_results
    assert found.meta["no_direction"] == ["resid_pre.0"]
    assert [layer.quadrant for layer in found.layers] == ["neither", "read and used"]
    first = [e for e in found.effects if e.point == "resid_pre"]
    assert max(abs(e.effect) for e in first) < 1e-4
    assert all(e.size == 0 for e in first if e.direction in ("probe", "mean-difference", "lda", "leace"))
    assert [e.effect for e in effects(found, "interchange", "das")] == [pytest.approx(1, abs=0.1)]
    assert found.layers[0].angles == {}
    assert "No direction at resid_pre.0" in causal_summary(found)


@pytest.fixture(scope="module")
def product():
    """Each word is (u, v), and the MLP writes u * v along READ, which is the answer."""
    model = linear_gpt2()
    number = torch.arange(WORDS)
    u, v = (1.0 - 2 * (number // unit % 2) for unit in (1, 2))
    U, V = contrast(6), contrast(12)
    with torch.no_grad():
        words, weights = model.embed.weight[:WORDS], dict(model.named_parameters())
        words -= words @ torch.stack([READ, IDLE, U, V]).T @ torch.stack([READ, IDLE, U, V])
        words[:, 2:] *= 4  # noise as large as u and v: a direction drawn from the covariance is mostly noise
        words += u[:, None] * U + v[:, None] * V
        weights["blocks.0.ln2.weight"].fill_(353.0)
        signs = torch.tensor([[1.0, 1], [-1, -1], [1, -1], [-1, 1]])
        weights["blocks.0.mlp.up.weight"][:4] = 4 * signs @ torch.stack([U, V])
        weights["blocks.0.mlp.down.weight"][:, :4] = 0.25 * READ[:, None] * torch.tensor([1.0, 1, -1, -1])
    words = np.random.default_rng(3).permutation(WORDS)
    task = pk.Task(
        name="product",
        inputs=[[int(i)] for i in words],
        labels={"used": (words % 2) ^ (words // 2 % 2)},
        label_names={"used": ["up", "down"]},
        splits=np.repeat(["train", "validation", "test"], [120, 60, 60]),
    )
    return model, pk.extract(model, task, points=["resid_pre"])


def test_what_no_linear_probe_reads_and_the_model_uses_is_called_so(product, monkeypatch):
    monkeypatch.setattr(problem, "STEPS", 40)
    found = run(product, das=True, methods="interchange")
    assert [layer.quadrant for layer in found.layers] == ["used, not read", "read and used"]
    assert found.layers[0].used_by == ["das"]
    assert found.layers[1].used_by == [found.layers[1].directions["interchange"], "das"]
    assert not found.layers[0].is_used["interchange"]
    before, _ = effects(found, "interchange", "full vector, own class")
    assert before.effect == pytest.approx(0, abs=0.05)  # (u, v) and (-u, -v) have one answer


def test_a_layer_is_read_where_the_band_of_the_curve_is_above_chance(product):
    """Its own interval is narrower, and of many layers some lie above chance by luck."""
    model, acts = product
    results = trained(acts, "used")
    wide = [replace(layer, band=(0.3, 1.0), intervals={"accuracy": (0.9, 1.0)}) for layer in results.layers]
    how = {"answers": [str(OWN), str(OTHER)], "das": False, "completeness": False, "methods": "interchange"}
    found = causal_curve(model, acts, replace(results, layers=wide), **how)
    assert [layer.is_read for layer in found.layers] == [False, False]
    assert found.layers[0].used_by == []  # so wide a band does not say that the label cannot be read
    assert "Whether it is read at resid_pre.0, resid_post.0 is not decided" in causal_summary(found.data)


def test_where_nothing_is_read_the_full_vector_shows_use(product):
    """Without the search for a direction, no single one moves the answer; all of them together do."""
    found = run(product, methods="interchange")
    assert [layer.quadrant for layer in found.layers] == ["used, not read", "read and used"]
    assert [layer.used_by for layer in found.layers] == [["full vector"], [found.layers[1].directions["interchange"]]]
    assert "along no single direction" in causal_summary(found.data)


@pytest.fixture(scope="module")
def shared_tokens():
    """The model answers by the last token's "used"; the first token is the same for all texts of one answer.

    So the text of another "idle" that shares most tokens has the same answer.
    """
    model = linear_gpt2()
    words = np.random.default_rng(4).permutation(WORDS - 2)
    used, idle = words % 2, words // 2 % 2
    task = pk.Task(
        name="shared",
        inputs=[[WORDS - 2 + int(used[i]), int(word)] for i, word in enumerate(words)],
        labels={"used": used, "idle": idle},
        label_names={"used": ["up", "down"], "idle": ["in", "out"]},
        target="idle",
        splits=np.repeat(["train", "validation", "test"], [118, 60, 60]),
    )
    return model, pk.extract(model, task, points=["resid_pre"])


def test_counterparts_have_another_answer_where_another_label_decides_it(shared_tokens):
    """Chosen by shared tokens alone, no counterpart's answer would differ, and effects would be shares of nothing."""
    found = run(shared_tokens, "idle", methods="interchange", layers=0)
    assert found.meta["no_share"] == found.meta["left_out"] == {}
    (full,) = effects(found, "interchange", "full vector")
    assert full.effect == pytest.approx(1, abs=1e-4)
    assert full.flip_rate == 1
    for e in found.effects:
        assert e.interval is None or max(map(abs, e.interval)) < 1.5
    assert [layer.quadrant for layer in found.layers] == ["read, not shown to be used"]


def test_rows_without_a_counterpart_are_left_out_and_counted(parts):
    """Rows of "out" all have one answer; so those of "in" with that answer have no text of another label to go to."""
    model, acts = parts
    used, idle = acts.labels["used"], acts.labels["idle"]
    keep = np.flatnonzero((idle == 0) | (used == 1))
    some = ActivationSet({("resid_pre", 0): acts["resid_pre", 0][keep]}, acts.task.subset(keep), acts.meta)
    results = pk.train_probes(some, label="idle", quick=True, C=[1.0])
    how = {"answers": [str(OWN), str(OTHER)], "answers_label": "used", "das": False, "completeness": False}
    found = causal_curve(model, some, results, methods="interchange", **how)
    for split in ("validation", "test"):
        alone = (acts.splits[keep] == split) & (idle[keep] == 0) & (used[keep] == 1)
        assert found.meta["left_out"][split] == alone.sum() > 0
        assert found.meta["n"][split] == ((acts.splits[keep] == split) & ~alone).sum()
    assert "! Left out, as no text of another class has another answer:" in found.summary()
    assert {e.n for e in found.effects if e.split == "test"} == {found.meta["n"]["test"]}


def test_a_model_that_tells_no_answers_apart_has_no_shares_and_that_is_said(parts):
    """The two answers' logits are equal up to rounding: there is no gap to take a share of."""
    _, acts = parts
    blind = linear_gpt2()
    with torch.no_grad():
        blind.embed.weight[OTHER] = blind.embed.weight[OWN] = READ
    own = pk.extract(blind, acts.task, points=["resid_pre"])
    results = pk.train_probes(own, label="used", quick=True, C=[1.0])
    how = {"answers": [str(OWN), str(OTHER)], "das": True, "completeness": False, "rows": 20}
    found = causal_curve(blind, own, results, **how)
    assert set(found.meta["no_share"]) == {"interchange", "erase", "steer"}
    assert all(np.isnan(e.effect) and e.interval is None and e.p_value is None for e in found.effects)
    assert {layer.quadrant for layer in found.layers} == {"read, not shown to be used"}
    text = found.summary()
    assert "! No effects of interchange: they would be shares of the gap between texts and their counterparts" in text
    assert "nan" not in text
    assert found.plot()


@pytest.fixture(scope="module")
def turning():
    """A linear model where LDA does nothing at one place and most at the next; the mean difference does 1 at both.

    The answer is the coordinate e1. Along d an interchange does (d.e1)(d.m) / (m.e1), m the difference of the means.
    Before the block m = e1 + e2 with noise along e1 alone, so that LDA is near e2: 0. The block turns m to
    e1 + sqrt(3) e2 and moves the noise of e3 to e2, so that LDA is near e1 + e2: (1 + sqrt(3)) / 2.
    """
    model = linear_gpt2()
    e1, e2, e3 = contrast(4), contrast(6), contrast(8)
    label = 1.0 - 2 * (torch.arange(WORDS) % 2)
    noise = torch.randn(WORDS, D, generator=torch.Generator().manual_seed(5))
    words, rest = torch.zeros(WORDS, D), [2, 3, *range(10, D)]  # e1, e2 and e3 are in coordinates 4 to 9
    words[:, :2] = torch.tensor([1000.0, -1000.0])
    words[:, rest] = 0.3 * (noise[:, rest] - noise[:, rest].mean(dim=1, keepdim=True))
    along = [label + 0.3 * noise[:, 4], label + 0.01 * noise[:, 5], 0.3 * noise[:, 6]]
    words += sum(x[:, None] * e for x, e in zip(along, (e1, e2, e3), strict=True))
    with torch.no_grad():
        model.embed.weight[:WORDS] = words
        model.embed.weight[OWN], model.embed.weight[OTHER] = e1, -e1
        weights = dict(model.named_parameters())
        weights["blocks.0.ln1.weight"][2:] = 353.55
        weights["blocks.0.attn.qkv.weight"][2 * D :] = torch.eye(D)
        turn = e2[:, None] * ((3**0.5 - 1) * e2 + 3**0.25 * e3) + e3[:, None] * (contrast(10) - e3)
        weights["blocks.0.attn.out.weight"].copy_(turn)
    order = np.random.default_rng(5).permutation(WORDS)
    task = pk.Task(
        name="turning",
        inputs=[[int(i)] for i in order],
        labels={"used": order % 2},
        label_names={"used": ["up", "down"]},
        splits=np.repeat(["train", "validation", "test"], [120, 60, 60]),
    )
    return model, pk.extract(model, task, points=["resid_pre"])


@pytest.fixture(scope="module")
def turned(turning) -> CausalResults:
    model, acts = turning
    results = pk.train_probes(acts, quick=True, probe=LDAProbe(shrinkage=1e-3))
    how = {"answers": [str(OWN), str(OTHER)], "das": False, "completeness": False, "rows": 60}
    return causal_curve(model, acts, results, methods="interchange,steer", **how)


def test_each_place_has_its_own_direction(turned):
    lda, mean = (effects(turned, "interchange", name) for name in ("probe", "mean-difference"))
    assert [e.effect for e in lda] == pytest.approx([0, (1 + 3**0.5) / 2], abs=0.25)
    assert [e.effect for e in mean] == pytest.approx([1, 1], abs=0.1)
    before, after = (layer.directions["interchange"] for layer in turned.layers)
    assert before == "mean-difference"
    assert after in ("probe", "lda")  # with much or little shrinkage, whichever does more
    assert [layer.quadrant for layer in turned.layers] == ["read and used"] * 2
    assert [e.direction for e in curve_effects(turned.data, "interchange").values()] == [before, after]
    assert f"along {before}" in turned.summary()


def test_directions_are_chosen_on_validation_alone(turned):
    found = turned
    for layer in found.layers:
        here = [e for e in found.effects if e.place == layer.place]
        again = choose_edits([replace(e, effect=-e.effect) if e.split == "test" else e for e in here])
        assert {method: e.direction for method, e in again.items()} == layer.directions
        for method, name in layer.directions.items():
            of = [e for e in found.effects if (e.method, e.place, e.split) == (method, layer.place, "validation")]
            assert name == max((e for e in of if e.direction in CHOICES[method]), key=lambda e: e.effect).direction


def test_a_split_of_one_class_is_refused():
    with pytest.raises(DataError, match="the test rows need two classes or more, got 'down'"):
        _check_classes(np.array([0, 1, 1, 1]), np.repeat(["validation", "test"], 2), ["up", "down"])


def test_a_dry_run_counts_every_part_of_the_run(parts):
    model, acts = parts
    how = {"answers": [str(OWN), str(OTHER)], "rows": 2, "placebos": 1, "layers": [0]}
    plan = plan_causal(model, acts, trained(acts, "used"), CausalOptions(**how))
    assert plan["rows"] == {"train": 120, "validation": 2, "test": 2}
    assert set(plan["parts"]) == {"preparing", "edits", "search", "what edits leave"}
    assert plan["seconds"] == pytest.approx(sum(plan["parts"].values()))
    assert plan["seconds"] > 0
    assert all(name in describe_causal(plan) for name in plan["parts"])
    plan = plan_causal(model, acts, trained(acts, "used"), CausalOptions(**how, methods=["erase", "patch"]))
    assert set(plan["parts"]) == {"preparing", "edits", "what edits leave", "patching"}
    plan = plan_causal(model, acts, trained(acts, "used"), CausalOptions(**how, methods=["patch"]))
    assert set(plan["parts"]) == {"patching"}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("answers_label", ["used", "idle"])
def test_two_rows_have_both_classes(parts, seed, answers_label):
    model, acts = parts
    how = CausalOptions(answers=[str(OWN), str(OTHER)], answers_label=answers_label, rows=2, seed=seed)
    rows = causal_question(model, acts, trained(acts, "used"), how).rows
    for split in ("validation", "test"):
        assert sorted(rows.labels[rows.of(split)]) == sorted(rows.answers[rows.of(split)]) == [0, 1]


def test_an_order_changes_only_if_a_class_is_missing():
    classes_SN = np.array([[0, 0, 0, 1, 2, 1], [0, 0, 1, 0, 0, 0]])
    assert _classes_first(classes_SN, 5).tolist() == [0, 1, 2, 3, 4, 5]
    assert _classes_first(classes_SN, 4)[:4].tolist() == [0, 2, 3, 4]
    assert _classes_first(classes_SN[:1], 2).tolist()[:2] == [0, 3]


def test_a_partly_labelled_store_gives_the_effects_of_its_labelled_rows(parts):
    """The oracle: a task that never had the rows without a label."""
    model, acts = parts
    values = acts["resid_pre", 0]
    some = {one: int(used) for one, used in list(zip(acts.ids, acts.labels["used"], strict=True))[::-2]}
    idle = {"labels": {"idle": acts.labels["idle"]}, "label_names": {"idle": ["in", "out"]}}
    bare = replace(acts.task, **idle, target="idle")
    part = pk.label(ActivationSet({("resid_pre", 0): values}, bare, acts.meta), some, name="used", on_bad_row="skip")
    rows = np.flatnonzero(part.labels["used"] >= 0)
    assert 0 < len(rows) < len(acts.ids)
    alone = ActivationSet({("resid_pre", 0): values[rows]}, replace(part.task.subset(rows), info={}), acts.meta)
    found = []
    for each in (part, alone):
        results = pk.train_probes(each, label="used", quick=True, C=[0.1, 1.0])
        how = {"answers": [str(OWN), str(OTHER)], "das": False, "completeness": False, "rows": 20, "methods": "erase"}
        found.append(causal_curve(model, each, results, **how).effects)
    assert found[0] == found[1] != []
