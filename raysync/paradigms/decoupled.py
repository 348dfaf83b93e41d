"""Decoupled backpropagation, as an experiment file requests it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from math import isclose
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Gt, Le

from raysync.core.paradigm import Paradigm
from raysync.core.stages import StageMachines
from raysync.errors import ConfigError
from raysync.paradigms.registry import Spec, make_inner

Matrix = list[list[float]]


@dataclass
class Decoupled:
    """The network is cut into `modules`, here called stages, which compute at the same time on
    different batches; groups of them work side by side.

    Source: Pham and Ahn, "Distributed Deep Learning using Stochastic Gradient Staleness" (2025), of
        which only the abstract is public; for the stages Zhuang et al., FDG (2021), whose program
        is known; the groups are an inference from the abstract's "data parallelism".
    The paradigm: it is no `Paradigm` but a kind of run of K x S workers. Stage k of group s is on
        worker s K + k - 1, which has its part of the network. The gradient of stage k is 2(K - k)
        ticks old (`decoupled.schedule`). Each stage has a server of its own, and the replicas of
        the stage are its workers: `sync` names the paradigm that holds them together. Under BSP, as
        in the paper, they are equal bit by bit.
    Deviations and readings:
        * A batch counts as progress once the last stage has its loss. A run continues until every
          stage has learned from every batch: the pipelines drain, 2(K - 1) ticks.
        * `mix`, `topology`, `mix_every`: the agents of the abstract may average less. With
          `weight`, another topology, or mixing some rounds apart, each replica makes its own
          optimizer steps, and a matrix P mixes gradients or weights. That needs BSP. (`grad` and
          `weight` under full averaging are the same for SGD.) Only `weight` draws replicas together
          again: with `grad` and less than full averaging each keeps its own sum of gradients, and
          they drift apart.
        * The learning rate follows each stage's own progress, so each batch meets the same rate in
          all stages.
        * `clip_norm` looks at the gradient of one stage: the whole is never in one place.
    """

    name: ClassVar[str] = "decoupled"
    why_workers_stay: ClassVar[str] = "a cut network has one worker for each stage of each group"

    modules: Annotated[int, Ge(1), Le(1000)] = 2
    """K, the number of stages. The bound is above the depth of any network here, and keeps a
    damaged record from requesting 10^8 machines."""
    groups: Annotated[int, Ge(1)] = 1
    """S, the number of pipelines."""
    locked: bool = False
    """Whether the stages compute one after another, without delays: plain backpropagation on K
    devices, as a baseline."""
    sync: Spec = "bsp"
    """The paradigm of each stage's replicas."""
    weights: Literal["stash", "latest"] = "stash"
    """The weights of a backward pass: those of its forward pass, or the present ones."""
    shrink: Annotated[float, Gt(0), Le(1)] = 1.0
    """beta, FDG's gradient shrinking: stage k learns from beta^(K - k) times its gradient."""
    balance: Literal["operations", "parameters"] = "operations"
    """The cost that is balanced: the largest stage has as little of it as possible."""
    at: list[str] = field(default_factory=list)
    """The names of the K - 1 items of the network that begin a stage, in place of `balance`."""
    mix: Literal["grad", "weight"] = "grad"
    topology: Literal["full", "ring"] | Matrix = "full"
    """A matrix P, S x S and doubly stochastic, may be given: row s holds what replica s takes of
    each."""
    mix_every: Annotated[int, Ge(1)] = 1
    """H, in rounds."""

    def __post_init__(self) -> None:
        sync = make_inner(self.sync, f"{self.name}: sync")
        if why := sync.infeasible_reason(self.groups):
            raise ConfigError(f"{self.name}: sync: {sync.name}: {why}.")
        if self.at and len(self.at) != self.modules - 1:
            raise ConfigError(
                f"{self.name}: at: {len(self.at)} names for {self.modules} modules; give"
                f" {self.modules - 1}."
            )
        if isinstance(self.topology, list):
            _check_stochastic(self.topology, self.groups)
        if self.mixes_locally and sync.name != "bsp":
            raise ConfigError(
                f"{self.name}: sync: {sync.name}; with mix: weight, another topology than full, or"
                " mix_every above 1 it must be bsp."
            )

    @property
    def mixes_locally(self) -> bool:
        """Whether each replica has an optimizer of its own; otherwise the stage's server has the
        only one.
        """
        return self.mix == "weight" or self.topology != "full" or self.mix_every > 1

    @property
    def matrix(self) -> Matrix:
        """The matrix P, (S, S)."""
        size = self.groups
        if isinstance(self.topology, list):
            return self.topology
        reach = range(-1, 2) if self.topology == "ring" and size > 2 else range(size)
        rows = [[0.0] * size for _ in range(size)]
        for row in range(size):
            for step in reach:
                rows[row][(row + step) % size] += 1 / len(reach)
        return rows

    def machine(self, workload_samples: int | None) -> StageMachines:
        """Build the machines of the stages."""
        return StageMachines(self._sync, self.modules, workload_samples)

    def infeasible_reason(self, workers: int) -> str:
        needed = self.modules * self.groups
        return (
            ""
            if workers == needed
            else (
                f"modules: {self.modules} x groups: {self.groups} is for {needed} workers, "
                f"not for {workers}"
            )
        )

    def phases(self) -> tuple[str, ...]:
        return self._sync().phases()

    def pushes_per_update(self, workers: int, phase: str = "") -> int | None:
        """See `Paradigm.pushes_per_update`; of the update of a stage."""
        return self._sync().pushes_per_update(self.groups, phase)

    @property
    def phase(self) -> str:
        """The phase in force of the paradigm that holds the replicas of a stage together."""
        return self._sync().phase

    def parameters(self) -> dict[str, Any]:
        """Return the arguments of the constructor."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def _sync(self) -> Paradigm:
        return make_inner(self.sync, self.name)


def _check_stochastic(matrix: Sequence[Sequence[float]], size: int) -> None:
    if len(matrix) != size or any(len(row) != size for row in matrix):
        raise ConfigError(
            f"decoupled: topology: a matrix of {size} x {size}, one row a group; got {len(matrix)}"
            f" rows of {', '.join(sorted({str(len(row)) for row in matrix}))}."
        )
    if any(value < 0 for row in matrix for value in row):
        raise ConfigError("decoupled: topology: no value of the matrix may be below 0.")
    for what, lines in (("row", matrix), ("column", list(zip(*matrix, strict=True)))):
        for index, line in enumerate(lines):
            if not isclose(sum(line), 1, abs_tol=1e-6):
                raise ConfigError(
                    f"decoupled: topology: {what} {index} of the matrix sums to {sum(line):g}, not"
                    " to 1; it must be doubly stochastic."
                )
