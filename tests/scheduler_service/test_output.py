import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_service.output import Finish, FinishReason, OutputAssembler, OutputStep, StopStrings

ALPHABET = "ab\u00e9"
EOS = 0


class Letters:
    """Token id = code point; the text of each id comes with the next one, as from an unfinished character."""

    def __init__(self) -> None:
        self._held = ""

    def push(self, ids: Sequence[int]) -> str:
        self._held += "".join(map(chr, ids))
        released, self._held = self._held[:-1], self._held[-1:]
        return released

    def flush(self) -> str:
        released, self._held = self._held, ""
        return released


class Plain(Letters):
    def push(self, ids: Sequence[int]) -> str:
        return "".join(map(chr, ids))


def assembler(
    *, stops: Sequence[str] = (), min_tokens: int = 0, max_tokens: int = 1000, lagging: bool = False
) -> OutputAssembler:
    return OutputAssembler(
        Letters() if lagging else Plain(),
        stop_strings=stops,
        stop_token_ids={EOS},
        min_tokens=min_tokens,
        max_tokens=max_tokens,
    )


def ids(text: str) -> list[int]:
    return [ord(character) for character in text]


def run(output: OutputAssembler, runs: Sequence[Sequence[int]]) -> tuple[str, list[int], Finish | None]:
    """Text, kept tokens and end of an output that arrives in runs."""
    text, kept = "", []
    for token_ids in runs:
        step = output.push(token_ids)
        text += step.text
        kept += token_ids[: step.kept_count]
        if step.finish:
            return text, kept, step.finish
    return text + output.flush(), kept, None


def test_a_stop_string_inside_a_run_ends_the_output_there() -> None:
    step = assembler(stops=["cd"]).push(ids("abcdefg"))
    assert step == OutputStep(
        kept_count=4, text="ab", finish=Finish(reason=FinishReason.STOP, stop_string="cd")
    )


def test_a_stop_string_that_spans_runs_is_found_and_was_never_shown() -> None:
    text, kept, finish = run(assembler(stops=["hello"]), [ids("say he"), ids("l"), ids("lo there")])
    assert (text, len(kept)) == ("say ", 9)
    assert finish == Finish(reason=FinishReason.STOP, stop_string="hello")


def test_text_that_turns_out_to_be_no_stop_string_is_released() -> None:
    output = assembler(stops=["hello"])
    assert output.push(ids("hel")).text == ""
    assert output.push(ids("p")).text == "help"


def test_the_first_of_several_stop_strings_wins() -> None:
    text, _, finish = run(assembler(stops=["yy", "xx"]), [ids("axxyy")])
    assert text == "a"
    assert finish == Finish(reason=FinishReason.STOP, stop_string="xx")


def test_the_end_token_counts_and_has_no_text() -> None:
    step = assembler().push([*ids("ab"), EOS, *ids("leak")])
    assert step == OutputStep(
        kept_count=3, text="ab", finish=Finish(reason=FinishReason.STOP, stop_token_id=EOS)
    )


def test_held_text_is_shown_when_the_end_token_comes() -> None:
    text, _, finish = run(assembler(stops=["hello"], lagging=True), [[*ids("hell"), EOS]])
    assert text == "hell"
    assert finish is not None
    assert finish.stop_token_id == EOS


def test_an_end_token_right_before_max_tokens_is_a_stop() -> None:
    step = assembler(max_tokens=4).push([*ids("ab"), EOS, *ids("xyz")])
    assert step.kept_count == 3
    assert step.finish == Finish(reason=FinishReason.STOP, stop_token_id=EOS)


def test_an_end_token_at_max_tokens_is_a_stop() -> None:
    step = assembler(max_tokens=3).push([*ids("ab"), EOS, *ids("xyz")])
    assert step.finish == Finish(reason=FinishReason.STOP, stop_token_id=EOS)


def test_a_stop_string_at_max_tokens_is_a_stop() -> None:
    step = assembler(stops=["bc"], max_tokens=3).push(ids("abcdef"))
    assert (step.kept_count, step.text) == (3, "a")
    assert step.finish == Finish(reason=FinishReason.STOP, stop_string="bc")


def test_a_stop_string_completed_by_the_last_flush_is_a_stop() -> None:
    step = assembler(stops=["bc"], max_tokens=3, lagging=True).push(ids("abcdef"))
    assert (step.text, step.finish) == ("a", Finish(reason=FinishReason.STOP, stop_string="bc"))


@pytest.mark.parametrize("max_tokens", range(1, 8))
def test_max_tokens_is_exact_inside_a_run(max_tokens: int) -> None:
    step = assembler(max_tokens=max_tokens).push(ids("abcdefg"))
    assert (step.kept_count, step.text) == (max_tokens, "abcdefg"[:max_tokens])
    assert step.finish == Finish(reason=FinishReason.LENGTH)


def test_text_held_for_a_stop_string_is_shown_at_max_tokens() -> None:
    step = assembler(stops=["bcd"], max_tokens=3).push(ids("abc"))
    assert (step.text, step.finish) == ("abc", Finish(reason=FinishReason.LENGTH))


def test_min_tokens_lets_end_tokens_pass() -> None:
    output = assembler(min_tokens=2)
    assert output.push([EOS, EOS]).finish is None
    assert output.push([EOS]).finish == Finish(reason=FinishReason.STOP, stop_token_id=EOS)


texts = st.text(ALPHABET, max_size=12)
cuts = st.lists(st.integers(0, 12), max_size=4)


def cut(token_ids: list[int], places: list[int]) -> list[list[int]]:
    edges = [0, *sorted(min(place, len(token_ids)) for place in places), len(token_ids)]
    return [token_ids[a:b] for a, b in itertools.pairwise(edges)]


@given(
    text=texts,
    stops=st.lists(st.text(ALPHABET, min_size=1, max_size=3), max_size=3),
    places=cuts,
    end=st.booleans(),
    lagging=st.booleans(),
    max_tokens=st.integers(1, 14),
)
def test_the_outcome_does_not_depend_on_the_runs(
    text: str, stops: list[str], places: list[int], end: bool, lagging: bool, max_tokens: int
) -> None:
    token_ids = ids(text) + ([EOS] if end else [])

    def outcome(runs: list[list[int]]) -> tuple[str, list[int], Finish | None]:
        return run(assembler(stops=stops, lagging=lagging, max_tokens=max_tokens), runs)

    one_by_one = outcome([[token_id] for token_id in token_ids])
    assert outcome(cut(token_ids, places)) == one_by_one
    shown, kept, finish = one_by_one
    assert text.startswith(shown)
    assert not any(stop in shown for stop in stops)
    assert len(kept) <= max_tokens
    if finish and finish.stop_string:
        assert shown + finish.stop_string == text[: len(shown) + len(finish.stop_string)]


@given(text=texts, stop=st.text(ALPHABET, min_size=1, max_size=4), places=cuts)
def test_nothing_is_shown_that_a_stop_string_could_take_back(text: str, stop: str, places: list[int]) -> None:
    finder, shown, fed = StopStrings([stop]), "", ""
    for piece in cut(ids(text), places):
        released, found = finder.feed("".join(map(chr, piece)))
        fed += "".join(map(chr, piece))
        shown += released
        if found:
            assert fed.index(stop) == len(shown)
            return
        assert stop not in fed
        held = fed[len(shown) :]
        assert stop.startswith(held)
    assert shown + finder.flush() == text
