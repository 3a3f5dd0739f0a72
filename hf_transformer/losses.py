"""The training loss."""

import torch
from torch import nn

from .inputs import check_labels


def cross_entropy_loss(logits, labels, num_items_in_batch=None, **kwargs):
    """Cross-entropy over the labels that are not -100, in float32.

    Args:
        logits: `(…, vocab_size)`.
        labels: `(…)`, already aligned with the logits: nothing is shifted here.
        num_items_in_batch: labels in the whole batch of an optimiser step, an int or a tensor of one element. Trainer
            passes it, so that the sum over the micro-batches of gradient accumulation is the loss of one big batch.
            `None`: the labels given here, that is, the mean.

    Returns:
        a scalar; 0 with zero gradients when every label is -100.

    Raises:
        ValueError: labels of another shape, not integer, or (on a CPU, where it costs nothing) not in the vocabulary.
    """
    check_labels(labels, logits.shape[:-1])
    labels = labels.to(device=logits.device, dtype=torch.long)
    count = (labels != -100).sum() if num_items_in_batch is None else num_items_in_batch
    count = count.to(logits.device).reshape(()).clamp(min=1) if isinstance(count, torch.Tensor) else max(count, 1)
    try:
        total = nn.functional.cross_entropy(logits.float().flatten(0, -2), labels.flatten(), reduction="sum")
    except IndexError as error:
        raise ValueError(f"`labels` must be -100 or a token, 0 to {logits.shape[-1] - 1}: {error}") from error
    return total / count
