"""Special tokens that `transformers` knows by the class of a tokenizer, where a folder's settings name none."""

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
