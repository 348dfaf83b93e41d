"""The processes of a run: which there are, which of them is struck, and what they leave behind.

All processes of a run inherit a mark in their environment, also those that Ray starts for it on a
cluster that was there before. Only processes with that mark are ever sent a signal: the others on
the machine are nobody's business here.
"""

from __future__ import annotations

import json
import logging
import os
import re
import signal
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from raysync.engine.messages import MESSAGES, method_of

MARK = "RAYSYNC_CHAOS"
"""The variable of the environment that marks the processes of a run."""
JOB_CONFIG = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""The variable from which Ray takes the settings of a job (2.60): its actors get the mark even
where the cluster, from which they inherit, has none."""


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
SHARED_MEMORY = Path("/dev/shm")
GONE_S = 20.0
"""How long the processes of a run may take to be gone once it has ended."""


def with_mark(environment: Mapping[str, str], mark: str) -> dict[str, str]:
    """Return the environment of a run whose processes have a mark."""
    settings = json.loads(environment.get(JOB_CONFIG) or "{}")
    runtime_env = settings.get("runtime_env") or {}
    variables = {**runtime_env.get("env_vars", {}), MARK: mark}
    job = settings | {"runtime_env": runtime_env | {"env_vars": variables}}
    return {**environment, MARK: mark, JOB_CONFIG: json.dumps(job)}


def marked(mark: str) -> Iterator[psutil.Process]:
    """Yield the processes of this machine with that mark, but this one."""
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and mark.encode() in _environment_of(process):
                yield process


def _environment_of(process: psutil.Process) -> bytes:
    """Return the environment of a process. Ray's agents write their title over a part of it, with
    zeros behind it, where psutil takes it to end.
    """
    file = Path(f"/proc/{process.pid}/environ")
    if file.exists():
        return file.read_bytes()
    return "\n".join(process.environ().values()).encode()


def victims(mark: str, target: str) -> list[psutil.Process]:
    """Return the processes of a kind of actor, in the order in which they were started."""
    found = []
    for process in marked(mark):
        with suppress(psutil.Error, OSError):
            title = " ".join(process.cmdline()[:1])
            if TITLES[target].match(title) and process.status() != psutil.STATUS_STOPPED:
                found.append((process.create_time(), process.pid, process))
    return [process for *_, process in sorted(found, key=lambda each: each[:2])]


def kinds_of(these: Iterable[psutil.Process]) -> list[str]:
    """Return the targets among some processes, each as often as it is there."""
    kinds = []
    for process in these:
        with suppress(psutil.Error, OSError):
            title = " ".join(process.cmdline()[:1])
            kinds += [target for target, begins in TITLES.items() if begins.match(title)]
    return sorted(kinds)


def strike(process: psutil.Process, how: str) -> bool:
    """Kill or freeze a process; return whether it was still there."""
    try:
        process.send_signal(signal.SIGKILL if how == "kill" else signal.SIGSTOP)
    except psutil.NoSuchProcess:
        return False
    return True


def can_fill_disks() -> bool:
    """Say whether this machine can limit the files of a process that runs: Linux can."""
    return hasattr(psutil.Process, "rlimit")


def fill_disk(pid: int, full_bytes: int) -> bool:
    """Let no file of a process grow beyond a size, as if the disk were full; return whether the
    process was still there. Only its soft limit is set, so no privilege is needed.
    """
    try:
        process = psutil.Process(pid)
        _, hard = process.rlimit(psutil.RLIMIT_FSIZE)
        process.rlimit(psutil.RLIMIT_FSIZE, (full_bytes, hard))
    except (psutil.NoSuchProcess, ProcessLookupError):
        return False
    return True


def kill_all(mark: str) -> None:
    """Kill all processes of a run; those that are started meanwhile, too."""
    while processes := [each for each in marked(mark) if not _is_zombie(each)]:
        for process in processes:
            with suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(processes, timeout=1)


def left_behind(mark: str) -> list[str]:
    """Return the titles of the processes that are still there some seconds after a run."""
    _, alive = psutil.wait_procs(list(marked(mark)), timeout=GONE_S)
    titles = []
    for process in alive:
        with suppress(psutil.Error):
            if not _is_zombie(process):
                titles.append(f"{process.pid} {' '.join(process.cmdline())[:60]}")
    return titles


def _is_zombie(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return True


def segments() -> set[str]:
    """Return the names of the shared memory segments of this machine; semaphores, which are files
    there, too, hold no memory, and no process of a run makes any.
    """
    if not SHARED_MEMORY.is_dir():
        return set()
    return {each.name for each in SHARED_MEMORY.iterdir() if not each.name.startswith("sem.")}


def orphans_among(names: Iterable[str]) -> list[str]:
    """Return those of some shared memory segments that exist, and that no process uses."""
    names = {name for name in names if (SHARED_MEMORY / name).exists()}
    if not names:
        return []
    used = set()
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            used |= {Path(each.path).name for each in process.memory_maps()}
            used |= {Path(each.path).name for each in process.open_files()}
    return sorted(names - used)


def placement_groups(address: str | None) -> set[str]:
    """Return the ids of the placement groups that a cluster has; none of a private one, which ends
    with its run.
    """
    if address is None:
        return set()
    import ray

    ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
    try:
        return {
            key
            for key, group in ray.util.placement_group_table().items()
            if group["state"] != "REMOVED"
        }
    finally:
        ray.shutdown()


def address_of(setting: str, environment: Mapping[str, str]) -> str | None:
    """Return the address of the cluster that a run joins; None: it starts a private one.

    Args:
        setting: `cluster.address`.
        environment: of the run.
    """
    if setting == "auto":
        return environment.get("RAY_ADDRESS")
    return None if setting == "local" else setting
