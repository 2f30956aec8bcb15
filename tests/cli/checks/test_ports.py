import socket

import pytest

from spearhead.cli.checks.ports import check_listen


def test_a_free_port_is_fine():
    assert check_listen("127.0.0.1:0").ok


def test_a_port_in_use_is_wrong():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        finding = check_listen(f"127.0.0.1:{taken.getsockname()[1]}")
    assert not finding.ok
    assert "in use" in finding.text


def test_a_unix_socket_that_exists_is_wrong_and_one_that_does_not_leaves_nothing_behind(tmp_path):
    path = tmp_path / "front.sock"
    assert check_listen(f"unix:{path}").ok
    assert not path.exists()
    path.touch()
    assert not check_listen(f"unix:{path}").ok


@pytest.mark.parametrize("listen", ["localhost", "127.0.0.1:http-x", "127.0.0.1:99999"])
def test_what_is_no_address_is_wrong(listen):
    assert not check_listen(listen).ok
