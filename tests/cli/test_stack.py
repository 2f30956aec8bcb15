import sys
from pathlib import Path

import pytest

from spearhead.cli.stack import StackOptions, service_commands
from spearhead.errors import ConfigError


def settings_of(options, sockets):
    """The ``--set`` values by service name and key."""
    return {
        command.name: dict(
            entry.split("=", 1)
            for flag, entry in zip(command.argv, command.argv[1:], strict=False)
            if flag == "--set"
        )
        for command in service_commands(options, sockets)
    }


def test_workers_start_before_the_scheduler_that_needs_them(tmp_path):
    names = [command.name for command in service_commands(StackOptions(model="m"), tmp_path)]
    assert names == ["verify", "draft", "scheduler"]


def test_the_scheduler_is_given_the_sockets_on_which_the_workers_listen(tmp_path):
    settings = settings_of(StackOptions(model="m", listen="127.0.0.1:7000"), tmp_path)
    assert settings["scheduler"]["verify.address"] == settings["verify"]["server.listen"]
    assert settings["scheduler"]["draft.address"] == settings["draft"]["server.listen"]
    assert settings["scheduler"]["server.listen"] == '"127.0.0.1:7000"'
    assert settings["scheduler"]["model.tokenizer"] == '"m"'


def test_without_a_draft_no_draft_service_is_started_and_none_is_named(tmp_path):
    settings = settings_of(StackOptions(model="m", draft="none"), tmp_path)
    assert list(settings) == ["verify", "scheduler"]
    assert "draft.address" not in settings["scheduler"]


def test_a_draft_model_is_loaded_by_the_draft_service_alone(tmp_path):
    settings = settings_of(StackOptions(model="big", draft="small"), tmp_path)
    assert settings["draft"]["model.path"] == '"small"'
    assert settings["draft"]["drafter.kind"] == '"model"'
    assert settings["verify"]["model.path"] == '"big"'


def test_a_drafter_without_a_model_gets_the_target_for_its_vocabulary(tmp_path):
    settings = settings_of(StackOptions(model="m", draft="ngram"), tmp_path)
    assert settings["draft"]["drafter.kind"] == '"ngram"'
    assert settings["draft"]["model.path"] == '"m"'


def test_only_the_target_is_quantised(tmp_path):
    settings = settings_of(StackOptions(model="m", draft="d", quantization="group32"), tmp_path)
    assert settings["verify"]["variants.quantization"] == '"group32"'
    assert "variants.quantization" not in settings["draft"]


def test_configuration_files_are_used_where_they_exist(tmp_path):
    (tmp_path / "verify.toml").write_text("")
    commands = service_commands(StackOptions(config_folder=tmp_path), tmp_path)
    by_name = {command.name: command.argv for command in commands}
    assert by_name["verify"][:5] == (
        sys.executable,
        "-m",
        "verify_service",
        "--config",
        str(tmp_path / "verify.toml"),
    )
    assert "--config" not in by_name["draft"]


def test_overrides_come_last_and_reach_only_their_service(tmp_path):
    options = StackOptions(model="m", overrides=("verify.model.dtype=float32",))
    by_name = {command.name: command.argv for command in service_commands(options, tmp_path)}
    assert by_name["verify"][-2:] == ("--set", "model.dtype=float32")
    assert "model.dtype=float32" not in by_name["draft"]


@pytest.mark.parametrize("override", ["model.dtype=float32", "verify", "verify.model.dtype"])
def test_an_override_that_names_no_service_is_refused(override, tmp_path):
    with pytest.raises(ConfigError, match=r"SERVICE\.section\.key=value"):
        service_commands(StackOptions(model="m", overrides=(override,)), tmp_path)


def test_no_model_at_all_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="--model"):
        service_commands(StackOptions(), tmp_path)


def test_a_latency_table_makes_the_scheduler_plan_with_it(tmp_path):
    options = StackOptions(model="m", latency_table=tmp_path / "table.json")
    settings = settings_of(options, tmp_path)
    assert settings["scheduler"]["policy.kind"] == '"table"'
    assert settings["scheduler"]["policy.table"] == f'"{tmp_path}/table.json"'
    assert "policy.kind" not in settings_of(StackOptions(model="m"), tmp_path)["scheduler"]


def test_idle_threads_of_every_service_spin_for_a_bounded_time(tmp_path: Path) -> None:
    commands = service_commands(StackOptions(model="m", draft="d"), tmp_path)
    assert [command.environment for command in commands] == 3 * [{"GOMP_SPINCOUNT": "10000"}]
