"""The encoder and the decoder as models of their own."""

import pytest
import torch
from helpers import assert_close, pad, positions_of, random_ids, random_rows, randomise
from transformers import AutoModel, DynamicCache, StaticCache

from hf_transformer import (
    TransformerDecoderConfig,
    TransformerDecoderModel,
    TransformerEncoderConfig,
    TransformerEncoderModel,
)


SIZES = {"vocab_size": 50, "hidden_size": 16, "num_attention_heads": 4, "intermediate_size": 24}
MODELS = {
    "encoder": (TransformerEncoderConfig, TransformerEncoderModel),
    "decoder": (TransformerDecoderConfig, TransformerDecoderModel),
}
both = pytest.mark.parametrize("kind", MODELS)
norm_positions = pytest.mark.parametrize("norm_position", ("post", "pre"))


def tiny(kind, attention="eager", **changes):
    config_class, model_class = MODELS[kind]
    config = config_class(**{**SIZES, "num_hidden_layers": 2, "hidden_dropout": 0.0, "use_cache": False, **changes})
    config._attn_implementation = attention
    return randomise(model_class(config)).eval()


@torch.no_grad()
def hidden(model, *args, **kwargs):
    return model(*args, **kwargs).last_hidden_state


@both
@norm_positions
@pytest.mark.parametrize("attention", ("eager", "sdpa"))
@pytest.mark.parametrize("side", ("right", "left"))
def test_a_padded_row_is_what_it_is_alone(kind, norm_position, attention, side):
    model = tiny(kind, attention, norm_position=norm_position)
    rows = random_rows(3, 7, 5)
    ids, mask = pad(rows, side)
    together = hidden(model, ids, mask, positions_of(mask))
    for index, row in enumerate(rows):
        assert_close(together[index][mask[index] == 1], hidden(model, row[None])[0])


@both
@norm_positions
def test_sdpa_computes_what_eager_does(kind, norm_position):
    ids, mask = pad(random_rows(4, 6))
    mask[0] = 0  # a row with nothing to attend to
    eager, sdpa = (tiny(kind, name, norm_position=norm_position) for name in ("eager", "sdpa"))
    assert_close(hidden(sdpa, ids, mask), hidden(eager, ids, mask))


@both
@pytest.mark.parametrize("attention", ("eager", "sdpa"))
def test_only_the_encoder_sees_later_tokens(kind, attention):
    model, ids = tiny(kind, attention), random_ids(2, 6)
    changed = ids.clone()
    changed[:, 4] = (ids[:, 4] - 3 + 1) % 47 + 3
    moved = (hidden(model, changed) - hidden(model, ids)).abs().amax(dim=(0, 2)) > 1e-4
    assert moved.tolist() == [kind == "encoder"] * 4 + [True, True]


@pytest.mark.parametrize("attention", ("eager", "sdpa"))
@pytest.mark.parametrize("cache", ("dynamic", "static"))
def test_the_decoder_continues_from_its_cache(attention, cache):
    model, ids = tiny("decoder", attention), random_ids(2, 9)
    cache = DynamicCache(config=model.config) if cache == "dynamic" else StaticCache(model.config, max_cache_len=9)
    steps = [hidden(model, chunk, cache=cache) for chunk in ids.split((4, 1, 3, 1), dim=1)]
    assert_close(torch.cat(steps, dim=1), hidden(model, ids))


@both
def test_a_folder_gives_the_model_back(kind, tmp_path):
    model, ids = tiny(kind), random_ids(2, 5)
    model.save_pretrained(tmp_path)
    loaded = AutoModel.from_pretrained(tmp_path)
    assert type(loaded) is type(model)
    assert_close(hidden(loaded.eval(), ids), hidden(model, ids), tolerance=1e-6)


@both
def test_embeddings_stand_in_for_ids(kind):
    model, ids = tiny(kind), random_ids(2, 5)
    embeddings = model.get_input_embeddings()(ids)
    assert_close(hidden(model, inputs_embeds=embeddings), hidden(model, ids), tolerance=1e-6)


@both
@pytest.mark.parametrize(
    ("wrong", "message"),
    (
        ({"input_ids": random_ids(4)}, r"`input_ids`.*\(4,\)"),
        ({}, "`input_ids` and `inputs_embeds`.*neither"),
        ({"input_ids": torch.full((1, 2), 50)}, "`input_ids`.*50.*49"),
        ({"input_ids": random_ids(2, 4), "attention_mask": torch.ones(2, 5)}, r"`attention_mask`.*\(2, 5\)"),
        ({"input_ids": random_ids(2, 4), "position_ids": torch.ones(4)}, r"`position_ids`.*\(4,\)"),
    ),
)
def test_bad_input_is_named(kind, wrong, message):
    with pytest.raises(ValueError, match=message):
        tiny(kind)(**wrong)


@pytest.mark.parametrize("config_class", (TransformerEncoderConfig, TransformerDecoderConfig))
def test_the_depth_is_checked(config_class):
    assert config_class().num_hidden_layers == 6
    with pytest.raises(ValueError, match="`num_hidden_layers` is 0"):
        config_class(num_hidden_layers=0)
