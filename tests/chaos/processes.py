"""The processes of a run: which there are, and what they leave behind.

All processes of a run inherit a mark in their environment, also those that Ray starts for it on a
cluster that was there before. Only processes with that mark are ever sent a signal.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from raysync.engine.messages import MESSAGES, method_of

GONE_S = 20.0
"""How long the processes of a run may take to be gone once it has ended."""


def _title_of(*kinds: str) -> re.Pattern[str]:
    """Return the pattern of the titles that Ray gives to an actor's process: `ray::Worker`, by its
    class, and `ray::step` while it carries out that call.
    """
    calls = "|".join(method_of(call) for call in MESSAGES if call.row.to in kinds)
    return re.compile(rf"ray::(({'|'.join(kinds).title()})\b|({calls})$)")


TITLES = {
    "worker": _title_of("worker", "stage"),
    "server": _title_of("server"),
    "evaluator": _title_of("evaluator"),
    "controller": re.compile(r"ray::Controller\b"),
}
"""Target -> the title of its process."""


def with_mark(mark: str) -> dict[str, str]:
    """Return the environment of a run whose processes have a mark: Ray gives it to the actors of a
    job also where the cluster, from which they inherit, has none.
    """
    job = {"runtime_env": {"env_vars": {"RAYSYNC_CHAOS": mark}}}
    return {**os.environ, "RAYSYNC_CHAOS": mark, "RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps(job)}


def marked(mark: str) -> Iterator[psutil.Process]:
    """Yield the processes of this machine with that mark that are not zombies."""
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            # psutil takes it to end where Ray's agents have written zeros behind their titles
            environment = Path(f"/proc/{process.pid}/environ").read_bytes()
            if mark.encode() in environment and process.status() != psutil.STATUS_ZOMBIE:
                yield process


def kind_of(process: psutil.Process) -> str:
    """Return the target that a process is; "": none."""
    with suppress(psutil.Error):
        title = " ".join(process.cmdline()[:1])
        return next((target for target, begins in TITLES.items() if begins.match(title)), "")
    return ""


def victims(mark: str, target: str) -> list[psutil.Process]:
    """Return the processes of a kind of actor that are not frozen, by their ids."""
    found = [process for process in marked(mark) if kind_of(process) == target]
    return sorted((each for each in found if not _is_frozen(each)), key=lambda each: each.pid)


def _is_frozen(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return bool(process.status() == psutil.STATUS_STOPPED)
    return True


def kill_all(mark: str) -> None:
    """Kill all processes of a run; those that are started meanwhile, too."""
    while processes := list(marked(mark)):
        for process in processes:
            with suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(processes, timeout=1)


def left_behind(mark: str) -> list[str]:
    """Return the ids and titles of the processes that are still there some seconds after a run."""
    psutil.wait_procs(list(marked(mark)), timeout=GONE_S)
    titles = []
    for process in marked(mark):
        with suppress(psutil.Error):
            titles.append(f"{process.pid} {' '.join(process.cmdline())[:60]}")
    return titles
