"""Text to token ids and back, without torch: from a model folder or a GGUF file."""

from spearhead.tokenizer.detokenizer import IncrementalDetokenizer
from spearhead.tokenizer.tokenizer import Tokenizer

__all__ = ["IncrementalDetokenizer", "Tokenizer"]
