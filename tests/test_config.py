"""The configuration: the paper's defaults, a way there and back, and one clear sentence for what cannot be."""

import json
from dataclasses import fields

import pytest
import torch
from helpers import random_ids, tiny_config, tiny_model
from huggingface_hub.errors import StrictDataclassFieldValidationError
from torch import nn
from transformers import AutoConfig

from hf_transformer import (
    TransformerConfig,
    TransformerEncoderDecoderConfig,
    TransformerEncoderDecoderForConditionalGeneration,
)
from hf_transformer.feed_forward import FEED_FORWARDS
from hf_transformer.initializers import INITIALIZERS
from hf_transformer.norms import NORMS
from hf_transformer.positions import POSITIONS, SINUSOIDAL_LAYOUTS, SinusoidalPositions
from hf_transformer.residual import PLACEMENTS, Placement, post_norm


PAPER = {
    "vocab_size": 37000,
    "hidden_size": 512,
    "encoder_layers": 6,
    "decoder_layers": 6,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "intermediate_size": 2048,
    "position_embedding_type": "sinusoidal",
    "sinusoidal_layout": "interleaved",
    "norm_position": "post",
    "norm_type": "layernorm",
    "hidden_act": "relu",
    "gated_mlp": False,
    "embedding_scale": None,
    "tie_word_embeddings": True,
    "lm_head_bias": False,
    "hidden_dropout": 0.1,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "initializer": "xavier",
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 0,
    "is_encoder_decoder": True,
    "use_cache": True,
}


@pytest.mark.parametrize("field", PAPER)
def test_the_defaults_are_the_base_model_of_the_paper(field):
    value = getattr(TransformerEncoderDecoderConfig(), field)
    assert value == PAPER[field] and type(value) is type(PAPER[field])


def test_the_base_model_has_as_many_parameters_as_in_the_paper():
    """Table 3 says 65 million; one more matrix of embeddings would be 19 million more."""
    with torch.device("meta"):
        model = TransformerEncoderDecoderForConditionalGeneration(TransformerEncoderDecoderConfig())
    layer = 4 * (512 * 512 + 512) + 2 * 512 * 2048 + 2048 + 512  # attention and feed-forward, with biases
    norms = 6 * (2 + 3) * 2 * 512
    cross_attention = 6 * 4 * (512 * 512 + 512)
    assert sum(parameter.numel() for parameter in model.parameters()) == (
        37000 * 512 + 12 * layer + norms + cross_attention
    )


def test_every_field_is_explained():
    for config_class in (TransformerConfig, TransformerEncoderDecoderConfig):
        inherited = set().union(*(base.__dict__.get("__annotations__", {}) for base in config_class.__mro__[1:]))
        own = set(config_class.__dict__["__annotations__"]) - inherited
        told = {line.split(":")[0].strip() for line in config_class.__doc__.splitlines() if ": " in line}
        not_told = {"pad_token_id", "bos_token_id", "eos_token_id", "is_encoder_decoder"}  # those of transformers
        assert own - not_told <= told


# Depth


def test_the_depth_sets_both_stacks_and_reads_the_decoder():
    config = TransformerEncoderDecoderConfig(num_hidden_layers=3)
    assert (config.encoder_layers, config.decoder_layers, config.num_hidden_layers) == (3, 3, 3)
    config = TransformerEncoderDecoderConfig(encoder_layers=4, decoder_layers=2)
    assert (config.encoder_layers, config.decoder_layers, config.num_hidden_layers) == (4, 2, 2)
    config.num_hidden_layers = 5
    assert (config.encoder_layers, config.decoder_layers, config.num_hidden_layers) == (5, 5, 5)


def test_a_model_has_the_depths_of_its_config():
    model = tiny_model(num_hidden_layers=3)
    assert (len(model.get_encoder().layers), len(model.get_decoder().layers)) == (3, 3)
    model = tiny_model(encoder_layers=1, decoder_layers=2)
    assert (len(model.get_encoder().layers), len(model.get_decoder().layers)) == (1, 2)


@pytest.mark.parametrize("depth", (0, -1))
def test_a_depth_below_one_is_refused(depth):
    with pytest.raises(ValueError, match="_layers"):
        TransformerEncoderDecoderConfig(num_hidden_layers=depth)


# There and back


CHANGES = {
    "vocab_size": 61,
    "hidden_size": 20,
    "encoder_layers": 1,
    "decoder_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "norm_position": "pre",
    "embedding_scale": 2.5,
    "gated_mlp": True,
    "tie_word_embeddings": False,
    "lm_head_bias": True,
    "eos_token_id": [2, 3],
    "decoder_start_token_id": 5,
    "initializer": "normal",
    "use_cache": False,
}


def knobs(config):
    names = [field.name for field in fields(TransformerEncoderDecoderConfig)] + ["num_hidden_layers"]
    return {name: getattr(config, name) for name in names if name != "transformers_version"}


@pytest.mark.parametrize("changes", ({}, CHANGES), ids=("defaults", "changed"))
@pytest.mark.parametrize("way", ("dict", "json", "folder", "auto"))
def test_a_config_survives_being_saved(changes, way, tmp_path):
    config = TransformerEncoderDecoderConfig(**changes)
    assert {name: getattr(config, name) for name in changes} == changes
    if way == "dict":
        again = TransformerEncoderDecoderConfig.from_dict(config.to_dict())
    elif way == "json":
        again = TransformerEncoderDecoderConfig(**json.loads(config.to_json_string()))
    else:
        config.save_pretrained(tmp_path)
        again = (AutoConfig if way == "auto" else TransformerEncoderDecoderConfig).from_pretrained(tmp_path)
    assert type(again) is TransformerEncoderDecoderConfig
    assert knobs(again) == knobs(config)


def test_a_changed_depth_survives_being_saved():
    config = TransformerEncoderDecoderConfig(num_hidden_layers=2)
    assert TransformerEncoderDecoderConfig.from_dict(config.to_dict()).encoder_layers == 2
    config.encoder_layers = 4
    again = TransformerEncoderDecoderConfig.from_dict(config.to_dict())
    assert (again.encoder_layers, again.decoder_layers) == (4, 2)


def test_derived_values_follow_what_they_derive_from():
    config = TransformerEncoderDecoderConfig(hidden_size=96, num_attention_heads=6, pad_token_id=9)
    assert (config.num_key_value_heads, config.head_dim, config.decoder_start_token_id) == (6, 16, 9)
    assert TransformerEncoderDecoderConfig(decoder_start_token_id=None).decoder_start_token_id is None


def test_the_config_knows_where_its_classes_live():
    assert TransformerEncoderDecoderConfig().to_dict()["auto_map"] == {
        "AutoConfig": "configuration_transformer.TransformerEncoderDecoderConfig",
        "AutoModel": "modeling_encoder_decoder.TransformerEncoderDecoderModel",
        "AutoModelForSeq2SeqLM": "modeling_encoder_decoder.TransformerEncoderDecoderForConditionalGeneration",
    }


# Unknown and misspelt


def test_an_unknown_keyword_is_kept():
    """As transformers does, which itself passes some that no field is named after."""
    config = TransformerEncoderDecoderConfig(my_own_note="hello", output_attentions=True, dataset={"name": "wmt"})
    again = TransformerEncoderDecoderConfig.from_dict(config.to_dict())
    assert again.my_own_note == "hello" and again.dataset == {"name": "wmt"} and again.output_attentions


@pytest.mark.parametrize(
    "wrong, right",
    {
        "hiden_size": "hidden_size",
        "hidden_sizes": "hidden_size",
        "norm_postion": "norm_position",
        "num_encoder_layers": "encoder_layers",
        "num_decoder_layers": "decoder_layers",
        "num_hiden_layers": "num_hidden_layers",
        "num_attention_head": "num_attention_heads",
        "tie_word_embedding": "tie_word_embeddings",
        "attention_droput": "attention_dropout",
        "vocabsize": "vocab_size",
        "intermediate_sizes": "intermediate_size",
        "activation_dropouts": "activation_dropout",
        "embeding_scale": "embedding_scale",
        "sinusoidal_layouts": "sinusoidal_layout",
        "gated_mpl": "gated_mlp",
        "pad_token": "pad_token_id",
        "decoder_start_token": "decoder_start_token_id",
    }.items(),
    ids=str,
)
def test_a_misspelt_keyword_is_refused_and_the_right_one_named(wrong, right):
    with pytest.raises(ValueError, match=f"`{wrong}`.*`{right}`"):
        TransformerEncoderDecoderConfig(**{wrong: 1})


# Wrong types and values


@pytest.mark.parametrize(
    "field, value",
    (
        ("hidden_size", "16"),
        ("hidden_size", 16.0),
        ("hidden_size", None),
        ("num_attention_heads", "4"),
        ("encoder_layers", 2.5),
        ("hidden_dropout", "0.1"),
        ("norm_position", 3),
        ("norm_position", None),
        ("gated_mlp", "yes"),
        ("tie_word_embeddings", 1),
        ("embedding_scale", "sqrt"),
        ("pad_token_id", "0"),
        ("head_dim", 2.0),
        ("initializer_range", None),
        ("decoder_start_token_id", "bos"),
        ("eos_token_id", "2"),
    ),
)
def test_a_value_of_a_wrong_type_is_refused_when_made_and_when_set(field, value):
    with pytest.raises(StrictDataclassFieldValidationError, match=field):
        TransformerEncoderDecoderConfig(**{field: value})
    config = TransformerEncoderDecoderConfig()
    with pytest.raises(StrictDataclassFieldValidationError, match=field):
        setattr(config, field, value)


@pytest.mark.parametrize(
    "field, registry",
    {
        "position_embedding_type": POSITIONS,
        "sinusoidal_layout": SINUSOIDAL_LAYOUTS,
        "norm_position": PLACEMENTS,
        "norm_type": NORMS,
        "initializer": INITIALIZERS,
    }.items(),
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_unknown_variant_is_refused_and_the_known_ones_listed(field, registry):
    with pytest.raises(ValueError) as caught:
        TransformerEncoderDecoderConfig(**{field: "nonesuch"})
    assert all(part in str(caught.value) for part in (f"`{field}`", "'nonesuch'", *map(repr, registry)))
    known = next(iter(registry))
    with pytest.raises(ValueError, match=f"Did you mean '{known}'"):
        TransformerEncoderDecoderConfig(**{field: known + "s"})


@pytest.mark.parametrize("wrong, right", (("gelu_neww", "gelu_new"), ("Relu", "relu"), ("silou", "silu")))
def test_an_unknown_activation_is_refused_and_the_closest_named(wrong, right):
    with pytest.raises(ValueError, match=f"`hidden_act` is '{wrong}'.*'gelu'.*Did you mean '{right}'"):
        TransformerEncoderDecoderConfig(hidden_act=wrong)


@pytest.mark.parametrize(
    "changes, named",
    (
        ({"hidden_size": 30, "num_attention_heads": 4}, ("hidden_size", "num_attention_heads", "head_dim")),
        ({"num_attention_heads": 8, "num_key_value_heads": 3}, ("num_attention_heads", "num_key_value_heads")),
        ({"num_attention_heads": 2, "num_key_value_heads": 4}, ("num_attention_heads", "num_key_value_heads")),
        *(
            ({field: value}, (field,))
            for field in (
                "vocab_size",
                "hidden_size",
                "num_attention_heads",
                "num_key_value_heads",
                "head_dim",
                "intermediate_size",
                "max_position_embeddings",
                "encoder_layers",
                "decoder_layers",
            )
            for value in (0, -4)
        ),
        *(
            ({field: value}, (field,))
            for field in ("hidden_dropout", "attention_dropout", "activation_dropout")
            for value in (-0.1, 1.5, float("nan"))
        ),
        *(({field: value}, (field,)) for field in ("norm_eps", "initializer_range") for value in (0.0, -1.0)),
        *(({field: float("nan")}, (field,)) for field in ("norm_eps", "initializer_range", "embedding_scale")),
        ({"embedding_scale": float("inf")}, ("embedding_scale",)),
        ({"vocab_size": 50, "pad_token_id": 50}, ("pad_token_id", "vocab_size")),
        ({"pad_token_id": -1}, ("pad_token_id",)),
        ({"vocab_size": 50, "decoder_start_token_id": 50}, ("decoder_start_token_id",)),
        ({"decoder_start_token_id": -1}, ("decoder_start_token_id",)),
    ),
    ids=str,
)
def test_an_impossible_combination_is_a_value_error_that_names_its_fields(changes, named):
    with pytest.raises(ValueError) as caught:
        TransformerEncoderDecoderConfig(**changes)
    assert all(f"`{field}`" in str(caught.value) for field in named)


@pytest.mark.parametrize(
    "changes",
    (
        {"hidden_size": 30, "num_attention_heads": 4, "head_dim": 5},
        {"num_attention_heads": 8, "num_key_value_heads": 1},
        {"hidden_dropout": 0, "attention_dropout": 1, "activation_dropout": 1.0},
        {"embedding_scale": 3},
        {"pad_token_id": None, "bos_token_id": None, "eos_token_id": None},
        {"vocab_size": 3, "pad_token_id": 2},
        {"max_position_embeddings": 1},
    ),
    ids=str,
)
def test_an_unusual_combination_that_makes_sense_is_accepted(changes):
    model = tiny_model(**changes)
    if "vocab_size" not in changes:
        assert model(random_ids(1, 3), decoder_input_ids=random_ids(1, 2)).logits.isfinite().all()


def test_a_knob_set_afterwards_is_checked_when_a_model_is_built():
    """Setting one field at a time passes through combinations that make no sense, so they are judged at the end."""
    config = tiny_config()
    config.norm_position = "nonesuch"
    with pytest.raises(ValueError, match="`norm_position` is 'nonesuch'"):
        TransformerEncoderDecoderForConditionalGeneration(config)


# Registries


class HalvedNorm(nn.LayerNorm):
    def forward(self, hidden_states):
        return super().forward(hidden_states) / 2


@pytest.mark.parametrize(
    "registry, field, variant",
    (
        (NORMS, "norm_type", HalvedNorm),
        (PLACEMENTS, "norm_position", Placement(lambda *parts: post_norm(*parts) / 2, final_norm=False)),
        (POSITIONS, "position_embedding_type", lambda config: lambda ids: 3 * SinusoidalPositions(config)(ids)),
        (SINUSOIDAL_LAYOUTS, "sinusoidal_layout", lambda sine, cosine: torch.cat((cosine, sine), dim=-1)),
    ),
    ids=("norm", "placement", "positions", "layout"),
)
def test_one_entry_in_a_registry_adds_a_variant(registry, field, variant, monkeypatch):
    monkeypatch.setitem(registry, "mine", variant)
    source, target = random_ids(2, 5), random_ids(2, 4)
    usual, mine = tiny_model(), tiny_model(**{field: "mine"})
    assert mine.config.to_dict()[field] == "mine"
    state = usual.state_dict()
    mine.load_state_dict(state)
    difference = mine(source, decoder_input_ids=target).logits - usual(source, decoder_input_ids=target).logits
    assert difference.abs().max() > 0.01


def test_a_feed_forward_network_and_a_start_of_ones_own_can_be_added(monkeypatch):
    class Silent(FEED_FORWARDS[False]):
        def forward(self, hidden_states):
            return 0 * super().forward(hidden_states)

    def ones(module, config):
        nn.init.ones_(module.weight)

    monkeypatch.setitem(FEED_FORWARDS, False, Silent)
    monkeypatch.setitem(INITIALIZERS, "ones", ones)
    model = TransformerEncoderDecoderForConditionalGeneration(tiny_config(initializer="ones"))
    mlp = model.get_decoder().layers[0].mlp
    assert (mlp.up_proj.weight == 1).all() and (mlp(torch.ones(1, 2, 16)) == 0).all()
