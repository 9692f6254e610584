"""The audit finds what was planted, and nothing in what is sound."""

import json
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from probekit.tasks import load_task
from probekit.tasks.base import SPLITS, Task
from probekit.tasks.quality import duplicates
from probekit.tasks.quality.audit import audit, audit_dict, audit_lines

WORDS = [f"{a}{b}{c}" for a in "bdfgklmnprst" for b in "aeiou" for c in "lmnrst"]


def sentences(n, seed=0, shortest=3, longest=30):
    """n distinct sentences of random words."""
    rng = np.random.default_rng(seed)
    made: dict[str, None] = {}
    while len(made) < n:
        words = rng.choice(WORDS, size=rng.integers(shortest, longest + 1))
        made[f"The {' '.join(words)}."] = None
    return list(made)


def make_task(texts, splits=None, labels=None, **changes) -> Task:
    n = len(texts)
    labels = np.arange(n) % 2 if labels is None else labels
    splits = np.array([SPLITS[i % 3] for i in range(n)]) if splits is None else splits
    fields = {"label_names": {"y": ["no", "yes"]}, "ids": [f"row:{i}" for i in range(n)]} | changes
    return Task("t", texts, {"y": labels}, splits=splits, target="y", **fields)


def test_ten_thousand_distinct_sentences_are_distinct():
    found = audit(make_task(sentences(10_000)))
    assert (audit_lines(found), found.leaks.tolist()) == ([], [])
    assert all(one["exact"] == one["near"] == 0 for one in found.shared.values())


def templates(n):
    """Short sentences out of one frame: most have a neighbour with one other word, and none is the other's copy."""
    rng = np.random.default_rng(0)
    frame = "The {} {} {} the {} {} near the {}."
    return list(dict.fromkeys(frame.format(*rng.choice(WORDS[:20], size=6)) for _ in range(n)))


def test_sentences_of_one_short_frame_are_distinct():
    assert audit_lines(audit(make_task(templates(10_000)))) == []


def changed(text, how):
    words = text.rstrip(".").split()
    middle = len(words) // 2
    return {
        "case": text.upper(),
        "spacing": "  ".join(text.replace(".", " .").split(" ")),
        "replaced": " ".join([*words[:middle], "otherwise", *words[middle + 1 :]]) + ".",
        "added": " ".join([*words[:middle], "otherwise", *words[middle:]]) + ".",
        "dropped": " ".join([*words[:middle], *words[middle + 1 :]]) + ".",
        "cut": text.rstrip("."),
    }[how]


@pytest.mark.parametrize("how", ["case", "spacing", "replaced", "added", "dropped", "cut"])
def test_planted_duplicates_are_found_and_no_others(how):
    """Of 3,000 sentences of 16 words or more, 40 of validation and 30 of test have a changed copy in train."""
    texts = sentences(3000, seed=1, shortest=16)
    splits = np.repeat(SPLITS, 1000)
    for i in range(40):
        texts[i] = changed(texts[1000 + i], how)
    for i in range(40, 70):
        texts[i] = changed(texts[2000 + i], how)
    found = audit(make_task(texts, splits))
    kind = "exact" if how in ("case", "spacing") else "near"
    other = "near" if kind == "exact" else "exact"
    numbers = {name: (one[kind], one[other], one["rows"]) for name, one in found.shared.items()}
    assert numbers == {
        "validation in train": (40, 0, 40),
        "test in train": (30, 0, 30),
        "test in validation": (0, 0, 0),
    }
    assert found.leaks.tolist() == list(range(70))
    assert audit_lines(found)[-1] == "rows that leak: 70 of train, leave them out with drop_leaks (--drop-leaks)"


def test_nothing_leaks_when_the_leaks_are_left_out():
    texts = sentences(900, seed=2, shortest=16)
    for i in range(0, 600, 7):
        texts[i] = changed(texts[i + 1], "replaced")
        texts[i + 2] = texts[i + 4]
    task = make_task(texts)
    found = audit(task)
    left = audit(task.subset(np.setdiff1d(np.arange(900), found.leaks)))
    assert set(task.splits[found.leaks]) == {"train", "validation"}
    assert left.leaks.size == 0
    assert all(one["exact"] == one["near"] == 0 for one in left.shared.values())
    by_split = {split: int((task.splits[found.leaks] == split).sum()) for split in SPLITS}
    assert audit_dict(found)["leaks"] == by_split


def test_what_becomes_a_leak_by_leaving_others_out_is_left_out_too(monkeypatch):
    """A shingle may stand in a template before, and in none after."""
    monkeypatch.setattr(duplicates, "TEMPLATE_MOST", 4)
    monkeypatch.setattr(duplicates, "TEMPLATE_LEAST", 4)
    words = iter(f"w{i}" for i in range(1000))
    frame, *own = (" ".join(islice(words, 40)) for _ in range(4))
    texts = [f"{frame} {one}" for one in own] + [f"first {frame} text", f"other {frame} words"] + own
    task = make_task(texts, np.array(["train"] * 4 + ["test"] * 4))
    # five texts have the frame, a template; without the three that leak into test, two have it, and are near-duplicates
    assert audit(task).leaks.tolist() == [0, 1, 2, 3]
    assert audit(task.subset(np.arange(3, 8))).leaks.tolist() == [0]


def test_token_ids_are_compared_as_they_are():
    rng = np.random.default_rng(0)
    ids = rng.integers(50_000, size=(300, 20)).tolist()
    ids[0] = list(ids[100])
    ids[1] = [*ids[200][:10], 7, *ids[200][11:]]
    found = audit(make_task(ids, np.repeat(SPLITS, 100)))
    assert (found.shared["validation in train"]["exact"], found.shared["test in train"]["near"]) == (1, 1)
    assert found.leaks.tolist() == [0, 1]


def test_equal_texts_with_other_labels_are_a_conflict_unless_another_token_is_read():
    task = make_task(["A b", "a  b", "a b", "c", "c", "d"], labels=np.array([0, 1, 0, 1, 1, 0]))
    found = audit(task)
    assert (found.conflicts["texts"], found.conflicts["rows"]) == (1, 3)
    assert "1 text with contradictory labels (3 rows): 'A b' ('row:0', 'row:1')" in audit_lines(found)
    apart = audit(replace(task, position=np.array([0, 1, 0, 0, 0, 0])))
    assert apart.conflicts == {"texts": 0, "rows": 0}


def test_imbalanced_classes_and_splits_that_differ_are_reported():
    texts = sentences(100, shortest=5, longest=5) + sentences(50, seed=3, shortest=20, longest=20)
    labels = np.concatenate([np.arange(100) % 10 == 0, np.arange(50) % 2]).astype(int)
    found = audit(make_task(texts, np.repeat(["train", "test"], [100, 50]), labels))
    assert audit_lines(found) == [
        "imbalanced classes: 90% of train is 'no'",
        "test texts are longer than train texts: 84.0 and 24.0 characters on average",
        "class 'no': 50% of test, 90% of train",
    ]
    assert found.splits["test"]["classes"] == {"no": 25, "yes": 25}


def test_a_regression_has_moments_and_conflicts():
    texts = [*sentences(8), "the same", "The same"]
    labels = np.arange(10) / 4
    found = audit(make_task(texts, labels=labels, label_names={"y": []}))
    assert found.conflicts["rows"] == 2
    own = labels[np.arange(10) % 3 == 0]
    assert found.splits["train"]["mean"] == own.mean()
    assert (found.splits["train"]["low"], found.splits["train"]["high"]) == (0.0, 2.25)


def test_rows_without_texts_are_not_compared():
    found = audit(make_task(["row:0"] * 6, info={"no_texts": True}))
    assert (found.no_texts, found.shared, found.leaks.tolist(), audit_lines(found)) == (True, {}, [], [])


def test_what_is_shown_is_escaped_and_json():
    text = "\x1b[31m\u202e " + "evil " * 40
    found = audit(make_task([text, text, text.upper()] * 2))
    assert all(line.isascii() and line.isprintable() and len(line) < 300 for line in audit_lines(found))
    assert json.loads(json.dumps(audit_dict(found), allow_nan=False))["shared"]["validation in train"]["exact"] == 2


@pytest.mark.shared
def test_the_leak_of_sst2(shared_dir):
    found = audit(load_task(shared_dir / "data" / "sst2"))
    assert [one["exact"] for one in found.shared.values()] == [75, 0, 0]
    assert audit_lines(found)[0].startswith("75 of the 6,735 validation texts also occur in train: ")


@pytest.mark.shared
@pytest.mark.parametrize("name", ["cities", "neg_cities", "sp_en_trans", "neg_sp_en_trans", "larger_than"])
def test_statements_of_one_template_are_distinct(shared_dir, name):
    found = audit(load_task(shared_dir / "data" / "geometry-of-truth" / f"{name}.csv"))
    assert (found.leaks.size, audit_lines(found)) == (0, [])


@pytest.mark.parametrize("no_texts", [False, True])
def test_rows_of_groups_that_straddle_splits_are_leaks(no_texts):
    splits = np.array(["train", "train", "validation", "test", "train", "test"])
    task = Task(
        name="torn",
        inputs=[f"a text of its own, number {i}" for i in range(6)],
        labels={"kind": np.arange(6) % 2},
        label_names={"kind": ["a", "b"]},
        splits=splits,
        target="kind",
        groups=np.array(["x", "y", "x", "y", "z", "w"]),
        info={"no_texts": no_texts},
    )
    found = audit(task)
    assert found.leaks.tolist() == [0, 1]
    assert found.groups_across_splits == 2
    assert "2 groups span splits" in audit_lines(found)
    assert audit(replace(task, groups=None)).groups_across_splits is None
    assert audit(task.subset(np.array([2, 3, 4, 5]))).leaks.tolist() == []
