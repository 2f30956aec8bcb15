"""Compiles the kernel for few rows for sm_90 and prints facts as JSON; run by test_few_rows_compile.py."""

import json
import sys
from pathlib import Path

sys.path.insert(0, ".")

from compile_for_hopper import TYPES, facts

from kernels.w4a16.few_rows_kernel import few_rows_kernel

OUTPUTS = INPUTS = 4096


def main() -> None:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.experimental.gluon._runtime import GluonASTSource

    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    if not tool.exists():
        print(json.dumps("no backend"))
        return
    names, outcomes = list(few_rows_kernel.arg_names), []
    for dtype, rows, outputs, stages, group, parts, rank, segments, slices in json.loads(sys.argv[1]):
        constants = {
            "N": OUTPUTS, "NP": OUTPUTS, "K": INPUTS, "BM": rows, "BN": outputs, "G": group, "PARTS": parts,
            "STAGES": stages, "HAS_BIAS": True, "R": rank, "S": segments, "P": 16,
            "ENDS": tuple(OUTPUTS // segments * (each + 1) for each in range(segments)),
            "SLICES": slices, "BLOCK_C": 256, "STEPS": 1, "PDL": True, "EARLY": True,
        }  # fmt: skip
        types = TYPES | {"counters": "*i32"} | dict.fromkeys(("x", "a", "b", "y"), f"*{dtype}")
        signature = {name: "constexpr" if name in constants else types[name] for name in names}
        pointers = [name for name, kind in signature.items() if kind.startswith("*")]
        source = GluonASTSource(
            fn=few_rows_kernel,
            signature=signature,
            constexprs={(names.index(name),): value for name, value in constants.items()},
            attrs={(names.index(name),): [["tt.divisibility", 16]] for name in pointers},
        )
        kernel = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})
        outcomes.append({**facts(tool, kernel.asm["cubin"]), "shared_bytes": kernel.metadata.shared})
    print(json.dumps(outcomes))


if __name__ == "__main__":
    main()
