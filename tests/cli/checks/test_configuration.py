import dataclasses
import re
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from draft_service.config import DraftConfig
from scheduler_service.config import SchedulerConfig
from spearhead.cli.checks.configuration import check_configuration
from verify_service.config import VerifyConfig

SLOW_RULES = {"telemetry.keep_slow_itl_ms", "telemetry.keep_slow_ttft_ms"}
SHIPPED = Path(__file__).parents[3] / "deploy" / "config"


def test_the_shipped_files_are_valid():
    findings = list(check_configuration(SHIPPED))
    assert len(findings) == 3
    assert [f.text for f in findings if not f.ok] == []


def test_an_unknown_key_is_wrong_and_named(tmp_path):
    (tmp_path / "verify.toml").write_text('[model]\npath = "m"\npaht = "m"\n')
    (finding,) = check_configuration(tmp_path)
    assert not finding.ok
    assert "model.paht" in finding.text


def test_a_folder_without_files_is_wrong(tmp_path):
    (finding,) = check_configuration(tmp_path)
    assert not finding.ok
    assert "verify.toml" in finding.text


def keys_of(cls, prefix=""):
    """Every key of a configuration, sections resolved: "model.path", …"""
    for name, hint in get_type_hints(cls).items():
        section = next((arm for arm in (hint, *get_args(hint)) if dataclasses.is_dataclass(arm)), None)
        if section is not None:
            yield from keys_of(section, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def documented_keys(text):
    """Every key that a file sets or shows commented out."""
    section = ""
    for line in text.splitlines():
        if header := re.fullmatch(r"\[(\w+)\]", line):
            section = f"{header[1]}."
        elif key := re.match(r"(?:# )?(\w+) = ", line):
            yield section + key[1]


@pytest.mark.parametrize(
    ("name", "cls"), [("verify", VerifyConfig), ("draft", DraftConfig), ("scheduler", SchedulerConfig)]
)
def test_the_shipped_files_explain_every_key(name, cls):
    refused = set() if name == "scheduler" else SLOW_RULES
    assert set(documented_keys((SHIPPED / f"{name}.toml").read_text())) == set(keys_of(cls)) - refused


@pytest.mark.parametrize("name", ["verify", "draft"])
@pytest.mark.parametrize("key", ["keep_slow_itl_ms", "keep_slow_ttft_ms"])
def test_workers_refuse_rules_about_whole_requests(name, key, tmp_path):
    (tmp_path / f"{name}.toml").write_text(f'[model]\npath = "m"\n[telemetry]\n{key} = 5.0\n')
    (finding,) = check_configuration(tmp_path)
    assert not finding.ok
    assert "only the scheduler sees whole requests" in finding.text
