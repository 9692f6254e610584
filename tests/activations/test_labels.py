"""Labels joined to a store: the same as labels that were extracted, in files that nothing else depends on."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from store_cases import lasting, run

from probekit.activations import Store, label, label_store, list_stores, repair, verify
from probekit.errors import DataError, ResumeMismatch, StorageError, UsageError
from probekit.tasks import Task

N = 40
RNG = np.random.default_rng(0)
TEXTS = ["".join(chr(97 + i) for i in RNG.integers(0, 26, size=RNG.integers(2, 12))) for _ in range(N)]
LABELS = ["yes" if i % 3 else "no" for i in range(N)]
IDS = [str(i) for i in range(N)]
JOINED = dict(zip(IDS, LABELS, strict=True))
PARITY = {one: int(one) % 2 for one in IDS}


@pytest.fixture
def store(model, path: Path) -> Path:
    run(model, Task("letters", TEXTS), out=path)
    return path


def test_a_labelled_store_is_the_store_of_labelled_texts(model, store: Path, tmp_path: Path):
    at_once = run(model, Task("letters", TEXTS, {"label": np.array(LABELS)}), out=tmp_path / "other")
    before = lasting(store)
    done = label_store(store, JOINED)
    assert (done.name, done.is_new, done.info["labelled"]) == ("label", True, N)
    later = Store(store)
    assert later.task.fingerprint() == at_once.task.fingerprint() == done.task.fingerprint()
    assert later.meta["label_fingerprints"].keys() == {"label"}
    assert torch.equal(later["resid_pre.1"], at_once["resid_pre.1"])
    assert {file: lasting(store)[file] for file in before} == before  # nothing else was touched
    assert label(run(model, Task("letters", TEXTS)), JOINED).task.fingerprint() == at_once.task.fingerprint()


def test_label_leaves_the_store_and_the_activations_as_they_are(store: Path):
    acts, before = Store(store), lasting(store)
    view = label(acts, JOINED)
    assert view.target == "label"
    assert acts.labels == {}
    assert isinstance(view, Store)
    assert torch.equal(view["q.0"], acts["q.0"])
    assert lasting(store) == before
    assert view.meta["task_fingerprint"] == acts.meta["task_fingerprint"]  # of what was extracted
    assert "label_fingerprints" not in acts.meta


def test_several_label_sets_keep_their_order_and_the_first_ones_splits(store: Path):
    label_store(store, PARITY, name="z")
    label_store(store, JOINED, name="a", seed=9)
    task = Store(store).task
    assert (list(task.labels), task.target) == (["z", "a"], "z")
    assert task.splits.tolist() == label(Store(store), JOINED, name="b").splits.tolist()
    (found,) = list_stores(store)
    assert (found.labels, found.is_complete) == (["z", "a"], True)


def test_the_first_writer_wins_and_the_same_labels_may_come_again(store: Path):
    label_store(store, JOINED)
    files = lasting(store)
    assert not label_store(store, dict(reversed(JOINED.items()))).is_new
    assert lasting(store) == files
    with pytest.raises(
        ResumeMismatch, match="has other labels 'label', of 40 texts; give these another name"
    ) as caught:
        label_store(store, PARITY)
    assert caught.value.exit_code == 5
    assert lasting(store) == files


def test_replaced_labels_are_as_if_they_were_the_first(model, store: Path, tmp_path: Path):
    label_store(store, JOINED)
    label_store(store, PARITY, replace=True)
    shutil.copytree(store, tmp_path / "copy")
    assert Store(tmp_path / "copy").labels["label"].tolist() == [int(one) % 2 for one in IDS]
    at_once = run(model, Task("letters", TEXTS, {"label": np.array([int(one) % 2 for one in IDS])}))
    assert Store(store).task.fingerprint() == at_once.task.fingerprint()
    label_store(store, JOINED, name="other")
    splits = Store(store).splits.tolist()
    label_store(store, {**PARITY, "0": 1}, replace=True)  # another set has these splits: they stay
    assert Store(store).splits.tolist() == splits
    assert list(Store(store).labels) == ["label", "other"]


def test_a_labelled_task_gets_a_second_set_with_its_own_splits(model, task: Task, path: Path):
    run(model, task, out=path)
    third = {one: i % 2 for i, one in enumerate(task.ids)}
    label_store(path, third, name="more")
    found = Store(path).task
    assert (list(found.labels), found.target) == ([*task.labels, "more"], task.target)
    assert found.splits.tolist() == task.splits.tolist()
    assert not (path / "labels" / "splits.json").exists()
    with pytest.raises(UsageError, match=r"'odd' of .* was extracted with its texts; name this one otherwise"):
        label_store(path, third, name="odd", replace=True)


def test_a_part_of_the_labels_and_numbers_are_read_again(store: Path):
    label_store(store, {one: JOINED[one] for one in IDS[:30]} | {"x": "no"}, on_bad_row="skip")
    label_store(store, {one: int(one) / 7 for one in IDS[5:]}, name="number", on_bad_row="skip")
    task = Store(store).task
    assert task.labels["label"].tolist() == [["no", "yes"].index(one) for one in LABELS[:30]] + [-1] * 10
    assert task.info["unlabelled"] == {"label": 10, "number": 5}
    assert task.info["label_sets"]["label"]["skipped"] == {"unknown_id": 1}
    assert task.n_classes("number") == 0
    assert np.array_equal(task.labels["number"], [np.nan] * 5 + [int(one) / 7 for one in IDS[5:]], equal_nan=True)
    assert verify(store).is_sound


def test_groups_are_kept(store: Path):
    topics = [f"t{i // 2}" for i in range(N)]
    label_store(store, {"id": IDS, "label": LABELS, "topic": topics}, group_column="topic")
    found = Store(store)
    assert found.groups is not None
    assert all(len(set(found.splits[found.groups == one])) == 1 for one in set(found.groups))


@pytest.mark.parametrize("source", [{"x9": "no"}, dict.fromkeys(IDS, "yes"), dict(list(JOINED.items())[:9])])
def test_labels_that_are_refused_write_nothing(store: Path, source: dict):
    before = lasting(store)
    with pytest.raises(DataError):
        label_store(store, source)
    assert lasting(store) == before


def label_file(store: Path) -> Path:
    return next(file for file in (store / "labels").iterdir() if file.name != "splits.json")


def test_labels_of_something_else_are_refused(store: Path, tmp_path: Path):
    with pytest.raises(
        UsageError, match="expected activations, as extract and load_activations return them; got a str"
    ):
        label(str(store), JOINED)  # pyright: ignore[reportArgumentType]
    with pytest.raises(DataError, match="no store at"):
        label_store(tmp_path / "nowhere", JOINED)


def test_a_run_that_was_killed_between_splits_and_labels_is_labelled_again(store: Path):
    label_store(store, PARITY)
    label_file(store).unlink()
    assert verify(store).is_sound
    assert Store(store).labels == {}
    label_store(store, JOINED)
    assert Store(store).splits.tolist() == label(label_free(store), JOINED).splits.tolist()


def label_free(store: Path) -> Store:
    shutil.copytree(store, store.parent / "free", ignore=shutil.ignore_patterns("labels"))
    return Store(store.parent / "free")


def test_tokens_are_labelled_by_their_text_and_number(model):
    """The ids of tokens, as examples, are TEXT:TOKEN; the splits stay those of texts."""
    tokens = run(model, Task("letters", TEXTS), position="all").at("all")
    vowels = {f"{i}:{k}": text[k] in "aeiou" for i, text in enumerate(TEXTS) for k in range(len(text))}
    found = label(tokens, vowels, name="vowel")
    assert found.labels["vowel"].tolist() == list(vowels.values())
    assert found.label_names["vowel"] == ["False", "True"]
    texts = [one.partition(":")[0] for one in found.ids]
    assert all(len(set(found.splits[np.array(texts) == one])) == 1 for one in set(texts))
    found.task.check()
    part = label(tokens, {one: vowels[one] for one in list(vowels)[:150]}, on_bad_row="skip")
    assert int((part.labels["label"] >= 0).sum()) == 150


def test_damaged_labels_are_named_and_can_be_made_again(store: Path):
    label_store(store, JOINED)
    assert verify(store).is_sound
    file = label_file(store)
    file.write_bytes(file.read_bytes().replace(b"[1, 1", b"[1, 0", 1).replace(b"[0, 1", b"[1, 1", 1))
    with pytest.raises(StorageError, match="does not match its checksum; remove it and label again"):
        Store(store)
    found = verify(store)
    assert [one.file for one in found.broken] == [f"labels/{file.name}"]
    assert found.advice == f"remove what is broken in {str(store / 'labels')!a} and label again"
    assert [one.file for one in repair(store).left] == [f"labels/{file.name}"]
    assert list_stores(store)[0].state == "damaged"
    file.unlink()
    assert label_store(store, JOINED).is_new
    assert Store(store).labels["label"].tolist() == [["no", "yes"].index(one) for one in LABELS]


def linked(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.symlink_to(folder.parent.parent)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda labels: (labels / "splits.json").unlink(), r"splits\.json.* is missing"),
        (lambda labels: label_file(labels.parent).rename(labels / "0123456789abcdef.json"), "is not a file of labels"),
        (lambda labels: (labels / "notes.txt").write_text("hello"), "is no file of labels; remove it"),
        (linked, "is a link or a file"),
    ],
)
def test_other_files_in_the_folder_of_labels_are_refused(store: Path, damage, message: str):
    label_store(store, JOINED)
    damage(store / "labels")
    with pytest.raises(StorageError, match=message):
        Store(store)
    assert not verify(store).is_sound


def test_labels_of_another_store_are_refused(model, store: Path, tmp_path: Path):
    label_store(store, JOINED)
    run(model, Task("letters", TEXTS[::-1]), out=tmp_path / "other")
    shutil.copytree(store / "labels", tmp_path / "other" / "labels")
    with pytest.raises(StorageError, match="holds labels of other texts"):
        Store(tmp_path / "other")


@pytest.mark.parametrize("is_complete", [True, False])
def test_the_same_extraction_again_finds_the_labels(model, store: Path, is_complete: bool):
    if not is_complete:
        (store / "manifest.json").unlink()
    label_store(store, JOINED)
    assert run(model, Task("letters", TEXTS), out=store).target == "label"
