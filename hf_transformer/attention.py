"""Multi-head attention, self and cross (https://arxiv.org/abs/1706.03762, section 3.2).

`eager_attention_forward` is the textbook form, five steps in order. Other backends (sdpa, …) come from transformers'
`AttentionInterface` and compute the same numbers, but for one case: where a ready-made additive mask hides all keys of
a query by the lowest number of its type, sdpa mixes all values evenly and eager none.
"""

from typing import NamedTuple

import torch
from torch import nn
from transformers.cache_utils import Cache, EncoderDecoderCache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS


class AttentionContext(NamedTuple):
    """What every layer of a forward pass shares beside the hidden states. It is built once, before the first layer.

    A tuple, so that the hooks of accelerate and FSDP find and move the tensors in it.
    """

    attention_mask: torch.Tensor | None = (
        None  # (batch, 1, query, key) as the backend wants it; None: nothing is hidden
    )
    encoder_attention_mask: torch.Tensor | None = None  # the same for cross-attention
    cache: Cache | None = None


def eager_attention_forward(module, query, key, value, attention_mask, scaling, dropout=0.0, **kwargs):
    """softmax(query keyᵀ · scaling + mask) value, with the weights.

    Args:
        module: the attention layer; `num_key_value_groups` query heads share a key head.
        query: `(batch, heads, query_length, head_dim)`, already projected.
        key, value: `(batch, key_value_heads, key_length, head_dim)`.
        attention_mask: `(batch, 1 or heads, query_length, key_length)`, boolean (True: attend) or additive, or None.

    Returns:
        output `(batch, query_length, heads, head_dim)` and weights `(batch, heads, query_length, key_length)`. A query
        that may attend to nothing (a row of padding) gets zeros.
    """
    # 1. Project: done by the caller. Query heads of one group share a key and a value head.
    key = key.repeat_interleave(module.num_key_value_groups, dim=1)
    value = value.repeat_interleave(module.num_key_value_groups, dim=1)
    # 2. Score every query against every key.
    scores = query @ key.transpose(-2, -1)  # (batch, heads, query, key)
    # 3. Scale and mask, in float32: in float16 the lowest number minus anything is -inf, and a row of those is NaN.
    scores = scores.float() * scaling
    if attention_mask is not None:
        if attention_mask.dtype == torch.bool:
            hidden = ~attention_mask
        else:
            hidden = attention_mask <= torch.finfo(attention_mask.dtype).min
            scores = scores + attention_mask
        scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
    # 4. Softmax: the weights of one query sum to 1, or are all 0 where it may attend to nothing.
    weights = scores.softmax(dim=-1)
    if attention_mask is not None:
        weights = weights.masked_fill(hidden, 0.0)
    weights = nn.functional.dropout(weights.to(query.dtype), p=dropout, training=module.training)
    # 5. Mix the values.
    return (weights @ value).transpose(1, 2).contiguous(), weights


class TransformerAttention(nn.Module):
    """Self-attention, or cross-attention when the forward is given `encoder_hidden_states`."""

    def __init__(self, config, layer_idx: int, is_causal: bool):
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.is_causal = is_causal  # read by the backends when there is no mask
        self.head_dim = config.head_dim
        self.num_key_value_groups = config.num_attention_heads // config.num_key_value_heads
        self.scaling = config.head_dim**-0.5
        self.q_proj = nn.Linear(config.hidden_size, config.num_attention_heads * config.head_dim)
        self.k_proj = nn.Linear(config.hidden_size, config.num_key_value_heads * config.head_dim)
        self.v_proj = nn.Linear(config.hidden_size, config.num_key_value_heads * config.head_dim)
        self.o_proj = nn.Linear(config.num_attention_heads * config.head_dim, config.hidden_size)

    def forward(self, hidden_states, encoder_hidden_states=None, context=AttentionContext(), **kwargs):
        """`(batch, query_length, hidden_size)` -> the same shape, and the weights if the backend has them."""
        query = self._split_heads(self.q_proj(hidden_states))
        if encoder_hidden_states is None:
            attention_mask = context.attention_mask
            key, value = self._self_keys_and_values(hidden_states, context.cache, kwargs)
        else:
            attention_mask = context.encoder_attention_mask
            key, value = self._cross_keys_and_values(encoder_hidden_states, context.cache, kwargs)
        # a caller may ask a causal layer to look both ways, but no other layer to be causal
        is_causal = kwargs.pop("is_causal", True) and self.is_causal
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention_forward)
        output, weights = attend(
            self,
            query,
            key,
            value,
            attention_mask,
            scaling=self.scaling,
            dropout=self.config.attention_dropout if self.training else 0.0,
            is_causal=is_causal,
            **kwargs,
        )
        return self.o_proj(output.flatten(-2)), weights

    def _split_heads(self, projected):
        """`(batch, length, heads * head_dim)` -> `(batch, heads, length, head_dim)`"""
        return projected.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def _self_keys_and_values(self, hidden_states, cache, kwargs):
        key, value = self._split_heads(self.k_proj(hidden_states)), self._split_heads(self.v_proj(hidden_states))
        if cache is None:
            return key, value
        if isinstance(cache, EncoderDecoderCache):
            cache = cache.self_attention_cache
        return cache.update(key, value, self.layer_idx, kwargs=kwargs)

    def _cross_keys_and_values(self, encoder_hidden_states, cache, kwargs):
        """Those of the source stay the same for the whole generation: computed once, then read from the cache."""
        if cache is not None and cache.is_updated.get(self.layer_idx):
            layer = cache.cross_attention_cache.layers[self.layer_idx]
            return layer.keys, layer.values
        key = self._split_heads(self.k_proj(encoder_hidden_states))
        value = self._split_heads(self.v_proj(encoder_hidden_states))
        if cache is not None:
            key, value = cache.cross_attention_cache.update(key, value, self.layer_idx, kwargs=kwargs)
            cache.is_updated[self.layer_idx] = True
        return key, value
