"""The tables and pictures of both pages, and the numbers in their prose."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from labtables import (
    TWO_TESTS,
    Gap,
    Results,
    markdown,
    mean_cell,
    not_run,
    paired_gap,
    percent_cell,
    points_cell,
    ratio,
    ratio_cell,
    sweeps_table,
)
from scipy import stats

from raysync.record.sweeps import SweepRecord
from raysync.results.columns import plain_form, ratio_text
from raysync.results.statistics import estimate

HERE = Path(__file__).parent
LATE = 0.79
"""The progress from which the evaluations before the last one count as converged: after the last
decay."""
NOT_THERE = {"final_accuracy": None, "seconds": None}
"""The published row of a run that diverged."""
POLICIES = {0.0625: "6.25 %", 0.125: "12.5 %", 0.5: "50 %"}
"""The share of BSP in policies 1, 2 and 3."""
AUTHORS_ROUND = 10532 / 1598
"""The duration of a BSP round in the authors' logs, in steps of ASP: the ratio of their training
times for the same work."""
PUBLISHED_STEPS = {
    "none": (3.93, 18.89),
    "10 ms, 1 worker": (3.71, 18.04),
    "10 ms, 2 workers": (3.30, 17.21),
    "30 ms, 1 worker": (2.78, 15.68),
    "30 ms, 2 workers": (1.43, 12.89),
}
"""Figure 4 (from the authors' logs): steps a second of BSP and of ASP, in the order of
slow-links.yaml."""
PUBLISHED_ROUNDS = {"4-k80": 0.67, "8-k80": 1.27, "16-k80": 2.17}
"""Profile, for the number of workers -> seconds of a BSP round between evaluations (from the
authors' logs of fixed_sync_baseline, bsp_3 and cluster_16/bsp_run1, a line each hundred rounds)."""
PUBLISHED_STRAGGLERS = {
    ("mild", "none"): (2063, 0.9073),
    ("mild", "greedy"): (2066, 0.8938),
    ("mild", "elastic"): (2056, 0.9092),
    ("moderate", "none"): (2288, 0.9091),
    ("moderate", "elastic"): (2038, 0.9139),
}
"""Figure 15 (from the authors' logs): scenario, online policy -> seconds, accuracy."""
SCENARIOS = ("mild, latency", "moderate, latency", "mild, slow-down", "moderate, slow-down")
"""The scenarios in the order of stragglers.yaml."""
MARGIN = 1.0
"""Points by which the authors' search lets a share be worse than BSP."""


def tables(results: Results) -> dict[str, str]:
    """Return the tables by the names of their marks; one whose sweeps have not run says so."""
    makers: dict[str, tuple[Callable[[Results], str], *tuple[str, ...]]] = {
        "sweeps": (sweeps_table,),
        "authors": (authors,),
        "pre-study": (pre_study, "lr"),
        "share": (share, "share"),
        "share-low-lr": (share_low_lr, "share-low-lr"),
        "end-to-end": (end_to_end, "share"),
        "order": (order, "share", "order"),
        "policies": (policies, "share", "sixteen"),
        "paper-lr": (paper_lr, "sixteen-paper-lr"),
        "batch": (batch, "share", "batch"),
        "momentum": (momentum, "share", "momentum"),
        "slow-links": (slow_links, "slow-links"),
        "rounds": (rounds, "towers"),
        "towers": (towers, "share", "sixteen", "towers"),
        "stragglers": (stragglers, "stragglers"),
        "stragglers-towers": (stragglers_towers, "stragglers-towers"),
        "stragglers-trained": (stragglers_trained, "share", "stragglers-trained"),
        "alexnet": (alexnet, "alexnet"),
        "switch-cost": (switch_cost,),
    }
    return {
        name: (
            make(results) if set(needed) <= set(results.sweeps.index) else not_run(results, needed)
        )
        for name, (make, *needed) in makers.items()
    }


def facts(results: Results) -> dict[str, str]:
    """Return the facts by the names of their marks: accuracies in percent, times as ratios."""
    named, trials = {**dict(ORDERS), "sync-switch(fraction=0.0625)": "policy 1"}, ordered(results)
    cells = {text: percent_cell(trials[trials.label == name]) for name, text in named.items()}
    cells["BSP in ASP's"] = ratio_cell(
        ratio(trials[trials.label == "bsp"], trials[trials.label == "asp"], "seconds")
    )
    cells |= authors_facts(results)
    low = results.trials("share-low-lr")
    cells["low lr, BSP less policy 1"] = points_cell(
        *(low[low.label == name] for name in ("bsp", "sync-switch(fraction=0.0625)"))
    )
    if "towers" in results.sweeps.index:
        times = tower_times(results)
        eight = times[(times.profile == "8-k80") & (times.reading == "towers")]
        cells["BSP as towers in ASP's"] = relative(
            eight[eight.fraction == 1], eight[eight.fraction == 0], "seconds"
        )
        seconds = times.set_index(["profile", "fraction", "reading"]).seconds
        for (profile, fraction, reading), value in seconds.items():
            bsp = seconds[profile, 1, reading]
            cells[f"speed {profile} {fraction:g} {reading}"] = ratio_text(bsp / value)
    if "slow-links" in results.sweeps.index:
        slowed = slowed_throughput(results)
        cells |= {f"slow, {name}": ratio_text(slowed[name][0]) for name in slowed}
    if "stragglers-towers" in results.sweeps.index:
        online = with_online(results.trials("stragglers-towers"))
        slow = online["config/faults"] == list(dict.fromkeys(online["config/faults"]))[-1]
        for policy in ("greedy", "elastic"):
            cells[f"towers, {policy}"] = ratio_cell(
                ratio(
                    online[slow & (online.online == policy)],
                    online[slow & (online.online == "none")],
                    "seconds",
                )
            )
    if "stragglers" in results.sweeps.index:
        online = with_online(results.trials("stragglers"))
        scenarios = dict(zip(dict.fromkeys(online["config/faults"]), SCENARIOS, strict=True))
        for (setting, policy, margin), repeats in online.groupby(
            ["config/faults", "online", "margin"]
        ):
            none = online[(online["config/faults"] == setting) & (online.online == "none")]
            cells[f"{scenarios[setting]}, {policy}, {margin}"] = ratio_cell(
                ratio(repeats, none, "seconds")
            )
    if "stragglers-trained" in results.sweeps.index:
        online = with_online(results.trials("stragglers-trained"))
        none = online[online.online == "none"]
        for policy in ("greedy", "elastic"):
            repeats = online[online.online == policy]
            cells[f"trained, {policy}"] = ratio_cell(ratio(repeats, none, "seconds"))
            cells[f"trained, {policy}, points"] = points_cell(repeats, none)
    return cells


def draw(results: Results, sweeps: Mapping[str, SweepRecord]) -> None:
    """Draw the picture."""
    from pictures import draw_shares

    if "share" in sweeps:
        published = {
            fraction_of(name): row["final_accuracy"]
            for name, row in results.published("share").rows.items()
        }
        measured = {"lenet, lr 0.01": shared(results)}
        if "share-low-lr" in results.sweeps.index:
            low = results.trials("share-low-lr")
            measured["lenet, lr 0.0025"] = low.assign(fraction=low.label.map(fraction_of))
        draw_shares(measured, published, results.curves("share"), HERE / "share.svg")


def keep(results: Results, sweeps: Mapping[str, SweepRecord]) -> None:
    """Keep what tables need of journals."""
    from detections import detections

    for name in ("stragglers", "stragglers-towers", "stragglers-trained"):
        if name in sweeps:
            detections(sweeps[name]).to_csv(
                results.folder / "results" / f"{name}.detections.csv",
                index=False,
                float_format="%.6g",
            )


# ---- parts of cells ----


def fraction_of(name: str) -> float:
    """Return the share of BSP of a paradigm that begins with it."""
    if name in ("bsp", "asp"):
        return float(name == "bsp")
    return float(name.partition("fraction=")[2].partition(")")[0].partition(",")[0])


def relative(repeats: pd.DataFrame, base: pd.DataFrame, key: str) -> str:
    """Return a measure's mean as a ratio to that of others."""
    ratio = repeats[key].mean() / base[key].mean()
    return "-" if pd.isna(ratio) else ratio_text(ratio)


def percent(value: float | None) -> str:
    """Return a published accuracy in percent."""
    return "diverged" if value is None else f"{100 * value:.1f}"


def pre_study(results: Results) -> str:
    """Tabulate BSP at each learning rate."""
    rows = []
    for sweep in ("lr", *(name for name in ("lr-seeds",) if name in results.sweeps.index)):
        for rate, repeats in results.trials(sweep).groupby("config/update.lr", sort=False):
            finals = ", ".join(f"{100 * value:.1f}" for value in repeats.final_accuracy)
            rows.append([f"`{sweep}.yaml`", f"{rate:g}", ", ".join(map(str, repeats.seed)), finals])
    return markdown(["sweep", "lr", "seeds", "BSP's final accuracy, %"], rows)


# ---- the authors' runs: authors.csv ----


def authors_runs(results: Results) -> pd.DataFrame:
    """Return a row for each run whose log the authors published; accuracies in percent."""
    runs = pd.read_csv(results.folder / "authors.csv")
    return runs.assign(percent=100 * runs.final_accuracy)


def gap(runs: pd.DataFrame, share: float) -> Gap:
    """Compare the runs of a share with those of BSP alone, of one setup."""
    ours, bsp = (runs.percent[runs.bsp_share == one] for one in (share, 1))
    test = stats.ttest_ind(ours, bsp, equal_var=False)
    low, high = test.confidence_interval(0.95)
    within = max(map(abs, test.confidence_interval(TWO_TESTS)))
    return Gap(len(ours), ours.mean() - bsp.mean(), low, high, within, MARGIN)


def authors(results: Results) -> str:
    """Tabulate the accuracies in the authors' logs."""
    rows = []
    for setup, runs in authors_runs(results).groupby("setup"):
        for share, repeats in runs.groupby("bsp_share", sort=False):
            mean = estimate(list(repeats.percent))
            assert mean.mean is not None
            assert mean.high is not None
            row = [
                f"{setup}: {repeats.model.iloc[0]}, {repeats.workers.iloc[0]} workers",
                f"{100 * share:g} %",
                str(len(repeats)),
                f"{mean.mean:.2f} ± {mean.high - mean.mean:.2f}",
            ]
            if share == 1:
                rows.append([*row, "", "", ""])
            else:
                found = gap(runs, share)
                rows.append([*row, str(found), f"{found.within:.2f}", found.verdict])
    return markdown(
        [
            "setup",
            "BSP's share",
            "runs",
            "accuracy %",
            "less BSP, points",
            "90 % interval within ±",
            "",
        ],
        rows,
    )


def authors_facts(results: Results) -> dict[str, str]:
    """Return the facts of the authors' logs: differences to BSP, and how much faster each is."""
    cells = {}
    for setup, runs in authors_runs(results).groupby("setup"):
        seconds = runs.groupby("bsp_share").seconds.mean()
        for share in seconds.index.drop(1):
            cells[f"authors, {setup}, {share:g}"] = str(gap(runs, share))
            cells[f"authors, {setup}, {share:g}, surely"] = f"{gap(runs, share).within:.2f}"
            cells[f"authors, {setup}, {share:g}, faster"] = ratio_text(seconds[1] / seconds[share])
    return cells


# ---- share.yaml: Figures 5(b) and 10, Table I ----


def shared(results: Results) -> pd.DataFrame:
    """Return the trials of share.yaml, the largest share of BSP first, with `fraction`, and the
    seconds to the target on two clocks.
    """
    trials, curves = results.trials("share").set_index("trial"), results.curves("share")
    trials = trials.assign(fraction=trials.label.map(fraction_of))
    curves = curves[curves.progress < 0.99]  # the last evaluation is on other images
    late = curves[curves.progress > LATE].groupby("trial").accuracy.mean()
    target = float(late[trials.index[trials.label == "bsp"]].mean())
    reached = curves[curves.accuracy >= target].groupby("trial").first()
    begun = pd.concat([reached.progress, trials.fraction], axis=1).min(axis=1)
    return (
        trials.assign(
            target=target,
            late=late,
            to_target_s=reached.seconds,
            authors=1 + (AUTHORS_ROUND - 1) * trials.fraction,
            to_target_authors=begun * AUTHORS_ROUND + (reached.progress - begun),
        )
        .sort_values(["fraction", "seed"], ascending=[False, True])
        .reset_index()
    )


def share(results: Results) -> str:
    """Tabulate accuracy and time by the share of BSP."""
    trials, published = shared(results), results.published("share").rows
    bsp, base = trials[trials.label == "bsp"], published["bsp"]["seconds"]
    rows = []
    for fraction, repeats in trials.groupby("fraction", sort=False):
        theirs = published[repeats.label.iloc[0]]
        rows.append(
            [
                f"{100 * fraction:g} %",
                percent(theirs["final_accuracy"]),
                percent_cell(repeats),
                ratio_text(theirs["seconds"] / base),
                relative(repeats, bsp, "seconds"),
                relative(repeats, bsp, "authors"),
                reached_cell(repeats, bsp, "to_target_s"),
                reached_cell(repeats, bsp, "to_target_authors"),
            ]
        )
    return markdown(
        [
            "BSP's share",
            "accuracy %, published",
            "measured",
            "training time in BSP's, published",
            "measured",
            "by the authors' clock",
            "time to BSP's accuracy in BSP's, measured",
            "by the authors' clock",
        ],
        rows,
    )


def share_low_lr(results: Results) -> str:
    """Tabulate the same at a quarter of the learning rate."""
    trials, published = results.trials("share-low-lr"), results.published("share").rows
    bsp = trials[trials.label == "bsp"]
    rows = [
        [
            f"{100 * fraction_of(name):g} %",
            percent(published[name]["final_accuracy"]),
            percent_cell(repeats),
            relative(repeats, bsp, "seconds"),
        ]
        for name, repeats in trials.groupby("label", sort=False)
    ]
    return markdown(
        ["BSP's share, lr 0.0025", "accuracy %, published", "measured", "training time in BSP's"],
        rows,
    )


def reached_cell(repeats: pd.DataFrame, bsp: pd.DataFrame, key: str) -> str:
    """Return the mean time of those that reached the target, in BSP's, and how many did."""
    times = repeats[key].dropna()
    hits = f"{len(times)} of {len(repeats)}"
    return f"{ratio_text(times.mean() / bsp[key].mean())} ({hits})" if len(times) else f"- ({hits})"


def end_to_end(results: Results) -> str:
    """Tabulate policy 1 beside BSP and ASP, as in Table I and Figure 10."""
    trials = shared(results)
    bsp, asp, policy = (trials[trials.fraction == fraction] for fraction in (1.0, 0.0, 0.0625))
    points = {
        name: f"{100 * (policy.final_accuracy.mean() - base.final_accuracy.mean()):+.1f}"
        for name, base in (("bsp", bsp), ("asp", asp))
    }
    rows = [
        [
            "training time, BSP's / policy 1's",
            "5.13",
            relative(bsp, policy, "seconds"),
            relative(bsp, policy, "authors"),
        ],
        [
            "training time, ASP's / policy 1's",
            "0.78",
            relative(asp, policy, "seconds"),
            relative(asp, policy, "authors"),
        ],
        [
            "time to BSP's accuracy, BSP's / policy 1's",
            "3.99",
            faster(bsp, policy, "to_target_s"),
            faster(bsp, policy, "to_target_authors"),
        ],
        ["accuracy against BSP, points", "-0.1", points["bsp"], ""],
        ["accuracy against ASP, points", "+2.6", points["asp"], ""],
    ]
    return markdown(["", "published", "measured", "by the authors' clock"], rows)


def faster(bsp: pd.DataFrame, policy: pd.DataFrame, key: str) -> str:
    """Return BSP's mean time to the target in that of others, and how many reached it."""
    ours, theirs = policy[key].dropna(), bsp[key].dropna()
    hits = f"{len(theirs)} and {len(ours)} of {len(policy)} reach it"
    return (
        f"{ratio_text(theirs.mean() / ours.mean())} ({hits})"
        if len(ours) and len(theirs)
        else f"- ({hits})"
    )


# ---- order.yaml: Figure 5(a) ----

ORDERS = (
    ("bsp", "BSP"),
    ("sync-switch(fraction=0.5)", "BSP 50, ASP 50"),
    ("sync-switch(fraction=0.25)", "BSP 25, ASP 75"),
    ("sync-switch(fraction=0.25, first=asp, then=bsp)", "ASP 25, BSP 75"),
    ("sync-switch(fraction=0.5, first=asp, then=bsp)", "ASP 50, BSP 50"),
    ("sync-switch(fraction=0.75, first=asp, then=bsp)", "ASP 75, BSP 25"),
    ("asp", "ASP"),
)


def ordered(results: Results) -> pd.DataFrame:
    """Return the trials of order.yaml, and those of share.yaml."""
    return pd.concat(
        [results.trials(name) for name in ("share", "order") if name in results.sweeps.index]
    )


def order(results: Results) -> str:
    """Tabulate accuracy by the order of the phases."""
    trials, published = (
        ordered(results),
        results.published("share").rows | results.published("order").rows,
    )
    bsp, rows = trials[trials.label == "bsp"], []
    for name, text in ORDERS:
        repeats, theirs = trials[trials.label == name], published.get(name)
        rows.append(
            [
                text,
                percent(theirs["final_accuracy"]) if theirs else "",
                percent_cell(repeats),
                relative(repeats, bsp, "seconds"),
            ]
        )
    return markdown(
        ["order, % of the work", "accuracy %, published", "measured", "training time in BSP's"],
        rows,
    )


# ---- 8 and 16 workers: Figure 14 ----


def policies(results: Results) -> str:
    """Tabulate each policy in each setup."""
    setups = {"8": results.trials("share"), "16": results.trials("sixteen")}
    published = {"8": results.published("share").rows, "16": results.published("sixteen").rows}
    rows = []
    for name, heading in (
        ("bsp", "BSP"),
        *(
            (f"sync-switch(fraction={fraction:g})", f"policy {number}: {text}")
            for number, (fraction, text) in enumerate(POLICIES.items(), 1)
        ),
        ("asp", "ASP"),
    ):
        row = [heading]
        for workers, trials in setups.items():
            repeats, theirs = trials[trials.label == name], published[workers].get(name, NOT_THERE)
            row += [
                percent(theirs["final_accuracy"]),
                percent_cell(repeats) if len(repeats) else "not run",
                (
                    ratio_text(theirs["seconds"] / published[workers]["bsp"]["seconds"])
                    if theirs["seconds"]
                    else ""
                ),
                relative(repeats, trials[trials.label == "bsp"], "seconds"),
            ]
        rows.append(row)
    heads = ["accuracy %, published", "measured", "time in BSP's, published", "measured"]
    return markdown(
        ["", *(f"{workers} workers: {head}" for workers in setups for head in heads)], rows
    )


def paper_lr(results: Results) -> str:
    """Tabulate 16 workers at the paper's learning rate."""
    trials = results.trials("sixteen-paper-lr")
    rows = [
        [f"`{name}`", ", ".join(dict.fromkeys(repeats.status)), each(repeats)]
        for name, repeats in trials.groupby("label", sort=False)
    ]
    return markdown(["16 workers, lr 0.1", "runs", "final accuracy, %, of each seed"], rows)


def each(repeats: pd.DataFrame) -> str:
    """Return the final accuracies."""
    return ", ".join(
        "-" if pd.isna(value) else f"{100 * value:.1f}" for value in repeats.final_accuracy
    )


# ---- after the switch: Figure 8 ----


def policy_1(results: Results) -> pd.DataFrame:
    """Return the trials of policy 1 as in the paper: batch and momentum unchanged."""
    trials = results.trials("share")
    return trials[trials.label == "sync-switch(fraction=0.0625)"]


def batch(results: Results) -> str:
    """Tabulate by the batch of an ASP worker."""
    trials, usual = results.trials("batch"), policy_1(results)
    sizes = {32: "32", 512: "512"}
    rows = {128: usual} | {
        size: trials[trials.label.str.contains(f"'asp': {text}")] for size, text in sizes.items()
    }
    return markdown(
        ["batch under ASP", "samples a second, in those at 128", "accuracy %"],
        [
            [str(size), relative(repeats, usual, "throughput_samples_per_s"), percent_cell(repeats)]
            for size, repeats in sorted(rows.items())
        ],
    )


def momentum(results: Results) -> str:
    """Tabulate by the momentum after the switch."""
    rows = [["unchanged, 0.9 (the paper's choice)", percent_cell(policy_1(results))]]
    for text, repeats in results.trials("momentum").groupby("config/update.phases", sort=False):
        rows.append([momentum_text(yaml.safe_load(text)["asp"]), percent_cell(repeats)])
    return markdown(["momentum under ASP", "accuracy %"], rows)


def momentum_text(phase: dict[str, Any]) -> str:
    """Return a phase's momentum in words."""
    ramp = phase.get("momentum_ramp")
    if ramp is None:
        return f"{phase['momentum']:g}"
    return (
        f"{ramp['name']} rise from {ramp.get('start', 0):g} to 0.9 over {ramp['over']:.0%} of the"
        " work"
    )


# ---- in time only: Figures 4 and 15 ----


def reading_of(trials: pd.DataFrame) -> pd.Series:
    """Return how BSP is read: as one process a worker, or as one that drives all GPUs as towers."""
    return trials["config/network.phases"].map(
        lambda text: "towers" if "push_s" in text else "processes"
    )


def slowed_throughput(results: Results) -> dict[str, tuple[float, float, float]]:
    """Return slow links -> the throughput in that without, of BSP in both readings and of ASP."""
    trials = results.trials("slow-links")
    trials = trials.assign(reading=reading_of(trials), fraction=trials.label.map(fraction_of))
    settings = list(dict.fromkeys(trials["config/faults"]))
    rate = trials.groupby(["config/faults", "fraction", "reading"]).throughput_samples_per_s.mean()
    return {
        name: tuple(
            float(rate[setting][each] / rate[settings[0]][each])
            for each in ((1, "processes"), (1, "towers"), (0, "processes"))
        )
        for setting, name in zip(settings, PUBLISHED_STEPS, strict=True)
    }


def slow_links(results: Results) -> str:
    """Tabulate the throughput of both paradigms where links are slow, in that where none is."""
    slowed, first, rows = slowed_throughput(results), PUBLISHED_STEPS["none"], []
    for name, (bsp, asp) in PUBLISHED_STEPS.items():
        processes, towers_, ours = map(ratio_text, slowed[name])
        rows.append(
            [name, ratio_text(bsp / first[0]), processes, towers_, ratio_text(asp / first[1]), ours]
        )
    return markdown(
        [
            "slow links",
            "BSP's throughput in that without, published",
            "measured, as processes",
            "as towers",
            "ASP's, published",
            "measured",
        ],
        rows,
    )


# ---- towers.yaml: two readings of the authors' BSP ----


def tower_times(results: Results) -> pd.DataFrame:
    """Return the trials of towers.yaml with `profile`, `reading` and `fraction` of BSP."""
    trials = results.trials("towers")
    return trials.assign(
        profile=trials["config/profile"],
        reading=reading_of(trials),
        fraction=trials.label.map(fraction_of),
    )


def rounds(results: Results) -> str:
    """Tabulate the duration of a BSP round by the number of workers."""
    times = tower_times(results)
    count = results.experiment("towers").workload.iterations_per_worker
    assert count is not None, "towers.yaml says how many rounds there are"
    bsp = times[times.fraction == 1].set_index(["profile", "reading"]).seconds / count
    return markdown(
        ["workers", "a BSP round, s, published", "as processes", "as towers"],
        [
            [profile.partition("-")[0], f"{published:.2f}"]
            + [f"{bsp[profile, reading]:.2f}" for reading in ("processes", "towers")]
            for profile, published in PUBLISHED_ROUNDS.items()
        ],
    )


def towers(results: Results) -> str:
    """Tabulate training times by the share of BSP, in BSP's own, under both readings."""
    times, rows = tower_times(results), []
    seconds = times.set_index(["profile", "reading", "fraction"]).seconds
    for profile, sweep in (("8-k80", "share"), ("16-k80", "sixteen")):
        published = {
            fraction_of(name): row["seconds"]
            for name, row in results.published(sweep).rows.items()
            if row["seconds"]
        }
        for fraction in sorted({*times.fraction} & {*published}, reverse=True):
            rows.append(
                [
                    profile.partition("-")[0],
                    f"{100 * fraction:g} %",
                    ratio_text(published[fraction] / published[1]),
                ]
                + [
                    ratio_text(seconds[profile, reading, fraction] / seconds[profile, reading, 1])
                    for reading in ("processes", "towers")
                ]
            )
    return markdown(
        [
            "workers",
            "BSP's share",
            "training time in BSP's, published",
            "as processes",
            "as towers",
        ],
        rows,
    )


def with_online(trials: pd.DataFrame) -> pd.DataFrame:
    """Return the trials with the online policy and the detector's margin as columns."""

    def setting(name: str, key: str, default: str) -> str:
        return name.partition(f"{key}=")[2].partition(",")[0].rstrip(")") or default

    return trials.assign(
        online=[setting(name, "online", "none") for name in trials.label],
        margin=[setting(name, "margin", "0.2") for name in trials.label],
    )


def detection_cells(repeats: pd.DataFrame) -> list[str]:
    """Return what the detector found, over all repeats."""
    if "spells" not in repeats or repeats.spells.isna().all():
        return ["", "", ""]
    windows, detected, notes, right = (
        int(repeats[key].sum()) for key in ("spells", "found", "notes", "right")
    )
    after = f", {repeats.after_s.mean():.1f} s after they began" if detected else ""
    return [
        f"{detected} of {windows}{after}",
        f"{right} of {notes}",
        f"{int(repeats.suspended.sum())}",
    ]


def stragglers(results: Results) -> str:
    """Tabulate the online policies: time, and how often the detector was right."""
    return online_table(results, "stragglers", in_seconds=False)


def stragglers_towers(results: Results) -> str:
    """Tabulate the same on the authors' clock, beside their seconds."""
    return online_table(results, "stragglers-towers", in_seconds=True)


def online_table(results: Results, sweep: str, *, in_seconds: bool) -> str:
    """Tabulate the online policies in the scenarios of a sweep; `in_seconds` beside the published
    seconds, otherwise by the detector's margin.
    """
    trials = with_online(results.trials(sweep))
    detections = pd.read_csv(results.folder / "results" / f"{sweep}.detections.csv")
    trials = trials.merge(detections, on="trial", how="left")
    rows = []
    for setting, scenario in zip(dict.fromkeys(trials["config/faults"]), SCENARIOS, strict=True):
        here = trials[trials["config/faults"] == setting]
        none = here[here.online == "none"]
        kind = scenario.partition(",")[0]
        for (online, margin), repeats in here.groupby(["online", "margin"], sort=False):
            theirs = PUBLISHED_STRAGGLERS.get((kind, online))
            published = (
                ratio_text(theirs[0] / PUBLISHED_STRAGGLERS[kind, "none"][0]) if theirs else ""
            )
            third = margin if online != "none" else ""
            if in_seconds:
                third = str(theirs[0]) if theirs else ""
            rows.append(
                [
                    scenario,
                    online,
                    third,
                    published,
                    ratio_cell(ratio(repeats, none, "seconds")),
                    mean_cell(repeats, "seconds", plain_form),
                    *detection_cells(repeats),
                ]
            )
    return markdown(
        [
            "scenario",
            "policy",
            "s, published" if in_seconds else "margin",
            "time in that of `none`, published",
            "measured",
            "s",
            "spells found",
            "notes that were right",
            "suspended",
        ],
        rows,
    )


def stragglers_trained(results: Results) -> str:
    """Tabulate the online policies: accuracy."""
    trials = with_online(results.trials("stragglers-trained"))
    detections = pd.read_csv(results.folder / "results" / "stragglers-trained.detections.csv")
    trials = trials.merge(detections, on="trial", how="left")
    none, calm, rows = trials[trials.online == "none"], results.trials("share"), []
    calm = calm[calm.label == "sync-switch(fraction=0.5)"]
    rows.append(
        [
            "no stragglers",
            "",
            percent_cell(calm),
            ratio_cell(ratio(calm, none, "seconds")),
            *[""] * 3,
        ]
    )
    for online, repeats in trials.groupby("online", sort=False):
        theirs = PUBLISHED_STRAGGLERS.get(("moderate", online))
        rows.append(
            [
                online,
                percent(theirs[1]) if theirs else "",
                percent_cell(repeats),
                ratio_cell(ratio(repeats, none, "seconds")),
                *detection_cells(repeats),
            ]
        )
    return markdown(
        [
            "policy",
            "accuracy %, published (moderate)",
            "measured",
            "time in that of `none`",
            "spells found",
            "notes that were right",
            "suspended",
        ],
        rows,
    )


# ---- the rest ----


def alexnet(results: Results) -> str:
    """Tabulate one seed with another model."""
    trials = results.trials("alexnet")
    bsp = trials[trials.label == "bsp"]
    rows = [
        [
            f"`{name}`",
            percent_cell(repeats),
            relative(repeats, bsp, "seconds"),
            mean_cell(repeats, "staleness_mean", plain_form),
        ]
        for name, repeats in trials.groupby("label", sort=False)
    ]
    return markdown(["", "accuracy %", "training time in BSP's", "staleness"], rows)


def switch_cost(results: Results) -> str:
    """Tabulate what a switch costs in the running cluster, on Ray."""
    rows = [
        [
            f"{run.run}, seed {run.seed}",
            str(run.workers),
            f"{run.switch_at_s:.2f}",
            f"{run.first_push_after_s:.3f}",
            f"{run.median_step_s:.3f}",
            ratio_text(run.first_push_after_s / run.median_step_s),
        ]
        for run in results.of_runs("switch-cost").itertuples()
    ]
    return markdown(
        ["run", "workers", "switch at, s", "first push after it, s", "median step, s", "in steps"],
        rows or [["not measured yet", "", "", "", "", ""]],
    )


# ---- windows.py: when stale gradients hurt, and how much BSP suffices ----

HALF_A_POINT = 0.5
"""The margin of windows.py, set before its first run."""
QUARTERS = tuple(f"asp in quarter {number}" for number in (1, 2, 3, 4))
ARMS = {
    "bsp": "BSP",
    "bsp 0.5": "BSP 50 %, then ASP",
    "bsp 0.25": "BSP 25 %, then ASP",
    "bsp 0.125": "BSP 12.5 %, then ASP",
    "bsp 0.0625": "BSP 6.25 %, then ASP",
    "bsp 0.03125": "BSP 3.125 %, then ASP",
    "asp": "ASP",
    "asp 0.5": "ASP 50 %, then BSP",
    **{arm: f"ASP in quarter {number} only" for number, arm in enumerate(QUARTERS, 1)},
}
"""The name of an arm in windows.csv -> in tables."""


@dataclass(frozen=True)
class Windows:
    """The runs of windows.py."""

    runs: pd.DataFrame

    @property
    def lr(self) -> float:
        """The common rate."""
        return float(self.runs.lr[self.runs.arm == "bsp 0.25"].iloc[0])

    def of(self, arm: str, workers: int = 8, lr: float | None = None) -> pd.DataFrame:
        """Return the repeats of an arm; by default at the common rate."""
        runs, lr = self.runs, self.lr if lr is None else lr
        return runs[(runs.arm == arm) & (runs.workers == workers) & (runs.lr == lr)]

    def gap(self, ours: str, theirs: str = "bsp", workers: int = 8) -> Gap:
        """Compare the accuracies of two arms at the common rate."""
        return paired_gap(self.of(ours, workers), self.of(theirs, workers), HALF_A_POINT)

    def own(self, arm: str) -> pd.DataFrame:
        """Return the repeats at the rate that is best for BSP or for ASP."""
        others = self.runs[(self.runs.arm == arm) & (self.runs.lr != self.lr)]
        return self.of(arm) if others.empty else others


def windows_of(results: Results) -> Windows:
    """Read the runs of windows.py."""
    runs = results.of_runs("windows.train", "windows")
    return Windows(runs.assign(percent=100 * runs.accuracy))


def windows(results: Results) -> str:
    """Tabulate accuracy, training loss and time by what was BSP and what ASP."""
    found, rows = windows_of(results), []
    parts = [(8, arm, found.of(arm)) for arm in ARMS]
    parts += [(8, arm, found.own(arm)) for arm in ("bsp", "asp") if len(found.own(arm).lr)]
    parts += [(16, arm, found.of(arm, 16)) for arm in ARMS]
    for workers, arm, repeats in parts:
        if repeats.empty:
            continue
        bsp = found.of("bsp", workers)
        gap = paired_gap(repeats, bsp, HALF_A_POINT)
        rows.append(
            [
                str(workers),
                ARMS[arm],
                f"{repeats.lr.iloc[0]:g}",
                mean_cell(repeats, "percent", lambda _: ".2f"),
                *(("", "") if repeats is bsp else (str(gap), gap.verdict)),
                mean_cell(repeats, "train_loss", lambda _: ".3f"),
                ratio_cell(ratio(repeats, bsp, "virtual_s")),
                str(repeats.diverged.sum()),
            ]
        )
    return markdown(
        [
            "workers",
            "paradigm",
            "lr a push",
            "accuracy %",
            "less BSP, points",
            "",
            "training loss at the end",
            "s, in BSP's",
            "diverged",
        ],
        rows,
    )


def windows_facts(results: Results) -> dict[str, str]:
    """Return the contrasts that notes.md declares."""
    found = windows_of(results)
    pairs = {
        **{arm: found.gap(arm) for arm in ARMS if arm != "bsp"},
        "order": found.gap("bsp 0.5", "asp 0.5"),
        "first less fourth": found.gap(QUARTERS[0], QUARTERS[3]),
        "6.25 less asp": found.gap("bsp 0.0625", "asp"),
        "16, asp": found.gap("asp", workers=16),
        "16, 6.25 less 50": found.gap("bsp 0.0625", "bsp 0.5", 16),
        "own rates": paired_gap(found.own("asp"), found.own("bsp"), HALF_A_POINT),
    }
    facts = {f"windows, {name}": str(gap) for name, gap in pairs.items()}
    facts |= {f"windows verdict, {name}": gap.verdict for name, gap in pairs.items()}
    for arm in ("bsp", "bsp 0.0625", "asp"):
        facts[f"windows loss, {arm}"] = mean_cell(found.of(arm), "train_loss", lambda _: ".3f")
        facts[f"windows accuracy, {arm}"] = mean_cell(found.of(arm), "percent", lambda _: ".1f")
    facts["windows lr"] = f"{found.lr:g}"
    facts["windows diverged"] = str(found.runs.diverged.sum())
    return facts
