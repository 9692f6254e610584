"""Extraction under edits: packed blocks equal each text alone, and a store knows what was done to its model."""

from typing import Any

import numpy as np
import pytest
import torch
from models.adapter.wrapped import wrapped
from store_cases import assert_equal, flip, lasting, plan_of, run, shard_of
from tiny_configs import LIKE_ANOTHER, new_model, tiny_configs, tiny_model

from probekit.activations import Store, describe_plan, extract_statistics, list_stores, random_init_of, repair
from probekit.activations.plan import identity
from probekit.activations.plan.summary import plan_as_dict
from probekit.errors import DataError, ResumeMismatch, UsageError
from probekit.evaluation.results.cautions import cautions
from probekit.interventions import Add, add, affine, edits_in_words, project_out, record_of_edits, replace, swap
from probekit.options import ExtractOptions
from probekit.tasks.base import Task
from probekit.tasks.tables.objects import task_of
from probekit.verbs.extract import extract
from probekit.verbs.train_probes import train_probes

D = 32
_drawn = np.random.default_rng(0)
TEXTS = [_drawn.integers(3, 50, n).tolist() for n in (5, 3, 7, 2, 6)]
TEXTS += [TEXTS[0][:3], [*TEXTS[0], 4, 5], TEXTS[2]]  # prefixes of others, and one text twice
ROWS = torch.from_numpy(_drawn.normal(size=(len(TEXTS), D)))
DIRECTIONS = torch.from_numpy(_drawn.normal(size=(D, 2)))


def alone(model, edits, positions, i):
    """The last token of text i at the input of layer 1 and at the end, from a forward of this text alone."""
    kept = {}
    places = [("resid_pre", 1), (model.output_of("resid_pre"), model.n_layers - 1)]
    forward = model.encode if hasattr(model, "encode") else lambda ids: model(ids, return_logits=False)
    hooks = [(place, lambda x, _, place=place: kept.update({place: x[0, -1]})) for place in places]
    with model.edited(edits, positions), model.hooks(hooks):
        forward(torch.tensor([TEXTS[i]]))
    return kept


@pytest.mark.parametrize(
    ("name", "at"),
    [
        *(
            (name, "read") for name in sorted(tiny_configs().keys() - LIKE_ANOTHER)
        ),  # the read token alone in the last block
        *((name, "all") for name in ("bert", "gpt2", "marian", "mistral-window", "mixtral")),
    ],
)
def test_an_edit_in_a_packed_block_equals_the_edit_on_the_text_alone(name, at):
    model = tiny_model(name)
    last = model.n_layers - 1
    mixed = "attn_out" if last in model.layers_of("attn_out") else "mixer_out"

    def edits(rows):
        return {
            ("resid_pre", 0): [add(rows, 2.0), project_out(DIRECTIONS, scale=0.5)],
            (mixed, last): add(rows),
        }

    acts = extract(model, TEXTS, edits=edits(ROWS), edit_positions=at)
    for i in (3, 5, 7):
        for place, x in alone(model, edits(ROWS[i]), {"read": "last"}.get(at, at), i).items():
            torch.testing.assert_close(acts[place][i], x, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", ["gpt2", "bert", "marian"])
def test_scale_0_is_the_plain_extraction_bit_for_bit(name):
    model = tiny_model(name)
    nothing = {
        ("resid_pre", 1): [add(ROWS, 0.0), project_out(DIRECTIONS, scale=0)],
        ("mlp_pre", 0): add(torch.ones(80), 0),
    }
    plain = extract(model, TEXTS)
    for at in ("all", "read"):
        assert_equal(extract(model, TEXTS, edits=nothing, edit_positions=at), plain)


def test_texts_share_prefixes_unless_an_edit_depends_on_the_text():
    model = tiny_model("gpt2")
    same = affine(torch.eye(D).flip(0), torch.ones(D))
    plain = plan_of(model, Task(name="t", inputs=TEXTS))
    assert (
        plan_of(model, Task(name="t", inputs=TEXTS), edits={("resid_pre", 1): same}).packing.nodes
        == plain.packing.nodes
    )
    for how in (
        {"edits": {("resid_pre", 1): same}, "edit_positions": "read"},
        {"edits": {("resid_pre", 1): add(ROWS)}},
    ):
        assert plan_of(model, Task(name="t", inputs=TEXTS), **how).packing.nodes == sum(map(len, TEXTS))


@pytest.mark.parametrize("position", ["first", 1, "mean", "all", ["first", "last"], [0, 2, 6, 1, 3, 2, 0, 4]])
def test_edits_at_the_read_tokens_follow_the_position(position):
    """The kept activations of an edited place are those after the edit, at every token that is read."""
    position = np.array(position) if isinstance(position, list) and isinstance(position[0], int) else position
    edits = {("resid_pre", 1): replace(torch.full((D,), 3.0))}
    acts = extract(tiny_model("gpt2"), TEXTS, edits=edits, edit_positions="read", position=position)
    assert (acts["resid_pre", 1] == 3).all()
    plain = extract(tiny_model("gpt2"), TEXTS, position=position)
    torch.testing.assert_close(acts["resid_pre", 0], plain["resid_pre", 0], rtol=1e-5, atol=1e-5)
    assert not torch.allclose(acts["resid_pre", 2], plain["resid_pre", 2])


class LettersOfWords:
    """One token per letter, with its characters."""

    fingerprint, bos_token_id, sep_token_id = "letters", None, None

    def encode_batch(self, texts, bos=False):
        return [[ord(c) - ord("a") + 1 for c in text] for text in texts]

    def offsets_batch(self, texts):
        return [[(i, i + 1) for i in range(len(text))] for text in texts]


@pytest.mark.parametrize("position", ["last", "mean"])
@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_each_word_of_a_text_is_edited_by_itself(name, position):
    """Examples that are words of one text share it, and edits at one word do not reach the others."""
    model, texts = new_model(name), ["abcde"] * 3 + ["fgh", "abcdex"]
    model.tokenizer = LettersOfWords()
    spans = np.array([[0, 1], [1, 3], [4, 5], [1, 3], [2, 6]])
    edits = {("resid_pre", 1): replace(ROWS[:5])}
    how = {"edit_positions": "read", "position": position, "bos": False}
    acts = extract(model, Task("t", texts, spans=spans), edits=edits, **how)
    torch.testing.assert_close(acts["resid_pre", 1], ROWS[:5].float())
    for i, (text, (start, end)) in enumerate(zip(texts, spans, strict=True)):
        tokens = torch.tensor(model.tokenizer.encode_batch([text]))
        word = slice(end - 1, end) if position == "last" else slice(start, end)
        mask = torch.zeros(len(text), dtype=torch.bool)
        mask[word] = True
        with model.edited({("resid_pre", 1): replace(ROWS[i])}, mask):
            alone = model(tokens, stop_at_layer=2)[0, word].mean(0)
        torch.testing.assert_close(acts["resid_pre", 2][i], alone, rtol=1e-5, atol=1e-5)


AT = {  # positions in each text of TEXTS, and of one alone
    "index": (1, 1),
    "from the end": (-2, -2),
    "last": ("last", "last"),
    "slice": (slice(1, None, 2), slice(1, None, 2)),
    "one for each": ([4, 0, 6, 1, 3, 2, 0, 4], None),
}


@torch.no_grad()
@pytest.mark.parametrize("at", AT)
@pytest.mark.parametrize("name", ["gpt2", "bert", "adapted mamba"])
def test_edits_at_positions_of_their_own_equal_those_of_each_text_alone(name, at, tmp_path):
    """In blocks, in a store, and within `edited`: several tokens, each with its own direction, a row for each text."""
    model = wrapped("mamba") if name == "adapted mamba" else tiny_model(name)
    positions, of_one = AT[at]
    size = model.cfg.d_model
    rows = ROWS[:, :1].expand(-1, size) * torch.linspace(-2, 2, size, dtype=torch.float64)
    first: Any = [add(rows, 2.0, positions=positions), add(torch.ones(size), 3.0, positions=0)]
    how: Any = {"layers": [0, 1], "position": "mean", "bos": False}
    blocks = extract(model, TEXTS, edits={("resid_pre", 1): first}, **how)
    store = extract(model, TEXTS, edits={("resid_pre", 1): first}, out=tmp_path / "store", **how)
    with model.edited({("resid_pre", 1): add(rows, 2.0)}, positions), model.edited({("resid_pre", 1): first[1]}):
        inside = extract(model, TEXTS, **how)
    plain = extract(model, TEXTS, **how)
    for i, ids in enumerate(TEXTS):
        own = positions[i] if of_one is None else of_one
        kept: dict[str, Any] = {}
        hook = (("resid_pre", 1), lambda x, _, kept=kept: kept.update(x=x[0].mean(0)))
        with model.edited({("resid_pre", 1): [add(rows[i], 2.0, positions=own), first[1]]}), model.hooks([hook]):
            model(torch.tensor([ids]), return_logits=False)
        for acts in (blocks, store, inside):
            torch.testing.assert_close(acts["resid_pre", 1][i], kept["x"], rtol=2e-5, atol=2e-5)
        assert float((kept["x"] - plain["resid_pre", 1][i]).abs().max()) > 0.1


def test_an_encoder_decoder_is_extracted_within_edits_at_positions_of_either_stack():
    model = tiny_model("marian")
    targets = [[0, *text[::-1]] for text in TEXTS]
    task = Task(name="t", inputs=TEXTS, targets=targets)
    how: Any = {"points": "decoder.resid_pre"}
    edits = {("encoder.resid_pre", 1): add(ROWS, 3.0, positions=1), ("decoder.resid_pre", 0): add(ROWS, positions=-2)}
    wanted = extract(model, task, edits=edits, **how)
    with model.edited(edits):
        inside = extract(model, task, **how)
    plain = extract(model, task, **how)
    for place in wanted:
        torch.testing.assert_close(inside[place], wanted[place], rtol=2e-5, atol=2e-5)
        changed = (wanted[place] - plain[place]).abs().amax(1) > 1e-3
        assert bool(changed.all()) == (place[1] != 0)  # the input of layer 0 is read at the last token


def test_the_record_of_an_edit_has_its_positions(model):
    record = record_of_edits(
        model,
        {("resid_pre", 1): [add(torch.ones(16), positions=slice(2, 5)), add(torch.ones(16), positions=[1, 2])]},
    )
    first, second = record["resid_pre.1"]
    assert first["positions"] == "2:5"
    assert second["positions"]["shape"] == [2]
    assert edits_in_words(record, "all") == "add (positions 2:5) then add (positions of each text) at resid_pre.1"


@pytest.mark.parametrize(
    ("positions", "message"),
    [
        (4, "text 1 has 3 tokens; got position 4"),
        ([0, 1], "one position for each of 8 texts; got 2"),
        ("generated", "is for generated tokens, and extract writes none"),
        ("lats", "did you mean last"),
    ],
)
def test_positions_that_no_text_has_are_refused_before_anything_runs(positions, message, tmp_path):
    with pytest.raises(UsageError, match=message):
        run(tiny_model("gpt2"), TEXTS, tmp_path / "store", edits={("resid_pre", 1): Add(ROWS[0], positions=positions)})
    assert not (tmp_path / "store").exists()


def test_a_decoder_is_extracted_under_edits_of_either_stack():
    model = tiny_model("marian")
    targets = [[0, *text[::-1]] for text in TEXTS]
    task = Task(name="t", inputs=TEXTS, targets=targets)
    edits = {("encoder.resid_pre", 1): swap(DIRECTIONS, ROWS), ("decoder.resid_pre", 0): add(ROWS, 3.0)}
    acts = extract(model, task, points="decoder.resid_pre", edits=edits)
    start = model.cfg.decoder_start_token_id
    for i in range(len(TEXTS)):
        one = {
            ("encoder.resid_pre", 1): swap(DIRECTIONS, ROWS[i]),
            ("decoder.resid_pre", 0): add(ROWS[i], 3.0),
        }
        target = targets[i] if targets[i][0] == start else [start, *targets[i]]
        kept = {}
        with (
            model.edited(one),
            model.hooks((("decoder.resid_pre", 1), lambda x, _, kept=kept: kept.update(x=x[0, -1]))),
        ):
            model(torch.tensor([TEXTS[i]]), torch.tensor([target]))
        torch.testing.assert_close(acts["decoder.resid_pre", 1][i], kept["x"], rtol=2e-5, atol=2e-5)
    with pytest.raises(
        UsageError, match=r"tokens that are read are the decoder's, and encoder.resid_pre.1 is the encoder's"
    ):
        extract(model, task, points="decoder.resid_pre", edits=edits, edit_positions="read")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"edits": {("resid_pre", 2): add(torch.ones(16))}, "layers": [0, 1]}, "resid_pre.2 comes after everything"),
        ({"edits": {"ln_final": add(torch.ones(16))}}, "ln_final comes after everything"),
        ({"edits": {("resid_pre", 0): add(torch.ones(8))}}, r"width 16; got an edit whose direction is \[8\]"),
        ({"edits": {("resid_pre", 0): add(torch.ones(5, 16))}}, "tensors for 5 examples, and the task has 23"),
        ({"edits": {("attn_scores", 0): add(torch.ones(2))}}, "one row for each token"),
        ({"edits": [add(torch.ones(16))]}, "edits are a dictionary"),
        ({"edits": {("resid_pre", 0): "add"}}, "expected an edit at"),
        ({"edit_positions": "last"}, "is one of all, read; got 'last'"),
    ],
)
def test_edits_that_cannot_be_extracted_are_refused_before_anything_runs(model, task, path, options, message):
    with pytest.raises(UsageError, match=message):
        extract(model, task, out=path, **options)
    assert not path.exists()


def test_within_edited_an_extraction_into_memory_runs_under_the_edits(model, task, path):
    edits = {("resid_pre", 1): project_out(torch.arange(16.0))}
    with model.edited(edits):
        inside = extract(model, task)
        with pytest.raises(UsageError, match=r"a store cannot record hooks.*extract\(edits=\.\.\.\)"):
            extract(model, task, out=path)
    wanted = extract(model, task, edits=edits)
    for place in wanted:
        torch.testing.assert_close(inside[place], wanted[place])
    assert not [point for point in model.points.values() if point.hooked]


def test_hooks_are_gone_after_an_extraction_that_failed(model, task):
    with pytest.raises(DataError, match="check the edits, or compute in float32"):
        extract(model, task, edits={("resid_pre", 1): affine(torch.eye(16) * 1e38, torch.zeros(16), scale=1e30)})
    assert not [point for point in model.points.values() if point.hooked]


def test_no_edits_are_a_plain_extraction(model, task, path):
    for nothing in ({}, {("resid_pre", 1): []}):
        assert "edits" not in run(model, task, path, edits=nothing).meta
    run(model, task, path)  # the same store


# stores


EDITS_OF_ALL = {("resid_pre", 1): project_out(torch.arange(16.0))}
EDITS = {("resid_pre", 1): [project_out(torch.arange(16.0)), add(torch.ones(23, 16), 2.0)]}


@pytest.mark.usefixtures("small_shards")
def test_a_store_records_its_edits_and_resumes_with_the_same_alone(model, task, path):
    store = run(model, task, path, edits=EDITS)
    assert_equal(store, run(model, task, edits=EDITS))
    record = Store(path).meta["edits"]["resid_pre.1"]
    assert [(one["kind"], one["scale"]) for one in record] == [("project_out", 1.0), ("add", 2.0)]
    assert record[1]["direction"]["shape"] == [23, 16]
    assert len(record[1]["direction"]["sha256"]) == 64
    assert Store(path).meta["edit_positions"] == "all"
    run(model, task, path, edits=EDITS)  # complete: nothing to do
    scaled = {("resid_pre", 1): [EDITS["resid_pre", 1][0], add(torch.ones(23, 16), 2.5)]}
    changed = {("resid_pre", 1): [project_out(torch.ones(16)), EDITS["resid_pre", 1][1]]}
    for other, message in (
        (None, r"edits.resid_pre.1: project_out .* then add scale 2 .* there, nothing here"),
        (scaled, r"add scale 2 direction (\w+) there, .* add scale 2.5 direction \1 here"),
        (changed, "basis .* there, project_out scale 1 basis .* here"),
    ):
        with pytest.raises(ResumeMismatch, match=message) as caught:
            run(model, task, path, edits=other)
        assert caught.value.exit_code == 5
    with pytest.raises(ResumeMismatch, match="edit_positions: 'all' there, 'read' here"):
        run(model, task, path, edits=EDITS, edit_positions="read")
    plain = run(model, task, path.with_name("plain"))
    assert "edits" not in plain.meta
    with pytest.raises(ResumeMismatch, match=r"edits.resid_pre.1: nothing there"):
        run(model, task, plain.path, edits=EDITS)


@pytest.mark.usefixtures("small_shards")
def test_what_can_be_done_with_an_edited_store_is_said_in_one_line(model, task, path):
    run(model, task, path, edits=EDITS)
    (info,) = list_stores(path)
    assert info.edits == "project_out then add at resid_pre.1, all tokens"
    assert str(info).endswith("; edited: project_out then add at resid_pre.1, all tokens; labels odd, third")
    assert info.as_dict()["edits"] == info.edits
    before = lasting(path)
    flip(shard_of(path, 0))
    with pytest.raises(
        UsageError, match=r"extracted under edits \(.*\), and does not hold.*repair\(path, edits=\.\.\.\)"
    ):
        repair(path, model)
    with pytest.raises(ResumeMismatch, match="give the edits of the extraction"):
        repair(path, model, edits={("resid_pre", 0): EDITS["resid_pre", 1]})
    assert repair(path, model, edits=EDITS).shards == [0]
    assert lasting(path) == before
    with pytest.raises(UsageError, match="made for the trained model; take the baseline of a store without edits"):
        random_init_of(path)


def test_results_say_that_the_model_was_edited(model, letters):
    task = letters(60)
    acts = extract(model, task, edits=EDITS_OF_ALL)
    plain = {"C": 1.0, "controls": 0, "baselines": False, "intervals": False, "codelength": False}
    results = train_probes(acts, layers=[1], **plain)
    assert cautions(results) == ["edited model: project_out at resid_pre.1, all tokens"]
    assert results.meta["activations"]["edits"] == acts.meta["edits"]
    assert cautions(train_probes(extract(model, task), layers=[1], **plain)) == []


def test_a_plan_says_what_it_edits(model, task):
    planned = plan_of(model, task, edits=EDITS, edit_positions="read")
    assert "edits    project_out then add at resid_pre.1, the read tokens" in describe_plan(planned).split("\n")
    assert plan_as_dict(planned)["edits"] == "project_out then add at resid_pre.1, the read tokens"
    assert "edits" not in plan_as_dict(plan_of(model, task))


def test_sums_are_those_of_the_edited_activations(model, task, path):
    edits = {("resid_pre", 1): replace(torch.arange(16.0))}
    store: Any = extract(model, task, out=path, edits=edits, stats=True)
    sums = store.statistics
    alone = extract_statistics(model, task, ExtractOptions(edits=edits))
    assert alone.meta["edits"] == sums.meta["edits"]
    for key, of_store in sums.items():
        assert torch.equal(torch.as_tensor(alone[key].mean), torch.as_tensor(of_store.mean))
    torch.testing.assert_close(torch.as_tensor(sums["resid_pre.1", "train"].mean), torch.arange(16.0).double())


def test_an_identity_that_is_broken_off_is_made_anew(monkeypatch):
    plan = plan_of(tiny_model("gpt2"), task_of(TEXTS), edits={"resid_pre.0": add(np.ones(D))})

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(identity, "record_of_edits", interrupted)
    with pytest.raises(KeyboardInterrupt):
        identity.identity_of(plan)
    monkeypatch.undo()
    assert "edits" in identity.identity_of(plan)


def test_an_edit_is_checked_where_it_is_used_since_its_tensors_are_the_callers():
    scale = torch.ones(1)
    edit = add(torch.ones(D), scale=scale)
    scale[0] = torch.nan
    with pytest.raises(UsageError, match="a finite number"):
        extract(tiny_model("gpt2"), TEXTS, edits={"resid_pre.0": edit})
