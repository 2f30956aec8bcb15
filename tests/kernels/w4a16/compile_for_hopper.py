"""Compiles the fused kernel for sm_90 and prints facts as JSON; run by test_compile.py, needs no GPU."""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, ".")

from kernels.tensor_checks import power_of_two
from kernels.w4a16.gpu import needs_fence
from kernels.w4a16.kernel import w4a16_kernel

TYPES = {"words": "*i32", "scales": "*fp16", "bias": "*fp16", "zg": "*fp32"}
TYPES |= {"partials": "*fp32", "arrivals": "*i32", "room": "*i32", "M": "i32"}


def main() -> None:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    if not tool.exists():
        print(json.dumps("no backend"))
        return
    names = list(w4a16_kernel.arg_names)
    outcomes = []
    for case in json.loads(sys.argv[1]):
        dtype, rows, outputs, warps, stages, registers, group, parts, split, rank, segments, slices = case
        constants = {
            "N": 4096, "NP": 4096, "K": 4096, "BM": rows, "BN": outputs, "G": group, "PARTS": parts,
            "SPLIT": split, "LEVELS": (parts // split).bit_length() - 1,
            "HAS_BIAS": True, "R": rank, "S": segments, "P": 16,
            "ENDS": tuple(4096 // segments * (each + 1) for each in range(segments)),
            "SLICES": slices, "SLICE": 256, "BLOCK_C": 128, "BLOCK_W": power_of_two(rank * segments),
            "ASM": True, "FENCE": needs_fence(), "PDL": False,
        }  # fmt: skip
        types = TYPES | dict.fromkeys(("x", "a", "b", "y"), f"*{dtype}")
        signature = {name: "constexpr" if name in constants else types[name] for name in names}
        aligned = [name for name, kind in signature.items() if kind.startswith("*")]
        source = ASTSource(
            fn=w4a16_kernel,
            signature=signature,
            constexprs={(names.index(name),): value for name, value in constants.items()},
            attrs={(names.index(name),): [["tt.divisibility", 16]] for name in aligned},
        )
        options = {"num_warps": warps, "num_stages": stages, "maxnreg": registers}
        kernel = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
        outcomes.append(facts(tool, kernel.asm["cubin"]))
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
    }
    counts = {name: len(re.findall(pattern, code.stdout)) for name, pattern in patterns.items()}
    return {"registers": registers, "stack_bytes": stack, **counts}


if __name__ == "__main__":
    main()
