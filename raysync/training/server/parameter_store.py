"""The parameter store: one flat model, or an even part of it, and its optimizer.

Shapes, of this part: K pushes in one update, P trainable parameters, Q float32 numbers of buffers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import ulp
from typing import Any

import torch
from pydantic import ConfigDict, TypeAdapter, with_config
from torch import Tensor
from typing_extensions import TypedDict

from raysync.config import Update
from raysync.training.formats.state_file import State, check_fits
from raysync.training.optim.clipping import clipped, norm_of
from raysync.training.optim.flat_optimizer import FlatOptimizer
from raysync.training.optim.lr_schedule import learning_rate, momentum, rate_factor
from raysync.training.server.apply_plan import MEAN, ApplyPlan
from raysync.training.server.staleness_correction import StalenessCorrection
from raysync.training.vectors.buffers import BufferSlots
from raysync.training.vectors.flat import FlatModel
from raysync.training.vectors.parameter_groups import (
    FlatParameterGroup,
    parameter_groups,
    whole,
    within,
)
from raysync.training.vectors.parts import spans
from raysync.training.vectors.wire import gradient_of

# A momentum that is 0 as a float32, but not for torch. At 0 torch would leave the buffer unchanged,
# and use an old direction when the momentum rises again.
NEXT_TO_0 = ulp(0.0)


@with_config(ConfigDict(strict=True, arbitrary_types_allowed=True))
class _Saved(TypedDict):
    fixed: dict[str, Any]
    version: int
    phase: str
    began: float
    published: Tensor
    buffers: dict[str, Tensor]
    mean_square: Tensor | None
    optimizer: dict[str, Any]


_SAVED = TypeAdapter(_Saved)


class ParameterStore:
    """Applies gradients to a flat vector with a torch optimizer.

    One update is one optimizer step with the mean gradient of its pushes, weighted by their samples
    or by the paradigm (`combine: sum`: with their weighted sum), at lr(progress) x number of pushes
    (see `rate_factor`). The linear scale is Sync-Switch's configuration policy (Li et al. 2021,
    section IV-C): n pushes in one update move the model as far as n updates would.

    An update works elementwise, so stores that share a model learn like one, except for the norm of
    `clip_norm`, which they exchange between the two halves of an update.

    Every worker waits for the server, so an update makes few passes over memory, and writes into
    reused vectors: mapping new memory costs more than the arithmetic. A fused optimizer rounds by
    about an ulp per step differently from torch's plain one. The same updates always give the same
    bits, with any number of threads.
    """

    def __init__(
        self,
        initial: Tensor,
        size: int,
        update: Update,
        groups: Sequence[FlatParameterGroup] = (),
        wire: str = "float32",
        slots: BufferSlots | None = None,
    ) -> None:
        """
        Args:
            initial: parameters and buffers, (P + Q,) float32, on the device of all vectors.
            size: P.
            groups: tile (P,); default: one of them.
            slots: the kinds of (Q,); None: all of it are floats.
        """
        self.update = update
        self.version = 0
        self._published = initial.clone()  # (P + Q,)
        self._weights = self._published[:size]  # (P,), a view of the front
        self._initial_buffers = initial[size:].clone()  # (Q,)
        self._slots = slots or BufferSlots(len(self._initial_buffers))
        assert sum(self._slots) == len(self._initial_buffers), "the slots of other buffers"
        self._gradient: Tensor | None = None  # (P,), from `combine` to `_step`
        device = initial.device
        self._wire = wire
        # two vectors (P,): the first gradient of an update in float32, and the current later one
        self._decoded = [
            torch.empty(size, device=device) for _ in range(0 if wire == "float32" else 2)
        ]
        self._pushes, self._members = 0, 1  # of the present update
        self._phase, self._phase_began = "", 0.0  # with the progress at its beginning
        self._settings = update.in_phase("")  # in the present phase
        self._has_momentum = any(update.in_phase(name).momentum for name in ("", *update.phases))
        corrects = update.staleness_scaling.name != "none" or update.delay_compensation is not None
        self._staleness_correction = StalenessCorrection(update, size, device) if corrects else None
        self._buffers: dict[str, Tensor] = {}
        self._optimizer = FlatOptimizer(update, self._weights, groups or whole(size))
        self._project()

    def apply(self, plan: ApplyPlan, vectors: Sequence[Any]) -> None:
        """Make an update of vectors; after `combine`, of its results on all the model's stores."""
        self._step(plan.progress, vectors if plan.combined else [self.combine(plan, vectors)])

    def combine(self, plan: ApplyPlan, vectors: Sequence[Tensor]) -> float:
        """Do the first half of an update; return the gradient's norm if it is to be clipped.

        Args:
            vectors: K gradients with buffers, (P + Q,) or shorter if encoded, read until the second
                half; then, if delays are compensated, the weights (P + Q,) of each gradient.
        """
        if plan.phase != self._phase:
            self._phase, self._phase_began = plan.phase, plan.progress
            self._settings = self.update.in_phase(plan.phase)
        buffers, count = len(self._initial_buffers), len(plan.samples)
        pushes, bases = vectors[:count], vectors[count:]
        compensates = self.update.delay_compensation is not None
        assert len(vectors) == count * (1 + compensates), f"{len(vectors)} inputs of {plan}"
        sizes = {len(base) for base in bases}
        assert sizes <= {len(self._published)}, f"weights of {sizes} numbers"
        gradient, self._members = self._weighted_gradient(plan, pushes, bases), plan.members
        for vector, worker in zip(pushes, plan.workers, strict=True):
            if buffers and worker is not None:
                self._buffers[worker] = vector[-buffers:].clone()
        self._gradient = gradient
        return 0.0 if self._settings.clip_norm is None else float(norm_of(gradient))

    def _weighted_gradient(
        self, plan: ApplyPlan, vectors: Sequence[Tensor], bases: Sequence[Tensor]
    ) -> Tensor:
        """Return the mean or sum of gradients, decoded and corrected one by one, (P,)."""
        sums = self._settings.combine == "sum"
        weights = plan.weights or ([1] * len(vectors) if sums else plan.samples)
        bases_or_none: Sequence[Tensor | None] = bases or [None] * len(vectors)
        pushes = zip(vectors, weights, plan.staleness, bases_or_none, strict=True)
        # pushes of weight 0 are left out: their gradients need not be finite
        counted = [push for push in pushes if push[1]]
        result, total = vectors[0], 0.0
        for index, (vector, weight, age, base) in enumerate(counted):
            gradient = gradient_of(
                self._wire, vector, len(self._weights), len(self._initial_buffers)
            )
            if self._decoded:
                gradient = self._decoded[min(index, 1)].copy_(gradient)
            if self._staleness_correction is not None:
                gradient = self._staleness_correction.correct(
                    gradient,
                    staleness=age,
                    members=plan.members,
                    weights=self._weights,
                    base=base,
                    # the first is written where the others are added to it
                    out=self._corrected if index else self._combined,
                )
            total += weight
            if not index:
                result = gradient
                if sums and weight != 1:
                    result = torch.mul(gradient, weight, out=self._combined)
            elif sums:
                result = torch.add(result, gradient, alpha=weight, out=self._combined)
            else:  # the mean so far moves towards the next gradient: one pass over memory
                result = torch.lerp(result, gradient, weight / total, out=self._combined)
        self._pushes = len(counted)
        return result

    # A GPU's memory is taken as soon as it is allocated, so these vectors (P,) wait for their use:
    # the mean or sum of gradients, and a corrected gradient after the first.

    @cached_property
    def _combined(self) -> Tensor:
        return torch.empty_like(self._weights)

    @cached_property
    def _corrected(self) -> Tensor:
        return torch.empty_like(self._weights)

    def _step(self, progress: float, norms: Sequence[float]) -> None:
        settings, gradient = self._settings, self._gradient
        assert gradient is not None, "step before combine"
        assert norms, "an update without a norm"
        if settings.clip_norm is not None:
            norm = torch.linalg.vector_norm(torch.tensor(norms, device=self._weights.device))
            gradient = clipped(gradient, settings.clip_norm, norm, out=self._combined)
        lr = learning_rate(settings, progress, self.version)
        lr *= rate_factor(settings, self._pushes, self._members)
        in_force = None
        if self._has_momentum:
            in_force = max(NEXT_TO_0, momentum(settings, progress - self._phase_began))
        self._optimizer.step(gradient, lr, settings.weight_decay, in_force)
        self._project()
        self._gradient = None  # lets the vectors that arrived be freed
        self.version += 1

    def _project(self) -> None:
        """Project the whole model's parameters onto the ball around 0 (Zinkevich 2003)."""
        if self.update.project_radius is not None:
            norm = torch.linalg.vector_norm(self._weights)
            self._weights.mul_((self.update.project_radius / norm).clamp(max=1.0))

    def forget(self, worker: str) -> None:
        """Discard the buffers of a worker that has left; those of the last one stay."""
        self.publish()  # else it would depend on whether anybody had asked for them
        self._buffers.pop(worker, None)

    def publish(self, replica: int = MEAN) -> Tensor:
        """Return parameters and the live workers' mean buffers, (P + Q,), valid until the next
        update.
        """
        if self._buffers:
            # sorted: the mean must not depend on who pushed first
            rows = [self._buffers[worker] for worker in sorted(self._buffers)]
            self._published[len(self._weights) :].copy_(self._slots.mean(rows))
        return self._published

    def knows(self, worker: str) -> bool:
        """Whether the store has buffers of a worker."""
        return worker in self._buffers

    def statistics(self, worker: str) -> Tensor:
        vector = torch.zeros_like(self._published)
        vector[len(self._weights) :] = self._buffers.get(worker, self._initial_buffers)
        return vector

    def state(self) -> State:
        """Return the state of later updates; its tensors are valid until the next one."""
        assert self._gradient is None, "an update is half made"
        correction = self._staleness_correction
        return {
            "fixed": self._fixed,
            "version": self.version,
            "phase": self._phase,
            "began": self._phase_began,
            "published": self._published,
            "buffers": self._buffers,
            "mean_square": correction and correction.mean_square,
            "optimizer": self._optimizer.state(),
        }

    def restore(self, saved: State) -> None:
        """Adopt the state of a store of the same model and settings, bit by bit.

        Raises:
            ConfigError: it is the state of another model, or of other settings.
            ValueError: it is no state of a store.
        """
        _SAVED.validate_python(saved)
        for what, own in self._fixed.items():
            check_fits(what, saved["fixed"].get(what), own)
        check_fits("its numbers", list(saved["published"].shape), list(self._published.shape))
        for buffers in saved["buffers"].values():
            check_fits("its buffers", list(buffers.shape), list(self._initial_buffers.shape))
        self._optimizer.restore(saved["optimizer"])
        if self._staleness_correction is not None:
            mean_square = saved["mean_square"]
            self._staleness_correction.mean_square = (
                None if mean_square is None else mean_square.to(self._weights.device)
            )
        self._settings = self.update.in_phase(saved["phase"])
        self._phase, self._phase_began = saved["phase"], saved["began"]
        self.version = saved["version"]
        self._published.copy_(saved["published"])
        self._buffers = {
            worker: buffers.to(self._weights.device) for worker, buffers in saved["buffers"].items()
        }

    @property
    def _fixed(self) -> State:
        """The properties that no update changes, by their names in messages."""
        compensation = self.update.delay_compensation
        return {
            "parameters": len(self._weights),
            "elements of buffers": list(self._slots),
            "update.optimizer": self._optimizer.kind,
            "update.delay_compensation": compensation and compensation.name,
            "parameter groups": [
                [[piece.start, piece.stop] for piece in pieces] for pieces in self._optimizer.pieces
            ],
        }


def shard_of(
    model: FlatModel, update: Update, shard: int = 0, shards: int = 1, wire: str = "float32"
) -> ParameterStore:
    """Return a fresh store of a model, or of an even part of its (P + Q,)."""
    initial, size = model.initial(), model.size
    span = spans(len(initial), shards)[shard]
    begin, end = min(span.start, size), min(span.stop, size)
    groups = within(parameter_groups(update, model.parameters), begin, end)
    slots = model.layout.slots.within(span.start - size, span.stop - size)
    return ParameterStore(
        initial=initial[span],
        size=end - begin,
        update=update,
        groups=groups,
        wire=wire,
        slots=slots,
    )
