"""Models, written by hand, with named points; and their weights and tokenizers from Hugging Face files."""

from probekit.models.load import BUILTIN_MODELS, HUB_ALIASES, load_model, load_tokenizer, outline
from probekit.models.tokenizer import Tokenizer

__all__ = ["BUILTIN_MODELS", "HUB_ALIASES", "Tokenizer", "load_model", "load_tokenizer", "outline"]
