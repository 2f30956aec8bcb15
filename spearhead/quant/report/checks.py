"""What records refuse when they are made."""

from spearhead.errors import CalibrationError

# Sums and quotients of floats end a little outside of their range.
_ROUNDING = 1e-6


def check_shown(field: str, value: str) -> None:
    """Refuses a text that a reader needs and that is empty.

    Raises:
        CalibrationError: ``value`` is blank.
    """
    if not value.strip():
        raise CalibrationError(
            f"report field {field} is empty; every result names the quantiser and its convention"
        )


def check_at_least(field: str, value: float | None, least: float) -> None:
    """Refuses a number under a limit; NaN counts as under.

    Raises:
        CalibrationError: ``value`` is less than ``least``.
    """
    if value is not None and not value >= least - _ROUNDING:
        raise CalibrationError(
            f"report field {field} is {value}, at least {least:g} is needed; look at what measured it"
        )


def check_share(field: str, value: float | None) -> None:
    """Refuses a share outside of 0 to 1.

    Raises:
        CalibrationError: ``value`` is not a share.
    """
    if value is not None and not -_ROUNDING <= value <= 1 + _ROUNDING:
        raise CalibrationError(
            f"report field {field} is {value}, a share from 0 to 1 is needed; look at what measured it"
        )


def check_perplexity(field: str, value: float) -> None:
    """Refuses what no perplexity can be.

    Raises:
        CalibrationError: ``value`` is less than 1 or not finite.
    """
    if not 1 - _ROUNDING <= value < float("inf"):
        raise CalibrationError(
            f"report field {field} is {value}, a finite perplexity of at least 1 is needed; "
            "look at the logits that it was computed from"
        )
