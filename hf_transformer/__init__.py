"""One small implementation of the Transformer whose configurations are the published architectures.

Importing this package registers its classes with transformers' Auto classes, and makes plain `save_pretrained` and
`push_to_hub` write the code beside the weights, so that the folder loads anywhere with `trust_remote_code=True`.
"""

import transformers

from .configuration_transformer import (
    TransformerConfig,
    TransformerDecoderConfig,
    TransformerEncoderConfig,
    TransformerEncoderDecoderConfig,
)
from .model_card import write_model_card
from .modeling_decoder import TransformerDecoderModel
from .modeling_encoder import TransformerEncoderModel
from .modeling_encoder_decoder import (
    TransformerEncoderDecoderForConditionalGeneration,
    TransformerEncoderDecoderModel,
)


__version__ = "0.1.0"

__all__ = [
    "TransformerConfig",
    "TransformerDecoderConfig",
    "TransformerDecoderModel",
    "TransformerEncoderConfig",
    "TransformerEncoderDecoderConfig",
    "TransformerEncoderDecoderForConditionalGeneration",
    "TransformerEncoderDecoderModel",
    "TransformerEncoderModel",
    "write_model_card",
]


def _register(config_class):
    """Tell transformers' Auto classes of one architecture; again is harmless."""
    for auto_name, reference in config_class.auto_classes.items():
        auto_class = getattr(transformers, auto_name)
        if auto_name == "AutoConfig":
            auto_class.register(config_class.model_type, config_class, exist_ok=True)
            config_class.register_for_auto_class()
        else:
            model_class = globals()[reference.rpartition(".")[2]]
            auto_class.register(config_class, model_class, exist_ok=True)
            model_class.register_for_auto_class(auto_name)


for _config_class in (TransformerEncoderConfig, TransformerDecoderConfig, TransformerEncoderDecoderConfig):
    _register(_config_class)
