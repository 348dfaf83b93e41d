"""What checkpoints cost a run on Ray.

    python experiments/benchmarks/checkpoints.py            prints the table
    python experiments/benchmarks/checkpoints.py --write    and writes results/checkpoints.md

Two workers train 25 M parameters under BSP with momentum, so a checkpoint has 200 MB. It is taken
far more often than anybody would, so that its cost is seen above the noise; what one a minute costs
is computed from that.
"""

import tempfile

import numpy as np
from report import interval, main, markdown, measured_on

from raysync import config
from raysync.running.engines import engine_for
from raysync.running.run import run_in
from raysync.training.preparation import prepare

TURNS, RUN_S, EVERY_S = 4, 40, 5
SETTINGS = {
    "data": "digits",
    "model": {"name": "mlp", "hidden": [4960, 4960]},
    "workers": [{"name": "w", "count": 2}],
    "update": {"lr": 0.001, "momentum": 0.9},
    "workload": {"epochs": 10000},
    "evaluation": {"marks": 1},
    "keep": "none",
    "stop": {"after_s": RUN_S},
}


def samples_per_s(session: object, output: str, checkpoint: dict | None) -> tuple[float, int]:
    """Return the throughput of a run, and the number of its checkpoints."""
    settings = SETTINGS | {"checkpoint": checkpoint, "output": output}
    training = prepare(config.validate(settings))
    summary = run_in(session, training, training.experiment.paradigm).summary
    return summary["throughput_samples_per_s"], summary.get("checkpoints", 0)


def tables() -> str:
    """Return the table."""
    rates: dict[bool, list[float]] = {False: [], True: []}
    taken = 0
    experiment = config.validate(SETTINGS)
    with tempfile.TemporaryDirectory() as output, engine_for(experiment) as session:
        samples_per_s(session, output, None)  # the first run warms up
        for turn in range(TURNS):
            for checkpoints in (turn % 2 == 0, turn % 2 == 1):
                setting = {"every_s": EVERY_S, "keep": 1} if checkpoints else None
                rate, count = samples_per_s(session, output, setting)
                rates[checkpoints].append(rate)
                taken += count
    ratios = [one / other for one, other in zip(rates[True], rates[False], strict=True)]
    a_minute = [1 - (1 - ratio) * EVERY_S / 60 for ratio in ratios]
    rows = [
        ["none", f"{np.median(rates[False]):.0f}", "", ""],
        [
            f"each {EVERY_S} s",
            f"{np.median(rates[True]):.0f}",
            interval(ratios),
            interval(a_minute),
        ],
    ]
    header = ["checkpoints", "samples/s", "of none", "one a minute, of none"]
    about = (
        f"\n\n{TURNS} turns of {RUN_S} s each, {taken} checkpoints; medians, and median ratios with"
        f" their 95 % intervals. {measured_on()}"
    )
    return markdown(header, rows) + about


if __name__ == "__main__":
    main(__file__, __doc__, tables)
