"""The whole stack, over real gRPC, with a target of two ranks."""

from spearhead.cli.stack import StackOptions
from spearhead.cli.supervisor import Supervisor
from spearhead.client import AsyncClient, SamplingParams
from spearhead.tokenizer import Tokenizer

PROMPT = "The quick brown fox jumps over the lazy dog while the rain falls on the hills"
COUNT = 24


def ignore(name: str, text: str) -> None:
    """The services' output is in the failure, should one end."""


async def test_two_ranks_write_what_one_writes(tiny_checkpoint, make_verifier, loop, tmp_path):
    model = tiny_checkpoint("llama")
    tokenizer = Tokenizer.load(model)
    prompt = tokenizer.encode(PROMPT)
    (alone,) = loop.run(make_verifier(), [loop.Request("a", prompt, loop.sampling())], COUNT)
    options = StackOptions(
        model=str(model),
        threads=1,
        draft="none",
        listen=f"unix:{tmp_path}/front.sock",
        overrides=(
            "verify.model.dtype=float32",
            "verify.parallel.tensor_parallel_size=2",
            "verify.parallel.lost_after_s=20",  # a busy machine is no loss
        ),
    )
    async with (
        Supervisor(options, log=ignore, progress=ignore) as stack,
        AsyncClient(stack.address) as client,
    ):
        sampling = SamplingParams(temperature=0, max_tokens=COUNT, ignore_eos=True)
        result = await client.generate_text(token_ids=prompt, sampling=sampling)
    assert list(result.token_ids) == alone
    assert result.text == tokenizer.decode(alone)
