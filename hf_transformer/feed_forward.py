"""The feed-forward network, the same at every position: `FEED_FORWARDS[config.gated_mlp](config)`."""

from torch import nn
from transformers.activations import ACT2FN

from .registry import Registry


class TransformerMLP(nn.Module):
    """down(dropout(act(up(x)))): the 2017 paper, section 3.3 (https://arxiv.org/abs/1706.03762)."""

    def __init__(self, config):
        super().__init__()
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size)
        self.act_fn = ACT2FN[config.hidden_act]
        self.dropout = nn.Dropout(config.activation_dropout)

    def forward(self, hidden_states):
        return self.down_proj(self.dropout(self.act_fn(self.up_proj(hidden_states))))


class TransformerGatedMLP(TransformerMLP):
    """down(dropout(act(gate(x)) * up(x))): gated linear units (Shazeer 2020, https://arxiv.org/abs/2002.05202)."""

    def __init__(self, config):
        super().__init__(config)
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size)

    def forward(self, hidden_states):
        gated = self.act_fn(self.gate_proj(hidden_states)) * self.up_proj(hidden_states)
        return self.down_proj(self.dropout(gated))


FEED_FORWARDS = Registry("gated_mlp", {False: TransformerMLP, True: TransformerGatedMLP})
