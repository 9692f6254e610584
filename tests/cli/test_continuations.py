"""`probekit extract --generate`: the plan, the dry run, a run that is stopped and resumed, and what is refused."""

# pyright: reportOptionalMemberAccess=false, reportOptionalSubscript=false, reportArgumentType=false

import json
from pathlib import Path

import pytest

from probekit.activations import load_activations
from probekit.activations.continuations import plan as planning
from probekit.activations.continuations import write
from probekit.cli.main import run
from probekit.models import load_model
from probekit.text import printable

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def job(gpt2_folder: Path, texts: Path) -> list[str]:
    job = ["extract", "--model", str(gpt2_folder), "--dataset", str(texts), "--generate", "4", "--temperature", "1"]
    return [*job, "--generate-seed", "3", "--layers", "1"]


def said(capsys: Capture, *args: str) -> tuple[str, str]:
    assert run([*args]) == 0
    return capsys.readouterr()


def test_the_store_has_what_the_model_wrote(here, job, gpt2_folder, capsys):
    out, err = said(capsys, *job)
    acts = load_activations(out.strip())
    assert "write    up to 4 tokens after each of 90 texts, drawn at temperature 1, seed 3" in err
    assert "wrote" in err
    assert acts.task.generated.max() == 4
    model = load_model(gpt2_folder, device="cpu")
    own = [ids[: len(ids) - n] for ids, n in zip(acts.task.token_ids, acts.task.generated, strict=True)]
    seventh = model.generate(own[7], 4, temperature=1.0, seed=10)
    assert acts.task.token_ids[7][-len(seventh) :] == seventh
    again = json.loads(said(capsys, *job, "--points", "q", "--json", "--position", "last@generated")[0])
    assert again["generate"] == acts.task.info["generate"]
    assert len(list(Path("runs/continuations").iterdir())) == 1  # stores of other points share them
    assert load_activations(again["store"]).inputs == acts.inputs


def test_a_dry_run_continues_the_first_texts_and_says_how_long_the_rest_takes(here, job, capsys):
    found = json.loads(said(capsys, *job, "--dry-run", "--json")[0])
    assert found["write"]["most_tokens"] == 4 * 90
    assert found["write"]["seconds"] > 0
    assert not Path("runs").exists()
    shown = said(capsys, *job, "--dry-run", "--position", "last@generated")[0]
    out, _ = said(capsys, *job, "--out", "real")
    acts, tokenizer = load_activations(out.strip()), load_model(job[2], device="cpu").tokenizer
    for row in range(3):  # as the run writes them
        last = acts.task.token_ids[row][-1]
        n = len(acts.task.token_ids[row])
        name = printable(tokenizer.tokens([last])[0])
        assert f"{acts.task.ids[row]}, last token of the generated text: token {n - 1} of 0-{n - 1}, '{name}'" in shown
    text = said(capsys, *job, "--dry-run", "--position", "mean@generated")[0]
    assert "wrote" not in text
    assert text.startswith("write    up to 4 tokens after each of 90 texts")
    assert "; at most about " in text.splitlines()[0]


def test_a_dry_run_finds_the_assistants_turn_of_every_chat(here, gpt2_folder, tmp_path, capsys):
    rows = [{"messages": [{"role": "user", "content": f"say {i}"}], "label": i % 2} for i in range(40)]
    (tmp_path / "chats.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "t.jinja").write_text("{% for m in messages %}{{ m['content'] }}: {% endfor %}")
    job = ["extract", "--model", str(gpt2_folder), "--dataset", str(tmp_path / "chats.jsonl"), "--generate", "4"]
    job += ["--chat-template", str(tmp_path / "t.jinja"), "--position", "mean@assistant"]
    shown = said(capsys, *job, "--dry-run")[0]
    assert "mean over the tokens of assistant" in shown
    assert "already end" not in shown
    out, _ = said(capsys, *job, "--out", str(tmp_path / "store"))
    acts = load_activations(out.strip())
    for text, regions in zip(acts.task.inputs, acts.task.regions, strict=True):
        assert [one.name for one in regions] == ["user", "assistant"]
        assert text[: regions[1].start].endswith(": ")
        assert regions[1].end == len(text)


def test_the_plan_says_which_chats_already_end_with_an_answer(here, gpt2_folder, tmp_path, capsys):
    rows = [{"messages": [{"role": "user", "content": f"say {i}"}], "label": i % 2} for i in range(40)]
    for row in rows[:7]:
        row["messages"].append({"role": "assistant", "content": "no"})
    (tmp_path / "chats.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "t.jinja").write_text("{% for m in messages %}{{ m['content'] }}: {% endfor %}")
    job = ["extract", "--model", str(gpt2_folder), "--dataset", str(tmp_path / "chats.jsonl"), "--generate", "2"]
    shown = said(capsys, *job, "--chat-template", str(tmp_path / "t.jinja"), "--dry-run")[0]
    assert "7 of the chats already end with an answer of the assistant, and the model writes another" in shown


def test_a_stopped_run_says_what_was_saved_and_resumes(here, job, capsys, monkeypatch):
    monkeypatch.setitem(planning.MOST_ROWS, "cpu", 20)
    rows, real = [], write.write_rows

    def stopped(plan, some, advance=None):
        if len(rows) == 2:
            raise KeyboardInterrupt
        rows.append(some)
        return real(plan, some, advance)

    with monkeypatch.context() as patch:
        patch.setattr(write, "write_rows", stopped)
        assert run(job) == 130
    err = capsys.readouterr().err
    assert "saved what the model wrote after 40 of 90 texts in runs/continuations/" in err
    assert "run the same command again" in err
    out, _ = said(capsys, *job)
    assert len(load_activations(out.strip())) > 0


@pytest.mark.parametrize(
    ("more", "code", "why"),
    [
        (["--stop", "not one token"], 2, "not one"),
        (["--top-p", "2"], 2, "top_p"),
        (["--layers", "77"], 2, "77"),
        (["--bos", "--edits"], 2, "--edits"),
    ],
)
def test_mistakes_are_found_before_anything_is_written(here, job, capsys, more, code, why):
    assert run([*job, *more]) == code
    assert why in capsys.readouterr().err
    assert not Path("runs").exists()


def test_a_text_that_the_model_ends_at_once_is_refused_with_the_row_or_skipped(here, job, gpt2_folder, capsys):
    model = load_model(gpt2_folder, device="cpu")
    said(capsys, *job, "--out", "plain")
    acts = load_activations("plain")
    own = acts.task.token_ids[0]
    first = own[len(own) - int(acts.task.generated[0])]
    token = model.tokenizer.tokens([first])[0]
    if not (token.isascii() and token.isprintable()):
        pytest.skip("the model's first token cannot be typed")
    assert run([*job, "--stop", token]) == 3
    err = capsys.readouterr().err
    assert f"example {acts.task.ids[0]!a}: the model ends it at once" in err
    assert len(err.strip().splitlines()[-1]) < 400
    said(capsys, *job, "--stop", token, "--on-bad-row", "skip", "--out", "skipped")
    assert load_activations("skipped").task.info["skipped"]["ended at once"] >= 1
    assert run([*job, "--temperature", "2", "--out", "plain"]) == 5
    assert "temperature: 1.0 there, 2.0 here" in capsys.readouterr().err


def test_no_stop_goes_on_where_the_model_ends(here, texts, gpt2_folder, capsys):
    job = ["extract", "--model", str(gpt2_folder), "--dataset", str(texts), "--limit", "6", "--layers", "1"]
    job += ["--generate", "3", "--dry-run", "--json"]
    assert json.loads(said(capsys, *job)[0])["write"]["stop_tokens"]
    assert json.loads(said(capsys, *job, "--no-stop")[0])["write"]["stop_tokens"] == []
    assert run([*job, "--no-stop", "--stop", "a"]) == 2
    assert "give one of them" in capsys.readouterr().err
    assert run([*job[:-4], "--no-stop"]) == 2
    assert "needs generate" in capsys.readouterr().err
