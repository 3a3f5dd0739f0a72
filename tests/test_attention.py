"""The textbook form of attention against torch's own function, where masks and half precision go wrong."""

import types

import pytest
import torch
from helpers import assert_close
from torch.nn.functional import scaled_dot_product_attention

from hf_transformer.attention import eager_attention_forward


LAYER = types.SimpleNamespace(num_key_value_groups=2, training=False)


def tensors(dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(2, 4, 5, 8, generator=generator)
    key, value = (torch.randn(2, 2, 6, 8, generator=generator) for _ in range(2))
    return query.to(dtype), key.to(dtype), value.to(dtype)


def attend(mask, dtype=torch.float32, scaling=0.5):
    return eager_attention_forward(LAYER, *tensors(dtype), mask, scaling)


def test_an_additive_mask_may_hold_any_number():
    """A bias such as ALiBi's is part of the scores, not only what is hidden."""
    mask = torch.randn(2, 1, 5, 6, generator=torch.Generator().manual_seed(1))
    mask[:, :, :, 4] = torch.finfo(mask.dtype).min
    output, weights = attend(mask)
    expected = scaled_dot_product_attention(*tensors(), attn_mask=mask, scale=0.5, enable_gqa=True)
    assert_close(output.transpose(1, 2), expected)
    assert (weights[..., 4] == 0).all()


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16))
def test_a_mask_in_half_precision_leaves_no_row_without_a_number(dtype):
    """The lowest float16 plus a score below -16 is -inf, and a row of those would be NaN."""
    mask = torch.zeros(2, 1, 5, 6, dtype=dtype)
    mask[1, :, 2] = torch.finfo(dtype).min
    output, weights = attend(mask, dtype, scaling=50.0)
    assert output.dtype == dtype and torch.isfinite(output).all()
    assert (weights[1, :, 2] == 0).all(), "a query that may attend to nothing gets nothing"
    reference, _ = attend(mask.float().masked_fill(mask < 0, torch.finfo(torch.float32).min), scaling=50.0)
    assert_close(output.float()[0], reference[0], tolerance=0.05)


def test_the_weights_of_a_query_sum_to_one():
    _, weights = attend(torch.ones(2, 1, 5, 6, dtype=torch.bool))
    assert_close(weights.sum(-1), torch.ones(2, 4, 5))
