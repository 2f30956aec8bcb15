"""One update of the optimiser: run as it comes, or captured once and replayed as a CUDA graph."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from kernels.graph_capture import nothing_collected
from spearhead.quant.lesson import Lesson

_WARM_UPS = 3


class Stepper:
    """Takes updates; owns the optimiser's averages.

    With a capturable optimiser, forward pass, backward pass and update become one launch.

    Args:
        loss_of: Loss of a batch; must not synchronise when it is captured. All batches have one shape.
        optimizer: Each group holds its peak learning rate under ``peak``.
        clip_norm: Largest norm of the gradients of all its parameters together.
    """

    def __init__(
        self, loss_of: Callable[[Lesson], Tensor], optimizer: torch.optim.AdamW, clip_norm: float
    ) -> None:
        self._loss_of = loss_of
        self._optimizer = optimizer
        self._clip_norm = clip_norm
        self._parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self._captures = bool(optimizer.param_groups[0]["capturable"])
        self._captured: tuple[torch.cuda.CUDAGraph, Lesson, Tensor] | None = None
        self._loaded: Sequence[Tensor] = ()

    def __call__(self, batch: Lesson, rate_share: float) -> Tensor:
        """One update.

        Args:
            batch: On the device of the parameters.
            rate_share: Of the peak learning rates.

        Returns:
            The loss before the update, on the device.
        """
        if not self._captures:
            self._set_rates(rate_share)
            return self._update(batch)
        if self._captured is None:
            self._captured = self._capture(batch)
        graph, held, loss = self._captured
        held.token_ids.copy_(batch.token_ids)
        held.weight.copy_(batch.weight)
        held.teacher.copy_(batch.teacher)
        self._set_rates(rate_share)
        graph.replay()
        return loss.clone()

    def state(self) -> tuple[Tensor, ...]:
        """Copies of the optimiser's averages, parameter by parameter; empty before the first update."""
        return tuple(
            torch.as_tensor(value).detach().clone()
            for parameter in self._parameters
            for _, value in sorted(self._optimizer.state[parameter].items())
        )

    def load(self, averages: Sequence[Tensor]) -> None:
        """Goes on from averages of :meth:`state`."""
        self._loaded = averages
        if not averages:
            return
        if not self._captures:
            self._create_averages()
            self._put(averages)

    def _create_averages(self) -> None:
        """An update without gradients creates the averages; what decay it does is undone."""
        for parameter in self._parameters:
            parameter.grad = torch.zeros_like(parameter)
        before = [parameter.detach().clone() for parameter in self._parameters]
        self._optimizer.step()
        with torch.no_grad():
            for parameter, value in zip(self._parameters, before, strict=True):
                parameter.copy_(value)

    def _put(self, averages: Sequence[Tensor]) -> None:
        places = [
            value
            for parameter in self._parameters
            for _, value in sorted(self._optimizer.state[parameter].items())
        ]
        with torch.no_grad():
            for place, value in zip(places, averages or [torch.zeros(())] * len(places), strict=True):
                place.copy_(value)

    def _set_rates(self, share: float) -> None:
        for group in self._optimizer.param_groups:
            if self._captures:
                group["lr"].fill_(share * group["peak"])
            else:
                group["lr"] = share * group["peak"]

    def _capture(self, example: Lesson) -> tuple[torch.cuda.CUDAGraph, Lesson, Tensor]:
        batch = Lesson(
            token_ids=example.token_ids.clone(),
            weight=example.weight.clone(),
            teacher=example.teacher.clone(),
        )
        before = [parameter.detach().clone() for parameter in self._parameters]
        # Streams and captures belong to the current device, which need not be the one that trains.
        with torch.cuda.device(batch.token_ids.device):
            stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(_WARM_UPS):
                    self._update(batch)
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with nothing_collected(), torch.cuda.graph(graph):
                loss = self._update(batch)
        # The warm-ups were no training.
        with torch.no_grad():
            for parameter, value in zip(self._parameters, before, strict=True):
                parameter.copy_(value)
        self._put(self._loaded)
        return graph, batch, loss

    def _update(self, batch: Lesson) -> Tensor:
        loss = self._loss_of(batch)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        clip_grad_norm_(self._parameters, self._clip_norm)
        self._optimizer.step()
        return loss.detach()
