"""The same weights in transformers' MarianMTModel and here give the same numbers: logits, loss and every gradient, and
the same tokens in greedy and beam search.

Marian is the one class of transformers with the 2017 architecture: post-norm, sinusoids (halves), scaled and shared
embeddings. At their start norms are 1 and biases 0, and most faults would not show: all weights are random here. That
the comparison sees a fault is itself tested, by planting some.
"""

import pytest
import torch
from helpers import (
    EOS,
    PAD,
    VOCAB,
    assert_close,
    assert_gradients_close,
    pad,
    random_ids,
    random_rows,
    randomise,
    training_batch,
)
from transformers import MarianConfig, MarianMTModel

from hf_transformer import TransformerEncoderDecoderConfig, TransformerEncoderDecoderForConditionalGeneration


ENCODER_LAYERS, DECODER_LAYERS = 2, 3

# name here -> name in Marian, within a layer
LAYER = {
    "self_attn.q_proj": "self_attn.q_proj",
    "self_attn.k_proj": "self_attn.k_proj",
    "self_attn.v_proj": "self_attn.v_proj",
    "self_attn.o_proj": "self_attn.out_proj",
    "self_attn_norm": "self_attn_layer_norm",
    "mlp.up_proj": "fc1",
    "mlp.down_proj": "fc2",
    "mlp_norm": "final_layer_norm",
}
CROSS_ATTENTION = {
    "cross_attn.q_proj": "encoder_attn.q_proj",
    "cross_attn.k_proj": "encoder_attn.k_proj",
    "cross_attn.v_proj": "encoder_attn.v_proj",
    "cross_attn.o_proj": "encoder_attn.out_proj",
    "cross_attn_norm": "encoder_attn_layer_norm",
}


def names():
    """Every tensor here that is not tied to another -> its name in Marian."""
    result = {"model.encoder.embed_tokens.weight": "model.shared.weight", "lm_head.bias": "final_logits_bias"}
    for stack, depth, modules in (
        ("encoder", ENCODER_LAYERS, LAYER),
        ("decoder", DECODER_LAYERS, LAYER | CROSS_ATTENTION),
    ):
        for layer in range(depth):
            for mine, theirs in modules.items():
                for kind in ("weight", "bias"):
                    prefix = f"model.{stack}.layers.{layer}"
                    result[f"{prefix}.{mine}.{kind}"] = f"{prefix}.{theirs}.{kind}"
    return result


def marian(attention="eager", activation="swish", width=16, heads=4):
    config = MarianConfig(
        vocab_size=VOCAB,
        d_model=width,
        encoder_layers=ENCODER_LAYERS,
        decoder_layers=DECODER_LAYERS,
        encoder_attention_heads=heads,
        decoder_attention_heads=heads,
        encoder_ffn_dim=24,
        decoder_ffn_dim=24,
        max_position_embeddings=64,
        activation_function=activation,
        scale_embedding=True,
        share_encoder_decoder_embeddings=True,
        dropout=0.0,
        pad_token_id=PAD,
        eos_token_id=EOS,
        decoder_start_token_id=PAD,
        forced_eos_token_id=None,
        attn_implementation=attention,
    )
    model = MarianMTModel(config)
    positions = [stack.embed_positions for stack in (model.model.encoder, model.model.decoder)]
    tables = [module.weight.clone() for module in positions]
    randomise(model, seed=17)
    for module, table in zip(positions, tables, strict=True):
        module.weight.data.copy_(table)
    model.final_logits_bias.requires_grad_()  # a buffer there, a bias here: its gradient can be compared too
    return model.eval()


def ours(native, **changes):
    """The same architecture and the same weights."""
    config = native.config
    knobs = {
        "vocab_size": config.vocab_size,
        "hidden_size": config.d_model,
        "encoder_layers": config.encoder_layers,
        "decoder_layers": config.decoder_layers,
        "num_attention_heads": config.encoder_attention_heads,
        "intermediate_size": config.encoder_ffn_dim,
        "hidden_act": config.activation_function,
        "sinusoidal_layout": "halves",
        "lm_head_bias": True,
        "hidden_dropout": 0.0,
        "attn_implementation": config._attn_implementation,
    }
    model = TransformerEncoderDecoderForConditionalGeneration(TransformerEncoderDecoderConfig(**{**knobs, **changes}))
    theirs = native.state_dict()
    state = {
        mine: theirs[name].reshape(-1) if mine == "lm_head.bias" else theirs[name] for mine, name in names().items()
    }
    missing, unexpected = model.load_state_dict(state, strict=False)
    ties = {"model.decoder.embed_tokens.weight", "lm_head.weight"}
    assert not unexpected and set(missing) <= ties | final_norms(model)
    return model.eval()


def final_norms(model):
    """A pre-norm model, which is one of the planted faults, has two more norms."""
    return {name for name, _ in model.named_parameters() if ".layers." not in name and "norm" in name}


def batch():
    return training_batch(9, 5, 7, target_lengths=(6, 8, 3), seed=12)


def unpadded():
    """Without padding there are no masks, and a backend has to know by itself what is causal."""
    return {"input_ids": random_ids(2, 7), "labels": random_ids(2, 6, seed=1)}


def assert_equal(native, model, inputs=batch):
    """Logits, loss and gradients of a batch: to 1e-5 of the largest number."""
    outputs = []
    for each in (native, model):
        for tensor in (*each.parameters(), *each.buffers()):
            tensor.grad = None
        outputs.append(each(**inputs()))
        outputs[-1].loss.backward()
    tensors = dict(native.named_parameters()) | dict(native.named_buffers())
    gradients = [
        {mine: tensors[theirs].grad.reshape(model.get_parameter(mine).shape) for mine, theirs in names().items()},
        {mine: model.get_parameter(mine).grad for mine in names()},
    ]
    expected, actual = outputs
    assert_close(actual.encoder_last_hidden_state, expected.encoder_last_hidden_state, what="states of the source")
    assert_close(actual.logits, expected.logits, what="logits")
    assert_close(actual.loss, expected.loss, what="loss")
    assert_gradients_close(gradients[1], gradients[0], tolerance=1e-5)


both_backends = pytest.mark.parametrize("attention", ("eager", "sdpa"))


@both_backends
@pytest.mark.parametrize("activation", ("swish", "silu", "relu", "gelu"))
def test_logits_loss_and_every_gradient_equal_those_of_marian(attention, activation):
    native = marian(attention, activation)
    model = ours(native)
    assert {name for name, _ in model.named_parameters()} == set(names()), "every parameter is compared"
    assert_equal(native, model)
    assert_equal(native, model, unpadded)


@both_backends
def test_an_odd_width_equals_marian_too(attention):
    """It has one more sine than cosine column."""
    native = marian(attention, width=15, heads=3)
    assert_equal(native, ours(native))


def test_every_hidden_state_and_attention_weight_equals_that_of_marian():
    native = marian()
    wanted = {"output_hidden_states": True, "output_attentions": True}
    expected, actual = (model(**batch(), **wanted) for model in (native, ours(native)))
    for field in (
        "encoder_hidden_states",
        "decoder_hidden_states",
        "encoder_attentions",
        "decoder_attentions",
        "cross_attentions",
    ):
        for mine, theirs in zip(actual[field], expected[field], strict=True):
            assert_close(mine, theirs, what=field)


@both_backends
@pytest.mark.parametrize("beams", (1, 4))
def test_the_same_settings_generate_the_tokens_of_marian(attention, beams):
    native = marian(attention)
    input_ids, attention_mask = pad(random_rows(9, 5, 7, 6, seed=13))
    expected, actual = (
        model.generate(
            input_ids,
            attention_mask=attention_mask,
            num_beams=beams,
            do_sample=False,
            max_new_tokens=14,
            no_repeat_ngram_size=1,  # a random model would soon repeat one token
            length_penalty=0.6,
        )
        for model in (native, ours(native))
    )
    assert torch.equal(actual, expected)
    assert len(actual.unique(dim=0)) == 4 and actual.shape[1] > 6


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16), ids=str)
@both_backends
@torch.no_grad()
def test_in_half_precision_the_error_is_no_larger_than_that_of_marian(attention, dtype):
    """Both round, in places of their own, so neither is right: float32 is."""
    native = marian(attention)
    model = ours(native)
    exact = native(**batch()).logits
    theirs, mine = (
        (each.to(dtype)(**batch()).logits.float() - exact).square().mean().sqrt() for each in (native, model)
    )
    assert mine < 2 * theirs


# Tests of the test: each of these faults must be seen.


def swap(model, one, other):
    one, other = model.get_parameter(one), model.get_parameter(other)
    kept = one.data.clone()
    one.data.copy_(other.data)
    other.data.copy_(kept)


def without(model, name):
    model.get_parameter(name).data.zero_()


def shifted_positions(model, stack):
    module = model.get_submodule(f"model.{stack}.embed_positions")
    forward = module.forward
    module.forward = lambda position_ids: forward(position_ids + 1)


def other_masks(layers, attention, **masks):
    def change(module, args, kwargs):
        return args, kwargs | {"context": kwargs["context"]._replace(**masks)}

    for layer in layers:
        layer.get_submodule(attention).register_forward_pre_hook(change, with_kwargs=True)


def rescaled_scores(model):
    model.model.decoder.layers[1].self_attn.scaling = 16**-0.5


def untied_head(model):
    weight = model.lm_head.weight.detach().clone()
    model.lm_head.weight = torch.nn.Parameter(weight)


def visible_sources():
    return batch()["attention_mask"].bool()[:, None, None, :]


FAULTS = {
    "two norms swapped": lambda model: swap(
        model, "model.decoder.layers.1.self_attn_norm.weight", "model.decoder.layers.1.cross_attn_norm.weight"
    ),
    "two norm biases swapped": lambda model: swap(
        model, "model.encoder.layers.0.self_attn_norm.bias", "model.encoder.layers.0.mlp_norm.bias"
    ),
    "query and key swapped": lambda model: swap(
        model, "model.decoder.layers.0.cross_attn.q_proj.weight", "model.decoder.layers.0.cross_attn.k_proj.weight"
    ),
    "two layers swapped": lambda model: swap(
        model, "model.encoder.layers.0.mlp.up_proj.weight", "model.encoder.layers.1.mlp.up_proj.weight"
    ),
    "no bias of a query": lambda model: without(model, "model.decoder.layers.2.self_attn.q_proj.bias"),
    "no bias of a value": lambda model: without(model, "model.encoder.layers.1.self_attn.v_proj.bias"),
    "no bias of an output": lambda model: without(model, "model.decoder.layers.1.cross_attn.o_proj.bias"),
    "no bias in the feed-forward network": lambda model: without(model, "model.decoder.layers.0.mlp.up_proj.bias"),
    "no bias of the logits": lambda model: without(model, "lm_head.bias"),
    "source positions shifted": lambda model: shifted_positions(model, "encoder"),
    "target positions shifted": lambda model: shifted_positions(model, "decoder"),
    "a causal encoder": lambda model: other_masks(
        model.model.encoder.layers,
        "self_attn",
        attention_mask=torch.ones(9, 9, dtype=torch.bool).tril().expand(3, 1, -1, -1) & visible_sources(),
    ),
    "a decoder that sees what follows": lambda model: other_masks(
        model.model.decoder.layers, "self_attn", attention_mask=torch.ones(3, 1, 8, 8, dtype=torch.bool)
    ),
    "padding seen by the encoder": lambda model: other_masks(
        model.model.encoder.layers, "self_attn", attention_mask=None
    ),
    "padding seen by cross-attention": lambda model: other_masks(
        model.model.decoder.layers, "cross_attn", encoder_attention_mask=None
    ),
    "scores of one layer scaled by the width": rescaled_scores,
    "a head of its own": untied_head,
}
WRONG_KNOBS = {
    "sinusoidal_layout": "interleaved",
    "embedding_scale": 1.0,
    "norm_position": "pre",
    "hidden_act": "gelu",
    "num_attention_heads": 2,
    "norm_eps": 1e-3,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_seen(fault):
    native = marian()
    model = ours(native)
    assert_equal(native, model)
    FAULTS[fault](model)
    with pytest.raises(AssertionError, match="a difference of"):
        assert_equal(native, model)


@pytest.mark.parametrize("knob", WRONG_KNOBS)
def test_a_wrong_knob_is_seen(knob):
    native = marian()
    with pytest.raises(AssertionError, match="a difference of"):
        assert_equal(native, ours(native, **{knob: WRONG_KNOBS[knob]}))
