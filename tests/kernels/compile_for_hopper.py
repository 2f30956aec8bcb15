"""Compiles kernels for sm_90 and prints facts as JSON; run by test_compile.py, needs no GPU.

Argument: JSON list of ``[module, kernel, constants, warps, stages]``.
"""

import importlib
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, ".")

# What is not listed here is a float32 pointer.
TYPES = {
    **dict.fromkeys(
        [
            "x",
            "residual",
            "weight",
            "y",
            "hidden",
            "a",
            "gate_up",
            "qkv",
            "cache",
            "q_norm",
            "k_norm",
            "query",
            "output",
        ],
        "*fp16",
    ),
    **dict.fromkeys(["arrivals", "gated", "page_table", "row_starts", "lengths", "best_id", "top_k"], "*i32"),
    **dict.fromkeys(
        ["search", "bin_counts", "kept_counts", "listed_counts", "shallowest", "deepest"], "*i32"
    ),
    **dict.fromkeys(["list_ids", "cut_depth", "cut_id", "score_ids", "edited_ids", "flags"], "*i32"),
    **dict.fromkeys(["raw_best_id", "shaped_best_id", "shallowest", "deepest"], "*i32"),
    **dict.fromkeys(["positions", "slots", "seeds", "token_ids", "mass", "kept_mass"], "*i64"),
    **dict.fromkeys(["above_mass", "inside_mass", "drawn_mass"], "*i64"),
    **dict.fromkeys(["top_p", "normalizer"], "*fp64"),
    "finite": "*i1",
    **dict.fromkeys(["eps", "scale"], "fp32"),
    **dict.fromkeys(["row_count", "x_stride", "residual_stride", "row_stride", "qkv_stride"], "i32"),
    **dict.fromkeys(["query_stride", "page_stride", "window", "pieces", "splits"], "i32"),
}


def main() -> None:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    if not tool.exists():
        print(json.dumps("no backend"))
        return
    outcomes = []
    for module, name, constants, warps, stages in json.loads(sys.argv[1]):
        kernel = getattr(importlib.import_module(module), name)
        names = list(kernel.arg_names)
        signature = {n: "constexpr" if n in constants else TYPES.get(n, "*fp32") for n in names}
        aligned = [n for n, kind in signature.items() if kind.startswith("*") or n.endswith("stride")]
        source = ASTSource(
            fn=kernel,
            signature=signature,
            constexprs={(names.index(n),): value for n, value in constants.items()},
            attrs={(names.index(n),): [["tt.divisibility", 16]] for n in aligned},
        )
        options = {"num_warps": warps, "num_stages": stages}
        compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
        more = {"row_sums": row_sums(compiled.asm["ttgir"]), "shared_bytes": compiled.metadata.shared}
        outcomes.append({**facts(tool, compiled.asm["cubin"]), **more})
    print(json.dumps(outcomes))


def facts(tool: Path, cubin: bytes) -> dict[str, int]:
    """Registers, stack, and how often the instructions occur that decide on speed and order."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        usage, code = (
            subprocess.run([str(tool), option, file.name], capture_output=True, text=True, check=True)
            for option in ("-res-usage", "-sass")
        )
    registers, stack = map(int, re.search(r"REG:(\d+) STACK:(\d+)", usage.stdout + usage.stderr).groups())
    patterns = {
        "wgmma": r"\bHGMMA\.",
        "mma_sync": r"\bHMMA\.",
        "local_memory": r"\b(?:LDL|STL)\b",
        "fences": r"\bFENCE\.VIEW\.ASYNC",
        "wide_loads": r"\b(?:LDG|LDGSTS)\.E\.(?:[A-Z0-9.]*\.)?128\b",
        "fast_logarithms": r"\bMUFU\.LG2\b",
    }
    counts = {name: len(re.findall(pattern, code.stdout)) for name, pattern in patterns.items()}
    return {"registers": registers, "stack_bytes": stack, **counts}


def row_sums(ttgir: str) -> list[str]:
    """How sums along rows are spread: columns of a thread, threads of a warp and warps that share a row."""
    layout = r"^(#\w+) = #ttg\.blocked<\{sizePerThread = \[\d+, (\d+)\], threadsPerWarp = \[\d+, (\d+)\], "
    layouts = re.findall(layout + r"warpsPerCTA = \[\d+, (\d+)\]", ttgir, re.MULTILINE)
    spread = {name: " x ".join(counts) for name, *counts in layouts}
    sums = re.findall(r'"tt\.reduce"\(%\S+\) <\{axis = 1.*?\}\) : \(tensor<[^,>]*, (#\w+)>', ttgir, re.DOTALL)
    return sorted({spread[name] for name in sums if name in spread})  # not those of a tensor core's results


if __name__ == "__main__":
    main()
