"""The course from the 4-bit weights alone over closed forms and training to gates."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from spearhead.quant.calibration.config import CalibrationConfig
from spearhead.quant.calibration.fitting import ClosedForms
from spearhead.quant.calibration.placing import start_factors
from spearhead.quant.calibration.rungs import RungMaker, RungState
from spearhead.quant.report import Rung
from spearhead.quant.student import Factors
from spearhead.quant.training import TrainingConfig


def climb(
    maker: RungMaker,
    forms: ClosedForms,
    ranks: Mapping[str, int],
    config: CalibrationConfig,
    tell: Callable[[str], None],
) -> tuple[list[RungState], list[RungState]]:
    """Makes every rung that may be decided about.

    Args:
        maker: Makes one.
        forms: Closed forms.
        ranks: Module to rank.
        config: Whether and where there are gates.
        tell: Told why there are none.

    Returns:
        The rungs in order, of two gated ones the better by its looks; and all gated ones.
    """
    start = start_factors(forms, ranks)
    w4 = maker.untrained(Rung.W4, {}, "")
    static = maker.untrained(Rung.STATIC, start, forms.result.key)
    trained = maker.trained(
        Rung.TRAINED, start, static.key, start=Rung.STATIC.value, training=config.training
    )
    rungs = [w4, static, trained]
    if config.gate == "off":
        return rungs, []
    if not any(one.gate is not None for one in maker.gated_start(start).values()):
        tell(f"no compensator has rank {config.gate_min_rank}, below which there is nothing to gate")
        return rungs, []
    candidates = _gated(maker, start, static, trained, config.training)
    return [*rungs, min(candidates, key=_best_look)], candidates


def _best_look(state: RungState) -> float:
    """Not the loss that decides: the better of two would win by chance."""
    return min(point.held_out_kl for point in state.curve)


def _gated(
    maker: RungMaker,
    start: Mapping[str, Factors],
    static: RungState,
    trained: RungState,
    training: TrainingConfig,
) -> list[RungState]:
    """Equal steps from the same start; and gates alone on trained factors, which adds what gates add."""
    return [
        maker.trained(
            Rung.GATED, maker.gated_start(start), static.key, start=Rung.STATIC.value, training=training
        ),
        maker.trained(
            Rung.GATED,
            maker.gated_start(trained.factors),
            trained.key,
            start=Rung.TRAINED.value,
            training=replace(training, learning_rate=0.0),
        ),
    ]
