"""The settings of the Ray cluster: where the actors run, how they restart, how pushes travel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, model_validator

from raysync.config.base import Strict, by_name
from raysync.config.workers import LabelSelector

if TYPE_CHECKING:
    from raysync.config.experiment import Experiment

BACKOFF_MAX_S = 60.0  # the longest wait before a restart of a worker, unless the first is longer


class Restarts(Strict):
    """How a worker or a server comes back whose process has died or frozen: a worker as the next
    life of its slot, a server with the weights that it had.

    Attempts are counted in a row: a push shows that the worker is well, and another update that the
    server is. So a long run survives any number of losses, but not a process that fails at every
    start.
    """

    attempts: int = Field(
        6,
        ge=0,
        description=(
            "restarts of a lost worker in a row, before the run gives it up; a push of the worker"
            " resets the count; 0: a lost worker is not restarted. The same holds for a lost"
            " server, before the run recovers from its newest checkpoint, or fails. A lost stage"
            " of `decoupled`, or its server, is not restarted: the run recovers from its newest"
            " checkpoint at once"
        ),
    )
    backoff_s: float = Field(
        1,
        ge=0,
        description=(
            "time between a loss and the first attempt; it doubles with each further attempt in a"
            f" row, up to {BACKOFF_MAX_S:g} s"
        ),
    )

    def wait_s(self, failed: int) -> float:
        """Return the seconds to wait before the next attempt, after so many failures in a row."""
        doublings = min(failed, 64)  # far beyond the bound, and no overflow
        return min(self.backoff_s * 2.0**doublings, max(self.backoff_s, BACKOFF_MAX_S))


MOST_SERVERS = 10_000


class WireFormat(Strict):
    """The format of pushes on their way to the server.

    Source: QSGD (Alistarh et al. 2017) for int8, Aji and Heafield (2017) for top-k, error feedback
    of Seide et al. (2014) and Karimireddy et al. (2019).
    """

    name: Literal["float32", "bf16", "int8", "top-k"] = Field(
        "float32",
        description=(
            "bf16: rounded, half the bytes; int8: rounded at random to 255 levels, a scale for each"
            " 1,024 numbers, a quarter of the bytes; top-k: only the largest numbers, with their"
            " places"
        ),
    )
    fraction: float = Field(
        0.01, gt=0, le=1, description="for `top-k`: the share of the numbers that is sent"
    )
    feedback: bool | None = Field(
        None,
        description=(
            "error feedback: a worker adds the rounding errors of its earlier pushes to each"
            " push; default: yes for int8 and top-k, no for bf16"
        ),
    )

    @property
    def is_plain(self) -> bool:
        """Whether pushes travel as they were computed."""
        return self.name == "float32"

    @property
    def feeds_back(self) -> bool:
        """Whether workers keep the rounding errors of their pushes."""
        return self.name in ("int8", "top-k") if self.feedback is None else self.feedback

    @model_validator(mode="after")
    def _fits(self) -> WireFormat:
        if self.name != "top-k" and "fraction" in self.model_fields_set:
            raise ValueError(f"fraction: {self.fraction:g} is for top-k, not for {self.name}")
        if self.is_plain and self.feedback:
            raise ValueError("feedback: float32 loses nothing that could be fed back")
        return self


class Metrics(Strict):
    """What a run publishes for Prometheus; a minute after its end nothing of it is left."""

    published: bool = Field(True, description="publish the run's metrics")
    per_worker_histograms: bool = Field(
        False,
        description=(
            "also how each worker's times to compute and to wait are distributed: up to 36 more"
            " series a worker; their means come without"
        ),
    )

    @model_validator(mode="after")
    def _publishes_them(self) -> Metrics:
        if self.per_worker_histograms and not self.published:
            raise ValueError("per_worker_histograms: true needs published: true")
        return self


def _published(metrics: object) -> object:
    return metrics if isinstance(metrics, Mapping | Metrics) else {"published": metrics}


def _short_metrics(metrics: Metrics) -> bool | dict[str, bool]:
    return metrics.model_dump() if metrics.per_worker_histograms else metrics.published


def _short_form(wire: WireFormat) -> str | dict[str, Any]:
    given = wire.model_dump(exclude_unset=True)
    return wire.name if given.keys() <= {"name"} else {"name": wire.name, **given}


WireSetting = Annotated[WireFormat, BeforeValidator(by_name), PlainSerializer(_short_form)]
MetricsSetting = Annotated[Metrics, BeforeValidator(_published), PlainSerializer(_short_metrics)]


class Cluster(Strict):
    """Where and how the actors run."""

    gone: ClassVar = {
        "task_events": (False, "raysync report RUN --format trace writes each step and update")
    }

    address: str = Field(
        "auto",
        description=(
            "address of a Ray cluster; local: a private one on this machine; auto: the one that "
            "Ray is connected to, or that the command line finds in RAY_ADDRESS (as "
            "within a Ray job), otherwise local"
        ),
    )
    server_shards: int = Field(
        1,
        ge=1,
        le=MOST_SERVERS,
        description="number of servers; the model's flat vector is split evenly among them",
    )
    server_cpus: float = Field(1, ge=0, description="CPUs reserved for each server")
    server_gpus: float = Field(
        0,
        ge=0,
        lt=0.5,
        description=(
            "the server's share of the first worker's GPU, below half of that worker's `gpus`: it"
            " computes there, and gradients and weights stay in its memory, if all workers and the"
            " evaluator can open that; 0: the server computes on its CPUs"
        ),
    )
    server_placement: Literal["apart", "with-workers", "spread"] = Field(
        "apart",
        description=(
            "apart: with resources of their own; with-workers: the n-th server runs beside the"
            " n-th worker, on its node; spread: beside workers that lie evenly among all, and so on"
            " as many nodes as can be. The controller runs with the first server"
        ),
    )
    server_label_selector: LabelSelector = Field(
        default_factory=dict, description="labels of the nodes where servers placed apart run"
    )
    evaluator_cpus: float = Field(
        1,
        ge=0,
        description=(
            "CPUs reserved for the evaluator; 0 where the workers need every CPU, with which it"
            " then shares them"
        ),
    )
    evaluator_gpus: float | None = Field(
        None,
        ge=0,
        le=1,
        description=(
            "GPUs reserved for the evaluator; default: it shares the GPU of the first worker that"
            " has one or less, of which it reserves a tenth, and then no CPU"
        ),
    )
    step_deadline_s: float = Field(
        120,
        gt=0,
        description=(
            "a worker is lost if its step takes this much longer than its settings of device,"
            " link and faults predict; a server is lost if an update takes longer than this"
        ),
    )
    restarts: Restarts = Field(
        Restarts(),
        description="how a worker or server is restarted after its process has died or frozen",
    )
    server_log_bytes: int = Field(
        2**30,
        ge=0,
        description=(
            "size of the log that holds the gradients of updates until the next snapshot of the"
            " server's state; from log and snapshot, a lost server recovers the same weights; 0, or"
            " less than eight gradients: no log; after the loss of a server the run recovers from"
            " its newest checkpoint"
        ),
    )
    min_workers: int = Field(
        1,
        ge=1,
        description=(
            "with fewer workers than this, the run waits for restarting workers, and fails if"
            " these are too few. Not with `decoupled`, which needs all of its stages"
        ),
    )
    placement_deadline_s: float = Field(
        20,
        gt=0,
        description=(
            "how long to wait for resources that are in use; a cluster that starts nodes on demand"
            " needs minutes"
        ),
    )
    transport: Literal["object-ref", "shared-memory", "auto"] = Field(
        "auto",
        description=(
            "how gradients and weights travel on Ray; object-ref: as values of Ray's object store,"
            " everywhere; shared-memory: in memory that the processes of one node share, refused if"
            " the actors are on several nodes; auto: the gradients of workers on the server's node"
            " in shared memory, and the weights, too, if nobody reads them elsewhere; all else in"
            " the object store"
        ),
    )
    wire: WireSetting = Field(
        WireFormat(),
        description=(
            "format in which pushes travel to the server: `bf16`, `{name: top-k, fraction: 0.01}`;"
            " they are added in float32. Weights travel in float32 in any case, and buffers bit by"
            " bit"
        ),
    )
    metrics: MetricsSetting = Field(
        Metrics(),
        description=(
            "what the run publishes at Ray's endpoints, for Prometheus: `true`, `false`, or"
            " `{per_worker_histograms: true}`"
        ),
    )
    dashboard: bool = Field(False, description="start the Ray dashboard with a private cluster")
    fork_workers: bool = Field(
        True,
        description=(
            "a private cluster forks its worker processes from one that has imported torch, so"
            " that runs and lost actors start sooner; where this version of Ray does not allow"
            " it, and on other systems than Linux, each process imports torch itself"
        ),
    )

    @model_validator(mode="after")
    def _servers_fit_placement(self) -> Cluster:
        if self.server_gpus and self.server_shards > 1:
            raise ValueError(
                f"server_gpus: {self.server_gpus:g}: one server shares a worker's GPU, not"
                f" server_shards: {self.server_shards}"
            )
        if self.server_gpus and self.transport == "object-ref":
            raise ValueError(
                f"server_gpus: {self.server_gpus:g}: with transport: object-ref each vector would"
                " be copied from the GPU and back; auto lets them stay there"
            )
        if self.server_label_selector and self.hosts(workers=1):
            raise ValueError(
                "server_label_selector: servers that are placed with workers run on their nodes;"
                " leave it out"
            )
        return self

    def hosts(self, workers: int) -> list[int]:
        """Return the number of the worker beside each server; [] if servers are apart, or nobody
        has one, as in an all-reduce.
        """
        count = self.server_shards
        if self.server_placement == "apart":
            return [0] if self.server_gpus else []
        if self.server_placement == "spread" and count < workers:
            return [server * workers // count for server in range(count)]
        return [server % workers for server in range(count if workers else 0)]


def check_cluster(experiment: Experiment) -> None:
    """Refuse settings that do not fit the workers, or the update."""
    cluster, count, [first, *_] = experiment.cluster, experiment.worker_count, experiment.workers
    if cluster.wire.name in ("int8", "top-k") and experiment.update.combine == "sum":
        raise ValueError(
            f"update.combine: sum: with cluster.wire: {cluster.wire.name} the errors of all pushes"
            " would add up, too; allowed: mean"
        )
    if cluster.min_workers > count:
        raise ValueError(
            f"cluster.min_workers: {cluster.min_workers}, but there {'are' if count > 1 else 'is'}"
            f" only {count} worker{'s' * (count > 1)}"
        )
    share = cluster.server_gpus
    if share and not (first.gpus <= 1 and share < first.gpus / 2):
        raise ValueError(
            f"cluster.server_gpus: {share:g}: the server shares the first worker's GPU, and"
            f" takes less than half of it, but {first.name!r} has gpus: {first.gpus:g}"
        )
    if cluster.server_shards > 1:
        needs = f"needs cluster.server_shards: 1, not {cluster.server_shards}; a shard"
        if experiment.update.project_radius is not None:
            raise ValueError(
                f"update.project_radius: {needs} does not know the norm of the whole model"
            )
        if experiment.update.is_muon:
            raise ValueError(f"update.optimizer: muon: {needs} would cut a matrix")
