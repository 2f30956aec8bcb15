"""Other ways to spend the same bytes: published closed forms, and other places for trained ones."""

from dataclasses import dataclass, replace

from spearhead.quant.allocation import (
    Allocation,
    AllocationConfig,
    EnergyCurve,
    allocate,
    greedy_waterfilling,
    random_modules,
    uniform_rank,
)
from spearhead.quant.calibration.baseline_forms import BaselineForms, Method
from spearhead.quant.calibration.calibration import Calibration
from spearhead.quant.calibration.encoding import stored_bytes
from spearhead.quant.calibration.placing import allocation_config, start_factors
from spearhead.quant.calibration.progress import Progress
from spearhead.quant.calibration.report import Scores, convention, text_scores
from spearhead.quant.calibration.rungs import RungMaker
from spearhead.quant.calibration.scoring import Score, Scorer, Variant
from spearhead.quant.calibration.store import StageStore
from spearhead.quant.report import ByteRatio, QualityPoint, QualitySeries, Rung, SeriesKind, SidePoint

_OURS = "ours"
_UNIFORM, _RANDOM = "uniform, trained", "random modules, trained"
_GREEDY = "water-filling, trained"


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselinePlan:
    """What is compared.

    Attributes:
        budgets: Shares of the 4-bit artefact's bytes; empty = the calibration's own.
        methods: Closed forms, at the rank that all modules can have under each budget, one more where that
            still fits.
        ratios: Methods whose bytes at our perplexity are sought.
        max_rank: Largest rank of closed forms. A series whose ranks it lowers says so in its name, since its
            bytes are then fewer than the budget's.
        random_seeds: One random placement each.
    """

    budgets: tuple[float, ...] = ()
    methods: tuple[Method, ...] = tuple(Method)
    ratios: tuple[Method, ...] = (Method.L2QER, Method.QERA_EXACT, Method.LOFTQ)
    max_rank: int = 32
    random_seeds: tuple[int, ...] = (0, 1, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineQuality:
    """What came out.

    Attributes:
        series: Quality against bytes.
        byte_ratios: Bytes at equal perplexity, one a text and method.
    """

    series: tuple[QualitySeries, ...]
    byte_ratios: tuple[ByteRatio, ...]


def baseline_quality(
    store: StageStore,
    found: Calibration,
    scorer: Scorer,
    plan: BaselinePlan,
    scores: Scores,
    *,
    progress: Progress,
) -> BaselineQuality:
    """Scores baselines at equal bytes, and seeks their bytes at equal perplexity.

    Args:
        store: Keeps everything.
        found: The calibration.
        scorer: Of its texts.
        plan: What is compared.
        scores: Of the calibration's own rungs.
        progress: Told of all stages.
    """
    comparison = _Comparison(store, found, scorer, plan, progress)
    series = comparison.series(scores)
    return BaselineQuality(series=series, byte_ratios=comparison.ratios(scores))


class _Comparison:
    """One calibration against everything else."""

    def __init__(
        self,
        store: StageStore,
        found: Calibration,
        scorer: Scorer,
        plan: BaselinePlan,
        progress: Progress,
    ) -> None:
        self._store, self._found, self._scorer, self._plan = store, found, scorer, plan
        self._forms = BaselineForms(store, found, plan.max_rank, progress)
        self._maker = RungMaker(store, found.models, found.texts, found.config, progress)
        self._w4_bytes = found.subject.artefact.stored_bytes

    def series(self, scores: Scores) -> tuple[QualitySeries, ...]:
        """Our rungs, the methods, and other placements, at every budget."""
        points: dict[tuple[str, SeriesKind], list[QualityPoint]] = {}

        def add(name: str, kind: SeriesKind, point: QualityPoint | None) -> None:
            if point is not None:
                points.setdefault((name, kind), []).append(point)

        for share in self._budgets():
            own = abs(share * self._w4_bytes - self._own_bytes()) <= 1
            ranks = self._uniform(share).ranks
            capped = {module: min(rank, self._plan.max_rank) for module, rank in ranks.items()}
            lowered = "" if capped == ranks else f", no rank over {self._plan.max_rank}"
            for method in self._plan.methods:
                if ranks and self._forms.offers(method):
                    variant = self._forms.variant(method, capped)
                    add(method.value + lowered, SeriesKind.BASELINE, self._point(variant, share, None))
            if own:
                for state in self._found.rungs[1:]:
                    variant = Variant(name=state.rung.value, key=state.key, factors=state.factors)
                    name = f"{_OURS}, {state.rung.value}"
                    add(name, SeriesKind.OURS, self._point(variant, share, None, scores))
            else:
                add(f"{_OURS}, trained", SeriesKind.OURS, self._trained(self._ours(share), share, None))
            add(_UNIFORM, SeriesKind.CONTROL, self._trained(self._uniform(share), share, None))
            add(_GREEDY, SeriesKind.CONTROL, self._trained(self._greedy(share), share, None))
            for seed in self._plan.random_seeds:
                add(_RANDOM, SeriesKind.CONTROL, self._trained(self._random(share, seed), share, seed))
        return tuple(
            QualitySeries(name=name, kind=kind, points=tuple(found)) for (name, kind), found in points.items()
        )

    def ratios(self, scores: Scores) -> tuple[ByteRatio, ...]:
        """Our best rung against the least uniform rank that is no worse, for each text and method."""
        best = self._found.chosen
        if not best.factors:
            return ()
        return tuple(
            self._ratio(text, method, scores[text][best.rung.value], best.compensator_bytes)
            for text in scores
            for method in self._plan.ratios
            if self._forms.offers(method)
        )

    def _ratio(self, text: str, method: Method, ours: Score, our_bytes: int) -> ByteRatio:
        """Bisection; perplexity falls with rank, up to noise."""
        low, high = 0, self._plan.max_rank  # low is worse than ours; high is tried first
        reached = self._at_rank(method, high)[1][text].perplexity <= ours.perplexity
        while reached and high - low > 1:
            middle = (low + high) // 2
            if self._at_rank(method, middle)[1][text].perplexity <= ours.perplexity:
                high = middle
            else:
                low = middle
        size, scores = self._at_rank(method, high)
        return ByteRatio(
            text=text,
            convention=convention(self._found.subject.artefact.quantization),
            ours=SidePoint(
                series=f"{_OURS}, {self._found.chosen.rung.value}",
                compensator_bytes=our_bytes,
                perplexity=ours.perplexity,
                kl=ours.kl_mean,
            ),
            baseline=SidePoint(
                series=method.value,
                compensator_bytes=size,
                perplexity=scores[text].perplexity,
                kl=scores[text].kl_mean,
            ),
            reached=reached,
        )

    def _at_rank(self, method: Method, rank: int) -> tuple[int, dict[str, Score]]:
        ranks = {
            module.name: min(rank, module.outputs, module.inputs) for module in self._found.subject.modules
        }
        variant = self._forms.variant(method, ranks)
        found = self._scorer.score([variant])
        size = stored_bytes(variant.factors, self._found.config.factor_bits)
        return size, {text: by_variant[variant.name] for text, by_variant in found.items()}

    def _budgets(self) -> tuple[float, ...]:
        return self._plan.budgets or (self._own_bytes() / self._w4_bytes,)

    def _own_bytes(self) -> int:
        return self._found.config.budget(self._w4_bytes)

    def _config_of(self, share: float) -> AllocationConfig:
        config = replace(self._found.config, gate="off", budget_bytes=max(1, round(share * self._w4_bytes)))
        return allocation_config(config, self._w4_bytes)

    def _ours(self, share: float) -> Allocation:
        found = self._found
        return allocate(found.subject.modules, found.damage.by_module, self._curves(), self._config_of(share))

    def _uniform(self, share: float) -> Allocation:
        return uniform_rank(self._found.subject.modules, self._config_of(share))

    def _greedy(self, share: float) -> Allocation:
        """Rank by rank where a byte removes most damage: what knowing no entropy would give."""
        found, config = self._found, self._config_of(share)
        return greedy_waterfilling(found.subject.modules, found.damage.by_module, self._curves(), config)

    def _random(self, share: float, seed: int) -> Allocation:
        """As many modules as our rule selects under the budget, drawn by lot."""
        found = self._found
        return random_modules(
            found.subject.modules,
            found.damage.by_module,
            self._curves(),
            self._config_of(share),
            count=self._ours(share).selected_count,
            seed=seed,
        )

    def _curves(self) -> dict[str, EnergyCurve]:
        return {module: form.residual for module, form in self._found.forms.by_module.items()}

    def _trained(self, allocation: Allocation, share: float, seed: int | None) -> QualityPoint | None:
        start = start_factors(self._found.forms, allocation.ranks)
        if not start:
            return None
        state = self._maker.trained(
            Rung.TRAINED,
            start,
            self._found.forms.result.key,
            start=Rung.STATIC.value,
            training=self._found.config.training,
        )
        return self._point(Variant(name=Rung.TRAINED, key=state.key, factors=state.factors), share, seed)

    def _point(
        self, variant: Variant, share: float, seed: int | None, scores: Scores | None = None
    ) -> QualityPoint:
        known = scores or self._scorer.score([variant])
        ranks = sum(len(one.a) for one in variant.factors.values())
        return QualityPoint(
            budget_percent=100 * share,
            compensator_bytes=stored_bytes(variant.factors, self._found.config.factor_bits),
            mean_rank=ranks / len(self._found.subject.modules),
            seed=seed,
            texts=text_scores(known, variant.name),
        )
