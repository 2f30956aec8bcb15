"""What is said about the drafts of a request."""

from scheduler_service.speculation import NEVER_DRAFTED, SpeculationLog


def log(*rounds: tuple[int, str], allowed: bool = True) -> SpeculationLog:
    result = SpeculationLog(allowed=allowed)
    for number, (drafted, problem) in enumerate(rounds, start=1):
        result.round(number, drafted=drafted, problem=problem)
    return result


def said(result: SpeculationLog) -> tuple[bool, str]:
    return result.active, result.inactive_reason


def test_a_request_that_drafted_needs_no_reason() -> None:
    assert said(log((0, ""), (3, ""), (0, ""))) == (True, "")


def test_a_request_that_never_drafted_says_why() -> None:
    assert said(log((0, ""), (0, ""))) == (False, NEVER_DRAFTED)
    assert said(log((0, "no draft service"), (0, "no draft service"))) == (False, "no draft service")
    assert said(log((0, "no draft service"), allowed=False)) == (False, "disabled by request")


def test_a_drafter_lost_on_the_way_is_named_with_its_round() -> None:
    assert said(log((3, ""), (0, ""), (0, "lost"), (0, "lost"))) == (True, "lost since round 3")


def test_a_drafter_that_came_back_leaves_its_reason() -> None:
    assert said(log((3, ""), (0, "lost"), (0, "lost"), (2, ""), (2, ""))) == (True, "lost in rounds 2 to 3")


def test_a_drafter_that_came_late_is_no_loss() -> None:
    assert said(log((0, "lost"), (3, ""), (3, ""))) == (True, "")
