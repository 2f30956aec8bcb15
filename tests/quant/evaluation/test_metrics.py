import pytest
import torch
from scipy.special import log_softmax, rel_entr

from spearhead.quant.evaluation.metrics import Projection, best_tokens, token_metrics


def projection(seed: int, tokens: int = 37, vocabulary: int = 101) -> Projection:
    generator = torch.Generator().manual_seed(seed)
    return Projection(
        hidden=torch.randn(tokens, 16, generator=generator),
        head=torch.randn(vocabulary, 16, generator=generator),
    )


TARGETS = torch.randint(0, 101, (37,), generator=torch.Generator().manual_seed(9))


def test_metrics_are_the_closed_forms_in_double_precision() -> None:
    reference, variant = projection(1), projection(2)
    rows, (found,) = token_metrics(reference, [variant], TARGETS)
    p, q = (
        log_softmax((m.hidden.double() @ m.head.double().T).numpy(), axis=1) for m in (reference, variant)
    )
    mass_p, mass_q = (torch.from_numpy(x).exp().numpy() for x in (p, q))
    close = {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(found.kl, torch.from_numpy(rel_entr(mass_p, mass_q).sum(1)).float(), **close)
    torch.testing.assert_close(
        found.reverse_kl, torch.from_numpy(rel_entr(mass_q, mass_p).sum(1)).float(), **close
    )
    torch.testing.assert_close(
        found.total_variation, torch.from_numpy(abs(mass_p - mass_q).sum(1) / 2).float(), **close
    )
    picked = range(len(TARGETS)), TARGETS.numpy()
    torch.testing.assert_close(rows.nll, torch.from_numpy(-p[picked]).float(), **close)
    torch.testing.assert_close(found.nll, torch.from_numpy(-q[picked]).float(), **close)
    assert found.agrees.tolist() == (p.argmax(1) == q.argmax(1)).astype(float).tolist()
    ordered = torch.from_numpy(p).sort(1).values
    torch.testing.assert_close(rows.margin, (ordered[:, -1] - ordered[:, -2]).float(), **close)


def test_a_model_against_itself_loses_nothing() -> None:
    model = projection(3)
    _, (found,) = token_metrics(model, [model], TARGETS)
    assert found.kl.abs().max() < 1e-6 and found.reverse_kl.abs().max() < 1e-6
    assert found.agrees.min() == 1


@pytest.mark.parametrize("chunk_tokens", [1, 5, 36, 37, 1000])
def test_results_do_not_depend_on_the_chunks(chunk_tokens: int) -> None:
    reference, variant = projection(4), projection(5)
    whole = token_metrics(reference, [variant], TARGETS)
    parts = token_metrics(reference, [variant], TARGETS, chunk_bytes=4 * 101 * chunk_tokens)
    for name in ("nll", "kl", "reverse_kl", "total_variation", "agrees"):
        torch.testing.assert_close(
            getattr(parts[1][0], name), getattr(whole[1][0], name), rtol=1e-5, atol=1e-5
        )
    torch.testing.assert_close(parts[0].margin, whole[0].margin, rtol=1e-5, atol=1e-5)


def test_hidden_states_of_another_type_are_measured_in_float32() -> None:
    reference = projection(6)
    narrow = Projection(hidden=reference.hidden.bfloat16(), head=reference.head)
    wide = Projection(hidden=narrow.hidden.float(), head=reference.head)
    _, (a, b) = token_metrics(reference, [narrow, wide], TARGETS)
    assert torch.equal(a.kl, b.kl) and a.kl.dtype == torch.float32


def test_ties_go_to_the_lowest_id() -> None:
    assert best_tokens(torch.tensor([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0], [0.0, 1.0, 5.0]])).tolist() == [
        1,
        0,
        2,
    ]
