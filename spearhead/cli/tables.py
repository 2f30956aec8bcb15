"""Text for people: summary lines and tables; pure functions."""

from collections.abc import Sequence

from spearhead.client import Finished


def summary_line(finished: Finished) -> str:
    """One line about an answer: tokens, speed, acceptance, why it ended."""
    timings, usage, speculation = finished.timings, finished.usage, finished.speculation
    parts = [
        f"{usage.prompt_tokens} + {usage.completion_tokens} tokens",
        f"first after {timings.time_to_first_token_s * 1e3:.0f} ms",
        f"{decode_rate(finished):.1f} tokens/s",
    ]
    if speculation.acceptance is not None:
        parts.append(f"{speculation.acceptance:.0%} of {speculation.drafted_tokens} drafts accepted")
    elif speculation.inactive_reason:
        parts.append(f"no speculation: {speculation.inactive_reason}")
    return f"[{', '.join(parts)}; {finished.reason}]"


def decode_rate(finished: Finished) -> float:
    """Tokens a second after the first one; 0 when there is only one."""
    decode_s = finished.timings.e2e_s - finished.timings.time_to_first_token_s
    tokens = finished.usage.completion_tokens - 1
    return tokens / decode_s if tokens > 0 and decode_s > 0 else 0.0


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows of equal length with aligned columns: the first to the left, the others to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )
