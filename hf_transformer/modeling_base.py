# Copyright 2026 The hf_transformer authors. Licensed under the Apache License, Version 2.0.
"""What every model has: the start of its weights, and the stack of embeddings and layers."""

import torch
from torch import nn
from transformers import Cache, DynamicCache, PreTrainedModel

from .configuration_transformer import TransformerConfig
from .initializers import INITIALIZERS
from .inputs import check_position_ids, check_tokens, embed_ids
from .layers import TransformerLayer
from .norms import NORMS
from .positions import POSITIONS
from .residual import PLACEMENTS


class TransformerPreTrainedModel(PreTrainedModel):
    """Loading, saving and the start of training."""

    config: TransformerConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["TransformerLayer"]
    _supports_sdpa = True
    _can_compile_fullgraph = True

    def __init__(self, config: TransformerConfig):
        config.validate_architecture()  # it may have been changed since it was made
        super().__init__(config)

    @torch.no_grad()
    def _init_weights(self, module):
        super()._init_weights(module)
        if isinstance(module, nn.Linear | nn.Embedding):
            INITIALIZERS[self.config.initializer](module, self.config)
        # an index makes a new tensor without the mark of a loaded weight, so it has to be asked for here
        if isinstance(module, nn.Embedding) and module.padding_idx is not None:
            if not getattr(module.weight, "_is_hf_initialized", False):
                nn.init.zeros_(module.weight[module.padding_idx])


class TransformerStack(TransformerPreTrainedModel):
    """Token and position embeddings, layers and, for pre-norm, a final norm. Subclasses add the forward."""

    depth_field = "num_hidden_layers"  # the knob that holds the number of layers
    causal = False  # whether a token attends only to itself and to earlier ones
    cross_attention = False  # whether the layers attend to an encoder's output
    prefix = ""  # what the user's names of this stack's arguments start with, for error messages

    def __init__(self, config: TransformerConfig):
        super().__init__(config)
        self.embedding_scale = config.hidden_size**0.5 if config.embedding_scale is None else config.embedding_scale
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=config.pad_token_id)
        self.embed_positions = POSITIONS[config.position_embedding_type](config)
        self.dropout = nn.Dropout(config.hidden_dropout)
        self.layers = nn.ModuleList(
            TransformerLayer(config, layer_idx, self.causal, self.cross_attention)
            for layer_idx in range(getattr(config, self.depth_field))
        )
        self.norm = nn.Identity()
        if PLACEMENTS[config.norm_position].final_norm:
            self.norm = NORMS[config.norm_type](config.hidden_size, eps=config.norm_eps)
        self.gradient_checkpointing = False
        self.post_init()

    def embed(self, input_ids, inputs_embeds, position_ids, past_length=0):
        """Embeddings with positions, `(batch, length, hidden_size)`: from ids, or from the output of
        `get_input_embeddings()`. Without `position_ids`, positions count on from `past_length`."""
        batch, length = check_tokens(self.prefix, input_ids, inputs_embeds, self.config.hidden_size)
        if inputs_embeds is None:
            inputs_embeds = embed_ids(f"{self.prefix}input_ids", self.embed_tokens, input_ids)
        if position_ids is None:
            position_ids = (torch.arange(length, device=inputs_embeds.device) + past_length)[None]
        else:
            check_position_ids(f"{self.prefix}position_ids", position_ids, batch, length)
        positions = self.embed_positions(position_ids).to(inputs_embeds.dtype)
        return self.dropout(inputs_embeds * self.embedding_scale + positions)

    def usable_cache(self, cache, use_cache):
        """The cache to read and fill: the caller's, a new one if `use_cache`, or None."""
        if cache is not None and not isinstance(cache, Cache):
            raise ValueError(f"`cache` is a {type(cache).__name__}, but must be a Cache of transformers.")
        if self.gradient_checkpointing and self.training and torch.is_grad_enabled():
            # the backward pass runs every layer again, and each run would write to the cache
            if cache is not None and cache.get_seq_length() > 0:
                raise ValueError("`cache` already holds tokens, but gradient checkpointing can read none of them.")
            return None
        if cache is None and use_cache:
            return DynamicCache(config=self.config)
        return cache
