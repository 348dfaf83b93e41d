"""Whether one worker's slow link holds up the others, on Ray.

    python experiments/benchmarks/slow_link.py            prints the table
    python experiments/benchmarks/slow_link.py --write    and writes results/slow_link.md

Three workers of 40 ms a step under ASP, with real processes. In every second run each gradient of
the third takes a second on its way to the server, which is emulated on the way: the worker has
answered, and waits. What counts is the pace of the other two, beside that of the run without it.
"""

import tempfile

from report import interval, main, markdown, measured_on

from raysync import config
from raysync.running.engines import engine_for
from raysync.running.run import run_in
from raysync.training.preparation import prepare

TURNS, RUN_S, LATENCY_S = 8, 15, 1.0
SETTINGS = {
    "data": "digits",
    "model": "mlp",
    "paradigm": "asp",
    "workload": {"epochs": 10000},
    "evaluation": {"marks": 1},
    "keep": "none",
    "stop": {"after_s": RUN_S},
}
GROUP = {"step_s": 0.04, "cpus": 0.5}


def rates(session: object, output: str, latency_s: float) -> tuple[float, float]:
    """Return the pushes a second of the two near workers, and of the far one."""
    workers = [
        {"name": "near", "count": 2, **GROUP},
        {"name": "far", **GROUP, "link": {"latency_s": latency_s}},
    ]
    settings = SETTINGS | {"workers": workers, "output": output}
    training = prepare(config.validate(settings))
    record = run_in(session, training, training.experiment.paradigm)
    pushes, seconds = record.pushes, record.summary["seconds"]
    near = int((pushes.group == "near").sum())
    return near / seconds, (len(pushes) - near) / seconds


def tables() -> str:
    """Return the table."""
    near: dict[bool, list[float]] = {False: [], True: []}
    far: dict[bool, list[float]] = {False: [], True: []}
    experiment = config.validate(SETTINGS)
    with tempfile.TemporaryDirectory() as output, engine_for(experiment) as session:
        rates(session, output, 0.0)  # the first run warms up
        for turn in range(TURNS):
            for is_slow in (turn % 2 == 0, turn % 2 == 1):
                of_near, of_far = rates(session, output, LATENCY_S if is_slow else 0.0)
                near[is_slow].append(of_near)
                far[is_slow].append(of_far)
    ratios = [slow / plain for slow, plain in zip(near[True], near[False], strict=True)]
    rows = [
        ["none", interval(near[False]), interval(far[False]), ""],
        [
            f"{LATENCY_S:g} s each way, of the third",
            interval(near[True]),
            interval(far[True]),
            interval(ratios),
        ],
    ]
    header = ["latency", "pushes/s of the other two", "of the third", "pace of the others, of none"]
    about = f"{TURNS} turns of {RUN_S} s each; medians with their 95 % intervals. {measured_on()}"
    return f"{markdown(header, rows)}\n\n{about}"


if __name__ == "__main__":
    main(__file__, __doc__, tables)
