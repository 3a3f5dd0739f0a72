# Copyright 2026 The hf_transformer authors. Licensed under the Apache License, Version 2.0.
"""The decoder: every token attends to itself and to earlier ones."""

from transformers.masking_utils import create_causal_mask
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs
from transformers.utils.deprecation import deprecate_kwarg
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from .attention import AttentionContext, TransformerAttention
from .configuration_transformer import TransformerDecoderConfig
from .inputs import check_mask
from .layers import TransformerLayer
from .modeling_base import TransformerStack


class TransformerDecoderModel(TransformerStack):
    """The decoder without a head: hidden states of its input."""

    config: TransformerDecoderConfig
    causal = True
    _can_record_outputs = {
        "hidden_states": OutputRecorder(TransformerLayer, index=0),
        "attentions": OutputRecorder(TransformerAttention, index=1, layer_name="self_attn"),
    }

    @deprecate_kwarg("past_key_values", "5.40.0", new_name="cache")
    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        position_ids=None,
        cache=None,
        inputs_embeds=None,
        use_cache=None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPast:
        r"""
        Args:
            input_ids (`(batch, length)`): tokens; or `inputs_embeds`.
            attention_mask (`(batch, cached_length + length)`): 1 for real tokens, 0 for padding.
            position_ids (`(batch, length)`): positions, counted on from the cache by default.
            cache (`Cache`): keys and values of earlier steps.
            inputs_embeds (`(batch, length, hidden_size)`): rows of `get_input_embeddings()`, not yet scaled.
            use_cache: fill a cache and return it.

        Raises:
            ValueError: an argument of a wrong shape or type, or both or neither of ids and embeddings.
        """
        cache = self.usable_cache(cache, use_cache)
        past_length = 0 if cache is None else cache.get_seq_length()
        hidden_states = self.embed(input_ids, inputs_embeds, position_ids, past_length)
        # a preallocated cache is as long as it will ever be, and counts its tokens on the device
        key_length = None if cache is not None and cache.is_compileable else past_length + hidden_states.shape[1]
        check_mask("attention_mask", attention_mask, hidden_states, self.config.num_attention_heads, key_length)
        context = AttentionContext(
            attention_mask=create_causal_mask(self.config, hidden_states, attention_mask, cache, position_ids),
            cache=cache,
        )
        for layer in self.layers:
            hidden_states = layer(hidden_states, None, context=context, **kwargs)
        return BaseModelOutputWithPast(last_hidden_state=self.norm(hidden_states), cache=cache)
