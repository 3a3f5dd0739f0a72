"""The start of training: `INITIALIZERS[config.initializer](module, config)` fills one linear layer or embedding.

The start is part of the architecture: it decides at which learning rates a post-norm model trains at all. Only
functions of `transformers.initialization` are used, because they leave alone what a checkpoint has already filled.
"""

from torch import nn
from transformers import initialization as init

from .registry import Registry


def xavier(module, config):
    """Xavier-uniform projections (Glorot & Bengio 2010) and N(0, 1/hidden_size) embeddings, as in tensor2tensor, the
    2017 paper's own code: times `embedding_scale`, a token then has the same size as a position."""
    if isinstance(module, nn.Linear):
        init.xavier_uniform_(module.weight)
    else:
        init.normal_(module.weight, mean=0.0, std=config.hidden_size**-0.5)


def normal(module, config):
    """N(0, initializer_range²) everywhere: BERT, GPT-2, LLaMA."""
    init.normal_(module.weight, mean=0.0, std=config.initializer_range)


INITIALIZERS = Registry("initializer", {"xavier": xavier, "normal": normal})
