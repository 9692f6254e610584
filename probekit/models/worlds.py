"""The synthetic worlds with known truth, each with the tiny model that learns it: `counting-gpt` and so on.

A world is a task of `tasks/`, the shape of a model, and the settings that train it in about a minute on one core.
The model learns from the training split alone and is judged on held-out ones: every word that it has to say must be
the likeliest one, given the words before it. That is exact greedy generation, in one forward: generation goes astray
at the first word that is not the likeliest, and nowhere else.

This is the one module of `models/` that knows tasks.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tokenizers import Tokenizer as Backend
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing

from probekit.durable import write_as
from probekit.models.base import LanguageModel
from probekit.models.bert import BertConfig
from probekit.models.families import family_of
from probekit.models.first_use import cache_folder, kept
from probekit.models.gpt2 import GPT2Config
from probekit.models.progress import say, shown
from probekit.models.settings import WORLD_SETTINGS, world_name
from probekit.models.tokenizer import Tokenizer
from probekit.models.training import IGNORE, Example, TrainingResult, collate, read_batch, train
from probekit.models.transformer import TransformerConfig
from probekit.models.weights import save_hf
from probekit.options import TrainingSettings
from probekit.tasks import brackets, counting, dialogue, ranking, spans
from probekit.tasks.synthetic import EOS, Seed

Progress = Callable[[int, int], object]
EXAM = 2000  # held-out examples that a model is judged on
AT_ONCE = 500  # of them in one forward
LEARNED = 0.99  # of them right: what every world reaches with its own settings


@dataclass(frozen=True)
class World:
    """A task and the model that learns it.

    Attributes:
        name: of the model.
        task: the name that `load_task` knows.
        vocabulary: its words, by token id.
        config: the model's shape.
        settings: of its training.
        learned: (n, seed) -> n examples of the training split.
        asked: (n, seed) -> n held-out examples, or all where there are fewer; their targets and labels are judged.
        around: the tokenizer's BOS; or the words that stand before and behind every text ([CLS] and [SEP]).
    """

    name: str
    task: str
    vocabulary: list[str]
    config: Any
    settings: TrainingSettings
    learned: Callable[[int, Seed], list[Example]]
    asked: Callable[[int, Seed], list[Example]]
    around: tuple[str, ...] = (EOS,)

    @property
    def tokenizer(self) -> Tokenizer:
        """Words parted by white space; a word outside the vocabulary is an error, not <unk>."""
        backend = Backend(WordLevel({word: i for i, word in enumerate(self.vocabulary)}))
        backend.pre_tokenizer = WhitespaceSplit()
        ids = [self.vocabulary.index(word) for word in self.around]
        if len(ids) == 1:
            return Tokenizer(backend, *ids)
        before, behind = self.around
        backend.post_processor = TemplateProcessing(
            f"{before} $A {behind}", None, list(zip(self.around, ids, strict=True))
        )
        return Tokenizer(backend, ids[0], sep_token_id=ids[1])

    def untrained(self, seed: int) -> LanguageModel:
        """The model with the weights that training starts from, and its tokenizer."""
        model = family_of(self.config).model(self.config).init_weights(seed)
        model.name, model.tokenizer = self.name, self.tokenizer
        return model

    @property
    def key(self) -> str:
        """The name, and a digest of all that decides the trained model: another one for other settings."""
        said = json.dumps([self.vocabulary, asdict(self.config), asdict(self.settings)], sort_keys=True)
        first = json.dumps([asdict(example) for example in self.learned(8, [self.settings.seed, 0])])
        return f"{self.name}-{hashlib.sha256((said + first).encode()).hexdigest()[:8]}"


class Trained(NamedTuple):
    """A model of a world, its losses, and what it can do: see `figures`."""

    model: LanguageModel
    result: TrainingResult
    figures: dict[str, float]


def world(name: str) -> World:
    """The world of a model's or a task's name.

    Raises:
        UsageError: there is none of this name.
    """
    return WORLDS[world_name(name)]


def train_world(
    one: World, folder: Path | None = None, progress: Progress | None = None, checkpoints: Path | None = None
) -> Trained:
    """Train a world's model and judge it.

    Args:
        one: the world, with the settings that count: `dataclasses.replace(world(name), settings=...)`.
        folder: gets the model as `transformers` would write it, and `training.json` with settings and figures.
        progress: called with (steps done, steps) before the first step and after every one.
        checkpoints: a folder for the checkpoint, from which the same training goes on; None keeps none.

    Raises:
        ProbekitError: as `train` and `save_hf` raise.
    """
    settings = one.settings
    model = one.untrained(settings.seed)
    with _one_thread():
        result = train(
            model, lambda step: one.learned(settings.batch_size, [settings.seed, step]), settings, checkpoints, progress
        )
    trained = Trained(model.eval(), result, figures(model, one))
    if folder is not None:
        _save(trained, one, folder)
    return trained


@contextmanager
def _one_thread() -> Iterator[None]:
    """One thread: tiny products gain little from more, and the bits do not depend on the number of cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _save(trained: Trained, one: World, folder: Path) -> None:
    save_hf(trained.model, folder)
    facts = {
        "world": one.task,
        "settings": asdict(one.settings),
        "loss_nats": round(trained.result.mean_loss(), 4),
        "held_out": {name: round(value, 4) for name, value in trained.figures.items()},
    }
    write_as(folder / "training.json", (json.dumps(facts, indent=2) + "\n").encode())


def folder_of(one: World, weights: bool = True, progress: bool | None = None) -> Path:
    """The folder of a world's model in the user's cache; the model is trained first if it is not there.

    Args:
        one: the world.
        weights: False needs none, and trains nothing: config.json and tokenizer in a folder of their own.
        progress: a line and a bar on stderr; None shows the bar on a terminal only, False neither.

    Raises:
        StorageError: the disk refused.
    """
    folder = cache_folder() / "models" / (one.key if weights else f"{one.key}-shape")
    return kept(folder, lambda place: _first_use(one, folder, place, progress) if weights else _shape(one, place))


def _shape(one: World, place: Path) -> None:
    files = {"config.json": json.dumps(one.config.to_hf()), "tokenizer.json": one.tokenizer.to_json()}
    for name, content in files.items():
        write_as(place / name, content.encode())


def _first_use(one: World, folder: Path, place: Path, progress: bool | None) -> None:
    with training_shown(one, folder, progress) as show:
        trained = train_world(one, place, show)
    if progress is not False and (short := shortfall(trained)):
        say(short)


def training_shown(one: World, folder: Path, progress: bool | None) -> AbstractContextManager[Progress | None]:
    """What a training shows on stderr: one line before it, and a bar; see `progress.shown`."""
    usual = WORLD_SETTINGS[one.name]
    is_usual = (one.settings.steps, one.settings.batch_size) == (usual.steps, usual.batch_size)
    how_long = "about a minute" if is_usual else f"{one.settings.steps:,} steps"
    return shown(one.name, f"training {one.name}, {how_long}; kept in {str(folder)!a}", progress)


def shortfall(trained: Trained) -> str | None:
    """One line about a model that has not learned its world; None of one that has."""
    low = [f"{name} {share:.2%}" for name, share in trained.figures.items() if name != "n" and share < LEARNED]
    if not low:
        return None
    n = trained.figures["n"]
    return f"{trained.model.name} has not learned its world: {', '.join(low)} of {n:.0f} held-out examples, below 99%"


@torch.no_grad()
def figures(model: LanguageModel, one: World, n: int = EXAM, seed: Seed = (0, 0)) -> dict[str, float]:
    """What the model does on held-out examples, as shares.

    Returns:
        "exact": of examples whose every target is the likeliest token; "label", where there are labels: of examples
        whose class is right; "n": how many examples.
    """
    asked = one.asked(n, seed)
    parts = [_right(model, asked[start : start + AT_ONCE]) for start in range(0, len(asked), AT_ONCE)]
    return {name: sum(part[name] for part in parts) / len(asked) for name in parts[0]} | {"n": len(asked)}


def _right(model: LanguageModel, asked: Sequence[Example]) -> dict[str, int]:
    batch = collate(asked)
    logits_BLV, hidden_BLD = read_batch(model, batch)
    exact_B = ((logits_BLV.argmax(-1) == batch.targets) | (batch.targets == IGNORE)).all(1)
    right = {"exact": int(exact_B.sum())}
    if batch.labels is not None:
        right["label"] = int((model.classify(hidden_BLD).argmax(-1) == batch.labels).sum())  # pyright: ignore[reportCallIssue]
    return right


def _ids(vocabulary: list[str], words: Sequence[str]) -> list[int]:
    return [vocabulary.index(word) for word in words]


def _next(vocabulary: list[str], words: Sequence[str], silent: int = 0) -> Example:
    """Every word but the last as the input, the next one as its target; the first `silent` targets are left out."""
    ids = _ids(vocabulary, words)
    return Example(ids[:-1], [IGNORE] * silent + ids[1 + silent :])


def _counting_learned(n: int, seed: Seed) -> list[Example]:
    return [_next(counting.VOCABULARY, words) for words in counting.counts(n, seed)]


def _counting_asked(n: int, seed: Seed) -> list[Example]:
    """The counts from all held-out starts, whatever n and seed."""
    starts = [*counting.starts("validation"), *counting.starts("test")]
    return [_next(counting.VOCABULARY, counting.words(start)) for start in starts]


def _ranked(split: str, n: int, seed: Seed) -> list[Example]:
    vocabulary, examples = ranking.VOCABULARY, []
    for items in ranking.lists(n, seed, split):
        ranks = [ranking.BOS, *map(str, ranking.ranks(items)), ranking.EOS]
        examples.append(replace(_next(vocabulary, ranks), source=_ids(vocabulary, [*map(str, items)])))
    return examples


def _masked(split: str, n: int, seed: Seed) -> list[Example]:
    vocabulary, examples = spans.VOCABULARY, []
    for span in spans.masked_spans(n, seed, split):
        tokens = _ids(vocabulary, [spans.CLS, *span.text.split(), spans.SEP])
        numbers = _ids(vocabulary, [*map(str, span.numbers)])
        targets = [number if hidden else IGNORE for number, hidden in zip(numbers, span.hidden, strict=True)]
        examples.append(Example(tokens, [IGNORE, *targets, IGNORE], int(span.above)))
    return examples


def _answered(split: str, n: int, seed: Seed) -> list[Example]:
    """Dialogues whose targets are the answers, the <sep> behind each, and the <eos>."""
    return [_dialogue(turns) for turns in dialogue.dialogues(n, seed, split)]


def _dialogue(turns: list[dialogue.Turn]) -> Example:
    words: list[str] = []
    spoken: list[bool] = []
    for question, result in turns:
        asked = [*question.split(), dialogue.SEP]
        words += [*asked, str(result), dialogue.SEP]
        spoken += [False] * len(asked) + [True, True]
    example = _next(dialogue.VOCABULARY, [*words, EOS])
    targets = zip(example.targets, [*spoken[1:], True], strict=True)
    return replace(example, targets=[target if learned else IGNORE for target, learned in targets])


def _bracketed(split: str, n: int, seed: Seed) -> list[Example]:
    """Words and their verdicts; of held-out ones the verdict alone is judged, as brackets cannot be foretold."""
    examples = []
    for word in brackets.bracket_words(n, seed, split):
        words = [*word, brackets.ASKED, brackets.VERDICTS[brackets.is_balanced(word)], EOS]
        examples.append(_next(brackets.VOCABULARY, words, 0 if split == "train" else len(word)))
    return examples


def _gpt(vocabulary: list[str], d_model: int, n_heads: int, n_layers: int, n_ctx: int, init_std: float) -> GPT2Config:
    """A small GPT-2; larger first weights learn faster, smaller ones leave less room to learn starts by heart."""
    eos, d_vocab = vocabulary.index(EOS), len(vocabulary)
    return GPT2Config(d_model, n_heads, 4 * d_model, n_layers, n_ctx, d_vocab, init_std=init_std, bos_token_id=eos)


def _encoder_decoder(vocabulary: list[str]) -> TransformerConfig:
    bos = vocabulary.index(ranking.BOS)
    return TransformerConfig(
        d_model=64,
        n_heads=4,
        n_decoder_heads=4,
        d_mlp=256,
        d_decoder_mlp=256,
        n_layers=2,
        n_decoder_layers=2,
        n_ctx=16,
        d_vocab=len(vocabulary),
        positions="learned",
        init_std=0.1,
        pad_token_id=vocabulary.index(ranking.PAD),
        eos_token_id=vocabulary.index(EOS),
        bos_token_id=bos,
        decoder_start_token_id=bos,
    )


_ALL = (
    World(
        "counting-gpt",
        "counting",
        counting.VOCABULARY,
        _gpt(counting.VOCABULARY, d_model=32, n_heads=2, n_layers=2, n_ctx=64, init_std=0.02),
        WORLD_SETTINGS["counting-gpt"],
        _counting_learned,
        _counting_asked,
    ),
    World(
        "ranking-transformer",
        "ranking",
        ranking.VOCABULARY,
        _encoder_decoder(ranking.VOCABULARY),
        WORLD_SETTINGS["ranking-transformer"],
        partial(_ranked, "train"),
        partial(_ranked, "test"),
        (ranking.BOS,),
    ),
    World(
        "spans-bert",
        "spans",
        spans.VOCABULARY,
        BertConfig(
            d_model=64, n_heads=4, d_mlp=256, n_layers=2, n_ctx=16, d_vocab=len(spans.VOCABULARY), init_std=0.05
        ),
        WORLD_SETTINGS["spans-bert"],
        partial(_masked, "train"),
        partial(_masked, "test"),
        (spans.CLS, spans.SEP),
    ),
    World(
        "dialogue-gpt",
        "dialogue",
        dialogue.VOCABULARY,
        _gpt(dialogue.VOCABULARY, d_model=64, n_heads=4, n_layers=3, n_ctx=32, init_std=0.1),
        WORLD_SETTINGS["dialogue-gpt"],
        partial(_answered, "train"),
        partial(_answered, "test"),
    ),
    World(
        "brackets-gpt",
        "brackets",
        brackets.VOCABULARY,
        _gpt(brackets.VOCABULARY, d_model=64, n_heads=2, n_layers=2, n_ctx=32, init_std=0.1),
        WORLD_SETTINGS["brackets-gpt"],
        partial(_bracketed, "train"),
        partial(_bracketed, "test"),
    ),
)
WORLDS = {one.name: one for one in _ALL}
"""Model name -> its world."""
