import socket
import urllib.request

import pytest
from prometheus_client import CollectorRegistry, Histogram

from spearhead.errors import ConfigError
from spearhead.telemetry.metrics import BaseMetrics, MetricsServer


@pytest.fixture
def registry():
    return CollectorRegistry()


@pytest.fixture
def server(registry):
    server = MetricsServer("127.0.0.1:0", registry)
    yield server
    server.close()


def scrape(address, accept):
    request = urllib.request.Request(f"http://{address}/metrics", headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=20) as response:
        return response.headers["Content-Type"], response.read().decode()


def test_plain_text_is_the_default(server, registry):
    BaseMetrics(registry).observe_rpc("a.B/C", "OK", 0.25)
    content_type, body = scrape(server.address, "*/*")
    assert content_type.startswith("text/plain")
    assert 'spearhead_rpc_server_calls_total{code="OK",method="a.B/C"} 1.0' in body
    assert "process_resident_memory_bytes" in body
    assert "python_gc_collections_total" in body


def test_openmetrics_with_exemplars_is_served_to_those_who_accept_it(server, registry):
    histogram = Histogram("spearhead_example_seconds", "Example.", registry=registry)
    histogram.observe(0.2, exemplar={"trace_id": "0af7651916cd43dd8448eb211c80319c"})
    content_type, body = scrape(server.address, "application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    assert 'trace_id="0af7651916cd43dd8448eb211c80319c"' in body
    assert body.endswith("# EOF\n")


def test_a_closed_server_frees_its_port(registry):
    server = MetricsServer("127.0.0.1:0", registry)
    server.close()
    again = MetricsServer(server.address, registry)
    again.close()
    assert again.address == server.address


def test_a_port_in_use_is_refused_with_a_remedy(registry):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(ConfigError, match=f"{address} cannot be bound: Address already in use") as raised:
            MetricsServer(address, registry)
    assert "choose another" in raised.value.message


@pytest.mark.parametrize("listen", ["9464", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:70000"])
def test_a_malformed_address_is_refused_with_its_value(registry, listen):
    with pytest.raises(ConfigError, match=f"metrics_listen is '{listen}'"):
        MetricsServer(listen, registry)
