"""What is true of every encoder-decoder, whatever its knobs: padding is invisible, a cache and the choice of a backend
only save time, the target is causal and the source is not.

All models have random weights (see `helpers`), so that no part of them can be lost without being missed.
"""

import pytest
import torch
from helpers import (
    IGNORED,
    PAD,
    assert_close,
    assert_gradients_close,
    combinations,
    gradients,
    name_of,
    pad,
    pairwise,
    positions_of,
    random_ids,
    random_rows,
    tiny_model,
    training_batch,
    with_attention,
)
from torch import nn
from transformers import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from hf_transformer import TransformerEncoderDecoderModel
from hf_transformer.attention import TransformerAttention
from hf_transformer.layers import TransformerLayer


every_case = pytest.mark.parametrize("case", pairwise(), ids=name_of)
both_backends = pytest.mark.parametrize("attention", ("eager", "sdpa"))

SOURCES = random_rows(7, 4, 9, seed=1)
TARGETS = random_rows(5, 8, 3, seed=2)


@torch.no_grad()
def logits_of_single_rows(model):
    return [
        model(source[None], decoder_input_ids=target[None]).logits[0]
        for source, target in zip(SOURCES, TARGETS, strict=True)
    ]


@torch.no_grad()
def assert_padding_is_invisible(model, side):
    """Each row gives in a padded batch what it gives alone. On the left the positions have to be told."""
    input_ids, attention_mask = pad(SOURCES, side)
    decoder_input_ids, decoder_attention_mask = pad(TARGETS, side)
    positions = {}
    if side == "left":
        positions["position_ids"] = positions_of(attention_mask)
        positions["decoder_position_ids"] = positions_of(decoder_attention_mask)
    logits = model(
        input_ids,
        attention_mask,
        decoder_input_ids=decoder_input_ids,
        decoder_attention_mask=decoder_attention_mask,
        **positions,
    ).logits
    assert logits.isfinite().all()
    for row, alone in enumerate(logits_of_single_rows(model)):
        assert_close(logits[row, decoder_attention_mask[row] == 1], alone)


@torch.no_grad()
def assert_cache_is_invisible(model, steps):
    """Decoding in pieces of these lengths gives the logits of decoding at once."""
    input_ids, attention_mask = pad(SOURCES)
    decoder_input_ids = random_ids(len(SOURCES), sum(steps), seed=3)
    expected = model(input_ids, attention_mask, decoder_input_ids=decoder_input_ids, use_cache=False)
    assert expected.cache is None
    encoder_outputs, cache, pieces = model.get_encoder()(input_ids, attention_mask), None, []
    for piece in decoder_input_ids.split(steps, dim=1):
        output = model(
            attention_mask=attention_mask,
            encoder_outputs=encoder_outputs,
            decoder_input_ids=piece,
            cache=cache,
            use_cache=True,
        )
        cache = output.cache
        pieces.append(output.logits)
    assert cache.get_seq_length() == sum(steps)
    assert_close(torch.cat(pieces, dim=1), expected.logits)


def assert_backends_agree(eager):
    """Logits, loss and all gradients; the second source is all padding, and the third row has no label."""
    batch = training_batch(7, 4, 9, target_lengths=(5, 8, 3), seed=4)
    batch["attention_mask"][1] = 0
    batch["labels"][2] = IGNORED
    expected_gradients, expected = gradients(eager, **batch)
    actual_gradients, actual = gradients(with_attention(eager, "sdpa"), **batch)
    assert_close(actual.logits, expected.logits)
    assert_close(actual.loss, expected.loss)
    assert_gradients_close(actual_gradients, expected_gradients)


# Padding


@every_case
@both_backends
def test_a_right_padded_row_gives_what_it_gives_alone(case, attention):
    assert_padding_is_invisible(tiny_model(attention=attention, **case), "right")


@every_case
@both_backends
def test_a_left_padded_row_with_its_positions_gives_what_it_gives_alone(case, attention):
    assert_padding_is_invisible(tiny_model(attention=attention, **case), "left")


@both_backends
@pytest.mark.parametrize("dtype", (torch.float32, torch.float16, torch.bfloat16), ids=str)
def test_a_row_of_padding_stays_finite_and_leaves_the_others_alone(attention, dtype):
    """The lowest float16 minus anything is -inf, and a softmax over nothing but that is NaN."""
    model = tiny_model(attention=attention).to(dtype)
    batch = training_batch(6, 6, 6, target_lengths=(4, 4, 4))
    batch["attention_mask"][1] = 0
    batch["labels"][1] = IGNORED
    decoder_attention_mask = torch.ones_like(batch["labels"])
    decoder_attention_mask[1] = 0
    found, output = gradients(model, decoder_attention_mask=decoder_attention_mask, **batch)
    assert output.logits.isfinite().all() and output.loss.isfinite()
    assert all(gradient.isfinite().all() for gradient in found.values())
    without = {name: tensor[[0, 2]] for name, tensor in batch.items()}
    assert_close(output.logits[[0, 2]], model(**without).logits, 1e-5 if dtype == torch.float32 else 0.03)


def test_a_query_that_may_attend_to_nothing_gets_zero_weights_and_only_the_output_bias():
    """Zero is what sdpa gives, and what makes such a row independent of the padding in it."""
    model = tiny_model()
    input_ids, attention_mask = random_ids(2, 5), torch.ones(2, 5, dtype=torch.long)
    attention_mask[1] = 0
    outputs = []
    cross_attn = model.get_decoder().layers[0].cross_attn
    cross_attn.register_forward_hook(lambda module, args, output: outputs.append(output[0]))
    output = model(input_ids, attention_mask, decoder_input_ids=random_ids(2, 3), output_attentions=True)
    for weights in output.encoder_attentions + output.cross_attentions:
        assert (weights[1] == 0).all() and (weights[0] > 0).any()
    assert_close(outputs[0][1], cross_attn.o_proj.bias.expand(3, -1))


@both_backends
def test_what_stands_in_padding_changes_nothing(attention):
    """Not the id of the padding, but the mask says what is padding."""
    model = tiny_model(attention=attention)
    input_ids, attention_mask = pad(SOURCES)
    decoder_input_ids = random_ids(3, 4)
    expected = model(input_ids, attention_mask, decoder_input_ids=decoder_input_ids).logits
    other = torch.where(attention_mask == 1, input_ids, 17)
    actual = model(other, attention_mask, decoder_input_ids=decoder_input_ids).logits
    assert_close(actual, expected)
    as_boolean = model(other, attention_mask.bool(), decoder_input_ids=decoder_input_ids).logits
    assert torch.equal(as_boolean, actual)


@both_backends
def test_without_a_mask_the_padding_token_is_a_token_like_any_other(attention):
    model = tiny_model(attention=attention)
    input_ids, attention_mask = pad(SOURCES)
    decoder_input_ids = random_ids(3, 4)
    unmasked = model(input_ids, decoder_input_ids=decoder_input_ids).logits
    assert_close(unmasked, model(input_ids, torch.ones_like(input_ids), decoder_input_ids=decoder_input_ids).logits)
    masked = model(input_ids, attention_mask, decoder_input_ids=decoder_input_ids).logits
    assert (unmasked - masked).abs().max() > 0.01


# Ready-made masks


@both_backends
@pytest.mark.parametrize("kind", ("boolean", "additive"))
@torch.no_grad()
def test_a_ready_made_mask_equals_the_one_made_from_two_dimensions(attention, kind):
    model = tiny_model(attention=attention)
    input_ids, attention_mask = pad(SOURCES)
    decoder_input_ids, decoder_attention_mask = pad(TARGETS)
    expected = model(
        input_ids,
        attention_mask,
        decoder_input_ids=decoder_input_ids,
        decoder_attention_mask=decoder_attention_mask,
    ).logits

    def ready_made(mask, query_length, causal=False):
        allowed = mask.bool()[:, None, None, :].expand(-1, 1, query_length, -1)
        if causal:
            allowed = allowed & torch.ones(query_length, mask.shape[1], dtype=torch.bool).tril()
        if kind == "boolean":
            return allowed
        return torch.zeros(allowed.shape).masked_fill(~allowed, torch.finfo(torch.float32).min)

    length, target_length = input_ids.shape[1], decoder_input_ids.shape[1]
    encoder_outputs = model.get_encoder()(input_ids, ready_made(attention_mask, length))
    actual = model(
        attention_mask=ready_made(attention_mask, target_length),
        encoder_outputs=encoder_outputs,
        decoder_input_ids=decoder_input_ids,
        decoder_attention_mask=ready_made(decoder_attention_mask, target_length, causal=True),
    ).logits
    assert_close(actual, expected)


@torch.no_grad()
def test_finite_numbers_in_an_additive_mask_are_added_to_the_scores():
    """Such as a bias by distance: eager and sdpa add it alike, and what is hidden stays hidden."""
    eager, source, target = tiny_model(), random_ids(2, 5), random_ids(2, 6)
    hidden = torch.full((6, 6), torch.finfo(torch.float32).min).triu(1)
    bias = torch.randn(2, 4, 6, 6, generator=torch.Generator().manual_seed(0)).tril() + hidden
    plain, biased, other = (
        model(source, decoder_input_ids=target, decoder_attention_mask=mask).logits
        for model, mask in ((eager, None), (eager, bias), (with_attention(eager, "sdpa"), bias))
    )
    assert_close(biased, other)
    assert (biased - plain).abs().max() > 0.01


@both_backends
@torch.no_grad()
def test_a_ready_made_decoder_mask_replaces_the_causal_one(attention):
    """A prefix that sees itself whole: its first token then depends on its last."""
    model = tiny_model(attention=attention)
    mask = torch.ones(6, 6, dtype=torch.bool).tril()
    mask[:3, :3] = True
    mask = mask.expand(2, 1, -1, -1)
    target = random_ids(2, 6)
    changed = target.clone()
    changed[:, 2] = (target[:, 2] - 2) % 47 + 3
    before, after = (
        model(random_ids(2, 5), decoder_input_ids=ids, decoder_attention_mask=mask).logits for ids in (target, changed)
    )
    assert (before[:, 0] - after[:, 0]).abs().max() > 0.01
    later = target.clone()
    later[:, 4] = (target[:, 4] - 2) % 47 + 3
    assert_close(
        model(random_ids(2, 5), decoder_input_ids=later, decoder_attention_mask=mask).logits[:, :4], before[:, :4]
    )


# Caches


@every_case
@both_backends
def test_decoding_token_by_token_equals_decoding_at_once(case, attention):
    assert_cache_is_invisible(tiny_model(attention=attention, **case), [1] * 5)


@both_backends
@pytest.mark.parametrize("steps", ([3, 1, 4], [1, 6], [4, 4]), ids=str)
def test_decoding_in_chunks_equals_decoding_at_once(attention, steps):
    """A chunk sees all that is cached and, of itself, only what came before."""
    assert_cache_is_invisible(tiny_model(attention=attention), steps)


@both_backends
@torch.no_grad()
def test_a_left_padded_target_can_be_decoded_in_chunks(attention):
    """The mask covers what is cached too, and positions are the caller's."""
    model = tiny_model(attention=attention)
    sources = random_ids(3, 6)
    ids, mask = pad(TARGETS, "left")
    positions, cache, pieces = positions_of(mask), None, []
    for start, end in ((0, 4), (4, 5), (5, 8)):
        output = model(
            sources,
            decoder_input_ids=ids[:, start:end],
            decoder_attention_mask=mask[:, :end],
            decoder_position_ids=positions[:, start:end],
            cache=cache,
            use_cache=True,
        )
        cache = output.cache
        pieces.append(output.logits)
    logits = torch.cat(pieces, dim=1)
    for row, target in enumerate(TARGETS):
        alone = model(sources[row, None], decoder_input_ids=target[None]).logits[0]
        assert_close(logits[row, mask[row] == 1], alone)


@torch.no_grad()
def test_a_plain_cache_is_completed_for_cross_attention():
    model, source, target = tiny_model(), random_ids(2, 5), random_ids(2, 6)
    expected = model(source, decoder_input_ids=target).logits
    cache = DynamicCache(config=model.config)
    first = model(source, decoder_input_ids=target[:, :4], cache=cache, use_cache=True)
    assert isinstance(first.cache, EncoderDecoderCache) and first.cache.self_attention_cache is cache
    second = model(source, decoder_input_ids=target[:, 4:], cache=first.cache, use_cache=True)
    assert_close(torch.cat((first.logits, second.logits), dim=1), expected)


@torch.no_grad()
def test_the_source_is_projected_once_for_all_steps():
    """Keys and values of the source do not change, so later steps read them from the cache."""
    model, source, target = tiny_model(), random_ids(2, 5), random_ids(2, 6)
    calls = []
    for layer in model.get_decoder().layers:
        layer.cross_attn.k_proj.register_forward_hook(lambda *_: calls.append(1))
    cache = None
    for step in range(4):
        cache = model(source, decoder_input_ids=target[:, step, None], cache=cache, use_cache=True).cache
    assert len(calls) == len(model.get_decoder().layers)


@torch.no_grad()
def test_use_cache_follows_the_argument_then_the_labels_then_the_config():
    model, source, target = tiny_model(), random_ids(2, 5), random_ids(2, 6)
    assert model(source, decoder_input_ids=target).cache is not None
    assert model(source, decoder_input_ids=target, use_cache=False).cache is None
    assert model(source, labels=target).cache is None
    assert model(source, labels=target, use_cache=True).cache is not None
    model.config.use_cache = False
    assert model(source, decoder_input_ids=target).cache is None
    assert model(source, decoder_input_ids=target, use_cache=True).cache is not None


# Backends


@every_case
def test_sdpa_equals_eager_in_logits_and_all_gradients(case):
    assert_backends_agree(tiny_model(**case))


def test_sdpa_equals_eager_without_any_mask():
    """Then sdpa decides by itself what is causal."""
    eager = tiny_model()
    batch = {"input_ids": random_ids(2, 7), "labels": random_ids(2, 7, seed=1)}
    expected_gradients, expected = gradients(eager, **batch)
    actual_gradients, actual = gradients(with_attention(eager, "sdpa"), **batch)
    assert_close(actual.logits, expected.logits)
    assert_gradients_close(actual_gradients, expected_gradients)


# Who sees whom


@every_case
@both_backends
@torch.no_grad()
def test_a_later_target_token_changes_no_earlier_logits(case, attention):
    model = tiny_model(attention=attention, **case)
    source, target = random_ids(2, 7), random_ids(2, 7, seed=1)
    changed = target.clone()
    changed[:, 4] = (target[:, 4] - 2) % 47 + 3  # another token that is not special
    padded = torch.tensor([[1] * 7, [1] * 5 + [0] * 2])
    for mask in (None, torch.ones_like(padded), padded):
        before, after = (
            model(source, decoder_input_ids=ids, decoder_attention_mask=mask).logits for ids in (target, changed)
        )
        assert_close(after[:, :4], before[:, :4])
        assert ((after - before)[:, 4].abs().amax(-1) > 1e-3).all()


@every_case
@both_backends
@torch.no_grad()
def test_an_earlier_source_token_sees_a_later_one(case, attention):
    model = tiny_model(attention=attention, **case)
    source, target = random_ids(2, 7), random_ids(2, 7, seed=1)
    changed = source.clone()
    changed[:, 6] = (source[:, 6] - 2) % 47 + 3
    for mask in (None, torch.ones_like(source)):
        before, after = (
            model(ids, mask, decoder_input_ids=target, output_hidden_states=True) for ids in (source, changed)
        )
        moved = (after.encoder_last_hidden_state - before.encoder_last_hidden_state).abs().amax(-1)
        assert (moved[:, 0] > 1e-4).all(), "the encoder must not be causal"
        assert ((after.logits - before.logits)[:, 0].abs().amax(-1) > 1e-4).all(), "nor must cross-attention"


@every_case
@torch.no_grad()
def test_the_encoder_knows_the_order_of_tokens_from_their_positions_only(case):
    """Self-attention without positions is equivariant under permutations: tokens that move together with their
    positions give the same states in another order, and tokens that move alone do not."""
    model = tiny_model(**case)
    encoder, source, order = model.get_encoder(), random_ids(2, 7), torch.tensor([3, 0, 6, 1, 5, 2, 4])
    states = encoder(source).last_hidden_state[:, order]
    assert_close(encoder(source[:, order], position_ids=order[None]).last_hidden_state, states)
    assert (encoder(source[:, order]).last_hidden_state - states).abs().max() > 0.01


@torch.no_grad()
def test_the_decoder_knows_the_order_of_tokens_too():
    model, source, target = tiny_model(), random_ids(2, 5), random_ids(2, 6)
    mask = torch.ones(1, 1, 6, 6, dtype=torch.bool)  # causality alone tells something about the order: off
    order = torch.tensor([3, 0, 5, 1, 2, 4])
    logits = model(source, decoder_input_ids=target, decoder_attention_mask=mask).logits[:, order]
    together, alone = (
        model(source, decoder_input_ids=target[:, order], decoder_attention_mask=mask, **positions).logits
        for positions in ({"decoder_position_ids": order[None]}, {})
    )
    assert_close(together, logits)
    assert (alone - logits).abs().max() > 0.01


# Other ways in


@torch.no_grad()
def test_embeddings_given_by_the_caller_equal_ids():
    """They are rows of the embedding, scaled inside: the contract of transformers, PEFT and generate()."""
    model, source, target = tiny_model(tie_word_embeddings=False), random_ids(2, 5), random_ids(2, 6)
    expected = model(source, decoder_input_ids=target).logits
    actual = model(
        inputs_embeds=model.get_input_embeddings()(source),
        decoder_inputs_embeds=model.get_decoder().embed_tokens(target),
    ).logits
    assert_close(actual, expected, 1e-6)


@torch.no_grad()
def test_encoder_outputs_can_be_given_in_any_form():
    model, source, target = tiny_model(), random_ids(2, 5), random_ids(2, 6)
    mask = torch.tensor([[1] * 5, [1] * 3 + [0] * 2])
    expected = model(source, mask, decoder_input_ids=target).logits
    states = model.get_encoder()(source, mask).last_hidden_state
    for given in (BaseModelOutput(last_hidden_state=states), (states,), [states]):
        assert torch.equal(model(None, mask, decoder_input_ids=target, encoder_outputs=given).logits, expected)


@torch.no_grad()
def test_a_tuple_holds_the_same_as_the_output_object():
    model, source, target = tiny_model(), random_ids(2, 5), random_ids(2, 6)
    output = model(source, labels=target)
    loss, logits, *_ = model(source, labels=target, return_dict=False)
    assert torch.equal(loss, output.loss) and torch.equal(logits, output.logits)


@torch.no_grad()
def test_the_model_without_a_head_gives_the_states_the_head_reads():
    model, source, target = tiny_model(lm_head_bias=True), random_ids(2, 5), random_ids(2, 6)
    assert isinstance(model.model, TransformerEncoderDecoderModel)
    states = model.model(source, decoder_input_ids=target).last_hidden_state
    assert_close(
        states @ model.lm_head.weight.T + model.lm_head.bias, model(source, decoder_input_ids=target).logits, 1e-6
    )


# What can be looked at


@pytest.mark.parametrize("norm_position", ("post", "pre"))
@pytest.mark.parametrize("depths", ((2, 3), (3, 1)), ids=str)
@torch.no_grad()
def test_hidden_states_and_attention_weights_can_be_read_at_unequal_depths(norm_position, depths):
    encoder_layers, decoder_layers = depths
    model = tiny_model(norm_position=norm_position, encoder_layers=encoder_layers, decoder_layers=decoder_layers)
    input_ids, attention_mask = pad(SOURCES)
    target = random_ids(3, 5)
    output = model(
        input_ids, attention_mask, decoder_input_ids=target, output_hidden_states=True, output_attentions=True
    )
    assert [tuple(states.shape) for states in output.encoder_hidden_states] == [(3, 9, 16)] * (encoder_layers + 1)
    assert [tuple(states.shape) for states in output.decoder_hidden_states] == [(3, 5, 16)] * (decoder_layers + 1)
    assert [tuple(weights.shape) for weights in output.encoder_attentions] == [(3, 4, 9, 9)] * encoder_layers
    assert [tuple(weights.shape) for weights in output.decoder_attentions] == [(3, 4, 5, 5)] * decoder_layers
    assert [tuple(weights.shape) for weights in output.cross_attentions] == [(3, 4, 5, 9)] * decoder_layers
    for weights in output.encoder_attentions + output.decoder_attentions + output.cross_attentions:
        assert (weights >= 0).all()
        assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]), 1e-6)
    for weights in output.encoder_attentions + output.cross_attentions:
        assert (weights.movedim(-1, 1)[attention_mask == 0] == 0).all()
    for weights in output.decoder_attentions:
        assert (weights.triu(1) == 0).all() and (weights.tril() > 0).any()
    assert torch.equal(output.encoder_hidden_states[-1], output.encoder_last_hidden_state)
    assert torch.equal(model.lm_head(output.decoder_hidden_states[-1]), output.logits)
    plain = model(input_ids, attention_mask, decoder_input_ids=target)
    assert torch.equal(plain.logits, output.logits)
    assert plain.encoder_hidden_states is plain.decoder_attentions is plain.cross_attentions is None


@pytest.mark.parametrize("depths", ((2, 3), (3, 1)), ids=str)
@torch.no_grad()
def test_hidden_states_chosen_from_the_end_count_from_the_end_of_their_own_stack(depths):
    encoder_layers, decoder_layers = depths
    model = tiny_model(encoder_layers=encoder_layers, decoder_layers=decoder_layers)
    batch = {"input_ids": random_ids(2, 5), "decoder_input_ids": random_ids(2, 4)}
    everything, last = (model(**batch, output_hidden_states=wanted) for wanted in (True, [-1]))
    for field, depth in (("encoder_hidden_states", encoder_layers), ("decoder_hidden_states", decoder_layers)):
        assert [states is None for states in last[field]] == [True] * depth + [False]
        assert torch.equal(last[field][-1], everything[field][-1])


@torch.no_grad()
def test_the_first_hidden_state_is_the_scaled_embedding_plus_its_position():
    model, source, target = tiny_model(), random_ids(2, 5), random_ids(2, 6)
    output = model(source, decoder_input_ids=target, output_hidden_states=True)
    table = model.get_input_embeddings().weight
    positions = model.get_encoder().embed_positions(torch.arange(6))
    assert_close(output.encoder_hidden_states[0], table[source] * 4 + positions[:5], 1e-6)  # 4 = √16
    assert_close(output.decoder_hidden_states[0], table[target] * 4 + positions, 1e-6)


# Layers by hand


def by_hand(layer, x, encoder_states=None):
    """One layer written out once more, with plain tensor operations, for one sequence without padding."""

    def attend(attention, queries, sources, causal):
        heads, groups = layer.self_attn.config.num_attention_heads, attention.num_key_value_groups
        q, k, v = attention.q_proj(queries), attention.k_proj(sources), attention.v_proj(sources)
        size = q.shape[-1] // heads
        mixed = []
        for head in range(heads):
            mine = slice(head * size, (head + 1) * size)
            shared = slice(head // groups * size, (head // groups + 1) * size)
            scores = q[:, mine] @ k[:, shared].T / size**0.5
            if causal:
                scores = scores + torch.full(scores.shape, -torch.inf).triu(1)
            mixed.append(scores.softmax(-1) @ v[:, shared])
        return attention.o_proj(torch.cat(mixed, dim=-1))

    def feed_forward(x):
        mlp = layer.mlp
        if hasattr(mlp, "gate_proj"):
            return mlp.down_proj(nn.functional.silu(mlp.gate_proj(x)) * mlp.up_proj(x))
        return mlp.down_proj(mlp.up_proj(x).relu())

    def norm(module, x):
        centred = x - x.mean(-1, keepdim=True)
        return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * module.weight + module.bias

    sublayers = [(layer.self_attn_norm, lambda x: attend(layer.self_attn, x, x, encoder_states is not None))]
    if encoder_states is not None:
        sublayers.append((layer.cross_attn_norm, lambda x: attend(layer.cross_attn, x, encoder_states, False)))
    sublayers.append((layer.mlp_norm, feed_forward))
    for module, sublayer in sublayers:
        if layer.self_attn.config.norm_position == "post":
            x = norm(module, x + sublayer(x))
        else:
            x = x + sublayer(norm(module, x))
    return x


@pytest.mark.parametrize("norm_position", ("post", "pre"))
@pytest.mark.parametrize(
    "kind", ({}, {"gated_mlp": True, "hidden_act": "silu", "num_key_value_heads": 2, "head_dim": 6})
)
@torch.no_grad()
def test_a_layer_is_what_the_paper_writes(norm_position, kind):
    model = tiny_model(norm_position=norm_position, **kind)
    output = model(random_ids(1, 6), decoder_input_ids=random_ids(1, 5), output_hidden_states=True)
    source, target = output.encoder_hidden_states[0][0], output.decoder_hidden_states[0][0]
    for layer in model.get_encoder().layers:
        source = by_hand(layer, source)
    if norm_position == "pre":
        source = model.get_encoder().norm(source)
    assert_close(output.encoder_last_hidden_state[0], source)
    for layer in model.get_decoder().layers:
        target = by_hand(layer, target, source)
    if norm_position == "pre":
        target = model.get_decoder().norm(target)
    assert_close(output.logits[0], target @ model.lm_head.weight.T)


@pytest.mark.parametrize("name", ("gelu", "gelu_new", "relu", "silu", "tanh"))
@torch.no_grad()
def test_the_activation_is_the_one_named(name):
    functions = {
        "gelu": nn.functional.gelu,
        "gelu_new": lambda x: nn.functional.gelu(x, approximate="tanh"),
        "relu": torch.relu,
        "silu": lambda x: x * torch.sigmoid(x),
        "tanh": torch.tanh,
    }
    mlp, x = tiny_model(hidden_act=name).get_decoder().layers[1].mlp, torch.randn(3, 16)
    assert_close(mlp(x), mlp.down_proj(functions[name](mlp.up_proj(x))), 1e-6)


# Training mode


@pytest.mark.parametrize("norm_position", ("post", "pre"))
@both_backends
@torch.no_grad()
def test_dropping_every_sublayer_and_embedding_leaves_only_the_norms(norm_position, attention):
    """At probability 1 a dropout that stands at the wrong place, or is missing, lets something through."""
    model = tiny_model(attention=attention, norm_position=norm_position, hidden_dropout=1.0).train()
    logits = model(random_ids(2, 5), decoder_input_ids=random_ids(2, 4)).logits
    states = torch.zeros(2, 4, 16)
    decoder = model.get_decoder()
    if norm_position == "post":
        for layer in decoder.layers:
            for norm in (layer.self_attn_norm, layer.cross_attn_norm, layer.mlp_norm):
                states = norm(states)
    assert_close(logits, model.lm_head(decoder.norm(states)))


@both_backends
@torch.no_grad()
def test_dropping_all_attention_weights_leaves_the_output_bias(attention):
    model = tiny_model(attention=attention, attention_dropout=1.0).train()
    batch = {"input_ids": random_ids(2, 5), "decoder_input_ids": random_ids(2, 4)}
    dropped = model(**batch).logits
    for module in model.modules():
        if isinstance(module, TransformerAttention):
            module.o_proj.weight.zero_()
    assert_close(dropped, model.eval()(**batch).logits)


@pytest.mark.parametrize("gated_mlp", (False, True))
@torch.no_grad()
def test_dropping_all_activations_leaves_the_bias_of_the_feed_forward_network(gated_mlp):
    model = tiny_model(activation_dropout=1.0, gated_mlp=gated_mlp).train()
    batch = {"input_ids": random_ids(2, 5), "decoder_input_ids": random_ids(2, 4)}
    dropped = model(**batch).logits
    for layer in [*model.get_encoder().layers, *model.get_decoder().layers]:
        layer.mlp.down_proj.weight.zero_()
    assert_close(dropped, model.eval()(**batch).logits)


@pytest.mark.parametrize("knob", ("hidden_dropout", "attention_dropout", "activation_dropout"))
@both_backends
@torch.no_grad()
def test_dropout_is_random_in_training_and_off_in_eval(knob, attention):
    plain = tiny_model(attention=attention)
    model = tiny_model(attention=attention, **{knob: 0.4})
    batch = {"input_ids": random_ids(2, 5), "decoder_input_ids": random_ids(2, 4)}
    assert torch.equal(model(**batch).logits, plain(**batch).logits)
    model.train()
    assert (model(**batch).logits - model(**batch).logits).abs().max() > 0.01
    repeated = []
    for _ in range(2):
        torch.manual_seed(0)
        repeated.append(model(**batch).logits)
    assert torch.equal(*repeated)


@both_backends
@pytest.mark.parametrize("reentrant", (False, True), ids=("new", "reentrant"))
@pytest.mark.parametrize("dropout", (0.0, 0.3))
def test_gradient_checkpointing_changes_no_gradient(attention, reentrant, dropout):
    """Also with the cache left on, and with dropout, whose random numbers have to be the same the second time."""
    model = tiny_model(attention=attention, hidden_dropout=dropout, attention_dropout=dropout).train()
    batch = training_batch(7, 4, target_lengths=(5, 8), seed=5)
    torch.manual_seed(0)
    expected_gradients, expected = gradients(model, **batch)
    model.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": reentrant})
    calls = []
    for module in model.modules():
        if isinstance(module, TransformerLayer):
            module.mlp.up_proj.register_forward_hook(lambda *_: calls.append(1))
    torch.manual_seed(0)
    actual_gradients, actual = gradients(model, use_cache=True, **batch)
    assert len(calls) == 2 * 4, "every layer runs a second time in the backward pass"
    assert actual.cache is None
    assert_close(actual.loss, expected.loss, 1e-6)
    assert_gradients_close(actual_gradients, expected_gradients)


def test_a_model_under_gradient_checkpointing_can_still_generate():
    """Checkpointing concerns training alone: in eval mode, or without gradients, the cache works."""
    model = tiny_model()
    expected = model.generate(random_ids(2, 5), max_new_tokens=5, do_sample=False)
    model.activation_checkpointing_enable()
    for mode in (True, False):
        model.train(mode)
        assert torch.equal(model.generate(random_ids(2, 5), max_new_tokens=5, do_sample=False), expected)


def test_a_trained_step_moves_every_parameter_that_is_not_a_key_bias():
    """Nothing is cut off from the loss."""
    model = tiny_model(tie_word_embeddings=False, lm_head_bias=True, norm_position="pre", gated_mlp=True).train()
    found, _ = gradients(model, **training_batch(7, 4, target_lengths=(5, 8)))
    largest = max(gradient.abs().max() for gradient in found.values())
    for name, gradient in found.items():
        assert (gradient.abs().max() > 1e-4 * largest) != name.endswith("k_proj.bias"), name


def test_the_padding_row_of_the_embedding_gets_no_gradient_from_being_looked_up():
    model = tiny_model(tie_word_embeddings=False)
    found, _ = gradients(model, **training_batch(7, 4, target_lengths=(5, 8)))
    for side in ("encoder", "decoder"):
        gradient = found[f"model.{side}.embed_tokens.weight"]
        assert (gradient[PAD] == 0).all() and (gradient != 0).any()


@pytest.mark.slow
@pytest.mark.parametrize("case", list(combinations()), ids=name_of)
def test_every_combination_of_knobs(case):
    """The pairs above catch two knobs that get in each other's way; this catches three."""
    model = tiny_model(**case)
    assert_padding_is_invisible(model, "left")
    assert_cache_is_invisible(model, [2, 1, 1])
    assert_backends_agree(model)
