import pytest
import torch

from spearhead.quant.kl_loss import kl_of_hidden, token_kl


@pytest.mark.parametrize("chunk_tokens", [3, 7, 100])
def test_loss_and_gradient_are_those_of_autograd(chunk_tokens: int) -> None:
    generator = torch.Generator().manual_seed(0)
    teacher, student = (torch.randn(17, 8, generator=generator, dtype=torch.float64) for _ in range(2))
    teacher_head, student_head = (
        torch.randn(50, 8, generator=generator, dtype=torch.float64) for _ in range(2)
    )
    weight = (torch.rand(17, generator=generator) > 0.3).double()
    student.requires_grad_()
    log_p = torch.log_softmax(teacher @ teacher_head.T, -1)
    log_q = torch.log_softmax(student @ student_head.T, -1)
    rows = (log_p.exp() * (log_p - log_q)).sum(-1)
    expected = (rows * weight).sum() / weight.sum()
    (gradient,) = torch.autograd.grad(3 * expected, student)

    found = kl_of_hidden(teacher, student, teacher_head, student_head, weight, chunk_tokens=chunk_tokens)
    (found_gradient,) = torch.autograd.grad(3 * found, student)
    # The chunks are float32 inside.
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found_gradient, gradient, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(
        token_kl(teacher, student, teacher_head, student_head, chunk_tokens=chunk_tokens).double(),
        rows,
        rtol=1e-5,
        atol=1e-6,
    )


def test_a_model_has_no_divergence_from_itself() -> None:
    hidden, head = torch.randn(9, 8), torch.randn(50, 8)
    assert float(token_kl(hidden, hidden, head, head).abs().max()) < 1e-6
