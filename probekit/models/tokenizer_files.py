"""Read the tokenizer of a model folder: tokenizer.json, or the older files of GPT-2, RoBERTa, BERT and Marian."""

import json
import re
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from probekit.errors import DataError
from probekit.models.files import read_json, read_text
from probekit.models.marian_tokenizer import marian_backend, read_marian_vocabulary, read_sentencepiece
from probekit.models.tokenizer import Tokenizer, library_errors
from probekit.models.tokenizer_trial import check_patterns

SETTINGS_FILES = ("tokenizer_config.json", "special_tokens_map.json")
CHAT_TEMPLATE = "chat_template.jinja"
OTHER_TEMPLATES = "additional_chat_templates"  # a folder of named ones
FILES = ("tokenizer.json", "vocab.json", "merges.txt", "vocab.txt", "source.spm", *SETTINGS_FILES, CHAT_TEMPLATE)
# special tokens that `transformers` knows by the class of a tokenizer, where a folder's settings name none
END_OF_TEXT = "<|endoftext|>"
SPECIAL = {
    name: f"[{name[:-6].upper()}]" for name in ("unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
}  # BERT's
BOUNDS = {"bos_token": "<s>", "eos_token": "</s>", "sep_token": "</s>", "cls_token": "<s>"} | {
    "unk_token": "<unk>",
    "pad_token": "<pad>",
    "mask_token": "<mask>",
}  # RoBERTa's
GPT2 = dict.fromkeys(("bos_token", "eos_token", "unk_token"), END_OF_TEXT)
DEFAULTS = {  # what classes of `transformers` know without settings
    "GPT2Tokenizer": GPT2,
    "GPTNeoXTokenizer": {**GPT2, "pad_token": "<|padding|>"},
    "Qwen2Tokenizer": dict.fromkeys(("eos_token", "unk_token", "pad_token"), END_OF_TEXT),
    "GemmaTokenizer": {name: f"<{name[:3]}>" for name in ("bos_token", "eos_token", "unk_token", "pad_token")}
    | {"mask_token": "<mask>"},
    "BertTokenizer": SPECIAL,
    "RobertaTokenizer": BOUNDS,
}
CLASSES = {"gpt2": "GPT2Tokenizer", "gpt_neox": "GPTNeoXTokenizer", "olmo": "GPTNeoXTokenizer"} | {
    "bert": "BertTokenizer",
    "distilbert": "BertTokenizer",
    "roberta": "RobertaTokenizer",
    "gemma": "GemmaTokenizer",
    "gemma2": "GemmaTokenizer",
    "qwen2": "Qwen2Tokenizer",
    "qwen3": "Qwen2Tokenizer",
}  # of a model type, where tokenizer_config.json names none
TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def read_tokenizer(
    folder: Path, bos_token_id: int | None = None, d_vocab: int | None = None, causal: bool = True
) -> Tokenizer | None:
    """The tokenizer of a model folder: tokenizer.json, vocab.json with merges.txt or source.spm, or vocab.txt.

    None if the folder has none of these.

    Args:
        folder: where the files are.
        bos_token_id: from config.json; None looks it up in the tokenizer's own settings.
        d_vocab: size of the model's vocabulary.
        causal: whether the model is; a bidirectional one's BOS is what its tokenizer puts before a text.

    Raises:
        DataError: a file is damaged; the message names it.
        UsageError: source.spm needs packages that are not installed.
    """
    given = _given(folder)
    settings = _contents(folder, given)
    if (folder / "tokenizer.json").is_file():
        backend = _tokenizer_json(folder / "tokenizer.json")
        bos = settings.get("bos_token")
    elif (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
        backend = _byte_level_bpe(folder, settings)
        bos = settings.get("bos_token", END_OF_TEXT)
        if causal:
            _add_tokens(backend, [given.get(name, END_OF_TEXT) for name in GPT2])
        else:
            _add_bounds(backend, given)
    elif (folder / "vocab.json").is_file() and (folder / "source.spm").is_file():
        spm = read_sentencepiece(folder / "source.spm")
        vocab = read_marian_vocabulary(folder / "vocab.json", settings)
        with _refused(folder / "source.spm", "is not a SentencePiece model"):
            backend = marian_backend(spm, vocab, settings)
        bos = bos_token_id = None  # Marian's config.json calls </s> a BOS; it never comes first
    elif (folder / "vocab.txt").is_file():
        backend = _wordpiece(folder / "vocab.txt", settings)
        bos = settings.get("bos_token")
    else:
        return None
    if not causal:
        bos_token_id = None  # RoBERTa's config.json calls <s> a BOS; it never comes without </s> at the end
    elif bos_token_id is None and isinstance(bos, str):
        bos_token_id = backend.token_to_id(bos)
    sep_token_id = None
    if bos_token_id is None:
        with _refused(folder, "has a tokenizer whose template cannot be used"):
            bos_token_id, sep_token_id = _first_and_last(backend)
    texts = _special_texts(folder, settings, backend)
    return Tokenizer(backend, bos_token_id, d_vocab, sep_token_id, _chat_templates(folder, settings), texts)


def tokenizer_files(tokenizer: Tokenizer) -> dict[str, bytes]:
    """Name -> content of the files of a tokenizer; one with chat templates has its settings in a file of their own."""
    files = {"tokenizer.json": tokenizer.to_json()}
    if templates := tokenizer.chat_templates:
        named = [{"name": name, "template": template} for name, template in templates.items()]
        one = templates["default"] if list(templates) == ["default"] else named
        files[SETTINGS_FILES[0]] = json.dumps({**tokenizer.special_texts, "chat_template": one}, indent=2) + "\n"
    return {name: content.encode() for name, content in files.items()}


def _first_and_last(backend: Backend) -> tuple[int | None, int | None]:
    """The ids that a tokenizer puts around a text: BERT's [CLS] and [SEP], Gemma's <bos>, or Marian's </s> last."""
    ids = backend.encode("", add_special_tokens=True).ids
    if len(ids) == 2:
        return ids[0], ids[1]
    post = json.loads(backend.to_str()).get("post_processor") or {}
    templates = [each["single"] for each in post.get("processors", [post]) if each.get("single")]
    if len(ids) != 1 or not templates:
        return None, None
    return (None, ids[0]) if "SpecialToken" in templates[0][-1] else (ids[0], None)


def _special_texts(folder: Path, settings: Mapping[str, Any], backend: Backend) -> dict[str, str]:
    """Name -> special token: those of the settings, and those of the vocabulary that `transformers` knows besides."""
    config = folder / "config.json"
    model_type = read_json(config).get("model_type") if config.is_file() else None
    kind = settings.get("tokenizer_class") or CLASSES.get(str(model_type))
    known = DEFAULTS.get(str(kind).removesuffix("Fast"), {})
    known = {name: token for name, token in known.items() if backend.token_to_id(token) is not None}
    return known | {name: settings[name] for name in TOKENS if name in settings}


def template_files(files: Iterable[str]) -> list[str]:
    """Those of a repository's files that are named chat templates, in order."""
    return sorted(name for name in files if re.fullmatch(f"{OTHER_TEMPLATES}/[^/]+[.]jinja", name))


def _chat_templates(folder: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    """Name -> chat template: files of their own, or else a text or a list of named ones in the settings."""
    own = {path.stem: path for path in sorted((folder / OTHER_TEMPLATES).glob("*.jinja"))}
    if (folder / CHAT_TEMPLATE).is_file():
        own["default"] = folder / CHAT_TEMPLATE
    if own:
        return {name: read_text(path) for name, path in own.items()}
    given = settings.get("chat_template")
    if given is None or isinstance(given, str):
        return {} if given is None else {"default": given}
    named = given if isinstance(given, list) and all(isinstance(each, Mapping) for each in given) else [{}]
    pairs = [(each.get("name"), each.get("template")) for each in named]
    if not all(isinstance(part, str) for pair in pairs for part in pair):
        raise DataError(
            f"{str(folder)!a}: chat_template must be a text or a list of names with templates, got {given!a:.60}; "
            "correct it"
        )
    return {str(name): str(template) for name, template in pairs}


def _given(folder: Path) -> dict[str, Any]:
    """The two settings files merged."""
    merged: dict[str, Any] = {}
    for name in reversed(SETTINGS_FILES):
        if (folder / name).is_file():
            merged |= {key: value for key, value in read_json(folder / name).items() if value is not None}
    return merged


def _contents(folder: Path, merged: Mapping[str, Any]) -> dict[str, Any]:
    """The settings; a token given as an object is replaced by its content."""
    settings = {key: _content(value) for key, value in merged.items()}
    for name in TOKENS:
        if not isinstance(settings.get(name, ""), str):
            raise DataError(f"{str(folder)!a}: {name} must be a text or null, got {settings[name]!a:.60}; correct it")
    return settings


def _is_token(value: Any) -> bool:
    return isinstance(value, Mapping) and isinstance(value.get("content"), str)


def _content(value: Any) -> Any:
    return value["content"] if _is_token(value) else value


def _tokenizer_json(path: Path) -> Backend:
    content = read_json(path)
    model = content.get("model")
    if isinstance(model, dict) and model.get("type") == "BPE" and isinstance(model.get("vocab"), dict):
        merges = model.get("merges") or []
        if not isinstance(merges, list):
            raise DataError(f"{str(path)!a}: merges must be a list; got {merges!a:.60}")
        for merge in merges:
            _check_merge(str(path), merge.split(" ") if isinstance(merge, str) else merge, model["vocab"])
    check_patterns(path, content)
    with _refused(path, "is not a tokenizer"):
        return Backend.from_str(read_text(path))


def _refused(path: Path, what: str) -> AbstractContextManager[None]:
    return library_errors(lambda error: f"{str(path)!a} {what}: {ascii(str(error))[1:-1]:.300}; download it again")


def _check_merge(where: str, merge: Any, vocab: Mapping[str, Any]) -> tuple[str, str]:
    """A merge as a pair. One that does not fit the vocabulary would make the library panic."""
    if not (isinstance(merge, list) and len(merge) == 2 and all(isinstance(token, str) and token for token in merge)):
        raise DataError(f"{where!a}: a merge is two tokens with a blank between; got {merge!a:.80}")
    for token in (*merge, "".join(merge)):
        if token not in vocab:
            raise DataError(
                f"{where!a}: the merge {' '.join(merge)!a} needs {token!a}, which is not in the vocabulary; download "
                "it again"
            )
    return merge[0], merge[1]


def _byte_level_bpe(folder: Path, settings: Mapping[str, Any]) -> Backend:
    """A tokenizer such as GPT-2's from its two files, as `transformers` builds it."""
    vocab = read_json(folder / "vocab.json")
    if wrong := [token for token, i in vocab.items() if isinstance(i, bool) or not isinstance(i, int) or i < 0]:
        raise DataError(
            f"{str(folder / 'vocab.json')!a}: the id of {wrong[0]!a} is not a whole number; download it again"
        )
    merges = _merges(folder / "merges.txt", vocab)
    with _refused(folder / "vocab.json", "is not a vocabulary"):
        backend = Backend(models.BPE(vocab, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=settings.get("add_prefix_space") is True)
    backend.decoder = decoders.ByteLevel()
    return backend


def _add_bounds(backend: Backend, given: Mapping[str, Any]) -> None:
    """Make RoBERTa's special tokens those of a tokenizer, and put a text between two of them."""
    special = BOUNDS | {name: given[name] for name in BOUNDS if name in given}
    _add_tokens(backend, special.values())
    sep, cls = (_content(special[name]) for name in ("sep_token", "cls_token"))
    vocab, has_blank = backend.get_vocab(), given.get("add_prefix_space") is True
    if sep in vocab and cls in vocab:
        backend.post_processor = processors.RobertaProcessing((sep, vocab[sep]), (cls, vocab[cls]), True, has_blank)


def _add_tokens(backend: Backend, tokens: Iterable[Any]) -> None:
    """Add the special tokens that the vocabulary has; an object also says whether its token takes spaces around it."""
    vocab = backend.get_vocab()
    for token in tokens:
        if (content := _content(token)) in vocab:
            sides = ("lstrip", "rstrip", "single_word")
            strips = {side: token.get(side) is True for side in sides} if _is_token(token) else {}
            backend.add_special_tokens([AddedToken(content, normalized=False, **strips)])


def _merges(path: Path, vocab: Mapping[str, int]) -> list[tuple[str, str]]:
    lines = enumerate(read_text(path).split("\n"), start=1)
    return [
        _check_merge(f"{path}, line {number}", line.rstrip("\r").split(" "), vocab)
        for number, line in lines
        if line.strip() and not (number == 1 and line.startswith("#version"))
    ]


def _wordpiece(path: Path, settings: Mapping[str, Any]) -> Backend:
    """A tokenizer such as BERT's, as `transformers` builds it; line n of the file is the piece with id n."""
    vocab = {piece: i for i, piece in enumerate(read_text(path).removesuffix("\n").split("\n"))}
    special = SPECIAL | {name: settings[name] for name in SPECIAL if isinstance(settings.get(name), str)}
    if (unknown := special["unk_token"]) not in vocab:
        raise DataError(f"{str(path)!a} has no line {unknown!a:.80}, for unknown words; download the file again")
    with _refused(path, "is not a vocabulary"):
        backend = Backend(models.WordPiece(vocab, unk_token=unknown))
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=_switch(settings, "tokenize_chinese_chars") is not False,
        strip_accents=_switch(settings, "strip_accents"),
        lowercase=_switch(settings, "do_lower_case") is not False,
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    backend.add_special_tokens([token for token in special.values() if token in vocab])
    cls, sep = special["cls_token"], special["sep_token"]
    if cls in vocab and sep in vocab:
        ids = [(cls, vocab[cls]), (sep, vocab[sep])]
        single, pair = [f"{cls}:0", "$A:0", f"{sep}:0"], ["$B:1", f"{sep}:1"]
        with _refused(path, f"cannot be used with {cls!a:.80} and {sep!a:.80}"):
            backend.post_processor = processors.TemplateProcessing(single, [*single, *pair], ids)
    return backend


def _switch(settings: Mapping[str, Any], name: str) -> bool | None:
    value = settings.get(name)
    if value is not None and not isinstance(value, bool):
        raise DataError(f"{SETTINGS_FILES[0]}: {name} must be true or false; got {value!a:.60}")
    return value
