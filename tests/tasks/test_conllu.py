"""CoNLL-U: words, multiword tokens and empty nodes, and what a sentence says of each of its words."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from probekit.errors import DataError, UsageError
from probekit.options import TaskOptions
from probekit.tasks import load_task
from probekit.tasks.base import SPLITS
from probekit.tasks.load import load_texts
from probekit.tasks.tables.conllu import WordRows, read_sentences
from probekit.tasks.tables.readers import read_table
from probekit.tasks.tables.sources import unfolded

SAMPLE = """\
# newdoc id = d
# sent_id = 1
# text = "Ça" don't go du café , 日本…
1\t"\t"\tPUNCT\t``\t_\t2\tpunct\t_\tSpaceAfter=No
2\tÇa\tça\tPRON\tPRP\tNumber=Sing|Person=3\t6\tnsubj\t_\tSpaceAfter=No
3\t"\t"\tPUNCT\t''\t_\t2\tpunct\t_\t_
4-5\tdon't\t_\t_\t_\t_\t_\t_\t_\t_
4\tdo\tdo\tAUX\tVBP\t_\t6\taux\t_\t_
5\tn't\tnot\tPART\tRB\t_\t6\tadvmod\t_\t_
6\tgo\tgo\tVERB\tVB\t_\t0\troot\t_\t_
6.1\tgone\tgo\tVERB\tVB\t_\t_\t_\t_\t_
7-8\tdu\t_\t_\t_\t_\t_\t_\t_\t_
7\tde\tde\tADP\tIN\t_\t9\tcase\t_\t_
8\tle\tle\tDET\tDT\tNumber=Sing\t9\tdet\t_\t_
9\tcafé\tcafé\tNOUN\tNN\tNumber=Sing\t6\tobl\t_\t_
10\t,\t,\tPUNCT\t,\t_\t11\tpunct\t_\t_
11\t日本\t日本\tPROPN\tNNP\t_\t9\tappos\t_\tSpaceAfter=No
12\t…\t…\tPUNCT\t.\t_\t6\tpunct\t_\t_

1\tGo\tgo\tVERB\t_\t_\t0\troot\t_\tSpaceAfter=No
2\t!\t!\tPUNCT\t.\t_\t1\tpunct\t_\t_
"""


def cells(text=SAMPLE, *names):
    words = WordRows("f", text)
    return list(zip(*(words.column(name) for name in names), strict=True))


def test_each_word_has_its_characters():
    found = [text[start:end] for text, (start, end) in cells(SAMPLE, "text", "span")]
    one = ['"', "Ça", '"', "do", "n't", "go", "du", "du", "café", ",", "日本", "…"]
    assert found == [*one, "Go", "!"]
    assert cells(SAMPLE, "text")[-1] == ("Go!",)
    assert cells(SAMPLE, "sentence")[0] == ("f:0",)
    assert cells(SAMPLE, "sentence")[-1] == ("f:1",)
    assert WordRows("f", SAMPLE).counts == {"sentences": 2, "multiword_tokens": 2, "empty_nodes": 1}
    assert WordRows("f", SAMPLE).lines[:5] == [4, 5, 6, 8, 9]


def test_what_a_word_is_and_what_it_has_not():
    found = cells(SAMPLE, "upos", "xpos", "deprel")
    assert found[1] == ("PRON", "PRP", "nsubj")
    assert found[12] == ("VERB", None, "root")
    assert [cell for (cell,) in cells(SAMPLE, "feats.Number")] == [
        "Sing" if i in (1, 7, 8) else None for i in range(14)
    ]
    assert cells(SAMPLE, "form")[7] == ("le",)
    assert cells(SAMPLE, "lemma")[4] == ("not",)


def test_distances_and_depths_against_the_heads():
    heads = [2, 6, 2, 6, 6, 0, 9, 9, 6, 11, 9, 6, 0, 1]
    distances = [d for (d,) in cells(SAMPLE, "head_distance")]
    own = [*range(1, 13), 1, 2]
    assert distances == [abs(head - i) if head else None for head, i in zip(heads, own, strict=True)]
    assert [d for (d,) in cells(SAMPLE, "depth")] == [2, 1, 2, 1, 1, 0, 2, 2, 1, 3, 2, 1, 0, 1]


FORMS = st.text(st.characters(exclude_categories=("Cs", "Cc", "Zs", "Zl", "Zp")), min_size=1, max_size=4)


@given(st.lists(st.tuples(FORMS.filter(lambda form: form.strip() == form), st.booleans()), min_size=1, max_size=8))
def test_the_text_is_spelled_by_space_after(words):
    """Without a text line and with one the spans are the same, and give the forms back."""
    lines = [
        f"{i}\t{form}\t_\tX\t_\t_\t{i - 1}\t_\t_\t{'_' if blank else 'A=b|SpaceAfter=No'}"
        for i, (form, blank) in enumerate(words, start=1)
    ]
    text = "".join(form + " " * blank for form, blank in words).rstrip(" ")
    for header in ([], [f"# text = {text}"]):
        [(_, one)] = read_sentences("\n".join([*header, *lines]))
        assert not isinstance(one, str)
        assert one.text == text
        assert [text[start:end] for start, end in one.spans] == [form for form, _ in words]


def test_features_are_kept_complete():
    words = WordRows("f", "1\ta\t_\tX\t_\tMood=Ind|Ref=x=y,z|Empty=|Alone\t0\t_\t_\t_")
    assert [name for name in words.columns if name.startswith("feats.")] == ["feats.Mood", "feats.Ref"]
    assert words.column("feats.Ref") == ["x=y,z"]


WORD = "1\ta\t_\tX\t_\t_\t0\t_\t_\t_"


@pytest.mark.parametrize(
    ("lines", "line", "message"),
    [
        (["1 a b"], 1, "expected 10 fields with tabs between them, got 1"),
        (["# text = a", "2" + WORD[1:]], 2, "expected word 1, got '2'"),
        ([WORD, "1" + WORD[1:]], 2, "expected word 2, got '1'"),
        (["# text = b", WORD], 2, "expected 'a' in '# text', got 'b'"),
        (["# text = a b", WORD], 2, "'# text' continues with 'b' after the last word"),
        ([WORD.replace("\t0\t", "\t3\t")], 1, "the head, 0 to 1, got '3'"),
        ([WORD.replace("\t0\t", "\t1\t")], 1, "number of another word as the head"),
        ([WORD.replace("\t0\t", "\t2\t"), "2" + WORD[1:].replace("\t0\t", "\t1\t")], 1, "form a circle"),
        (["1-2" + WORD[1:], WORD], 1, "spans words up to 2, got 1"),
        (["2-3" + WORD[1:], WORD], 1, "expected a token from word 1 on"),
        (["1\t\t_\tX\t_\t_\t0\t_\t_\t_"], 1, "expected a word's form"),
        (["# only a comment"], 1, "no word in it"),
        ([WORD.replace("\ta\t", "\ta  b\t")], 1, "expected single blanks within a field"),
        (["x" + WORD[1:]], 1, "expected word 1, got 'x'"),
        (["1" * 5000 + WORD[1:]], 1, "expected word 1, got '1111"),
        (["1-" + "2" * 5000 + WORD[1:], WORD], 1, "expected word 1, got '1-222"),
        ([WORD.replace("\t0\t", "\t" + "0" * 5000 + "\t")], 1, "the head, 0 to 1, got '0000"),
        ([WORD[1:]], 1, "expected word 1, got ''"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(tmp_path, lines, line, message):
    path = tmp_path / "bad.conllu"
    path.write_text("\n".join(lines) + "\n\n" + SAMPLE, encoding="utf-8")
    with pytest.raises(DataError, match=rf"bad\.conllu, line {line}: .*{message}.*--on-bad-row skip"):
        load_task(path, label_column="upos")


def treebank(n, start=0):
    """n sentences "the cat7 sleeps ." with a new noun each; every third is plural."""
    for i in range(start, start + n):
        rows = [
            ("the", "DET", "_", 3, "det"),
            (f"cat{i}", "NOUN", f"Number={'Plur' if i % 3 == 0 else 'Sing'}", 3, "nsubj"),
            ("sleeps", "VERB", "_", 0, "root"),
            (".", "PUNCT", "_", 3, "punct"),
        ]
        yield f"# text = the cat{i} sleeps."
        for k, (form, upos, feats, head, deprel) in enumerate(rows, start=1):
            misc = "SpaceAfter=No" if k == 3 else "_"
            yield f"{k}\t{form}\t{form}\t{upos}\t_\t{feats}\t{head}\t{deprel}\t_\t{misc}"
        yield ""


@pytest.fixture
def folder(tmp_path):
    for k, (split, n) in enumerate((("train", 12), ("dev", 6), ("test", 9))):
        (tmp_path / f"xx_tiny-ud-{split}.conllu").write_text("\n".join(treebank(n, 100 * k)), encoding="utf-8")
    return tmp_path


def test_a_folder_of_a_treebank(folder):
    task = load_task(folder, label_column="upos")
    assert [(task.splits == split).sum() for split in SPLITS] == [48, 24, 36]
    assert task.words is not None
    assert task.words[:4] == ["the", "cat0", "sleeps", "."]
    assert task.inputs[:4] == ["the cat0 sleeps."] * 4
    assert task.groups is not None
    assert task.groups[:5].tolist() == ["xx_tiny-ud-train:0"] * 4 + ["xx_tiny-ud-train:1"]
    assert task.label_names == {"upos": ["DET", "NOUN", "PUNCT", "VERB"]}
    assert task.info["sentences"] == 27
    assert task.info["also_in_train"] == {"validation": 0, "test": 0}
    json.dumps(task.info)
    assert task.fingerprint() != load_task(folder, label_column="deprel").fingerprint()


def test_words_without_the_feature_are_no_examples(folder):
    task = load_task(folder, label_column="feats.Number")
    assert task.label_names == {"feats.Number": ["Plur", "Sing"]}
    assert len(task) == 27
    assert task.info["unlabelled_words"] == 81
    assert task.info["skipped_rows"] == 0


def test_distance_and_depth_are_numbers(folder):
    task = load_task(folder, label_column="head_distance")
    assert task.n_classes() == 0
    assert task.labels["head_distance"][:3].tolist() == [2.0, 1.0, 1.0]
    assert task.info["unlabelled_words"] == 27
    assert load_task(folder, label_column="depth").labels["depth"][:4].tolist() == [1.0, 1.0, 0.0, 1.0]


def test_one_file_is_carved_by_sentences(folder):
    task = load_task(folder / "xx_tiny-ud-train.conllu", label_column="upos")
    assert task.groups is not None
    split_of = {(group, split) for group, split in zip(task.groups.tolist(), task.splits.tolist(), strict=True)}
    assert len(split_of) == 12
    assert {split for _, split in split_of} == set(SPLITS)


def test_the_limit_counts_sentences_and_keeps_each_class(folder):
    task = load_task(folder, label_column="feats.Number", limit=2, seed=3)
    for split in SPLITS:
        assert len({str(task.inputs[i]) for i in np.flatnonzero(task.splits == split)}) == 2
        assert set(task.labels["feats.Number"][task.splits == split]) == {0, 1}
    whole = load_task(folder, label_column="upos", limit=2)
    assert len(whole) == 3 * 2 * 4
    with pytest.raises(UsageError, match="limit 1 is less than the 2 texts of train"):
        load_task(folder, label_column="feats.Number", limit=1)
    assert len(load_task(folder, label_column="depth", limit=4)) == 3 * 4 * 4


def test_a_class_that_a_split_lacks_is_told_or_left_out(folder):
    path = folder / "xx_tiny-ud-train.conllu"
    path.write_text(path.read_text().replace("sleeps\tVERB", "sleeps\tAUX", 1))
    with pytest.raises(DataError, match=r"needs every class .*--rare-classes drop.*: 1 example of 1 class \(AUX=1\)"):
        load_task(folder, label_column="upos", on_bad_row="skip")
    task = load_task(folder, label_column="upos", rare_classes="drop")
    assert task.label_names["upos"] == ["DET", "NOUN", "PUNCT", "VERB"]
    assert task.info["rare_classes"] == {"AUX": 1}
    assert task.info["skipped_rows"] == 0
    assert task.words is not None
    for name, word in (("DET", "the"), ("PUNCT", "."), ("VERB", "sleeps")):
        k = task.label_names["upos"].index(name)
        assert {task.words[i] for i in np.flatnonzero(task.labels["upos"] == k)} == {word}


def test_a_wrong_sentence_is_left_out_whole(folder):
    path = folder / "xx_tiny-ud-dev.conllu"
    path.write_text(path.read_text().replace("2\tcat101", "7\tcat101"))
    task = load_task(folder, label_column="upos", on_bad_row="skip")
    assert (task.splits == "validation").sum() == 20
    assert task.info["skipped"] == {"conllu": 1}


def test_spans_of_other_tables(tmp_path):
    """JSONL with one column of two numbers, or two columns, also as CSV: the same task."""
    texts = [f"word{i} and wörd{i}" for i in range(30)]
    rows = [
        (text, k, (0, text.index(" ")) if k == 0 else (text.rindex(" ") + 1, len(text)))
        for text in texts
        for k in (0, 1)
    ]
    one, two = tmp_path / "one.jsonl", tmp_path / "two.jsonl"
    one.write_text("".join(json.dumps({"text": t, "label": k, "place": list(s)}) + "\n" for t, k, s in rows))
    two.write_text("".join(json.dumps({"text": t, "label": k, "from": s[0], "to": s[1]}) + "\n" for t, k, s in rows))
    three = tmp_path / "three.csv"
    three.write_text("text,label,from,to\n" + "".join(f"{t},{k},{s[0]},{s[1]}\n" for t, k, s in rows), encoding="utf-8")
    task = load_task(one, span_column="place")
    assert task.words == [t[s[0] : s[1]] for t, _, s in rows]
    assert task.groups is not None
    assert len(set(task.groups.tolist())) == 30
    named = {two: "from, to", three: "from, to"}
    for form in ("[{}, {}]", "({},{})", "{}, {}", "{}:{}", "{}-{}", " {} - {} "):
        path = tmp_path / f"form{len(named)}.csv"
        lines = [f'{t},{k},"{form.format(*s)}"\n' for t, k, s in rows]
        path.write_text("text,label,place\n" + "".join(lines), encoding="utf-8")
        named[path] = "place"
    for path, column in named.items():
        other = load_task(path, span_column=column)
        np.testing.assert_array_equal(other.spans, task.spans)
        np.testing.assert_array_equal(other.splits, task.splits)
    assert load_task(one).spans is None


@pytest.mark.shared
def test_the_english_web_treebank(shared_dir):
    task = load_task(shared_dir / "data" / "ud-english-ewt" / "en_ewt-ud-dev.conllu", label_column="upos")
    assert len(task) == 25_147
    assert task.n_classes() == 17
    assert task.info["multiword_tokens"] == 359
    assert task.info["empty_nodes"] == 4
    assert task.words is not None
    assert {"n't", "'s"} <= set(task.words)


def test_many_spans_in_a_row_are_as_many_rows(tmp_path):
    """Unfolded by hand the same task; what a span says besides becomes columns."""
    rng = np.random.default_rng(0)
    nested, flat = [], []
    for i in range(60):
        text = f"alpha{i} beta{i}"
        at = text.index(" ")
        ends = [(0, at), (at + 1, len(text)), (0, len(text))][: rng.integers(4)]
        spans = [{"start": a, "end": b, "label": "xy"[k % 2], "text": text[a:b]} for k, (a, b) in enumerate(ends)]
        nested.append({"text": text, "spans": spans})
        flat += [{"text": text, "place": [s["start"], s["end"]], "label": s["label"]} for s in spans]
    one, two = tmp_path / "words.jsonl", tmp_path / "flat" / "words.jsonl"
    two.parent.mkdir()
    one.write_text("".join(json.dumps(row) + "\n" for row in nested))
    two.write_text("".join(json.dumps(row) + "\n" for row in flat))
    task, wanted = load_task(one, span_column="spans"), load_task(two, span_column="place")
    assert len(task) == len(flat) > 60
    assert task.fingerprint() == wanted.fingerprint()
    table = unfolded(read_table(one), "spans")
    starts_and_ends = zip(table.column("text"), table.column("spans"), strict=True)
    assert table.column("spans.text") == [text[start:end] for text, (start, end) in starts_and_ends]


@pytest.mark.parametrize("more", [{}, {"label": "x"}])
def test_spans_are_scored_with_and_without_labels(more):
    rows = [{"text": f"alpha{i} beta", "spans": [{"start": 0, "end": 6, **more}] * (i % 3)} for i in range(10)]
    task = load_texts(rows, TaskOptions(span_column="spans"))
    assert task.words == [str(row["text"])[:6] for row in rows for _ in row["spans"]]
    assert task.target == ""
