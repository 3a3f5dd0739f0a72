"""Where the norm stands in a residual connection: `PLACEMENTS[config.norm_position]`.

A placement connects `(hidden_states, norm, sublayer) -> hidden_states`, all `(batch, length, hidden_size)`.
"""

from collections.abc import Callable
from typing import NamedTuple

from .registry import Registry


class Placement(NamedTuple):
    """How a sublayer is connected, and whether a norm must follow the last layer."""

    connect: Callable
    final_norm: bool


def post_norm(hidden_states, norm, sublayer):
    """Norm(x + Sublayer(x)): the 2017 paper (https://arxiv.org/abs/1706.03762, section 3.1), BERT, BART, Marian."""
    return norm(hidden_states + sublayer(hidden_states))


def pre_norm(hidden_states, norm, sublayer):
    """x + Sublayer(Norm(x)): GPT-2, LLaMA, T5. The residual stream itself is never normalised, so gradients reach
    every layer through an identity (Xiong et al. 2020, https://arxiv.org/abs/2002.04745); a final norm must follow."""
    return hidden_states + sublayer(norm(hidden_states))


PLACEMENTS = Registry(
    "norm_position",
    {"post": Placement(post_norm, final_norm=False), "pre": Placement(pre_norm, final_norm=True)},
)
