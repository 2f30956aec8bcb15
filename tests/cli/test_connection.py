import argparse
from pathlib import Path

import pytest

from spearhead.cli.connection import add_connection_options, target_at, target_from
from spearhead.errors import ConfigError
from spearhead.rpc import TargetConfig

ALL = (
    *("--address", "h:1", "--tls-ca", "ca", "--tls-name", "n", "--tls-certificate", "c", "--tls-key", "k"),
    *("--token-file", "t"),
)


def parse(*options: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_connection_options(parser)
    return parser.parse_args(options)


def test_every_option_reaches_the_target():
    assert target_from(parse(*ALL)) == TargetConfig(
        address="h:1", tls_ca=Path("ca"), tls_name="n", tls_certificate=Path("c"), tls_key=Path("k"),
        token_file=Path("t"),
    )  # fmt: skip


def test_another_address_gets_the_same_credentials():
    target = target_at("other:2", parse("--tls-ca", "ca", "--token-file", "t"))
    assert target == TargetConfig(address="other:2", tls_ca=Path("ca"), token_file=Path("t"))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--tls-ca", "ca", "--tls-certificate", "c"), "tls_certificate and tls_key belong together"),
        (("--tls-certificate", "c", "--tls-key", "k"), "tls_certificate needs TLS; set tls_ca too"),
        (("--tls-name", "n"), "tls_name needs TLS; set tls_ca too"),
    ],
)
def test_credentials_that_do_not_go_together_are_refused(options, reason):
    with pytest.raises(ConfigError, match=f"connection to 127.0.0.1:50051: {reason}"):
        target_from(parse(*options))
