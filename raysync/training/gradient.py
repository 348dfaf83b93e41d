"""One worker's arithmetic: weights in, gradient out."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from raysync.training.data import Batches, DataSet
from raysync.training.flat import FlatModel


class GradientComputation:
    """Computes the gradients of one slot."""

    def __init__(self, module: nn.Module, data: DataSet, batches: Batches, device: str = "cpu") -> None:
        """
        Args:
            module: fresh; it is moved to the device.
            data: whose training set is learned.
            batches: of this slot.
            device: a torch device.
        """
        self.model = FlatModel(module.to(device).train())
        self._data = data
        self._batches = batches
        self._device = device

    def compute(self, clock: int, batch_size: int) -> float:
        """Forward and backward of one batch at the model's present weights.

        Afterwards `model.outgoing` (P + Q,) holds the gradient of the batch's mean loss, and the buffers.

        Returns:
            The batch's mean cross-entropy, in nats.
        """
        x, y = self._batches.draw(self._data, clock, batch_size)
        self.model.gradient.zero_()
        loss: Tensor = cross_entropy(self.model.module(x.to(self._device)), y.to(self._device))
        loss.backward()  # type: ignore[no-untyped-call]
        self.model.write_buffers()
        return loss.item()
