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


# Deviations and readings:
# * A batch counts as progress once the last stage has its loss. A run continues until every stage
#   has learned from every batch: the pipelines drain, 2(K - 1) ticks.
# * The abstract's agents may average less. With `weight`, another topology, or mixing some rounds
#   apart, each replica makes its own optimizer steps, and a matrix P mixes gradients or weights.
#   That needs BSP. (Under full averaging `grad` and `weight` are the same for SGD.) Only `weight`
#   draws replicas together again: under `grad` with less than full averaging they drift apart.
# * The learning rate follows each stage's own progress, so a batch meets one rate in all stages.
# * `clip_norm` is applied to the gradient of one stage: the whole is never in one place.
@dataclass
class Decoupled:
    """The network is cut into stages that compute different batches at once.

    Source: Pham and Ahn, "Distributed Deep Learning using Stochastic Gradient Staleness" (2025), of
    which only the abstract is public; for the stages Zhuang et al., FDG (2021), whose program is
    known. The groups are an inference from the abstract's "data parallelism".

    This is no `Paradigm` but a kind of run of K x S workers: worker number sK + k - 1 has stage k
    of group s. Its gradient is 2(K - k) ticks old (`decoupled.schedule`). Each stage has a server
    of its own, whose workers are the stage's replicas; `sync` names their paradigm. Under BSP, as
    in the paper, they are equal bit by bit.
    """

    name: ClassVar[str] = "decoupled"
    why_workers_stay: ClassVar[str] = "a cut network has one worker for each stage of each group"

    # K, the number of stages; the bound keeps a damaged record from requesting 10^8 machines
    modules: Annotated[int, Ge(1), Le(1000)] = 2
    groups: Annotated[int, Ge(1)] = 1  # S, the number of pipelines
    # stages compute in turn, without delays: plain backpropagation, as a baseline
    locked: bool = False
    sync: Spec = "bsp"  # the paradigm of each stage's replicas
    # a backward pass is on the weights of its forward pass, or on the present ones
    weights: Literal["stash", "latest"] = "stash"
    # beta, FDG's gradient shrinking: stage k learns from beta^(K - k) times its gradient
    shrink: Annotated[float, Gt(0), Le(1)] = 1.0
    # the cost whose maximum over the stages is minimal
    balance: Literal["operations", "parameters"] = "operations"
    # the K - 1 items that begin a stage, instead of `balance`
    at: list[str] = field(default_factory=list)
    mix: Literal["grad", "weight"] = "grad"
    # or the matrix P, S x S and doubly stochastic: by the weights in row s, replica s mixes
    topology: Literal["full", "ring"] | Matrix = "full"
    mix_every: Annotated[int, Ge(1)] = 1  # H, in rounds

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
        """Whether each replica has an optimizer of its own, not only the stage's server."""
        return self.mix == "weight" or self.topology != "full" or self.mix_every > 1

    @property
    def matrix(self) -> Matrix:
        """The matrix P, (S, S)."""
        size = self.groups
        if isinstance(self.topology, list):
            return self.topology
        neighbours = range(-1, 2) if self.topology == "ring" and size > 2 else range(size)
        rows = [[0.0] * size for _ in range(size)]
        for row in range(size):
            for step in neighbours:
                rows[row][(row + step) % size] += 1 / len(neighbours)
        return rows

    def machine(self, workload_samples: int | None, seed: int = 0) -> StageMachines:
        return StageMachines(self._make_sync, self.modules, workload_samples, seed)

    def infeasible_reason(self, workers: int) -> str:
        needed = self.modules * self.groups
        if workers == needed:
            return ""
        return (
            f"modules: {self.modules} x groups: {self.groups} is for {needed} workers, not for"
            f" {workers}"
        )

    def phases(self) -> tuple[str, ...]:
        return self._make_sync().phases()

    def pushes_per_update(self, workers: int, phase: str = "") -> int | None:
        return self._make_sync().pushes_per_update(self.groups, phase)

    @property
    def phase(self) -> str:
        return self._make_sync().phase

    def parameters(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def _make_sync(self) -> Paradigm:
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
