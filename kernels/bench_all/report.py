"""The tables of a run: what was to be reached, what was, and how the alternatives compare. Pure functions."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean
from typing import Any

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One number and its limit.

    Attributes:
        what: In words.
        value: Measured.
        limit: To keep.
        at_least: Whether the limit is a lower one.
        where: The shape and row count that it comes from, or how many it is over.
    """

    what: str
    value: float
    limit: float | None
    at_least: bool
    where: str

    @property
    def kept(self) -> bool:
        """Whether the limit is kept; ``True`` where there is none."""
        if self.limit is None:
            return True
        return self.value >= self.limit if self.at_least else self.value <= self.limit


def claims(documents: Sequence[Row]) -> list[Claim]:
    """Everything that the documents say about the limits.

    Args:
        documents: Last lines of benchmarks; those of other kinds are left out.
    """
    grouped = [row for row in _rows(documents, "kernels.w4a16", group=128) if "front" in row]
    layers = _rows(documents, "kernels.compensator")
    gated = _rows(documents, "kernels.compensator", gated=True)
    found = [
        *_ratios("W4+EC / Marlin, M 1 to 16", _between(grouped, 1, 16), _over(("marlin",)), 0.75, 0.95),
        *_ratios(
            "W4+EC / better of Marlin and Machete, M 32 and 64",
            _between(grouped, 32, 64),
            _over(("marlin", "machete")),
            0.80,
            None,
        ),
        *_ratios(
            "W4+EC / best of Marlin, Machete, fp16, M 128 to 8192",
            _between(grouped, 128, 8192),
            _over(("marlin", "machete", "fp16")),
            None,
            1.05,
        ),
        *_ratios(
            "a layer with / without compensators, M 1 to 64", _between(layers, 1, 64), _cost, 1.05, None
        ),
        *_ratios("the same with gates", _between(gated, 1, 64), _cost, None, None),
    ]
    for shape, limit in (("8b gate_up", 0.78), ("8b down", 0.70)):
        for row in (row for row in grouped if (row["shape"], row["rows"]) == (shape, 1)):
            for path in ("plain", "fused"):
                if (value := _us(row, path)) is not None:
                    bar = limit if path == "plain" else None
                    found.append(_share(f"share of the roof, {path}", row["bound"] / value, bar, row))
    for row in (row for row in grouped if (row["shape"], row["rows"]) == ("8b o", 1)):
        naive, fused = _us(row, "naive"), _us(row, "fused")
        if naive is not None and fused is not None:
            what = "naive insertion / fused"
            found.append(Claim(what=what, value=naive / fused, limit=None, at_least=True, where=_where(row)))
    return [*found, *_attention(documents), *_sampling(documents)]


def alternatives(documents: Sequence[Row]) -> dict[int, dict[str, float]]:
    """By row count: geometric mean over shapes of each path's time over the plain product's.

    ``folded`` is the product as it is served: with codes inside, or what the kernel in front takes more.
    """
    found: dict[int, dict[str, list[float]]] = {}
    for row in _rows(documents, "kernels.w4a16", group=128):
        plain = _us(row, "plain")
        if plain is None:
            continue
        times = {name: _us(row, name) for name in ("fused", "codes", "single", "forked", "naive", "extended")}
        times["folded"] = _folded(row)
        for name, value in times.items():
            if value is not None:
                found.setdefault(row["rows"], {}).setdefault(name, []).append(value / plain)
    return {
        rows: {name: geometric_mean(values) for name, values in paths.items()}
        for rows, paths in sorted(found.items())
    }


def lines(documents: Sequence[Row]) -> Iterator[str]:
    """Both tables for people."""
    yield f"{'what':58}{'value':>9}{'limit':>9}  kept  where"
    for claim in claims(documents):
        limit = "-" if claim.limit is None else f"{claim.limit:.2f}"
        kept = "-" if claim.limit is None else "yes" if claim.kept else "NO"
        yield f"{claim.what:58}{claim.value:9.3f}{limit:>9}  {kept:4}  {claim.where}"
    names = ("folded", "fused", "codes", "single", "forked", "naive", "extended")
    yield ""
    yield "times over the plain product, geometric mean over shapes"
    yield f"{'rows':>6}" + "".join(f"{name:>10}" for name in names)
    for rows, paths in alternatives(documents).items():
        yield f"{rows:6}" + "".join(
            f"{paths[name]:10.3f}" if name in paths else f"{'-':>10}" for name in names
        )


def _rows(
    documents: Iterable[Row], benchmark: str, group: int | None = None, *, gated: bool = False
) -> list[Row]:
    return [
        row
        for document in documents
        if document.get("benchmark") == benchmark
        and group in (None, document.get("group"))
        and document.get("gated", False) == gated
        for row in document["rows"]
    ]


def _between(rows: Iterable[Row], first: int, last: int) -> list[Row]:
    return [row for row in rows if first <= row["rows"] <= last]


def _us(row: Row, name: str) -> float | None:
    """The median of a path; ``None`` where it was not timed."""
    value = row.get(name)
    if isinstance(value, Mapping):
        return float(value["median_us"])
    return float(value) if isinstance(value, float) else None


def _folded(row: Row) -> float | None:
    """A product with compensators, whoever pays for the codes: as served, or as many rows allow."""
    inside, fused, front, extended = (_us(row, name) for name in ("inside", "fused", "front", "extended"))
    if inside is not None:
        return inside
    if fused is None or front is None:
        return None
    # Codes of the attention's output are a launch of their own, which was measured with its product.
    own = _us(row, "codes") if row["shape"].endswith(" o") else None
    served = own if own is not None else fused + front
    return served if extended is None or row["rows"] < 128 else min(served, extended)


def _over(peers: Sequence[str]) -> Callable[[Row], float | None]:
    def ratio(row: Row) -> float | None:
        times = [time for time in (_us(row, name) for name in peers) if time is not None]
        ours = _folded(row)
        return ours / min(times) if times and ours is not None else None

    return ratio


def _cost(row: Row) -> float | None:
    plain, folded = _us(row, "plain"), _us(row, "served")
    return folded / plain if plain is not None and folded is not None else None


def _ratios(
    what: str,
    rows: Iterable[Row],
    ratio: Callable[[Row], float | None],
    mean_limit: float | None,
    worst_limit: float | None,
) -> Iterator[Claim]:
    """Geometric mean and worst of the rows that have both times."""
    found = [(value, _where(row)) for row in rows if (value := ratio(row)) is not None]
    if not found:
        return
    mean, (worst, where) = geometric_mean(value for value, _ in found), max(found)
    count = f"{len(found)} shapes and row counts"
    yield Claim(what=f"{what}: mean", value=mean, limit=mean_limit, at_least=False, where=count)
    yield Claim(what=f"{what}: worst", value=worst, limit=worst_limit, at_least=False, where=where)


def _attention(documents: Sequence[Row]) -> Iterator[Claim]:
    for row in _rows(documents, "kernels.paged_attention"):
        if (row["sequences"], row["tokens"], row["rows"]) == (8, 8192, 5):
            where = f"{row['model']}, 8 x 8192 tokens, 5 rows, pieces of {row['piece']}"
            value = row["bound_us"] / row["median_us"]
            yield Claim(
                what="attention: share of the roof", value=value, limit=0.75, at_least=True, where=where
            )


def _sampling(documents: Sequence[Row]) -> Iterator[Claim]:
    for row in _rows(documents, "kernels.sample"):
        if (row["law"], row["rows"], row["vocabulary"]) == ("all filters", 64, 152_064):
            what, where = "sample, microseconds", "64 rows of 152,064, all filters"
            yield Claim(what=what, value=row["median_us"], limit=60.0, at_least=False, where=where)


def _share(what: str, value: float, limit: float | None, row: Row) -> Claim:
    return Claim(what=what, value=value, limit=limit, at_least=True, where=_where(row))


def _where(row: Row) -> str:
    return f"{row['shape']}, M {row['rows']}"
