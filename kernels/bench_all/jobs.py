"""What one run measures, most important first, and what must be compiled for it."""

from dataclasses import dataclass
from pathlib import Path

LAYERS = ("qkv", "o", "gate_up", "down")
FEW_ROWS = "1,4,8,16,32,64"
MANY_ROWS = "128,256,512,1024,2048,4096,8192"
_MANY_PATHS = "plain,fused,forked,dense,extended,fp16,marlin,machete"
_MODELS = ("8b", "13b", "70b-tp2")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One benchmark process.

    Attributes:
        name: Of its files.
        module: What ``python -m`` runs.
        arguments: Its command line.
    """

    name: str
    module: str
    arguments: tuple[str, ...] = ()


def timings(peers: Path | None, configs: Path, out: Path) -> list[Job]:
    """Benchmarks one after the other: the claims first, then what explains them.

    Args:
        peers: Folder of other kernels; ``None`` = without them.
        configs: Folder of the plans.
        out: Where the latency table goes.
    """
    against = () if peers is None else ("--peers", str(peers))
    plans = ("--configs", str(configs))
    products = "kernels.w4a16.bench"

    def few(models: str, *more: str) -> tuple[str, ...]:
        return ("--shapes", models, "--rows", FEW_ROWS, *plans, *against, *more)

    def many(models: str) -> tuple[str, ...]:
        return ("--shapes", models, "--rows", MANY_ROWS, "--paths", _MANY_PATHS, *plans, *against)

    return [
        Job(name="products-8b", module=products, arguments=few("8b")),
        Job(name="layer-8b", module="kernels.compensator.bench", arguments=("--shapes", "8b", *plans)),
        Job(name="attention", module="kernels.paged_attention.bench", arguments=("--pieces", "256")),
        Job(name="sample", module="kernels.sample.bench"),
        Job(name="products-13b-70b", module=products, arguments=few("13b,70b-tp2")),
        Job(name="products-8b-many", module=products, arguments=many("8b")),
        Job(
            name="layer-13b-70b",
            module="kernels.compensator.bench",
            arguments=("--shapes", "13b,70b-tp2", *plans),
        ),
        Job(
            name="layer-8b-gated",
            module="kernels.compensator.bench",
            arguments=("--shapes", "8b", "--rows", FEW_ROWS, "--gated", *plans),
        ),
        Job(
            name="profile-8b",
            module="kernels.profile",
            arguments=("--shapes", "8b", "--output", str(out / "latency-8b.json"), *plans),
        ),
        Job(name="products-13b-70b-many", module=products, arguments=many("13b,70b-tp2")),
        Job(name="products-8b-channel", module=products, arguments=few("8b", "--group", "0")),
        Job(name="rms-norm", module="kernels.rms_norm.bench"),
        Job(name="silu-mul", module="kernels.silu_mul.bench"),
        Job(name="rope-and-cache", module="kernels.rope_and_cache.bench"),
    ]


def gates(configs: Path) -> list[Job]:
    """What may run all at once before anything is timed: checks, which fill the compiler's cache."""
    plans = ("--configs", str(configs))
    rows = "1,16,32,64,128"
    products = [
        Job(
            name=f"gate-{model}-{layer}",
            module="kernels.w4a16.bench",
            arguments=("--gate", "--shapes", model, "--layers", layer, "--rows", rows, *plans),
        )
        for model in _MODELS
        for layer in LAYERS
    ]
    return [
        *products,
        Job(
            name="gate-attention",
            module="kernels.paged_attention.bench",
            arguments=("--gate", "--pieces", "256"),
        ),
        Job(name="gate-sample", module="kernels.sample.bench", arguments=("--gate",)),
        Job(
            name="gate-layer",
            module="kernels.compensator.bench",
            arguments=("--gate", "--shapes", "8b", "--rows", "1,128", *plans),
        ),
    ]
