"""The dimensions of real models, by name: what benchmarks and tuning run over."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """The dimensions of a decoder, as one GPU of ``tensor_parallel_size`` sees it.

    Attributes:
        hidden_size: Width of the residual stream.
        intermediate_size: Width of the MLP, on all GPUs.
        layer_count: Layers.
        head_count: Query heads, on all GPUs.
        kv_head_count: Key and value heads, on all GPUs.
        head_dim: Of one head.
        vocab_size: Rows of the head, on all GPUs.
        tensor_parallel_size: GPUs that share each layer.
    """

    hidden_size: int
    intermediate_size: int
    layer_count: int
    head_count: int
    kv_head_count: int
    head_dim: int
    vocab_size: int
    tensor_parallel_size: int = 1

    @property
    def heads(self) -> tuple[int, int]:
        """Query and key heads of one GPU."""
        return self.head_count // self.tensor_parallel_size, self.kv_head_count // self.tensor_parallel_size

    @property
    def products(self) -> tuple[Shape, ...]:
        """The four products of a layer, on one GPU."""
        query, key = (count * self.head_dim for count in self.heads)
        inner, hidden = self.intermediate_size // self.tensor_parallel_size, self.hidden_size
        return (
            Shape(name="qkv", outputs=(query, key, key), in_features=hidden),
            Shape(name="o", outputs=(hidden,), in_features=query),
            Shape(name="gate_up", outputs=(inner, inner), in_features=hidden),
            Shape(name="down", outputs=(hidden,), in_features=inner),
        )


MODELS = {
    "smollm2": ModelShape(
        hidden_size=576,
        intermediate_size=1536,
        layer_count=30,
        head_count=9,
        kv_head_count=3,
        head_dim=64,
        vocab_size=49152,
    ),
    "8b": ModelShape(
        hidden_size=4096,
        intermediate_size=14336,
        layer_count=32,
        head_count=32,
        kv_head_count=8,
        head_dim=128,
        vocab_size=128256,
    ),
    "13b": ModelShape(
        hidden_size=5120,
        intermediate_size=13824,
        layer_count=40,
        head_count=40,
        kv_head_count=40,
        head_dim=128,
        vocab_size=32000,
    ),
    "70b-tp2": ModelShape(
        hidden_size=8192,
        intermediate_size=28672,
        layer_count=80,
        head_count=64,
        kv_head_count=8,
        head_dim=128,
        vocab_size=128256,
        tensor_parallel_size=2,
    ),
}


def shapes_of(names: str) -> list[tuple[str, Shape]]:
    """``(model, shape)`` of a comma-separated list of models.

    Raises:
        ValueError: A name is not known.
    """
    unknown = [name for name in names.split(",") if name not in MODELS]
    if unknown:
        raise ValueError(f"no model {unknown[0]!r}; known: {', '.join(MODELS)}")
    return [(name, shape) for name in names.split(",") for shape in MODELS[name].products]
