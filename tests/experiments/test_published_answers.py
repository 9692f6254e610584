"""The script of the published answers: its processes against simulation and closed forms, and each command in small."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pages
import pytest
import torch

import probekit as pk

REPO = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("published_answers", REPO / "experiments/published_answers.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["mess3", "rrxor"])
def test_the_belief_is_the_share_of_hidden_states_among_all_paths(script, name):
    """By summing over every path of hidden states, not step by step."""
    process = script.PROCESSES[name]
    np.testing.assert_allclose(process.sum((0, 2)), 1)
    symbols, belief = script.draw(process, 20, 4, seed=0)
    for row, found in zip(symbols, belief, strict=True):
        paths = np.einsum("a,ab,bc,cd,de->abcde", script.at_rest(process), *process[row])
        np.testing.assert_allclose(found[-1], paths.sum((0, 1, 2, 3)) / paths.sum(), atol=1e-12)


@pytest.mark.parametrize("name", ["mess3", "rrxor"])
def test_sequences_have_the_process_s_probabilities(script, name):
    """Drawn with probabilities of the next symbol, without a hidden state: the same law as simulating the states."""
    process, n, rng = script.PROCESSES[name], 40_000, np.random.default_rng(1)
    drawn, _ = script.draw(process, n, 3, seed=0)
    n_symbols, n_states, _ = process.shape
    state, simulated = rng.choice(n_states, n, p=script.at_rest(process)), []
    for _ in range(3):
        outcomes = process[:, state].transpose(1, 0, 2).reshape(n, -1)
        chosen = (rng.random((n, 1)) > outcomes.cumsum(1)).sum(1)
        simulated.append(chosen // n_states)
        state = chosen % n_states
    code = n_symbols ** np.arange(3)
    shares = [np.bincount(one @ code, minlength=n_symbols**3) / n for one in (drawn, np.stack(simulated, 1))]
    np.testing.assert_allclose(shares[0], shares[1], atol=0.012)  # 5 standard errors of a difference of shares


def test_what_the_next_symbol_says_about_the_belief(script):
    """All in Mess3, whose three probabilities are an invertible map of the belief; in RRXOR they are one number."""
    for name, low, high in (("mess3", 1 - 1e-9, 1.0), ("rrxor", 0.1, 0.5)):
        task = script.belief_task(script.PROCESSES[name], 400)
        best = script.next_symbols(script.PROCESSES[name], np.stack([*task.token_labels["belief"]]))
        assert low <= script.r2_of(best, task) <= high


def test_least_squares_equals_numpys(script):
    process = script.PROCESSES["mess3"]
    task, model = script.belief_task(process, 100), script.belief_model(3, seed=0)
    acts = pk.extract(model, task, points="resid_pre", layers=2, position="all", progress=False)
    features = acts["resid_pre", 2].double().numpy().reshape(100, script.LENGTH, -1)
    found = script.r2_by_place(model, task)
    assert found.loc["resid_pre.2", "belief"] == pytest.approx(script.r2_of(features, task), abs=1e-6)
    assert found.loc["resid_pre.2", "shuffled"] < 0.1


def test_belief_in_small(script, tmp_path, capsys):
    script.belief(steps=15, n=60, picture=tmp_path / "simplex.png")
    said = capsys.readouterr().out
    assert (said.count("trained\n"), said.count("random weights\n")) == (2, 2)
    assert (tmp_path / "simplex.png").stat().st_size > 0


def test_pairs_in_small(script, tmp_path, capsys):
    """The built-in model, whose verbs agree, prefers the good sentence of each pair."""
    task = pk.load_task("agreement", limit=20)
    verbs = [("is", "are")[plural] for plural in task.labels["number"]]
    rows = [
        {"pairID": str(i), "sentence_good": f"{text} {verb} cold", "sentence_bad": f"{text} {other} cold"}
        for i, (text, verb) in enumerate(zip(task.inputs, verbs, strict=True))
        for other in {"is", "are"} - {verb}
    ]
    file = tmp_path / "tiny.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    script.pairs("agreement-gpt2", [file])
    cells = [cell.strip() for cell in capsys.readouterr().out.splitlines()[-1].strip("|").split("|")]
    assert (cells[0], float(cells[-1])) == ("tiny", 1.0)
    assert script.preferred(np.array([2.0, 1.0, 3.0, 0.0, 1.0, 5.0])) == 0.5  # one right, one tie, one wrong


def test_palindromes_in_small(script, tmp_path, capsys):
    rng = np.random.default_rng(0)
    drawn = [script.palindrome_words(rng) for _ in range(400)]
    assert 0.4 < np.mean([(digits == digits[::-1]).all() for digits in drawn]) < 0.6
    script.palindrome(tmp_path, steps=15, n=6)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 + script.HALF
    for place in range(script.HALF):
        pairs = pk.load_pairs(tmp_path / f"changed-{place}.csv", pk.load_model(tmp_path / "model"))
        for clean, corrupted in zip(pairs.clean, pairs.corrupted, strict=True):
            digits, other = (np.array(text[-1 - 2 * script.HALF : -1]) for text in (clean, corrupted))
            assert (digits == digits[::-1]).all()
            assert np.flatnonzero(digits != other).tolist() == [place]


def test_the_page_reads_a_checkpoint_of_the_published_layout(tmp_path, monkeypatch):
    """Two logits become those of the tokens 0 and 1, and no other token is ever likelier."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    state = _published_state()
    torch.save(state, "palindrome_classifier.pt")
    page = REPO / "docs/how-to/palindrome-heads.md"
    code = next(block.code for block in pages.blocks(page) if block.not_run == "needs the download")
    scope = {"torch": torch, "pk": pk}
    exec(compile(code, str(page), "exec"), scope)
    model = pk.load_model(tmp_path)
    tokens = torch.cat([torch.tensor([[31]]), torch.randint(31, (1, 20)), torch.tensor([[32]])], 1)
    with torch.no_grad():
        logits, (_, cache) = model(tokens), model.run_with_cache(tokens, points="ln_final")
    hidden = next(iter(cache.values())).reshape(22, -1)
    torch.testing.assert_close(logits[0, :, :2], hidden @ state["unembed.W_U"] + state["unembed.b_U"])
    assert logits.argmax(-1).max() <= 1
    numbers = [*range(10), *reversed(range(10))]
    texts = (f"<start> {' '.join(map(str, one))} <end>" for one in (numbers, [30, *numbers[1:]]))
    header = "clean,corrupted,clean_answer,corrupted_answer"
    Path("pairs.csv").write_text(header + "\n" + ",".join([*texts, "1", "0"]) + "\n")
    heads, attention = pk.patch_pairs(model, pk.load_pairs("pairs.csv", model), points=["z", "attn_out"]).grids
    assert heads.recovery.shape == (2, 2)
    np.testing.assert_allclose(attention.recovery[-1, :-1], 0, atol=1e-3)  # the answer is read at the last token alone


def _published_state() -> dict[str, torch.Tensor]:
    width, heads, head, words, length = 28, 2, 14, 33, 22

    def drawn(*shape: int) -> torch.Tensor:
        return 0.3 * torch.randn(*shape)

    state = {"embed.W_E": drawn(words, width), "pos_embed.W_pos": drawn(length, width)}
    state |= {"unembed.W_U": drawn(width, 2), "unembed.b_U": drawn(2)}
    state |= {"ln_final.w": 1 + drawn(width), "ln_final.b": drawn(width)}
    for layer in range(2):
        block = f"blocks.{layer}."
        state |= {f"{block}attn.W_{one}": drawn(heads, width, head) for one in "QKV"}
        state |= {f"{block}attn.b_{one}": drawn(heads, head) for one in "QKV"}
        state |= {f"{block}attn.W_O": drawn(heads, head, width), f"{block}attn.b_O": drawn(width)}
        state |= {f"{block}ln1.w": 1 + drawn(width), f"{block}ln1.b": drawn(width)}
        state |= {f"{block}attn.mask": torch.ones(length, length).tril().bool()}
        state |= {f"{block}attn.IGNORE": torch.tensor(-torch.inf)}
    return state
