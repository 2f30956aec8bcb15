import pytest

from scheduler_service.step import StepPart, computed_token_count, computed_token_counts, interpret
from scheduler_service.wire import unpack_token_ids
from spearhead.errors import SpearheadError
from spearhead.v1 import types_pb2, verify_pb2
from tests.scheduler_service.requests import make_request

VOCABULARY = 50


def part(computed: int, count: int, drafts: list[int] | None = None, **fields: int) -> StepPart:
    request = make_request(1, prompt=10, max_tokens=20, **fields)
    request.verify.computed_length = computed
    return StepPart.of(request, count, drafts or [])


def item_of(part: StepPart) -> verify_pb2.StepItem:
    message = verify_pb2.StepRequest()
    part.add_to(message)
    (item,) = message.items
    return item


def result(part: StepPart, **fields: object) -> verify_pb2.StepItemResult:
    return verify_pb2.StepItemResult(sequence_id=1, epoch=part.epoch, **fields)


def test_a_new_sequence_goes_out_whole_with_its_budget() -> None:
    item = item_of(part(0, 4))
    assert unpack_token_ids(item.token_ids) == list(range(10))
    assert (item.committed_length, item.max_compute_tokens, item.sample) == (0, 4, True)


def test_a_later_chunk_goes_out_alone_and_samples_nothing() -> None:
    item = item_of(part(4, 4))
    assert unpack_token_ids(item.token_ids) == [4, 5, 6, 7]
    assert (item.committed_length, item.sample) == (4, False)


def test_the_last_chunk_samples() -> None:
    item = item_of(part(8, 2))
    assert unpack_token_ids(item.token_ids) == [8, 9]
    assert item.sample


def test_drafts_follow_the_known_tokens() -> None:
    item = item_of(part(9, 1, [30, 31]))
    assert unpack_token_ids(item.token_ids) == [9, 30, 31]
    assert (item.draft_token_count, item.max_compute_tokens, item.sample) == (2, 3, True)


def test_accepted_drafts_and_the_next_token_are_committed() -> None:
    step = part(9, 1, [30, 31, 32])
    progress = interpret(
        step, result(step, computed_length=12, accepted_draft_count=2, next_token_id=40), VOCABULARY
    )
    assert list(progress.token_ids) == [30, 31, 40]
    assert (progress.accepted, progress.computed_length) == (2, 12)


def test_a_chunk_commits_nothing() -> None:
    step = part(0, 4)
    progress = interpret(step, result(step, computed_length=4), VOCABULARY)
    assert (list(progress.token_ids), progress.computed_length) == ([], 4)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"computed_length": 9}, "computed length 9"),
        ({"computed_length": 99, "next_token_id": 1}, "computed length 99"),
        ({"computed_length": 10}, "none was sampled"),
        (
            {"computed_length": 10, "accepted_draft_count": 1, "next_token_id": 1},
            "sampled at length 10 of 11",
        ),
        ({"computed_length": 13, "accepted_draft_count": 3, "next_token_id": 1}, "3 of 2 drafts"),
        ({"computed_length": 10, "next_token_id": 50}, "beyond the vocabulary"),
    ],
)
def test_a_result_that_contradicts_its_item_is_refused(fields: dict[str, int], words: str) -> None:
    step = part(9, 1, [30, 31])
    with pytest.raises(SpearheadError, match=words):
        interpret(step, result(step, **fields), VOCABULARY)


def test_missing_logprobs_are_refused() -> None:
    step = part(9, 1, [30], logprob_count=2)
    answer = result(step, computed_length=11, accepted_draft_count=1, next_token_id=4)
    answer.logprobs.append(types_pb2.TokenLogprobs(token_id=30))
    with pytest.raises(SpearheadError, match=r"1 log-probabilities came for 2 tokens"):
        interpret(step, answer, VOCABULARY)


@pytest.mark.parametrize(
    ("step", "answer", "count"),
    [
        (part(0, 10), {"computed_length": 6}, 6),
        (part(0, 10), {"computed_length": 10, "cached_token_count": 8, "next_token_id": 1}, 2),
        (part(6, 4), {"computed_length": 8}, 2),
        (part(9, 1, [30, 31]), {"computed_length": 11, "accepted_draft_count": 1, "next_token_id": 4}, 1),
        (part(6, 4), {"error": types_pb2.ItemError(reason=types_pb2.ITEM_ERROR_REASON_CACHE_MISS)}, 0),
        (part(6, 4), {"computed_length": 2}, 0),
    ],
    ids=["less fitted", "prefix was cached", "later chunk", "drafts are apart", "failed", "contradictory"],
)
def test_the_worker_says_how_many_known_tokens_it_computed(
    step: StepPart, answer: dict[str, object], count: int
) -> None:
    assert computed_token_count(step, result(step, **answer)) == count


def test_a_part_without_a_result_computed_nothing() -> None:
    step = part(0, 10)
    assert computed_token_counts([step], []) == [0]
    assert computed_token_counts([step], [result(step, computed_length=10)]) == [10]
