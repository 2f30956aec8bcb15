from pathlib import Path
from typing import Any

from spearhead.cli.quantize_report import describe_report
from spearhead.quant import ModuleReport, QuantizationReport


def module(name: str, **changes: Any) -> ModuleReport:
    values: dict[str, Any] = {
        "module": f"model.layers.{name}",
        "choice": "channel/7.5:gptq",
        "method_used": "gptq",
        "note": "",
        "bytes": 100,
        "squared_error": 1.0,
        "squared_weight": 100.0,
        "weighted_error": 0.05,
    }
    return ModuleReport(**(values | changes))


def report(*modules: ModuleReport, **changes: Any) -> QuantizationReport:
    values: dict[str, Any] = {
        "path": Path("out"),
        "quantization": "w4",
        "source_bytes": 4_000_000,
        "artefact_bytes": 1_000_000,
        "modules": modules,
        "calibration_tokens": 64,
        "notes": (),
    }
    return QuantizationReport(**(values | changes))


def test_errors_are_those_that_inputs_see_where_they_are_known() -> None:
    text = describe_report(
        report(
            module("0.self_attn.q_proj"),
            module("0.mlp.up_proj", choice="dense", weighted_error=None),
            module("1.self_attn.q_proj", weighted_error=None),
            module("1.mlp.up_proj", weighted_error=0.125),
        )
    )
    assert [line.split() for line in text.splitlines()[:3]] == [
        ["error", "in", "%", "q", "up"],
        ["0", "5.00", "dense"],
        ["1", "10.00", "12.50"],
    ]
    assert "out: 3 modules, w4; 4 MB became 1 MB" in text
    assert "8.75% as 64 calibration tokens see it" in text


def test_a_brief_report_leaves_out_the_table_alone() -> None:
    found = report(module("0.mlp.up_proj", note="gptq fell back"))
    assert describe_report(found, brief=True).splitlines() == describe_report(found).splitlines()[2:]
    assert describe_report(found, brief=True).startswith("note: gptq fell back")


def test_fallbacks_are_told_once_with_their_modules() -> None:
    fallen = {"method_used": "rtn", "note": "gptq fell back"}
    text = describe_report(
        report(*(module(f"{layer}.mlp.up_proj", **fallen) for layer in range(10)), notes=("few tokens",))
    )
    notes = [line for line in text.splitlines() if line.startswith("note: ")]
    assert notes[0] == "note: few tokens"
    assert len(notes) == 2
    assert notes[1].startswith("note: gptq fell back: layers.0.mlp.up_proj, layers.1.mlp.up_proj")
    assert notes[1].endswith("layers.7.mlp.up_proj and 2 more")
