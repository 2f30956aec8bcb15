"""The products of real models, by name: what benchmarks and tuning run over."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One product of a model.

    Attributes:
        name: What it projects.
        outputs: N of each projection that shares the input.
        in_features: K.
    """

    name: str
    outputs: tuple[int, ...]
    in_features: int

    @property
    def out_features(self) -> int:
        """N of all projections together."""
        return sum(self.outputs)


def _layer(
    hidden: int, heads: int, kv_heads: int, head_dim: int, intermediate: int, ranks: int = 1
) -> tuple[Shape, ...]:
    query, key = heads * head_dim // ranks, kv_heads * head_dim // ranks
    inner = intermediate // ranks
    return (
        Shape(name="qkv", outputs=(query, key, key), in_features=hidden),
        Shape(name="o", outputs=(hidden,), in_features=query),
        Shape(name="gate_up", outputs=(inner, inner), in_features=hidden),
        Shape(name="down", outputs=(hidden,), in_features=inner),
    )


MODELS = {
    "smollm2": _layer(576, 9, 3, 64, 1536),
    "8b": _layer(4096, 32, 8, 128, 14336),
    "13b": _layer(5120, 40, 40, 128, 13824),
    "70b-tp2": _layer(8192, 64, 8, 128, 28672, ranks=2),
}


def shapes_of(names: str) -> list[tuple[str, Shape]]:
    """``(model, shape)`` of a comma-separated list of models.

    Raises:
        ValueError: A name is not known.
    """
    unknown = [name for name in names.split(",") if name not in MODELS]
    if unknown:
        raise ValueError(f"no model {unknown[0]!r}; known: {', '.join(MODELS)}")
    return [(name, shape) for name in names.split(",") for shape in MODELS[name]]
