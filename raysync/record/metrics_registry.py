"""The metrics that a run publishes: one registry for exporters, dashboards and tests.

Names follow Prometheus, `raysync_QUANTITY_UNIT`. No label's values grow in number with the length
of a run. When it ends, live workers and phases become 0; a minute later all its series have ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

# Seconds, from a tiny model on one core to a large one on a slow device.
PER_STEP_S = 1e-3, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0
# Bounds between the integers: 0, 1, 2, 3, 4-5, 6-8, ...
CLOCKS = (0.5, 1.5, 2.5, 3.5, 5.5, 8.5, 12.5, 15.5, 24.5, 48.5, 96.5, 192.5)
RUN = ("experiment", "run", "paradigm")  # one Prometheus sees the runs of many experiments
WORKER = (*RUN, "worker")  # a slot, such as fast-2: a worker that comes back continues its series

ON_REQUEST = "Only with `cluster.metrics: {per_worker_histograms: true}`."


Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True)
class Metric:
    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = RUN
    buckets: tuple[float, ...] = ()  # upper bounds of a histogram

    @property
    def exported(self) -> str:
        """The name at Ray's metrics endpoint; a histogram adds `_bucket`, `_sum` and `_count`."""
        return f"ray_{self.name}_total" if self.kind == "counter" else f"ray_{self.name}"

    @property
    def series(self) -> dict[str, tuple[str, ...]]:
        """The names of its series, without Ray's `ray_` -> their labels."""
        if self.kind == "histogram":
            alone = dict.fromkeys((f"{self.name}_sum", f"{self.name}_count"), self.labels)
            return {f"{self.name}_bucket": (*self.labels, "le"), **alone}
        return {self.exported.removeprefix("ray_"): self.labels}


@dataclass(frozen=True, slots=True)
class RunLabels:
    """The labels of all series of a run."""

    # the experiment's name, or SWEEP/TRIAL: dashboards find the sweep, and people the trial
    experiment: str
    run: str  # the name of the record's folder
    paradigm: str  # its label in tables: the name with the given parameters

    @property
    def values(self) -> tuple[str, ...]:
        """The labels' values, in the order of `RUN`."""
        return self.experiment, self.run, self.paradigm


# name -> help, labels
COUNTERS = {
    "raysync_pushes": ("Pushes that reached the server.", WORKER),
    "raysync_samples_applied": ("Samples of pushes that became part of an update.", RUN),
    "raysync_updates": ("Updates of the model.", RUN),
    "raysync_drops": ("Pushes that were not applied, by reason.", (*WORKER, "reason")),
    "raysync_busy_seconds": ("Time spent computing gradients.", WORKER),
    "raysync_wait_seconds": ("Time between a push and the worker's next release.", WORKER),
    "raysync_transfer_seconds": (
        "Time between release and push that was not computing; of a stage also for its neighbours.",
        WORKER,
    ),
    "raysync_server_update_seconds": ("Time the server spent on updates.", RUN),
    "raysync_switches": ("Changes of the phase.", (*RUN, "to")),
    "raysync_stragglers_detected": ("Times a worker was found to be a straggler.", WORKER),
}
# name -> help, labels
GAUGES = {
    "raysync_loss_nats": (
        "Mean loss of the latest batch, at the weights it was computed on; of classification"
        " and language models a cross-entropy in nats.",
        RUN,
    ),
    "raysync_evaluation_loss_nats": (
        "Mean loss of the latest evaluation; of classification and language models a"
        " cross-entropy in nats.",
        RUN,
    ),
    "raysync_primary_metric": (
        "The metric that the task's models are judged by, of the latest evaluation; mode is max"
        " where more of it is better, min where less is. An accuracy is from 0 to 1.",
        (*RUN, "metric", "mode"),
    ),
    "raysync_time_to_target_seconds": (
        "Training time until an evaluation met `target`; no value before that.",
        RUN,
    ),
    "raysync_progress_ratio": ("Applied share of the workload's samples, from 0 to 1.", RUN),
    "raysync_model_versions": ("Version of the model: updates made.", RUN),
    "raysync_throughput_samples_per_second": (
        "Samples applied per second of training, since the run began.",
        RUN,
    ),
    "raysync_workers_live": ("Workers that are members of the run.", RUN),
    "raysync_worker_lead_clocks": (
        "Clocks ahead of the slowest worker that takes part, now.",
        WORKER,
    ),
    "raysync_phase_active": ("1 for the phase in force, 0 for those it replaced.", (*RUN, "phase")),
    "raysync_lagtuner_extra_clocks": (
        "LagTuner's latest decision: r*, clocks granted above s_L.",
        WORKER,
    ),
    "raysync_lagtuner_predicted_wait_seconds": (
        "The predicted length of the latest wait that has ended.",
        WORKER,
    ),
    "raysync_lagtuner_actual_wait_seconds": ("The actual length of that wait.", WORKER),
}
# name -> help, labels, upper bounds of the buckets
HISTOGRAMS = {
    "raysync_step_busy_seconds": (f"Computing time of one step. {ON_REQUEST}", WORKER, PER_STEP_S),
    "raysync_step_wait_seconds": (f"Wait after one step. {ON_REQUEST}", WORKER, PER_STEP_S),
    "raysync_step_transfer_seconds": ("Transfer time of one step.", RUN, PER_STEP_S),
    "raysync_step_lead_clocks": (
        "Clocks ahead of the slowest worker that takes part, at its release.",
        RUN,
        CLOCKS,
    ),
    "raysync_step_staleness_versions": (
        "Model versions between a push's weights and its update; applied pushes only.",
        RUN,
        CLOCKS,
    ),
}
KINDS: dict[Kind, Mapping[str, tuple[Any, ...]]] = {
    "counter": COUNTERS,
    "gauge": GAUGES,
    "histogram": HISTOGRAMS,
}
REGISTRY = {
    name: Metric(name, kind, *described)
    for kind, metrics in KINDS.items()
    for name, described in metrics.items()
}
