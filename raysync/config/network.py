"""The settings of the network: links, sizes, regions, nodes, costs at servers and coordinator.

The virtual engine simulates all of it. Ray has the real network; there only the `link` of a worker
group and the latency of faults are emulated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field, model_validator

from raysync.config.base import Strict
from raysync.errors import unknown_name

if TYPE_CHECKING:
    from raysync.config.experiment import Experiment

Bandwidth = Annotated[float, Field(gt=0)]
LatencySeconds = Annotated[float, Field(ge=0)]
AS_OUTSIDE = "as in `network`; default: the same as there"


class Link(Strict):
    """One way of a connection. The other way has the same values, and both can be used at once."""

    latency_s: float = Field(0.0, ge=0, description="seconds until the first byte arrives")
    bandwidth_bytes_per_s: float | None = Field(None, gt=0, description="default: without limit")


class Node(Strict):
    """A machine whose workers share its link, beside their own, as GPUs share a network card.

    Transfers within one node do not use it.
    """

    name: str = Field(description="by which faults name it")
    workers: tuple[str, ...] = Field(
        min_length=1, description="slots (fast-0) or groups (fast) that are on it"
    )
    link: Link = Field(Link(), description="its link, each way, which its workers share")


class Regions(Strict):
    """The links between regions, each way for itself: row = source, column = target, in the order
    of `names`. Each transfer has the whole bandwidth; only links of servers and nodes are shared.
    """

    names: tuple[str, ...] = Field(
        min_length=1, description="the regions, which worker groups name by `region`"
    )
    server: str | None = Field(
        None,
        description="the region of servers that are placed apart; others are with their workers",
    )
    bandwidth_bytes_per_s: tuple[tuple[Bandwidth | None, ...], ...] = Field(
        description=(
            "bandwidth from the region of the row to the region of the column; null: there is no"
            " link"
        )
    )
    latency_s: tuple[tuple[LatencySeconds, ...], ...] = Field(
        (),
        description=(
            "latency from the region of the row to the region of the column; default: 0 everywhere"
        ),
    )

    @model_validator(mode="after")
    def _matrices_fit_names(self) -> Regions:
        if len(set(self.names)) < len(self.names):
            names = ", ".join(self.names)
            raise ValueError(f"names: each region can be listed only once, got {names}")
        for setting in ("bandwidth_bytes_per_s", "latency_s"):
            rows: Sequence[Sequence[float | None]] = getattr(self, setting)
            if setting == "latency_s" and not rows:
                continue
            count = len(self.names)
            if len(rows) != count:
                raise ValueError(
                    f"{setting}: {len(rows)} rows for {count} regions; the matrix has a row"
                    " (source) and a column (target) for each"
                )
            for name, row in zip(self.names, rows, strict=True):
                if len(row) != count:
                    raise ValueError(
                        f"{setting}: the row of {name!r} has {len(row)} values for {count} regions;"
                        " the matrix has a row (source) and a column (target) for each"
                    )
        if self.server is not None:
            self.index(self.server, "server")
        return self

    def index(self, name: str, where: str) -> int:
        """Return the number of a region; raise `ConfigError` for an unknown one."""
        if name not in self.names:
            raise unknown_name("region", name, self.names, where=where, listed=self.names)
        return self.names.index(name)

    def between(self, source: str, target: str) -> Link | None:
        """Return the link from one region to another; None: there is none."""
        row, column = self.names.index(source), self.names.index(target)
        bandwidth = self.bandwidth_bytes_per_s[row][column]
        if bandwidth is None:
            return None
        latency_s = self.latency_s[row][column] if self.latency_s else 0.0
        return Link(latency_s=latency_s, bandwidth_bytes_per_s=bandwidth)


class NetworkPhase(Strict):
    """The settings that differ in one phase of a switching paradigm; others keep their values."""

    gone: ClassVar = {"pull_round_trips": (None, "network.pull_round_trips holds in every phase")}

    link: Link | None = Field(None, description=AS_OUTSIDE)
    server_bandwidth_bytes_per_s: float | None = Field(None, gt=0, description=AS_OUTSIDE)
    push_s: float | None = Field(None, ge=0, description=AS_OUTSIDE)
    update_s: float | None = Field(None, ge=0, description=AS_OUTSIDE)
    update_bytes_per_s: float | None = Field(None, gt=0, description=AS_OUTSIDE)


class Network(Strict):
    """The network between workers and server. The virtual engine simulates it; Ray has the real
    network.
    """

    gone: ClassVar = {"sharing": ("fair", "transfers share a link all at once, as over TCP")}

    link: Link = Field(Link(), description="the link of each worker, each way")
    server_bandwidth_bytes_per_s: float | None = Field(
        None,
        gt=0,
        description=(
            "bandwidth of each server's link, which all workers share, each way; default: without"
            " limit"
        ),
    )
    nodes: tuple[Node, ...] = Field((), description="machines whose workers share a link")
    share_sigma: float = Field(
        0.35,
        ge=0,
        description=(
            "how unequal the fair shares of transfers from different hosts are: the sigma of their"
            " lognormal distribution, which `raysync calibrate` measures"
        ),
    )
    regions: Regions | None = Field(
        None, description="the links between regions; each worker group then names its `region`"
    )
    vector_bytes: int | None = Field(
        None,
        gt=0,
        description=(
            "size of gradients and weights, without building the model; needs timing: only, and a"
            " step time in each group"
        ),
    )
    pull_round_trips: int = Field(
        0,
        ge=0,
        description=(
            "extra round trips of a pull, each of twice the latency, before its bytes travel: 1"
            " if a worker has to request the weights"
        ),
    )
    push_s: float = Field(
        0.0,
        ge=0,
        description=(
            "time that the coordinator spends on each push, one after another in the order of"
            " arrival, before it counts as pushed; transfers and updates continue meanwhile"
        ),
    )
    update_s: float = Field(
        0.0, ge=0, description="time that the server spends on an update, beside reading gradients"
    )
    update_bytes_per_s: float | None = Field(
        None,
        gt=0,
        description=(
            "rate at which the server reads gradients, at their size in the format of"
            " `cluster.wire`; default: without limit"
        ),
    )
    phases: dict[str, NetworkPhase] = Field(
        default_factory=dict,
        description=(
            "settings that differ in the phases of a paradigm that switches; they hold for what is"
            " sent, pushed and applied after the switch"
        ),
    )

    @model_validator(mode="after")
    def _names_differ(self) -> Network:
        names = [node.name for node in self.nodes]
        if len(set(names)) < len(names):
            raise ValueError(f"nodes need different names, got {', '.join(names)}")
        return self

    def in_phase(self, name: str) -> Network:
        """Return the settings in a phase; without an entry in `phases`, the default ones."""
        changes = self.phases.get(name, NetworkPhase()).present
        return self.model_copy(update=changes | {"phases": {}})


def check_phases(experiment: Experiment) -> None:
    """Refuse settings of a phase that no paradigm has."""
    choices = (experiment.paradigm, *experiment.paradigms)
    if not all(choice.can_be_made for choice in choices):
        return
    phases = {phase for choice in choices for phase in choice.make().phases()} - {""}
    for where, named in (
        ("update.phases", experiment.update.phases),
        ("network.phases", experiment.network.phases),
    ):
        for name in named:
            if not phases:
                raise ValueError(f"{where}: {name!r}, but none of the paradigms has phases")
            if name not in phases:
                raise unknown_name("phase", name, phases, where=where)
