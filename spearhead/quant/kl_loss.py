"""KL(full precision ‖ student) from final hidden states; logits exist for one chunk of tokens at a time."""

from typing import Any

import torch
from torch import Tensor

from spearhead.quant.head_logits import head_logits


def kl_of_hidden(
    teacher: Tensor,
    student: Tensor,
    teacher_head: Tensor,
    student_head: Tensor,
    weight: Tensor,
    *,
    chunk_tokens: int = 2048,
) -> Tensor:
    """Mean KL divergence over weighted tokens, differentiable in ``student``.

    The gradient of each chunk, (softmax(student) - softmax(teacher)) times the head, is taken while its
    logits exist; the backward pass only scales it. Softmaxes are float32.

    Args:
        teacher: ``(T, D)``, after the final norm.
        student: ``(T, D)``, after the final norm.
        teacher_head: ``(V, D)``.
        student_head: ``(V, D)``; no gradient is taken.
        weight: ``(T,)``; 0 leaves a token out. At least one is positive.
        chunk_tokens: Rows whose logits exist at once: ``chunk_tokens`` x V float32, six times.

    Returns:
        Scalar float32, nats a token.
    """
    return _HiddenKl.apply(teacher, student, teacher_head, student_head, weight, chunk_tokens)  # type: ignore[no-untyped-call, no-any-return]


def token_kl(
    teacher: Tensor, student: Tensor, teacher_head: Tensor, student_head: Tensor, *, chunk_tokens: int = 2048
) -> Tensor:
    """KL divergence of each token, float32 ``(T,)``, without gradients."""
    with torch.no_grad():
        parts = [
            _kl_rows(head_logits(t, teacher_head), head_logits(s, student_head))[0]
            for t, s in zip(
                torch.split(teacher, chunk_tokens), torch.split(student, chunk_tokens), strict=True
            )
        ]
        return torch.cat(parts)


class _HiddenKl(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any,
        teacher: Tensor,
        student: Tensor,
        teacher_head: Tensor,
        student_head: Tensor,
        weight: Tensor,
        chunk_tokens: int,
    ) -> Tensor:
        shares = weight.float() / weight.sum()
        loss = torch.zeros((), dtype=torch.float32, device=student.device)
        gradient = torch.empty_like(student)
        for start in range(0, len(student), chunk_tokens):
            rows = slice(start, start + chunk_tokens)
            kl, difference = _kl_rows(
                head_logits(teacher[rows], teacher_head), head_logits(student[rows], student_head)
            )
            loss += (kl * shares[rows]).sum()
            gradient[rows] = (difference * shares[rows, None]).to(student.dtype) @ student_head
        context.save_for_backward(gradient)
        return loss

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = context.saved_tensors
        return None, gradient * gradients[0], None, None, None, None


def _kl_rows(teacher_logits: Tensor, student_logits: Tensor) -> tuple[Tensor, Tensor]:
    """KL of each row, and the difference of the two distributions."""
    log_p = torch.log_softmax(teacher_logits, dim=-1)
    log_q = torch.log_softmax(student_logits, dim=-1)
    p = log_p.exp()
    kl = log_p.sub_(log_q).mul_(p).sum(-1)
    return kl, log_q.exp_().sub_(p)
