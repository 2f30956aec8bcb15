"""Which pages a prompt chunk is given."""

from scheduler_service.prefill_choice import Room, choose_chunks
from scheduler_service.step_plan import PromptView


def prompt(sequence_id: int, pending: int, context: int = 0) -> PromptView:
    return PromptView(sequence_id=sequence_id, pending_token_count=pending, context_length=context)


def room(tokens: int, pages: int, sequence_tokens: int | None = None) -> Room:
    return Room(tokens=tokens, pages=pages, page_size=4, granule=4, sequence_tokens=sequence_tokens)


def test_a_new_sequence_starts_only_with_pages_for_all_that_the_prefix_cache_may_give_it() -> None:
    assert choose_chunks([prompt(1, 150)], room(tokens=16, pages=37), None) == ([], "pages")
    (chunk,), limiting = choose_chunks([prompt(1, 150)], room(tokens=16, pages=38), None)
    assert (chunk.token_count, chunk.page_count, limiting) == (16, 38, "tokens")


def test_pages_kept_for_a_new_sequence_are_not_given_to_another() -> None:
    prompts = [prompt(1, 30), prompt(2, 30)]
    chunks, limiting = choose_chunks(prompts, room(tokens=100, pages=15), None)
    assert ([chunk.sequence_id for chunk in chunks], limiting) == ([1], "pages")


def test_a_sequence_that_was_started_needs_pages_for_its_chunk_alone() -> None:
    (chunk,), limiting = choose_chunks([prompt(1, 150, context=6)], room(tokens=16, pages=4), None)
    assert (chunk.token_count, chunk.page_count, limiting) == (16, 4, "tokens")


def test_a_prompt_longer_than_one_sequence_may_be_leaves_the_rest_of_the_step_to_others() -> None:
    prompts = [prompt(1, 150), prompt(2, 30), prompt(3, 70)]
    chunks, limiting = choose_chunks(prompts, room(tokens=64, pages=100, sequence_tokens=22), None)
    assert [(chunk.sequence_id, chunk.token_count) for chunk in chunks] == [(1, 20), (2, 20), (3, 20)]
    assert (limiting, [chunk.last for chunk in chunks]) == ("none", [False] * 3)
