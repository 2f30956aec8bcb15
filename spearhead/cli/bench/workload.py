"""The requests of a benchmark: drawn from a seed, so that every run and every peer gets the same."""

import random
from dataclasses import dataclass

_TOPICS = (
    "the tides", "photosynthesis", "how bread rises", "the water cycle", "why leaves change colour",
    "the printing press", "how bridges stay up", "the moons of Jupiter", "how vaccines work",
    "the history of chess", "sound in water", "how glass is made", "the roots of jazz", "volcanoes",
    "how maps are drawn", "the life of bees",
)  # fmt: skip
_QUESTIONS = (
    "Explain {} to a curious child.",
    "Write a short encyclopedia entry about {}.",
    "List the most important facts about {} and say why each matters.",
    "Tell a short story in which {} plays a part.",
)
_CONTEXT = (
    "The notes below were taken during a long lecture.",
    "Several people in the audience had read about the subject before.",
    "The speaker began with a simple example and came back to it at the end.",
    "A drawing on the board showed how the parts work together.",
    "Somebody asked whether the same is true in winter, and the answer was that it mostly is.",
    "The last part dealt with mistakes that are often made.",
)

_COMPARISON_WORDS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRequest:
    """One request of the benchmark.

    Attributes:
        index: Position in the workload.
        prompt: What the user says.
        max_tokens: Tokens to generate; end-of-sequence is ignored, so exactly these.
        seed: Of the sampling.
        arrival_s: When it is sent, from the start of the run; 0 in a closed loop.
        cancel_after_tokens: The client hangs up after this many tokens; ``None`` = never.
    """

    index: int
    prompt: str
    max_tokens: int
    seed: int
    arrival_s: float = 0.0
    cancel_after_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadOptions:
    """What is drawn.

    Attributes:
        requests: How many.
        prompt_words: Shortest and longest prompt in words.
        output_tokens: Fewest and most tokens to generate.
        rate: Mean arrivals a second (Poisson); 0 = closed loop.
        cancel_share: Share of requests whose client hangs up midway, 0..1.
        seed: Of everything drawn.
        label: Goes into the prompts, so that runs on one server share no prefix cache entries.
    """

    requests: int = 32
    prompt_words: tuple[int, int] = (16, 160)
    output_tokens: tuple[int, int] = (32, 96)
    rate: float = 0.0
    cancel_share: float = 0.0
    seed: int = 1
    label: str = ""


def plan_requests(options: WorkloadOptions) -> tuple[PlannedRequest, ...]:
    """Draws the workload; equal options give equal requests."""
    draw = random.Random(options.seed)
    arrival_s = 0.0
    planned = []
    for index in range(options.requests):
        arrival_s += draw.expovariate(options.rate) if options.rate else 0.0
        max_tokens = draw.randint(*options.output_tokens)
        cancelled = draw.random() < options.cancel_share
        cancel_after = draw.randint(1, max_tokens) if cancelled else None
        planned.append(
            PlannedRequest(
                index=index,
                prompt=_prompt(draw, f"{index} {options.label}", draw.randint(*options.prompt_words)),
                max_tokens=max_tokens,
                seed=draw.getrandbits(32),
                arrival_s=arrival_s,
                cancel_after_tokens=cancel_after,
            )
        )
    return tuple(planned)


def plan_comparison(streams: int, output_tokens: int, repeat: int) -> tuple[PlannedRequest, ...]:
    """Requests that run all at once and of equal length, for us and for the baseline alike.

    Args:
        streams: How many.
        output_tokens: Of each.
        repeat: Number of the repetition; each has prompts of its own.
    """
    options = WorkloadOptions(
        requests=streams,
        prompt_words=(_COMPARISON_WORDS, _COMPARISON_WORDS),
        output_tokens=(output_tokens, output_tokens),
        label=f"comparison of {streams}, {repeat}",
    )
    return plan_requests(options)


def _prompt(draw: random.Random, name: str, words: int) -> str:
    """Starts with its own name, so that prompts share no prefix beyond the chat template's."""
    parts = [f"({name}) " + draw.choice(_QUESTIONS).format(draw.choice(_TOPICS))]
    while sum(len(part.split()) for part in parts) < words:
        parts.append(draw.choice(_CONTEXT))
    return " ".join(" ".join(parts).split()[: max(words, 8)])
