"""What becomes of each linear module: a frozen, pure description of a quantisation run."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Literal, Self, cast, get_args

from spearhead.errors import ConfigError
from spearhead.model.quantization import QuantizationScheme
from spearhead.quant.methods.grid import Grid
from spearhead.quant.methods.options import MethodOptions

Method = Literal[
    "rtn", "rtn-clip", "rtn-clip-unweighted", "gptq", "gptq-clip", "awq", "awq-clip", "omniquant"
]
DENSE = "dense"
_SHOWN = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleChoice:
    """How one module is quantised.

    Attributes:
        scheme: What shares a scale, and the convention.
        bits: 4 or 8.
        method: How codes and scales are chosen. ``-clip`` takes the scales from a search for the best clip
            factor instead of from the largest weight.
    """

    scheme: QuantizationScheme
    bits: int = 4
    method: Method = "rtn"

    def __post_init__(self) -> None:
        if self.method not in get_args(Method):
            raise ConfigError(f"method {self.method!r} is not known; use {', '.join(get_args(Method))}")
        if self.bits == 8 and self.scheme.granularity != "channel":
            raise ConfigError(f"8 bits share scales per channel only, not {self.scheme}; use w8")
        if self.method.startswith("awq") and self.scheme.granularity == "tensor":
            raise ConfigError(
                f"{self.method} needs scales per channel or per group: one scale a tensor undoes what the "
                "input scales win. Use channel, group32, group64 or group128"
            )

    @classmethod
    def parse(cls, text: str, method: Method = "rtn") -> Self:
        """Reads ``SCHEME`` or ``SCHEME:METHOD``, such as ``group64:gptq`` or ``w8``.

        Args:
            text: A scheme that :meth:`QuantizationScheme.parse` reads, or ``w8`` for 8 bits per channel,
                optionally followed by ``/127``, ``/127.5`` or ``/128``.
            method: When ``text`` names none. ``w8`` is rounded to nearest unless ``text`` says otherwise.

        Raises:
            ConfigError: Anything else.
        """
        scheme, _, named = text.partition(":")
        eight = re.fullmatch(r"w8(?:/(127|127\.5|128))?", scheme)
        if eight is None:
            return cls(scheme=QuantizationScheme.parse(scheme), method=cast(Method, named or method))
        convention = float(eight[1] or 127.5) - 120
        return cls(
            scheme=QuantizationScheme(granularity="channel", convention=convention),
            bits=8,
            method=cast(Method, named or "rtn"),
        )

    def __str__(self) -> str:
        """The form that :meth:`parse` reads."""
        scheme = str(self.scheme) if self.bits == 4 else f"w8/{self.grid.levels:g}"
        return f"{scheme}:{self.method}"

    @property
    def description(self) -> str:
        """For people, such as ``w4 symmetric, group 32, absmax/7.5`` or ``…, absmax/7.5, gptq``."""
        scheme = self.scheme.description
        if self.bits == 8:
            scheme = f"w8 symmetric, per channel, absmax/{self.grid.levels:g}"
        return scheme if self.method == "rtn" else f"{scheme}, {self.method}"

    @property
    def grid(self) -> Grid:
        """The values that weights can take."""
        return Grid(scheme=self.scheme, bits=self.bits)

    @property
    def needs_statistics(self) -> bool:
        """Whether the method looks at calibration tokens."""
        return self.method not in ("rtn", "rtn-clip-unweighted")

    @property
    def folds(self) -> bool:
        """Whether input scales may be folded into what comes before the module."""
        return self.method.startswith("awq")


Choices = Mapping[str, ModuleChoice | None]
"""Full module name to its choice; ``None`` = kept in 16 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizationRecipe:
    """A choice for every module.

    Attributes:
        default: Where no override matches.
        overrides: (pattern, choice) pairs; the last that matches wins. A pattern is a full module name in
            which ``*`` stands for anything, or ``re:`` and a regular expression that matches from the start.
        options: Numbers of the methods.
    """

    default: ModuleChoice
    overrides: tuple[tuple[str, ModuleChoice | None], ...] = ()
    options: MethodOptions = field(default_factory=MethodOptions)

    @classmethod
    def parse(
        cls,
        scheme: str,
        method: str | None = None,
        overrides: Sequence[str] = (),
        options: MethodOptions | None = None,
    ) -> Self:
        """Reads a recipe as the command line spells it.

        Args:
            scheme: Of modules that no override names; see :meth:`ModuleChoice.parse`.
            method: For choices that name none, and for ``scheme`` even if that is ``w8``; ``None`` = the one
                that ``scheme`` names, or ``rtn``.
            overrides: ``PATTERN=CHOICE`` each; ``dense`` keeps a module in 16 bits.
            options: Numbers of the methods.

        Raises:
            ConfigError: What is not understood, and what would be.
        """
        default = ModuleChoice.parse(scheme)
        if method is not None:
            if ":" in scheme and method != default.method:
                raise ConfigError(f"scheme {scheme!r} names a method, and {method} is given too; name one")
            default = replace(default, method=cast(Method, method))
        pairs = tuple(_parse_override(text, default.method) for text in overrides)
        return cls(default=default, overrides=pairs, options=options or MethodOptions())

    @classmethod
    def uniform(cls, scheme: QuantizationScheme, method: Method = "rtn") -> Self:
        """The same for every module."""
        return cls(default=ModuleChoice(scheme=scheme, method=method))

    def choices(self, modules: Iterable[str]) -> dict[str, ModuleChoice | None]:
        """The choice for each module.

        Raises:
            ConfigError: A pattern that matches no module, or every module stays dense.
        """
        names = list(modules)
        chosen: dict[str, ModuleChoice | None] = dict.fromkeys(names, self.default)
        for pattern, choice in self.overrides:
            matched = [name for name in names if _matches(pattern, name)]
            if not matched:
                raise ConfigError(
                    f"override {pattern!r} matches no module; names look like {', '.join(names[:_SHOWN])}, "
                    "* stands for anything, and re: begins a regular expression"
                )
            chosen |= dict.fromkeys(matched, choice)
        if not any(chosen.values()):
            raise ConfigError("the overrides keep every module dense; leave one to quantise")
        return chosen

    def __str__(self) -> str:
        """Every choice and number that decides the outcome, on one line."""
        pairs = (f"{pattern}={choice or DENSE}" for pattern, choice in self.overrides)
        return "; ".join([str(self.default), *pairs, str(self.options)])


def _parse_override(text: str, method: Method) -> tuple[str, ModuleChoice | None]:
    pattern, equals, choice = text.rpartition("=")
    if not equals or not pattern:
        raise ConfigError(
            f"override {text!r} is not understood; write PATTERN=CHOICE, such as '*down_proj=w8'"
        )
    if pattern.startswith("re:"):
        try:
            re.compile(pattern.removeprefix("re:"))
        except re.error as error:
            raise ConfigError(f"override {text!r} is no regular expression: {error}") from error
    return pattern, None if choice == DENSE else ModuleChoice.parse(choice, method)


def _matches(pattern: str, name: str) -> bool:
    if pattern.startswith("re:"):
        return re.match(pattern.removeprefix("re:"), name) is not None
    return fnmatchcase(name, pattern)
