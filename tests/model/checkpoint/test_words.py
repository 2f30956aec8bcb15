import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from spearhead.model.checkpoint.words import AWQ_ORDER, signed, unpack_words, word_count


@given(data=st.data(), bits=st.sampled_from([4, 8]), rows=st.integers(1, 3), count=st.integers(1, 33))
def test_every_code_comes_back_from_its_place(data: st.DataObject, bits: int, rows: int, count: int) -> None:
    code = st.integers(0, (1 << bits) - 1)
    codes = data.draw(st.lists(st.lists(code, min_size=count, max_size=count), min_size=rows, max_size=rows))
    places = 32 // bits
    words = [[0] * word_count(count, bits) for _ in range(rows)]
    for r in range(rows):
        for i in range(count):
            words[r][i // places] |= codes[r][i] << (i % places * bits)
    packed = torch.tensor(words, dtype=torch.int64).to(torch.int32)
    assert unpack_words(packed, bits=bits, count=count).tolist() == codes
    along_rows = packed.T.contiguous().T  # packed along the other axis, seen through a transpose
    assert unpack_words(along_rows, bits=bits, count=count).tolist() == codes


def test_the_order_says_which_code_a_place_holds() -> None:
    word = torch.tensor([[0x20, 0x64, 0x31, 0x75]], dtype=torch.uint8).view(torch.int32)
    assert unpack_words(word, bits=4, count=8, order=AWQ_ORDER).tolist() == [[0, 1, 2, 3, 4, 5, 6, 7]]
    assert unpack_words(word, bits=4, count=8).tolist() == [[0, 2, 4, 6, 1, 3, 5, 7]]


@pytest.mark.parametrize("bits", [4, 8])
def test_signed_codes_are_centred(bits: int) -> None:
    codes = torch.arange(1 << bits, dtype=torch.int16)
    assert signed(codes.to(torch.uint8), bits).tolist() == (codes - (1 << (bits - 1))).tolist()
