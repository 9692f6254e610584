"""From a treebank to the curve in two commands."""

import json

import pytest

from probekit.cli.main import run


@pytest.fixture(scope="module")
def treebank(tmp_path_factory):
    """60 sentences of four words and a multiword token, the noun's number in its last letter."""
    folder = tmp_path_factory.mktemp("treebank")
    for k, split in enumerate(("train", "dev", "test")):
        lines = []
        for i in range(60 if split == "train" else 24):
            s = "s" if (i + k) % 2 else ""
            rows = [
                ("the", "DET", "_", 2),
                (f"{'abcdef'[i % 6]}{i}o{s}", "NOUN", f"Number={'Plur' if s else 'Sing'}", 4),
                ("don", "AUX", "_", 4),
                ("t", "PART", "_", 0),
            ]
            for n, (form, upos, feats, head) in enumerate(rows, start=1):
                lines += ["3-4\tdont\t_\t_\t_\t_\t_\t_\t_\t_"] if n == 3 else []
                lines.append(f"{n}\t{form}\t_\t{upos}\t_\t{feats}\t{head}\tdep\t_\t_")
            lines.append("")
        (folder / f"xx-ud-{split}.conllu").write_text("\n".join(lines))
    return folder


@pytest.mark.usefixtures("blank_pictures")
@pytest.mark.parametrize(("label", "kind"), [("upos", "logistic"), ("depth", "ridge")])
def test_a_treebank_in_two_commands(gpt2_folder, treebank, here, capsys, label, kind):
    model, data = str(gpt2_folder), str(treebank)
    extract = ["extract", "--model", model, "--dataset", data, "--label-column", label, "--limit", "20"]
    assert run([*extract, "--position", "first,mean", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert (made["texts"], made["words"]) == (60, 240)
    train = ["train-probe", "--position", "mean", "--C", "1", "--controls", "1", "--no-codelength", "--json"]
    assert run([*train, *(["--layer", "0,1"])]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["meta"]["probe"] == kind
    assert found["meta"]["label"] == label
    names = [baseline["name"] for baseline in found["baselines"]]
    assert names[:2] == ["mean" if label == "depth" else "majority", "word-type"]
    assert found["meta"]["interval"]["unit"] == "group"


def test_the_plan_says_words_and_texts(gpt2_folder, treebank, here, capsys):
    args = ["extract", "--model", str(gpt2_folder), "--dataset", str(treebank), "--label-column", "feats.Number"]
    assert run([*args, "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "108 words in 108 texts (60 train, 24 validation, 24 test)" in said
    assert "last token of each word" in said
    assert "without  324 words of the data have no feats.Number: left out" in said


def test_a_label_that_is_not_named(gpt2_folder, treebank, here, capsys):
    assert run(["extract", "--model", str(gpt2_folder), "--dataset", str(treebank)]) == 2
    said = capsys.readouterr().err
    assert "'upos'" in said
    assert "--label-column" in said
    assert len(said.strip().splitlines()) == 1


def test_spans_of_a_file(gpt2_folder, here, capsys):
    rows = [{"text": f"{'xy'[i % 2]}{i} and", "kind": i % 2, "start": 0, "end": 1 + len(str(i))} for i in range(60)]
    (here / "spans.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    args = ["extract", "--model", str(gpt2_folder), "--dataset", "spans.jsonl", "--label-column", "kind"]
    assert run([*args, "--span-column", "start,end", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["words"] == 60
