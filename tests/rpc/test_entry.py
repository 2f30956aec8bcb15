import asyncio
import importlib.util
import socket
from dataclasses import dataclass, field

import pytest

from spearhead.errors import CheckpointError
from spearhead.rpc import EndpointConfig, Server, main
from spearhead.telemetry import Telemetry


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    server: EndpointConfig = field(default_factory=EndpointConfig)
    steps: int = 1


async def nothing(config):
    """A service that ends at once."""


def test_the_service_gets_the_file_with_the_overrides_on_top(tmp_path):
    path = tmp_path / "service.toml"
    path.write_text('steps = 2\n[server]\nlisten = "127.0.0.1:1"\n')
    seen = []

    async def run(config):
        seen.append(config)

    arguments = ["--config", str(path), "--set", "steps=3", "--set", "server.drain_s=4"]
    assert main("fake_service", Config, run, arguments) == 0
    assert seen == [Config(steps=3, server=EndpointConfig(listen="127.0.0.1:1", drain_s=4.0))]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "stepz=1"], "unknown key stepz"),
        (["--set", "steps=many"], "steps is 'many'"),
        (["--set", "server.listen=here"], "listen is 'here'"),
        (["--config", "missing.toml"], "configuration file missing.toml does not exist"),
    ],
)
def test_a_wrong_configuration_is_one_line_and_exit_code_2(capsys, arguments, message):
    assert main("fake_service", Config, nothing, arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("fake_service: ")
    assert message in error
    assert error.count("\n") == 1


def test_any_start_up_error_is_one_line_and_exit_code_2(capsys):
    async def run(config):
        raise CheckpointError("model folder /m has no config.json; give a folder with one")

    assert main("fake_service", Config, run, []) == 2
    assert capsys.readouterr().err == (
        "fake_service: model folder /m has no config.json; give a folder with one\n"
    )


def test_a_port_in_use_is_one_line_and_exit_code_2(capfd):
    async def run(config):
        async with Server(config.server, service_names=[], telemetry=Telemetry.disabled()) as server:
            await server.start()

    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = f"127.0.0.1:{other.getsockname()[1]}"
        assert main("fake_service", Config, run, ["--set", f"server.listen={address}"]) == 2
    error = capfd.readouterr().err  # of the whole process: gRPC writes nothing of its own
    assert error.startswith(f"fake_service: server.listen {address} cannot be bound: Address already in use")
    assert error.count("\n") == 1


def test_an_error_after_the_server_has_started_leaves_nothing_behind(capfd):
    async def run(config):
        async with Server(config.server, service_names=[], telemetry=Telemetry.disabled()) as server:
            await server.start()
            raise CheckpointError("weights are cut short")

    assert main("fake_service", Config, run, []) == 2
    error = capfd.readouterr().err
    assert error.endswith("fake_service: weights are cut short\n")
    assert "Traceback" not in error


def test_an_interrupt_during_the_start_up_is_exit_code_130():
    async def run(config):
        raise KeyboardInterrupt

    assert main("fake_service", Config, run, []) == 130


def test_a_bug_is_not_hidden():
    async def run(config):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        main("fake_service", Config, run, [])


def test_help_names_both_options(capsys):
    with pytest.raises(SystemExit) as raised:
        main("fake_service", Config, nothing, ["--help"])
    assert raised.value.code == 0
    output = capsys.readouterr().out
    assert "--config FILE" in output
    assert "--set SECTION.KEY=VALUE" in output


def test_uvloop_runs_the_service_where_it_is_installed():
    loops = []

    async def run(config):
        loops.append(type(asyncio.get_running_loop()).__module__)

    assert main("fake_service", Config, run, []) == 0
    assert (loops == ["uvloop"]) is (importlib.util.find_spec("uvloop") is not None)
