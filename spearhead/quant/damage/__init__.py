"""How much each module loses to four bits, measured one module at a time."""

from spearhead.quant.damage.measure import measure_damage
from spearhead.quant.damage.rank_correlation import spearman
from spearhead.quant.damage.report import DAMAGE_KINDS, DamageKind, DamageReport

__all__ = ["DAMAGE_KINDS", "DamageKind", "DamageReport", "measure_damage", "spearman"]
