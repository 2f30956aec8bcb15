"""Remarks about a whole run: nothing is wrong, but somebody may be surprised later."""

from spearhead.model.architecture import ModelConfig
from spearhead.model.checkpoint.layout import linear_modules
from spearhead.quant.recipe import Choices

_FUSED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


def fused_apart(choices: Choices) -> list[str]:
    """Projections that vLLM computes as one and that do not share a grid."""
    apart: dict[str, None] = {}
    for module, choice in choices.items():
        parent, _, part = module.rpartition(".")
        for group in _FUSED:
            others = [choices[f"{parent}.{other}"] for other in group] if part in group else []
            if any((other and other.grid) != (choice and choice.grid) for other in others):
                apart[f"{parent.removeprefix('model.')} ({', '.join(group)})"] = None
    if not apart:
        return []
    return [
        f"vLLM computes these as one and cannot load them with different schemes: {', '.join(apart)}; "
        "transformers and spearhead can"
    ]


def too_few_tokens(config: ModelConfig, tokens: int) -> list[str]:
    """Second moments without full rank."""
    widest = max(inputs for _, inputs in linear_modules(config).values())
    if tokens >= widest:
        return []
    return [
        f"{tokens} calibration tokens are fewer than the {widest} inputs of the widest module: their second "
        "moments have not full rank; more tokens give better weights"
    ]
