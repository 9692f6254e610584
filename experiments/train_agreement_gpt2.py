"""Train the built-in model `agreement-gpt2`: our GPT-2 on the sentences of the built-in language `agreement`.

    python experiments/train_agreement_gpt2.py            # about four minutes on two cores

It learns next-word prediction on sentences whose skeletons are in the task's training split, and is tested on sentences
of the test split: how often is the right form of the verb likelier than the wrong one? The folder that it writes,
`probekit/models/builtin/agreement-gpt2`, is part of the package, with results and settings in its `training.json`.
"""

import argparse
import json
import time
from pathlib import Path

import torch
from tokenizers import Tokenizer as Backend
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from probekit.machine.progress import progress_bar
from probekit.models.examples import Example
from probekit.models.families.gpt2 import GPT2, GPT2Config
from probekit.models.tokenizer import Tokenizer
from probekit.models.training import collate, train
from probekit.models.weights import save_hf
from probekit.options import TrainingSettings
from probekit.worlds.agreement import EOS, MAX_DEPTH, VOCABULARY, Sentence, sentences

FOLDER = Path(__file__).parents[1] / "probekit/models/builtin/agreement-gpt2"
IDS = {word: i for i, word in enumerate(VOCABULARY)}


def example_of(sentence: Sentence) -> Example:
    """The words, and the next word at each of them; after the last word comes <eos>."""
    ids = [IDS[word] for word in (*sentence.words, EOS)]
    return Example(ids[:-1], ids[1:])


def draw(step: int, settings: TrainingSettings) -> list[Example]:
    """The batch of a step."""
    seed = settings.seed * 1_000_000 + step
    return [example_of(s) for s in sentences(settings.batch_size, seed=seed, split="train")]


@torch.no_grad()
def agreement_accuracy(model: GPT2, n: int, seed: int) -> dict[str, float]:
    """Share of test sentences in which the right verb form is likelier than the wrong one: overall, and by depth."""
    drawn = sentences(n, seed=seed, split="test")
    tokens = collate([example_of(s) for s in drawn]).tokens
    before_verb = torch.tensor([s.verb - 1 for s in drawn])
    logits_BV = model(tokens)[torch.arange(n), before_verb]
    right, wrong = (
        torch.tensor([IDS[w] for w in words])
        for words in zip(*((s.words[s.verb], s.wrong_verb) for s in drawn), strict=True)
    )
    correct = (logits_BV.gather(1, right[:, None]) > logits_BV.gather(1, wrong[:, None])).squeeze(1).double()
    depth = torch.tensor([s.depth for s in drawn])
    return {"all": correct.mean().item()} | {
        f"depth {d}": correct[depth == d].mean().item() for d in range(MAX_DEPTH + 1)
    }


def word_tokenizer() -> Tokenizer:
    """A tokenizer that splits at white space; a word outside the vocabulary is an error, not <unk>."""
    backend = Backend(WordLevel(IDS))
    backend.pre_tokenizer = WhitespaceSplit()
    return Tokenizer(backend, bos_token_id=IDS[EOS])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=FOLDER)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    cfg = GPT2Config(
        d_model=128, n_heads=4, d_mlp=512, n_layers=4, n_ctx=32, d_vocab=len(VOCABULARY), bos_token_id=IDS[EOS]
    )
    model = GPT2(cfg).init_weights(args.seed)
    model.tokenizer = word_tokenizer()
    settings = TrainingSettings(args.steps, args.batch, args.learning_rate, seed=args.seed)
    start = time.monotonic()
    with progress_bar("train", "steps") as bar:
        result = train(model, lambda step: draw(step, settings), settings, on_progress=bar.set)
    loss = result.mean_loss()
    accuracy = agreement_accuracy(model, n=4000, seed=args.seed + 1)
    print(f"{time.monotonic() - start:.0f} s; loss {loss:.4f} nats a word; verb agreement {accuracy}")
    save_hf(model, args.out)
    facts = {
        "command": "python experiments/train_agreement_gpt2.py",
        "steps": args.steps,
        "batch": args.batch,
        "learning_rate": args.learning_rate,
        "seed": args.seed,
        "loss_nats_a_word": round(loss, 4),
        "verb_agreement_on_4000_test_sentences": {where: round(share, 4) for where, share in accuracy.items()},
    }
    (args.out / "training.json").write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    main()
