"""Damage by layer and projection, with the chosen ranks in the cells."""

import math
from collections.abc import Sequence

from spearhead.quant.report import formats
from spearhead.quant.report.markup import Markup, element, join, text, void
from spearhead.quant.report.selection import ModuleRow
from spearhead.quant.report.svg import Canvas, label

_STEPS = 9  # classes h0 .. h8 of the style sheet
_DECADES = 3  # below a thousandth of the largest share, everything looks undamaged
_LAYERS_A_BAND = 32
_CELL_WIDTH, _CELL_HEIGHT = 26, 24
_LEFT, _TOP, _BAND_GAP, _LEGEND_HEIGHT = 150, 8, 40, 50


def heat_map(modules: Sequence[ModuleRow]) -> Markup:
    """One cell a module: colour is its share of damage (logarithmic), the number its rank, if any.

    Layers run to the right and wrap into bands, so that deep models stay readable.

    Args:
        modules: At least one.
    """
    layers = sorted({module.layer for module in modules})
    projections = list(dict.fromkeys(module.projection for module in modules))
    bands = math.ceil(len(layers) / _LAYERS_A_BAND)
    columns = math.ceil(len(layers) / bands)
    band_height = len(projections) * _CELL_HEIGHT + _BAND_GAP
    place = {layer: divmod(index, columns) for index, layer in enumerate(layers)}
    row = {projection: index for index, projection in enumerate(projections)}
    ramp = _Ramp([module.share for module in modules])

    def cell(module: ModuleRow) -> Markup:
        band, column = place[module.layer]
        x = _LEFT + column * _CELL_WIDTH
        y = _TOP + band * band_height + row[module.projection] * _CELL_HEIGHT
        return _cell(module, x, y, ramp.step(module.share))

    legend_y = _TOP + bands * band_height
    return Canvas(
        identifier="heat-map",
        width=_LEFT + max(columns * _CELL_WIDTH, _STEPS * 62) + 20,
        height=legend_y + _LEGEND_HEIGHT,
        title="Damage by layer and projection",
        description="Colour: share of all damage. Number: rank of the compensator; none where there is none.",
    ).draw(
        join(_band_labels(layers[band * columns :][:columns], projections, _TOP + band * band_height)
             for band in range(bands)),
        element("g", {"class": "heat"}, *map(cell, modules)),
        ramp.legend(legend_y),
    )  # fmt: skip


class _Ramp:
    """Nine steps of colour over the logarithm of the share."""

    def __init__(self, shares: Sequence[float]) -> None:
        self._high = max(shares) or 1.0
        self._low = self._high * 10.0**-_DECADES
        low = min((share for share in shares if share > self._low), default=self._high)
        # Shares that hardly differ all get the highest step.
        self._ratio = (self._high / low) ** (1 / _STEPS) if low < 0.9 * self._high else 2.0

    def step(self, share: float) -> int:
        if share <= self._low:
            return 0
        below = math.log(self._high / share) / math.log(self._ratio)
        return max(0, _STEPS - 1 - int(below))

    def legend(self, y: float) -> Markup:
        swatches = [
            element("g", {"class": f"h{step}"},
                    void("rect", {"x": _LEFT + step * 62, "y": y + 8, "width": 62, "height": 12}))
            for step in range(_STEPS)
        ]  # fmt: skip
        bounds = [
            label(_LEFT + step * 62, y + 34, self._bound(step), "middle") for step in range(1, _STEPS + 1)
        ]
        name = label(_LEFT - 10, y + 18, "share of damage", "end")
        return element("g", {"class": "heat"}, name, *swatches, *bounds)

    def _bound(self, step: int) -> str:
        percent = 100 * self._high * self._ratio ** (step - _STEPS)
        return f"{percent:.2g}%" if percent < 10 else f"{percent:.0f}%"


def _cell(module: ModuleRow, x: float, y: float, step: int) -> Markup:
    hint = f"{module.name}: {formats.percent(100 * module.share)}, rank {module.rank}"
    parts = [
        element("title", None, text(hint)),
        void("rect", {"x": x, "y": y, "width": _CELL_WIDTH, "height": _CELL_HEIGHT}),
    ]
    if module.rank:
        parts.append(label(x + _CELL_WIDTH / 2, y + _CELL_HEIGHT / 2 + 4, str(module.rank)))
    return element("g", {"class": f"h{step}"}, *parts)


def _band_labels(layers: Sequence[int], projections: Sequence[str], y: float) -> Markup:
    rows = [
        label(_LEFT - 10, y + (index + 0.5) * _CELL_HEIGHT + 4, _shortened(projection), "end")
        for index, projection in enumerate(projections)
    ]
    bottom = y + len(projections) * _CELL_HEIGHT + 16
    columns = [
        label(_LEFT + (index + 0.5) * _CELL_WIDTH, bottom, str(layer), "middle")
        for index, layer in enumerate(layers)
    ]
    return join([*rows, *columns, label(_LEFT - 10, bottom, "layer", "end name")])


def _shortened(name: str) -> str:
    return name if len(name) <= 20 else f"…{name[-19:]}"
