"""Sinusoids against the formula of the paper, written once more in numpy with 64 bits."""

import numpy as np
import pytest
import torch
from helpers import assert_close, random_ids, tiny_config, tiny_model

from hf_transformer.positions import SinusoidalPositions


layouts = pytest.mark.parametrize("layout", ("interleaved", "halves"))
half_types = pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16), ids=str)


def paper(positions, width, layout):
    """PE(p, 2i) = sin(p / 10000^(2i/width)), PE(p, 2i+1) = cos(p / 10000^(2i/width)), column by column."""
    table = np.empty((len(positions), width))
    for column in range(width):
        angle = np.asarray(positions, dtype=np.float64) / 10000 ** (column // 2 * 2 / width)
        table[:, column] = np.cos(angle) if column % 2 else np.sin(angle)
    if layout == "halves":  # all even columns, which are the sines, before the odd ones
        table = np.concatenate((table[:, 0::2], table[:, 1::2]), axis=1)
    return torch.from_numpy(table)


def encode(positions, width=16, layout="interleaved"):
    module = SinusoidalPositions(tiny_config(hidden_size=width, head_dim=4, sinusoidal_layout=layout))
    return module(torch.as_tensor(positions))


@layouts
@pytest.mark.parametrize("width", (1, 2, 15, 16, 33, 512))
def test_the_values_are_those_of_the_paper(layout, width):
    positions = np.arange(64)
    encoded = encode(positions, width, layout)
    assert encoded.dtype == torch.float32 and encoded.shape == (64, width)
    assert_close(encoded, paper(positions, width, layout))


def test_some_values_written_out():
    assert_close(
        encode([0, 1], width=4), torch.tensor([[0.0, 1.0, 0.0, 1.0], [0.841471, 0.540302, 0.0099998, 0.99995]]), 1e-5
    )
    assert_close(encode([1], width=4, layout="halves"), torch.tensor([[0.841471, 0.0099998, 0.540302, 0.99995]]), 1e-5)


@layouts
def test_the_values_stay_accurate_at_distant_positions(layout):
    """A float32 angle of 10000 is off by up to 0.0005, and its frequency by as much: the sine cannot be better."""
    positions = np.concatenate((np.arange(256, 1024), np.arange(9900, 10001)))
    assert_close(encode(positions, 64, layout), paper(positions, 64, layout), 2e-3)


def test_the_shape_of_the_positions_is_kept():
    positions = random_ids(3, 5)
    encoded = encode(positions)
    assert encoded.shape == (3, 5, 16)
    assert torch.equal(encoded[2, 1], encode(positions[2, 1]))
    assert torch.equal(encode(positions.int()), encoded)


@pytest.mark.parametrize("layout, sines", (("interleaved", slice(0, None, 2)), ("halves", slice(0, 8))))
def test_moving_by_a_distance_is_a_rotation_that_depends_on_the_distance_only(layout, sines):
    """PE(p + k) is a linear function of PE(p): each pair of sine and cosine turns by k times its frequency."""
    start, distance = torch.arange(40), 7
    here, there = encode(start, layout=layout), encode(start + distance, layout=layout)
    step = encode([distance], layout=layout)
    other = [column for column in range(16) if column not in range(16)[sines]]
    sine, cosine, turn_sine, turn_cosine = here[:, sines], here[:, other], step[:, sines], step[:, other]
    assert_close(there[:, sines], sine * turn_cosine + cosine * turn_sine, 1e-5)
    assert_close(there[:, other], cosine * turn_cosine - sine * turn_sine, 1e-5)


@half_types
@pytest.mark.parametrize("how", ("cast", "loaded"))
def test_in_half_precision_positions_stay_exact(dtype, how, tmp_path):
    """bfloat16 has no number between 256 and 258, so positions must not be rounded before the sine."""
    model = tiny_model()
    positions = torch.tensor([0, 1, 255, 256, 257, 2047, 2049, 9999, 10000])
    expected = model.get_encoder().embed_positions(positions)
    if how == "cast":
        model = model.to(dtype)
    else:
        model.save_pretrained(tmp_path)
        model = type(model).from_pretrained(tmp_path, dtype=dtype)
    for stack in (model.get_encoder(), model.get_decoder()):
        encoded = stack.embed_positions(positions)
        assert encoded.dtype == torch.float32 and torch.equal(encoded, expected)


@half_types
@torch.no_grad()
def test_in_half_precision_a_distant_input_is_as_exact_as_a_near_one(dtype):
    model, ids = tiny_model(), random_ids(2, 8)
    half = tiny_model().to(dtype)
    errors = []
    for start in (0, 9990):
        position_ids = torch.arange(start, start + 8)[None]
        expected = model.get_encoder()(ids, position_ids=position_ids).last_hidden_state
        errors.append((half.get_encoder()(ids, position_ids=position_ids).last_hidden_state - expected).abs().mean())
    assert errors[1] < 2 * errors[0]


@layouts
@torch.no_grad()
def test_there_is_no_greatest_length(layout):
    """max_position_embeddings says what the model is meant for; a formula has no end."""
    short, long = (
        tiny_model(sinusoidal_layout=layout, max_position_embeddings=length, hidden_size=16) for length in (8, 64)
    )
    source, target = random_ids(2, 21), random_ids(2, 19)
    expected = long(source, decoder_input_ids=target).logits
    assert torch.equal(short(source, decoder_input_ids=target).logits, expected)
    assert short.generate(source, max_new_tokens=12, eos_token_id=None).shape == (2, 13)


@torch.no_grad()
def test_source_and_target_count_from_zero_and_a_cache_counts_on():
    model, source, target = tiny_model(), random_ids(2, 5), random_ids(2, 6)
    expected = model(source, decoder_input_ids=target).logits
    given = model(
        source,
        decoder_input_ids=target,
        position_ids=torch.arange(5)[None],
        decoder_position_ids=torch.arange(6).expand(2, -1),
    ).logits
    assert torch.equal(given, expected)
    moved = model(source, decoder_input_ids=target, decoder_position_ids=torch.arange(1, 7)[None]).logits
    assert (moved - expected).abs().max() > 0.01
    cache = model(source, decoder_input_ids=target[:, :4], use_cache=True).cache
    seen = []
    model.get_decoder().embed_positions.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    model(source, decoder_input_ids=target[:, 4:], cache=cache)
    assert seen[0].tolist() == [[4, 5]]


def test_nothing_of_them_is_saved():
    model = tiny_model()
    assert not list(model.buffers())
    assert not any("position" in name for name in model.state_dict())


@layouts
def test_they_survive_loading_onto_memory_full_of_garbage(layout, tmp_path, monkeypatch):
    """from_pretrained builds the model without memory, and what no file holds gets whatever lies there."""
    model = tiny_model(sinusoidal_layout=layout)
    model.save_pretrained(tmp_path)
    real = torch.empty_like

    def full_of_garbage(*args, **kwargs):
        tensor = real(*args, **kwargs)
        return tensor if tensor.is_meta or not tensor.is_floating_point() else tensor.fill_(torch.nan)

    monkeypatch.setattr(torch, "empty_like", full_of_garbage)
    loaded = type(model).from_pretrained(tmp_path, attn_implementation="eager")
    monkeypatch.undo()
    positions = torch.arange(300)
    assert torch.equal(loaded.get_decoder().embed_positions(positions), model.get_decoder().embed_positions(positions))
    source, target = random_ids(2, 5), random_ids(2, 6)
    assert torch.equal(loaded(source, decoder_input_ids=target).logits, model(source, decoder_input_ids=target).logits)
