"""Rows as tables for people; never a percentage without absolute numbers and the quantiser's convention."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.recovery.lab import texts_of
from spearhead.cli.tables import table
from spearhead.quant.calibration.scoring import REFERENCE
from spearhead.quant.evaluation.bootstrap import Interval, PairedBootstrap
from spearhead.quant.report import Rung


def section_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """One line a case and text, with the rung that was kept."""
    lines = [
        ["case", "text", "quantiser", "MB", "rung", "PPL full", "PPL w4", "PPL", "x full", "gap closed",
         "KL w4", "KL", "KL closed", "held-out KL"]
    ]  # fmt: skip
    for row in rows:
        for text in texts_of(row):
            lines.append(_line(row, text, row["chosen"]))
    return table(lines)


def _line(row: Mapping[str, Any], text: str, rung: str) -> list[str]:
    full, start, now = (row["scores"][text][name] for name in (REFERENCE, Rung.W4.value, rung))
    gap = (start["perplexity"] - now["perplexity"]) / (start["perplexity"] - full["perplexity"])
    return [
        row["name"],
        text,
        row["quantization"],
        f"{row['rungs'][rung]['compensator_bytes'] / 1e6:.3f}",
        rung,
        f"{full['perplexity']:.2f}",
        f"{start['perplexity']:.2f}",
        f"{now['perplexity']:.2f}",
        f"{now['perplexity'] / full['perplexity']:.3f}",
        f"{gap:.1%}",
        f"{start['kl_mean']:.4f}",
        f"{now['kl_mean']:.4f}",
        f"{1 - now['kl_mean'] / start['kl_mean']:.1%}",
        f"{row['rungs'][rung]['held_out_kl']:.4f}",
    ]


def grid_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The entropy rule beside the best (k, r) of the grid, by held-out KL, untrained and trained."""
    lines = [
        ["budget", "", "rule: modules", "held-out KL", "best of grid: modules x rank", "KL", "rule / best"]
    ]
    for row in rows:
        for label, rung, name in (
            ("untrained", "static", "untrained_kl"),
            ("trained", "trained", "held_out_kl"),
        ):
            best = min((point for point in row["grid"] if name in point), key=lambda point: point[name])
            ours = row["rungs"][rung]
            lines.append(
                [f"{row['budget']:.1%}", label, str(ours["modules"]), f"{ours['held_out_kl']:.4f}",
                 f"{best['modules']} x {best['rank']}", f"{best[name]:.4f}",
                 f"{ours['held_out_kl'] / best[name]:.3f}"]
            )  # fmt: skip
    return table(lines)


def gate_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Gated against static factors of equal rank: share of the remaining KL that gates take."""
    lines = [["case", "on", "static KL", "gated KL", "taken", "difference (95%)"]]
    for row in rows:
        rungs = row["rungs"]
        static, gated = (rungs[rung]["held_out_kl"] for rung in ("trained", "gated"))
        lines.append(
            [row["name"], "held-out", f"{static:.4f}", f"{gated:.4f}", f"{1 - gated / static:.1%}",
             row["decisions"][-1]]
        )  # fmt: skip
        for text, found in row["gate_against_static"].items():
            static, gated = (row["scores"][text][rung]["kl_mean"] for rung in ("trained", "gated"))
            interval = _interval(Interval(**found["delta_kl"]))
            lines.append(
                [row["name"], text, f"{static:.4f}", f"{gated:.4f}", f"{1 - gated / static:.1%}", interval]
            )
    for text, pooled in pooled_differences(rows).items():
        lines.append(["all seeds", text, "", "", "", _interval(pooled)])
    return table(lines)


def pooled_differences(rows: Sequence[Mapping[str, Any]]) -> dict[str, Interval]:
    """Text to the difference of KL over all seeds, by paired bootstrap over segments.

    Seeds share segments, so that a segment counts once, with its mean over seeds.
    """
    pooled = {}
    for text in rows[0]["gate_against_static"]:
        by_seed = [row["gate_against_static"][text]["delta_kl_by_segment"] for row in rows]
        by_segment = np.mean(np.asarray(by_seed, dtype=np.float64), axis=0)
        bootstrap = PairedBootstrap(len(by_segment))
        samples = bootstrap.ratios(by_segment, np.ones_like(by_segment))
        pooled[text] = bootstrap.interval(samples, null=0)
    return pooled


def _interval(found: Interval) -> str:
    if found.low is None:  # one segment has none
        return f"{found.value:+.5f}"
    return f"{found.value:+.5f} ({found.low:+.5f} to {found.high:+.5f})"


def ratio_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Bytes at equal perplexity."""
    lines = [["text", "ours, bytes", "ours, PPL", "baseline", "bytes", "PPL", "ours / baseline"]]
    for row in rows:
        for ratio in row["byte_ratios"]:
            ours, other = ratio["ours"], ratio["baseline"]
            share = ours["compensator_bytes"] / other["compensator_bytes"]
            lines.append(
                [
                    ratio["text"],
                    str(ours["compensator_bytes"]),
                    f"{ours['perplexity']:.2f}",
                    other["series"],
                    str(other["compensator_bytes"]),
                    f"{other['perplexity']:.2f}",
                    f"{'' if ratio['reached'] else '<= '}{share:.1%}",
                ]
            )
    return table(lines)
