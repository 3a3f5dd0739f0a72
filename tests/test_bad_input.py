"""A wrong argument is a ValueError that names it, and the checks cost nothing: no synchronisation, no graph break."""

import pytest
import torch
from helpers import IGNORED, VOCAB, assert_close, random_ids, tiny_model, training_batch
from transformers import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from hf_transformer import TransformerEncoderDecoderConfig, TransformerEncoderDecoderForConditionalGeneration


BATCH, SOURCE_LENGTH, TARGET_LENGTH, WIDTH = 2, 5, 4, 16


def good():
    return {"input_ids": random_ids(BATCH, SOURCE_LENGTH), "decoder_input_ids": random_ids(BATCH, TARGET_LENGTH)}


def wide(*shape):
    return torch.zeros(*shape, WIDTH)


def with_id(name, value):
    ids = good()[name]
    ids[1, 2] = value
    return {name: ids}


def encoded(*shape):
    return {"input_ids": None, "encoder_outputs": BaseModelOutput(last_hidden_state=torch.zeros(shape))}


def ready_made(*shape):
    return torch.ones(shape, dtype=torch.bool)


WRONG = {
    "no source": ({"input_ids": None}, "`input_ids` and `inputs_embeds`.*neither"),
    "two sources": ({"inputs_embeds": wide(2, 5)}, "`input_ids` and `inputs_embeds`.*both"),
    "no target": ({"decoder_input_ids": None}, "`decoder_input_ids` and `decoder_inputs_embeds`.*neither"),
    "two targets": ({"decoder_inputs_embeds": wide(2, 4)}, "`decoder_input_ids` and `decoder_inputs_embeds`.*both"),
    "a source without a batch": ({"input_ids": random_ids(5)}, r"`input_ids`.*\(5,\)"),
    "a target without a batch": ({"decoder_input_ids": random_ids(4)}, r"`decoder_input_ids`.*\(4,\)"),
    "a source of three dimensions": ({"input_ids": random_ids(2, 5, 1)}, r"`input_ids`.*\(2, 5, 1\)"),
    "an empty source": ({"input_ids": random_ids(2, 0)}, r"`input_ids`.*\(2, 0\)"),
    "an empty target": ({"decoder_input_ids": random_ids(2, 0)}, r"`decoder_input_ids`.*\(2, 0\)"),
    "float source ids": ({"input_ids": torch.ones(2, 5)}, "`input_ids`.*float32"),
    "float target ids": ({"decoder_input_ids": torch.ones(2, 4)}, "`decoder_input_ids`.*float32"),
    "boolean source ids": ({"input_ids": torch.ones(2, 5).bool()}, "`input_ids`.*bool"),
    "a source id too large": (with_id("input_ids", VOCAB), "`input_ids` .*50.*49"),
    "a target id too large": (with_id("decoder_input_ids", VOCAB + 7), "`decoder_input_ids` .*57.*49"),
    "a negative source id": (with_id("input_ids", -1), "`input_ids` .*-1"),
    "a label's mark among the target ids": (with_id("decoder_input_ids", IGNORED), "`decoder_input_ids` .*-100"),
    "source embeddings of another width": (
        {"input_ids": None, "inputs_embeds": torch.zeros(2, 5, 8)},
        r"`inputs_embeds`.*\(2, 5, 8\).*16",
    ),
    "target embeddings without a batch": (
        {"decoder_input_ids": None, "decoder_inputs_embeds": wide(4)},
        r"`decoder_inputs_embeds`.*\(4, 16\)",
    ),
    "empty source embeddings": ({"input_ids": None, "inputs_embeds": wide(2, 0)}, r"`inputs_embeds`.*\(2, 0, 16\)"),
    "a source mask of another length": ({"attention_mask": torch.ones(2, 6)}, r"`attention_mask`.*\(2, 6\).*5"),
    "a source mask of another batch": ({"attention_mask": torch.ones(3, 5)}, r"`attention_mask`.*\(3, 5\)"),
    "a source mask of one row": ({"attention_mask": torch.ones(1, 5)}, r"`attention_mask`.*\(1, 5\)"),
    "a source mask without a batch": ({"attention_mask": torch.ones(5)}, r"`attention_mask`.*\(5,\)"),
    "a source mask of three dimensions": ({"attention_mask": torch.ones(2, 5, 5)}, r"`attention_mask`.*\(2, 5, 5\)"),
    "a ready-made source mask of another length": (
        {"attention_mask": ready_made(2, 1, 5, 6)},
        r"`attention_mask`.*\(2, 1, 5, 6\)",
    ),
    "a ready-made source mask of another batch": (
        {"attention_mask": ready_made(3, 1, 5, 5)},
        r"`attention_mask`.*\(3, 1, 5, 5\)",
    ),
    "a target mask of another length": (
        {"decoder_attention_mask": torch.ones(2, 5)},
        r"`decoder_attention_mask`.*\(2, 5\).*4",
    ),
    "a target mask of another batch": (
        {"decoder_attention_mask": torch.ones(4, 4)},
        r"`decoder_attention_mask`.*\(4, 4\)",
    ),
    "a ready-made target mask of another length": (
        {"decoder_attention_mask": ready_made(2, 1, 3, 4)},
        r"`decoder_attention_mask`.*\(2, 1, 3, 4\)",
    ),
    "a ready-made target mask of another number of heads": (
        {"decoder_attention_mask": ready_made(2, 3, 4, 4)},
        r"`decoder_attention_mask`.*\(2, 3, 4, 4\)",
    ),
    "source positions of another length": ({"position_ids": random_ids(2, 4)}, r"`position_ids`.*\(2, 4\).*5"),
    "source positions of another batch": ({"position_ids": random_ids(3, 5)}, r"`position_ids`.*\(3, 5\)"),
    "source positions without a batch": ({"position_ids": random_ids(5)}, r"`position_ids`.*\(5,\)"),
    "target positions of another length": (
        {"decoder_position_ids": random_ids(2, 5)},
        r"`decoder_position_ids`.*\(2, 5\).*4",
    ),
    "a cache in the form of old": ({"cache": ((torch.zeros(2, 4, 3, 4),) * 4,) * 2}, "`cache`.*tuple"),
    "a cache that is none": ({"cache": "dynamic"}, "`cache`.*str"),
    "encoder outputs of another batch": (encoded(3, 5, 16), r"`encoder_hidden_states`.*\(3, 5, 16\).*2"),
    "encoder outputs of another width": (encoded(2, 5, 8), r"`encoder_hidden_states`.*\(2, 5, 8\).*16"),
    "more targets than sources": ({"decoder_input_ids": random_ids(3, 4)}, r"`encoder_hidden_states`.*\(2, 5, 16\)"),
    "labels of another length": ({"labels": random_ids(2, 5)}, r"`labels`.*\(2, 5\).*\(2, 4\)"),
    "labels of another batch": ({"labels": random_ids(3, 4)}, r"`labels`.*\(3, 4\).*\(2, 4\)"),
    "labels without a batch": ({"labels": random_ids(4), "decoder_input_ids": None}, r"`labels`.*\(4,\)"),
    "float labels": ({"labels": torch.ones(2, 4)}, "`labels`.*float32"),
    "boolean labels": ({"labels": torch.ones(2, 4).bool()}, "`labels`.*bool"),
    "labels too large": ({"labels": torch.full((2, 4), VOCAB)}, "`labels`.*49"),
    "negative labels": ({"labels": torch.full((2, 4), -1)}, "`labels`.*-100"),
    "float labels without decoder inputs": (
        {"labels": torch.ones(2, 4), "decoder_input_ids": None},
        "`labels`.*float32",
    ),
    "labels too large without decoder inputs": (
        {"labels": torch.full((2, 4), VOCAB), "decoder_input_ids": None},
        f"{VOCAB}.*49",
    ),
}


@pytest.mark.parametrize("attention", ("eager", "sdpa"))
@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_argument_is_a_value_error_that_names_it(case, attention):
    changes, message = WRONG[case]
    model = tiny_model(attention=attention)
    assert model(**good()).logits.isfinite().all()
    with pytest.raises(ValueError, match=message):
        model(**good() | changes)


@pytest.mark.parametrize("name", ("decoder_start_token_id", "pad_token_id"))
def test_labels_need_a_start_token_and_a_padding_token(name):
    model = tiny_model(**{name: None} | ({"decoder_start_token_id": 1} if name == "pad_token_id" else {}))
    with pytest.raises(ValueError, match=f"`config.{name}` is None"):
        model(random_ids(2, 5), labels=random_ids(2, 4))
    assert model(**good(), labels=random_ids(2, 4)).loss.isfinite(), "given decoder inputs need neither"


def test_a_target_mask_has_to_cover_what_is_cached():
    model = tiny_model()
    cache = model(**good(), use_cache=True).cache
    following = {"input_ids": random_ids(2, 5), "decoder_input_ids": random_ids(2, 1), "cache": cache}
    with pytest.raises(ValueError, match=r"`decoder_attention_mask`.*\(2, 1\).*5"):
        model(**following, decoder_attention_mask=torch.ones(2, 1))
    assert cache.get_seq_length() == TARGET_LENGTH, "a call that is refused changes nothing"
    assert model(**following, decoder_attention_mask=torch.ones(2, 5)).logits.shape == (2, 1, VOCAB)


def test_a_filled_cache_is_refused_under_gradient_checkpointing():
    """The layers run a second time in the backward pass, and would find in it what they have just written."""
    model = tiny_model()
    filled = model(**good(), use_cache=True).cache
    model.activation_checkpointing_enable()
    model.train()
    with pytest.raises(ValueError, match="`cache`.*gradient checkpointing"):
        model(**good(), cache=filled)
    empty = EncoderDecoderCache(DynamicCache(config=model.config), DynamicCache(config=model.config))
    model(**good(), cache=empty).logits.sum().backward()
    assert empty.get_seq_length() == 0


def test_the_stacks_alone_check_their_arguments_too():
    model = tiny_model()
    with pytest.raises(ValueError, match="`input_ids`"):
        model.get_encoder()(random_ids(5))
    with pytest.raises(ValueError, match="`decoder_input_ids`"):
        model.get_decoder()(random_ids(2, 0), encoder_hidden_states=wide(2, 5))
    with pytest.raises(ValueError, match="`encoder_hidden_states`.*None"):
        model.get_decoder()(random_ids(2, 4))
    with pytest.raises(ValueError, match="`input_ids`"):
        model.model(None, decoder_input_ids=random_ids(2, 4))


def test_the_former_name_of_the_cache_still_works():
    """transformers renames it in 5.24 and takes the old name until 5.40."""
    model = tiny_model()
    first = model(**good(), use_cache=True)
    following = random_ids(2, 1, seed=9)
    with pytest.warns(FutureWarning, match="past_key_values"):
        actual = model(random_ids(2, 5), decoder_input_ids=following, past_key_values=first.cache).logits
    whole = torch.cat((good()["decoder_input_ids"], following), dim=1)
    assert_close(actual, model(random_ids(2, 5), decoder_input_ids=whole).logits[:, -1:])


# What is right passes, in every form, and costs nothing


@pytest.mark.parametrize(
    "changes",
    (
        {"input_ids": random_ids(2, 5).int(), "decoder_input_ids": random_ids(2, 4).int()},
        {"attention_mask": torch.ones(2, 5)},
        {"attention_mask": torch.ones(2, 5).bool(), "decoder_attention_mask": torch.ones(2, 4).long()},
        {"position_ids": torch.arange(5)[None], "decoder_position_ids": torch.arange(4)[None]},
        {"position_ids": torch.arange(5).expand(2, -1), "decoder_position_ids": torch.arange(4).expand(2, -1)},
        {"decoder_attention_mask": torch.ones(4, 4).bool().tril()[None, None]},
        {"decoder_attention_mask": torch.ones(4, 4).bool().tril().expand(2, 4, -1, -1)},
    ),
    ids=("int32 ids", "float mask", "boolean mask", "positions of one row", "positions", "one mask", "mask per head"),
)
@pytest.mark.parametrize("attention", ("eager", "sdpa"))
@torch.no_grad()
def test_a_right_argument_in_another_form_gives_the_same(changes, attention):
    model = tiny_model(attention=attention)
    assert_close(model(**good() | changes).logits, model(**good()).logits)


@pytest.mark.parametrize("attention", ("eager", "sdpa"))
def test_the_model_compiles_into_one_graph_for_all_lengths(attention):
    """A graph break, or a number read from the device, would be an error under fullgraph."""
    torch._dynamo.reset()
    model, compilations = tiny_model(attention=attention).train(), []

    def counting(graph, example_inputs):
        compilations.append(graph)
        return graph.forward

    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=counting)
    for length in (7, 9, 12, 17, 23):
        batch = training_batch(length, length - 3, target_lengths=(length - 2, length + 1), seed=length)
        actual, expected = (each(**batch, num_items_in_batch=torch.tensor(30)) for each in (compiled, model))
        assert_close(actual.logits, expected.logits)
        assert_close(actual.loss, expected.loss)
    assert len(compilations) <= 2


@pytest.mark.parametrize(
    "outputs",
    (5, "abc", (3,), {"last_hidden_state": wide(2, 5)}, wide(2, 5)),
    ids=("number", "text", "numbers", "dict", "tensor"),
)
def test_encoder_outputs_of_another_kind_are_named(outputs):
    with pytest.raises(ValueError, match="`encoder_outputs` is a"):
        tiny_model()(encoder_outputs=outputs, decoder_input_ids=random_ids(2, 4))


@pytest.mark.parametrize("attention", ("eager", "sdpa"))
def test_is_causal_makes_no_layer_causal_that_was_not(attention):
    """The keyword of transformers reaches every attention layer, but may only open the decoder's own."""
    model = tiny_model(attention=attention)
    plain, asked = (model(**good(), **given).logits for given in ({}, {"is_causal": True}))
    assert_close(asked, plain)


def test_a_config_changed_to_nonsense_builds_no_model():
    config = tiny_model().config
    config.num_attention_heads = 3
    with pytest.raises(ValueError, match="num_attention_heads"):
        TransformerEncoderDecoderForConditionalGeneration(config)


def test_the_vocabulary_cannot_shrink_below_the_tokens_that_the_model_uses():
    model = tiny_model(pad_token_id=VOCAB - 1)
    with pytest.raises(ValueError, match="`new_num_tokens` is 10, but `pad_token_id` is 49"):
        model.resize_token_embeddings(10)
    assert model.get_input_embeddings().num_embeddings == VOCAB


@pytest.mark.parametrize(
    ("knobs", "message"),
    (
        ({"num_hidden_layers": 3, "encoder_layers": 1}, "`num_hidden_layers` is 3, but sets `encoder_layers` too"),
        ({"is_encoder_decoder": False}, "`is_encoder_decoder` is False"),
    ),
)
def test_knobs_that_contradict_each_other_are_refused(knobs, message):
    with pytest.raises(ValueError, match=message):
        TransformerEncoderDecoderConfig(**knobs)
