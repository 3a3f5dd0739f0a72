"""The one Transformer layer: an encoder's, or with a causal mask and cross-attention a decoder's."""

from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer

from .attention import AttentionContext, TransformerAttention
from .feed_forward import FEED_FORWARDS
from .norms import NORMS
from .residual import PLACEMENTS


class TransformerLayer(GradientCheckpointingLayer):
    """Self-attention, cross-attention if asked for, and a feed-forward network, each in a residual connection.

    Args:
        config: the knobs.
        layer_idx: index of the layer in its stack, and in the cache.
        is_causal: a token attends only to itself and to earlier ones.
        has_cross_attention: attend to the encoder's output too.
    """

    def __init__(self, config, layer_idx: int, is_causal: bool, has_cross_attention: bool):
        super().__init__()
        norm = NORMS[config.norm_type]
        self.residual = PLACEMENTS[config.norm_position].connect
        self.self_attn = TransformerAttention(config, layer_idx, is_causal)
        self.self_attn_norm = norm(config.hidden_size, eps=config.norm_eps)
        self.has_cross_attention = has_cross_attention
        if has_cross_attention:
            self.cross_attn = TransformerAttention(config, layer_idx, is_causal=False)
            self.cross_attn_norm = norm(config.hidden_size, eps=config.norm_eps)
        self.mlp = FEED_FORWARDS[config.gated_mlp](config)
        self.mlp_norm = norm(config.hidden_size, eps=config.norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout)

    def forward(self, hidden_states, encoder_hidden_states=None, context=AttentionContext(), **kwargs):
        """Hidden states `(batch, length, hidden_size)` -> the same shape.

        Both hidden states must come as positional arguments: reentrant gradient checkpointing only sends gradients
        through those.
        """

        def self_attention(x):
            return self.dropout(self.self_attn(x, context=context, **kwargs)[0])

        def cross_attention(x):
            return self.dropout(self.cross_attn(x, encoder_hidden_states, context=context, **kwargs)[0])

        def feed_forward(x):
            return self.dropout(self.mlp(x))

        hidden_states = self.residual(hidden_states, self.self_attn_norm, self_attention)
        if self.has_cross_attention:
            hidden_states = self.residual(hidden_states, self.cross_attn_norm, cross_attention)
        return self.residual(hidden_states, self.mlp_norm, feed_forward)
