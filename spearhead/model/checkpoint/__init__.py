"""Opening checkpoints of every supported format and loading their variants."""

from spearhead.model.checkpoint.opening import open_checkpoint
from spearhead.model.checkpoint.source import Checkpoint
from spearhead.model.checkpoint.variants import FP16, W4, W4_EC, load_variants, offered_variants

__all__ = ["FP16", "W4", "W4_EC", "Checkpoint", "load_variants", "offered_variants", "open_checkpoint"]
