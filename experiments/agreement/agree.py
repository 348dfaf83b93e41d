"""Whether the engines agree: the same file on the Ray engine and, after `raysync calibrate`, on the
virtual one, by throughput, wait share and staleness.

    python experiments/agreement/agree.py            prints the table (half an hour)
    python experiments/agreement/agree.py --write    and writes results/agree.md

There are four and eight workers, each over the machine's own network alone and with an emulated
link of the slow ones in addition, and three seeds. A ratio is virtual / Ray of the same seed; its
mean and its range over the seeds are shown. For wait shares, which can be 0, the difference in
percentage points takes its place.
"""

import argparse
import os
import platform
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from labtables import Results, finished, range_text, tabulate  # noqa: E402

from raysync import config  # noqa: E402
from raysync.calibration import calibrate, profile  # noqa: E402
from raysync.running.engines import engine_for  # noqa: E402
from raysync.running.run import run_in  # noqa: E402
from raysync.training.preparation import prepare  # noqa: E402

SEEDS = (0, 1, 2)
LINK = ("workers.2.link.latency_s=0.03", "workers.2.link.bandwidth_bytes_per_s=1e6")
"""The link of the slow workers: 30 ms, and 19 ms for a vector, each way."""


def experiment(times: int, *overrides: str) -> config.Experiment:
    """Return the experiment with so many times its workers."""
    counts = [f"workers.{index}.count={count * times}" for index, count in enumerate((2, 1, 1))]
    return config.load(HERE / "agreement.yaml", [*counts, *overrides])


def summaries(described: config.Experiment) -> dict[str, list[dict]]:
    """Return the label of the paradigm -> the summary of each seed."""
    training = prepare(described)
    by_label = {choice.label: [] for choice in described.paradigms}
    with engine_for(described) as engine:
        for seed in SEEDS:
            for choice in described.paradigms:
                by_label[choice.label].append(
                    finished(run_in(engine, training.with_seed(seed), choice)).summary
                )
    return by_label


def measured_profile(folder: Path) -> Path:
    """Return the profile that `raysync calibrate` writes on this machine."""
    described = experiment(1, f"output={folder}")
    with engine_for(described) as engine:
        text = profile(
            described, calibrate(engine, prepare(described)), "for experiments/agreement"
        )
    path = folder / "here.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def rows(times: int, link: tuple[str, ...], network: str, folder: Path) -> list[dict[str, str]]:
    """Return the rows of the table: Ray beside virtual."""
    real = summaries(experiment(times, *link, f"output={folder}"))
    virtual = summaries(
        experiment(times, *link, f"output={folder}", "engine=virtual", f"network={network}")
    )
    return [
        {
            "paradigm": label,
            "workers": f"{4 * times}{', a link' if link else ''}",
            "samples/s: Ray": f"{ray.throughput_samples_per_s.mean():.0f}",
            "virtual": f"{clock.throughput_samples_per_s.mean():.0f}",
            "ratio, mean (range)": _ratio(ray, clock, "throughput_samples_per_s"),
            "wait: Ray": f"{100 * ray.wait_fraction.mean():.1f} %",
            "virtual ": f"{100 * clock.wait_fraction.mean():.1f} %",
            "points": f"{100 * (clock.wait_fraction - ray.wait_fraction).mean():+.1f}",
            "staleness: Ray": f"{ray.staleness_mean.mean():.2f}",
            " virtual": f"{clock.staleness_mean.mean():.2f}",
            "ratio, mean (range) ": _ratio(ray, clock, "staleness_mean"),
        }
        for label in real
        for ray, clock in [(pd.DataFrame(real[label]), pd.DataFrame(virtual[label]))]
    ]


def _ratio(real: pd.DataFrame, virtual: pd.DataFrame, key: str) -> str:
    ratios = (virtual[key] / real[key])[real[key] > 0]
    return f"{ratios.mean():.2f} ({range_text(ratios)})" if len(ratios) else "-"


def table() -> str:
    """Return the whole comparison as a table."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        path = measured_profile(folder)
        network = config.load(
            HERE / "agreement.yaml", [f"profile={path}", "engine=virtual"]
        ).network
        cells = [
            row
            for times in (1, 2)
            for link in ((), LINK)
            for row in rows(times, link, network.model_dump_json(), folder)
        ]
    bandwidth = network.link.bandwidth_bytes_per_s
    limit = f"{bandwidth / 1e9:.2f} GB/s" if bandwidth else "without limit"
    return (
        f"{tabulate(cells)}\n\nCalibrated: latency {1000 * network.link.latency_s:.2f} ms each way,"
        f" bandwidth {limit}, update {1e6 * network.update_s:.0f} us. {len(SEEDS)} seeds;"
        f" {os.cpu_count()} cores, {platform.machine()}, {time.strftime('%Y-%m-%d')}.\n"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="into results/agree.md as well")
    write = parser.parse_args().write
    text = table()
    print(text)
    if write:
        Results(HERE).write_measured("agree", text)
