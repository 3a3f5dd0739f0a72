"""Small models in which no weight has its start value, small batches, and the combinations of knobs to try them with.

With fresh weights norms are 1 and biases 0, and a swapped norm or a lost bias would change nothing: so every parameter
and buffer is drawn at random before anything is compared.
"""

import itertools

import torch
from torch import nn

from hf_transformer import TransformerEncoderDecoderConfig, TransformerEncoderDecoderForConditionalGeneration


PAD, BOS, EOS = 0, 1, 2
VOCAB = 50
IGNORED = -100  # the label that does not count

KNOBS = {
    "norm_position": ("post", "pre"),
    "sinusoidal_layout": ("interleaved", "halves"),
    "gated_mlp": (False, True),
    "hidden_act": ("relu", "gelu", "silu"),
    "tie_word_embeddings": (True, False),
    "num_key_value_heads": (4, 2, 1),
    "width": ({}, {"head_dim": 6}, {"hidden_size": 15, "head_dim": 6}),
    "embedding_scale": (None, 1.0),
    "lm_head_bias": (False, True),
}


def combinations():
    """The full product of the knobs, as changes for `tiny_config`."""
    for values in itertools.product(*KNOBS.values()):
        case = dict(zip(KNOBS, values, strict=True))
        yield case | case.pop("width")


def pairwise():
    """As few combinations as a greedy choice needs to show every value of a knob with every value of every other."""

    def pairs(case):
        shown = {**case, "width": (case.get("hidden_size"), case.get("head_dim"))}
        return set(itertools.combinations(((knob, shown[knob]) for knob in KNOBS), 2))

    candidates = [(case, pairs(case)) for case in combinations()]
    missing = set().union(*(covered for _, covered in candidates))
    chosen = []
    while missing:
        case, covered = max(candidates, key=lambda candidate: len(candidate[1] & missing))
        chosen.append(case)
        missing -= covered
    return chosen


def name_of(case):
    """A combination as the id of a test: strings as they are, True by its knob, numbers as knob=number."""
    shown = ((knob, value) for knob, value in case.items() if value is not False and value is not None)
    return "-".join(
        value if isinstance(value, str) else knob if value is True else f"{knob}={value}" for knob, value in shown
    )


def tiny_config(**changes):
    sizes = {"vocab_size": VOCAB, "hidden_size": 16, "num_attention_heads": 4, "intermediate_size": 24}
    depths = {} if "num_hidden_layers" in changes else {"encoder_layers": 2, "decoder_layers": 2}
    return TransformerEncoderDecoderConfig(**{**sizes, **depths, "hidden_dropout": 0.0, **changes})


def tiny_model(seed=0, attention="eager", model_class=TransformerEncoderDecoderForConditionalGeneration, **changes):
    """A model with random weights, in eval mode."""
    config = tiny_config(**changes)
    config._attn_implementation = attention
    return randomise(model_class(config), seed).eval()


def with_attention(model, attention):
    """The same weights computed by another backend."""
    config = type(model.config)(**model.config.to_dict())
    config._attn_implementation = attention
    other = type(model)(config)
    other.load_state_dict(model.state_dict())
    return other.train(model.training)


@torch.no_grad()
def randomise(model, seed=0):
    """Draw every parameter and buffer anew: norm weights around 1, the rest around 0. Ties stay ties."""
    generator = torch.Generator().manual_seed(seed)
    norm_weights = {id(module.weight) for module in model.modules() if isinstance(module, nn.LayerNorm)}
    for tensor in itertools.chain(model.parameters(), model.buffers()):
        mean = 1.0 if id(tensor) in norm_weights else 0.0
        tensor.copy_(mean + 0.3 * torch.randn(tensor.shape, generator=generator))
    model.tie_weights()
    return model


def random_ids(*shape, seed=0):
    """Tokens that are not special."""
    return torch.randint(3, VOCAB, shape, generator=torch.Generator().manual_seed(seed))


def random_rows(*lengths, seed=0):
    return [random_ids(length, seed=seed + 31 * row) for row, length in enumerate(lengths)]


def pad(rows, side="right", value=PAD):
    """Rows of different length -> `(batch, length)` and their mask."""
    length = max(len(row) for row in rows)
    ids, mask = torch.full((len(rows), length), value), torch.zeros(len(rows), length, dtype=torch.long)
    for index, row in enumerate(rows):
        columns = slice(0, len(row)) if side == "right" else slice(length - len(row), length)
        ids[index, columns], mask[index, columns] = row, 1
    return ids, mask


def positions_of(mask):
    """Positions that count the real tokens only."""
    return (mask.cumsum(-1) - 1).clamp(min=0)


def training_batch(*lengths, target_lengths, seed=0):
    """Padded sources, and labels with -100 behind the shorter ones."""
    input_ids, attention_mask = pad(random_rows(*lengths, seed=seed))
    labels, _ = pad(random_rows(*target_lengths, seed=seed + 1000), value=IGNORED)
    return {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels}


def gradients(model, **batch):
    """The gradients of the loss by name, and the output."""
    model.zero_grad()
    output = model(**batch)
    output.loss.backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}, output


def assert_close(actual, expected, tolerance=1e-5, what="values", scale=0.0):
    """The largest difference is small beside the largest expected number, or beside `scale`. NaN never is."""
    assert actual.shape == expected.shape, f"{what}: {tuple(actual.shape)} instead of {tuple(expected.shape)}"
    actual, expected = actual.detach().double(), expected.detach().double()
    error = (actual - expected).abs().max().item()
    limit = tolerance * max(expected.abs().max().item(), scale)
    assert error <= limit, f"{what}: a difference of {error:.2e} is more than {limit:.2e}"


def assert_gradients_close(actual, expected, tolerance=5e-5):
    """The same for every gradient of a model, each beside its own largest number. One that should be zero, such as a
    key bias, which shifts all scores of a query alike, holds rounding only: it is small beside the other gradients."""
    assert actual.keys() == expected.keys()
    largest = max(gradient.abs().max().item() for gradient in expected.values())
    for name in expected:
        assert_close(actual[name], expected[name], tolerance, name, scale=0.02 * largest)
