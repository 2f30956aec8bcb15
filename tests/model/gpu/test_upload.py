"""Arrays arrive as they were."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from spearhead.model.gpu.upload import upload

ARRAYS = st.one_of(
    *(
        arrays.arrays(kind, arrays.array_shapes(min_dims=1, max_dims=2, min_side=0, max_side=5))
        for kind in (np.int32, np.int64, np.float32, np.float64)
    )
)


@given(st.lists(ARRAYS, min_size=1, max_size=6))
def test_types_shapes_and_bits_are_kept(given_arrays):
    sent = upload(given_arrays, torch.device("cpu"))
    for array, tensor in zip(given_arrays, sent, strict=True):
        assert tensor.is_contiguous()
        assert tuple(tensor.shape) == array.shape
        assert tensor.numpy().dtype == array.dtype
        assert tensor.numpy().tobytes() == np.ascontiguousarray(array).tobytes()


def test_each_tensor_starts_where_kernels_may_read_four_numbers():
    sent = upload([np.zeros(1, np.int32), np.zeros(3, np.float64)], torch.device("cpu"))
    assert sent[1].storage_offset() * 8 % 16 == 0


def test_a_type_that_no_kernel_reads_is_refused():
    with pytest.raises(KeyError):
        upload([np.zeros(1, np.int16)], torch.device("cpu"))
