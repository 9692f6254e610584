"""The records of a causal run's places: what decides their numbers, and their form."""

from pathlib import Path

import pytest
from causal.curve.test_effects import OTHER, OWN, parts, run, trained

from probekit.causal.curve import causal_curve as module
from probekit.causal.curve.parts import begin_places, kept_places, read_place
from probekit.causal.curve.question import causal_question
from probekit.options import CausalOptions

assert parts  # the fixture
HOW = {"methods": "erase", "layers": 0, "placebos": 0}


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The places that are measured from here on."""
    found: list[str] = []
    real = module.measure_place
    monkeypatch.setattr(module, "measure_place", lambda *args: found.append(args[1].place) or real(*args))
    return found


def test_a_file_of_neutral_texts_counts_by_its_content(parts, measured: list[str], tmp_path: Path) -> None:
    neutral = tmp_path / "neutral.jsonl"
    for text, times in (("[1]", 1), ("[1]", 1), ("[2]", 2)):
        neutral.write_text(f'{{"ids": {text}}}\n{{"ids": [3, 4]}}\n')
        run(parts, neutral=neutral, keep=tmp_path / "kept", **HOW)
        assert len(measured) == times


def test_a_sealed_record_without_its_form_is_made_again(parts, measured: list[str], tmp_path: Path) -> None:
    first = run(parts, keep=tmp_path, **HOW)
    model, acts = parts
    how = {"answers": [str(OWN), str(OTHER)], "answers_label": "used", "das": False, "completeness": False, "rows": 60}
    options = CausalOptions(**how, **HOW)
    records = begin_places(tmp_path, causal_question(model, acts, trained(acts, "used"), options))
    sound = records.read("resid_pre.0")
    for broken in ({"effects": []}, {**sound, "effects": [{"effect": 1.0}]}, {**sound, "chosen": {"guess": {}}}):
        records.write("resid_pre.0", broken, replace=True)
        assert read_place(records, "resid_pre.0") is None
        assert kept_places(tmp_path) == 0
        assert run(parts, keep=tmp_path, **HOW).effects == first.effects
    assert measured == ["resid_pre.0"] * 4
