"""Corrects a gradient (P,) for the age of its weights, before it is combined with others."""

from __future__ import annotations

import torch
from torch import Tensor

from raysync.config import Update
from raysync.config.update import StalenessScaling

EPSILON = 1e-7  # of DC-ASGD-a


class StalenessCorrection:
    """Delay compensation (Zheng et al. 2017, DC-ASGD-c and -a), then division by staleness.

    Dividing each push's gradient divides the learning rate, since the pushes of one update may
    differ in staleness; Adam, independent of the gradient's scale, feels only these differences.

    DC-ASGD has one push per update. Of several, each is compensated on the weights before the
    update, and updates the mean square in turn: it estimates the square of *one* push's gradient,
    which the square of a mean of K would understate, up to K times.
    """

    def __init__(self, update: Update, size: int, device: torch.device) -> None:
        self._scaling = update.staleness_scaling
        self._compensation = update.delay_compensation
        adapts = self._compensation is not None and self._compensation.name == "adaptive"
        # the mean square of past gradients, (P,): all of the state
        self.mean_square = torch.zeros(size, device=device) if adapts else None
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
            staleness: versions applied since `base`.
            members: the workers that take part.
            weights: the present weights, (P,).
            base: the weights of the gradient, at least (P,); only for delay compensation.
        """
        if self._compensation is not None:
            assert base is not None, (
                "delay compensation needs the weights that a gradient was computed on"
            )
            self._compensate(gradient, weights, base[: len(weights)], out)
            gradient = out
        if (scale := divisor(self._scaling, staleness, members)) > 1:
            gradient = torch.div(gradient, scale, out=out)
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


def divisor(scaling: StalenessScaling, staleness: int, members: int) -> float:
    """Return the divisor of a push of that staleness among that many workers, at least 1."""
    match scaling.name:
        case "none":
            return 1
        case "inverse":
            return max(1, staleness)
        case "power":
            return float((1 + staleness) ** scaling.exponent)
        case "delay-adaptive":
            return max(1, staleness / members)
