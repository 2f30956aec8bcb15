from pathlib import Path

import pytest

from spearhead import config
from spearhead.errors import ConfigError
from spearhead.rpc import EndpointConfig, TargetConfig
from spearhead.rpc.endpoint import channel_options, is_local, server_options

TARGET = TargetConfig(address="a:1")


@pytest.mark.parametrize("address", ["127.0.0.1:0", "[::1]:7000", "unix:/run/s", "verify.internal:65535"])
def test_addresses_of_every_form_are_taken(address):
    assert EndpointConfig(listen=address, health_listen=address).listen == address


@pytest.mark.parametrize("address", ["", "7000", "host", "host:", ":7000", "host:70000", "host:x", "unix:"])
def test_a_malformed_address_is_refused_with_its_value(address):
    with pytest.raises(ValueError, match=f"listen is '{address}'"):
        EndpointConfig(listen=address)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"tls_key": Path("k")}, "belong together"),
        ({"tls_client_ca": Path("c")}, "needs TLS"),
        ({"max_message_bytes": 0}, "max_message_bytes is 0"),
        ({"max_message_bytes": 1 << 31}, "max_message_bytes is 2147483648"),
        ({"drain_s": -1.0}, "drain_s is -1"),
        ({"health_listen": "x"}, "health_listen is 'x'"),
    ],
)
def test_an_endpoint_that_cannot_work_is_refused(values, message):
    with pytest.raises(ValueError, match=message):
        EndpointConfig(**values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"address": ""}, "address is empty"),
        ({"address": "h:1", "tls_certificate": Path("c")}, "belong together"),
        ({"address": "h:1", "tls_certificate": Path("c"), "tls_key": Path("k")}, "set tls_ca too"),
    ],
)
def test_a_target_that_cannot_work_is_refused(values, message):
    with pytest.raises(ValueError, match=message):
        TargetConfig(**values)


def test_a_wrong_value_in_a_file_becomes_a_config_error(tmp_path):
    path = tmp_path / "c.toml"
    path.write_text('listen = "nowhere"\n')
    with pytest.raises(ConfigError, match="listen is 'nowhere'"):
        config.load(EndpointConfig, path)


@pytest.mark.parametrize(
    ("address", "local"),
    [
        ("127.0.0.1:1", True), ("127.9.9.9:1", True), ("localhost:1", True), ("[::1]:1", True),
        ("unix:/s", True), ("ipv4:127.0.0.1:1", False), ("dns:///localhost:1", True), ("0.0.0.0:1", False),
        ("[::]:1", False), ("10.0.0.1:1", False), ("localhost.example.com:1", False),
    ],
)  # fmt: skip
def test_only_loopback_and_unix_sockets_are_local(address, local):
    assert is_local(address) is local


def test_the_server_allows_pings_as_often_as_the_channel_sends_them():
    server, channel = dict(server_options(EndpointConfig())), dict(channel_options(TARGET))
    allowed_ms = server["grpc.http2.min_ping_interval_without_data_ms"]
    assert channel["grpc.keepalive_time_ms"] >= 2 * allowed_ms
    assert (
        server["grpc.keepalive_permit_without_calls"] == channel["grpc.keepalive_permit_without_calls"] == 1
    )
    assert channel["grpc.http2.max_pings_without_data"] == 0


def test_both_ends_set_both_limits():
    target = TargetConfig(address="a:1", max_message_bytes=7)
    for options in (dict(server_options(EndpointConfig(max_message_bytes=7))), dict(channel_options(target))):
        assert options["grpc.max_receive_message_length"] == options["grpc.max_send_message_length"] == 7


def test_the_name_that_a_certificate_must_carry_may_differ_from_the_address() -> None:
    target = TargetConfig(address="10.0.0.1:1", tls_ca=Path("ca.crt"), tls_name="verify.ns.svc")
    assert dict(channel_options(target))["grpc.ssl_target_name_override"] == "verify.ns.svc"
    assert "grpc.ssl_target_name_override" not in dict(channel_options(TARGET))


def test_a_name_for_the_certificate_needs_tls() -> None:
    with pytest.raises(ValueError, match="tls_name needs TLS"):
        TargetConfig(address="10.0.0.1:1", tls_name="verify.ns.svc")


def test_connections_age_only_where_that_is_set() -> None:
    assert "grpc.max_connection_age_ms" not in dict(server_options(EndpointConfig()))
    aged = EndpointConfig(max_connection_age_s=1.5, max_connection_age_grace_s=60.0)
    assert dict(server_options(aged))["grpc.max_connection_age_ms"] == 1500
    assert dict(server_options(aged))["grpc.max_connection_age_grace_ms"] == 60_000


def test_an_age_that_grpc_cannot_count_is_refused() -> None:
    with pytest.raises(ValueError, match="max_connection_age_s"):
        EndpointConfig(max_connection_age_s=1e9)
