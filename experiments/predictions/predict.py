"""Predict settings from one measured run, and run them: results/predictions.csv.

    python experiments/predictions/predict.py RUNS                (a quarter of an hour)
    python experiments/labbook.py

One run under BSP on Ray is measured. Its step times predict each setting, as `raysync whatif` does,
alone and with the costs of calls that `raysync calibrate` has measured. Then the setting is run on
Ray and in virtual time with other seeds, so with other jitter.
"""

import argparse
import csv
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import yaml

import raysync
from raysync import config
from raysync.calibration import calibrate, profile
from raysync.config import Link, ParadigmChoice
from raysync.predict.candidates import Candidate
from raysync.predict.exchange import Exchange, exchange_of
from raysync.predict.measured_ranks import MeasuredRanks
from raysync.predict.simulation import simulate
from raysync.predict.step_times.rank_step_times import read
from raysync.running.engines import engine_for
from raysync.running.run import run_in
from raysync.training.preparation import prepare

HERE = Path(__file__).parent
TABLE = HERE / "results" / "predictions.csv"
FIELDS = (
    "varied", "paradigm", "setting", "predicted", "calibrated", "virtual", "ray", "extrapolates",
)  # fmt: skip
COMMON: dict[str, Any] = yaml.safe_load((HERE / "predictions.yaml").read_text(encoding="utf-8"))
SEEDS = COMMON.pop("seeds")
PARADIGMS = (
    "bsp", "balanced", "asp", {"name": "ssp", "staleness": 3}, "lagtuner",
    {"name": "k-sync", "k": 2}, {"name": "backup-workers", "backups": 1},
    {"name": "hybrid", "k": 2, "staleness_tolerance": 3},
)  # fmt: skip
SLOW_LINK = {"latency_s": 0.005, "bandwidth_bytes_per_s": 1e6}
"""24 ms for the model's vector, each way."""
SLOW_LINK_TEXT = "1MB/s,5ms"
LOCAL = {"lr": 0.05}


class Setting(NamedTuple):
    """What differs from the measured run."""

    varied: str
    paradigm: Any
    workers: int = 4
    slow_links: tuple[str, ...] = ()
    """The workers with `SLOW_LINK`."""
    steps: int = 1

    @property
    def choice(self) -> dict[str, Any]:
        """The paradigm, with local steps around it if there are some."""
        if self.steps == 1:
            return ParadigmChoice.model_validate(_named(self.paradigm)).model_dump()
        return {"name": "local", "paradigm": self.paradigm, "steps": self.steps}

    @property
    def words(self) -> str:
        """The setting, in a few words."""
        if self.varied == "workers":
            return f"{self.workers} workers"
        if self.slow_links:
            return (
                "1 slow link" if len(self.slow_links) == 1 else f"{len(self.slow_links)} slow links"
            )
        return f"{self.steps} local steps" if self.steps > 1 else "as measured"


def _named(paradigm: Any) -> dict[str, Any]:
    return {"name": paradigm} if isinstance(paradigm, str) else paradigm


def settings() -> Iterator[Setting]:
    """Yield what is predicted."""
    for paradigm in PARADIGMS:
        yield Setting("paradigm", paradigm)
    for paradigm in ("bsp", "asp"):
        for workers in (2, 6, 8):
            yield Setting("workers", paradigm, workers)
        for slow in (("w3-0",), ("w0-0", "w1-0", "w2-0", "w3-0")):
            yield Setting("links", paradigm, slow_links=slow)
        for steps in (4, 16):
            yield Setting("local steps", paradigm, steps=steps)


def measured(output: Path) -> MeasuredRanks:
    """Return the step times of a run on Ray under BSP."""
    record = raysync.run(COMMON | {"output": str(output / "measured"), "seed": 0})
    times = read([str(record.path)])
    return MeasuredRanks(times.steps, times.batch_size, times.shortest)


def calibrated(output: Path) -> str:
    """Measure what calls cost here; return the path of the profile."""
    path = output / "here.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    training = prepare(config.validate(COMMON))
    with engine_for(training.experiment) as engine:
        measured = calibrate(engine, training)
    path.write_text(profile(training.experiment, measured, "predict.py"), encoding="utf-8")
    return str(path)


def exchange(setting: Setting, ranks: MeasuredRanks, profile: str | None) -> Exchange | None:
    """Return what the options of `raysync whatif` say of a setting's links."""
    links = [f"{rank}={SLOW_LINK_TEXT}" for rank in setting.slow_links]
    if links and profile is None:
        links.append("1TB/s")  # the link of the others
    found = exchange_of(
        model_bytes=vector_bytes(),
        links=links,
        nodes=None,
        exchanges=["servers:1"] if links else [],
        ranks=list(ranks.steps),
        profile=profile,
    )
    # without a profile the server's own link has no limit, as the one of an emulated run
    return found and (found if profile else replace(found, link=Link()))


def predicted(
    ranks: MeasuredRanks, setting: Setting, profile: str | None
) -> tuple[float, list[str]]:
    """Return the samples per second, and of which measured worker each one is a copy."""
    ranks = replace(ranks, exchange=exchange(setting, ranks, profile))
    ranks = ranks.resized(setting.workers)
    likes = [rank.partition(" ")[0] for rank in ranks.steps]
    candidate = Candidate(ParadigmChoice.model_validate(setting.choice))
    found = ranks.setting(candidate)
    result = simulate(found.training, found.choice)
    return result.summary["throughput_samples_per_s"], likes


def vector_bytes() -> int:
    """Return the bytes of the model's vector."""
    return prepare(config.validate(COMMON)).vector_bytes


def described(setting: Setting, likes: list[str], output: Path) -> dict[str, Any]:
    """Return the experiment on Ray that a setting is."""
    groups = {group["name"]: group for group in COMMON["workers"]}
    workers = []
    for number, like in enumerate(likes):
        link = {"link": SLOW_LINK} if like in setting.slow_links else {}
        workers.append({**groups[like.removesuffix("-0")], "name": f"n{number}", **link})
    each = max(1, round(COMMON["workload"]["iterations_per_worker"] * 4 / len(likes)))
    return COMMON | {
        "workers": workers,
        "paradigm": setting.choice,
        "workload": {"iterations_per_worker": each},
        "output": str(output / "real"),
    } | ({"local": LOCAL} if setting.steps > 1 else {})  # fmt: skip


def throughput(settings: dict[str, Any]) -> float:
    """Run it with each seed; return the mean of the samples per second."""
    experiment = config.validate(settings)
    training = prepare(experiment)
    rates = []
    with engine_for(experiment) as engine:
        for seed in SEEDS:
            record = run_in(engine, training.with_seed(seed), experiment.paradigm)
            assert record.summary["status"] == "finished", record.summary
            rates.append(record.summary["throughput_samples_per_s"])
    return fmean(rates)


def main() -> None:
    """Measure, predict, run; write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, help="a folder for the records")
    output = parser.parse_args().runs
    ranks, costs = measured(output), calibrated(output)
    with TABLE.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(FIELDS)
        for setting in settings():
            alone, likes = predicted(ranks, setting, None)
            with_calls, _ = predicted(ranks, setting, costs)
            real = described(setting, likes, output)
            virtual = throughput(real | {"engine": "virtual", "timing": "only"})
            ray = throughput(real)
            label = ParadigmChoice.model_validate(_named(setting.paradigm)).label
            beyond = setting.workers > len(ranks.steps)
            row = [setting.varied, label, setting.words, alone, with_calls, virtual, ray]
            writer.writerow([*(f"{x:.5g}" if isinstance(x, float) else x for x in row), beyond])
            file.flush()


if __name__ == "__main__":
    main()
