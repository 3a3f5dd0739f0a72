"""generate(): whatever saves time or memory, and whatever stands beside a row in a batch, changes no token of it."""

import pytest
import torch
from helpers import EOS, PAD, assert_close, pad, positions_of, random_ids, random_rows, tiny_model
from transformers import EncoderDecoderCache, GenerationConfig
from transformers.generation.streamers import BaseStreamer


both_backends = pytest.mark.parametrize("attention", ("eager", "sdpa"))
every_strategy = pytest.mark.parametrize(
    "strategy",
    (
        {},
        {"do_sample": True},
        {"do_sample": True, "top_k": 5, "temperature": 0.7, "num_return_sequences": 2},
        {"num_beams": 4},
        {"num_beams": 4, "num_return_sequences": 3, "length_penalty": 0.6, "eos_token_id": EOS},
        {"num_beams": 3, "do_sample": True},
        {"no_repeat_ngram_size": 0, "repetition_penalty": 1.8},
    ),
    ids=lambda strategy: "-".join(f"{knob}={value}" for knob, value in strategy.items()) or "greedy",
)

SOURCES = random_rows(7, 4, 9, seed=1)
KNOBS = {"norm_position": "pre", "num_key_value_heads": 2, "lm_head_bias": True}


def generate(model, input_ids, attention_mask=None, **settings):
    """Twelve tokens. All are different, since a random model left alone soon repeats one, which would hide much."""
    torch.manual_seed(0)
    defaults = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None, "no_repeat_ngram_size": 1}
    return model.generate(input_ids, attention_mask=attention_mask, **{**defaults, **settings})


@both_backends
@every_strategy
@pytest.mark.parametrize("knobs", ({}, KNOBS), ids=("default", "pre"))
def test_with_and_without_a_cache_the_tokens_are_the_same(attention, strategy, knobs):
    model = tiny_model(attention=attention, **knobs)
    with_cache, without = (generate(model, *pad(SOURCES), use_cache=use, **strategy) for use in (True, False))
    assert torch.equal(with_cache, without)
    assert len(with_cache.unique(dim=0)) >= len(SOURCES), "the tokens depend on the source"


@pytest.mark.parametrize("strategy", ({}, {"num_beams": 4}), ids=("greedy", "beams"))
def test_with_and_without_a_cache_the_scores_are_the_same(strategy):
    model = tiny_model()
    settings = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True, **strategy}
    with_cache, without = (generate(model, *pad(SOURCES), use_cache=use, **settings) for use in (True, False))
    assert torch.equal(with_cache.sequences, without.sequences)
    for name in ("scores", "logits"):
        for mine, other in zip(with_cache[name], without[name], strict=True):
            finite = mine.isfinite()  # what a strategy has ruled out is -inf
            assert torch.equal(finite, other.isfinite())
            assert_close(mine[finite], other[finite])


@pytest.mark.parametrize("strategy", ({}, {"num_beams": 3}), ids=("greedy", "beams"))
@pytest.mark.parametrize("side", ("right", "left"))
def test_a_row_of_a_batch_generates_what_it_generates_alone(strategy, side):
    """Padding on the left needs the positions of the source, since generate() makes none for an encoder."""
    model = tiny_model()
    input_ids, attention_mask = pad(SOURCES, side)
    positions = {"position_ids": positions_of(attention_mask)} if side == "left" else {}
    together = generate(model, input_ids, attention_mask, eos_token_id=EOS, **positions, **strategy)
    for row, source in enumerate(SOURCES):
        alone = generate(model, source[None], eos_token_id=EOS, **strategy)[0]
        assert together[row, : len(alone)].tolist() == alone.tolist()
        assert (together[row, len(alone) :] == PAD).all()


def test_greedy_search_takes_the_best_token_at_every_step():
    model, source = tiny_model(), random_ids(2, 6)
    tokens = generate(model, source, no_repeat_ngram_size=0)
    assert tokens.shape == (2, 13) and (tokens[:, 0] == PAD).all()
    logits = model(source, decoder_input_ids=tokens[:, :-1]).logits
    assert torch.equal(logits.argmax(-1), tokens[:, 1:])


def test_the_start_token_and_the_end_token_are_those_of_the_config():
    """Both come from the config without being asked for; behind the end there is padding only."""
    model, source = tiny_model(lm_head_bias=True, decoder_start_token_id=7), random_ids(8, 6)
    with torch.no_grad():
        model.lm_head.bias[EOS] = 2.0  # so that the end comes, sooner for some rows than for others
    tokens = model.generate(source, max_new_tokens=12, do_sample=False, no_repeat_ngram_size=1)
    assert (tokens[:, 0] == 7).all()
    ends = [row.index(EOS) for row in tokens.tolist() if EOS in row]
    assert len(set(ends)) > 1
    for row in tokens.tolist():
        if EOS in row:
            assert set(row[row.index(EOS) + 1 :]) <= {PAD}


@both_backends
@pytest.mark.parametrize("cached", (False, True))
def test_generation_continues_where_it_stopped(attention, cached):
    """With a cache, the mask tells generate() that the sequence starts with what is cached, as it does everywhere."""
    model = tiny_model(attention=attention)
    input_ids, attention_mask = pad(SOURCES)
    at_once = generate(model, input_ids, attention_mask)
    first = generate(model, input_ids, attention_mask, max_new_tokens=4, return_dict_in_generate=True)
    assert isinstance(first.cache, EncoderDecoderCache) and first.cache.get_seq_length() == 4
    start = {"decoder_input_ids": first.sequences, "decoder_attention_mask": torch.ones_like(first.sequences)}
    if cached:
        start["cache"] = first.cache
    assert torch.equal(generate(model, input_ids, attention_mask, max_new_tokens=8, **start), at_once)


@both_backends
def test_generation_continues_a_prefix_of_the_caller(attention):
    model = tiny_model(attention=attention)
    input_ids, attention_mask = pad(SOURCES)
    prefix = torch.cat((torch.full((3, 1), PAD), random_ids(3, 4, seed=9)), dim=1)
    with_cache, without = (
        generate(model, input_ids, attention_mask, decoder_input_ids=prefix, use_cache=use) for use in (True, False)
    )
    assert torch.equal(with_cache[:, :5], prefix) and torch.equal(with_cache, without)


@pytest.mark.parametrize("use_cache", (True, False))
def test_left_padded_prefixes_of_different_length_continue_as_alone(use_cache):
    """Given the mask and the positions of the prefixes, generate() counts on from them."""
    model, sources = tiny_model(decoder_start_token_id=7), random_ids(2, 6)
    prefixes = [torch.cat((torch.tensor([7]), prefix)) for prefix in random_rows(5, 3, seed=9)]
    ids, mask = pad(prefixes, "left")
    together = generate(
        model,
        sources,
        decoder_input_ids=ids,
        decoder_attention_mask=mask,
        decoder_position_ids=positions_of(mask),
        use_cache=use_cache,
    )
    for row, prefix in enumerate(prefixes):
        alone = generate(model, sources[row, None], decoder_input_ids=prefix[None])[0]
        assert torch.equal(together[row, -len(alone) :], alone)


@both_backends
@pytest.mark.parametrize("strategy", ({}, {"num_beams": 3}), ids=("greedy", "beams"))
def test_a_static_cache_gives_the_tokens_of_a_dynamic_one(attention, strategy):
    model = tiny_model(attention=attention, **KNOBS)
    dynamic = generate(model, *pad(SOURCES), **strategy)
    static = generate(model, *pad(SOURCES), cache_implementation="static", disable_compile=True, **strategy)
    assert torch.equal(static, dynamic)


class Recorder(BaseStreamer):
    def __init__(self):
        self.tokens, self.ended = [], False

    def put(self, value):
        self.tokens += value.flatten().tolist()

    def end(self):
        self.ended = True


def test_a_stream_gives_the_tokens_that_are_returned():
    recorder = Recorder()
    tokens = generate(tiny_model(), random_ids(1, 6), streamer=recorder)
    assert recorder.ended and recorder.tokens == tokens[0].tolist()


def test_a_draft_model_changes_no_token():
    """Assisted generation takes a draft's token only where the model agrees, and takes the others out of the cache."""
    model, draft, source = tiny_model(), tiny_model(), random_ids(1, 6)
    with torch.no_grad():
        for parameter in draft.parameters():
            parameter += 0.03 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    assert torch.equal(generate(model, source, assistant_model=draft), generate(model, source))


def test_embeddings_generate_what_their_ids_generate():
    model, source = tiny_model(), random_ids(2, 6)
    embeddings = model.get_input_embeddings()(source)
    actual = model.generate(
        inputs_embeds=embeddings, max_new_tokens=12, do_sample=False, eos_token_id=None, no_repeat_ngram_size=1
    )
    assert torch.equal(actual, generate(model, source))


def test_the_encoder_runs_once_and_the_decoder_reads_one_token_a_step():
    model, lengths, runs = tiny_model(), [], []
    model.get_encoder().register_forward_hook(lambda *_: runs.append(1))
    model.get_decoder().layers[0].register_forward_pre_hook(lambda _, args: lengths.append(args[0].shape[1]))
    generate(model, random_ids(2, 6), max_new_tokens=5)
    assert len(runs) == 1 and lengths == [1] * 5


def test_attentions_and_states_of_every_step_are_returned_on_request():
    output = generate(
        tiny_model(),
        *pad(SOURCES),
        max_new_tokens=3,
        return_dict_in_generate=True,
        output_attentions=True,
        output_hidden_states=True,
    )
    assert [tuple(step[-1].shape) for step in output.cross_attentions] == [(3, 4, 1, 9)] * 3
    assert [tuple(step[-1].shape) for step in output.decoder_attentions] == [(3, 4, 1, n) for n in (1, 2, 3)]
    assert len(output.encoder_attentions) == 2 and len(output.encoder_hidden_states) == 3
    for step in output.cross_attentions:
        assert (step[0][1, :, :, 4:] == 0).all(), "the second source has four tokens"


def test_a_generation_config_is_saved_and_used(tmp_path):
    model, source = tiny_model(), random_ids(2, 6)
    model.generation_config = GenerationConfig(
        max_new_tokens=5, num_beams=2, pad_token_id=PAD, eos_token_id=None, decoder_start_token_id=9
    )
    expected = model.generate(source)
    assert expected.shape == (2, 6) and (expected[:, 0] == 9).all()
    model.save_pretrained(tmp_path)
    assert torch.equal(type(model).from_pretrained(tmp_path).generate(source), expected)
