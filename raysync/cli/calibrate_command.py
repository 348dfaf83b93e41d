"""`raysync calibrate`: measure a cluster, and write a profile of it for the virtual engine."""

from __future__ import annotations

import os
import platform
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raysync.cli.app import OptionalFile, Settings, app, load_experiment
from raysync.cli.console import console, say
from raysync.config import Experiment
from raysync.errors import ConfigError
from raysync.record.storage import check_file, written

if TYPE_CHECKING:
    from raysync.calibration import Measured


@app.command()
def calibrate(
    profile: Annotated[
        Path,
        typer.Argument(
            metavar="PROFILE", help="The cluster profile to write (YAML).", show_default=False
        ),
    ],
    file: OptionalFile = None,
    settings: Settings = [],  # noqa: B006
) -> None:
    """Measure each group of workers on its own nodes, and write a profile for the virtual engine.
    This takes a few minutes.
    """
    from raysync import calibration
    from raysync.cluster.probes import busy_cores
    from raysync.running.engines import engine_for
    from raysync.training.preparation import prepare

    if profile.suffix != ".yaml":
        raise ConfigError(f"{profile}: the path of a profile must end in .yaml.")
    if not profile.absolute().parent.is_dir():
        raise ConfigError(f"{profile}: there is no folder {profile.parent}.")
    check_file(profile, "PROFILE")
    experiment = load_experiment(file, [*settings, "engine=ray", "timing=with-gradients"])
    training = prepare(experiment)
    with engine_for(experiment, say, os.environ.get("RAY_ADDRESS")) as engine:
        measured = calibration.calibrate(engine, training, say, busy_cores)
    about = (
        f"Measured by raysync calibrate from {platform.node() or 'this machine'} ({os.cpu_count()}"
        f" cores), {datetime.now():%Y-%m-%d}, with {training.task.model_name}."
    )
    with written(profile):
        profile.write_text(calibration.profile(experiment, measured, about), encoding="utf-8")
    _print_measured(experiment, measured)
    compare_command = " ".join(["raysync compare", *([str(file)] if file else [])])
    console.print_plain(f"Try it: {compare_command} --engine virtual --set profile={profile}")


def _print_measured(experiment: Experiment, measured: Measured) -> None:
    from raysync.calibration.step_times import describe

    for group in experiment.workers:
        found = measured.groups[group.name]
        if found.steps is not None:
            for text in describe(group.name, found.steps):
                console.print_plain(text)
        rate = found.links.bandwidth_bytes_per_s
        bandwidth = f"{rate / 1e9:.3g} GB/s" if rate else "too high to measure"
        console.print_plain(
            f"{group.name}: latency {1000 * found.links.latency_s:.3g} ms each way, bandwidth"
            f" {bandwidth}, start of a worker {found.start_s:.3g} s"
        )
    if (sharing := measured.sharing) is not None:
        console.print_plain(
            f"the server's link: {sharing.bytes_per_s / 1e9:.3g} GB/s for all, shared with weights"
            f" of sigma {sharing.sigma:.2g}"
        )
    updates = measured.updates
    console.print_plain(
        f"push {1000 * measured.push_s:.3g} ms of the coordinator, one after another; update"
        f" {1000 * updates.update_s:.3g} ms + {updates.bytes_per_s / 1e9:.3g} GB/s"
    )
