import asyncio
import io
import json
import sys

import pytest

from spearhead.cli import main
from spearhead.errors import InvalidRequest


async def spearhead(*arguments: str) -> int:
    return await asyncio.to_thread(main, arguments)


async def test_text_goes_to_standard_output_and_the_summary_to_standard_error(running, capsys):
    code = await spearhead("generate", "hi", "--address", running.address, "--max-tokens", "3")
    output = capsys.readouterr()
    assert code == 0
    assert output.out == "0 1 2 \n"
    assert "3 + 3 tokens" in output.err
    assert "75% of 8 drafts accepted" in output.err
    assert running.scheduler.requests[0][0].prompt == "hi"


async def test_json_prints_one_event_a_line(running, capsys):
    await spearhead("generate", "hi", "--json", "--address", running.address, "--max-tokens", "1")
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [event["event"] for event in events] == ["started", "delta", "finished"]
    assert events[1]["text"] == "0 "
    assert events[2]["usage"]["completion_tokens"] == 1


async def test_chat_and_system_become_messages(running):
    await spearhead(
        "generate", "hi", "--system", "be brief", "--address", running.address, "--max-tokens", "1"
    )
    turns = running.scheduler.requests[0][0].chat.messages
    assert [(turn.role, turn.content) for turn in turns] == [("system", "be brief"), ("user", "hi")]


async def test_options_reach_the_request(running):
    await spearhead(
        *("generate", "hi", "--address", running.address, "--max-tokens", "1", "--temperature", "0.5"),
        *("--seed", "7", "--draft-tokens", "0", "--precision", "full", "--stop", "a", "--stop", "b"),
        *("--logit-bias", "5=-1.5", "--priority", "2", "--itl-ms", "20", "--ignore-eos"),
    )
    request = running.scheduler.requests[0][0]
    assert request.sampling.temperature == 0.5
    assert request.sampling.seed == 7
    assert request.sampling.ignore_eos
    assert list(request.sampling.stop) == ["a", "b"]
    assert dict(request.sampling.logit_bias) == {5: -1.5}
    assert request.speculation.HasField("max_draft_tokens")
    assert request.priority == 2
    assert request.slo.itl_ms == 20
    assert not request.sampling.HasField("top_p")


async def test_the_prompt_may_come_from_standard_input(running, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("from a pipe"))
    await spearhead("generate", "--address", running.address, "--max-tokens", "1")
    assert running.scheduler.requests[0][0].prompt == "from a pipe"


async def test_an_error_is_one_line_with_its_status_and_exit_code_1(running, capsys):
    running.scheduler.failures = [InvalidRequest("top_p is 2; it must be at most 1", field="sampling.top_p")]
    assert await spearhead("generate", "hi", "--address", running.address) == 1
    assert capsys.readouterr().err == (
        "spearhead generate: INVALID_ARGUMENT: top_p is 2; it must be at most 1\n"
    )


async def test_a_token_file_that_is_missing_is_exit_code_2(tmp_path, capsys):
    code = await spearhead("generate", "hi", "--token-file", str(tmp_path / "none"))
    assert code == 2
    assert "token file" in capsys.readouterr().err


def test_an_unknown_command_is_refused_with_the_usage(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["serve"])
    assert caught.value.code == 2
    assert "invalid choice: 'serve'" in capsys.readouterr().err
