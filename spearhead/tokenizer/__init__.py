"""Text to token ids and back, without torch: from a model folder or a GGUF file."""

from spearhead.tokenizer.detokenizer import IncrementalDetokenizer
from spearhead.tokenizer.tokenizer import SHORT_TEXT, Tokenizer

__all__ = ["SHORT_TEXT", "IncrementalDetokenizer", "Tokenizer"]
