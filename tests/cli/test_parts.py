"""`extract --part` and `merge` as they are typed: what is printed, the exit codes, and the next command."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from part_cases import TYPED
from store_cases import of_shards

from probekit.activations import PartDone
from probekit.activations.parts.cut import PartProgress
from probekit.activations.parts.describe import describe_part
from probekit.cli.main import run


@pytest.fixture
def extract(gpt2_folder, texts, here):
    def typed(*more):
        return run(["extract", "--model", str(gpt2_folder), "--dataset", str(texts), "--limit", "40", *TYPED, *more])

    return typed


def test_parts_say_what_is_missing_and_merge_joins_their_folders(extract, here, capsys):
    assert extract("--out", "one") == 0
    quiet = TYPED.pop()
    try:
        assert extract("--out", "a", "--part", "1/2") == 0
    finally:
        TYPED.append(quiet)
    out, said = capsys.readouterr()
    assert out.splitlines()[-1] == "a"
    assert "part     1 of 2: " in said
    assert "\npart 1/2: done, " in said
    assert "\nmissing in a: part 2/2 (0 of " in said
    assert "with --part 2/2; " in said
    assert run(["merge", "a", "--out", "all", "--quiet"]) == 4
    assert "missing in part 2/2 (0 of " in capsys.readouterr().err
    assert run(["ls", "."]) == 0
    assert "; missing in part 2/2 (0 of " in capsys.readouterr().out
    assert extract("--out", "b", "--part", "2/2", "--json") == 0
    told = json.loads(capsys.readouterr().out)["part"]
    assert (told["part"], told["of"], told["complete"]) == (2, 2, False)
    assert run(["merge", "a", "b", "--out", "all"]) == 0
    out, said = capsys.readouterr()
    assert out == "all\n"
    assert "complete: " in said
    assert of_shards(here / "all") == of_shards(here / "one")
    assert extract("--out", "one", "--part", "1/3", "--dry-run", "--json") == 0
    shares = json.loads(capsys.readouterr().out)["part"]["shares"]
    assert sum(shares) == pytest.approx(1)
    assert extract("--out", "one", "--part", "1/40", "--dry-run") == 0
    assert "smaller shards cut more evenly: --shard-bytes " in capsys.readouterr().out


def test_the_next_command_can_be_pasted():
    done = PartDone(Path("my store"), 1, 2, 3, 30, 3, False, [PartProgress(2, 2, 3, 0)], None)
    said = describe_part(done)
    assert "missing in 'my store': part 2/2 (0 of 3 shards)" in said
    assert "probekit merge 'my store' FOLDER" in said
    complete = replace(done, complete=True, missing=[])
    assert describe_part(complete).endswith("probekit train-probe 'my store'")


def test_a_merge_of_other_extractions_names_the_fields(extract, capsys):
    assert extract("--out", "a", "--part", "1/2") == 0
    assert extract("--out", "b", "--part", "2/2", "--store-dtype", "fp16") == 0
    capsys.readouterr()
    assert run(["merge", "a", "b", "--out", "all"]) == 5
    assert "dtype: 'float16' there, 'float32' here" in capsys.readouterr().err
    assert run(["merge", "a", "nothing", "--out", "all"]) == 3
