"""Who computes and where: worker groups, what they emulate, the Ray cluster."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from raysync.config.base import Strict
from raysync.config.step_trace import seconds_from


class Jitter(Strict):
    """How a worker's step times vary from step to step; the mean factor is 1."""

    distribution: Literal["none", "normal", "lognormal", "exponential"] = Field(
        "lognormal", description="of the factor that a step's time is multiplied by"
    )
    sigma: float = Field(
        0.0,
        ge=0,
        le=2,
        description=(
            "standard deviation of the factor (of its logarithm, lognormal; an "
            "exponential factor has none to set)"
        ),
    )


class Link(Strict):
    """One way of a connection; the other way is like it, and both can be used at once."""

    latency_s: float = Field(0.0, ge=0, description="until the first byte arrives")
    bandwidth_bytes_per_s: float | None = Field(None, gt=0, description="default: without limit")


class Network(Strict):
    """What lies between workers and server in virtual time; on Ray the real network is there."""

    link: Link = Field(Link(), description="of each worker, each way")
    server_bandwidth_bytes_per_s: float | None = Field(
        None,
        gt=0,
        description=(
            "of each server's link, which all workers share, each way; default: without limit"
        ),
    )
    update_s: float = Field(
        0.0, ge=0, description="the server works that long on an update, beside reading gradients"
    )
    update_bytes_per_s: float | None = Field(
        None, gt=0, description="rate at which it reads gradients; default: no limit"
    )


Condition = Annotated[
    str,
    Field(pattern=r"^!?(in\([^()]+\)|[A-Za-z0-9][A-Za-z0-9_.-]*)$"),
    AfterValidator(lambda text: text.replace(" ", "")),
]  # Ray 2.60 takes the spaces for part of a value
LabelSelector = dict[str, Condition]
"""Ray's: label -> `value`, `!value`, `in(a, b)` or `!in(a, b)`; a node must meet all of them."""


class WorkerGroup(Strict):
    """Workers that are alike. All resources are of one worker."""

    name: str = Field(
        "worker",
        pattern=r"^[A-Za-z0-9_.+-]+$",
        description="begins the names of its workers: NAME-0, NAME-1, ...",
    )
    count: int = Field(1, ge=1, le=10_000, description="workers in the group")
    cpus: float = Field(1, ge=0, description="CPUs reserved on the Ray cluster for each")
    gpus: float = Field(
        0, ge=0, description="GPUs reserved for each: a share below 1, or a whole number"
    )
    devices_per_worker: int | None = Field(
        None,
        ge=1,
        description=(
            "replicas of the model, whose gradients are averaged "
            "before the worker pushes; default: one a GPU"
        ),
    )
    accelerator_type: str | None = Field(
        None, description="of the node's GPUs, as Ray names it: A100, H100, T4, ..."
    )
    label_selector: LabelSelector = Field(
        default_factory=dict, description="labels of the nodes where they may run"
    )
    fallback_label_selectors: tuple[LabelSelector, ...] = Field(
        (),
        description=(
            "tried in this order, for the whole group, if the cluster cannot hold it otherwise"
        ),
    )
    resources: dict[str, Annotated[float, Field(gt=0)]] = Field(
        default_factory=dict, description="Ray's custom resources"
    )
    precision: Literal["float32", "tf32", "bf16"] = Field(
        "float32",
        description=(
            "of computing; weights and gradients are float32. tf32: the factors of products are"
            " rounded to 10 bits, on GPUs since Ampere; bf16: forward pass under torch's autocast"
        ),
    )
    speed: float = Field(
        1.0, gt=0, description="emulation: this many times as fast as the step time says"
    )
    step_s: float | None = Field(
        None,
        gt=0,
        description=(
            "emulation: seconds a step lasts at speed 1; default: as measured, "
            "and on the virtual engine by flops_per_s"
        ),
    )
    flops_per_s: float | None = Field(
        None,
        gt=0,
        description=(
            "emulation: a step lasts as long as its floating-point "
            "operations do at this rate; default, on the virtual engine "
            "alone: 1e11, about one core of a CPU"
        ),
    )
    trace: Annotated[
        tuple[Annotated[float, Field(strict=True)], ...], BeforeValidator(seconds_from)
    ] = Field(
        (),
        description=(
            "emulation: seconds of the steps, in turn and again from the start, or a text file of"
            " them; the n-th of N workers begins n/N of the way through"
        ),
    )
    jitter: Jitter = Jitter()
    link: Link = Field(
        Link(), description="emulation: what each worker's own connection adds, each way"
    )

    @model_validator(mode="after")
    def _possible(self) -> WorkerGroup:
        given = [name for name in ("step_s", "flops_per_s", "trace") if getattr(self, name)]
        if len(given) > 1:
            raise ValueError(
                f"give one of step_s, flops_per_s and trace; got {' and '.join(given)}"
            )
        if self.gpus > 1 and self.gpus % 1:
            raise ValueError(
                f"gpus: {self.gpus:g} cannot be had; a share below 1, or a whole number"
            )
        if self.gpus and self.devices_per_worker not in (None, self.devices):
            raise ValueError(
                f"devices_per_worker: {self.devices_per_worker} with gpus: {self.gpus:g}; a replica"
                f" has a GPU of its own: gpus: {self.devices_per_worker} (or gpus: 0, to compute on"
                " the CPU)"
            )
        if self.accelerator_type is not None and not self.gpus:
            raise ValueError(f"accelerator_type: {self.accelerator_type} needs gpus above 0")
        if reserved := {"CPU", "GPU"} & set(self.resources):
            raise ValueError(f"resources: {min(reserved)} is asked for by {min(reserved).lower()}s")
        if self.fallback_label_selectors and not self.label_selector:
            raise ValueError(
                "fallback_label_selectors: without a label_selector every node is allowed already"
            )
        return self

    @property
    def emulates_steps(self) -> bool:
        """Whether it says itself how long a step lasts."""
        return bool(self.step_s or self.flops_per_s or self.trace)

    @property
    def devices(self) -> int:
        """Replicas that each worker runs."""
        return (
            max(1, int(self.gpus))
            if self.devices_per_worker is None or self.gpus
            else self.devices_per_worker
        )


class Cluster(Strict):
    """Where and how the actors run."""

    address: str = Field(
        "auto",
        description=(
            "of a Ray cluster; local: a private one on this machine; auto: the one that "
            "Ray is connected to, or that the command line finds in RAY_ADDRESS (as "
            "within a Ray job), otherwise local"
        ),
    )
    server_shards: int = Field(
        1, ge=1, description="the model's flat vector is split evenly among that many servers"
    )
    server_cpus: float = Field(1, ge=0, description="CPUs reserved for each server")
    server_placement: Literal["apart", "with-workers"] = Field(
        "apart",
        description=(
            "apart: resources of their own; with-workers: the n-th server in the place of the n-th"
            " worker, on its node. The controller sits with the first server"
        ),
    )
    server_label_selector: LabelSelector = Field(
        default_factory=dict, description="labels of the nodes of servers apart"
    )
    evaluator_cpus: float = Field(1, ge=0, description="CPUs reserved for the evaluator")
    evaluator_gpus: float = Field(0, ge=0, le=1, description="GPUs reserved for the evaluator")
    step_deadline_s: float = Field(
        120,
        gt=0,
        description=(
            "a worker whose step takes longer is counted as gone; a server "
            "whose update takes longer ends the run as failed"
        ),
    )
    placement_deadline_s: float = Field(
        20, gt=0, description="how long to wait for resources that others use now"
    )
    transport: Literal["object-ref"] = Field(
        "object-ref", description="how gradients and weights travel"
    )
    task_events: bool = Field(
        False,
        description=(
            "show every step and update in Ray's task list and timeline; costs a few "
            "percent of the throughput of a small model"
        ),
    )
    metrics: bool = Field(
        True, description="publish the run's metrics at Ray's endpoints, for Prometheus"
    )
    dashboard: bool = Field(False, description="start the Ray dashboard with a private cluster")

    @model_validator(mode="after")
    def _placed(self) -> Cluster:
        if self.server_label_selector and self.server_placement == "with-workers":
            raise ValueError(
                "server_label_selector: servers that are placed with workers go where those go"
            )
        return self
