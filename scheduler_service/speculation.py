"""Whether speculation worked for one request, and why not."""

NEVER_DRAFTED = "no step with drafts"


class SpeculationLog:
    """What the rounds of one request say about its drafts.

    Args:
        allowed: The client did not switch speculation off.

    Attributes:
        active: At least one round had drafts.
        inactive_reason: Why there were none, or none for some rounds: the last reason. Empty = there were.
    """

    def __init__(self, *, allowed: bool) -> None:
        self._allowed = allowed
        self._problem = ""
        self._first_round = 0
        self.active = False
        self.inactive_reason = NEVER_DRAFTED if allowed else "disabled by request"

    def round(self, number: int, *, drafted: int, problem: str) -> None:
        """A round committed tokens.

        Args:
            number: Its number, from 1.
            drafted: Drafts in it.
            problem: Why no request gets drafts now; empty = they can.
        """
        if drafted:
            if not self.active:
                self.active, self.inactive_reason = True, ""
            elif self._problem:
                self.inactive_reason = f"{self._problem} in rounds {self._first_round} to {number - 1}"
            self._problem = ""
        elif problem and self._allowed:
            if not self._problem:
                self._first_round = number
            self._problem = problem
            self.inactive_reason = f"{problem} since round {self._first_round}" if self.active else problem
