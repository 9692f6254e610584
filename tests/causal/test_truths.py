"""Truths that a causal method has to find: where it is known what a model reads, and what it uses.

On `agreement-gpt2`, the subject's number decides the verb and the attractors' numbers do not. In the world `ballots`,
every text can be tried. Last, a model made by hand that computes an exclusive or.
"""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

import probekit as pk
from probekit.causal.behaviour.measure import Behaviour, by_label, logit_differences
from probekit.causal.behaviour.pairs import load_pairs
from probekit.causal.branches.run import Branches, Trunk, run_branches, run_trunk
from probekit.causal.directions.directions import (
    lda_direction,
    mean_difference_direction,
    moments_of_rows,
    unit_direction,
)
from probekit.causal.directions.placebos import angle, random_directions
from probekit.causal.erasure.erase import fit_leace
from probekit.causal.interchange.counterparts import choose_counterparts
from probekit.causal.interchange.interchange import Interchange, interchange_effect, run_interchange, unedited
from probekit.causal.results.view import is_used
from probekit.models.families.gpt2 import GPT2, GPT2Config
from probekit.options import TrainingSettings
from probekit.points import Place
from probekit.worlds import agreement, ballots
from probekit.worlds.definition import tokenizer_of, with_config
from probekit.worlds.train import train_world

OUTPUT = ("resid_post", 3)


@dataclass(frozen=True, eq=False)
class Known:
    """A model, train activations by place, and test rows with counterparts of the other class."""

    model: pk.models.base.LanguageModel
    task: pk.Task
    acts: pk.activations.Activations
    label: str
    behaviour: Behaviour
    trunk: Trunk

    @property
    def test(self):
        return np.flatnonzero(self.task.splits == "test")

    def moments(self, place):
        train = self.task.splits == "train"
        return moments_of_rows(self.acts[place][train], {n: y[train] for n, y in self.task.labels.items()})

    def swapped(self, place, vector=None, source=None):
        """Effect of a swap with the counterparts (or with `source`), as a share of the way; and how many flip."""
        lengths = [len(text) for text in self.trunk.texts]
        other = torch.from_numpy(choose_counterparts(self.task.labels[self.label][self.test], lengths))
        x_ND, last = self.acts[place][self.test], self.trunk.answer_N
        swap = Interchange(place, self.trunk, self.behaviour, x_ND, last, other)
        rows = torch.arange(len(lengths))
        base, of_other = unedited(self.model, swap, rows)
        edited = run_interchange(self.model, swap, rows, vector, source)
        share = float((base - edited).mean() / (base - of_other).mean())
        return share, float((edited < 0).float().mean())

    def erased(self, place, label):
        """Effect of erasing a label at the read token, and the share of answers that stay right."""
        last = self.trunk.answer_N
        at_VL = torch.arange(int(last.max()) + 1) == last[:, None]
        edits = {place: fit_leace(self.moments(place), label).edit}
        asked = self.behaviour.own_N, self.behaviour.other_N
        with torch.no_grad():
            branches = Branches(place[1], torch.arange(len(last)), at_VL, edits)
            before = logit_differences(self.model, self.trunk.hidden_ND, *asked)
            after = logit_differences(self.model, run_branches(self.model, self.trunk, branches), *asked)
        return 1 - float(after.mean() / before.mean()), float((after > 0).float().mean())

    def accuracy(self, place, label):
        """Test accuracy of LDA."""
        chosen = self.task.labels[label] < 2  # the first two classes
        train, test = (chosen & (self.task.splits == split) for split in ("train", "test"))
        y = self.task.labels[label]
        moments = moments_of_rows(self.acts[place][train], {label: y[train]})
        vector = lda_direction(moments, label).vector_D
        middle = float(moments.class_means(label).mean(0) @ vector)
        return float(np.mean((self.acts[place][test].double() @ vector > middle).numpy() == (y[test] == 1)))


def known(model, task, label, answers):
    acts = pk.extract(model, task, points=["resid_pre", "resid_post"], progress=False)
    test = np.flatnonzero(task.splits == "test")
    texts = [model.need_tokenizer().encode(str(task.inputs[i])) for i in test]
    ids = [model.need_tokenizer().encode(answer)[0] for answer in answers]
    trunk = run_trunk(model, texts)
    return Known(model, task, acts, label, by_label(task.labels[label][test], ids, trunk.answer_N), trunk)


@pytest.fixture(scope="module")
def verbs():
    model = pk.load_model("agreement-gpt2", device="cpu")
    return known(model, agreement.agreement((1500, 60, 100)), "number", ["is", "are"])


@pytest.mark.parametrize("place", [("resid_pre", 3), OUTPUT])
def test_swapping_the_subjects_number_flips_the_verb_and_random_directions_do_not(verbs, place):
    direction = mean_difference_direction(verbs.moments(place), "number").vector_D
    effect, flipped = verbs.swapped(place, direction.float())
    assert effect > 0.8
    assert flipped > 0.9
    assert effect > 0.9 * verbs.swapped(place)[0]  # of the whole vector: one direction does nearly all of it
    for vector in random_directions(3, len(direction)).float():
        effect, flipped = verbs.swapped(place, vector)
        assert abs(effect) < 0.1
        assert flipped == 0


def test_where_the_number_cannot_be_read_nothing_can_be_swapped(verbs):
    first = ("resid_pre", 0)
    assert verbs.accuracy(first, "number") < 0.65
    effect, flipped = verbs.swapped(first, mean_difference_direction(verbs.moments(first), "number").vector_D.float())
    assert abs(effect) < 0.1
    assert flipped < 0.1


def test_erasing_number_drops_agreement_to_chance_and_erasing_the_attractors_number_leaves_it(verbs):
    assert verbs.accuracy(OUTPUT, "number") > 0.95
    assert verbs.accuracy(OUTPUT, "attractor") > 0.9
    lost, right = verbs.erased(OUTPUT, "number")
    assert lost > 0.85
    assert 0.3 < right < 0.7
    lost, right = verbs.erased(OUTPUT, "attractor")
    assert abs(lost) < 0.1
    assert right == 1


def test_a_probe_reads_along_one_direction_and_the_model_writes_along_another(verbs):
    """Haufe et al. 2014: the weights of a reader also cancel noise; the covariance turns them into what is written."""
    moments = verbs.moments(OUTPUT)
    reader = lda_direction(moments, "number", shrinkage=1e-3)
    writer = mean_difference_direction(moments, "number")
    assert verbs.accuracy(OUTPUT, "number") > 0.95
    assert verbs.swapped(OUTPUT, reader.vector_D.float())[1] == 0
    assert verbs.swapped(OUTPUT, writer.vector_D.float())[1] > 0.9
    assert angle(reader.vector_D, writer.vector_D) > 45
    pattern = unit_direction("pattern", moments.covariance @ reader.vector_D, moments)
    assert angle(pattern.vector_D, writer.vector_D) < 10
    assert verbs.swapped(OUTPUT, pattern.vector_D.float())[1] > 0.9


def test_the_number_moves_from_the_subject_to_the_token_before_the_verb(verbs):
    """Pairs that differ in the subject alone: patched there at the start it is everything, at the end nothing."""
    nouns = {form: pair for pair in agreement.NOUNS for form in pair}
    clean, subjects = [], []
    for i in verbs.test[:60]:
        words = str(verbs.task.inputs[i]).split()
        subjects.append(next(k for k, word in enumerate(words) if word in nouns))
        words[subjects[-1]] = next(form for form in nouns[words[subjects[-1]]] if form != words[subjects[-1]])
        clean.append(verbs.model.need_tokenizer().encode(" ".join(words)))
    texts, n = verbs.trunk.texts[:60], 60
    rows, last = torch.arange(n), torch.tensor([len(text) - 1 for text in texts])
    both = pk.extract(verbs.model, texts + clean, points=["resid_pre"], position="all", progress=False)
    starts = np.cumsum([0, *map(len, texts + clean)])
    asked = Behaviour(verbs.behaviour.own_N[:60].repeat(2), verbs.behaviour.other_N[:60].repeat(2), last.repeat(2))
    trunk = run_trunk(verbs.model, texts + clean)

    def effect(layer, token):
        x_ND = both["resid_pre", layer][torch.from_numpy(starts[:-1]) + token.repeat(2)]
        swap = Interchange(Place("resid_pre", layer), trunk, asked, x_ND, token.repeat(2), torch.arange(2 * n).roll(n))
        return interchange_effect(verbs.model, swap, rows, None)

    subject = torch.tensor(subjects)
    assert effect(0, subject) == pytest.approx(1, abs=1e-4)
    assert abs(effect(3, subject)) < 0.2
    assert abs(effect(0, last)) < 1e-5
    assert effect(3, last) > 0.8


@pytest.fixture(scope="module")
def votes():
    """A smaller model of the world; it learns in a second."""
    small = with_config(ballots.WORLD, n_layers=1, d_model=16, d_mlp=64)
    settings = TrainingSettings(steps=120, batch_size=32, learning_rate=1e-2, warm_up_steps=20)
    model = train_world(replace(small, settings=settings)).model
    assert sum(p.numel() for p in model.parameters()) < 5000
    model.tokenizer = tokenizer_of(small)
    return known(model, ballots.ballots((400, 60, 200)), "winner", ["a", "b"])


def test_the_papers_colour_changes_no_answer_in_any_text_of_the_world(votes):
    every = ballots.all_ballots()
    texts = [votes.model.tokenizer.encode(" ".join(one.words)) for one in every]
    ids = torch.tensor([votes.model.tokenizer.encode(vote)[0] for vote in ballots.VOTES])
    own = ids[torch.tensor([one.winner for one in every])]
    other = ids[torch.tensor([1 - one.winner for one in every])]
    right = logit_differences(votes.model, run_trunk(votes.model, texts).hidden_ND, own, other) > 0
    assert bool(right.all())


def test_the_colour_can_be_read_and_is_not_used_and_the_winner_is_both(votes):
    start, end = ("resid_pre", 0), ("resid_post", 0)
    twin = torch.arange(len(votes.test)) ^ 1  # the same votes in the other colour
    for place in (start, end):
        assert votes.accuracy(place, "colour") == 1
        direction = mean_difference_direction(votes.moments(place), "colour").vector_D
        effect, flipped = votes.swapped(place, direction.float(), twin)
        assert abs(effect) < 0.05
        assert flipped == 0
        lost, right = votes.erased(place, "colour")
        assert abs(lost) < 0.1
        assert right == 1
    assert votes.accuracy(start, "winner") < 0.7
    assert votes.swapped(start)[1] == 0
    assert votes.accuracy(end, "winner") > 0.95
    direction = mean_difference_direction(votes.moments(end), "winner").vector_D
    effect, flipped = votes.swapped(end, direction.float())
    assert effect > 0.9
    assert flipped > 0.95


@pytest.mark.parametrize(
    ("world", "label", "decides", "used"),
    [
        ("votes", "colour", "winner", {"resid_pre.0": False, "resid_post.0": False}),
        ("votes", "winner", "winner", {"resid_pre.0": False, "resid_post.0": True}),
        ("verbs", "number", "number", {"resid_pre.0": False, "resid_pre.3": True}),
        ("verbs", "attractor", "number", {"resid_pre.0": False, "resid_pre.3": False}),
    ],
)
def test_the_verdict_is_the_truth(request, world, label, decides, used):
    """The colour's direction does 0.14 where it can be read first, and exchanging all of real texts' activations 0."""
    here, answers = request.getfixturevalue(world), {"votes": "a,b", "verbs": "is,are"}[world]
    probes = pk.train_probes(here.acts, label=label, point="resid_pre", quick=True, C=[0.1, 1.0])
    how = {"methods": "interchange", "rows": 60, "das": False, "completeness": False}
    found = pk.causal_curve(here.model, here.acts, probes, answers=answers, answers_label=decides, **how)
    assert used.items() <= {layer.place: is_used(layer) for layer in found.layers}.items()
    assert all(layer.is_used["interchange"] == is_used(layer) for layer in found.layers)


def exclusive_or():
    """A GPT-2 without attention: each word is (u, v), both -1 or 1, and the MLP writes u * v, which is the answer."""
    config = GPT2Config(
        d_model=8, n_heads=1, d_mlp=4, n_layers=1, n_ctx=4, d_vocab=6, tie_embeddings=False, head_bias=False
    )
    model = GPT2(config).init_weights(0).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.fill_(1.0 if "ln" in name and name.endswith("weight") else 0.0)
        for word, (u, v) in enumerate([(-1, -1), (-1, 1), (1, -1), (1, 1)]):
            model.embed.weight[word] = torch.tensor([u, -u, v, -v, 0, 0, 0, 0.0])  # of mean 0, so the norm only scales
        weights = dict(model.named_parameters())
        signs = torch.tensor([[1.0, 1], [-1, -1], [1, -1], [-1, 1]])
        weights["blocks.0.mlp.up.weight"][:, [0, 2]] = 4 * signs
        weights["blocks.0.mlp.down.weight"][4] = torch.tensor([2.0, 2, -2, -2])
        weights["blocks.0.mlp.down.weight"][5] = torch.tensor([-2.0, -2, 2, 2])
        weights["unembed.weight"][4, 4] = weights["unembed.weight"][5, 5] = 1.0
    return model


def test_what_no_linear_probe_reads_can_be_used():
    model = exclusive_or()
    words = torch.arange(4).repeat(10)
    label = (words == 0) | (words == 3)
    own, other = torch.where(label, 4, 5), torch.where(label, 5, 4)
    texts = [[int(word)] for word in words]
    trunk, place = run_trunk(model, texts), Place("resid_pre", 0)
    x_ND = model.embed.weight[words].detach()
    counterpart = torch.from_numpy(choose_counterparts(label.long().numpy(), [1] * 40))
    swap = Interchange(place, trunk, Behaviour(own, other, torch.zeros(40).long()), x_ND, counterpart * 0, counterpart)
    rows = torch.arange(40)
    assert bool((logit_differences(model, trunk.hidden_ND, own, other) > 1).all())
    means = moments_of_rows(x_ND, {"xor": label.long().numpy()}).class_means("xor")
    assert float((means[0] - means[1]).abs().max()) < 1e-12  # so that no linear probe is better than chance
    assert interchange_effect(model, swap, rows, None) == pytest.approx(1, abs=1e-5)
    plane = torch.linalg.qr(model.embed.weight[:2].detach().T)[0]
    assert interchange_effect(model, swap, rows, plane) == pytest.approx(1, abs=1e-4)


@pytest.mark.shared
def test_on_real_text_a_determiners_number_is_read_before_it_is_used(shared_dir):
    """BLiMP's "this sketch" or "these sketch": "." or "s"? The last block fetches the number from the determiner."""
    model = pk.load_model(shared_dir / "models/stories260k-llama", device="cpu")
    pairs = load_pairs(shared_dir / "data/blimp/determiner_noun_agreement_1.jsonl", model)
    ids = [model.need_tokenizer().encode(word)[-1] for word in ("cat.", "cats")]
    asked = torch.stack([pairs.own_N, pairs.other_N], 1)
    regular = [i for i, pair in enumerate(asked.tolist()) if set(pair) == set(ids)]
    texts, plural = [pairs.clean[i] for i in regular], (pairs.own_N[regular] == ids[1]).long().numpy()
    trunk = run_trunk(model, texts)
    behaviour = by_label(plural, ids, trunk.answer_N)
    prefers = logit_differences(model, trunk.hidden_ND, behaviour.own_N, behaviour.other_N).detach().double()
    assert float(prefers.mean()) > 4 * float(prefers.std()) / len(prefers) ** 0.5
    acts = pk.extract(model, texts, points=["resid_pre", "resid_post"], progress=False)
    n = len(texts) // 2
    counterpart = np.arange(len(texts))
    counterpart[n:] = n + choose_counterparts(plural[n:], [len(text) for text in texts[n:]], texts=texts[n:])

    def effects(place):
        moments = moments_of_rows(acts[place][:n], {"number": plural[:n]})
        writer, reader = mean_difference_direction(moments, "number"), lda_direction(moments, "number")
        middle = float(moments.class_means("number").mean(0) @ reader.vector_D)
        read = np.mean((acts[place][n:].double() @ reader.vector_D > middle).numpy() == (plural[n:] == 1))
        swap = Interchange(place, trunk, behaviour, acts[place], trunk.answer_N, torch.from_numpy(counterpart))
        vectors = [writer.vector_D, *random_directions(5, len(writer.vector_D))]
        return read, [interchange_effect(model, swap, torch.arange(n, len(texts)), v.float()) for v in vectors]

    read, (effect, *placebos) = effects(("resid_pre", 4))
    assert read > 0.75
    assert abs(effect) < 0.25
    read, (effect, *placebos) = effects(("resid_post", 4))
    assert read > 0.8
    assert effect > 0.6
    assert max(map(abs, placebos)) < 0.3
