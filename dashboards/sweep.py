"""The dashboard of a sweep: all runs side by side, including those that are over."""

from __future__ import annotations

from dashboards.panels import (
    Board,
    Panel,
    Row,
    Variable,
    or_none,
    per,
    quantile,
    rate,
    series,
    whole,
)
from raysync.record.metrics_registry import REGISTRY

EXPERIMENT = 'experiment=~"$experiment(/.+)?"'
"""An experiment is chosen by its name, or by that of a sweep, whose trials are SWEEP/TRIAL."""
RUNS = f'{EXPERIMENT}, run=~"$run", paradigm=~"$paradigm"'
RUN = "experiment, run, paradigm"
LEGEND = "{{paradigm}} ({{run}})"
METRIC = "{{metric}} ({{mode}})"
OVER = "Runs that are over count with their last value within the time shown."


def board() -> Board:
    """Return the dashboard."""
    return Board(
        uid="raysync-sweep",
        title="raysync: runs side by side",
        about=(
            "The runs of a sweep, of `raysync compare`, or any others: primary metric, progress,"
            " throughput, waiting, by run and by paradigm. Two that are compared in time must have"
            " had the cluster to themselves; means are of one experiment, or say nothing."
        ),
        variables=[
            Variable(
                "experiment",
                "Experiment",
                "label_values(ray_raysync_progress_ratio, experiment)",
                regex="/^([^/]+)/",
            ),
            Variable(
                "paradigm",
                "Paradigm",
                f"label_values(ray_raysync_progress_ratio{{{EXPERIMENT}}}, paradigm)",
            ),
            Variable(
                "run",
                "Run",
                f'label_values(ray_raysync_progress_ratio{{{EXPERIMENT}, paradigm=~"$paradigm"}},'
                " run)",
                newest_first=True,
            ),
        ],
        rows=[_table(), _curves(), _paradigms()],
    )


def _of_runs(name: str) -> str:
    return f"max by (run, paradigm) ({series(name, RUNS)})"


def _last(name: str, by: str = RUN, part: str = "") -> str:
    """Return the last value of a gauge, or the total of a counter, even of runs that are over."""
    aggregation = "max" if REGISTRY[name].kind == "gauge" else "sum"
    return f"{aggregation} by ({by}) (last_over_time({series(name, RUNS, part)}[$__range]))"


def _waited(by: str) -> str:
    """Return the share of the workers' time that they waited."""
    waited, busy, moved = (
        _last(name, by)
        for name in ("raysync_wait_seconds", "raysync_busy_seconds", "raysync_transfer_seconds")
    )
    return f"{waited} / ({waited} + {busy} + {moved})"


def _table() -> Row:
    stale = _last("raysync_step_staleness_versions", f"{RUN}, le", "_bucket")
    samples, speed = (
        _last("raysync_samples_applied"),
        _last("raysync_throughput_samples_per_second"),
    )
    return Row(
        "All runs",
        columns=1,
        height=9,
        panels=[
            Panel(
                "Runs",
                "short",
                {
                    "progress": _last("raysync_progress_ratio"),
                    "trained for": per(samples, speed),
                    "primary metric": _last("raysync_primary_metric", f"{RUN}, metric, mode"),
                    "evaluation loss (nats)": _last("raysync_evaluation_loss_nats"),
                    "to the target": _last("raysync_time_to_target_seconds"),
                    "samples/s": speed,
                    "waited": _waited(RUN),
                    "staleness, 95 %": whole(f"histogram_quantile(0.95, {stale})"),
                    "updates": _last("raysync_model_versions"),
                    "workers": (
                        f"count by ({RUN}) ({_last('raysync_busy_seconds', f'{RUN}, worker')})"
                    ),
                },
                "table",
                link="run",
                units=dict.fromkeys(("progress", "waited"), "percentunit")
                | dict.fromkeys(("trained for", "to the target"), "s"),
                note=(
                    f"{OVER} A click on a run opens its dashboard. The time to the target is"
                    " what paradigms are chosen by; it stays empty where an experiment has no"
                    " target, or a run has not reached it. Mode: max where more of the metric is"
                    " better, min where less is. Workers: all that took part."
                ),
            )
        ],
    )


def _curves() -> Row:
    wait, busy, moved = (
        f"sum by (run, paradigm) ({rate(name, RUNS)})"
        for name in ("raysync_wait_seconds", "raysync_busy_seconds", "raysync_transfer_seconds")
    )
    return Row(
        "By run",
        [
            Panel(
                "Primary metric of the evaluations",
                "short",
                {
                    f"{METRIC}, {LEGEND}": (
                        "max by (run, paradigm, metric, mode)"
                        f" ({series('raysync_primary_metric', RUNS)})"
                    )
                },
                percent="accuracy.*",
                empty="Not evaluated yet",
            ),
            Panel(
                "Evaluation loss",
                "suffix: nats",
                {LEGEND: _of_runs("raysync_evaluation_loss_nats")},
                empty="Not evaluated yet",
            ),
            Panel("Progress", "percentunit", {LEGEND: _of_runs("raysync_progress_ratio")}, top=1),
            Panel(
                "Samples applied per second",
                "suffix: samples/s",
                {LEGEND: f"sum by (run, paradigm) ({rate('raysync_samples_applied', RUNS)})"},
                note="Lately; in a run's first moments too low.",
            ),
            Panel(
                "Waiting, share of the workers' time",
                "percentunit",
                {LEGEND: f"{wait} / ({wait} + {busy} + {moved})"},
                top=1,
                note="Lately, mean of the run's workers.",
            ),
            Panel(
                "Staleness: 95 % of the pushes have at most",
                "suffix: versions",
                {
                    LEGEND: whole(
                        quantile(0.95, "raysync_step_staleness_versions", RUNS, by="run, paradigm")
                    )
                },
                note="Lately; exact up to 3, interpolated within buckets above.",
            ),
            Panel("Loss of batches", "suffix: nats", {LEGEND: _of_runs("raysync_loss_nats")}),
            Panel(
                "Pushes dropped so far",
                "short",
                {
                    LEGEND: or_none(
                        f"sum by (run, paradigm) ({series('raysync_drops', RUNS)})", "paradigm"
                    )
                },
                note="A constant 0 (none) while no run has dropped any.",
            ),
            Panel(
                "Stragglers found so far",
                "short",
                {
                    LEGEND: or_none(
                        f"sum by (run, paradigm) ({series('raysync_stragglers_detected', RUNS)})",
                        "paradigm",
                    )
                },
                note="A constant 0 (none) while no run has found any.",
            ),
        ],
    )


def _paradigms() -> Row:
    return Row(
        "By paradigm: means of its runs",
        [
            Panel(
                "Primary metric at the end",
                "short",
                {
                    f"{METRIC}, {{{{paradigm}}}}": (
                        "avg by (paradigm, metric, mode)"
                        f" ({_last('raysync_primary_metric', f'{RUN}, metric, mode')} and on (run) "
                        f"{_last('raysync_progress_ratio')} >= 1)"
                    )
                },
                "bars",
                percent="accuracy.*",
                empty="No run has come to its end yet",
                note=(
                    "Only of runs that went through their whole workload: the table shows which"
                    " broke, or diverged."
                ),
            ),
            Panel(
                "Samples applied per second, since each run began",
                "suffix: samples/s",
                {
                    "{{paradigm}}": (
                        f"avg by (paradigm) ({_last('raysync_throughput_samples_per_second')})"
                    )
                },
                "bars",
                note=OVER,
            ),
            Panel(
                "Waited, of all the workers' time",
                "percentunit",
                {"{{paradigm}}": _waited("paradigm")},
                "bars",
                top=1,
                note=OVER,
            ),
        ],
    )
