"""The default folder's name says what differs from the defaults; results of another question are not replaced."""

import json
from pathlib import Path
from typing import Any

import pytest

from probekit.cli.fields import CliOption
from probekit.cli.main import COMMANDS
from probekit.cli.results import check_question
from probekit.errors import ResumeMismatch
from probekit.options import ProbeOptions
from probekit.options.question import NAME_ORDER, Question, asked_by, default_folder

USED = ("label", "resid_pre", "logistic")
ACTIVATIONS = {"model": "m", "task": "t"}


def question(random_init: bool = False, **options: Any) -> Question:
    return Question("train-probe", "curve", asked_by(ProbeOptions(**options), random_init=random_init))


def name(**options: Any) -> str:
    folder = default_folder(question(**options), Path("s"), *USED)
    assert folder.parent == Path("s")
    return folder.name


@pytest.mark.parametrize(
    ("options", "tags"),
    [
        ({}, ""),
        ({"layers": "0-1"}, "-layers-0-1"),
        ({"position": "last"}, "-last"),
        ({"position": -2}, "--2"),
        ({"C": [0.01, 1, 100]}, "-C-0.01-1-100"),
        ({"folds": 3}, "-folds-3"),
        ({"drop_leaks": True}, "-drop-leaks"),
        ({"random_init": True}, "-random-init"),
        ({"controls": 0, "codelength": False}, "-controls-0-no-codelength"),
        ({"intervals": False}, "-no-intervals"),
        ({"control_type": "text", "metric": "f1"}, "-control-text-f1"),
        ({"control_C": "own"}, "-control-C-own"),
        ({"seed": 7}, "-seed-7"),
        (
            {"seed": 1, "metric": "auroc", "C": 2, "position": "mean", "layers": "3", "random_init": True},
            "-mean-layers-3-C-2-random-init-auroc-seed-1",
        ),
        ({"point": "resid_pre", "label": "label"}, ""),  # always part of the name
    ],
)
def test_the_name_holds_what_differs_from_the_defaults(options: dict[str, Any], tags: str) -> None:
    assert name(**options) == f"label-resid_pre-logistic{tags}"


def test_names_that_would_be_spelled_alike_have_a_digest() -> None:
    assert name(layers="0,3") == "label-resid_pre-logistic-layers-0-3-325439eb"
    assert name(layers="0-3") == "label-resid_pre-logistic-layers-0-3"
    assert len(name(C=[1 / i for i in range(1, 80)])) == 189


def test_the_parameters_of_a_probe_are_in_the_name() -> None:
    assert name(probe={"name": "k-sparse", "k": 4}) == "label-resid_pre-k-sparse-k-4"


def test_every_option_of_the_command_has_a_place_in_the_name() -> None:
    job = COMMANDS["train-probe"].options.values()
    fields = {one.field.name for one in job if one.owner == "options"} - {"label", "point", "probe", "seed"}
    assert {*NAME_ORDER} == fields | {"random_init"}
    assert all(isinstance(one, CliOption) for one in job)


def write(folder: Path, asked: dict[str, Any]) -> None:
    folder.mkdir()
    record = {"meta": {"asked": asked, "activations": ACTIVATIONS}}
    (folder / "results.json").write_text(json.dumps(record))


OLD = {
    "layers": "all",
    "point": None,
    "probe": None,
    "label": None,
    "seed": 0,
    "controls": 3,
    "control_type": "token",
    "codelength": True,
    "folds": None,
    "drop_leaks": False,
    "metric": None,
    "random_init": False,
}
"""What versions before this one recorded: position and C only where they were given."""


@pytest.mark.parametrize("more", [{}, {"C": [1.0, 0.01], "position": "last"}, {"seed": 3, "random_init": True}])
def test_results_of_earlier_versions_are_recognised(tmp_path: Path, more: dict[str, Any]) -> None:
    write(tmp_path / "out", {**OLD, **more})
    for control_C in ("label", "own"):  # those results do not say; the command that made them had no such option
        check_question(tmp_path / "out", question(**more, control_C=control_C), ACTIVATIONS)
    other = question(**more, quick=True, controls=1, codelength=True, metric="f1")
    with pytest.raises(ResumeMismatch, match=r"different: controls, metric, quick"):
        check_question(tmp_path / "out", other, ACTIVATIONS)
    with pytest.raises(ResumeMismatch, match=r"different: task"):
        check_question(tmp_path / "out", question(**more), {**ACTIVATIONS, "task": "another"})


def test_results_that_record_the_C_of_their_control_tasks_keep_it(tmp_path: Path) -> None:
    write(tmp_path / "out", question(control_C="own").asked)
    check_question(tmp_path / "out", question(control_C="own"), ACTIVATIONS)
    with pytest.raises(ResumeMismatch, match=r"different: control_C\)"):
        check_question(tmp_path / "out", question(control_C="label"), ACTIVATIONS)


@pytest.mark.parametrize("record", [{"seed": -1}, {"C": "many"}, {"layers": None}, [], 3, {"probe": {"name": "lda"}}])
def test_a_record_that_no_version_wrote_is_another_question_or_none(tmp_path: Path, record: Any) -> None:
    write(tmp_path / "out", record)
    if isinstance(record, dict):
        with pytest.raises(ResumeMismatch):
            check_question(tmp_path / "out", question(), ACTIVATIONS)
    else:
        check_question(tmp_path / "out", question(), ACTIVATIONS)
