"""What holds of every built-in task."""

import numpy as np
import pytest

from probekit.errors import UsageError
from probekit.tasks import BUILTIN_TASKS, load_task
from probekit.tasks.base import SPLITS


@pytest.mark.parametrize("name", BUILTIN_TASKS)
def test_splits_share_no_text_and_no_group_and_every_label_set_can_be_probed(name):
    task = load_task(name)
    assert (task.name, task.info["source"]) == (name, name)
    for label_set in task.labels:
        task.check(label_set)
    assert task.info["also_in_train"] == {"validation": 0, "test": 0}
    assert task.info["groups_across_splits"] in (None, 0)
    texts = [{str(task.inputs[i]) for i in np.flatnonzero(task.splits == split)} for split in SPLITS]
    assert sum(map(len, texts)) == len(set.union(*texts))
    other = load_task(name, seed=1)
    unseen = {str(other.inputs[i]) for i in np.flatnonzero(other.splits != "train")}
    assert unseen.isdisjoint(texts[0])
    assert other.fingerprint() != task.fingerprint() == load_task(name).fingerprint()


@pytest.mark.parametrize("name", BUILTIN_TASKS)
def test_a_limit_keeps_every_class(name):
    task = load_task(name, limit=40)
    assert all((task.splits == split).sum() <= 40 for split in SPLITS)
    task.check()
    assert task.targets is None or len(task.targets) == len(task)


def test_names_near_a_task_are_named():
    with pytest.raises(UsageError, match="did you mean counting"):
        load_task("countin")
