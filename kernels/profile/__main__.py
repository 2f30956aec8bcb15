"""Writes a model's latency table: ``python -m kernels.profile --shapes 8b --output 8b.json``.

Kernels alone, by graph replays over weights that rotate past the L2: what a step costs on the device when no
launch waits for the processor. ``spearhead profile`` asks a running worker instead, launches included. The
scheduler reads either file (``policy.table``); it refuses one whose ``--revision`` or device is not that of
its worker. Takes one to three minutes a model, most of it compilation.
"""

import argparse
import json
from pathlib import Path

import torch

from kernels.profile.plan import ATTENTION_ROWS, CONTEXTS, numbers, read_model, row_buckets, tile_limits
from kernels.profile.table import KernelTime, document, write
from kernels.tuning.timing import facts, time_calls
from kernels.w4a16.plan import default_plan
from kernels.w4a16.shapes import MODELS, ModelShape
from kernels.w4a16.table import CONFIGS, Plans, read_table, table_path

_DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}


def main() -> None:
    """Measures each model and writes one table each; exits with 2 where there is no GPU."""
    parser = _parser()
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error(
            f"torch {torch.__version__} finds no CUDA device; a latency table is measured on the GPU that "
            "will serve, so run this there"
        )
    try:
        models = _models(options)
    except ValueError as error:
        parser.error(str(error))
    # Here, so that a machine without Triton gets this module's own words.
    from kernels.profile.measure import Setup, measure

    measured, device = facts(), torch.device("cuda", torch.cuda.current_device())
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    plans = Plans(measured["gpu"], processors, options.configs)
    path = table_path(measured["gpu"], options.configs)
    tuned = list(read_table(path).values()) if path.is_file() else [default_plan(4096, 4096, processors)]
    for name, (model, group) in models.items():
        setup = Setup(
            model=model,
            group=group,
            rank=options.rank,
            dtype=_DTYPES[options.dtype],
            device=device,
            plans=plans,
            rows=options.rows or row_buckets(tile_limits(tuned), options.max_rows),
            attention_rows=ATTENTION_ROWS,
            contexts=options.contexts,
            timer=time_calls,
        )
        times = []
        for time in measure(setup):
            times.append(time)
            _report(time)
        content = document(
            times,
            measured,
            device=str(device),
            dtype=options.dtype,
            variant=options.variant,
            revision=options.revision,
        )
        target = (
            options.output if len(models) == 1 else options.output.with_stem(f"{options.output.stem}-{name}")
        )
        write(target, content)
        summary = {"benchmark": "kernels.profile", **measured, "model": name, "group": group}
        print(json.dumps({**summary, "file": str(target), "kernels": len(times)}))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m kernels.profile", description=__doc__)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--model", type=Path, help="folder of a checkpoint; its config.json gives the shapes")
    source.add_argument("--shapes", help=f"models by name, of {', '.join(MODELS)}")
    parser.add_argument("--output", type=Path, default=Path("latency.json"))
    parser.add_argument(
        "--group", type=int, help="group size, 0 = per channel; default: the checkpoint's, or 128"
    )
    parser.add_argument("--rank", type=int, default=16, help="of each projection's compensator")
    parser.add_argument("--dtype", default="bfloat16", choices=_DTYPES)
    parser.add_argument("--variant", default="w4+ec", choices=["w4", "w4+ec"], help="of the scheduler's view")
    parser.add_argument(
        "--revision", default="", help="of the model, as its worker reports it in GetModelInfo"
    )
    parser.add_argument("--rows", type=numbers, help="row buckets; default: by the tiles, up to --max-rows")
    parser.add_argument("--max-rows", type=int, default=2048)
    parser.add_argument("--contexts", type=numbers, default=CONTEXTS)
    parser.add_argument("--configs", type=Path, default=CONFIGS, help="folder of the plans")
    return parser


def _models(options: argparse.Namespace) -> dict[str, tuple[ModelShape, int]]:
    """Models to measure, each with its group size."""
    given: int | None = options.group
    if options.model is not None:
        shape, group = read_model(options.model)
        return {options.model.name: (shape, group if given is None else given)}
    unknown = [name for name in options.shapes.split(",") if name not in MODELS]
    if unknown:
        raise ValueError(f"no model {unknown[0]!r}; known: {', '.join(MODELS)}")
    return {name: (MODELS[name], 128 if given is None else given) for name in options.shapes.split(",")}


def _report(time: KernelTime) -> None:
    size = f"{time.n} x {time.k} / {time.group} rank {time.rank}"
    at = f"{time.rows:6} rows{time.context:6} before"
    print(f"{time.op:16}{time.name:12}{size:32}{at}{time.median_us:10.2f} us", flush=True)


if __name__ == "__main__":
    main()
