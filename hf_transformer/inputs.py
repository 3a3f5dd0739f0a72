"""Checks of a forward's arguments: of shapes and dtypes only, so without a synchronisation or a graph break."""

import torch
from torch import nn


def check_tokens(prefix, input_ids, inputs_embeds, hidden_size):
    """-> `(batch, length)` of the one that is given: ids `(batch, length)` or embeddings `(…, hidden_size)`."""
    ids_name, embeds_name = f"{prefix}input_ids", f"{prefix}inputs_embeds"
    if (input_ids is None) == (inputs_embeds is None):
        came = "neither" if input_ids is None else "both"
        raise ValueError(f"Exactly one of `{ids_name}` and `{embeds_name}` must be given, but {came} came.")
    if input_ids is not None:
        if input_ids.dim() != 2 or input_ids.shape[1] == 0:
            raise ValueError(
                f"`{ids_name}` has shape {tuple(input_ids.shape)}, but must be (batch, length) of at least one token."
            )
        if input_ids.dtype not in (torch.int64, torch.int32):
            raise ValueError(f"`{ids_name}` has dtype {input_ids.dtype}, but must be torch.int64 or torch.int32.")
        return input_ids.shape
    if inputs_embeds.dim() != 3 or inputs_embeds.shape[1] == 0 or inputs_embeds.shape[2] != hidden_size:
        raise ValueError(
            f"`{embeds_name}` has shape {tuple(inputs_embeds.shape)}, but must be (batch, length, {hidden_size})."
        )
    return inputs_embeds.shape[:2]


def check_mask(name, mask, hidden_states, heads, key_length):
    """A mask for queries `(batch, query_length, hidden_size)` is `(batch, key_length)`, or ready-made
    `(batch or 1, heads or 1, query_length or 1, key_length)`. `key_length=None`: not known here.
    """
    if mask is None or not isinstance(mask, torch.Tensor):  # flex attention's masks are objects of its own
        return
    batch, query_length, _ = hidden_states.shape
    if mask.dim() == 2:
        fits = mask.shape[0] == batch and key_length in (None, mask.shape[1])
    else:
        fits = mask.dim() == 4 and mask.shape[0] in (1, batch) and mask.shape[1] in (1, heads)
        fits = fits and mask.shape[2] in (1, query_length) and key_length in (None, mask.shape[3])
    if not fits:
        keys = "key_length" if key_length is None else key_length
        raise ValueError(
            f"`{name}` has shape {tuple(mask.shape)}, but must be ({batch}, {keys}), one entry per token, or a "
            f"ready-made ({batch}, 1, {query_length}, {keys})."
        )


def check_position_ids(name, position_ids, batch, length):
    """`(batch or 1, length)`."""
    if position_ids.dim() != 2 or position_ids.shape[0] not in (1, batch) or position_ids.shape[1] != length:
        raise ValueError(f"`{name}` has shape {tuple(position_ids.shape)}, but must be ({batch}, {length}).")


def check_labels(labels, shape=None):
    """Integers of a shape, or of any `(batch, length)`."""
    if labels.dim() != 2 if shape is None else labels.shape != shape:
        wanted = "(batch, length)" if shape is None else tuple(shape)
        raise ValueError(f"`labels` has shape {tuple(labels.shape)}, but must be {wanted}.")
    if labels.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"`labels` has dtype {labels.dtype}, but must be torch.int64 or torch.int32.")


def embed_ids(name, embedding: nn.Embedding, input_ids):
    """Look the ids up. An id outside the table is a ValueError on a CPU and a device-side assertion on a GPU, because
    looking at it beforehand would mean waiting for the device."""
    try:
        return embedding(input_ids)
    except IndexError as error:
        raise ValueError(
            f"`{name}` holds {input_ids.min().item()} to {input_ids.max().item()}, but must be tokens, 0 to "
            f"{embedding.num_embeddings - 1} (`vocab_size` - 1)."
        ) from error
