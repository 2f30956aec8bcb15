import re

import pytest

from spearhead.rpc.caller import ANONYMOUS, Caller, CallerLimits
from spearhead.rpc.token_lines import parse_tokens


def parse(text, with_limits=True):
    return dict(parse_tokens(text.encode(), with_limits=with_limits))


def test_a_line_is_a_token_or_a_token_with_a_name_and_limits():
    found = parse(
        "# rotated monthly\n\nplain==\n  a1 name=team-a \n"
        "b1 name=b max_running=2 max_waiting=0 requests_per_minute=0.5 max_output_tokens=9 max_priority=-3\n"
    )
    assert list(found.items()) == [
        (b"plain==", ANONYMOUS),
        (b"a1", Caller(name="team-a")),
        (
            b"b1",
            Caller(
                name="b",
                limits=CallerLimits(
                    max_running=2,
                    max_waiting=0,
                    requests_per_minute=0.5,
                    max_output_tokens=9,
                    max_priority=-3,
                ),
            ),
        ),
    ]


def test_two_tokens_may_share_a_name_so_that_one_can_replace_the_other():
    found = parse("old name=a max_running=2\nnew name=a max_running=2\n")
    assert found[b"old"] == found[b"new"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("S3cret word", "line 1: after its token, only key=value"),
        ("S3cret max_jobs=2 name=a", "only key=value with one of name, max_running"),
        ("\nS3cret max_running=2", "line 2: it needs name=NAME"),
        ("S3cret name=zw/lf", "it needs name=NAME"),
        ("S3cret name=a name=b", "name is there twice"),
        ("S3cret name=a max_running=two", "max_running is 'two'; it must be a number"),
        ("S3cret name=a max_running=0", "max_running is 0; it must be at least 1"),
        ("S3cret name=a max_waiting=-1", "max_waiting is -1; it must be at least 0"),
        ("S3cret name=a requests_per_minute=0", "requests_per_minute is 0; it must be more than 0"),
        ("S3cret name=a requests_per_minute=nan", "requests_per_minute is nan; it must be more than 0"),
        ("S3cret name=a max_priority=101", "max_priority is 101; it must be at most 100"),
        ("S3cret name=S3cret", "a name is also a token"),
        ("S3cret\nother name=S3cret", "a name is also a token"),
        ("S3cret name=a\nS3cret name=b", "line 2: its token is on an earlier line"),
        ("S3cret name=a\nother name=a max_running=1", "the tokens named 'a' have different limits"),
        ("S3cret name=ä", "not printable ASCII"),
    ],
)
def test_a_line_that_cannot_be_understood_is_refused_without_its_token(text, problem):
    with pytest.raises(ValueError, match=re.escape(problem)) as raised:
        parse(text)
    assert "S3cret" not in str(raised.value)


def test_limits_are_refused_where_nobody_keeps_them():
    assert parse("S3cret name=a", with_limits=False) == {b"S3cret": Caller(name="a")}
    with pytest.raises(ValueError, match="line 1: this service keeps no limits"):
        parse("S3cret name=a max_running=1", with_limits=False)
