# Copyright 2026 The hf_transformer authors. Licensed under the Apache License, Version 2.0.
"""The encoder-decoder of "Attention Is All You Need" (Vaswani et al. 2017, https://arxiv.org/abs/1706.03762)."""

import torch
from torch import nn
from transformers import DynamicCache, EncoderDecoderCache, GenerationMixin
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPastAndCrossAttentions,
    Seq2SeqLMOutput,
    Seq2SeqModelOutput,
)
from transformers.processing_utils import Unpack
from transformers.utils import ModelOutput, TransformersKwargs, can_return_tuple
from transformers.utils.deprecation import deprecate_kwarg
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from .attention import AttentionContext, TransformerAttention
from .configuration_transformer import TransformerEncoderDecoderConfig
from .inputs import check_labels, check_mask
from .layers import TransformerLayer
from .losses import cross_entropy_loss
from .modeling_base import TransformerPreTrainedModel, TransformerStack
from .modeling_encoder import TransformerEncoderModel


class TransformerEncoder(TransformerEncoderModel):
    """Every source token attends to every other."""

    config: TransformerEncoderDecoderConfig
    depth_field = "encoder_layers"
    _can_record_outputs = {
        "hidden_states": OutputRecorder(TransformerLayer, index=0, num_hidden_layers_key="encoder_layers"),
        "attentions": OutputRecorder(TransformerAttention, index=1, layer_name="self_attn"),
    }


class TransformerDecoder(TransformerStack):
    """Every target token attends to itself, to earlier ones and to the encoder's output."""

    config: TransformerEncoderDecoderConfig
    depth_field = "decoder_layers"
    causal = True
    cross_attention = True
    prefix = "decoder_"
    _can_record_outputs = {
        "hidden_states": OutputRecorder(TransformerLayer, index=0, num_hidden_layers_key="decoder_layers"),
        "attentions": OutputRecorder(TransformerAttention, index=1, layer_name="self_attn"),
        "cross_attentions": OutputRecorder(TransformerAttention, index=1, layer_name="cross_attn"),
    }

    @deprecate_kwarg("past_key_values", "5.40.0", new_name="cache")
    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        encoder_hidden_states=None,
        encoder_attention_mask=None,
        position_ids=None,
        cache=None,
        inputs_embeds=None,
        use_cache=None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        cache = self.usable_cache(cache, use_cache)
        past_length = 0 if cache is None else cache.get_seq_length()
        hidden_states = self.embed(input_ids, inputs_embeds, position_ids, past_length)
        batch, length, hidden_size = hidden_states.shape
        if encoder_hidden_states is None or encoder_hidden_states.shape[::2] != (batch, hidden_size):
            came = None if encoder_hidden_states is None else tuple(encoder_hidden_states.shape)
            raise ValueError(
                f"The encoder's output (`encoder_hidden_states`) has shape {came}, but must be "
                f"({batch}, source_length, {hidden_size}), with as many rows as the decoder's input."
            )
        # a preallocated cache is as long as it will ever be, and counts its tokens on the device
        key_length = None if cache is not None and cache.is_compileable else past_length + length
        check_mask(
            "decoder_attention_mask", attention_mask, hidden_states, self.config.num_attention_heads, key_length
        )
        check_mask(
            "attention_mask",
            encoder_attention_mask,
            hidden_states,
            self.config.num_attention_heads,
            encoder_hidden_states.shape[1],
        )

        context = AttentionContext(
            attention_mask=create_causal_mask(
                self.config, hidden_states, attention_mask, cache and cache.self_attention_cache
            ),
            encoder_attention_mask=create_bidirectional_mask(
                self.config, hidden_states, encoder_attention_mask, encoder_hidden_states
            ),
            cache=cache,
        )
        for layer in self.layers:
            hidden_states = layer(hidden_states, encoder_hidden_states, context=context, **kwargs)
        return BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=self.norm(hidden_states), cache=cache)

    def usable_cache(self, cache, use_cache):
        cache = super().usable_cache(cache, use_cache)
        if cache is None or isinstance(cache, EncoderDecoderCache):
            return cache
        return EncoderDecoderCache(cache, DynamicCache(config=self.config))


class TransformerEncoderDecoderPreTrainedModel(TransformerPreTrainedModel):
    """What the models of an encoder and a decoder share: one table of token embeddings, or two of the same size."""

    config: TransformerEncoderDecoderConfig

    def get_input_embeddings(self):
        return self.get_encoder().embed_tokens

    def set_input_embeddings(self, value):
        self.get_encoder().embed_tokens = value
        if self.config.tie_word_embeddings:
            self.get_decoder().embed_tokens.weight = value.weight

    def _resize_token_embeddings(self, new_num_tokens, pad_to_multiple_of=None, mean_resizing=True):
        for name in self.config.token_fields if new_num_tokens is not None else ():
            if (getattr(self.config, name) or 0) >= new_num_tokens:
                raise ValueError(
                    f"`new_num_tokens` is {new_num_tokens}, but `{name}` is {getattr(self.config, name)}."
                )
        embeddings = super()._resize_token_embeddings(new_num_tokens, pad_to_multiple_of, mean_resizing)
        decoder = self.get_decoder()
        if self.config.tie_word_embeddings:
            decoder.embed_tokens.num_embeddings = embeddings.num_embeddings
        else:
            decoder.embed_tokens = self._get_resized_embeddings(
                decoder.embed_tokens, embeddings.num_embeddings, mean_resizing=mean_resizing
            )
        return embeddings


class TransformerEncoderDecoderModel(TransformerEncoderDecoderPreTrainedModel):
    """Encoder and decoder without a head: hidden states of the target."""

    _tied_weights_keys = {"decoder.embed_tokens.weight": "encoder.embed_tokens.weight"}

    def __init__(self, config: TransformerEncoderDecoderConfig):
        super().__init__(config)
        self.encoder = TransformerEncoder(config)
        self.decoder = TransformerDecoder(config)
        self.post_init()

    @deprecate_kwarg("past_key_values", "5.40.0", new_name="cache")
    @can_return_tuple
    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        decoder_input_ids=None,
        decoder_attention_mask=None,
        encoder_outputs=None,
        cache=None,
        inputs_embeds=None,
        decoder_inputs_embeds=None,
        position_ids=None,
        decoder_position_ids=None,
        use_cache=None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> Seq2SeqModelOutput:
        r"""
        Args:
            input_ids (`(batch, source_length)`): source tokens; or `inputs_embeds`, or `encoder_outputs`.
            attention_mask (`(batch, source_length)`): 1 for real source tokens, 0 for padding.
            decoder_input_ids (`(batch, target_length)`): target tokens so far; or `decoder_inputs_embeds`.
            decoder_attention_mask (`(batch, cached_length + target_length)`): the same for the target. It hides
                padding on the left but does not move positions: give `decoder_position_ids` too.
            encoder_outputs: what the encoder returned, to run it once for many steps.
            cache (`EncoderDecoderCache`): keys and values of earlier steps.
            inputs_embeds (`(batch, source_length, hidden_size)`): rows of `get_input_embeddings()`, not yet scaled.
            decoder_inputs_embeds (`(batch, target_length, hidden_size)`): the same for the target.
            position_ids (`(batch, source_length)`): positions of the source, counted from column 0 by default.
            decoder_position_ids (`(batch, target_length)`): positions of the target, counted on from the cache.
            use_cache: fill a cache and return it.

        Raises:
            ValueError: an argument of a wrong shape or type, or both or neither of two that exclude each other.
        """
        if encoder_outputs is None:
            encoder_outputs = self.encoder(
                input_ids, attention_mask, position_ids=position_ids, inputs_embeds=inputs_embeds, **kwargs
            )
        elif isinstance(encoder_outputs, tuple | list) and len(encoder_outputs) <= 3:
            encoder_outputs = BaseModelOutput(*encoder_outputs)
        if not isinstance(encoder_outputs, ModelOutput) or not isinstance(encoder_outputs[0], torch.Tensor):
            raise ValueError(
                f"`encoder_outputs` is a {type(encoder_outputs).__name__}, but must be what the encoder returned: a "
                "ModelOutput, or a tuple of hidden states first."
            )
        decoder_outputs = self.decoder(
            decoder_input_ids,
            decoder_attention_mask,
            encoder_outputs.last_hidden_state,
            attention_mask,
            position_ids=decoder_position_ids,
            cache=cache,
            inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        return Seq2SeqModelOutput(
            last_hidden_state=decoder_outputs.last_hidden_state,
            cache=decoder_outputs.cache,
            decoder_hidden_states=decoder_outputs.hidden_states,
            decoder_attentions=decoder_outputs.attentions,
            cross_attentions=decoder_outputs.cross_attentions,
            encoder_last_hidden_state=encoder_outputs.last_hidden_state,
            encoder_hidden_states=encoder_outputs.hidden_states,
            encoder_attentions=encoder_outputs.attentions,
        )


class TransformerEncoderDecoderForConditionalGeneration(TransformerEncoderDecoderPreTrainedModel, GenerationMixin):
    """The encoder-decoder with a language-modelling head: translation, summarisation, anything text to text."""

    _tied_weights_keys = {"lm_head.weight": "model.encoder.embed_tokens.weight"}

    def __init__(self, config: TransformerEncoderDecoderConfig):
        super().__init__(config)
        self.model = TransformerEncoderDecoderModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=config.lm_head_bias)
        self.loss_function = cross_entropy_loss
        self.loss_type = "ForMaskedLM"  # tells Trainer that every label counts: the loss does not shift them
        self.post_init()

    def prepare_decoder_input_ids_from_labels(self, labels):
        """Labels `(batch, target_length)` -> decoder inputs of the same shape: the start token, then all labels but
        the last. -100 becomes padding."""
        check_labels(labels)
        for name in ("decoder_start_token_id", "pad_token_id"):
            if getattr(self.config, name) is None:
                raise ValueError(f"`config.{name}` is None, but is needed to make decoder inputs from labels.")
        start = labels.new_full((labels.shape[0], 1), self.config.decoder_start_token_id)
        shifted = torch.cat((start, labels[:, :-1]), dim=1)
        return shifted.masked_fill(shifted == -100, self.config.pad_token_id)

    @deprecate_kwarg("past_key_values", "5.40.0", new_name="cache")
    @can_return_tuple
    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        decoder_input_ids=None,
        decoder_attention_mask=None,
        encoder_outputs=None,
        cache=None,
        inputs_embeds=None,
        decoder_inputs_embeds=None,
        position_ids=None,
        decoder_position_ids=None,
        labels=None,
        use_cache=None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> Seq2SeqLMOutput:
        r"""
        The arguments of `TransformerEncoderDecoderModel.forward`, and

        Args:
            labels (`(batch, target_length)`): the token that each logit should predict, -100 where none counts.
                Without decoder inputs, those are the labels shifted right behind the start token.
            num_items_in_batch: see `cross_entropy_loss`.
        """
        if labels is not None:
            use_cache = bool(use_cache)  # a training step has no use for one, unless it asks
            if decoder_input_ids is None and decoder_inputs_embeds is None:
                decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        outputs = self.model(
            input_ids,
            attention_mask,
            decoder_input_ids,
            decoder_attention_mask,
            encoder_outputs,
            cache,
            inputs_embeds,
            decoder_inputs_embeds,
            position_ids,
            decoder_position_ids,
            use_cache,
            **kwargs,
        )
        logits = self.lm_head(outputs.last_hidden_state)
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        return Seq2SeqLMOutput(
            loss=loss,
            logits=logits,
            cache=outputs.cache,
            decoder_hidden_states=outputs.decoder_hidden_states,
            decoder_attentions=outputs.decoder_attentions,
            cross_attentions=outputs.cross_attentions,
            encoder_last_hidden_state=outputs.encoder_last_hidden_state,
            encoder_hidden_states=outputs.encoder_hidden_states,
            encoder_attentions=outputs.encoder_attentions,
        )
