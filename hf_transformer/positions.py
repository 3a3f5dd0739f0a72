"""Position encodings: `POSITIONS[config.position_embedding_type](config)`.

An encoding that is added to the token embeddings is a module `position_ids -> (…, hidden_size)`, in float32.
"""

import torch
from torch import nn

from .registry import Registry


def interleave(sine, cosine):
    """PE(p, 2i) = sin, PE(p, 2i+1) = cos: the 2017 paper, section 3.5."""
    return torch.stack((sine, cosine), dim=-1).flatten(-2)


def halves(sine, cosine):
    """All sines, then all cosines: Marian and tensor2tensor. The same numbers as the paper's in another order."""
    return torch.cat((sine, cosine), dim=-1)


SINUSOIDAL_LAYOUTS = Registry("sinusoidal_layout", {"interleaved": interleave, "halves": halves})


class SinusoidalPositions(nn.Module):
    """Sinusoids with wavelengths from 2π to 10000·2π tokens (https://arxiv.org/abs/1706.03762, section 3.5).

    A formula, not a table: there is no buffer to save, to restore after loading, to round in half precision or to run
    out of. Integers `(…)` -> `(…, hidden_size)` in float32, because bfloat16 cannot tell position 256 from 257.
    """

    def __init__(self, config):
        super().__init__()
        self.hidden_size = config.hidden_size
        self.layout = SINUSOIDAL_LAYOUTS[config.sinusoidal_layout]

    def forward(self, position_ids):
        exponents = torch.arange(0, self.hidden_size, 2, device=position_ids.device, dtype=torch.float32)
        angles = position_ids[..., None].float() * 10000.0 ** (-exponents / self.hidden_size)
        # an odd width has one more sine than cosine column
        return self.layout(angles.sin(), angles.cos())[..., : self.hidden_size]


POSITIONS = Registry("position_embedding_type", {"sinusoidal": SinusoidalPositions})
