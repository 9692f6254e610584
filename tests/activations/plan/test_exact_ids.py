"""A task that holds the token ids of its texts is run as these ids, whatever the tokenizer would make of the texts."""

from dataclasses import replace

import pytest
import torch

from probekit.activations.plan.token_ids import tokenise_inputs
from probekit.errors import DataError
from probekit.verbs.extract import extract

IDS = [[5, 5, 7], [1], [2, 9, 9, 3]]


@pytest.mark.parametrize("bos", [None, False, True])
def test_the_ids_of_a_task_are_what_runs(model, letters, bos):
    texts, ids = letters(3), replace(letters(3), inputs=IDS)
    exact = replace(texts, token_ids=IDS)
    sequences = tokenise_inputs(model, exact, bos, "error")
    assert [sequences[i].tolist() for i in range(3)] == [[0] * bool(bos) + own for own in IDS]
    found, expected = (extract(model, task, position="all", bos=bos) for task in (exact, ids))
    assert found.task.inputs == texts.inputs
    assert all(torch.equal(found[place], expected[place]) for place in expected)


def test_texts_that_were_tokenised_need_no_tokenizer(tiny, letters):
    model = tiny()
    model.tokenizer = None
    task = replace(letters(3), token_ids=IDS)
    assert extract(model, task)["resid_pre", 0].shape == (3, 16)


@pytest.mark.parametrize(("ids", "found"), [([], "no tokens"), ([27], "0..26, got 27"), (["a"], "got 'a'")])
def test_ids_that_the_model_cannot_take_are_refused_with_the_row(model, letters, ids, found):
    with pytest.raises(DataError, match="train:101.*" + found) as error:
        tokenise_inputs(model, replace(letters(3), token_ids=[[1], ids, [2]]), None, "cut")
    assert "tokenizer" not in str(error.value)


def test_ids_longer_than_the_context_are_cut_or_refused(model, letters):
    task = replace(letters(2), token_ids=[[1] * 14, [2]])
    cut = tokenise_inputs(model, task, None, "cut")
    assert (cut.lengths.tolist(), cut.n_cut) == ([12, 1], 1)
    with pytest.raises(DataError, match="14 tokens"):
        tokenise_inputs(model, task, None, "error")
