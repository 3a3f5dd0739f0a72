# Copyright 2026 The hf_transformer authors. Licensed under the Apache License, Version 2.0.
"""The encoder: every token attends to every other."""

from transformers.masking_utils import create_bidirectional_mask
from transformers.modeling_outputs import BaseModelOutput
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from .attention import AttentionContext, TransformerAttention
from .configuration_transformer import TransformerEncoderConfig
from .inputs import check_mask
from .layers import TransformerLayer
from .modeling_base import TransformerStack


class TransformerEncoderModel(TransformerStack):
    """The encoder without a head: hidden states of its input."""

    config: TransformerEncoderConfig
    _can_record_outputs = {
        "hidden_states": OutputRecorder(TransformerLayer, index=0),
        "attentions": OutputRecorder(TransformerAttention, index=1, layer_name="self_attn"),
    }

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        position_ids=None,
        inputs_embeds=None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutput:
        r"""
        Args:
            input_ids (`(batch, length)`): tokens; or `inputs_embeds`.
            attention_mask (`(batch, length)`): 1 for real tokens, 0 for padding; or `(batch, 1, length, length)`.
            position_ids (`(batch, length)`): positions, counted from column 0 by default.
            inputs_embeds (`(batch, length, hidden_size)`): rows of `get_input_embeddings()`, not yet scaled.

        Raises:
            ValueError: an argument of a wrong shape or type, or both or neither of ids and embeddings.
        """
        hidden_states = self.embed(input_ids, inputs_embeds, position_ids)
        check_mask(
            "attention_mask", attention_mask, hidden_states, self.config.num_attention_heads, hidden_states.shape[1]
        )
        context = AttentionContext(
            attention_mask=create_bidirectional_mask(self.config, hidden_states, attention_mask)
        )
        for layer in self.layers:
            hidden_states = layer(hidden_states, None, context=context, **kwargs)
        return BaseModelOutput(last_hidden_state=self.norm(hidden_states))
