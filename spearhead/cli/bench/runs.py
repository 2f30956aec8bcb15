"""The runs of a benchmark against one server."""

from collections.abc import Sequence
from dataclasses import dataclass

from spearhead.cli.bench.drive import DriveOptions, Outcome, drive
from spearhead.cli.bench.statistics import Summary, summarise
from spearhead.cli.bench.workload import PlannedRequest, WorkloadOptions, plan_comparison, plan_requests
from spearhead.cli.progress import ProgressBar
from spearhead.client import AsyncClient

COMPARISON_REPEATS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is sent; one run for each pair of draft length and concurrency.

    Attributes:
        requests: In each run.
        concurrencies: Most at once in a closed loop; 0 = open loop at ``rate``.
        rate: Mean arrivals a second in an open loop.
        draft_tokens: Most drafts a step; ``None`` = the scheduler chooses.
        prompt_words: Shortest and longest prompt.
        output_tokens: Fewest and most tokens to generate.
        cancel_share: Share of requests whose client hangs up midway, 0..1.
        temperature: Of every request.
        seed: Of everything drawn.
        warm_up_requests: Sent before the first run, not counted.
        timeout_s: Deadline of each request.
    """

    requests: int
    concurrencies: tuple[int, ...]
    rate: float
    draft_tokens: tuple[int | None, ...]
    prompt_words: tuple[int, int]
    output_tokens: tuple[int, int]
    cancel_share: float
    temperature: float
    seed: int
    warm_up_requests: int
    timeout_s: float


async def warm_up(client: AsyncClient, load: Load) -> None:
    """A few short requests, so that no run pays for first uses."""
    options = WorkloadOptions(requests=load.warm_up_requests, output_tokens=(8, 16), label="warm-up")
    await drive(client, plan_requests(options), DriveOptions(), on_done=lambda outcome: None)


async def run_loads(client: AsyncClient, load: Load) -> dict[str, Summary]:
    """Every run, by its label; all with equal lengths, but prompts of their own."""
    summaries = {}
    for drafts in load.draft_tokens:
        for concurrency in load.concurrencies:
            label = _label(drafts, concurrency, load.rate)
            options = DriveOptions(
                concurrency=concurrency,
                temperature=load.temperature,
                draft_tokens=drafts,
                timeout_s=load.timeout_s,
            )
            summaries[label] = await _run(client, _planned(load, label), options, label)
    return summaries


async def run_comparison(client: AsyncClient, streams: Sequence[int], output_tokens: int) -> dict[int, float]:
    """Tokens a second by number of streams: the baseline's own requests, greedy, speculation off."""
    rates = {}
    for count in streams:
        summaries = [
            await _run(
                client,
                plan_comparison(count, output_tokens, repeat),
                DriveOptions(concurrency=count, draft_tokens=0),
                f"{count} as the baseline, {repeat}",
            )
            for repeat in range(1, COMPARISON_REPEATS + 1)
        ]
        rates[count] = max(summary.tokens_per_s for summary in summaries)
    return rates


async def _run(
    client: AsyncClient, requests: Sequence[PlannedRequest], options: DriveOptions, label: str
) -> Summary:
    bar = ProgressBar(label, len(requests))

    def on_done(outcome: Outcome) -> None:
        bar.advance()

    return summarise(await drive(client, requests, options, on_done))


def _planned(load: Load, label: str) -> tuple[PlannedRequest, ...]:
    options = WorkloadOptions(
        requests=load.requests,
        prompt_words=load.prompt_words,
        output_tokens=load.output_tokens,
        rate=load.rate,
        cancel_share=load.cancel_share,
        seed=load.seed,
        label=label,
    )
    return plan_requests(options)


def _label(drafts: int | None, concurrency: int, rate: float) -> str:
    load = f"{concurrency} at once" if concurrency else f"{rate:g}/s"
    speculation = {None: "auto", 0: "off"}.get(drafts, f"k={drafts}")
    return f"{load}, speculation {speculation}"
