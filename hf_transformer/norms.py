"""Normalisation layers: `NORMS[config.norm_type](hidden_size, eps=config.norm_eps)`."""

from torch import nn

from .registry import Registry


# LayerNorm: Ba, Kiros & Hinton 2016, https://arxiv.org/abs/1607.06450. Every token is normalised over its own
# features, so neither the other tokens of a batch nor padding can change it.
NORMS = Registry("norm_type", {"layernorm": nn.LayerNorm})
