"""A worker of `extract --engine ray`: one process of the cluster, which computes and writes the shards it is given.

It gets a path and numbers. It answers {"node": the name of its machine} when it runs, and then as `answers.py` says.
A file of its own, so that versions are compared before anything else of this package is imported there.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

from probekit.engines.answers import Answer, check_sees, check_versions, error_answer, here


class ShardWorker:
    """An actor of the cluster.

    Its checks and the model's loading are calls, and no part of `__init__`, of whose errors Ray makes a traceback.
    """

    def __init__(self) -> None:
        self._path, self._check, self._plan = "", "size", None

    def look(self, path: str, versions: Mapping[str, str], check: str) -> Answer:
        """Check that this machine sees the store at `path` and has the driver's versions."""

        def compare() -> Answer:
            check_sees(path, "plan.json")
            check_versions(versions)
            self._path, self._check = path, check
            return {"node": here()}

        return _answer(compare)

    def load(self) -> Answer:
        """Load the model of the store."""

        def load() -> Answer:
            from probekit.activations.parts.work import open_work

            self._plan = open_work(self._path)
            return {"ready": True}

        return _answer(load)

    def write(self, numbers: Sequence[int]) -> Answer:
        """Compute these shards and write them; those that have a record already are not computed again."""

        def compute() -> Answer:
            from probekit.activations.parts.work import write_shards

            assert self._plan is not None
            return {"done": [asdict(done) for done in write_shards(self._plan, self._path, numbers, self._check)]}

        return _answer(compute)


def _answer(work: Callable[[], Answer]) -> Answer:
    try:
        return work()
    except Exception as error:
        return error_answer(error)
