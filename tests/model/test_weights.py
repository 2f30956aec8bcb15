import torch

from spearhead.model.weights import Gate, LayerWeights, LinearWeights, ModelWeights, PlacedCompensator


def linear(rows: int, columns: int) -> LinearWeights:
    return LinearWeights(weight=torch.zeros(rows, columns))


def model(*, tied: bool, compensator: PlacedCompensator | None = None) -> ModelWeights:
    embedding = torch.zeros(10, 4)
    layer = LayerWeights(
        input_norm=torch.ones(4),
        post_attention_norm=torch.ones(4),
        qkv=LinearWeights(
            weight=torch.zeros(8, 4),
            bias=torch.zeros(8),
            compensators=() if compensator is None else (compensator,),
        ),
        output=linear(4, 4),
        gate_up=linear(12, 4),
        down=linear(4, 6),
        q_norm=torch.ones(2),
        k_norm=torch.ones(2),
    )
    return ModelWeights(
        variant="fp16",
        embedding=embedding,
        layers=(layer,),
        final_norm=torch.ones(4),
        head=LinearWeights(weight=embedding if tied else torch.zeros(10, 4)),
        stored_bytes=0,
    )


LAYER_BYTES = 4 * (4 + 4 + 32 + 8 + 16 + 48 + 24 + 2 + 2)


def test_a_tied_head_counts_once_in_resident_bytes() -> None:
    assert model(tied=True).resident_bytes == LAYER_BYTES + 4 * (40 + 4)
    assert model(tied=False).resident_bytes == LAYER_BYTES + 4 * (80 + 4)


def test_compensators_and_their_gates_count_as_resident() -> None:
    gate = Gate(w1=torch.zeros(4, 2), b1=torch.zeros(4), w2=torch.zeros(2, 4), b2=torch.zeros(2))
    compensator = PlacedCompensator(
        row_offset=4, row_count=2, a=torch.zeros(2, 4), b=torch.zeros(2, 2), gate=gate
    )
    extra = model(tied=True, compensator=compensator).resident_bytes - model(tied=True).resident_bytes
    assert extra == 4 * (8 + 4 + 8 + 4 + 8 + 2)
