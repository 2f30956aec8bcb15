"""One update of the optimiser, run eagerly or replayed as a CUDA graph."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from spearhead.quant.lesson import Lesson

if TYPE_CHECKING:
    from spearhead.quant.training import ParameterGroup

Update = Callable[[Lesson, float], Tensor]
"""Takes a batch and a share of the peak learning rates; returns the loss, on the device."""

Loss = Callable[[Lesson], Tensor]
_WARM_UPS = 3


def eager_step(
    loss_of: Loss, groups: "Sequence[ParameterGroup]", clip_norm: float, example: Lesson
) -> Update:
    """Runs each update as it comes.

    Args:
        loss_of: Loss of a batch.
        groups: What is trained.
        clip_norm: Largest norm of all gradients together.
        example: A batch; unused here.
    """
    optimizer = _optimizer(groups, capturable=False)

    def update(batch: Lesson, rate_share: float) -> Tensor:
        for settings, group in zip(optimizer.param_groups, groups, strict=True):
            settings["lr"] = rate_share * group.learning_rate
        return _one_update(optimizer, loss_of, batch, clip_norm)

    return update


def graphed_step(
    loss_of: Loss, groups: "Sequence[ParameterGroup]", clip_norm: float, example: Lesson
) -> Update:
    """Captures forward, backward and optimiser once; an update is then one launch.

    Args:
        loss_of: Loss of a batch; must not synchronise.
        groups: What is trained, on a CUDA device.
        clip_norm: Largest norm of all gradients together.
        example: A batch on the device; all batches have its shapes.
    """
    optimizer = _optimizer(groups, capturable=True)
    batch = Lesson(
        token_ids=example.token_ids.clone(), weight=example.weight.clone(), teacher=example.teacher.clone()
    )
    parameters = [parameter for group in groups for parameter in group.parameters]
    before = [parameter.detach().clone() for parameter in parameters]
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(_WARM_UPS):
            _one_update(optimizer, loss_of, batch, clip_norm)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = _one_update(optimizer, loss_of, batch, clip_norm)
    # The warm-ups were no training: parameters and the optimiser's averages start anew.
    with torch.no_grad():
        for parameter, value in zip(parameters, before, strict=True):
            parameter.copy_(value)
            for average in optimizer.state[parameter].values():
                average.zero_()

    def update(new: Lesson, rate_share: float) -> Tensor:
        batch.token_ids.copy_(new.token_ids)
        batch.weight.copy_(new.weight)
        batch.teacher.copy_(new.teacher)
        for settings, group in zip(optimizer.param_groups, groups, strict=True):
            settings["lr"].fill_(rate_share * group.learning_rate)
        graph.replay()
        return loss.clone()

    return update


def _optimizer(groups: "Sequence[ParameterGroup]", *, capturable: bool) -> torch.optim.AdamW:
    settings = [
        {
            "params": list(group.parameters),
            "weight_decay": group.weight_decay,
            "lr": torch.tensor(group.learning_rate, device=group.parameters[0].device)
            if capturable
            else group.learning_rate,
        }
        for group in groups
    ]
    return torch.optim.AdamW(settings, betas=(0.9, 0.95), capturable=capturable, fused=capturable or None)


def _one_update(optimizer: torch.optim.AdamW, loss_of: Loss, batch: Lesson, clip_norm: float) -> Tensor:
    loss = loss_of(batch)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    clip_grad_norm_(parameters, clip_norm)
    optimizer.step()
    return loss.detach()
