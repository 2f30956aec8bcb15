"""A run that dies without warning after some tensors: ``killed_run.py SOURCE OUTPUT TENSORS``."""

import os
import signal
import sys
from pathlib import Path

from spearhead.quant import QuantizationProgress, QuantizationRecipe, RunSettings, quantize_checkpoint


def main(source: str, output: Path, tensors: int) -> None:
    seen = 0

    def die(progress: QuantizationProgress) -> None:
        nonlocal seen
        seen += 1
        if seen == tensors:
            os.kill(os.getpid(), signal.SIGKILL)

    quantize_checkpoint(
        source,
        output,
        QuantizationRecipe.parse("channel", "gptq"),
        [list(range(3, 60)), list(range(9, 50)), list(range(70, 90))],
        settings=RunSettings(inputs="quantized", batch_size=2),
        progress=die,
    )


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
