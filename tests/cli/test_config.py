"""`--config` and `--set`: what is refused, and who wins."""

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from probekit.cli import main as cli
from probekit.cli.config import read_config, read_setting
from probekit.cli.fields import JsonOutput, cli_options, required
from probekit.errors import UsageError
from probekit.options.option import option


@dataclass(frozen=True, kw_only=True)
class Job(JsonOutput):
    """The options of a command of the tests' own."""

    name: str = required("A name.", "NAME")
    limit: int | None = option(None, "A limit.")
    rate: float = option(1.0, "A rate.")
    on_long: str = option("cut", "What to do.")
    out: Path | None = option(None, "Where.")


def job(job: Job) -> None:
    """A command of the tests' own."""


@dataclass(frozen=True, kw_only=True)
class OtherJob:
    """The options of another command."""

    layer: str = option("all", "Layers.")
    probe: str | None = option(None, "A probe.", takes_parameters=True)


def other_job(job: OtherJob) -> None:
    """Another command."""


SECTIONS = {"job": cli_options(job), "other-job": cli_options(other_job)}


def _config(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    return path


def test_keys_are_the_long_options_without_dashes() -> None:
    assert {one.key: one.kind for one in SECTIONS["job"].values()} == {
        "name": str,
        "limit": int,
        "rate": float,
        "on-long": str,
        "out": Path,
        "json": bool,
    }


def test_values_become_what_the_options_take(tmp_path: Path) -> None:
    path = _config(tmp_path, "job: {name: [a, 3], limit: 5, rate: 2, on_long: cut, out: x/y, json: true}\nother-job:\n")
    expected = {"name": "a,3", "limit": 5, "rate": 2.0, "on_long": "cut", "out": "x/y", "json": True}
    assert read_config(path, SECTIONS) == {"job": expected, "other-job": {}}


def test_an_empty_file_sets_nothing(tmp_path: Path) -> None:
    assert read_config(_config(tmp_path, "# nothing yet\n"), SECTIONS) == {}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("jobs: {limit: 3}", "no section 'jobs'; did you mean job"),
        ("job: {limits: 3}", "job has no key 'limits'; did you mean limit"),
        ("job: {config: x}", "job has no key 'config'"),
        ("other-job: {lajer: 3}", "other-job has no key 'lajer'; did you mean layer"),
        ("job: {limit: many}", "job.limit: expected a whole number, got 'many'"),
        ("job: {limit: 1.5}", "job.limit: expected a whole number, got 1.5"),
        ("job: {limit: true}", "job.limit: expected a whole number, got True"),
        ("job: {json: 1}", "job.json: expected true or false, got 1"),
        ("job: {name: no}", "job.name: expected text, got False (write it in quotes"),
        ("job: {name: {a: b}}", "job.name: expected text, got a mapping"),
        ("job: {rate: fast}", "job.rate: expected a number, got 'fast'"),
        ("job: 3", "job needs keys with values, got 3"),
        ("[job]", "expected sections such as 'extract: {model: gpt2}', got a list"),
        ("job:\n  limit: [1\n", "line 3: not YAML"),
        ("job: {limit: 1}\n}", "line 2: not YAML"),
        ("job: !!python/object/apply:os.system [true]", "line 1: not YAML"),
        ("job: \x00", "not YAML"),
    ],
)
def test_a_bad_file_is_refused_by_place(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_config(_config(tmp_path, text), SECTIONS)
    assert says in str(caught.value)
    assert "c.yaml" in str(caught.value)


def test_files_that_cannot_be_read_are_usage_errors(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read the config .*No such file"):
        read_config(tmp_path / "absent.yaml", SECTIONS)
    with pytest.raises(UsageError, match="cannot read the config"):
        read_config(tmp_path, SECTIONS)
    latin = tmp_path / "latin.yaml"
    latin.write_bytes("job: {name: é}".encode("latin-1"))
    with pytest.raises(UsageError, match="not YAML"):
        read_config(latin, SECTIONS)


def test_a_value_may_have_parameters(tmp_path: Path) -> None:
    path = _config(tmp_path, "other-job: {probe: {name: k-sparse, k: 4}}")
    assert read_config(path, SECTIONS) == {"other-job": {"probe": {"name": "k-sparse", "k": 4}}}
    assert read_setting("other-job.probe.k=4", SECTIONS) == ("other-job", "probe", {"k": "4"})
    with pytest.raises(UsageError, match=r"other-job\.layer has no parameters"):
        read_setting("other-job.layer.k=4", SECTIONS)
    with pytest.raises(UsageError, match=r"other-job\.probe: expected a name and its parameters"):
        read_config(_config(tmp_path, "other-job: {probe: {name: [k-sparse]}}"), SECTIONS)


def test_a_setting_is_read_as_if_typed() -> None:
    assert read_setting("job.limit=100", SECTIONS) == ("job", "limit", "100")
    assert read_setting("job.name=a=b.c", SECTIONS) == ("job", "name", "a=b.c")
    assert read_setting("other-job.layer=0,4,8", SECTIONS) == ("other-job", "layer", "0,4,8")
    for bad in ("limit=100", "job.limit", "=", ""):
        with pytest.raises(UsageError, match=r"--set takes COMMAND\.KEY=VALUE"):
            read_setting(bad, SECTIONS)
    with pytest.raises(UsageError, match="no section 'jop'; did you mean job"):
        read_setting("jop.limit=1", SECTIONS)
    with pytest.raises(UsageError, match="job has no key 'lim'; did you mean limit"):
        read_setting("job.lim=1", SECTIONS)


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The options that reached the work of `extract`, call by call."""
    calls: list[dict[str, Any]] = []

    def planned(job: Any, model: Any, task: Any, options: Any) -> None:
        calls.append({**vars(options), **vars(model), **vars(task), **vars(job)})

    monkeypatch.setattr("probekit.cli.extract.planned", planned)
    monkeypatch.setattr("probekit.cli.extract.write_store", lambda *_: ("store", {}))
    return calls


@pytest.fixture
def config(tmp_path: Path) -> str:
    return str(_config(tmp_path, "extract: {model: from-file, dataset: from-file, limit: 1, seed: 1, bos: true}\n"))


def test_option_over_set_over_file_over_default(called: list[dict[str, Any]], config: str) -> None:
    args = ["--config", config, "--set", "extract.limit=2", "--set", "extract.seed=2", "--seed", "3"]
    for order in (args, args[2:] + args[:2]):
        assert cli.run(["extract", *order]) == 0
        assert called[-1]["model"] == "from-file"
        assert called[-1]["limit"] == 2
        assert called[-1]["seed"] == 3
        assert called[-1]["bos"] is True
        assert called[-1]["on_long"] == "cut"


def test_an_option_given_as_its_default_still_wins(called: list[dict[str, Any]], config: str) -> None:
    assert cli.run(["extract", "--config", config, "--seed", "0", "--no-bos"]) == 0
    assert called[-1]["seed"] == 0
    assert called[-1]["bos"] is False


@pytest.mark.parametrize("path", sorted((Path(__file__).parents[2] / "configs").glob("*.yaml")), ids=lambda p: p.name)
def test_the_configs_that_come_along_are_sound(path: Path) -> None:
    assert read_config(path, cli.SECTIONS)


def _laughs(first: str, use: str) -> str:
    """Ten aliases of ten aliases, and so on: 10^9 values in 600 bytes."""
    lines = [f"a: &a {first}"]
    lines += [f"{b}: &{b} [{', '.join([f'*{a}'] * 10)}]" for a, b in itertools.pairwise("abcdefghij")]
    return "\n".join([*lines, f"job: {use}"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (_laughs("lol", "{name: *j}"), "more than 10,000 values"),
        (_laughs("{k: v}", "{<<: *j}"), "more than 10,000 values"),
        ("job: &a [*a]", "an alias that contains itself"),
        ("job: {limit: !!float x}", "not YAML"),
        ("job: {limit: !!timestamp 99999}", "not YAML"),
        ("job: {limit: !!bool 7}", "not YAML"),
        ("job: {limit: " + "9" * 5000 + "}", "at most 40 characters, got 5,000"),
        ("job: {limit: " + "1:" * 5000 + "1}", "at most 40 characters"),
        ("job: " + "[" * 10_000, "nested too deeply"),
        ("#" * 2_000_000, "more than the 1,048,576 that are read"),
    ],
)
def test_a_config_that_unfolds_without_end_or_holds_no_values_is_refused(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        read_config(_config(tmp_path, text), SECTIONS)


def test_a_config_may_use_aliases(tmp_path: Path) -> None:
    text = "job: &a {name: x, limit: 3}\nother-job: {layer: all}\n"
    assert read_config(_config(tmp_path, text), SECTIONS)["job"] == {"name": "x", "limit": 3}
