"""Metrics of a published model on the test set."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from raysync.training.data import DataSet
from raysync.training.device import use_tf32
from raysync.training.flat import FlatModel


@torch.no_grad()
def evaluate(
    model: FlatModel, weights: Tensor, data: DataSet, batch_size: int, samples: int | None = None
) -> dict[str, float]:
    """Evaluate on the test set.

    Args:
        model: takes the weights.
        weights: parameters and buffers, (P + Q,).
        data: its test set is used.
        batch_size: the samples of a forward pass.
        samples: use only so many, from the first of the test set on; None means all.

    Returns:
        Metric -> value: `accuracy` (a fraction of 1) and `loss`, the mean cross-entropy (nats),
        over all labels: one for each sample, or one for each token.
    """
    use_tf32(False)
    model.read_weights(weights)
    model.read_buffers(weights)
    model.module.eval()
    device = model.weights.device
    correct, loss = 0, 0.0
    test_x, test_y = data.test_x[:samples], data.test_y[:samples]
    for start in range(0, len(test_x), batch_size):
        part = slice(start, start + batch_size)
        y = torch.tensor(test_y[part]).to(device)
        logits = model.module(data.samples(test_x[part]).to(device))
        correct += int((logits.argmax(dim=1) == y).sum())
        loss += float(cross_entropy(logits, y, reduction="sum"))
    return {"accuracy": correct / test_y.size, "loss": loss / test_y.size}
