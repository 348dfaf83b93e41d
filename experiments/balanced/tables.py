"""The tables of the pages, and the numbers in their prose."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, floor, inf

import pandas as pd
from labtables import (
    TWO_TESTS,
    Results,
    by_seed,
    interval_cell,
    mean_cell,
    range_text,
    ratio,
    ratio_cell,
    tabulate,
    to_asp,
)

from raysync.results.columns import seconds_form, share_form
from raysync.results.statistics import CONFIDENCE, Estimate, estimate, paired_difference

CLUSTERS = {"two": "3:1", "four": "four unequal", "drift": "drifting"}
TASKS = {"fashion": "fashion-cnn", "text": "char-lm"}
BALANCED = ("balanced", "balanced(paradigm=asp)")
SHOWN = ("bsp", "asp", *BALANCED)
"""The paradigms that were trained with four seeds."""
TIME, PACE, LOSS = "time_to_target_s", "throughput_samples_per_s", "final_loss"
LATE, AROUND_70 = 5, slice(12, 17)
"""The evaluations that are averaged: the last ones, and those around 70 % of the run."""
PACE_GOAL, TIME_GOAL, ROUNDS_GOAL = 0.95, 1.05, 10
MARGINS = {"fashion": 0.01, "text": 0.05}
"""Less than a point of accuracy, or 0.05 nats, is as good: set after the results were known."""


def tables(results: Results) -> dict[str, str]:
    """Return the tables by the names of their marks."""
    return {
        "goals": goals(results),
        "pre-study": pre_study(results),
        "pace": pace(results),
        "trained": trained(results),
        "settle": settle(results),
        "external": external(results),
        "ray": on_ray(results),
    }


def facts(results: Results) -> dict[str, str]:
    """Return the facts by the names of their marks."""
    paces = {
        f"pace, {cluster}, {label}": ratio_cell(to_asp(paced(results, cluster), label, PACE))
        for cluster in CLUSTERS
        for label in ("bsp", *BALANCED)
    }
    calm = {
        f"no jitter, {cluster}": ratio_cell(
            to_asp(paced(results, cluster, jitter=False), "balanced", PACE)
        )
        for cluster in CLUSTERS
    }
    settled = results.of_runs("settle")
    published = results.of_runs("external").set_index(["sizes", "paradigm"]).images_per_s
    ray = pd.concat(ratio_to_virtual(results, name) for name in confirmed(results))
    return {
        **paces,
        **calm,
        **{f"solo, {cluster}": solo_cell(results, cluster) for cluster in ("two", "four")},
        "target, fashion": f"{target(results, 'fashion'):.0%}",
        **met_facts(results),
        "settled": within_goal(settled[(settled.factor <= 2) & (settled.sigma <= 0.05)]),
        "settled, 4": within_goal(settled[settled.factor == 4]),
        "external, balanced": f"{published['300 and 200', 'balanced']:,.0f}",
        "external, 300 and 200": f"{published['300 and 200', 'bsp']:,.0f}",
        "ray": range_text(ray),
    }


def compared_runs(results: Results, name: str) -> pd.DataFrame:
    """Return the runs of a comparison, with the labels of their paradigms."""
    runs = results.of_runs(name)
    return runs.assign(label=runs.paradigm)


def paced(results: Results, cluster: str, *, jitter: bool = True) -> pd.DataFrame:
    """Return the runs of a cluster in time only, with its jitter or without."""
    runs = compared_runs(results, f"pace-{cluster}")
    return runs[(runs.sigma > 0) == jitter]


def to_bsp(runs: pd.DataFrame, label: str, key: str, confidence: float = CONFIDENCE) -> Estimate:
    """Return by how much a measure of a paradigm is above BSP's, paired over the common seeds."""
    ours, theirs = (runs[runs.label == name] for name in (label, "bsp"))
    return paired_difference(by_seed(ours, key), by_seed(theirs, key), confidence)


# ---- the goals ----


def met_facts(results: Results) -> dict[str, str]:
    """Return how many comparisons meet a goal, miss it, or are undecided, for each balanced
    paradigm.
    """
    said = pd.DataFrame(
        [
            [label, *met_of(*measured, MARGINS[task])]
            for task, _, label, *measured in judged(results)
        ],
        columns=["label", 1, 2, 3],
    )
    return {
        f"{word}, {number}, {label}": f"{(rows[number] == word).sum()} of {len(rows)}"
        for label, rows in said.groupby("label")
        for number in (1, 2, 3)
        for word in (YES, NO, OPEN)
    }


def judged(results: Results) -> Iterator[tuple[str, str, str, Estimate, Estimate, Time]]:
    """Yield for each comparison and each balanced paradigm: pace, gap to BSP with the interval of
    two one-sided tests, time to target.
    """
    for task in TASKS:
        for cluster in CLUSTERS:
            runs = compared_runs(results, f"{task}-{cluster}")
            for label in BALANCED:
                key = "final_accuracy" if task == "fashion" else LOSS
                gap = to_bsp(runs, label, key, TWO_TESTS)
                pace_ratio = to_asp(paced(results, cluster), label, PACE)
                yield task, cluster, label, pace_ratio, gap, time_to_target(runs, label)


@dataclass(frozen=True)
class Time:
    """A paradigm's time to the target as a ratio to ASP's."""

    ratio: Estimate
    bounded: bool
    """Whether an ASP run did not meet the target: its time counts as that of the whole run, so the
    ratio is at most this."""


def time_to_target(runs: pd.DataFrame, label: str) -> Time:
    """Return the time to the target of a paradigm beside ASP's of the same seeds."""
    ours, asp = runs[runs.label == label], runs[runs.label == "asp"]
    reached = asp.assign(**{TIME: asp[TIME].fillna(asp.seconds)})
    return Time(ratio(ours, reached, TIME), bool(asp[TIME].isna().any()))


YES, NO, OPEN = "yes", "no", "undecided"


def within(value: Estimate, least: float, most: float) -> str:
    """Say whether an interval lies within limits: undecided if it holds one, or is none."""
    if value.low is None or value.high is None:
        return OPEN
    if least <= value.low and value.high <= most:
        return YES
    return NO if value.high < least or value.low > most else OPEN


def met_of(pace_ratio: Estimate, gap: Estimate, time: Time, margin: float) -> tuple[str, str, str]:
    """Say which goals are met, by the intervals: of 95 %, and of two one-sided tests for the gap.

    A time is only bounded from above where ASP missed the target, so it misses no goal; where none
    of our own runs met the target, it does.
    """
    in_time = within(time.ratio, 0, TIME_GOAL)
    if not time.ratio.count:
        in_time = NO
    elif not time.ratio.complete or (time.bounded and in_time == NO):
        in_time = OPEN
    return within(pace_ratio, PACE_GOAL, inf), within(gap, -margin, margin), in_time


def goals(results: Results) -> str:
    """Tabulate what came of the goals."""
    rows = []
    for task, cluster, label, pace_ratio, gap, time in judged(results):
        unit, digits = (100, "+.1f") if task == "fashion" else (1, "+.3f")
        said = met_of(pace_ratio, gap, time, MARGINS[task])
        rows.append(
            {
                "model": TASKS[task],
                "cluster": CLUSTERS[cluster],
                "paradigm": f"`{label}`",
                f"samples/s in ASP's, at least {PACE_GOAL}": f"{ratio_cell(pace_ratio)}: {said[0]}",
                "accuracy (points) or loss less BSP's, 90 % interval within ±1 or ±0.05": (
                    f"{interval_cell(gap, digits, unit)}: {said[1]}"
                ),
                f"s to the target in ASP's, at most {TIME_GOAL}": f"{time_text(time)}: {said[2]}",
            }
        )
    return tabulate(rows)


def time_text(time: Time) -> str:
    """Return `at most 0.88 (0.48 to 1.60)`."""
    bound = "at most " if time.bounded and time.ratio.count else ""
    return f"{bound}{ratio_cell(time.ratio)}"


# ---- the pre-study ----


def studied(results: Results, task: str) -> pd.DataFrame:
    """Return a row for each learning rate and seed: the means over the last evaluations, and over
    those around 70 % of the run.
    """
    curves = results.of_runs(f"lr-{task}")
    measure = "accuracy" if task == "fashion" else "loss"
    return (
        curves.groupby(["rate", "seed"])[measure]
        .agg(
            late=lambda curve: curve.iloc[-LATE:].mean(),
            around=lambda curve: curve.iloc[AROUND_70].mean(),
        )
        .reset_index()
    )


def best_lr(results: Results, task: str) -> float:
    """Return the learning rate with the best mean over the last evaluations."""
    means = studied(results, task).groupby("rate").late.mean()
    return float(means.idxmax() if task == "fashion" else means.idxmin())


def target(results: Results, task: str) -> float:
    """Return what BSP has around 70 % of its run at the best learning rate: an accuracy rounded
    down to a whole percent, or a loss rounded up to a twentieth.
    """
    rows = studied(results, task)
    around = rows[rows.rate == best_lr(results, task)].around.mean()
    return floor(100 * around) / 100 if task == "fashion" else ceil(20 * around) / 20


def pre_study(results: Results) -> str:
    """Tabulate the learning rates."""
    rows = []
    for task, model in TASKS.items():
        form = ".1%" if task == "fashion" else ".3f"
        for rate, repeats in studied(results, task).groupby("rate"):
            late, around = (
                " and ".join(f"{value:{form}}" for value in repeats[key])
                for key in ("late", "around")
            )
            rows.append(
                {
                    "model": model,
                    "lr": f"{rate:g}",
                    "BSP's accuracy or loss: last five evaluations": late,
                    "around 70 % of the run": around,
                    "": "chosen" if rate == best_lr(results, task) else "",
                }
            )
    return tabulate(rows)


# ---- the comparison ----


def pace(results: Results) -> str:
    """Tabulate the throughput of each paradigm on each cluster."""
    parts = {cluster: paced(results, cluster) for cluster in CLUSTERS}
    rows = []
    for number, name in enumerate(parts["four"].label.unique()):
        row = {"paradigm": f"`{name}`"}
        for place, (cluster, runs) in enumerate(parts.items()):
            label = runs.label.unique()[number]  # with two workers, k-sync has another k
            repeats = runs[runs.label == label]
            row |= {
                f"{CLUSTERS[cluster]}: samples/s in ASP's": ratio_cell(to_asp(runs, label, PACE)),
                "wait share" + place * " ": mean_cell(repeats, "wait_fraction", share_form),
            }
        rows.append(row)
    return tabulate(rows)


def solo(results: Results, cluster: str) -> float:
    """Return the sum of what the workers apply a second if each is alone: a batch in the time of a
    step, and of its way to the server and back.
    """
    experiment = results.experiment(f"pace-{cluster}")
    way_s = 2 * experiment.network.link.latency_s
    return sum(
        group.count * experiment.batch_size / (group.step_s / group.speed + way_s)
        for group in experiment.workers
    )


def solo_cell(results: Results, cluster: str) -> str:
    """Return ASP's samples a second in those of the workers alone."""
    runs = paced(results, cluster)
    alone = solo(results, cluster)
    return ratio_cell(estimate([value / alone for value in runs[runs.label == "asp"][PACE]]))


def trained(results: Results) -> str:
    """Tabulate the runs that trained, of the paradigms with four seeds."""
    rows = []
    for task, model in TASKS.items():
        key, unit, digits = (
            ("final_accuracy", 100, ".1f") if task == "fashion" else (LOSS, 1, ".3f")
        )
        for cluster, name in CLUSTERS.items():
            runs = compared_runs(results, f"{task}-{cluster}")
            for label in SHOWN:
                repeats = runs[runs.label == label]
                final = repeats.assign(final=unit * repeats[key])
                gap = interval_cell(to_bsp(runs, label, key), f"+{digits}", unit)
                rows.append(
                    {
                        "model": model,
                        "cluster": name,
                        "paradigm": f"`{label}`",
                        "final accuracy, %, or loss": mean_cell(final, "final", digits),
                        "less BSP's": gap if label != "bsp" else "",
                        "s to the target": mean_cell(repeats, TIME, seconds_form),
                        "s for all the work, in ASP's": ratio_cell(to_asp(runs, label, "seconds")),
                    }
                )
    return tabulate(rows)


def points(results: Results) -> pd.DataFrame:
    """Return what the picture shows: a row for each comparison and paradigm."""
    rows = []
    for task, model in TASKS.items():
        key, unit, measure = (
            ("final_accuracy", 100, "accuracy beside BSP's, points")
            if task == "fashion"
            else (LOSS, 1, "loss beside BSP's (less is better)")
        )
        for cluster, name in CLUSTERS.items():
            runs = compared_runs(results, f"{task}-{cluster}")
            for label in SHOWN:
                gap = to_bsp(runs, label, key)
                low, high = (
                    (None, None)
                    if label == "bsp" or gap.low is None
                    else (unit * gap.low, unit * gap.high)
                )
                rows.append(
                    {
                        "task": model,
                        "cluster": name,
                        "paradigm": label,
                        "pace": to_asp(paced(results, cluster), label, PACE).mean,
                        "measure": measure,
                        "gap": unit * gap.mean,
                        "low": low,
                        "high": high,
                    }
                )
    return pd.DataFrame(rows)


# ---- settling, the published machine, Ray ----


def within_goal(runs: pd.DataFrame) -> str:
    """Return how many changes of speed were followed within the rounds of the goal."""
    rounds = pd.concat([runs.slower_rounds, runs.faster_rounds])
    return f"{(rounds <= ROUNDS_GOAL).sum()} of {len(rounds)}"


def settle(results: Results) -> str:
    """Tabulate how many rounds the shares take."""
    rows = []
    for (factor, sigma), runs in results.of_runs("settle").groupby(["factor", "sigma"]):
        slower, faster = (
            f"{rounds.mean():.1f} ({range_text(rounds, '.0f')})"
            for rounds in (runs.slower_rounds, runs.faster_rounds)
        )
        rows.append(
            {
                "factor": f"{factor:g}",
                "jitter": f"{sigma:.0%}",
                "slower: rounds until settled, mean (range)": slower,
                "then settled": f"{runs.slower_share_settled.mean():.0%}",
                "fast again: rounds": faster,
                "then settled ": f"{runs.faster_share_settled.mean():.0%}",
                f"within {ROUNDS_GOAL} rounds": within_goal(runs),
            }
        )
    return tabulate(rows)


def external(results: Results) -> str:
    """Tabulate the published machine."""
    published = {"200 each": "about 2,000", "300 and 200": "about 2,500"}
    return tabulate(
        {
            "batches of A6000 and 2080 Ti": f"{row.a6000} and {row.rtx2080ti}",
            "paradigm": f"`{row.paradigm}`",
            "images/s": f"{row.images_per_s:,.0f}",
            "published": published[row.sizes] if row.paradigm == "bsp" else "",
        }
        for row in results.of_runs("external").itertuples()
    )


def confirmed(results: Results) -> list[str]:
    """Return the files of the comparison that have run on Ray."""
    return [
        f"{task}-{cluster}"
        for task in TASKS
        for cluster in CLUSTERS
        if (results.folder / "results" / f"{task}-{cluster}.ray.csv").is_file()
    ]


def ray_rows(results: Results, name: str) -> pd.DataFrame:
    """Return the short runs of a file; the index is (engine, paradigm)."""
    return results.table(f"{name}.ray", index_col=["engine", "paradigm"])


def ratio_to_virtual(results: Results, name: str) -> pd.Series:
    """Return paradigm -> throughput on Ray / on the virtual clock."""
    rows = ray_rows(results, name)[PACE]
    return rows.loc["ray"] / rows.loc["virtual"]


def on_ray(results: Results) -> str:
    """Tabulate the confirmations."""
    table = []
    for name in confirmed(results):
        rows, ratios = ray_rows(results, name), ratio_to_virtual(results, name)
        for label in ratios.index:
            ray, virtual = rows.loc["ray", label], rows.loc["virtual", label]
            waits = (f"{each.wait_fraction:.0%}" for each in (ray, virtual))
            table.append(
                {
                    "file": f"`{name}`",
                    "paradigm": f"`{label}`",
                    "samples/s: Ray": f"{ray[PACE]:,.0f}",
                    "virtual": f"{virtual[PACE]:,.0f}",
                    "ratio": f"{ratios[label]:.2f}",
                    "wait share: Ray and virtual": " and ".join(waits),
                    "samples of each worker": f"{ray.samples_each} and {virtual.samples_each}",
                }
            )
    return tabulate(table)
