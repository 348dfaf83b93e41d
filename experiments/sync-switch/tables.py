"""The tables and pictures of both pages, and the numbers in their prose."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from labtables import (
    TWO_TESTS,
    Gap,
    Results,
    markdown,
    mean_cell,
    paired_gap,
    ratio,
    ratio_cell,
    sweeps_table,
    tabulate,
)
from scipy import stats

from raysync.record.sweeps import SweepRecord
from raysync.results.columns import plain_form, ratio_text
from raysync.results.statistics import estimate

HERE = Path(__file__).parent
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
    ("mild", "none"): 2063,
    ("mild", "greedy"): 2066,
    ("mild", "elastic"): 2056,
    ("moderate", "none"): 2288,
    ("moderate", "elastic"): 2038,
}
"""Figure 15 (from the authors' logs): scenario, online policy -> seconds."""
SCENARIOS = ("mild, latency", "moderate, latency", "mild, slow-down", "moderate, slow-down")
"""The scenarios in the order of stragglers.yaml."""
MARGIN = 1.0
"""Points by which the authors' search lets a share be worse than BSP."""


def tables(results: Results) -> dict[str, str]:
    """Return the tables by the names of their marks."""
    return {
        "sweeps": sweeps_table(results),
        "authors": authors(results),
        "windows": windows(results),
        "momentum": momentum(results),
        "batch": batch(results),
        "slow-links": slow_links(results),
        "rounds": rounds(results),
        "towers": towers(results),
        "stragglers": stragglers(results),
        "stragglers-towers": stragglers_towers(results),
        "switch-cost": switch_cost(results),
    }


def facts(results: Results) -> dict[str, str]:
    """Return the facts by the names of their marks: differences in points, times as ratios."""
    return {
        **authors_facts(results),
        **windows_facts(results),
        **tower_facts(results),
        **online_facts(results),
        **{
            f"slow, {name}": ratio_text(bsp)
            for name, (bsp, *_) in slowed_throughput(results).items()
        },
        **{f"batch {size}, {fixed}": cell for (size, fixed), cell in batch_cells(results).items()},
    }


def tower_facts(results: Results) -> dict[str, str]:
    """Return training times in ASP's and in BSP's own, under both readings."""
    seconds = tower_times(results).set_index(["profile", "reading", "fraction"]).seconds
    eight = seconds["8-k80"]
    cells = {"BSP in ASP's": ratio_text(eight["processes", 1] / eight["processes", 0])}
    for (profile, reading, fraction), value in seconds.items():
        faster = ratio_text(seconds[profile, reading, 1] / value)
        cells[f"speed {profile} {fraction:g} {reading}"] = faster
    return cells


def online_facts(results: Results) -> dict[str, str]:
    """Return the times of online policies in those without any."""
    cells = {}
    for sweep, prefix in (("stragglers", ""), ("stragglers-towers", "towers, ")):
        online = with_online(results.trials(sweep))
        scenarios = dict(zip(dict.fromkeys(online["config/faults"]), SCENARIOS, strict=True))
        for (faults, policy, margin), repeats in online.groupby(
            ["config/faults", "online", "margin"]
        ):
            none = online[(online["config/faults"] == faults) & (online.online == "none")]
            cells[f"{prefix}{scenarios[faults]}, {policy}, {margin}"] = ratio_cell(
                ratio(repeats, none, "seconds")
            )
    return cells


def draw(results: Results, sweeps: Mapping[str, SweepRecord]) -> None:
    """Draw the picture."""
    from pictures import draw_gaps

    found, runs = windows_of(results), authors_runs(results)
    theirs = runs[runs.setup == 1]
    shares = {0.0: "asp"} | {share: f"bsp {share:.4g}" for share in SHARES}
    draw_gaps(
        {
            "CNN on Fashion-MNIST": {share: found.gap(arm) for share, arm in shares.items()},
            "published: ResNet-32 on CIFAR-10": {
                share: gap(theirs, share) for share in sorted(set(theirs.bsp_share) - {1})
            },
        },
        {str(number): found.gap(arm) for number, arm in enumerate(QUARTERS, 1)},
        HERE / "windows.svg",
    )


def keep(results: Results, sweeps: Mapping[str, SweepRecord]) -> None:
    """Keep what tables need of journals."""
    from detections import detections

    for name in ("stragglers", "stragglers-towers"):
        if name in sweeps:
            results.write(f"{name}.detections", detections(sweeps[name]))


# ---- parts of cells ----


def fraction_of(name: str) -> float:
    """Return the share of BSP of a paradigm that begins with it."""
    if name in ("bsp", "asp"):
        return float(name == "bsp")
    return float(name.partition("fraction=")[2].partition(")")[0].partition(",")[0])


# ---- the authors' runs: authors.csv ----


def authors_runs(results: Results) -> pd.DataFrame:
    """Return a row for each run whose log the authors published; accuracies in percent."""
    runs = pd.read_csv(results.folder / "authors.csv")
    return runs.assign(percent=100 * runs.final_accuracy)


def gap(runs: pd.DataFrame, share: float, than: float = 1) -> Gap:
    """Compare the runs of a share with those of another, of one setup."""
    ours, theirs = (runs.percent[runs.bsp_share == one] for one in (share, than))
    test = stats.ttest_ind(ours, theirs, equal_var=False)
    low, high = test.confidence_interval(0.95)
    within = max(map(abs, test.confidence_interval(TWO_TESTS)))
    return Gap(len(ours), ours.mean() - theirs.mean(), low, high, within, MARGIN)


def authors(results: Results) -> str:
    """Tabulate the accuracies in the authors' logs."""
    rows = []
    for setup, runs in authors_runs(results).groupby("setup"):
        for share, repeats in runs.groupby("bsp_share", sort=False):
            mean, found = estimate(list(repeats.percent)), gap(runs, share)
            assert mean.mean is not None
            assert mean.high is not None
            rows.append(
                {
                    "setup": f"{setup}: {repeats.model.iloc[0]}, {repeats.workers.iloc[0]} workers",
                    "BSP's share": f"{100 * share:g} %",
                    "runs": len(repeats),
                    "accuracy %": f"{mean.mean:.2f} ± {mean.high - mean.mean:.2f}",
                    "less BSP, points": found if share != 1 else "",
                    "90 % interval within ±": f"{found.within:.2f}" if share != 1 else "",
                    "": found.verdict if share != 1 else "",
                }
            )
    return tabulate(rows)


def authors_facts(results: Results) -> dict[str, str]:
    """Return the facts of the authors' logs: differences to BSP and ASP, and ratios of time."""
    cells = {}
    for setup, runs in authors_runs(results).groupby("setup"):
        seconds = runs.groupby("bsp_share").seconds.mean()
        for share in seconds.index.drop(1):
            cells[f"authors, {setup}, {share:g}"] = str(gap(runs, share))
            cells[f"authors, {setup}, {share:g}, faster"] = ratio_text(seconds[1] / seconds[share])
            if 0.0625 in seconds:
                in_first = ratio_text(seconds[share] / seconds[0.0625])
                cells[f"authors, {setup}, {share:g}, in 6.25's"] = in_first
            if share and 0 in seconds:
                cells[f"authors, {setup}, {share:g}, less ASP"] = str(gap(runs, share, 0))
                in_asp = ratio_text(seconds[share] / seconds[0])
                cells[f"authors, {setup}, {share:g}, in ASP's"] = in_asp
    return cells


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
            {
                "slow links": name,
                "BSP's throughput in that without, published": ratio_text(bsp / first[0]),
                "measured, as processes": processes,
                "as towers": towers_,
                "ASP's, published": ratio_text(asp / first[1]),
                "measured": ours,
            }
        )
    return tabulate(rows)


# ---- after the switch: Figure 8 ----


BATCHES = (32, 128, 512)
FIXED = {"0.0015625": "nothing", "0.0010417": "a third", "0.00078125": "half"}
"""The seconds of a sample -> how much of a step of 128 samples no batch lengthens."""


def batch_cells(results: Results) -> dict[tuple[int, str], str]:
    """Return batch under ASP and fixed part of a step -> samples a second, in those at 128."""
    trials = results.trials("batch")
    found = re.compile(r"per_sample_s: ([\d.e-]+)")
    fixed = trials["config/workers"].map(
        lambda text: FIXED[f"{float(found.search(text)[1]):.8g}".rstrip("0")]
    )
    size = trials.label.map(
        lambda label: next((each for each in BATCHES if f"'asp': {each}" in label), 128)
    )
    cells = {}
    for part in FIXED.values():
        usual = trials[(fixed == part) & (size == 128)]
        for each in BATCHES:
            repeats = trials[(fixed == part) & (size == each)]
            cells[each, part] = ratio_cell(ratio(repeats, usual, "throughput_samples_per_s"))
    return cells


def batch(results: Results) -> str:
    """Tabulate the throughput by the batch of an ASP worker."""
    cells = batch_cells(results)
    return tabulate(
        {"batch under ASP": size}
        | {f"{part} of a step is fixed": cells[size, part] for part in FIXED.values()}
        for size in BATCHES
    )


def momentum_gaps(results: Results) -> dict[str, tuple[pd.DataFrame, Gap]]:
    """Return, by the momentum under ASP after 6.25 % of BSP, the runs and what it changes."""
    runs, usual = results.of_runs("windows.momentum", "windows"), windows_of(results)
    runs = runs.assign(percent=100 * runs.accuracy)
    return {
        arm: (repeats, paired_gap(repeats, usual.of("bsp 0.0625"), HALF_A_POINT))
        for arm in MOMENTA
        for repeats in [runs[runs.arm == arm]]
    }


def momentum(results: Results) -> str:
    """Tabulate by the momentum under ASP, after 6.25 % of BSP."""
    usual = windows_of(results).of("bsp 0.0625")
    rows = [["0.9, unchanged", mean_cell(usual, "percent", ".2f"), "", ""]]
    for arm, (repeats, change) in momentum_gaps(results).items():
        accuracy = mean_cell(repeats, "percent", ".2f")
        rows.append([MOMENTA[arm], accuracy, str(change), change.verdict])
    return markdown(["momentum under ASP", "accuracy %", "less 0.9, points", ""], rows)


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
    return tabulate(
        {
            "workers": profile.partition("-")[0],
            "a BSP round, s, published": f"{published:.2f}",
            "as processes": f"{bsp[profile, 'processes']:.2f}",
            "as towers": f"{bsp[profile, 'towers']:.2f}",
        }
        for profile, published in PUBLISHED_ROUNDS.items()
    )


def towers(results: Results) -> str:
    """Tabulate training times by the share of BSP, in BSP's own, under both readings."""
    times, rows = tower_times(results), []
    seconds = times.set_index(["profile", "reading", "fraction"]).seconds.sort_index()
    for profile, setup in (("8-k80", 1), ("16-k80", 3)):
        runs = authors_runs(results)
        published = runs[runs.setup == setup].groupby("bsp_share").seconds.mean()
        for fraction in sorted({*times.fraction} & {*published.index}, reverse=True):
            theirs, processes, towers_ = (
                ratio_text(times[fraction] / times[1])
                for times in (published, seconds[profile, "processes"], seconds[profile, "towers"])
            )
            rows.append(
                {
                    "workers": profile.partition("-")[0],
                    "BSP's share": f"{100 * fraction:g} %",
                    "training time in BSP's, published": theirs,
                    "as processes": processes,
                    "as towers": towers_,
                }
            )
    return tabulate(rows)


def with_online(trials: pd.DataFrame) -> pd.DataFrame:
    """Return the trials with the online policy and the detector's margin as columns."""

    def setting(name: str, key: str, default: str) -> str:
        return name.partition(f"{key}=")[2].partition(",")[0].rstrip(")") or default

    return trials.assign(
        online=[setting(name, "online", "none") for name in trials.label],
        margin=[setting(name, "margin", "0.2") for name in trials.label],
    )


def detection_cells(repeats: pd.DataFrame) -> dict[str, str]:
    """Return what the detector found, over all repeats."""
    if repeats.spells.isna().all():
        return {}
    windows, detected, notes, right = (
        int(repeats[key].sum()) for key in ("spells", "found", "notes", "right")
    )
    after = f", {repeats.after_s.mean():.1f} s after they began" if detected else ""
    return {
        "spells found": f"{detected} of {windows}{after}",
        "notes that were right": f"{right} of {notes}",
        "suspended": f"{repeats.suspended.sum():.0f}",
    }


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
    trials = trials.merge(results.table(f"{sweep}.detections"), on="trial", how="left")
    rows = []
    for setting, scenario in zip(dict.fromkeys(trials["config/faults"]), SCENARIOS, strict=True):
        here = trials[trials["config/faults"] == setting]
        none = here[here.online == "none"]
        kind = scenario.partition(",")[0]
        for (online, margin), repeats in here.groupby(["online", "margin"], sort=False):
            theirs = PUBLISHED_STRAGGLERS.get((kind, online))
            published = ratio_text(theirs / PUBLISHED_STRAGGLERS[kind, "none"]) if theirs else ""
            third = margin if online != "none" else ""
            if in_seconds:
                third = theirs or ""
            rows.append(
                {
                    "scenario": scenario,
                    "policy": online,
                    "s, published" if in_seconds else "margin": third,
                    "time in that of `none`, published": published,
                    "measured": ratio_cell(ratio(repeats, none, "seconds")),
                    "s": mean_cell(repeats, "seconds", plain_form),
                    **detection_cells(repeats),
                }
            )
    return tabulate(rows)


# ---- the rest ----


def switch_cost(results: Results) -> str:
    """Tabulate what a switch costs in the running cluster, on Ray."""
    return tabulate(
        {
            "run": f"{run.run}, seed {run.seed}",
            "workers": run.workers,
            "switch at, s": f"{run.switch_at_s:.2f}",
            "first push after it, s": f"{run.first_push_after_s:.3f}",
            "median step, s": f"{run.median_step_s:.3f}",
            "in steps": ratio_text(run.first_push_after_s / run.median_step_s),
        }
        for run in results.of_runs("switch-cost").itertuples()
    )


# ---- windows.py: when stale gradients hurt, and how much BSP suffices ----

HALF_A_POINT = 0.5
"""The margin of windows.py, set before its first run."""
FAILED = 20.0
"""A run that ends below so many percent has learnt nothing; chance is 10."""
SHARES = (0.03125, 0.0625, 0.125, 0.25, 0.5)
MOMENTA = {
    "momentum 0": "0",
    "momentum 0.125": "0.125",
    "momentum linear": "from 0 to 0.9, linearly over 25 % of the work",
    "momentum exponential": "from 0.125 to 0.9, exponentially over 25 %",
}
"""The name of an arm in windows.momentum.csv -> in tables."""
EARLY = "early drop: "
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
"""The name of an arm in windows.train.csv -> in tables."""
FEW = ("bsp 0.5", "bsp 0.0625", "asp")
"""What ran at other rates, and with 16 workers, too."""


@dataclass(frozen=True)
class Windows:
    """The runs of windows.py."""

    runs: pd.DataFrame

    @property
    def lr(self) -> float:
        """The common rate."""
        return float(self.runs.lr[self.runs.arm == "bsp 0.25"].iloc[0])

    @property
    def lr_of_bsp(self) -> float:
        """The rate that is best for BSP."""
        return float(self.runs.lr[self.runs.arm == "bsp"].max())

    @property
    def lr_of_asp(self) -> float:
        """The rate that is best for ASP."""
        return float(self.runs.lr[self.runs.arm == "asp"].min())

    def of(self, arm: str, workers: int = 8, lr: float | None = None) -> pd.DataFrame:
        """Return the repeats of an arm; by default at the common rate."""
        runs, lr = self.runs, self.lr if lr is None else lr
        return runs[(runs.arm == arm) & (runs.workers == workers) & (runs.lr == lr)]

    def gap(self, ours: str, theirs: str = "bsp", workers: int = 8, lr: float | None = None) -> Gap:
        """Compare the accuracies of two arms at a rate; by default at the common one."""
        return paired_gap(self.of(ours, workers, lr), self.of(theirs, workers, lr), HALF_A_POINT)


def windows_of(results: Results) -> Windows:
    """Read the runs of windows.py."""
    runs = results.of_runs("windows.train", "windows")
    return Windows(runs.assign(percent=100 * runs.accuracy))


def windows(results: Results) -> str:
    """Tabulate accuracy, training loss and time by what was BSP and what ASP."""
    found, rows = windows_of(results), []
    bsp, best = found.of("bsp"), found.lr_of_bsp
    bsp_at_best, early_bsp = found.of("bsp", lr=best), found.of(f"{EARLY}bsp")
    parts = [(8, ARMS[arm], found.of(arm), bsp) for arm in ARMS]
    parts += [(8, "ASP", found.of("asp", lr=found.lr_of_asp), bsp_at_best)]
    parts += [
        (8, f"{ARMS[arm]}, drops at 25 and 75 %", found.of(f"{EARLY}{arm}"), early_bsp)
        for arm in ("bsp", QUARTERS[1])
    ]
    parts += [(1, "ASP", found.of("asp", 1), bsp)]
    parts += [
        (workers, ARMS[arm], found.of(arm, workers, lr), found.of("bsp", workers, lr))
        for workers, lr in ((8, best), (16, found.lr), (16, best))
        for arm in ("bsp", *FEW)
    ]
    for workers, paradigm, repeats, base in parts:
        gap = paired_gap(repeats, base, HALF_A_POINT)
        rows.append(
            [
                str(workers),
                paradigm,
                f"{repeats.lr.iloc[0]:g}",
                mean_cell(repeats, "percent", ".2f"),
                *(("", "") if repeats.equals(base) else (str(gap), gap.verdict)),
                mean_cell(repeats, "train_loss", ".3f"),
                ratio_cell(ratio(repeats, base, "virtual_s")),
                str((repeats.percent < FAILED).sum()),
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
            "learn nothing",
        ],
        rows,
    )


def windows_facts(results: Results) -> dict[str, str]:
    """Return the contrasts that notes.md declares."""
    found = windows_of(results)
    best, bsp = found.lr_of_bsp, found.of("bsp")
    bsp_at_best = found.of("bsp", lr=best)
    own_asp = found.of("asp", lr=found.lr_of_asp)
    pairs = {
        **{arm: found.gap(arm) for arm in ARMS if arm != "bsp"},
        "order": found.gap("bsp 0.5", "asp 0.5"),
        "first less fourth": found.gap(QUARTERS[0], QUARTERS[3]),
        "first less second": found.gap(QUARTERS[0], QUARTERS[1]),
        "6.25 less asp": found.gap("bsp 0.0625", "asp"),
        "own rates": paired_gap(own_asp, bsp_at_best, HALF_A_POINT),
        "BSP, own rate": paired_gap(bsp_at_best, bsp, HALF_A_POINT),
        "BSP's rate, 6.25 less asp": found.gap("bsp 0.0625", "asp", lr=best),
        "16, BSP, BSP's rate": paired_gap(
            found.of("bsp", 16, best), found.of("bsp", 16), HALF_A_POINT
        ),
        "16, 6.25 less 50": found.gap("bsp 0.0625", "bsp 0.5", 16),
        **{f"BSP's rate, {arm}": found.gap(arm, lr=best) for arm in FEW},
        **{f"16, {arm}": found.gap(arm, workers=16) for arm in ("bsp 0.5", "asp")},
        "16, BSP's rate, bsp 0.5": found.gap("bsp 0.5", workers=16, lr=best),
        "early drop": paired_gap(found.of(f"{EARLY}bsp"), bsp, HALF_A_POINT),
        "early drop, second quarter": found.gap(f"{EARLY}{QUARTERS[1]}", f"{EARLY}bsp"),
        "one worker": paired_gap(found.of("asp", 1), bsp, HALF_A_POINT),
        "asp less one worker": paired_gap(found.of("asp"), found.of("asp", 1), HALF_A_POINT),
    }
    facts = {f"windows, {name}": str(gap) for name, gap in pairs.items()}
    for arm, (_, change) in momentum_gaps(results).items():
        facts[f"windows momentum, {arm.removeprefix('momentum ')}"] = str(change)
    for arm in FEW:
        repeats = found.of(arm, 16, best)
        failed = f"{(repeats.percent < FAILED).sum()} of {len(repeats)}"
        facts[f"windows learn nothing, 16, BSP's rate, {arm}"] = failed
    facts["windows, BSP's rate"] = f"{best / found.lr:g}"
    facts["windows s, bsp 0.5"] = ratio_cell(ratio(found.of("bsp 0.5"), bsp, "virtual_s"))
    of_eight = found.runs[(found.runs.workers == 8) & (found.runs.lr == found.lr)]
    means = of_eight.groupby("arm")[["percent", "train_loss"]].mean()
    facts["windows, loss and accuracy"] = f"{means.percent.corr(means.train_loss):.2f}"
    for arm in ("bsp", "bsp 0.0625", "asp"):
        facts[f"windows loss, {arm}"] = mean_cell(found.of(arm), "train_loss", ".3f")
    return facts
