"""The settings of the workers: groups that are alike, their machines and emulated speeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from raysync.config.base import MOST_SAMPLES, MOST_WHOLE, Strict
from raysync.config.durations import Numbers
from raysync.config.network import Link
from raysync.config.traces import trace_of
from raysync.core.ids import worker_slot

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
