"""Long prompts are tokenised beside the engine, not instead of it."""

import asyncio
import time

from spearhead.tokenizer import Tokenizer


async def test_the_event_loop_goes_on_while_a_megabyte_is_encoded(tokenizer: Tokenizer) -> None:
    text = "once upon a time " * 60_000
    start_s = last_s = time.monotonic()
    longest_gap_s = 0.0
    encoding = asyncio.create_task(asyncio.to_thread(tokenizer.encode, text))
    while not encoding.done():
        await asyncio.sleep(0)
        now_s = time.monotonic()
        longest_gap_s, last_s = max(longest_gap_s, now_s - last_s), now_s
    assert len(encoding.result()) == len(text)
    # With the interpreter locked, the one gap would be nearly all of the time.
    assert longest_gap_s < 0.5 * (last_s - start_s)


def test_short_and_long_texts_are_encoded_alike(tokenizer: Tokenizer) -> None:
    text = "näïve 日本語 🦜 " * 100
    pieces = [tokenizer.encode(character) for character in text]
    assert tokenizer.encode(text) == [token_id for piece in pieces for token_id in piece]
