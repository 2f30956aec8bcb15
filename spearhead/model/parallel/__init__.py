"""One model over several processes, its ranks: who computes what, and how they exchange it."""

from spearhead.model.parallel.ranks import ALONE, Ranks, SingleRank
from spearhead.model.parallel.shards import Cut, Shard, plan_shards

__all__ = ["ALONE", "Cut", "Ranks", "Shard", "SingleRank", "plan_shards"]
