# Copyright 2026 The hf_transformer authors. Licensed under the Apache License, Version 2.0.
"""The knobs of the Transformer: every published architecture is a setting of these."""

from .requirements import TRANSFORMERS  # noqa: F401, I001  first: it refuses an unsupported transformers in one sentence

from dataclasses import fields
from difflib import SequenceMatcher
from typing import Literal

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig
from transformers.activations import ACT2FN

from .feed_forward import FEED_FORWARDS
from .initializers import INITIALIZERS
from .norms import NORMS
from .positions import POSITIONS, SINUSOIDAL_LAYOUTS
from .registry import Registry
from .residual import PLACEMENTS


@strict
class TransformerConfig(PreTrainedConfig):
    """What all architectures share. The defaults are the base model of "Attention Is All You Need" (Vaswani et al.
    2017, https://arxiv.org/abs/1706.03762), with biases in the attention projections as in Marian.

    Args:
        vocab_size: number of tokens.
        hidden_size: width of the residual stream, d_model in the paper.
        num_attention_heads: number of query heads.
        num_key_value_heads: number of key and value heads; `None`: as many as query heads.
        head_dim: width of one head; `None`: `hidden_size // num_attention_heads`.
        intermediate_size: inner width of the feed-forward network, d_ff in the paper.
        max_position_embeddings: the length the model is meant for, in tokens, for those who ask; computed positions
            have no limit.
        position_embedding_type: `"sinusoidal"`.
        sinusoidal_layout: `"interleaved"` (the paper: sine, cosine, sine, …) or `"halves"` (Marian: all sines first).
        norm_position: `"post"` (the paper) or `"pre"` (GPT-2 and later; a norm follows the last layer).
        norm_type: `"layernorm"`.
        norm_eps: what a norm adds to the variance.
        hidden_act: activation of the feed-forward network, a name in transformers' `ACT2FN`.
        gated_mlp: multiply by an activated gate; `True` with `hidden_act="silu"` is SwiGLU.
        embedding_scale: factor on the token embeddings; `None`: √hidden_size, the paper's; 1.0: none.
        tie_word_embeddings: one matrix for all token embeddings and the output projection (the paper, section 3.4).
        lm_head_bias: add a bias to the logits.
        hidden_dropout: probability, on the embeddings and on the output of every sublayer.
        attention_dropout: probability, on the attention weights.
        activation_dropout: probability, inside the feed-forward network.
        initializer: `"xavier"` (embeddings N(0, 1/hidden_size)), with which a post-norm model learns at the paper's
            rates, or `"normal"` (everything N(0, initializer_range²)).
        initializer_range: standard deviation of `"normal"`.
        use_cache: keep keys and values while generating.

    Raises:
        ValueError: a misspelt knob, a value out of range, or knobs that contradict each other; it names the field.
        StrictDataclassFieldValidationError: a value of a wrong type.
    """

    auto_classes = {}  # auto class -> "module.Class": the whole auto_map, whichever class is being saved
    positive_fields = (
        "vocab_size",
        "hidden_size",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "intermediate_size",
        "max_position_embeddings",
    )
    token_fields = ("pad_token_id",)  # the tokens that the model itself uses

    vocab_size: int = 37000
    hidden_size: int = 512
    num_attention_heads: int = 8
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    intermediate_size: int = 2048
    max_position_embeddings: int = 512
    position_embedding_type: str = "sinusoidal"
    sinusoidal_layout: str = "interleaved"
    norm_position: str = "post"
    norm_type: str = "layernorm"
    norm_eps: float = 1e-5
    hidden_act: str = "relu"
    gated_mlp: bool = False
    embedding_scale: float | int | None = None
    tie_word_embeddings: bool = True
    lm_head_bias: bool = False
    hidden_dropout: float | int = 0.1
    attention_dropout: float | int = 0.0
    activation_dropout: float | int = 0.0
    initializer: str = "xavier"
    initializer_range: float = 0.02
    use_cache: bool = True
    pad_token_id: int | None = 0
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2

    def __post_init__(self, **kwargs):
        self._refuse_misspelt(kwargs)
        if self.num_key_value_heads is None:
            self.num_key_value_heads = self.num_attention_heads
        if self.head_dim is None and self.num_attention_heads > 0:
            if self.hidden_size % self.num_attention_heads:
                raise ValueError(
                    f"`hidden_size` ({self.hidden_size}) must be a multiple of `num_attention_heads` "
                    f"({self.num_attention_heads}), or `head_dim` be given."
                )
            self.head_dim = self.hidden_size // self.num_attention_heads
        kwargs["auto_map"] = dict(self.auto_classes)
        super().__post_init__(**kwargs)
        self.validate_architecture()  # here too, since @strict wraps the ValueError in an error that is none

    def _refuse_misspelt(self, kwargs):
        """@strict keeps an unknown keyword silently, but one that nearly equals a knob is a typing error."""
        knobs = sorted({"num_hidden_layers", *(field.name for field in fields(self))})
        for name in kwargs:
            close = [knob for knob in knobs if SequenceMatcher(None, name, knob).ratio() >= 0.85]
            if close and not hasattr(type(self), name):
                raise ValueError(
                    f"{type(self).__name__} has no field `{name}`. Did you mean `{'` or `'.join(close)}`?"
                )

    def validate_architecture(self):
        """Refuse values out of range and knobs that contradict each other."""
        for registry in (POSITIONS, SINUSOIDAL_LAYOUTS, PLACEMENTS, NORMS, FEED_FORWARDS, INITIALIZERS):
            registry[getattr(self, registry.field)]
        Registry("hidden_act", dict.fromkeys(ACT2FN))[self.hidden_act]
        for name in self.positive_fields:
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}` is {getattr(self, name)}, but must be at least 1.")
        for name in ("hidden_dropout", "attention_dropout", "activation_dropout"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"`{name}` is {getattr(self, name)}, but must be a probability, 0 to 1.")
        for name in ("norm_eps", "initializer_range"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"`{name}` is {getattr(self, name)}, but must be a positive number.")
        if self.embedding_scale is not None and not abs(self.embedding_scale) < float("inf"):
            raise ValueError(f"`embedding_scale` is {self.embedding_scale}, but must be None or a number.")
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"`num_attention_heads` ({self.num_attention_heads}) must be a multiple of `num_key_value_heads` "
                f"({self.num_key_value_heads})."
            )
        for name in self.token_fields:
            token = getattr(self, name)
            if token is not None and not 0 <= token < self.vocab_size:
                raise ValueError(f"`{name}` is {token}, but must be 0 to {self.vocab_size - 1} (`vocab_size` - 1).")


@strict
class TransformerEncoderConfig(TransformerConfig):
    """The encoder alone: every token attends to every other, as in BERT.

    Args:
        num_hidden_layers: number of layers.

    The other arguments are those of `TransformerConfig`.
    """

    model_type = "hf_transformer_encoder"
    auto_classes = {
        "AutoConfig": "configuration_transformer.TransformerEncoderConfig",
        "AutoModel": "modeling_encoder.TransformerEncoderModel",
    }
    positive_fields = (*TransformerConfig.positive_fields, "num_hidden_layers")

    num_hidden_layers: int = 6


@strict
class TransformerDecoderConfig(TransformerConfig):
    """The decoder alone: every token attends to itself and to earlier ones, as in GPT.

    Args:
        num_hidden_layers: number of layers.

    The other arguments are those of `TransformerConfig`.
    """

    model_type = "hf_transformer_decoder"
    auto_classes = {
        "AutoConfig": "configuration_transformer.TransformerDecoderConfig",
        "AutoModel": "modeling_decoder.TransformerDecoderModel",
    }
    positive_fields = (*TransformerConfig.positive_fields, "num_hidden_layers")

    num_hidden_layers: int = 6


@strict
class TransformerEncoderDecoderConfig(TransformerConfig):
    """The encoder-decoder of 2017, for translation and other sequence-to-sequence tasks.

    Args:
        encoder_layers: number of encoder layers.
        decoder_layers: number of decoder layers. `num_hidden_layers` reads this one and sets both.
        decoder_start_token_id: the token every target starts with; `"pad"`: `pad_token_id`, as in Marian.

    The other arguments are those of `TransformerConfig`.
    """

    model_type = "hf_transformer_encoder_decoder"
    keys_to_ignore_at_inference = ["cache", "encoder_last_hidden_state"]
    base_model_fsdp_plan = {}
    auto_classes = {
        "AutoConfig": "configuration_transformer.TransformerEncoderDecoderConfig",
        "AutoModel": "modeling_encoder_decoder.TransformerEncoderDecoderModel",
        "AutoModelForSeq2SeqLM": "modeling_encoder_decoder.TransformerEncoderDecoderForConditionalGeneration",
    }
    positive_fields = (*TransformerConfig.positive_fields, "encoder_layers", "decoder_layers")
    token_fields = ("pad_token_id", "decoder_start_token_id")

    encoder_layers: int = 6
    decoder_layers: int = 6
    decoder_start_token_id: int | Literal["pad"] | None = "pad"
    is_encoder_decoder: bool = True

    def __post_init__(self, **kwargs):
        if not self.is_encoder_decoder:
            raise ValueError("`is_encoder_decoder` is False, but an encoder-decoder is always one.")
        depth = kwargs.get("num_hidden_layers")
        for name in ("encoder_layers", "decoder_layers") if depth is not None else ():
            if getattr(self, name) not in (depth, type(self).__dataclass_fields__[name].default):
                raise ValueError(
                    f"`num_hidden_layers` is {depth}, but sets `{name}` too, which is {getattr(self, name)}."
                )
        if self.decoder_start_token_id == "pad":
            self.decoder_start_token_id = self.pad_token_id
        super().__post_init__(**kwargs)

    @property
    def num_hidden_layers(self):
        return self.decoder_layers  # what transformers' caches ask for

    @num_hidden_layers.setter
    def num_hidden_layers(self, depth):
        self.encoder_layers = self.decoder_layers = depth

    def get_text_config(self, decoder=None, encoder=None):
        return self  # the base class hands out a changed copy of a flat encoder-decoder config
