from typing import Any

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from probekit.evaluation.compare import baseline_fits
from probekit.evaluation.compare.baseline_fits import (
    BAG_OF_BIGRAMS,
    BASELINE_C,
    WORD,
    BaselineFit,
    bags_of_words,
    dense_fits,
    fit_path,
    majority,
    mean,
    selection_parts,
    word_counts,
)
from probekit.evaluation.compare.lengths import length_features, with_squares
from probekit.verbs.train_probes import train_probes

N = 240
ROWS = np.arange(N)
TRAIN, VALIDATION, TEST = ROWS[ROWS % 4 < 2], ROWS[ROWS % 4 == 2], ROWS[ROWS % 4 == 3]


def bag_of_words(inputs, labels, train, validation, n_classes, metric=None):
    """The one that validation chooses, as a curve's baseline is chosen."""
    tried = bags_of_words(word_counts(inputs), labels, train, n_classes)
    return max(tried, key=lambda fit: selection_parts(fit, labels, validation, n_classes, metric))


def length(inputs, labels, train, n_classes):
    """Of the lengths alone, at the C that is taken where nothing chooses."""
    features = with_squares(length_features(inputs), train)
    return dense_fits("length", features, labels, train, n_classes, [1.0])[0]


def word_task(as_ids: bool):
    """The class is which of two words stands somewhere among others."""
    rng = np.random.default_rng(0)
    labels = rng.integers(2, size=N)
    ids = [[*rng.integers(5, 30, size=6).tolist(), 1 + int(y)] for y in labels]
    for text in ids:
        rng.shuffle(text)
    return (ids if as_ids else [" ".join(f"w{i}" for i in text) for text in ids]), labels


def order_task(as_ids: bool):
    """The class is which of two words comes first; both always stand there."""
    rng = np.random.default_rng(0)
    labels = rng.integers(2, size=N)
    ids = [[*rng.integers(5, 30, size=4).tolist(), *([1, 2] if y else [2, 1])] for y in labels]
    return (ids if as_ids else [" ".join(f"w{i}" for i in text) for text in ids]), labels


def right(fit, labels, rows):
    return (fit.predicted == labels)[rows].mean()


@pytest.mark.parametrize("as_ids", [False, True])
def test_bag_of_words_knows_words_and_not_their_order(as_ids):
    texts, labels = word_task(as_ids)
    fit = bag_of_words(texts, labels, TRAIN, VALIDATION, 2)
    assert right(fit, labels, TEST) == 1
    assert fit.converged
    texts, labels = order_task(as_ids)
    assert abs(right(bag_of_words(texts, labels, TRAIN, VALIDATION, 2), labels, TEST) - 0.5) < 0.2


def test_several_classes_have_a_score_each():
    labels = ROWS % 3
    fit = bag_of_words([f"word{y} x{i}" for i, y in enumerate(labels)], labels, TRAIN, VALIDATION, 3)
    assert fit.scores.shape == (N, 3)
    assert right(fit, labels, TEST) == 1


def test_test_texts_and_labels_change_nothing():
    texts, labels = word_task(False)
    fit = bag_of_words(texts, labels, TRAIN, VALIDATION, 2)
    other_texts, other_labels = list(texts), labels.copy()
    other_labels[TEST] = 1 - labels[TEST]
    for i in TEST:
        other_texts[i] = "other words altogether"
    other = bag_of_words(other_texts, other_labels, TRAIN, VALIDATION, 2)
    assert other.C == fit.C
    np.testing.assert_array_equal(other.scores[VALIDATION], fit.scores[VALIDATION])


@pytest.mark.parametrize("text", ["!", "\x00\x1b[31m", "\ud800", "日本", "a", "<script>", "́"])
def test_strange_texts_have_words(text):
    labels = ROWS % 2
    fit = bag_of_words([text if y else f"{text} {text} z" for y in labels], labels, TRAIN, VALIDATION, 2)
    assert right(fit, labels, TEST) == 1


def test_texts_without_words_leave_the_commonest_class():
    labels = (ROWS % 8 == 0).astype(int)
    fit = bag_of_words([" "] * N, labels, TRAIN, VALIDATION, 2)
    assert (fit.predicted == 0).all()


def test_majority_is_that_of_training():
    labels = np.zeros(N, dtype=int)
    labels[TRAIN[:80]] = 1
    fit = majority(labels, TRAIN, 2)
    assert (fit.predicted == 1).all()
    assert fit.scores.shape == (N,)
    assert majority(labels, TRAIN, 3).scores.shape == (N, 3)
    assert (majority(ROWS % 2, TRAIN, 2).predicted == 0).all()  # of equals the first


def test_probabilities_are_those_of_the_scores():
    texts, labels = word_task(False)
    for fit in (bag_of_words(texts, labels, TRAIN, VALIDATION, 2), length(texts, labels, TRAIN, 2)):
        assert fit.probabilities is not None
        np.testing.assert_allclose(fit.probabilities[:, 1], 1 / (1 + np.exp(-fit.scores)), atol=1e-12)
    labels = np.where(ROWS % 8 == 0, 0, 1 + ROWS % 2)
    fit = majority(labels, TRAIN, 3)
    assert fit.probabilities is not None
    np.testing.assert_allclose(fit.probabilities, np.tile(np.bincount(labels[TRAIN]) / len(TRAIN), (N, 1)))


@pytest.mark.parametrize("as_ids", [False, True])
def test_length_knows_length_alone(as_ids):
    rng = np.random.default_rng(0)
    labels = rng.integers(2, size=N)
    ids = [rng.integers(5, 30, size=rng.integers(3, 9) + 8 * y).tolist() for y in labels]
    inputs = ids if as_ids else [" ".join(f"w{i}" for i in one) for one in ids]
    assert right(length(inputs, labels, TRAIN, 2), labels, TEST) == 1
    texts, labels = word_task(as_ids)
    assert abs(right(length(texts, labels, TRAIN, 2), labels, TEST) - 0.5) < 0.2


def test_characters_and_words_are_told_apart():
    """As many characters in all, in few words or in many."""
    labels = ROWS % 2
    inputs = ["ab cd ef gh ij kl" if y else "abcdefghij klmnop" for y in labels]
    assert right(length(inputs, labels, TRAIN, 2), labels, TEST) == 1


def squared_error(fit, labels):
    return ((fit.predicted - labels)[TEST] ** 2).mean() / labels[TEST].var()


def test_a_regression_has_the_mean_the_words_and_the_length():
    rng = np.random.default_rng(0)
    counts = rng.integers(0, 2, size=(N, 6))
    labels = counts @ np.array([1.5, -2.0, 3.0, 0.5, -1.0, 2.5]) + 10
    texts = [" ".join(["x", *(f"w{k}" for k in np.flatnonzero(row))]) for row in counts]
    words = bag_of_words(texts, labels, TRAIN, VALIDATION, 0)
    assert (words.name, words.probabilities, words.converged) == ("bag-of-words", None, True)
    assert squared_error(words, labels) < 0.15
    np.testing.assert_array_equal(words.scores, words.predicted)
    assert (mean(labels, TRAIN).predicted == labels[TRAIN].mean()).all()
    long = ["w " * int(n) for n in rng.integers(1, 50, size=N)]
    sizes = np.log([len(text) for text in long])
    assert squared_error(length(long, sizes, TRAIN, 0), sizes) < 0.02
    nothing = bag_of_words([" "] * N, labels, TRAIN, VALIDATION, 0)
    assert (nothing.predicted == labels[TRAIN].mean()).all()


def rare_task():
    """One in ten is of class 1, and half of those have a word of their own; what else stands there is noise."""
    rng = np.random.default_rng(4)
    labels = (rng.random(N) < 0.1).astype(int)
    words = [[*rng.integers(5, 40, size=8).tolist(), *([1] if y and rng.random() < 0.5 else [])] for y in labels]
    return [" ".join(f"w{i}" for i in text) for text in words], labels


def test_the_words_are_chosen_by_the_metric_that_is_asked_for():
    texts, labels = rare_task()
    by = {metric: bag_of_words(texts, labels, TRAIN, VALIDATION, 2, metric) for metric in ("accuracy", "auroc")}
    tried = [fitted(texts, labels, C) for C in BASELINE_C]
    areas = [roc_auc_score(labels[VALIDATION], fit.scores[VALIDATION]) for fit in tried]
    shares = [right(fit, labels, VALIDATION) for fit in tried]
    assert BASELINE_C[int(np.argmax(areas))] == by["auroc"].C
    assert shares[BASELINE_C.index(by["accuracy"].C)] == max(shares)


def fitted(texts, labels, C):
    features = TfidfVectorizer(token_pattern=WORD).fit([texts[i] for i in TRAIN]).transform(texts)
    model = LogisticRegression(C=C, solver="newton-cg", max_iter=1000, tol=1e-9).fit(features[TRAIN], labels[TRAIN])
    scores = model.decision_function(features)
    return BaselineFit("bag-of-words", (scores > 0).astype(int), scores, C)


def test_words_whose_fit_did_not_converge_lose_against_those_whose_did(monkeypatch):
    texts, labels = word_task(False)
    best = bag_of_words(texts, labels, TRAIN, VALIDATION, 2)
    assert BASELINE_C[0] != best.C

    def first_alone(*given):
        first, *others = fit_path(*given)
        return [first, *((coef, intercept, False) for coef, intercept, _ in others)]

    monkeypatch.setattr("probekit.evaluation.compare.baseline_fits.fit_path", first_alone)
    assert BASELINE_C[0] == bag_of_words(texts, labels, TRAIN, VALIDATION, 2).C


@pytest.mark.parametrize("most", [7, 1000])
@pytest.mark.parametrize("as_ids", [False, True])
def test_words_are_weighted_as_scikit_learn_weights_them(as_ids, most):
    texts: list[Any] = word_task(as_ids)[0]
    texts[TEST[0]] = [77, 5] if as_ids else "unknown w5 w5 ."
    how: dict[str, Any] = {"analyzer": lambda ids: [str(i) for i in ids]} if as_ids else {"token_pattern": WORD}
    expected = TfidfVectorizer(**how, max_features=most).fit([texts[i] for i in TRAIN]).transform(texts)
    counts = word_counts(texts)
    assert counts is not None
    found = baseline_fits._tf_idf(counts, TRAIN, most)
    assert found is not None
    np.testing.assert_allclose(found.toarray(), expected.toarray(), rtol=1e-14)


def test_the_words_are_counted_once_for_all_folds_and_label_sets(world, monkeypatch):
    counted = []
    monkeypatch.setattr("probekit.evaluation.rows.word_counts", lambda *given: counted.append(1) or word_counts(*given))
    acts = world(n=60, strength=(1.0,) * 5)
    train_probes(acts, layers=[0], probe="mean-diff", labels="all", folds=3, controls=0, intervals=False)
    assert len(counted) == 2  # words, and words with bigrams


@pytest.mark.parametrize("as_ids", [False, True])
def test_bigrams_know_the_order_of_neighbours(as_ids):
    texts, labels = order_task(as_ids)
    tried = bags_of_words(word_counts(texts, 2), labels, TRAIN, 2, name=BAG_OF_BIGRAMS)
    fit = max(tried, key=lambda fit: selection_parts(fit, labels, VALIDATION, 2))
    assert fit.name == "bag-of-bigrams"
    assert right(fit, labels, TEST) > 0.9 or as_ids
    assert right(fit, labels, TEST) > right(bag_of_words(texts, labels, TRAIN, VALIDATION, 2), labels, TEST)


@pytest.mark.parametrize("as_ids", [False, True])
def test_bigrams_are_weighted_as_scikit_learn_weights_them(as_ids):
    texts: list[Any] = word_task(as_ids)[0]
    words = [" ".join(f"w{i}" for i in one) for one in texts] if as_ids else texts
    own = TfidfVectorizer(token_pattern=WORD, ngram_range=(1, 2)).fit([words[i] for i in TRAIN])
    found = baseline_fits._tf_idf(word_counts(texts, 2), TRAIN, 10_000)
    assert found.shape == (N, len(own.vocabulary_))
    expected = np.sort(own.transform(words).toarray(), axis=1)  # the columns of token ids are in another order
    np.testing.assert_allclose(np.sort(found.toarray(), axis=1), expected, rtol=1e-14)


def test_lengths_are_of_characters_words_sentences_and_tokens():
    texts = ["One. Two words! Three?", "no end", "日本。日本。", ""]
    expected = np.log1p([[22, 4, 3, 7], [6, 2, 1, 2], [6, 1, 2, 4], [0, 0, 1, 1]])
    np.testing.assert_allclose(length_features(texts, np.array([7, 2, 4, 1])), expected)
    np.testing.assert_allclose(length_features([[1, 2, 3], []]), np.log1p([[3], [0]]))


def test_a_class_of_middle_length_is_known_by_its_length():
    rng = np.random.default_rng(1)
    sizes = rng.integers(1, 60, size=N)
    labels = ((sizes > 6) & (sizes < 25)).astype(int)
    assert right(length(["w " * int(n) for n in sizes], labels, TRAIN, 2), labels, TEST) > 0.9


def test_every_baseline_has_the_grid_of_the_probe(world):
    results = train_probes(world(n=120), layers=[0], probe="logistic", controls=0, codelength=False)
    chosen = {each.name: each.C for each in results.baselines}
    assert list(chosen) == ["majority", "bag-of-words", "bag-of-bigrams", "length"]
    assert {C for name, C in chosen.items() if name != "majority"} <= set(results.meta["C"]) == set(BASELINE_C)
    assert all("accuracy" in each.intervals for each in results.baselines)
