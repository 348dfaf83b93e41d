"""The dashboard of one run: progress, the primary metric, which workers wait, staleness, and what
the controller decided.
"""

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
    total,
    whole,
)

RUN = 'run="$run"'
TIMES = [
    f"sum by (worker) ({rate(name, RUN)})"
    for name in ("raysync_wait_seconds", "raysync_busy_seconds", "raysync_transfer_seconds")
]
WAIT, BUSY, TRANSFER = TIMES
STEPS = f"sum by (worker) ({rate('raysync_pushes', RUN)})"
"""The steps of each worker per second."""
LATELY = "Over the last four scrapes or more. "
RAMPS = (
    "Too low while these reach back to before the run, or go on behind its end; uneven, as Ray"
    " reports. "
)
SPREAD = (
    "Interpolated within buckets, whose ends are a factor of 2 to 3 apart: equal times seem to be"
    " spread as much."
)
MANY = "Exact up to 3; 4-5, 6-8, 9-12 and so on are each a bucket, within which it is interpolated."
STAGES = "A decoupled stage's wait for its neighbours' passes is transfer. "


def board() -> Board:
    """Return the dashboard."""
    return Board(
        uid="raysync-run",
        title="raysync: one run",
        about=(
            "One run: progress, the primary metric, which workers wait, staleness, decisions. A run"
            " is named after its record."
        ),
        variables=[
            Variable(
                "run",
                "Run",
                "label_values(ray_raysync_progress_ratio, run)",
                many=False,
                newest_first=True,
            )
        ],
        rows=[_now(), _learning(), _waiting(), _staleness(), _decisions(), _lagtuner()],
    )


def _of_run(name: str) -> str:
    """Return a gauge of the run: one value, whichever process published it."""
    return f"max ({series(name, RUN)})"


def _primary() -> str:
    """Return the metric that the run's models are judged by."""
    return f"max by (metric, mode) ({series('raysync_primary_metric', RUN)})"


def _of_workers(name: str) -> str:
    return f"max by (worker) ({series(name, RUN)})"


def _now() -> Row:
    waited, busy, moved = (
        total(name, RUN)
        for name in ("raysync_wait_seconds", "raysync_busy_seconds", "raysync_transfer_seconds")
    )
    return Row(
        "Now",
        columns=8,
        height=4,
        panels=[
            Panel(
                "Progress",
                "percentunit",
                {"progress": _of_run("raysync_progress_ratio")},
                "numbers",
            ),
            Panel(
                "Primary metric",
                "short",
                {"{{metric}}": _primary()},
                "named numbers",
                percent="accuracy",
                empty="Not evaluated yet",
            ),
            Panel(
                "Evaluation loss",
                "suffix: nats",
                {"loss": _of_run("raysync_evaluation_loss_nats")},
                "numbers",
                empty="Not evaluated yet",
            ),
            Panel(
                "Model version", "short", {"version": _of_run("raysync_model_versions")}, "numbers"
            ),
            Panel(
                "Throughput",
                "suffix: samples/s",
                {"samples": _of_run("raysync_throughput_samples_per_second")},
                "numbers",
            ),
            Panel(
                "Waited, of all time",
                "percentunit",
                {"waited": f"{waited} / ({waited} + {busy} + {moved})"},
                "numbers",
                note=(
                    "Share of the workers' time since the run began. Waits count while they last,"
                    " steps once they are over. "
                )
                + STAGES,
            ),
            Panel(
                "Workers live",
                "short",
                {"workers": or_none(_of_run("raysync_workers_live"))},
                "numbers",
                note="0: the run is over, or its controller is gone.",
            ),
            Panel(
                "Phase in force",
                "short",
                {"{{phase}}": (f"max by (phase) ({series('raysync_phase_active', RUN)}) == 1")},
                "names",
                empty="The run is over",
                note=(
                    "The paradigm, or the phase of one that switches; of decoupled stages, the"
                    " paradigm that synchronises their replicas."
                ),
            ),
        ],
    )


def _learning() -> Row:
    return Row(
        "Progress, primary metric, throughput",
        [
            Panel(
                "Primary metric of the evaluations",
                "short",
                {"{{metric}} ({{mode}})": _primary()},
                percent="accuracy.*",
                empty="Not evaluated yet",
            ),
            Panel(
                "Loss",
                "suffix: nats",
                {
                    "of batches": _of_run("raysync_loss_nats"),
                    "of evaluations": _of_run("raysync_evaluation_loss_nats"),
                },
            ),
            Panel(
                "Progress", "percentunit", {"progress": _of_run("raysync_progress_ratio")}, top=1
            ),
            Panel(
                "Samples applied per second",
                "suffix: samples/s",
                {
                    "lately": f"sum ({rate('raysync_samples_applied', RUN)})",
                    "since the run began": _of_run("raysync_throughput_samples_per_second"),
                },
                dashed="since.*",
                note=f"Lately: {LATELY.lower()}{RAMPS}",
            ),
            Panel(
                "Pushes and updates per second",
                "suffix: /s",
                {
                    "pushes": f"sum ({rate('raysync_pushes', RUN)})",
                    "updates": f"sum ({rate('raysync_updates', RUN)})",
                },
                note=(
                    f"{LATELY}{RAMPS}As many updates as pushes: each push is applied alone. Fewer:"
                    " an update takes several, or pushes are dropped. Of decoupled stages: pushes"
                    " to all, updates of the last."
                ),
            ),
            Panel(
                "The server's time for an update",
                "s",
                {
                    "an update": per(
                        f"sum ({rate('raysync_server_update_seconds', RUN)})",
                        f"sum ({rate('raysync_updates', RUN)})",
                    )
                },
                note=LATELY
                + "Mean; summed over the shards of a server that has several, or over decoupled"
                " stages.",
            ),
        ],
    )


def _waiting() -> Row:
    whole_time = f"({WAIT} + {BUSY} + {TRANSFER})"
    return Row(
        "Which workers wait",
        [
            Panel(
                "Waiting, share of a worker's time",
                "percentunit",
                {"{{worker}}": f"{WAIT} / {whole_time}"},
                top=1,
                note=LATELY + "The others wait for a worker that has none of it. " + STAGES,
            ),
            Panel(
                "Computing, share of a worker's time",
                "percentunit",
                {"{{worker}}": f"{BUSY} / {whole_time}"},
                top=1,
                note=LATELY,
            ),
            Panel(
                "Transfer, share of a worker's time",
                "percentunit",
                {"{{worker}}": f"{TRANSFER} / {whole_time}"},
                top=1,
                note=LATELY,
            ),
            Panel(
                "Lead over the slowest, by worker",
                "suffix: clocks",
                {"{{worker}}": _of_workers("raysync_worker_lead_clocks")},
                note="At 0 is the slowest: under a bound, the others wait for it.",
            ),
            Panel(
                "Pushes per second, by worker",
                "suffix: /s",
                {"{{worker}}": STEPS},
                note=LATELY + RAMPS,
            ),
            Panel(
                "Computing time of a step, by worker",
                "s",
                {
                    "{{worker}}, mean": per(BUSY, STEPS),
                    "{{worker}}, 95 %": quantile(
                        0.95, "raysync_step_busy_seconds", RUN, by="worker"
                    ),
                },
                dashed=".*95 %",
                note=f"Mean, and on request what 95 % of the steps stay below. {SPREAD}",
            ),
            Panel(
                "Wait after a step, by worker",
                "s",
                {
                    "{{worker}}, mean": per(WAIT, STEPS),
                    "{{worker}}, 95 %": quantile(
                        0.95, "raysync_step_wait_seconds", RUN, by="worker"
                    ),
                },
                dashed=".*95 %",
                note=f"Mean, and on request what 95 % of the waits stay below. {SPREAD}",
            ),
            Panel(
                "Transfer time of a step",
                "s",
                {
                    "median": quantile(0.5, "raysync_step_transfer_seconds", RUN),
                    "95 %": quantile(0.95, "raysync_step_transfer_seconds", RUN),
                },
                dashed="95 %",
                note=SPREAD,
            ),
            Panel(
                "Waited since the run began, by worker",
                "s",
                {"{{worker}}": total("raysync_wait_seconds", RUN, "worker")},
                "bars",
            ),
        ],
    )


def _staleness() -> Row:
    def buckets(name: str) -> str:
        return f"sum by (le) (increase({series(name, RUN, '_bucket')}[$__rate_interval]))"

    def quantiles(name: str) -> dict[str, str]:
        shares = {"median": 0.5, "95 %": 0.95, "99 %": 0.99}
        return {legend: whole(quantile(share, name, RUN)) for legend, share in shares.items()}

    return Row(
        "Staleness and leads",
        columns=2,
        panels=[
            Panel(
                "Staleness of the pushes",
                "suffix: versions",
                {"{{le}}": buckets("raysync_step_staleness_versions")},
                "heat",
                note=(
                    f"The number of pushes of each staleness. {LATELY}Buckets end between integers:"
                    " up to 0.5 is 0, up to 1.5 is 1."
                ),
            ),
            Panel(
                "Lead at release",
                "suffix: clocks",
                {"{{le}}": buckets("raysync_step_lead_clocks")},
                "heat",
                note=(
                    f"The number of releases at each lead. {LATELY}Where a paradigm bounds the"
                    " lead, none lies above the bound."
                ),
            ),
            Panel(
                "Staleness: median, 95 %, 99 %",
                "suffix: versions",
                quantiles("raysync_step_staleness_versions"),
                note=LATELY + MANY,
            ),
            Panel(
                "Lead at release: median, 95 %, 99 %",
                "suffix: clocks",
                quantiles("raysync_step_lead_clocks"),
                note=LATELY + MANY,
            ),
        ],
    )


def _decisions() -> Row:
    return Row(
        "Decisions",
        columns=2,
        panels=[
            Panel(
                "Phase in force",
                "short",
                {"{{phase}}": f"max by (phase) ({series('raysync_phase_active', RUN)})"},
                "states",
                note="A second phase appears only where a paradigm switches (`sync-switch`).",
            ),
            Panel(
                "Switches so far, by phase switched to",
                "short",
                {"{{to}}": or_none(total("raysync_switches", RUN, "to"), "to")},
                note="A constant 0 (none) unless a paradigm switches.",
            ),
            Panel(
                "Stragglers found so far, by worker",
                "short",
                {
                    "{{worker}}": or_none(
                        total("raysync_stragglers_detected", RUN, "worker"), "worker"
                    )
                },
                note="A constant 0 (none) unless the paradigm looks for stragglers and finds one.",
            ),
            Panel(
                "Pushes dropped so far, by worker and reason",
                "short",
                {
                    "{{worker}} {{reason}}": or_none(
                        total("raysync_drops", RUN, "worker, reason"), "reason"
                    )
                },
                note=(
                    "A constant 0 (none) under the many paradigms that drop nothing. The model does"
                    " not learn from what these workers compute."
                ),
            ),
        ],
    )


def _lagtuner() -> Row:
    only = "Only under LagTuner, once it has been asked"
    return Row(
        "LagTuner's decisions (no data under other paradigms)",
        [
            Panel(
                "r*: clocks granted, by worker",
                "suffix: clocks",
                {"{{worker}}": _of_workers("raysync_lagtuner_extra_clocks")},
                empty=only,
            ),
            Panel(
                "Wait, predicted and actual, by worker",
                "s",
                {
                    "{{worker}}, predicted": _of_workers("raysync_lagtuner_predicted_wait_seconds"),
                    "{{worker}}, actual": _of_workers("raysync_lagtuner_actual_wait_seconds"),
                },
                dashed=".*predicted",
                empty=only,
            ),
            Panel(
                "Error of the prediction, by worker",
                "s",
                {
                    "{{worker}}": (
                        f"abs ({_of_workers('raysync_lagtuner_predicted_wait_seconds')} - "
                        f"{_of_workers('raysync_lagtuner_actual_wait_seconds')})"
                    )
                },
                empty=only,
                note=(
                    "Predicted minus actual, without the sign. A worker that asks again right after"
                    " a grant has waited 0 after it."
                ),
            ),
        ],
    )
