"""The optimizer of a flat vector: torch's, in as many threads as the vector is worth; its state, to
be written and to be taken again bit by bit.

Shape legend: P = parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from inspect import unwrap
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from raysync.config import Update
from raysync.training.optimizers import SETTINGS, is_fused, is_torchs_own, optimizer_of
from raysync.training.parameter_groups import ParameterGroup
from raysync.training.state_file import State
from raysync.training.vector_parts import BLOCK
from raysync.training.vector_threads import VectorThreads

PIECE = 2**16
"""The elements that an optimizer without a fused kernel steps on at once. Its steps have many
passes, whose temporary vectors then stay in a processor's cache: with RMSprop, NAdam, Adadelta,
RAdam or Adamax 11 M parameters take half the time."""


class Fragment(NamedTuple):
    """What one thread steps on of a piece."""

    piece: int
    """The number of the piece."""
    within: slice | None
    """Where it is in the piece; None: it is all of it."""
    parameter: torch.nn.Parameter
    """A view of the weights."""
    span: slice
    """Where it is in the vector (P,)."""


@dataclass(frozen=True)
class Part:
    """What one thread steps on, by an optimizer of its own."""

    optimizer: Optimizer
    fragments: Sequence[Fragment]
    """In the order of the optimizer's parameters."""
    advance: Callable[[], object]
    """Makes a step of the optimizer."""

    def step(self, gradient: Tensor) -> None:
        """Make a step along a gradient (P,)."""
        for each in self.fragments:
            each.parameter.grad = gradient[each.span]
        self.advance()
        for each in self.fragments:
            each.parameter.grad = None  # lets the vectors that arrived be freed


class FlatOptimizer:
    """Steps on the slices of parameter groups.

    The slices are cut into *pieces*, each of which has a state in torch's sense: a whole slice for
    a fused kernel. A class of torch's own keeps nothing but these states; so several threads can
    step on a vector, each with an optimizer of its own for its share of the pieces, or for a
    fragment of one. What `state` returns does not depend on the threads: fragments are put
    together, and `restore` cuts them again. A user's own class, which may keep anything, has one
    optimizer.
    """

    def __init__(
        self,
        update: Update,
        weights: Tensor,
        groups: Sequence[ParameterGroup],
        threads: VectorThreads,
    ) -> None:
        """
        Args:
            update: names the class and its arguments.
            weights: what is stepped on, in place, (P,).
            groups: tile (P,).
            threads: share the steps.
        """
        self._groups, self._threads = groups, threads
        longest = max(1, len(weights)) if is_fused(update) else PIECE
        self.pieces = [list(group.pieces(longest)) for group in groups]
        """The pieces of each group, as slices of (P,)."""
        whole = slice(0, len(weights))
        shared = threads.spans(len(weights)) if is_torchs_own(update) else [whole]
        self._parts = [self._part(update, weights, span) for span in shared]

    def _part(self, update: Update, weights: Tensor, own: slice) -> Part:
        """Return the part of a thread: all pieces in its span, and fragments of those that reach
        beyond it.
        """
        fragments: list[Fragment] = []
        settings: list[dict[str, Any]] = []
        first = 0
        for pieces in self.pieces:
            its = list(_fragments(weights, own, pieces, first))
            first += len(pieces)
            fragments += its
            settings.append({"params": [each.parameter for each in its]})
        optimizer = optimizer_of(update, settings)
        advance = _bare_step(optimizer) if is_torchs_own(update) else optimizer.step
        return Part(optimizer, fragments, advance)

    @property
    def kind(self) -> str:
        """The name of the class."""
        return type(self._parts[0].optimizer).__name__

    def set(self, lr: float, weight_decay: float, momentum: float | None) -> None:
        """Set what may change from one step to the next.

        Args:
            lr: the learning rate of groups with a factor of 1.
            weight_decay: that of groups without one of their own.
            momentum: None: the optimizer has none.
        """
        for part in self._parts:
            for group, own in zip(part.optimizer.param_groups, self._groups, strict=True):
                group["lr"] = lr * own.lr_factor
                group["weight_decay"] = (
                    weight_decay if own.weight_decay is None else own.weight_decay
                )
                if momentum is not None:
                    group["momentum"] = momentum

    def step(self, gradient: Tensor) -> None:
        """Make a step along a gradient (P,), which is only read."""
        self._threads.map(lambda part: part.step(gradient), self._parts)

    def state(self) -> State:
        """Return all that it keeps; its tensors are valid until the next step."""
        saved = [part.optimizer.state_dict() for part in self._parts]
        of_pieces: dict[int, list[dict[str, Any]]] = {}
        for part, its in zip(self._parts, saved, strict=True):
            for index, fragment in enumerate(part.fragments):
                if index in its["state"]:
                    of_pieces.setdefault(fragment.piece, []).append(its["state"][index])
        states = {
            # what is kept for no parameter, by a class that has one optimizer
            **{key: value for key, value in saved[0]["state"].items() if not isinstance(key, int)},
            **{number: _joined(of_pieces[number]) for number in sorted(of_pieces)},
        }
        return {
            **saved[0],
            # JSON knows only strings as keys
            "state": {str(key): values for key, values in states.items()},
            "param_groups": _renumbered(saved[0]["param_groups"], map(len, self.pieces)),
        }

    def restore(self, saved: State) -> None:
        """Take the state of another one of the same class and pieces, which then belongs to this
        one. Settings of the experiment stay its own, such as a momentum that was changed.
        """
        states = {
            int(key) if key.isdigit() else key: values for key, values in saved["state"].items()
        }
        for part in self._parts:
            own = {
                index: _cut(states[each.piece], each.within)
                for index, each in enumerate(part.fragments)
                if each.piece in states
            } | {key: values for key, values in states.items() if not isinstance(key, int)}
            counts = (len(group["params"]) for group in part.optimizer.param_groups)
            groups = _renumbered(saved["param_groups"], counts)
            _restore(part.optimizer, {**saved, "state": own, "param_groups": groups})


def _bare_step(optimizer: Optimizer) -> Callable[[], None]:
    """Return the step of one of torch's own classes, without what torch puts around it: a range for
    profilers, hooks and marks for its compiler, none of which a server has. Between two updates all
    that leaves the caches: it took 50 of the 240 us of a small model's update.
    """
    step = unwrap(type(optimizer).step)

    def bare_step() -> None:
        with torch.no_grad():
            step(optimizer)

    return bare_step


def _fragments(
    weights: Tensor, own: slice, pieces: Sequence[slice], first: int
) -> Iterator[Fragment]:
    """Yield what a thread with that span steps on of the pieces of a group.

    Args:
        weights: (P,).
        own: the span.
        pieces: those of the group.
        first: the number of the first of them.
    """
    for number, piece in enumerate(pieces, first):
        begin, end = (_edge(edge, piece) for edge in (own.start, own.stop))
        if begin < end or piece.start == piece.stop:
            span = slice(begin, end)
            within = slice(begin - piece.start, end - piece.start)
            yield Fragment(
                number, None if span == piece else within, torch.nn.Parameter(weights[span]), span
            )


def _edge(position: int, piece: slice) -> int:
    """Return where a piece is cut for a cut of the vector: at one of its own blocks."""
    begin: int = piece.start
    end: int = piece.stop
    return end if position >= end else begin + max(0, position - begin) // BLOCK * BLOCK


def _joined(fragments: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the state of a piece, given those of its fragments: what is kept for each element, and
    what is the same for all.
    """
    if len(fragments) == 1:
        return fragments[0]
    return {
        name: torch.cat([each[name] for each in fragments]) if _is_vector(value) else value
        for name, value in fragments[0].items()
    }


def _cut(state: dict[str, Any], within: slice | None) -> dict[str, Any]:
    """Return the state of a fragment of a piece, with numbers of its own."""
    if within is None:
        return state
    return {
        name: value[within]
        if _is_vector(value)
        else value.clone()
        if isinstance(value, Tensor)
        else value
        for name, value in state.items()
    }


def _is_vector(value: object) -> bool:
    return isinstance(value, Tensor) and value.ndim > 0


def _renumbered(groups: Sequence[State], counts: Iterable[int]) -> list[State]:
    """Return the parameter groups of a state, with so many parameters."""
    renumbered, begin = [], 0
    for group, count in zip(groups, counts, strict=True):
        renumbered.append({**group, "params": [*range(begin, begin + count)]})
        begin += count
    return renumbered


def _restore(optimizer: Optimizer, saved: State) -> None:
    """Give a fresh optimizer the state of another one of its class and parameters."""
    own = [
        {name: group[name] for name in SETTINGS if name in group}
        for group in optimizer.param_groups
    ]
    optimizer.load_state_dict(saved)
    for group, settings in zip(optimizer.param_groups, own, strict=True):
        group.update(settings)
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    for key, values in saved["state"].items():
        if isinstance(key, int):  # as they were: torch has cast them to the parameter's type
            cast = optimizer.state[parameters[key]]
            optimizer.state[parameters[key]] = {
                name: value.to(cast[name].device) if isinstance(value, Tensor) else value
                for name, value in values.items()
            }
