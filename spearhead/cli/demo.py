"""``spearhead demo``: starts the services, answers one prompt, shows what speculation brought."""

import argparse
import sys
import tempfile
from pathlib import Path

from spearhead.cli.interruption import run_interruptibly
from spearhead.cli.supervisor import Supervisor
from spearhead.cli.tables import decode_rate, table
from spearhead.cli.up import add_stack_options, stack_options_from
from spearhead.client import (
    AsyncClient,
    Delta,
    GenerationResult,
    Message,
    RequestOptions,
    SamplingParams,
    ServerInfo,
    Speculation,
)
from spearhead.client.events import ResultBuilder

_WARM_UP_TOKENS = 8
_WHY_SLOWER = (
    "Speculation was slower here: this draft costs about as much as the target. It pays with a smaller\n"
    "draft; with the table of `spearhead profile` the scheduler drafts only where it pays."
)


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command."""
    parser = commands.add_parser("demo", help="start everything, answer one prompt, show where time went")
    parser.set_defaults(run=run)
    parser.add_argument("prompt", help="what to ask the model")
    parser.add_argument("--max-tokens", type=int, default=160, metavar="N", help="longest answer (160)")
    parser.add_argument("--verbose", action="store_true", help="show the services' own output")
    add_stack_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Answers the prompt with and without speculation."""
    run_interruptibly(_demo(arguments))
    return 0


def _say(name: str, text: str) -> None:
    print(f"  {name} {text}", file=sys.stderr, flush=True)


def _be_quiet(name: str, text: str) -> None:
    """A service's own output is kept for the error message only."""


async def _demo(arguments: argparse.Namespace) -> None:
    print("Starting three services on this machine:", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="spearhead-demo-") as folder:
        options = stack_options_from(arguments, listen=f"unix:{Path(folder) / 'front.sock'}")
        log = _say if arguments.verbose else _be_quiet
        async with Supervisor(options, log=log, progress=_say) as stack, AsyncClient(stack.address) as client:
            print(introduction(await client.server_info()), flush=True)
            await client.generate_text(**_options(arguments.prompt, _WARM_UP_TOKENS, None))
            print(f"\n> {arguments.prompt}\n", flush=True)
            fast = await _stream(client, _options(arguments.prompt, arguments.max_tokens, None))
            print("\n\nThe same once more without speculation …", file=sys.stderr, flush=True)
            plain = await client.generate_text(**_options(arguments.prompt, arguments.max_tokens, 0))
            print("\n" + comparison(fast, plain) + "\n", flush=True)


async def _stream(client: AsyncClient, options: RequestOptions) -> GenerationResult:
    builder = ResultBuilder()
    async for event in client.generate(**options):
        builder.add(event)
        if isinstance(event, Delta):
            print(event.text, end="", flush=True)
    return builder.result()


def _options(prompt: str, max_tokens: int, max_draft_tokens: int | None) -> RequestOptions:
    return {
        "messages": [Message(role="user", content=prompt)],
        "sampling": SamplingParams(temperature=0.0, max_tokens=max_tokens),
        "speculation": Speculation(max_draft_tokens=max_draft_tokens),
    }


def introduction(info: ServerInfo) -> str:
    """What is served, in two lines."""
    target = f"  target  {info.target.model}, weights {info.variant}, computed in {info.target.dtype}"
    if info.draft is None:
        return f"{target}\n  draft   none ({info.draft_status})"
    return f"{target}\n  draft   {info.draft.model}, weights {info.draft.weight_dtype}, {info.draft_status}"


def comparison(fast: GenerationResult, plain: GenerationResult) -> str:
    """The table: one column with speculation, one without, and whether the text is the same."""
    columns = [_column(fast), _column(plain)]
    rows = [["", "speculation on", "speculation off"]]
    rows += [[name, columns[0][name], columns[1][name]] for name in columns[0]]
    same = fast.token_ids == plain.token_ids
    verdict = "Both answers are the same, token for token." if same else "THE ANSWERS DIFFER; this is a bug."
    if decode_rate(fast.finished) < decode_rate(plain.finished):
        verdict += "\n" + _WHY_SLOWER
    return f"{table(rows)}\n\n{verdict}"


def _column(result: GenerationResult) -> dict[str, str]:
    end, timings = result.finished, result.finished.timings
    return {
        "tokens": str(end.usage.completion_tokens),
        "tokens/s after the first": f"{decode_rate(end):.1f}",
        "steps of the target": str(end.speculation.rounds),
        "drafts accepted": _acceptance(result),
        "first token after": _ms(timings.time_to_first_token_s),
        "whole answer": _ms(timings.e2e_s),
        "  in queue": _ms(timings.queue_s),
        "  prefill": _ms(timings.prefill_s),
        "  draft": _ms(timings.draft_s),
        "  verify": _ms(timings.verify_s),
        "  network": _ms(timings.network_s),
        "  scheduler": _ms(timings.scheduler_s),
    }


def _acceptance(result: GenerationResult) -> str:
    speculation = result.finished.speculation
    if speculation.acceptance is None:
        return "–"
    return f"{speculation.acceptance:.0%} of {speculation.drafted_tokens}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"
