"""The dashboard of a sweep: all runs side by side, those that are over too."""

from __future__ import annotations

from dashboards.panels import Board, Panel, Row, Variable, or_none, quantile, rate, series

RUNS = 'run=~"$run", paradigm=~"$paradigm"'
ONE = "{{paradigm}} ({{run}})"
OVER = "Runs that are over count with their last value within the time shown."


def board() -> Board:
    """The dashboard."""
    return Board(
        uid="raysync-sweep", title="raysync: runs side by side",
        about="The runs of a sweep, of `raysync compare`, or any others: accuracy, progress, throughput, waiting, by run "
              "and by paradigm. Two that are compared in time must have had the cluster to themselves.",
        variables=[
            Variable("paradigm", "Paradigm", "label_values(ray_raysync_progress_ratio, paradigm)"),
            Variable("run", "Run", 'label_values(ray_raysync_progress_ratio{paradigm=~"$paradigm"}, run)',
                     newest_first=True)],
        rows=[_table(), _curves(), _paradigms()])


def _of_runs(name: str) -> str:
    return f"max by (run, paradigm) ({series(name, RUNS)})"


def _last(name: str, by: str = "run, paradigm", how: str = "max", part: str = "") -> str:
    """The last value of a gauge, or total of a counter, also of runs whose processes are gone."""
    return f"{how} by ({by}) (last_over_time({series(name, RUNS, part)}[$__range]))"


def _waited(by: str) -> str:
    """Share of the workers' time."""
    waited, busy, moved = (_last(name, by, "sum") for name in
                           ("raysync_wait_seconds", "raysync_busy_seconds", "raysync_transfer_seconds"))
    return f"{waited} / ({waited} + {busy} + {moved})"


def _table() -> Row:
    stale = _last("raysync_step_staleness_versions", "run, paradigm, le", "sum", "_bucket")
    return Row("All runs", columns=1, height=9, panels=[
        Panel("Runs", "short", {
            "progress": _last("raysync_progress_ratio"),
            "accuracy": _last("raysync_accuracy_ratio"),
            "evaluation loss (nats)": _last("raysync_evaluation_loss_nats"),
            "samples/s": _last("raysync_throughput_samples_per_second"),
            "waited": _waited("run, paradigm"),
            "staleness, 95 %": f"histogram_quantile(0.95, {stale})",
            "updates": _last("raysync_updates", how="sum"),
            "workers": f"count by (run, paradigm) ({_last('raysync_busy_seconds', 'run, paradigm, worker', 'sum')})",
        }, "table", units=dict.fromkeys(("progress", "accuracy", "waited"), "percentunit"), link="run",
            note=f"{OVER} A click on a run opens its dashboard. Workers: all that took part.")])


def _curves() -> Row:
    wait, busy, moved = (f"sum by (run, paradigm) ({rate(name, RUNS)})" for name in
                         ("raysync_wait_seconds", "raysync_busy_seconds", "raysync_transfer_seconds"))
    return Row("By run", [
        Panel("Accuracy of the evaluations", "percentunit", {ONE: _of_runs("raysync_accuracy_ratio")}, top=1,
              empty="Not evaluated yet"),
        Panel("Evaluation loss", "suffix: nats", {ONE: _of_runs("raysync_evaluation_loss_nats")}, empty="Not evaluated yet"),
        Panel("Progress", "percentunit", {ONE: _of_runs("raysync_progress_ratio")}, top=1),
        Panel("Samples applied per second", "suffix: samples/s", {
            ONE: f"sum by (run, paradigm) ({rate('raysync_samples_applied', RUNS)})"}),
        Panel("Waiting, share of the workers' time", "percentunit", {ONE: f"{wait} / ({wait} + {busy} + {moved})"}, top=1,
              note="Lately, mean of the run's workers."),
        Panel("Staleness: 95 % of the pushes are below", "suffix: versions", {
            ONE: quantile(0.95, "raysync_step_staleness_versions", RUNS, by="run, paradigm")},
              note="Lately; interpolated within buckets."),
        Panel("Loss of batches", "suffix: nats", {ONE: _of_runs("raysync_loss_nats")}),
        Panel("Pushes dropped so far", "short", {
            ONE: or_none(f"sum by (run, paradigm) ({series('raysync_drops', RUNS)})", "paradigm")},
            note="A constant 0 (none) while no run has dropped any."),
        Panel("Stragglers found so far", "short", {
            ONE: or_none(f"sum by (run, paradigm) ({series('raysync_stragglers_detected', RUNS)})", "paradigm")},
            note="A constant 0 (none) while no run has found any."),
    ])


def _paradigms() -> Row:
    return Row("By paradigm: means of its runs", [
        Panel("Accuracy, latest", "percentunit", {
            "{{paradigm}}": f"avg by (paradigm) ({_last('raysync_accuracy_ratio')})"}, "bars", top=1, note=OVER,
            empty="Not evaluated yet"),
        Panel("Samples applied per second, since each run began", "suffix: samples/s", {
            "{{paradigm}}": f"avg by (paradigm) ({_last('raysync_throughput_samples_per_second')})"}, "bars", note=OVER),
        Panel("Waited, of all the workers' time", "percentunit", {"{{paradigm}}": _waited("paradigm")}, "bars", top=1,
              note=OVER),
    ])
