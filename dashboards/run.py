"""The dashboard of one run: how far, how good, who waits for whom, how stale, and what the controller decided."""

from __future__ import annotations

from dashboards.panels import Board, Panel, Row, Variable, or_none, quantile, rate, series

RUN = 'run="$run"'
TIMES = [f"sum by (worker) ({rate(name, RUN)})"
         for name in ("raysync_wait_seconds", "raysync_busy_seconds", "raysync_transfer_seconds")]
WAIT, BUSY, TRANSFER = TIMES
STEPS = f"sum by (worker) ({rate('raysync_pushes', RUN)})"
"""A second, by worker."""
LATELY = "Over the last four scrapes or more. "


def board() -> Board:
    """The dashboard."""
    return Board(
        uid="raysync-run", title="raysync: one run",
        about="One run: progress, accuracy, who waits for whom, staleness, decisions. A run is named after its record.",
        variables=[Variable("run", "Run", "label_values(ray_raysync_progress_ratio, run)", many=False, newest_first=True)],
        rows=[_now(), _learning(), _waiting(), _staleness(), _decisions(), _lagtuner()])


def _of_run(name: str) -> str:
    """A gauge of the run: one value, whichever process published it."""
    return f"max ({series(name, RUN)})"


def _of_workers(name: str) -> str:
    return f"max by (worker) ({series(name, RUN)})"


def _now() -> Row:
    waited, busy, moved = (f"sum ({series(name, RUN)})" for name in
                           ("raysync_wait_seconds", "raysync_busy_seconds", "raysync_transfer_seconds"))
    return Row("Now", columns=8, height=4, panels=[
        Panel("Progress", "percentunit", {"progress": _of_run("raysync_progress_ratio")}, "numbers"),
        Panel("Accuracy", "percentunit", {"accuracy": _of_run("raysync_accuracy_ratio")}, "numbers",
              empty="Not evaluated yet"),
        Panel("Evaluation loss", "suffix: nats", {"loss": _of_run("raysync_evaluation_loss_nats")}, "numbers",
              empty="Not evaluated yet"),
        Panel("Model version", "short", {"version": _of_run("raysync_model_versions")}, "numbers"),
        Panel("Throughput", "suffix: samples/s", {"samples": _of_run("raysync_throughput_samples_per_second")}, "numbers"),
        Panel("Waited, of all time", "percentunit", {"waited": f"{waited} / ({waited} + {busy} + {moved})"}, "numbers",
              note="Share of the workers' time since the run began."),
        Panel("Workers live", "short", {"workers": _of_run("raysync_workers_live")}, "numbers"),
        Panel("Protocol in force", "short", {
            "{{protocol}}": f"max by (protocol) ({series('raysync_protocol_active', RUN)}) == 1"}, "names",
              empty="The run is over"),
    ])


def _learning() -> Row:
    return Row("How far, how good, how fast", [
        Panel("Accuracy of the evaluations", "percentunit", {"accuracy": _of_run("raysync_accuracy_ratio")}, top=1,
              empty="Not evaluated yet"),
        Panel("Loss", "suffix: nats", {
            "of batches": _of_run("raysync_loss_nats"), "of evaluations": _of_run("raysync_evaluation_loss_nats")}),
        Panel("Progress", "percentunit", {"progress": _of_run("raysync_progress_ratio")}, top=1),
        Panel("Samples applied per second", "suffix: samples/s", {
            "lately": f"sum ({rate('raysync_samples_applied', RUN)})",
            "since the run began": _of_run("raysync_throughput_samples_per_second")}, dashed="since.*"),
        Panel("Pushes and updates per second", "suffix: /s", {
            "pushes": f"sum ({rate('raysync_pushes', RUN)})", "updates": f"sum ({rate('raysync_updates', RUN)})"},
            note="As many updates as pushes: each push is applied alone. Fewer: an update takes several."),
        Panel("The server's time for an update", "s", {
            "an update": f"sum ({rate('raysync_server_update_seconds', RUN)}) / sum ({rate('raysync_updates', RUN)})"},
            note="Mean; summed over the shards of a server that has several."),
    ])


def _waiting() -> Row:
    total = f"({WAIT} + {BUSY} + {TRANSFER})"
    return Row("Who waits for whom", [
        Panel("Waiting, share of a worker's time", "percentunit", {"{{worker}}": f"{WAIT} / {total}"}, top=1,
              note=LATELY + "Whoever has none of it is waited for."),
        Panel("Computing, share of a worker's time", "percentunit", {"{{worker}}": f"{BUSY} / {total}"}, top=1, note=LATELY),
        Panel("Transfer, share of a worker's time", "percentunit", {"{{worker}}": f"{TRANSFER} / {total}"}, top=1,
              note=LATELY),
        Panel("Lead over the slowest, by worker", "suffix: clocks", {
            "{{worker}}": _of_workers("raysync_worker_lead_clocks")},
            note="At 0 is the slowest: under a bound, the others wait for it."),
        Panel("Pushes per second, by worker", "suffix: /s", {"{{worker}}": STEPS}),
        Panel("Computing time of a step, by worker", "s", {
            "{{worker}}, mean": f"{BUSY} / {STEPS}",
            "{{worker}}, 95 %": quantile(0.95, "raysync_step_busy_seconds", RUN, by="worker")}, dashed=".*95 %",
            note="Mean, and what 95 % of the steps stay below."),
        Panel("Wait after a step, by worker", "s", {
            "{{worker}}, mean": f"{WAIT} / {STEPS}",
            "{{worker}}, 95 %": quantile(0.95, "raysync_step_wait_seconds", RUN, by="worker")}, dashed=".*95 %",
            note="Mean, and what 95 % of the waits stay below."),
        Panel("Transfer time of a step", "s", {
            "median": quantile(0.5, "raysync_step_transfer_seconds", RUN),
            "95 %": quantile(0.95, "raysync_step_transfer_seconds", RUN)}, dashed="95 %"),
        Panel("Waited since the run began, by worker", "s", {
            "{{worker}}": f"sum by (worker) ({series('raysync_wait_seconds', RUN)})"}, "bars"),
    ])


def _staleness() -> Row:
    def buckets(name: str) -> str:
        return f"sum by (le) (increase({series(name, RUN, '_bucket')}[$__rate_interval]))"

    def quantiles(name: str) -> dict[str, str]:
        return {"median": quantile(0.5, name, RUN), "95 %": quantile(0.95, name, RUN), "99 %": quantile(0.99, name, RUN)}

    return Row("Staleness and leads", columns=2, panels=[
        Panel("Staleness of the pushes", "suffix: versions", {"{{le}}": buckets("raysync_step_staleness_versions")}, "heat",
              note="How many pushes were how stale. Buckets lie between the integers: up to 0.5 is 0, up to 1.5 is 1."),
        Panel("Lead at release", "suffix: clocks", {"{{le}}": buckets("raysync_step_lead_clocks")}, "heat",
              note="How many releases at which lead. No bound on the lead lets anything above it."),
        Panel("Staleness: median, 95 %, 99 %", "suffix: versions", quantiles("raysync_step_staleness_versions"),
              note="Interpolated within buckets."),
        Panel("Lead at release: median, 95 %, 99 %", "suffix: clocks", quantiles("raysync_step_lead_clocks"),
              note="Interpolated within buckets."),
    ])


def _decisions() -> Row:
    return Row("Decisions", columns=2, panels=[
        Panel("Protocol in force", "short", {
            "{{protocol}}": f"max by (protocol) ({series('raysync_protocol_active', RUN)})"}, "states",
            note="A second one appears only where a paradigm switches (`sync-switch`)."),
        Panel("Switches so far, by protocol switched to", "short", {
            "{{to}}": or_none(f"sum by (to) ({series('raysync_switches', RUN)})", "to")},
            note="A constant 0 (none) unless a paradigm switches."),
        Panel("Stragglers found so far, by worker", "short", {
            "{{worker}}": or_none(f"sum by (worker) ({series('raysync_stragglers_detected', RUN)})", "worker")},
            note="A constant 0 (none) unless the paradigm looks for stragglers and finds one."),
        Panel("Pushes dropped so far, by reason", "short", {
            "{{reason}}": or_none(f"sum by (reason) ({series('raysync_drops', RUN)})", "reason")},
            note="A constant 0 (none) under the many paradigms that drop nothing."),
    ])


def _lagtuner() -> Row:
    only = "Only under LagTuner, once it has been asked"
    return Row("LagTuner's decisions (no data under other paradigms)", [
        Panel("r*: clocks granted, by worker", "suffix: clocks", {
            "{{worker}}": _of_workers("raysync_lagtuner_extra_clocks")}, empty=only),
        Panel("Wait, predicted and actual, by worker", "s", {
            "{{worker}}, predicted": _of_workers("raysync_lagtuner_predicted_wait_seconds"),
            "{{worker}}, actual": _of_workers("raysync_lagtuner_actual_wait_seconds")}, dashed=".*predicted", empty=only),
        Panel("Error of the prediction, by worker", "s", {
            "{{worker}}": f"abs ({_of_workers('raysync_lagtuner_predicted_wait_seconds')} - "
                          f"{_of_workers('raysync_lagtuner_actual_wait_seconds')})"}, empty=only,
            note="Predicted minus actual, without the sign. While a new wait is going on, the actual one is that before."),
    ])
