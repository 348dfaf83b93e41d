"""The metrics that a run publishes: one registry for exporters, dashboards and tests.

Names follow Prometheus, `raysync_QUANTITY_UNIT`. No label's values grow in number with the length
of a run. When it ends, live workers and phases become 0; a minute later all its series have ended.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# Seconds, from a tiny model on one core to a large one on a slow device.
PER_STEP_S = 1e-3, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0
# Bounds between the integers: 0, 1, 2, 3, 4-5, 6-8, ...
CLOCKS = (0.5, 1.5, 2.5, 3.5, 5.5, 8.5, 12.5, 15.5, 24.5, 48.5, 96.5, 192.5)
RUN = ("experiment", "run", "paradigm")  # one Prometheus sees the runs of many experiments
WORKER = (*RUN, "worker")  # a slot, such as fast-2: a worker that comes back continues its series

ON_REQUEST = "Only with `cluster.metrics: {per_worker_histograms: true}`."


@dataclass(frozen=True)
class Metric:
    name: str
    kind: Literal["counter", "gauge", "histogram"]
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


REGISTRY = {
    metric.name: metric
    for metric in (
        Metric("raysync_pushes", "counter", "Pushes that reached the server.", WORKER),
        Metric(
            "raysync_samples_applied", "counter", "Samples of pushes that became part of an update."
        ),
        Metric("raysync_updates", "counter", "Updates of the model."),
        Metric(
            "raysync_drops",
            "counter",
            "Pushes that were not applied, by reason.",
            (*WORKER, "reason"),
        ),
        Metric("raysync_busy_seconds", "counter", "Time spent computing gradients.", WORKER),
        Metric(
            "raysync_wait_seconds",
            "counter",
            "Time between a push and the worker's next release.",
            WORKER,
        ),
        Metric(
            "raysync_transfer_seconds",
            "counter",
            "Time between release and push that was not computing; of a stage also for its"
            " neighbours.",
            WORKER,
        ),
        Metric("raysync_server_update_seconds", "counter", "Time the server spent on updates."),
        Metric("raysync_switches", "counter", "Changes of the phase.", (*RUN, "to")),
        Metric(
            "raysync_stragglers_detected",
            "counter",
            "Times a worker was found to be a straggler.",
            WORKER,
        ),
        Metric(
            "raysync_loss_nats",
            "gauge",
            "Mean loss of the latest batch, at the weights it was computed on; of classification"
            " and language models a cross-entropy in nats.",
        ),
        Metric(
            "raysync_evaluation_loss_nats",
            "gauge",
            (
                "Mean loss of the latest evaluation; of classification and language models a"
                " cross-entropy in nats."
            ),
        ),
        Metric(
            "raysync_primary_metric",
            "gauge",
            "The metric that the task's models are judged by, of the latest evaluation; mode is max"
            " where more of it is better, min where less is. An accuracy is from 0 to 1.",
            (*RUN, "metric", "mode"),
        ),
        Metric(
            "raysync_time_to_target_seconds",
            "gauge",
            "Training time until an evaluation met `target`; no value before that.",
        ),
        Metric(
            "raysync_progress_ratio",
            "gauge",
            "Applied share of the workload's samples, from 0 to 1.",
        ),
        Metric("raysync_model_versions", "gauge", "Version of the model: updates made."),
        Metric(
            "raysync_throughput_samples_per_second",
            "gauge",
            "Samples applied per second of training, since the run began.",
        ),
        Metric("raysync_workers_live", "gauge", "Workers that are members of the run."),
        Metric(
            "raysync_worker_lead_clocks",
            "gauge",
            "Clocks ahead of the slowest worker that takes part, now.",
            WORKER,
        ),
        Metric(
            "raysync_phase_active",
            "gauge",
            "1 for the phase in force, 0 for those it replaced.",
            (*RUN, "phase"),
        ),
        Metric(
            "raysync_lagtuner_extra_clocks",
            "gauge",
            "LagTuner's latest decision: r*, clocks granted above s_L.",
            WORKER,
        ),
        Metric(
            "raysync_lagtuner_predicted_wait_seconds",
            "gauge",
            "The predicted length of the latest wait that has ended.",
            WORKER,
        ),
        Metric(
            "raysync_lagtuner_actual_wait_seconds",
            "gauge",
            "The actual length of that wait.",
            WORKER,
        ),
        Metric(
            "raysync_step_busy_seconds",
            "histogram",
            f"Computing time of one step. {ON_REQUEST}",
            WORKER,
            PER_STEP_S,
        ),
        Metric(
            "raysync_step_wait_seconds",
            "histogram",
            f"Wait after one step. {ON_REQUEST}",
            WORKER,
            PER_STEP_S,
        ),
        Metric(
            "raysync_step_transfer_seconds",
            "histogram",
            "Transfer time of one step.",
            RUN,
            PER_STEP_S,
        ),
        Metric(
            "raysync_step_lead_clocks",
            "histogram",
            "Clocks ahead of the slowest worker that takes part, at its release.",
            RUN,
            CLOCKS,
        ),
        Metric(
            "raysync_step_staleness_versions",
            "histogram",
            "Model versions between a push's weights and its update; applied pushes only.",
            RUN,
            CLOCKS,
        ),
    )
}
