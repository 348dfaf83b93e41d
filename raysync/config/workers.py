"""The settings of the machines: worker groups, emulated speeds, the Ray cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    ValidationInfo,
    field_validator,
    model_validator,
)

from raysync.config.base import MOST_SAMPLES, MOST_WHOLE, Strict, by_name
from raysync.config.durations import Numbers
from raysync.config.network import Link
from raysync.config.traces import trace_of
from raysync.core.ids import worker_slot
from raysync.errors import ConfigError

if TYPE_CHECKING:
    from raysync.config.experiment import Experiment

# Ray 2.60 takes the spaces for part of a value.
Condition = Annotated[
    str,
    Field(pattern=r"^!?(in\([^()]+\)|[A-Za-z0-9][A-Za-z0-9_.-]*)$"),
    AfterValidator(lambda text: text.replace(" ", "")),
]
# label -> `value`, `!value`, `in(a, b)` or `!in(a, b)`, in Ray's notation; all must hold
LabelSelector = dict[str, Condition]

# the settings with a group's step time; it has at most one of them
STEP_TIMES = ("step_s", "per_sample_s", "flops_per_s", "trace")
START_DEADLINE_S = 120.0  # the most that an actor takes to import torch and build its model


class Jitter(Strict):
    """How a worker's step times vary: by a random factor with mean 1."""

    distribution: Literal["none", "normal", "lognormal", "exponential", "pareto", "empirical"] = (
        Field("lognormal", description="distribution of the factor that multiplies a step's time")
    )
    sigma: float = Field(
        0.0,
        ge=0,
        le=2,
        description=(
            "normal: standard deviation of the factor; lognormal: of its logarithm; the others need"
            " none"
        ),
    )
    tail: float = Field(
        2.5,
        gt=1,
        description=(
            "pareto, for the rare, very long steps of machines that others use: exponent of the"
            " tail; the share of factors above x falls as x to the power of minus that, so a small"
            " one is heavy. Up to 2 the variance is infinite"
        ),
    )
    samples: tuple[Annotated[float, Field(strict=True, gt=0)], ...] = Field(
        (),
        description=(
            "empirical: numbers such as measured step times: each step draws one, over the mean of"
            " all"
        ),
    )

    @model_validator(mode="after")
    def _has_samples(self) -> Jitter:
        if (self.distribution == "empirical") != bool(self.samples):
            raise ValueError(
                "distribution: empirical and samples go together; got distribution:"
                f" {self.distribution} and {len(self.samples)} samples"
            )
        return self


class WorkerGroup(Strict):
    """Workers that are alike. All resources are for one worker."""

    name: str = Field(
        "worker",
        pattern=r"^[A-Za-z0-9_.+-]+$",
        description="the names of its workers begin with it: NAME-0, NAME-1, ...",
    )
    count: int = Field(1, ge=1, le=10_000, description="number of workers in the group")
    cpus: float = Field(1, ge=0, description="CPUs reserved on the Ray cluster for each worker")
    gpus: float = Field(
        0, ge=0, description="GPUs reserved for each worker: a share below 1, or a whole number"
    )
    devices_per_worker: int | None = Field(
        None,
        ge=1,
        le=1024,
        description=(
            "replicas of the model, whose gradients are averaged "
            "before the worker pushes; default: one for each GPU"
        ),
    )
    accelerator_type: str | None = Field(
        None, description="type of the node's GPUs, by Ray's name: A100, H100, T4, ..."
    )
    label_selector: LabelSelector = Field(
        default_factory=dict, description="labels of the nodes where the workers can run"
    )
    fallback_label_selectors: tuple[LabelSelector, ...] = Field(
        (),
        description=(
            "tried in this order, for the whole group, if the cluster cannot hold it otherwise:"
            " where spot or preemptible nodes run out, others take their place"
        ),
    )
    resources: dict[str, Annotated[float, Field(gt=0, le=1e6)]] = Field(
        default_factory=dict, description="Ray's custom resources"
    )
    precision: Literal["float32", "tf32", "bf16"] = Field(
        "float32",
        description=(
            "precision of computing; weights and gradients are float32. tf32: the factors of"
            " products are rounded to 10 bits, on GPUs since Ampere; bf16: forward pass under"
            " torch's autocast, on GPUs since Ampere and on CPUs"
        ),
    )
    compile: bool = Field(
        False,
        description=(
            "forward and backward pass are compiled by torch.compile, before the run begins; on"
            " Ray, for workers of one device. It needs a C++ compiler on their nodes, and triton on"
            " GPUs"
        ),
    )
    speed: float = Field(
        1.0, gt=0, description="emulation: factor by which steps are faster than the step time"
    )
    batch_size: int | None = Field(
        None,
        gt=0,
        le=MOST_SAMPLES,
        description=(
            "samples of an iteration of each of its workers; default: the experiment's batch_size"
        ),
    )
    max_batch: int | None = Field(
        None,
        ge=1,
        description=(
            "the most samples of an iteration that a worker's memory holds; default: any number"
        ),
    )
    step_s: float | None = Field(
        None,
        gt=0,
        description=(
            "emulation: seconds of a step of the group's own batch size at speed 1; a step of"
            " another size takes in proportion to it. Default: as long as it takes, and on the"
            " virtual engine by flops_per_s"
        ),
    )
    per_sample_s: float | None = Field(
        None,
        gt=0,
        description=(
            "emulation, instead of step_s: a step of b samples takes fixed_s + per_sample_s b at"
            " speed 1, and at least floor_s"
        ),
    )
    fixed_s: float = Field(
        0.0, ge=0, description="emulation: the part of a step that its batch does not lengthen"
    )
    floor_s: float = Field(
        0.0, ge=0, description="emulation: the least that a step takes, however small its batch"
    )
    flops_per_s: float | None = Field(
        None,
        gt=0,
        description=(
            "emulation: a step lasts as long as its floating-point "
            "operations take at this rate; default, on the virtual engine "
            "only: 1e11, about one core of a CPU"
        ),
    )
    trace: Numbers | tuple[Numbers, ...] = Field(
        (),
        description=(
            "emulation: seconds of the steps, in turn and again from the start: a list for each"
            " worker, or [a table](#traces) (CSV, parquet) with a column a worker. One list, or a"
            " text file of numbers, is shared: the n-th of N workers begins n/N of the way through"
        ),
    )
    jitter: Jitter = Jitter()
    start_s: float = Field(
        0.0,
        ge=0,
        le=START_DEADLINE_S,
        description=(
            "time that a worker takes to be ready when it is restarted, on the virtual engine;"
            " on Ray, a process takes the time that it takes"
        ),
    )
    link: Link = Field(
        Link(), description="emulation: the link that each worker has in addition, each way"
    )
    region: str | None = Field(
        None, description="where its workers are, of `network.regions`; on the virtual engine"
    )

    @field_validator("trace", mode="before")
    @classmethod
    def _read_trace(cls, trace: object, info: ValidationInfo) -> object:
        return trace_of(trace, info.data.get("name", ""), info.data.get("count", 1))

    @model_validator(mode="after")
    def _steps_are_possible(self) -> WorkerGroup:
        given = [name for name in STEP_TIMES if getattr(self, name)]
        if len(given) > 1:
            raise ValueError(
                f"give one of {', '.join(STEP_TIMES[:-1])} and {STEP_TIMES[-1]}; got"
                f" {' and '.join(given)}"
            )
        for name in ("fixed_s", "floor_s"):
            if getattr(self, name) and self.per_sample_s is None:
                raise ValueError(
                    f"{name}: {getattr(self, name):g} needs per_sample_s, the seconds that each"
                    " sample adds to a step"
                )
        if self.batch_size is not None and self.batch_size > (self.max_batch or self.batch_size):
            raise ValueError(f"batch_size: {self.batch_size} is above max_batch: {self.max_batch}")
        return self

    @model_validator(mode="after")
    def _devices_are_possible(self) -> WorkerGroup:
        if self.gpus > 1 and self.gpus % 1:
            raise ValueError(f"gpus: must be below 1 or a whole number; got {self.gpus:g}")
        if self.gpus and self.devices_per_worker not in (None, self.devices):
            raise ValueError(
                f"devices_per_worker: {self.devices_per_worker} with gpus: {self.gpus:g}; each"
                f" replica needs a GPU of its own: gpus: {self.devices_per_worker} (or gpus: 0, to"
                " compute on the CPU)"
            )
        if self.compile and self.devices > 1:
            raise ValueError(
                f"compile: true with {self.devices} devices a worker: their replicas compute in"
                " threads, in which torch does not compile; more workers of one device each can"
            )
        if self.accelerator_type is not None and not self.gpus:
            raise ValueError(f"accelerator_type: {self.accelerator_type} needs gpus above 0")
        if reserved := {"CPU", "GPU"} & set(self.resources):
            raise ValueError(f"resources: {min(reserved)} is set by {min(reserved).lower()}s")
        if self.fallback_label_selectors and not self.label_selector:
            raise ValueError(
                "fallback_label_selectors: without a label_selector every node is allowed already"
            )
        return self

    @property
    def emulates_steps(self) -> bool:
        """Whether the group has a step time of its own."""
        return any(getattr(self, name) for name in STEP_TIMES)

    @property
    def devices(self) -> int:
        """The replicas of each worker."""
        if self.gpus or self.devices_per_worker is None:
            return max(1, int(self.gpus))
        return self.devices_per_worker


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
    wire: Annotated[WireFormat, BeforeValidator(by_name), PlainSerializer(_short_form)] = Field(
        WireFormat(),
        description=(
            "format in which pushes travel to the server: `bf16`, `{name: top-k, fraction: 0.01}`;"
            " they are added in float32. Weights travel in float32 in any case, and buffers bit by"
            " bit"
        ),
    )
    metrics: Annotated[Metrics, BeforeValidator(_published), PlainSerializer(_short_metrics)] = (
        Field(
            Metrics(),
            description=(
                "what the run publishes at Ray's endpoints, for Prometheus: `true`, `false`, or"
                " `{per_worker_histograms: true}`"
            ),
        )
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


def slots_in(groups: Sequence[WorkerGroup]) -> dict[str, WorkerGroup]:
    """Return slot (`group-index`) -> group for every worker, in the order of the file."""
    return {
        worker_slot(group.name, index): group for group in groups for index in range(group.count)
    }


def select_slots(groups: Sequence[WorkerGroup], names: Sequence[str]) -> list[str]:
    """Return the slots that names of slots or groups select; no name selects all."""
    return [
        slot
        for slot, group in slots_in(groups).items()
        if not names or {slot, group.name} & set(names)
    ]


def check_group_names(experiment: Experiment) -> None:
    """Refuse two groups of one name."""
    names = [group.name for group in experiment.workers]
    if len(set(names)) < len(names):
        raise ValueError(f"worker groups need different names, got {names}")


def check_batch_sizes(experiment: Experiment) -> None:
    """Refuse batches that a worker cannot hold, or its devices cannot share."""
    for where, size, groups in experiment.named_batch_sizes():
        for group in groups:
            if group.devices > size:
                raise ValueError(
                    f"{where}: {size} samples cannot be shared by the {group.devices} devices"
                    f" of each worker in group {group.name!r}"
                )
            if group.max_batch is not None and size > group.max_batch:
                raise ValueError(
                    f"{where}: {size} is above the {group.max_batch} samples that a worker in"
                    f" group {group.name!r} can hold (max_batch); give the group a batch_size"
                    " of its own"
                )


def check_workload(experiment: Experiment) -> None:
    """Refuse more samples than `MOST_WHOLE`."""
    iterations = experiment.workload.iterations_per_worker or 0
    if (samples := iterations * experiment.global_batch) > MOST_WHOLE:
        raise ValueError(
            f"workload: {iterations:g} iterations of {experiment.global_batch:,} samples are"
            f" {samples:g}; it has at most {MOST_WHOLE:g}"
        )


def check_paradigms(experiment: Experiment) -> None:
    """Refuse paradigms that cannot run with so many workers."""
    named = {"paradigm": experiment.paradigm} | {
        f"paradigms[{index}]": choice for index, choice in enumerate(experiment.paradigms)
    }
    for where, choice in named.items():
        if not choice.can_be_made:
            continue
        try:
            why = experiment.make(choice).infeasible_reason(experiment.worker_count)
        except ConfigError as error:  # its parameters do not fit the workers
            why = str(error).removeprefix("paradigm ").removesuffix(".")
            raise ValueError(f"{where}: {why}") from error
        if why:
            raise ValueError(f"{where}: {choice.name}: {why}")


def check_engine(experiment: Experiment) -> None:
    """Refuse on Ray what only virtual time can do."""
    if experiment.engine == "virtual":
        return
    if experiment.timing == "only":
        raise ValueError(
            "timing: only needs engine: virtual; on Ray, step times come from computing gradients"
        )
    for group in experiment.workers:
        if group.speed > 1 and not group.emulates_steps:
            raise ValueError(
                f"workers: {group.name!r} has a speed above 1, which needs step_s,"
                " per_sample_s, flops_per_s or trace: emulation can slow a real step down,"
                " but not speed it up"
            )


def check_wire(experiment: Experiment) -> None:
    """Refuse to add up pushes in a format with large errors."""
    wire = experiment.cluster.wire
    if wire.name in ("int8", "top-k") and experiment.update.combine == "sum":
        raise ValueError(
            f"update.combine: sum: with cluster.wire: {wire.name} the errors of all pushes"
            " would add up, too; allowed: mean"
        )


def check_min_workers(experiment: Experiment) -> None:
    """Refuse to wait for more workers than there are."""
    if (least := experiment.cluster.min_workers) > (count := experiment.worker_count):
        raise ValueError(
            f"cluster.min_workers: {least}, but there {'are' if count > 1 else 'is'} only"
            f" {count} worker{'s' * (count > 1)}"
        )


def check_server_gpu(experiment: Experiment) -> None:
    """Refuse a share of the first worker's GPU that leaves it too little."""
    share, [first, *_] = experiment.cluster.server_gpus, experiment.workers
    if share and not (first.gpus <= 1 and share < first.gpus / 2):
        raise ValueError(
            f"cluster.server_gpus: {share:g}: the server shares the first worker's GPU, and"
            f" takes less than half of it, but {first.name!r} has gpus: {first.gpus:g}"
        )


def check_server_count(experiment: Experiment) -> None:
    """Refuse shards where a server needs the whole model."""
    if (shards := experiment.cluster.server_shards) == 1:
        return
    needs = f"needs cluster.server_shards: 1, not {shards}; a shard"
    if experiment.update.project_radius is not None:
        raise ValueError(
            f"update.project_radius: {needs} does not know the norm of the whole model"
        )
    if experiment.update.is_muon:
        raise ValueError(f"update.optimizer: muon: {needs} would cut a matrix")
