"""The training loop against a plain one of torch's parts, and its checkpoints against a run that nothing stopped."""

import errno
import hashlib
import math
import os
import signal
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from marian_oracle import SHAPES as MARIAN
from marian_oracle import from_hf as marian_from_hf
from marian_oracle import oracle_for
from torch import Tensor, nn
from training_runs import CFG, SETTINGS, draw, new_model
from transformers import BertConfig, BertForPreTraining

from probekit.errors import DataError, ResumeMismatch, StorageError, UsageError
from probekit.files import durable
from probekit.models import training
from probekit.models.families import family_of
from probekit.models.families.bert import Bert
from probekit.models.families.bert import BertConfig as OurBertConfig
from probekit.models.families.gpt2 import GPT2, GPT2Config
from probekit.models.training import (
    CHECKPOINT,
    IGNORE,
    Example,
    begin_training,
    collate,
    load_checkpoint,
    loss_of,
    save_checkpoint,
    train,
)
from probekit.options import TrainingSettings


@pytest.fixture(scope="module")
def whole() -> tuple[GPT2, list[float]]:
    """A run that nothing stopped."""
    model = new_model()
    return model, train(model, draw, SETTINGS).losses


def weights_of(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_every_step_is_that_of_a_plain_loop(whole):
    """Adam's moments, the decoupled decay, the clipping and the schedule written out, as their papers have them."""
    model, losses = new_model(), []
    weights = list(model.parameters())
    first = [torch.zeros_like(w) for w in weights]
    second = [torch.zeros_like(w) for w in weights]
    for step in range(24):
        examples = draw(step)
        surprisals = [
            -model(torch.tensor([e.tokens]))[0].log_softmax(-1)[torch.arange(len(e.targets)), e.targets]
            for e in examples
        ]
        loss = torch.cat(surprisals).mean()
        gradients = torch.autograd.grad(loss, weights)
        norm = torch.cat([g.flatten() for g in gradients]).norm()
        rate = 3e-3 * ((step + 1) / 5 if step < 5 else (1 + math.cos(math.pi * (step - 5) / 19)) / 2)
        with torch.no_grad():
            for w, g, m, v in zip(weights, gradients, first, second, strict=True):
                g = g * min(1.0, 1.0 / norm.item())
                m.mul_(0.9).add_(0.1 * g)
                v.mul_(0.95).add_(0.05 * g**2)
                w.mul_(1 - rate * 0.01)
                w -= rate * (m / (1 - 0.9 ** (step + 1))) / ((v / (1 - 0.95 ** (step + 1))).sqrt() + 1e-8)
        losses.append(loss.item())
    assert losses == pytest.approx(whole[1], abs=1e-5)
    assert torch.allclose(weights_of(model), weights_of(whole[0]), atol=1e-5)
    assert losses[-1] < losses[0]


class _Stop(Exception):
    pass


def stop_after(step: int):
    def progress(done: int, total: int) -> None:
        assert total == 24
        if done == step:
            raise _Stop

    return progress


@pytest.mark.parametrize("dies_after", [[3], [6], [11, 17, 18]])
def test_a_run_that_died_goes_on_bit_for_bit(whole, tmp_path, dies_after):
    for step in dies_after:
        with pytest.raises(_Stop):
            train(new_model(), draw, SETTINGS, tmp_path, stop_after(step), checkpoint_every=5)
    model = new_model()
    result = train(model, draw, SETTINGS, tmp_path, checkpoint_every=5)
    assert result.resumed_from == dies_after[-1] // 5 * 5
    assert result.losses == whole[1]
    assert model.fingerprint() == whole[0].fingerprint()


def test_a_finished_run_is_taken_up_as_it_is(whole, tmp_path):
    train(new_model(), draw, SETTINGS, tmp_path)
    model = new_model()
    result = train(model, draw, SETTINGS, tmp_path)
    assert (result.resumed_from, result.losses) == (24, whole[1])
    assert model.fingerprint() == whole[0].fingerprint()
    assert [path.name for path in tmp_path.iterdir()] == [CHECKPOINT]
    assert len(list((tmp_path / CHECKPOINT).iterdir())) == 3, "the plan, and the newest checkpoint of two files"
    assert result.mean_loss(4) == pytest.approx(sum(whole[1][-4:]) / 4)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_waits_for_the_step_and_leaves_a_checkpoint(whole, tmp_path, number):
    """Under a handler as the command line's, which makes SIGTERM an interrupt too, and learns which signal came."""
    learnt = []

    def handler(number: int, frame: object) -> None:
        learnt.append(number)
        raise KeyboardInterrupt

    def interrupt(done: int, total: int) -> None:
        if done == 7:
            os.kill(os.getpid(), number)

    before = signal.signal(number, handler)
    try:
        with pytest.raises(KeyboardInterrupt, match="after step 7 of 24; to resume, give the same command again"):
            train(new_model(), draw, SETTINGS, tmp_path, interrupt)
        assert signal.getsignal(number) is handler
        assert learnt == [number]
    finally:
        signal.signal(number, before)
    model = new_model()
    result = train(model, draw, SETTINGS, tmp_path)
    assert result.resumed_from == 7
    assert result.losses == whole[1]
    assert model.fingerprint() == whole[0].fingerprint()


@pytest.mark.parametrize(
    ("settings", "config", "seed", "first", "what"),
    [
        ({"seed": 4}, {}, 3, 0, r"\(seed: 3 there, 4 here\); remove it"),
        ({"betas": (0.9, 0.99)}, {}, 3, 0, "betas"),
        ({}, {"n_ctx": 9}, 3, 0, "shape.n_ctx: '8' there, '9' here"),
        ({}, {}, 4, 1, "first weights: .* there, .* here; first batch"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused_with_what_differs(tmp_path, settings, config, seed, first, what):
    train(new_model(), draw, SETTINGS, tmp_path)
    before = {path: path.read_bytes() for path in (tmp_path / CHECKPOINT).iterdir()}
    model = GPT2(GPT2Config(**{**vars(CFG), **config})).init_weights(seed)
    with pytest.raises(ResumeMismatch, match=what):
        train(model, lambda step: draw(step + first), TrainingSettings(**{**vars(SETTINGS), **settings}), tmp_path)
    assert {path: path.read_bytes() for path in (tmp_path / CHECKPOINT).iterdir()} == before


def test_a_disk_that_refuses_says_so_before_the_first_step_and_the_last_checkpoint_stands(whole, tmp_path, monkeypatch):
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def fill(done: int, total: int) -> None:
        if done == 12:
            monkeypatch.setattr(durable.os, "fsync", full)

    with pytest.raises(StorageError, match="No space left"):
        train(new_model(), draw, SETTINGS, tmp_path, fill, checkpoint_every=5)
    with pytest.raises(StorageError, match="No space left"):
        train(new_model(), draw, SETTINGS, tmp_path / "other", lambda *_: pytest.fail("a step was made"))
    monkeypatch.undo()
    model = new_model()
    result = train(model, draw, SETTINGS, tmp_path)
    assert (result.resumed_from, result.losses) == (10, whole[1])
    assert model.fingerprint() == whole[0].fingerprint()


def test_a_checkpoint_that_is_no_plain_file_is_refused(tmp_path):
    train(new_model(), draw, SETTINGS, tmp_path)
    (tensors,) = (tmp_path / CHECKPOINT).glob("*.safetensors")
    tensors.unlink()
    tensors.symlink_to("elsewhere")
    with pytest.raises(StorageError, match="link"):
        train(new_model(), draw, SETTINGS, tmp_path)
    tensors.unlink()
    os.mkfifo(tensors)
    with pytest.raises(StorageError, match="a pipe, not a regular file"):
        train(new_model(), draw, SETTINGS, tmp_path)


OTHER_TENSORS = [  # what replaces those of a checkpoint
    lambda tensors: {name: x for name, x in tensors.items() if name != "losses"},
    lambda tensors: {name: x for name, x in tensors.items() if name != "weights.embed.weight"},
    lambda tensors: tensors | {"weights.embed.weight": torch.zeros(12, 16)},
]


@pytest.mark.parametrize("change", OTHER_TENSORS, ids=["no losses", "a weight less", "another shape"])
def test_a_sound_checkpoint_of_another_model_is_refused(tmp_path, monkeypatch, change):
    save = training.save_checkpoint
    monkeypatch.setattr(training, "save_checkpoint", lambda run, step, tensors: save(run, step, change(tensors)))
    train(new_model(), draw, SETTINGS, tmp_path)
    with pytest.raises(StorageError, match="is of another model; remove that folder"):
        train(new_model(), draw, SETTINGS, tmp_path)


def test_checkpoints_keep_every_bit(tmp_path):
    tensors = {"a": torch.tensor([0.1, -0.0, math.inf, 1e-42]), "b": torch.tensor(3.0), "c": torch.zeros(0, 2)}
    run = begin_training(tmp_path, {"run": [1, "two"]})
    save_checkpoint(run, 1, {"older": torch.ones(1)})
    save_checkpoint(run, 2, tensors)
    assert run.done() == ["00000002"]
    loaded = load_checkpoint(run)
    assert loaded is not None
    for name, x in tensors.items():
        assert loaded[name].shape == x.shape
        assert loaded[name].numpy().tobytes() == x.numpy().tobytes()


def test_only_what_is_a_checkpoint_is_read_and_no_more_of_it_than_was_written(tmp_path):
    run, folder = begin_training(tmp_path, {"run": 1}), tmp_path / CHECKPOINT
    save_checkpoint(run, 2, {"a": torch.ones(3)})
    (folder / "notes.json").write_text("{}")
    assert torch.equal((load_checkpoint(run) or {})["a"], torch.ones(3))
    (tensors,) = folder.glob("*.safetensors")
    os.truncate(tensors, 1 << 40)  # a sparse file, larger than memory
    with pytest.raises(StorageError, match="bytes"):
        load_checkpoint(run)
    garbage = b"no tensors, and the checksum agrees"
    checksum = hashlib.sha256(garbage).hexdigest()
    run.write("00000003", {"sha256": checksum, "n_bytes": len(garbage)})
    (folder / f"00000003-{checksum[:16]}.safetensors").write_bytes(garbage)
    with pytest.raises(StorageError, match="damaged or missing; remove"):
        load_checkpoint(run)


def test_tensors_of_a_step_that_another_worker_has_recorded_are_not_left(tmp_path):
    run = begin_training(tmp_path, {"run": 1})
    for value in (1, 1, 2):  # the first writer wins, whether the second one's tensors are equal or not
        save_checkpoint(run, 2, {"a": torch.full((3,), value)})
    assert len(list(run.folder.glob("*.safetensors"))) == 1
    assert torch.equal((load_checkpoint(run) or {})["a"], torch.full((3,), 1))


def test_collate_pads_on_the_right():
    batch = collate([Example([1, 2, 3], [2, 3, 4]), Example([5], [IGNORE])], pad_id=9)
    assert batch.tokens.tolist() == [[1, 2, 3], [5, 9, 9]]
    assert batch.targets.tolist() == [[2, 3, 4], [IGNORE] * 3]
    assert batch.attention_mask.tolist() == [[True] * 3, [True, False, False]]
    assert (batch.labels, batch.source, batch.source_mask) == (None, None, None)
    batch = collate([Example([1], [2], label=0, source=[3]), Example([1], [2], label=1, source=[4, 5])], pad_id=9)
    assert batch.labels is not None
    assert batch.source is not None
    assert batch.source_mask is not None
    assert batch.labels.tolist() == [0, 1]
    assert batch.source.tolist() == [[3, 9], [4, 5]]
    assert batch.source_mask.tolist() == [[True, False], [True, True]]


@pytest.mark.parametrize(
    ("examples", "what"),
    [
        ([], "a batch needs an example or more"),
        ([Example([], [])], "a batch needs an example or more"),
        ([Example([1, 2], [1])], "as many targets"),
        ([Example([1], [1], label=0), Example([1], [1])], "a label in every example or in none"),
        ([Example([1], [1], source=[1]), Example([1], [1])], "a source in every"),
        ([Example([1], [1], source=[])], "a source in every"),
    ],
)
def test_impossible_batches(examples, what):
    with pytest.raises(UsageError, match=what):
        collate(examples)


@pytest.fixture(scope="module")
def bert() -> BertForPreTraining:
    torch.manual_seed(0)
    shape: dict[str, Any] = {
        "hidden_size": 16,
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "intermediate_size": 24,
    }
    oracle = BertForPreTraining(BertConfig(**shape, vocab_size=11, max_position_embeddings=8)).eval()
    assert sum(p.numel() for p in oracle.parameters()) < 10_000
    return oracle


def our_bert(oracle: BertForPreTraining) -> Bert:
    cfg = OurBertConfig.from_hf(oracle.config.to_dict())
    model = Bert(cfg)
    names = family_of(cfg).hf_names(cfg)
    model.load_state_dict({ours: oracle.state_dict()[theirs.name] for ours, theirs in names.items()})
    return model


MASKED = [Example([1, 6, 3, 2, 2], [IGNORE, 2, IGNORE, 7, IGNORE], 1), Example([6, 4, 9], [5, IGNORE, 1], 0)]


def test_the_loss_of_a_bert_is_that_of_transformers(bert):
    batch = collate(MASKED)
    theirs = bert(
        batch.tokens, attention_mask=batch.attention_mask, labels=batch.targets, next_sentence_label=batch.labels
    )
    assert loss_of(our_bert(bert), batch).item() == pytest.approx(theirs.loss.item(), rel=1e-5)


def test_a_bert_without_labels_goes_on_bit_for_bit(bert, tmp_path):
    """Its pooler learns nothing, so that the optimizer knows nothing of it."""
    examples, settings = [Example(e.tokens, e.targets) for e in MASKED], TrainingSettings(8, 2, warm_up_steps=0)
    whole, stopped, resumed = our_bert(bert), our_bert(bert), our_bert(bert)
    losses = train(whole, lambda step: examples, settings).losses

    def stop(done: int, total: int) -> None:
        if done == 5:
            raise _Stop

    with pytest.raises(_Stop):
        train(stopped, lambda step: examples, settings, tmp_path, stop, checkpoint_every=2)
    result = train(resumed, lambda step: examples, settings, tmp_path)
    assert (result.resumed_from, result.losses) == (4, losses)
    assert resumed.fingerprint() == whole.fingerprint()
    assert torch.equal(weights_of(resumed.get_submodule("pooler")), weights_of(our_bert(bert).get_submodule("pooler")))


def test_the_loss_of_an_encoder_decoder_is_that_of_transformers():
    oracle = oracle_for(MARIAN[1])
    examples = [Example([0, 3, 4, 5], [3, 4, 5, 1], source=[9, 8]), Example([0, 6], [6, 1], source=[2, 7, 7, 1])]
    batch = collate(examples)
    theirs = oracle(
        batch.source,
        attention_mask=batch.source_mask,
        decoder_input_ids=batch.tokens,
        decoder_attention_mask=batch.attention_mask,
        labels=batch.targets,
    )
    assert loss_of(marian_from_hf(oracle), batch).item() == pytest.approx(theirs.loss.item(), rel=1e-5)


def test_batches_that_cannot_be_learned_from(tmp_path):
    model = new_model()
    with pytest.raises(UsageError, match="neither targets nor labels to learn"):
        loss_of(model, collate([Example([1, 2], [IGNORE, IGNORE])]))
    with pytest.raises(UsageError, match="does not classify"):
        loss_of(model, collate([Example([1, 2], [2, 3], label=1)]))
    with pytest.raises(UsageError, match="encoder-decoders need a source"):
        loss_of(model, collate([Example([1, 2], [2, 3], source=[1])]))
    with pytest.raises(UsageError, match="encoder-decoders need a source"):
        loss_of(marian_from_hf(oracle_for(MARIAN[1])), collate([Example([1, 2], [2, 3])]))
    with pytest.raises(UsageError, match="expected 4 examples a batch, got 3"):
        train(model, lambda step: draw(step)[:3], SETTINGS, tmp_path)
    with pytest.raises(UsageError, match="float32"):
        train(new_model().double(), draw, SETTINGS)


def test_a_loss_that_is_no_number_ends_the_run_and_keeps_the_checkpoint(tmp_path):
    def poisoned(step: int) -> Sequence[Example]:
        if step == 10:
            with torch.no_grad():
                model.embed.weight[0] = math.nan
        return draw(step)

    model = new_model()
    with pytest.raises(DataError, match="step 11: the loss is nan; try a smaller learning rate"):
        train(model, poisoned, SETTINGS, tmp_path, checkpoint_every=5)
    assert train(new_model(), draw, SETTINGS, tmp_path).resumed_from == 10


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"steps": 2.5}, "steps"),
        ({"batch_size": True}, "batch_size"),
        ({"warm_up_steps": -1}, "warm_up_steps"),
        ({"steps": 5, "warm_up_steps": 6}, "warm_up_steps is at most steps, 5; got 6"),
        ({"learning_rate": "hot"}, "learning_rate must be a positive, finite number; got 'hot'"),
        ({"weight_decay": -0.1}, "weight_decay must be a number of at least 0"),
        ({"betas": 0.9}, "betas are two numbers"),
        ({"betas": (0.9, 1.0)}, "betas"),
        ({"clip_norm": math.inf}, "clip_norm"),
        ({"seed": -1}, "seed"),
    ],
)
def test_impossible_settings(change, what):
    with pytest.raises(UsageError, match=what):
        TrainingSettings(**change)
