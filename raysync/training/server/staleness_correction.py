"""The correction of a gradient that was computed on older weights, before it is combined with
others.

Shape legend: P = trainable parameters.
"""

from __future__ import annotations

import torch
from torch import Tensor

from raysync.config import Update
from raysync.config.update import StalenessScaling

EPSILON = 1e-7
"""The epsilon of DC-ASGD-a."""


def divisor(scaling: StalenessScaling, staleness: int, members: int) -> float:
    """Return what a push of that staleness is divided by, where so many workers take part; from
    1.
    """
    match scaling.name:
        case "none":
            return 1
        case "inverse":
            return max(1, staleness)
        case "power":
            return float((1 + staleness) ** scaling.exponent)
        case "delay-adaptive":
            return max(1, staleness / members)


class StalenessCorrection:
    """Delay compensation (Zheng et al. 2017, DC-ASGD-c and -a), then division for the staleness:
    see `config.update.StalenessScaling`.

    To divide the learning rate by it, the gradient of each push is scaled here, since
    the pushes of one update may differ in staleness. (Adam, whose step does not depend on the
    gradient's scale, is affected only by these differences.)

    DC-ASGD is defined for one push per update. Of several pushes each is compensated on the weights
    from before the update, and the mean square takes them in one after the other, in the update's
    order, before they are combined: it estimates the square of *one* push's gradient, which the
    square of a mean of K would understate, up to K times.
    """

    def __init__(self, update: Update, size: int, device: torch.device) -> None:
        """
        Args:
            update: gives `staleness_scaling` and `delay_compensation`.
            size: P.
            device: of all vectors.
        """
        self._scaling = update.staleness_scaling
        self._compensation = update.delay_compensation
        adapts = self._compensation is not None and self._compensation.name == "adaptive"
        self.mean_square = torch.zeros(size, device=device) if adapts else None
        """The mean square of past gradients, (P,), which is all its state; None: it needs none."""
        self._scratch = torch.empty(size, device=device) if adapts else None  # (P,)

    def correct(
        self,
        gradient: Tensor,
        *,
        staleness: int,
        members: int,
        weights: Tensor,
        base: Tensor | None,
        out: Tensor,
    ) -> Tensor:
        """Return the corrected gradient, (P,): `out`, or the given one if it needs no correction.

        Args:
            gradient: the gradient of a push, (P,), which is not changed.
            staleness: versions applied since the weights that it was computed on.
            members: the workers that take part.
            weights: the present weights, (P,).
            base: the weights that it was computed on, at least (P,); only for delay compensation.
            out: (P,), may be written to.
        """
        if self._compensation is not None:
            assert base is not None, (
                "delay compensation needs the weights that a gradient was computed on"
            )
            self._compensate(gradient, weights, base[: len(weights)], out)
            gradient = out
        if (by := divisor(self._scaling, staleness, members)) > 1:
            torch.div(gradient, by, out=out)
            gradient = out
        return gradient

    def _compensate(self, gradient: Tensor, weights: Tensor, base: Tensor, out: Tensor) -> None:
        assert self._compensation is not None, "delay compensation is off"
        torch.sub(weights, base, out=out).mul_(gradient)
        if self.mean_square is not None:
            assert self._scratch is not None, "it is made with the mean square"
            mean_square, scratch = self.mean_square, self._scratch
            mean_square.lerp_(
                torch.mul(gradient, gradient, out=scratch), 1 - self._compensation.decay
            )
            out.mul_(torch.add(mean_square, EPSILON, out=scratch).rsqrt_())
        torch.addcmul(gradient, gradient, out, value=self._compensation.strength, out=out)
