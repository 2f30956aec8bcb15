"""Remarks about a whole run: nothing is wrong, but somebody may be surprised later."""

from spearhead.model.architecture import ModelConfig
from spearhead.model.checkpoint.layout import linear_modules
from spearhead.quant.recipe import Choices

_TOKENS_AN_INPUT = 8
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
    """Statistics that describe the calibration tokens better than the next ones."""
    widest = max(inputs for _, inputs in linear_modules(config).values())
    if tokens >= _TOKENS_AN_INPUT * widest:
        return []
    return [
        f"{tokens} calibration tokens are few for modules of {widest} inputs: what is chosen fits them and "
        "may be worse than plain rounding on other text, with gptq above all; give "
        f"{_TOKENS_AN_INPUT * widest} or more, of the kind that the model will read"
    ]
