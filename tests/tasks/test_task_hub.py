"""Datasets of the Hub, through the real `datasets` library; the Hub's own part is played by folders and by a cache."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from probekit.errors import DataError
from probekit.tasks import load_task
from probekit.tasks.base import SPLITS

REVISION = "8d51e7e4887a4caaa95b3fbebbf53c0490b58bbb"


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    import datasets.config

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_UPDATE_DOWNLOAD_COUNTS", False)


@pytest.fixture
def hub(monkeypatch):
    """What `find_repo` answers, and what it was asked."""
    answer = SimpleNamespace(id="", revision=None, offline=False, asked=[])

    def find_repo(name, kind, revision=None):
        answer.asked.append((name, kind))
        return answer

    monkeypatch.setattr("probekit.tasks.tables.hub.find_repo", find_repo)
    return answer


def sst2_like(folder: Path, **sizes: int) -> Path:
    """The layout of stanfordnlp/sst2: Parquet, columns idx, sentence, label (a ClassLabel), test labels -1."""
    from datasets import ClassLabel, Dataset, Features, Value

    features = Features(
        {
            "idx": Value("int32"),
            "sentence": Value("string"),
            "label": ClassLabel(names=["negative", "positive"]),
        }
    )
    (folder / "data").mkdir(parents=True)
    for split, n in sizes.items():
        rows = {
            "idx": list(range(n)),
            "sentence": [f"{split} phrase {i} " for i in range(n)],
            "label": [-1 if split == "test" else i % 2 for i in range(n)],
        }
        part = Dataset.from_dict(rows, features=features)
        part.to_parquet(str(folder / "data" / f"{split}-00000-of-00001.parquet"))
    return folder


def test_sst2_its_validation_is_our_test_and_train_gives_validation(tmp_path, hub):
    hub.id = str(sst2_like(tmp_path / "sst2", train=200, validation=12, test=10))
    task = load_task("sst2")
    assert hub.asked == [("sst2", "dataset")]
    assert task.name == "sst2"
    assert task.counts() == {
        "train": {"negative": 90, "positive": 90},
        "validation": {"negative": 10, "positive": 10},
        "test": {"negative": 6, "positive": 6},
    }
    assert task.ids[0] == "train:0"
    assert task.ids[-1] == "validation:11"
    assert task.inputs[0] == "train phrase 0"
    assert task.info["dropped_blanks"] == 212
    assert task.info["carved_from_train"] == ["validation"]
    assert task.info["source"] == hub.id


def test_without_a_test_split_the_same_holds(tmp_path, hub):
    hub.id = str(sst2_like(tmp_path / "other", train=100, validation=8))
    task = load_task("someone/other")
    assert [int((task.splits == split).sum()) for split in SPLITS] == [90, 10, 8]


def test_a_labelled_test_split_is_kept(tmp_path, hub):
    folder = tmp_path / "three"
    folder.mkdir()
    for split, n in (("train", 40), ("validation", 10), ("test", 6)):
        rows = [(f"{split} {i}", ["bad", "good"][i % 2]) for i in range(n)]
        pd.DataFrame(rows, columns=["text", "label"]).to_csv(folder / f"{split}.csv", index=False)
    hub.id = str(folder)
    task = load_task("someone/three", limit=6)
    assert [int((task.splits == split).sum()) for split in SPLITS] == [6, 6, 6]
    assert task.label_names["label"] == ["bad", "good"]
    assert task.info["carved_from_train"] == []


def test_train_alone_is_split_80_10_10(tmp_path, hub):
    hub.id = str(sst2_like(tmp_path / "one", train=100))
    assert [int((load_task("someone/one").splits == split).sum()) for split in SPLITS] == [80, 10, 10]


def labelled_rows(folder: Path, labels: list[int], names: list[str]) -> Path:
    """A Parquet file whose metadata names the classes; its labels are written unchecked."""
    from datasets import ClassLabel, Features, Value

    features = Features({"text": Value("string"), "pair": Value("int32"), "label": ClassLabel(names=names)})
    rows = {"text": [f"text {i}" for i in range(len(labels))], "pair": [i // 4 for i in range(len(labels))]}
    folder.mkdir()
    table = pa.table({**rows, "label": labels}, schema=features.arrow_schema)
    pq.write_table(table, folder / "train.parquet")
    return folder


def test_a_class_that_never_occurs_is_left_out(tmp_path, hub):
    hub.id = str(labelled_rows(tmp_path / "two", [2, 0] * 20, ["no", "neutral", "yes"]))
    task = load_task("someone/two")
    assert task.label_names["label"] == ["no", "yes"]
    assert task.labels["label"].tolist() == [1, 0] * 20


def test_a_number_that_no_class_has_is_told_with_its_row_or_skipped(tmp_path, hub):
    hub.id = str(labelled_rows(tmp_path / "odd", [0, 7, *[0, 1] * 20], ["no", "yes"]))
    with pytest.raises(DataError, match=r"odd train, row 2: expected a label in 0\.\.1 \('no, yes'\), got 7; .*skip"):
        load_task("someone/odd")
    task = load_task("someone/odd", on_bad_row="skip")
    assert task.info["skipped"] == {"label_range": 1}
    assert "train:1" not in task.ids


def test_what_datasets_hides_in_the_cause_is_said(tmp_path, hub):
    folder = tmp_path / "broken"
    folder.mkdir()
    (folder / "train.jsonl").write_text('{"text": "a", "label": 1}\n{"text": \n')
    hub.id = str(folder)
    with pytest.raises(DataError, match=r"cannot be loaded: .*JSON.*--dataset PATH") as caught:
        load_task("someone/broken")
    assert "An error occurred while generating" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_dataset_with_other_splits_names_them(tmp_path, hub):
    folder = tmp_path / "odd"
    folder.mkdir()
    (folder / "README.md").write_text(
        "---\nconfigs:\n- config_name: default\n  data_files:\n  - split: dictionary\n    path: d.csv\n---\n"
    )
    (folder / "d.csv").write_text("text,label\na,1\n")
    hub.id = str(folder)
    with pytest.raises(DataError, match=r"no split named train .*, only 'dictionary'"):
        load_task("someone/odd")


def test_without_a_network_and_a_copy_a_path_is_asked_for(hub):
    hub.id, hub.offline = "nobody/nothing", True
    with pytest.raises(DataError, match=r"'nobody/nothing' cannot be loaded: .*--dataset PATH"):
        load_task("nobody/nothing")


def test_without_a_network_the_cached_copy_is_taken_with_its_revision(tmp_path, hub):
    import datasets.config
    import huggingface_hub.constants

    hub.id = str(sst2_like(tmp_path / "sst2", train=40, validation=12, test=10))
    online = load_task("sst2")
    (made,) = (tmp_path / "cache").glob("*/*/*/*/dataset_info.json")
    home = tmp_path / "cache" / "stanfordnlp___sst2" / "default" / "0.0.0" / REVISION
    shutil.copytree(made.parent, home)
    hub.id, hub.offline = "stanfordnlp/sst2", True
    task = load_task("sst2")
    assert task.fingerprint() == online.fingerprint()
    assert (task.info["source"], task.info["revision"], task.info["offline"]) == ("stanfordnlp/sst2", REVISION, True)
    assert not datasets.config.HF_HUB_OFFLINE
    assert not huggingface_hub.constants.HF_HUB_OFFLINE
