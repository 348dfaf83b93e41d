"""The processes of a private cluster: they are children of this one, and go with it."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil
import ray

GONE_S = 5.0
"""How long processes may take to be gone once they are killed."""


def private_processes() -> list[psutil.Process]:
    """List the processes of Ray that this process started, and all that those started.

    A child is Ray's own by its command line, which is of Ray's folder; the user's children are left
    out.
    """
    folder = str(Path(ray.__file__).parent)
    own = [child for child in psutil.Process().children() if folder in " ".join(_command(child))]
    return [one for child in own for one in (child, *_below(child))]


def kill(processes: Iterable[psutil.Process]) -> None:
    """End processes at once, frozen ones too; those that are gone already are no matter."""
    killed = list(processes)
    for process in killed:
        with suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(killed, timeout=GONE_S)


def _command(process: psutil.Process) -> list[str]:
    with suppress(psutil.Error):
        return list(process.cmdline())
    return []


def _below(process: psutil.Process) -> list[psutil.Process]:
    with suppress(psutil.Error):
        return list(process.children(recursive=True))
    return []
