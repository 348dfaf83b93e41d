"""The parameter store: one flat model, or an even part of it, its optimizer, and the update rule.

Shape legend: K = pushes in one update, P = trainable parameters, Q = elements of all buffers, both
of the part kept here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ulp

import torch
from torch import Tensor

from raysync.config import Update
from raysync.training.flat import FlatModel
from raysync.training.lr_schedule import learning_rate, momentum
from raysync.training.staleness import StalenessCorrection

NEXT_TO_0 = ulp(0.0)
"""A momentum that makes the buffer the gradient. At exactly 0 torch would leave the buffer alone,
and go on with a direction of long ago where the momentum rises again; 0 as a float32, this one is
not to torch's eyes."""


class ParameterStore:
    """Applies gradients to a flat vector with a torch optimizer.

    One update is one optimizer step with the sample-weighted mean gradient of its pushes (`combine:
    sum`: with their sum), at lr(progress) x number of pushes (`lr_scaling: none`: x 1). The linear
    scale is that of Sync-Switch's configuration policy (Li et al. 2021, section IV-C): n pushes in
    one update move the model as far as n updates would.

    `combine` and `step` make an update together: what they do is elementwise, so a model split
    among several stores learns as a whole one does, but for the norm that `clip_norm` looks at,
    which the stores tell each other between the two. `update.phases` changes settings from one
    phase of the paradigm to the next; the optimizer's state goes on. What is done to a stale
    gradient before it is combined is a `StalenessCorrection`'s to say. `project_radius` keeps the
    parameters in a ball around 0 (projected SGD, Zinkevich 2003): the initial ones, and those after
    each step. It takes a store that keeps the whole model.

    Every worker waits for the server, so an update makes as few passes over memory as it can:
    torch's fused optimizers make one, and everything else writes into vectors that are kept. (A
    fresh vector of this size is a fresh mapping of memory, whose pages cost more than the
    arithmetic.) A fused optimizer rounds differently from torch's plain one, by an ulp or so a
    step. The same updates always give the same bits, with any number of threads.
    """

    def __init__(self, initial: Tensor, size: int, update: Update) -> None:
        """
        Args:
            initial: parameters and buffers, (P + Q,) float32 on the CPU.
            size: P.
            update: optimizer, schedule and combination.
        """
        self.update = update
        self.version = 0
        self._published = initial.clone()  # (P + Q,)
        self._parameter = torch.nn.Parameter(self._published[:size])  # (P,), the front of it
        self._combined = torch.empty(size)  # (P,)
        self._corrected = torch.empty(size)  # (P,), takes up no memory until it is written to
        self._pushes = 0
        self._phase, self._began = "", 0.0
        self._settings = update.in_phase("")
        """Of the phase."""
        self._has_momentum = any(update.in_phase(name).momentum for name in ("", *update.phases))
        corrects = update.staleness_scaling != "none" or update.delay_compensation is not None
        self._staleness_rule = StalenessCorrection(update, size) if corrects else None
        self._buffers: dict[str, Tensor] = {}
        self._optimizer = _optimizer(self._parameter, update)
        self._project()

    def enter(self, phase: str, progress: float) -> None:
        """The next update belongs to that phase of the paradigm; `progress` is that of the run
        before it.
        """
        if phase != self._phase:
            self._phase, self._began = phase, progress
            self._settings = self.update.in_phase(phase)

    def combine(
        self,
        vectors: Sequence[Tensor],
        samples: Sequence[int],
        workers: Sequence[str | None],
        staleness: Sequence[int] = (),
        bases: Sequence[Tensor] = (),
    ) -> float:
        """The gradient of the next update.

        Args:
            vectors: K of (P + Q,): gradients with buffers behind them. They are read until the
                `step`.
            samples: K batch sizes.
            workers: K names of who pushed; None for one that has left since, whose buffers no
                longer count.
            staleness: K numbers of versions applied since the weights of each push; for a
                `StalenessCorrection` only.
            bases: K of (P + Q,): those weights; for delay compensation only.

        Returns:
            The gradient's Euclidean norm if it is to be clipped, which is a pass over it; else 0.
        """
        size, self._pushes = len(self._parameter), len(vectors)
        gradients = self._gradients(vectors, staleness, bases)
        gradient, seen = next(gradients), samples[0]
        for following, count in zip(gradients, samples[1:], strict=True):
            seen += count
            if self._settings.combine == "sum":
                gradient = torch.add(gradient, following, out=self._combined)
            else:  # the mean so far moves towards the next one: one pass over memory
                gradient = torch.lerp(gradient, following, count / seen, out=self._combined)
        for vector, worker in zip(vectors, workers, strict=True):
            if len(vector) > size and worker is not None:
                self._buffers[worker] = vector[size:].clone()
        self._parameter.grad = gradient
        return (
            0.0 if self._settings.clip_norm is None else float(torch.linalg.vector_norm(gradient))
        )

    def step(self, progress: float, norms: Sequence[float]) -> int:
        """One optimizer step along the combined gradient; returns the version it makes.

        Args:
            progress: of the run before this update, from 0 to 1.
            norms: what `combine` returned on each store of the model.
        """
        settings, group = self._settings, self._optimizer.param_groups[0]
        if settings.clip_norm is not None:
            self._clip(settings.clip_norm, torch.linalg.vector_norm(torch.tensor(norms)))
        scale = self._pushes if settings.lr_scaling == "linear" else 1
        group["lr"] = scale * learning_rate(settings, progress, self.version)
        group["weight_decay"] = settings.weight_decay
        if self._has_momentum:
            group["momentum"] = max(NEXT_TO_0, momentum(settings, progress - self._began))
        self._optimizer.step()
        self._project()
        self._parameter.grad = None  # what arrived may go
        self.version += 1
        return self.version

    def apply(
        self,
        vectors: Sequence[Tensor],
        samples: Sequence[int],
        workers: Sequence[str | None],
        progress: float,
        phase: str = "",
        staleness: Sequence[int] = (),
        bases: Sequence[Tensor] = (),
    ) -> int:
        """`enter`, `combine` and `step`, for a store that keeps the whole model."""
        self.enter(phase, progress)
        return self.step(progress, [self.combine(vectors, samples, workers, staleness, bases)])

    def _gradients(
        self, vectors: Sequence[Tensor], staleness: Sequence[int], bases: Sequence[Tensor]
    ) -> Iterator[Tensor]:
        """K of (P,), corrected one by one as they are asked for; one is valid until the next is."""
        weights, rule = self._parameter.detach(), self._staleness_rule
        plain = (vector[: len(weights)] for vector in vectors)
        if rule is None:
            yield from plain
            return
        known: Sequence[Tensor | None] = bases or [None] * len(vectors)
        out = self._combined  # for the first one, which the others are added to
        for gradient, behind, base in zip(plain, staleness, known, strict=True):
            yield rule.correct(gradient, behind, weights, base, out)
            out = self._corrected

    def _clip(self, longest: float, norm: Tensor) -> None:
        """Make a gradient of that norm at most so long, as torch's `clip_grad_norm_` does.

        That one writes into the gradient, but what arrived is for reading only.
        """
        gradient, scale = self._parameter.grad, longest / (norm + 1e-6)
        assert gradient is not None, "step before combine"
        if scale < 1:
            self._parameter.grad = torch.mul(gradient, scale, out=self._combined)

    def _project(self) -> None:
        """The nearest point of the ball, if the parameters lie outside of it; exact but for
        float32's rounding.
        """
        if self.update.project_radius is not None:
            parameters = self._parameter.detach()
            parameters.mul_(
                (self.update.project_radius / torch.linalg.vector_norm(parameters)).clamp(max=1.0)
            )

    def forget(self, worker: str) -> None:
        """A worker has left: its buffers no longer count."""
        self._buffers.pop(worker, None)

    def publish(self) -> Tensor:
        """Parameters, and behind them the mean of the live workers' buffers, (P + Q,); valid until
        the next step.
        """
        if self._buffers:
            torch.mean(
                torch.stack(list(self._buffers.values())),
                dim=0,
                out=self._published[len(self._parameter) :],
            )
        return self._published


def part_of(model: FlatModel, index: int, count: int) -> tuple[Tensor, int]:
    """The initial vector of one of `count` stores that split (P + Q,) evenly, and the number of
    parameters in it.
    """
    parts = model.initial().tensor_split(count)
    before = sum(len(part) for part in parts[:index])
    return parts[index], min(max(0, model.size - before), len(parts[index]))


def _optimizer(parameter: torch.nn.Parameter, update: Update) -> torch.optim.Optimizer:
    if update.optimizer == "sgd":
        return torch.optim.SGD(
            [parameter],
            lr=update.lr,
            momentum=update.momentum,
            nesterov=update.nesterov,
            weight_decay=update.weight_decay,
            fused=True,
        )
    kind = torch.optim.Adam if update.optimizer == "adam" else torch.optim.AdamW
    return kind(
        [parameter], lr=update.lr, betas=update.betas, weight_decay=update.weight_decay, fused=True
    )
