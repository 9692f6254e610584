"""What the witness works on: tiny models in Hugging Face's format with random weights, and small files of texts.

Models are made by `transformers`, so nothing here depends on how probekit is laid out.
"""

import csv
import json
import random
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

D_VOCAB = 257
LLAMA: dict[str, Any] = {
    "vocab_size": D_VOCAB,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "max_position_embeddings": 64,
    "bos_token_id": 256,
    "eos_token_id": 256,
    "pad_token_id": 0,
}
HEADS = {"head_dim": 8}
EXPERTS = {"num_experts_per_tok": 2}
BERT: dict[str, Any] = {
    "vocab_size": D_VOCAB,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
ROBERTA = {**BERT, "type_vocab_size": 1, "bos_token_id": 256, "eos_token_id": 255, "pad_token_id": 1}
GPT2: dict[str, Any] = {
    "vocab_size": D_VOCAB,
    "n_embd": 16,
    "n_head": 2,
    "n_layer": 3,
    "n_positions": 64,
    "bos_token_id": 256,
    "eos_token_id": 256,
}
NEOX = {**LLAMA, "rotary_pct": 0.25, "use_parallel_residual": True}
MARIAN: dict[str, Any] = {
    "vocab_size": D_VOCAB,
    "d_model": 32,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 40,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "eos_token_id": 255,
    "decoder_start_token_id": 0,
    "forced_eos_token_id": None,
    "scale_embedding": True,
    "activation_function": "swish",
}
LINEAR = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
    "rope_theta": 10000.0,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "rope_theta": 10000.0}
LONG = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.1, 1.2, 1.3],
    "long_factor": [2.0, 2.1, 2.2, 2.3],
    "rope_theta": 10000.0,
}

# name -> (config of transformers, class, fields)
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", GPT2),
    "gpt2-untied": ("GPT2Config", "GPT2LMHeadModel", {**GPT2, "tie_word_embeddings": False}),
    "gpt2-scaled": (
        "GPT2Config",
        "GPT2LMHeadModel",
        {**GPT2, "scale_attn_by_inverse_layer_idx": True, "activation_function": "gelu", "layer_norm_epsilon": 1e-3},
    ),
    "llama": ("LlamaConfig", "LlamaForCausalLM", {**LLAMA, **HEADS}),
    "llama-biases": ("LlamaConfig", "LlamaForCausalLM", {**LLAMA, "attention_bias": True, "mlp_bias": True}),
    "llama-tied": ("LlamaConfig", "LlamaForCausalLM", {**LLAMA, "tie_word_embeddings": True, "rms_norm_eps": 1e-3}),
    "llama-linear": ("LlamaConfig", "LlamaForCausalLM", {**LLAMA, "rope_parameters": LINEAR}),
    "llama-llama3": ("LlamaConfig", "LlamaForCausalLM", {**LLAMA, "rope_parameters": LLAMA3}),
    "llama-yarn": ("LlamaConfig", "LlamaForCausalLM", {**LLAMA, "rope_parameters": YARN}),
    "mistral": ("MistralConfig", "MistralForCausalLM", {**LLAMA, "sliding_window": None}),
    "mistral-window": ("MistralConfig", "MistralForCausalLM", {**LLAMA, "sliding_window": 5}),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", LLAMA),
    "qwen2-window": (
        "Qwen2Config",
        "Qwen2ForCausalLM",
        {**LLAMA, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", {**LLAMA, "head_dim": 10}),
    "phi3": ("Phi3Config", "Phi3ForCausalLM", {**LLAMA, "sliding_window": 5, "partial_rotary_factor": 0.5}),
    "phi3-long": (
        "Phi3Config",
        "Phi3ForCausalLM",
        {**LLAMA, "rope_parameters": LONG, "original_max_position_embeddings": 16},
    ),
    "gpt_neox": ("GPTNeoXConfig", "GPTNeoXForCausalLM", NEOX),
    "gpt_neox-sequential": ("GPTNeoXConfig", "GPTNeoXForCausalLM", {**NEOX, "use_parallel_residual": False}),
    "gemma": ("GemmaConfig", "GemmaForCausalLM", {**LLAMA, **HEADS}),
    "gemma2": (
        "Gemma2Config",
        "Gemma2ForCausalLM",
        {**LLAMA, "head_dim": 10, "sliding_window": 5, "query_pre_attn_scalar": 7, "attn_logit_softcapping": 3.0},
    ),
    "gemma3_text": (
        "Gemma3TextConfig",
        "Gemma3ForCausalLM",
        {
            **LLAMA,
            **HEADS,
            "sliding_window": 5,
            "query_pre_attn_scalar": 7,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "olmo2": ("Olmo2Config", "Olmo2ForCausalLM", LLAMA),
    "olmo3": ("Olmo3Config", "Olmo3ForCausalLM", {**LLAMA, "sliding_window": 5}),
    "bert": ("BertConfig", "BertForMaskedLM", BERT),
    "bert-headless": ("BertConfig", "BertModel", {**BERT, "hidden_act": "relu", "layer_norm_eps": 1e-3}),
    "roberta": ("RobertaConfig", "RobertaForMaskedLM", ROBERTA),
    "xlm-roberta": ("XLMRobertaConfig", "XLMRobertaForMaskedLM", ROBERTA),
    "camembert": ("CamembertConfig", "CamembertForMaskedLM", ROBERTA),
    "distilbert": (
        "DistilBertConfig",
        "DistilBertForMaskedLM",
        {
            "vocab_size": D_VOCAB,
            "dim": 32,
            "n_heads": 4,
            "hidden_dim": 48,
            "n_layers": 3,
            "max_position_embeddings": 64,
        },
    ),
    "modernbert": (
        "ModernBertConfig",
        "ModernBertForMaskedLM",
        {
            **BERT,
            "local_attention": 6,
            "global_attn_every_n_layers": 2,
            "cls_token_id": 256,
            "sep_token_id": 255,
            "bos_token_id": 256,
            "eos_token_id": 255,
        },
    ),
    "marian": ("MarianConfig", "MarianMTModel", MARIAN),
    "mixtral": ("MixtralConfig", "MixtralForCausalLM", {**LLAMA, **EXPERTS, "num_local_experts": 4}),
    "qwen3_moe": (
        "Qwen3MoeConfig",
        "Qwen3MoeForCausalLM",
        {**LLAMA, **EXPERTS, **HEADS, "num_experts": 4, "moe_intermediate_size": 20, "norm_topk_prob": True},
    ),
    "olmoe": ("OlmoeConfig", "OlmoeForCausalLM", {**LLAMA, **EXPERTS, "num_experts": 4}),
}
# families that only the class of transformers computes (--via transformers)
ADAPTED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "opt": (
        "OPTConfig",
        "OPTForCausalLM",
        {
            "vocab_size": D_VOCAB,
            "hidden_size": 32,
            "num_attention_heads": 4,
            "ffn_dim": 48,
            "num_hidden_layers": 2,
            "max_position_embeddings": 64,
            "word_embed_proj_dim": 32,
        },
    ),
    "gptj": (
        "GPTJConfig",
        "GPTJForCausalLM",
        {"vocab_size": D_VOCAB, "n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 64, "rotary_dim": 4},
    ),
    "bloom": ("BloomConfig", "BloomForCausalLM", {"vocab_size": D_VOCAB, "hidden_size": 32, "n_head": 4, "n_layer": 2}),
    "gpt2": FAMILIES["gpt2"],
    "mixtral": FAMILIES["mixtral"],
    "bert": FAMILIES["bert"],
}
DIALOGUE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endfor %}"


def write_model(folder: Path, made: tuple[str, str, dict[str, Any]]) -> Path:
    """A folder as of the Hub: config.json, random weights in which biases and norms show, and a byte tokenizer."""
    config, kind, fields = made
    torch.manual_seed(7)
    model = getattr(hf, kind)(getattr(hf, config)(**fields))
    draws = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(3).add_(0.1 * torch.randn(p.shape, generator=draws))
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return folder


def write_tokenizer(folder: Path) -> None:
    """A tokenizer of single bytes, with an end-of-text token."""
    vocab = {byte: i for i, byte in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab={**vocab, "<|endoftext|>": 256}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    tokenizer.save(str(folder / "tokenizer.json"))


def with_weights(folder: Path, change: Any) -> None:
    """Rewrite a model's weights as `change` changes the dictionary in place."""
    file = folder / "model.safetensors"
    weights = load_file(file)
    change(weights)
    save_file(weights, file, metadata={"format": "pt"})


def rows(n: int = 96) -> list[dict[str, Any]]:
    """Rows of texts with several labels: by the last word, by its topic, a number, and groups of three."""
    drawn = random.Random(5)
    animals, ends = ["cat", "dog", "owl", "ant"], ["bad", "good"]
    made = []
    for i in range(n):
        label, topic, source = i % 2, drawn.randrange(3), ["web", "book"][drawn.random() < 0.4]
        noise = "" if drawn.random() < 0.7 else " maybe"
        text = f"the {animals[topic]} no {drawn.randrange(40)}{noise} is {ends[label]}"
        made.append(
            {
                "key": f"k{i:03d}",
                "text": text,
                "label": label,
                "topic": animals[topic],
                "score": round(drawn.gauss(2.0 * label, 1.0), 3),
                "source": source,
                "group": f"g{i // 3}",
                "split": ["train", "train", "train", "validation", "test"][i % 5],
            }
        )
    return made


def write_table(path: Path, table: list[dict[str, Any]]) -> Path:
    """CSV, TSV or JSONL by the ending."""
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in table))
        return path
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(table[0]), delimiter="\t" if path.suffix == ".tsv" else ",")
        writer.writeheader()
        writer.writerows(table)
    return path


def columns(table: list[dict[str, Any]], *names: str) -> list[dict[str, Any]]:
    """The rows with these columns only."""
    return [{name: row[name] for name in names} for row in table]


def chats(n: int = 60) -> list[dict[str, Any]]:
    """Chats of a question and an answer."""
    return [
        {
            "messages": [
                {"role": "user", "content": f"n {i}?"},
                {"role": "assistant", "content": "yes" if i % 2 else "no"},
            ],
            "label": i % 2,
        }
        for i in range(n)
    ]


def spans(n: int = 60) -> list[dict[str, Any]]:
    """Texts with a word to read and its class."""
    made = []
    for i in range(n):
        word = ["cats", "dog"][i % 2]
        text = f"{i} {word} run"
        start = text.index(word)
        made.append({"text": text, "span": [start, start + len(word)], "label": ["plural", "single"][i % 2]})
    return made


def stretches(n: int = 40) -> list[dict[str, Any]]:
    """Texts with labelled stretches of characters, and a label for everything outside them."""
    made = []
    for row in spans(n):
        start, end = row["span"]
        made.append({"text": row["text"], "tags": [{"start": start, "end": end, "label": "noun"}, {"label": "other"}]})
    return made


def conllu(n: int = 24) -> str:
    """Sentences in CoNLL-U."""
    made = []
    for i in range(n):
        words = [
            (f"cats{i}", "NOUN", "nsubj", 2 + i % 2),
            ("eat", "VERB", "root", 0),
            (["fish", "mice"][i % 2], "NOUN", "obj", 2),
        ]
        made.append(f"# sent_id = s{i}\n# text = {' '.join(w[0] for w in words)}")
        made += [
            f"{at}\t{form}\t{form}\t{upos}\t_\tNumber={'Plur' if i % 2 else 'Sing'}\t{head}\t{rel}\t_\t_"
            for at, (form, upos, rel, head) in enumerate(words, 1)
        ]
        made.append("")
    return "\n".join(made) + "\n"


def tokenizer_of(folder: Path) -> Tokenizer:
    """The tokenizer of a folder of a model."""
    return Tokenizer.from_file(str(folder / "tokenizer.json"))
