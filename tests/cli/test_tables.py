from spearhead.cli.demo import comparison
from spearhead.cli.tables import decode_rate, summary_line, table
from spearhead.client import Finished, GenerationResult, SpeculationStats, Started, Timings, Usage

FAST = Finished(
    reason="length",
    usage=Usage(prompt_tokens=5, completion_tokens=11),
    speculation=SpeculationStats(drafted_tokens=8, accepted_tokens=6, rounds=5, active=True),
    timings=Timings(e2e_s=1.5, time_to_first_token_s=0.5, verify_s=0.25),
)
PLAIN = Finished(
    reason="stop",
    usage=Usage(prompt_tokens=5, completion_tokens=1),
    speculation=SpeculationStats(rounds=1, inactive_reason="disabled by request"),
    timings=Timings(e2e_s=0.5, time_to_first_token_s=0.5),
)


def result(finished, token_ids=(1, 2)):
    started = Started(request_id="r", prompt_token_count=5, seed=1)
    return GenerationResult(started=started, text="", token_ids=token_ids, logprobs=(), finished=finished)


def test_the_rate_counts_tokens_after_the_first():
    assert decode_rate(FAST) == 10.0


def test_one_token_has_no_rate():
    assert decode_rate(PLAIN) == 0.0


def test_the_summary_names_tokens_speed_acceptance_and_reason():
    line = summary_line(FAST)
    assert line == "[5 + 11 tokens, first after 500 ms, 10.0 tokens/s, 75% of 8 drafts accepted; length]"
    assert "no speculation: disabled by request" in summary_line(PLAIN)


def test_columns_are_aligned():
    assert table([["", "a"], ["long name", "12345"]]).splitlines() == ["               a", "long name  12345"]


def test_the_comparison_says_whether_the_answers_are_equal():
    assert "token for token" in comparison(result(FAST), result(PLAIN))
    assert "THE ANSWERS DIFFER" in comparison(result(FAST), result(PLAIN, token_ids=(1, 3)))


def test_the_comparison_shows_both_columns():
    lines = comparison(result(FAST), result(PLAIN)).splitlines()
    assert lines[0].split() == ["speculation", "on", "speculation", "off"]
    accepted = next(line for line in lines if line.startswith("drafts accepted"))
    assert accepted.endswith("–")
    assert "75% of 8" in accepted
    verify = next(line for line in lines if line.strip().startswith("verify"))
    assert verify.split() == ["verify", "250.0", "ms", "0.0", "ms"]
