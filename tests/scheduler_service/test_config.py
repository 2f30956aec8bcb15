from pathlib import Path

import pytest

from scheduler_service.config import SchedulerConfig
from spearhead.config import load
from spearhead.errors import ConfigError

NEEDED = ["model.tokenizer=/models/m", "verify.address=127.0.0.1:7001"]


def test_two_addresses_and_a_tokenizer_are_enough() -> None:
    config = load(SchedulerConfig, None, NEEDED)
    assert config.model.tokenizer == Path("/models/m")
    assert config.draft is None
    assert config.policy.kind == "static"


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("policy.kind=table", "needs table"),
        ("policy.kind=other", "policy.kind"),
        ("policy.static_draft_tokens=-1", "static_draft_tokens"),
        ("limits.max_draft_tokens=17", "at most 16"),
        ("limits.max_running_requests=0", "at least 1"),
        ("limits.verify_timeout_s=0", "more than 0"),
        ("limits.unknown=1", "unknown key"),
        ("verify.address=", "address"),
    ],
)
def test_a_bad_value_is_refused_by_name(override: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load(SchedulerConfig, None, [*NEEDED, override])


def test_the_front_door_takes_smaller_messages_than_the_workers() -> None:
    config = load(SchedulerConfig, None, [*NEEDED, "server.listen=127.0.0.1:0"])
    assert config.server.max_message_bytes == 8 << 20
    assert config.verify.max_message_bytes == 64 << 20


def test_speculation_can_be_switched_off_for_the_server() -> None:
    assert load(SchedulerConfig, None, [*NEEDED, "limits.max_draft_tokens=0"]).limits.max_draft_tokens == 0


def test_the_table_policy_takes_its_file() -> None:
    config = load(SchedulerConfig, None, [*NEEDED, "policy.kind=table", "policy.table=/t.json"])
    assert config.policy.table == Path("/t.json")
