from collections.abc import Callable
from pathlib import Path

import torch

from spearhead.quant.calibration import CalibrationRequest, calibrate
from spearhead.quant.calibration.measuring import measured_beside


def test_a_gpu_measures_the_divergence_beside_similarity() -> None:
    assert set(measured_beside(torch.device("cuda"))) == {"cka_final", "cka_block", "kl"}
    assert set(measured_beside(torch.device("cpu"))) == {"cka_final", "cka_block"}


def test_a_processor_does_so_when_it_is_chosen_and_tells_how_well_they_agree(
    artefact: Callable[..., Path], request_for: Callable[..., CalibrationRequest]
) -> None:
    found = calibrate(request_for(artefact(), damage="kl"))
    assert ("cka_final", "kl") in found.damage.correlations()
