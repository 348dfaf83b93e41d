"""What publishing metrics costs: the throughput of the same runs with `cluster.metrics` and
without.

    python experiments/benchmarks/metrics.py            prints the table
    python experiments/benchmarks/metrics.py --write    and writes results/metrics.md

Four workers train lenet under ASP on synthetic data of CIFAR's shape, in one session. The speed of
a shared machine drifts by some percent within seconds, so each half of a pair is four short runs,
in turns with those of the other half. Processor time is that of all processes of the private
cluster, including Ray's own: its agent, which converts the actors' metrics for Prometheus, works
beside the training.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

import psutil
from report import finished, main, markdown, measured_on

from raysync import config
from raysync.cluster.session import Session
from raysync.config.cluster_settings import Metrics
from raysync.results.statistics import paired_ratio
from raysync.running.run import run_in
from raysync.training.preparation import TrainingPlan, prepare

PAIRS, WORKERS, ITERATIONS, BATCH = 10, 4, 125, 32
TURNS = (True, False, False, True, False, True, True, False)
"""The runs of a pair, with metrics or without: the Thue-Morse sequence, in which a linear and a
quadratic drift cancel out."""


def busy_s() -> float:
    """Return the processor seconds that the cluster's processes have used."""
    times = [process.cpu_times() for process in psutil.Process().children(recursive=True)]
    return sum(each.user + each.system for each in times)


def measured(session: Session, training: TrainingPlan, metrics: bool) -> tuple[float, float]:
    """Return the seconds of a run from the first release to the last publication, and its processor
    seconds.
    """
    cluster = training.experiment.cluster.model_copy(update={"metrics": Metrics(published=metrics)})
    training = replace(
        training, experiment=training.experiment.model_copy(update={"cluster": cluster})
    )
    before_s = busy_s()
    summary = finished(run_in(session, training, config.ParadigmChoice(name="asp"))).summary
    return summary["seconds"], busy_s() - before_s


def measured_pair(session: Session, training: TrainingPlan) -> dict[bool, tuple[float, float]]:
    """Return, with metrics and without, pushes a second and processor seconds a push."""
    runs: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    for metrics in TURNS:
        runs[metrics].append(measured(session, training, metrics))
    totals = {
        metrics: [sum(column) for column in zip(*each, strict=True)]
        for metrics, each in runs.items()
    }
    pushes = WORKERS * ITERATIONS * len(TURNS) / 2
    return {
        metrics: (pushes / took_s, used_s / pushes) for metrics, (took_s, used_s) in totals.items()
    }


def row(
    what: str, digits: int, with_metrics: Sequence[float], without: Sequence[float]
) -> list[str]:
    """Return medians, and the ratio of the pairs."""
    ratio = paired_ratio(dict(enumerate(with_metrics)), dict(enumerate(without)))
    text = "nothing"
    if ratio.mean is not None:
        text = f"{ratio.mean:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"
    return [what, f"{median(with_metrics):.{digits}f}", f"{median(without):.{digits}f}", text]


def measure() -> str:
    """Measure, and return the table."""
    measurements: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    with tempfile.TemporaryDirectory() as output, Session() as session:
        training = prepare(
            config.validate(
                {
                    "model": "lenet",
                    "data": {
                        "name": "synthetic",
                        "test_samples": 200,
                        "parameters": {"shape": [3, 32, 32]},
                    },
                    "workers": [{"count": WORKERS}],
                    "batch_size": BATCH,
                    "workload": {"iterations_per_worker": ITERATIONS},
                    "evaluation": {"marks": 1},
                    "output": output,
                }
            )
        )
        measured(session, training, metrics=True)  # to start the actors
        for _ in range(PAIRS):
            pair = measured_pair(session, training)
            for metrics, (pushes_per_s, used_s) in pair.items():
                measurements[metrics].append((pushes_per_s, used_s))
                what = "with" if metrics else "without"
                print(
                    f"{what}: {pushes_per_s:.1f} pushes/s, {1000 * used_s:.2f} ms of processor"
                    " each",
                    flush=True,
                )
    columns = {metrics: list(zip(*pairs, strict=True)) for metrics, pairs in measurements.items()}
    rows = [
        row("pushes/s", 1, columns[True][0], columns[False][0]),
        row(
            "ms of processor a push",
            2,
            *([1000 * each for each in columns[metrics][1]] for metrics in (True, False)),
        ),
    ]
    return (
        markdown(["ASP, 4 workers, lenet", "with metrics", "without", "ratio"], rows)
        + f"\n\n{PAIRS} pairs, each of {len(TURNS)} runs in turns; medians, and the geometric mean"
        " of the ratios with its 95 % interval. " + measured_on()
    )


if __name__ == "__main__":
    main(__file__, __doc__, measure)
