"""Commands without a path take the newest store that holds results."""

import os
from pathlib import Path

import pytest

from probekit.errors import DataError
from probekit.manifest import newest_with_results


def test_the_newest_store_that_has_results(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no complete store"):
        newest_with_results(tmp_path, ["results.json"])
    for date, name in enumerate("abc"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").touch()
        os.utime(tmp_path / name / "manifest.json", (date, date))
    assert newest_with_results(tmp_path, ["results.json"]).name == "c"  # none has any, and its error says what to run
    for path in ("a/results/one/results.json", "b/results/several/one/results.json", "c/results/two/causal.json"):
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).touch()
    assert newest_with_results(tmp_path, ["results.json"]).name == "b"
    assert newest_with_results(tmp_path, ["results.json", "causal.json"]).name == "c"
