"""The latency table: measured on one machine for one model, stored as JSON, refused anywhere else."""

import dataclasses
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from scheduler_service.step_cost import Latency, StepCost, compile_cost
from spearhead.errors import ConfigError

FORMAT = 1


class Profile(Protocol):
    """What a worker measured, the fields of ``spearhead.v1.KernelProfile``."""

    @property
    def device(self) -> str:
        """Machine and device."""

    @property
    def versions(self) -> Iterable[str]:
        """Versions that the numbers depend on."""

    @property
    def revision(self) -> str:
        """Revision of the measured model."""

    @property
    def variant(self) -> str:
        """The measured variant; empty for a draft model."""

    @property
    def latencies(self) -> Iterable[Latency]:
        """The measurements."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyEntry:
    """One measured operation; see ``spearhead.v1.KernelLatency`` for the fields."""

    op: str
    rows: int
    median_us: float
    n: int = 0
    k: int = 0
    rank: int = 0
    context: int = 0
    calls_per_forward: int = 1


@dataclass(frozen=True, kw_only=True)  # No slots: the compiled costs are cached in the instance.
class ModelProfile:
    """The measurements of one model and what they are valid for; see ``spearhead.v1.KernelProfile``."""

    device: str
    versions: tuple[str, ...]
    revision: str
    variant: str
    latencies: tuple[LatencyEntry, ...]

    @classmethod
    def from_profile(cls, profile: Profile) -> "ModelProfile":
        """Copies what a worker reported.

        Raises:
            ConfigError: A measurement is out of range, or there are too few.
        """
        fields = [field.name for field in dataclasses.fields(LatencyEntry)]
        result = cls(
            device=profile.device,
            versions=tuple(profile.versions),
            revision=profile.revision,
            variant=profile.variant,
            latencies=tuple(
                LatencyEntry(**{name: getattr(entry, name) for name in fields}) for entry in profile.latencies
            ),
        )
        compile_cost(result.latencies)
        return result

    @cached_property
    def cost(self) -> StepCost:
        """The measurements as a cost model."""
        return compile_cost(self.latencies)

    @cached_property
    def linear_cost(self) -> StepCost:
        """The straight-line baseline fitted to them."""
        return self.cost.linear_fit()

    def mismatches(
        self, *, device: str, revision: str, variant: str | None = None, versions: Sequence[str] | None = None
    ) -> list[str]:
        """What differs from what a worker reports, in words; empty = the measurements hold for it.

        Args:
            device: ``ModelInfo.device`` ("cpu"), or the long form of a profile ("cpu: name, 2 threads").
            revision: ``ModelInfo.revision``.
            variant: The served variant; None = do not compare.
            versions: As in a profile; None = do not compare.
        """
        found = []
        if device != self.device and not self.device.startswith(f"{device}: "):
            found.append(f"device measured {self.device!r}, now {device!r}")
        if revision != self.revision:
            found.append(f"revision measured {self.revision!r}, now {revision!r}")
        if variant is not None and variant != self.variant:
            found.append(f"variant measured {self.variant!r}, now {variant!r}")
        if versions is not None and sorted(versions) != sorted(self.versions):
            found.append(f"versions measured {sorted(self.versions)}, now {sorted(versions)}")
        return found

    def require_match(
        self,
        role: str,
        *,
        device: str,
        revision: str,
        variant: str | None = None,
        versions: Sequence[str] | None = None,
    ) -> None:
        """Refuses measurements of another machine or model; arguments as for :meth:`mismatches`.

        Raises:
            ConfigError: Something differs; the message names all of it.
        """
        found = self.mismatches(device=device, revision=revision, variant=variant, versions=versions)
        if found:
            raise ConfigError(
                f"the latency table does not belong to this {role}: {'; '.join(found)}. "
                'Run `spearhead profile` again, or set policy.kind = "static"'
            )


@dataclass(frozen=True, kw_only=True)
class LatencyTable:
    """Measurements of the target and, where there is one, the draft model."""

    target: ModelProfile
    draft: ModelProfile | None = None

    def predict_forward_s(self, rows: int, attention: Iterable[tuple[int, int]], sampled_rows: int) -> float:
        """Seconds of one forward pass of the target; see :meth:`StepCost.predict_s`."""
        return self.target.cost.predict_s(rows, attention, sampled_rows)

    def predict_draft_s(self, sequences: Sequence[tuple[int, int]], draft_token_count: int) -> float:
        """Seconds that the drafter needs for ``draft_token_count`` drafts for each sequence.

        Args:
            sequences: (rows of the first pass, context before them) of each sequence; later passes have
                one row a sequence.
            draft_token_count: Passes; 0 costs nothing.

        Raises:
            ConfigError: The table has no draft measurements.
        """
        if draft_token_count == 0 or not sequences:
            return 0.0
        if self.draft is None:
            raise ConfigError("the latency table has no draft measurements; run `spearhead profile` again")
        cost = self.draft.cost
        first = cost.predict_s(sum(rows for rows, _ in sequences), sequences, len(sequences))
        # The few tokens that the contexts grow by are not worth another look-up.
        later = cost.predict_s(len(sequences), [(1, context) for _, context in sequences], len(sequences))
        return first + (draft_token_count - 1) * later

    def save(self, path: Path) -> None:
        """Writes ``path`` in one piece: a reader sees the old file or the new one.

        Raises:
            ConfigError: The file cannot be written.
        """
        document = {"format": FORMAT, **dataclasses.asdict(self)}
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            temporary.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
            temporary.replace(path)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise ConfigError(f"latency table {path} cannot be written: {error}") from error

    @classmethod
    def load(cls, path: Path) -> "LatencyTable":
        """Reads a file that :meth:`save` wrote.

        Raises:
            ConfigError: Missing, of another format, or with values out of range.
        """
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ConfigError(
                f'latency table {path} does not exist; run `spearhead profile`, or set policy.kind = "static"'
            ) from None
        except (OSError, ValueError) as error:
            raise ConfigError(f"latency table {path} cannot be read: {error}") from error
        found = document.get("format") if isinstance(document, dict) else None
        if found != FORMAT:
            raise ConfigError(
                f"latency table {path} has format {found!r}, this version reads {FORMAT}; "
                "run `spearhead profile` again"
            )
        try:
            draft = document.get("draft")
            table = cls(target=_profile(document["target"]), draft=_profile(draft) if draft else None)
            for profile in (table.target, *((table.draft,) if table.draft else ())):
                compile_cost(profile.latencies)
        except (KeyError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"latency table {path} is damaged: {error!r}; run `spearhead profile` again"
            ) from error
        except ConfigError as error:
            raise ConfigError(f"{path}: {error.message}") from error
        return table


class OnlineCorrection:
    """Measured over predicted time as an exponential moving average: what the table does not know.

    Args:
        weight: Share of the newest measurement.
        limit: The ratio stays within 1 / limit .. limit, so that one pause of the machine cannot stop
            drafting or prefill for long.
    """

    def __init__(self, *, weight: float = 0.05, limit: float = 4.0) -> None:
        self._weight = weight
        self._limit = limit
        self._ratio = 1.0

    @property
    def ratio(self) -> float:
        """Multiply a prediction of the bare table by this."""
        return self._ratio

    def observe(self, *, predicted_s: float, measured_s: float) -> None:
        """Takes one step into account.

        Args:
            predicted_s: Prediction of the bare table, without this ratio; ignored when 0.
            measured_s: What it took.
        """
        if predicted_s <= 0:
            return
        sample = min(max(measured_s / predicted_s, 1 / self._limit), self._limit)
        self._ratio += self._weight * (sample - self._ratio)


def _profile(document: dict[str, Any]) -> ModelProfile:
    return ModelProfile(
        device=document["device"],
        versions=tuple(document["versions"]),
        revision=document["revision"],
        variant=document["variant"],
        latencies=tuple(LatencyEntry(**entry) for entry in document["latencies"]),
    )
